//! What a worker's line to its server has taught it: how long a poll may park, and that the line was dead and is
//! alive again. Heartbeats feel the line's pulse, since they go out whatever else happens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::ClientError;
use crate::contract::quantity::Seconds;
use crate::domain::poll_limit::{PollEnd, PollLimit};

/// The line came back while this call waited: what was sent before is most likely lost, or waits for a retransmission
/// that may take as long as the outage did.
#[derive(Debug, thiserror::Error)]
#[error("the line was dead and is alive again; what was on its way is asked anew")]
pub(super) struct CameBack;

/// One line.
#[derive(Debug)]
pub(super) struct Line {
    polls: Mutex<PollLimit>,
    dead: AtomicBool,
    comebacks: watch::Sender<u64>,
}

impl Default for Line {
    fn default() -> Self {
        Self { polls: Mutex::default(), dead: AtomicBool::new(false), comebacks: watch::Sender::new(0) }
    }
}

impl Line {
    /// How long the next poll should park.
    pub(super) fn poll_for(&self, wanted: Seconds) -> Seconds {
        self.polls.lock().ask(wanted, rand::random_range(0..=1000))
    }

    /// A poll ended; whether it counts as an empty one.
    pub(super) fn poll_ended(&self, asked: Seconds, after: Duration, end: PollEnd) -> bool {
        let after = Seconds::from_millis(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        let mut polls = self.polls.lock();
        let before = *polls;
        let empty = polls.ended(asked, after, end);
        let now = polls.ask(Seconds::MAX, 0);
        if now < before.ask(Seconds::MAX, 0) {
            tracing::info!(
                after_s = after.duration().as_secs_f64(),
                now_s = now.duration().as_secs_f64(),
                "something between here and the server cut a long poll; asking for shorter ones"
            );
        }
        empty
    }

    /// A heartbeat got no answer.
    pub(super) fn pulse_lost(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// A heartbeat was answered. `true` = none was before it, and whoever waits on the line was told so.
    pub(super) fn pulse(&self) -> bool {
        let came_back = self.dead.swap(false, Ordering::Relaxed);
        if came_back {
            self.comebacks.send_modify(|count| *count += 1);
        }
        came_back
    }

    /// Returns when the line comes back from now on.
    pub(super) fn comeback(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut comebacks = self.comebacks.subscribe();
        async move {
            if comebacks.changed().await.is_err() {
                // The line itself is gone, and the call with it.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// What a poll's failure says of the path; `None` = the server itself said no.
pub(super) fn poll_end(failed: &ClientError) -> Option<PollEnd> {
    Some(match failed {
        ClientError::Cut { .. } | ClientError::Silent { .. } => PollEnd::Cut,
        // 504 is a gateway's own word for it; the others stand for it at large content networks.
        ClientError::Unexpected { status: 408 | 499 | 504 | 522 | 524, .. } => PollEnd::Cut,
        ClientError::Unexpected { .. } | ClientError::BadAnswer { .. } => PollEnd::Interrupted,
        ClientError::Unreachable { .. } | ClientError::NotStarted { .. } => PollEnd::Unreached,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_hears_of_the_first_pulse_after_a_lost_one() {
        let line = Line::default();
        let before = line.comeback();
        assert!(!line.pulse(), "it was never lost");
        line.pulse_lost();
        line.pulse_lost();
        assert!(line.pulse());
        before.await;
        let after = line.comeback();
        assert!(!line.pulse());
        let waited = tokio::time::timeout(Duration::from_millis(1), after).await;
        assert!(waited.is_err(), "a call that began afterwards is not concerned");
    }
}
