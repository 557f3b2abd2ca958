//! Real actors with recording recipients: who is told what, when, and that nothing unexpected is said.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod arrays;
mod credentials;
mod dependants;
mod drains;
mod lease_reaper;
mod persist_before_speak;
mod recorder;
mod repeats;
mod roll_call;
mod scheduler;
mod worker_session;
