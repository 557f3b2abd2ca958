//! Floor 4: the actors. Each owns a mailbox and some state, asks the domain what to do, and does exactly that.
//! They know each other's messages, never each other.

pub mod front_desk;
pub mod job_supervisor;
pub mod lease_reaper;
pub mod messages;
pub mod scheduler;
pub mod task_runner;
pub mod worker_session;

/// Lets every actor of this thread be polled once. To be awaited before a system ends that may have started some
/// just now: actix runs `started` of a context that was never polled when the context is dropped, and by then
/// the runtime that its timers need is gone.
pub async fn let_them_start() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}
