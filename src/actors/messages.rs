//! What actors say to each other: a file per receiver. Commands are acts (`SubmitJobs`), facts are past tense
//! (`LeaseExpired`), questions carry a [`Reply`].

pub mod front_desk;
pub mod job_supervisor;
pub mod lease_reaper;
pub mod scheduler;
pub mod task_runner;
pub mod worker_session;

/// Where an answer goes. The asker awaits the other end; an actor never awaits another actor.
/// Sending fails when the asker has gone, and then nothing is lost but the answer.
pub type Reply<T> = tokio::sync::oneshot::Sender<T>;

/// Answers; an asker that has gone needs no answer.
pub fn send<T>(reply: Reply<T>, value: T) {
    let _ = reply.send(value);
}

/// Everything up to this number is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, actix::Message)]
#[rtype(result = "()")]
pub struct Durable {
    /// Sequence number of the newest durable batch.
    pub through: crate::journal::Seq,
}
