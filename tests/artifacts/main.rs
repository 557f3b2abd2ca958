//! The artifact store, bundles, unpacking and collection on a real file system.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

mod bundles;
mod collecting;
mod stat_cache;
mod store;
mod trees;
mod tricks;
mod unpacking;
#[path = "../support/volume.rs"]
mod volume;
