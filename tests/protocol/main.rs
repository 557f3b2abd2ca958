//! What goes over the wire stays what it was: golden files of protocol 1 and of the client API, and conversations
//! that older versions had, held with this one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

mod goldens;
#[allow(dead_code)]
#[path = "../e2e/house.rs"]
mod house;
mod older_servers;
mod older_workers;
#[allow(dead_code)]
#[path = "../e2e/processes.rs"]
mod processes;
mod recording;
#[allow(dead_code)]
#[path = "../http/wire.rs"]
mod wire;
