//! What a worker's line to its server has taught it: how long a poll may park, and that the line was dead and is
//! alive again. Heartbeats feel the line's pulse, since they go out whatever else happens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::header::HeaderValue;
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
    polls: Mutex<Polls>,
    dead: AtomicBool,
    comebacks: watch::Sender<u64>,
}

/// What polls have taught, and what is not sure yet.
#[derive(Debug, Default)]
struct Polls {
    limit: PollLimit,
    /// The start of the server that answered last.
    start: Option<HeaderValue>,
    /// How long the newest cut poll had been open, until it is known that no restart of the server cut it.
    unsaid_cut: Option<Duration>,
}

impl Default for Line {
    fn default() -> Self {
        Self { polls: Mutex::default(), dead: AtomicBool::new(false), comebacks: watch::Sender::new(0) }
    }
}

impl Line {
    /// How long the next poll should park.
    pub(super) fn poll_for(&self, wanted: Seconds) -> Seconds {
        self.polls.lock().limit.ask(wanted, rand::random_range(0..=1000))
    }

    /// Who answered the newest poll, said before what came of it. Another start of the server than the one before: then
    /// it was its end that cut the polls, and nothing on the way.
    pub(super) fn answered_by(&self, start: Option<HeaderValue>) {
        let mut polls = self.polls.lock();
        if start.is_some() && polls.start.is_some() && polls.start != start {
            polls.limit.server_went();
            polls.unsaid_cut = None;
        }
        polls.start = start.or(polls.start.take());
    }

    /// A poll ended; whether it counts as an empty one.
    pub(super) fn poll_ended(&self, asked: Seconds, after: Duration, end: PollEnd) -> bool {
        let after_s = Seconds::from_millis(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        let mut polls = self.polls.lock();
        let before = polls.limit.ask(Seconds::MAX, 0);
        let empty = polls.limit.ended(asked, after_s, end);
        let now = polls.limit.ask(Seconds::MAX, 0);
        match end {
            PollEnd::Cut if now < before => polls.unsaid_cut = Some(after),
            PollEnd::Unreached => polls.unsaid_cut = None,
            PollEnd::Answered => {
                if let Some(after) = polls.unsaid_cut.take() {
                    tracing::info!(
                        after_s = after.as_secs_f64(),
                        now_s = now.duration().as_secs_f64(),
                        "something between here and the server cut a long poll; asking for shorter ones"
                    );
                }
            }
            PollEnd::Cut | PollEnd::Interrupted => {}
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

    fn longest(line: &Line) -> Seconds {
        line.polls.lock().limit.ask(Seconds::MAX, 0)
    }

    fn cut(line: &Line, after: Duration) {
        let asked = longest(line);
        assert!(line.poll_ended(asked, after, PollEnd::Cut));
        assert!(longest(line) < asked);
    }

    #[test]
    fn a_server_that_was_restarted_teaches_nothing_however_soon_it_is_back() {
        let line = Line::default();
        let untaught = longest(&line);
        let answered = |start: &'static str| {
            line.answered_by(Some(HeaderValue::from_static(start)));
            line.poll_ended(Seconds::new(1), Duration::from_secs(1), PollEnd::Answered);
        };
        answered("1");
        for start in ["2", "3", "4"] {
            cut(&line, Duration::from_secs(13));
            cut(&line, Duration::from_secs(2));
            answered(start);
            assert_eq!(longest(&line), untaught, "{start}");
        }
        // The same server all the while: something on the way cut it.
        cut(&line, Duration::from_secs(13));
        answered("4");
        assert_eq!(longest(&line), Seconds::from_millis(10_400));
        // A server that does not say who it is, too.
        line.answered_by(None);
        assert_eq!(longest(&line), Seconds::from_millis(10_400));
    }

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
