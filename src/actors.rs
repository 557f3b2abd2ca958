//! Floor 4: the actors. Each owns a mailbox and some state, asks the domain what to do, and does exactly that.
//! They know each other's messages, never each other.

pub mod front_desk;
pub mod job_supervisor;
pub mod lease_reaper;
pub mod messages;
pub mod scheduler;
pub mod task_runner;
pub mod worker_session;
