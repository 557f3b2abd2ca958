//! The HTTP edge, in process on real sockets, with a front desk of our own behind it and the real stores.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod artifacts;
mod desk;
mod documents;
mod explain;
mod fleet;
mod idempotency;
mod jobs;
mod limits;
mod outlooks;
mod problems;
mod roles;
mod socket;
mod stand;
mod streams;
mod tokens;
mod wire;
mod workers;
