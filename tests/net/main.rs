//! Workers on machines of their own, over networks that fail: namespaces on one host, real binaries. Sleeps stand for
//! how long a fault lasts; what follows is awaited on its condition, with a deadline.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

mod bad_links;
mod cuts;
mod identity;
#[path = "../support/machines.rs"]
mod machines;
mod proxy;
mod stand;
mod witness;
