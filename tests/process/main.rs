//! Shims with real programs: how tasks start, talk, end and are ended, and that nothing is left of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod adoption;
mod bench;
mod ends;
#[path = "../support/frozen.rs"]
mod frozen;
mod groups;
mod logs;
mod old_shims;
mod preludes;
mod reuse;
mod secrets;
mod stays;
mod trees;
mod users;
