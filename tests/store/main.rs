//! The store and the journal as the actors use them: what is acknowledged is there, whatever happens.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod coalescing;
mod crash;
mod journal;
mod logs;
mod reads;
mod records;
mod yielded;
