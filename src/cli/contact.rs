//! Contact with a server while a job is followed: says once that it was lost, and for how long it is sought.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use super::screen::say;
use crate::client::{Answer, Call, Client, ClientError, Retry};
use crate::contract::error_code::ErrorCode;

/// For how long a server that went away is waited for before the job is left alone.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
/// A restart of the daemon is shorter than this and worth no word.
const SAY_AFTER: Duration = Duration::from_secs(2);
/// A connection that held this long was a good one: what comes after it is a new loss.
const GOOD_AFTER: Duration = Duration::from_secs(5);

/// One server, as seen by everything that follows a job there.
pub(super) struct Contact<'a> {
    pub(super) client: &'a Client,
    lost_at: Cell<Option<Instant>>,
    /// The server's last word was that it stops.
    stopped: Cell<bool>,
    said: Cell<bool>,
}

impl<'a> Contact<'a> {
    pub(super) fn with(client: &'a Client) -> Self {
        Self { client, lost_at: Cell::new(None), stopped: Cell::new(false), said: Cell::new(false) }
    }

    /// Waits for something, and meanwhile says that the contact is lost when it has been so for a while.
    async fn watched<T>(&self, waited_for: impl Future<Output = T>) -> T {
        let mut waited_for = std::pin::pin!(waited_for);
        let lost = match self.lost_at.get() {
            Some(lost_at) if !self.said.get() => lost_at,
            _ => return waited_for.await,
        };
        tokio::select! {
            biased;
            value = &mut waited_for => return value,
            () = tokio::time::sleep_until(lost + SAY_AFTER) => {}
        }
        // Another follower may have said it meanwhile, or found the server again.
        if self.lost_at.get().is_some() && !self.said.replace(true) {
            say(&lost_line(self.client.endpoint(), self.stopped.get(), PATIENCE));
        }
        waited_for.await
    }

    fn found(&self) {
        self.lost_at.set(None);
        self.stopped.set(false);
        if self.said.replace(false) {
            say("connected again");
        }
    }
}

/// The tries of one follower to go on after its connection broke.
pub(super) struct Perseverance<'a> {
    contact: &'a Contact<'a>,
    retry: Option<Retry>,
    good_since: Option<Instant>,
}

impl<'a> Perseverance<'a> {
    pub(super) fn of(contact: &'a Contact<'a>) -> Self {
        Self { contact, retry: None, good_since: None }
    }

    /// Carries out one try to connect.
    pub(super) async fn attempt<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let outcome = self.contact.watched(attempt).await;
        if outcome.is_ok() {
            self.contact.found();
            self.good_since = Some(Instant::now());
        }
        outcome
    }

    /// One parked call, tried once: what is tried again is decided here, where it is also said.
    pub(super) async fn ask(&mut self, call: &Call) -> Result<Answer, ClientError> {
        let answer = self.contact.client.answer_within(call, Duration::ZERO);
        self.attempt(answer).await
    }

    /// Something arrived.
    pub(super) fn progressed(&mut self) {
        self.retry = None;
    }

    /// Waits before the next try; `false` when the patience is at its end.
    pub(super) async fn pause_after(&mut self, failed: &ClientError) -> bool {
        if self.good_since.take().is_some_and(|since| since.elapsed() > GOOD_AFTER) {
            self.retry = None;
        }
        if failed.problem().is_some_and(|problem| problem.code == ErrorCode::NotReady) {
            self.contact.stopped.set(true);
        }
        if failed.is_connection() && self.contact.lost_at.get().is_none() {
            self.contact.lost_at.set(Some(Instant::now()));
        }
        let retry = self.retry.get_or_insert_with(|| Retry::patient(PATIENCE));
        self.contact.watched(retry.pause_after(failed)).await
    }
}

/// What the job does meanwhile is not known from here, so nothing is said of it.
fn lost_line(endpoint: &crate::client::Endpoint, stopped: bool, patience: Duration) -> String {
    let minutes = patience.as_secs() / 60;
    let what = if stopped {
        format!("the server at {endpoint} was stopped")
    } else {
        format!("lost the connection to {endpoint}")
    };
    format!("{what}; trying again for {minutes} min")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Endpoint;
    use crate::contract::problem::Problem;

    fn cut() -> ClientError {
        ClientError::Unreachable {
            endpoint: Endpoint::parse("http://127.0.0.1:9").unwrap(),
            source: std::io::Error::other("refused"),
        }
    }

    #[test]
    fn the_line_names_the_server_and_the_time() {
        let endpoint = Endpoint::parse("http://box:8470").unwrap();
        insta::assert_snapshot!(lost_line(&endpoint, false, PATIENCE), @"lost the connection to http://box:8470; trying again for 5 min");
        insta::assert_snapshot!(lost_line(&endpoint, true, PATIENCE), @"the server at http://box:8470 was stopped; trying again for 5 min");
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_is_said_once_and_only_when_it_lasts() {
        let client = Client::new(Endpoint::parse("http://127.0.0.1:9").unwrap());
        let contact = Contact::with(&client);
        let mut one = Perseverance::of(&contact);
        let mut other = Perseverance::of(&contact);
        assert!(one.pause_after(&cut()).await && other.pause_after(&cut()).await);
        assert!(!contact.said.get(), "it may be a restart");
        contact.watched(tokio::time::sleep(SAY_AFTER * 2)).await;
        assert!(contact.said.get());
        drop(one.attempt(std::future::ready(Ok(()))).await);
        assert!(!contact.said.get() && contact.lost_at.get().is_none(), "the next loss is said again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_said_that_it_stops_is_not_called_lost() {
        let client = Client::new(Endpoint::parse("http://127.0.0.1:9").unwrap());
        let contact = Contact::with(&client);
        let mut one = Perseverance::of(&contact);
        let stops = Problem::new(ErrorCode::NotReady, "the daemon is stopping");
        assert!(one.pause_after(&ClientError::Refused(Box::new(stops))).await);
        assert!(one.pause_after(&cut()).await);
        assert!(contact.stopped.get());
        drop(one.attempt(std::future::ready(Ok(()))).await);
        assert!(!contact.stopped.get(), "it is back");
    }
}
