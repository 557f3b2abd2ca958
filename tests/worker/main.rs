//! A worker with real shims and programs, and a server that only records: what is reported, in which order, and
//! what is left on the machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod files;
#[path = "../support/frozen.rs"]
mod frozen;
mod logs;
mod lost_shims;
mod restarts;
mod runs;
mod server;
mod stops;
