//! Why a job that somebody sits and waits for does not start yet.

use super::explain;
use super::next_step::NextStep;
use super::screen::say;
use super::shown::{harmless, tail};
use crate::client::Client;
use crate::contract::explain::Explanation;
use crate::contract::ids::JobId;
use crate::contract::job::{Job, JobState};
use crate::domain::placement;

/// `for 1 GPU: held by job …a7kq2b (alice), up to 40 min`; `None` when it is neither tasks that the job waits for nor
/// whose turn is first, or the server does not say.
async fn waiting_for(client: &Client, id: JobId) -> Option<String> {
    let explanation: Explanation = client.get(&format!("/v1/jobs/{id}/explain")).await.ok()?;
    said_of(&explanation)
}

fn said_of(explanation: &Explanation) -> Option<String> {
    if explanation.quota.is_some() || explanation.held.is_some() {
        return None;
    }
    let Some(waiting) = &explanation.waiting_for else {
        let kept =
            explanation.workers.iter().find_map(|answer| Some((answer, answer.reserved_for.as_ref()?)));
        let (answer, reserved_for) = kept?;
        return Some(format!(": {} {}", answer.workers.first()?, explain::kept(reserved_for)));
    };
    let held = explain::held(waiting);
    Some(match explanation.ahead {
        None | Some(0) => format!(" for {held}"),
        // Whose turn is first has been said.
        Some(_) if waiting.reserved_for.is_some() => format!(" for {held}"),
        Some(_) => format!(" for {held} · {}", explain::turn(explanation)),
    })
}

/// Why a job waits, said once and again when it changes.
#[derive(Default)]
pub(super) struct WaitReason {
    said: String,
    /// That waiting does not help was said.
    told: bool,
    /// It does not wait any more.
    pub(super) started: bool,
}

impl WaitReason {
    /// Looks again, and says what has changed.
    pub(super) async fn look(&mut self, client: &Client, next: &NextStep, id: JobId) {
        let Ok(job) = client.get::<Job>(&format!("/v1/jobs/{id}")).await else { return };
        self.started = !matches!(job.state, JobState::Queued | JobState::Provisioning);
        let reason = job.queue_reason.filter(|reason| *reason != self.said);
        if let (false, Some(reason)) = (self.started, reason) {
            let told = match waiting_for(client, id).await {
                Some(waiting) => format!("waiting{}", harmless(&waiting, false)),
                None => format!("waiting: {}", harmless(&reason, false)),
            };
            // Who has read it once knows where there is more.
            let more = match self.said.is_empty() {
                true => format!(" · {}", next.command(&format!("explain {}", tail(id)))),
                false => String::new(),
            };
            say(&format!("{told}{more}"));
            if reason == placement::NO_WORKER {
                say(explain::TO_HAVE_WORKERS);
            }
            if !self.told && placement::never_fits(&reason) {
                self.told = true;
                let cancel = next.command(&format!("cancel {}", tail(id)));
                say(&format!(
                    "no worker here can take it as it is, so it waits until one can · `{cancel}` ends it"
                ));
            }
            self.said = reason;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_another_is_no_promise() {
        // Read, and not compiled in: a source package comes without the tests.
        let full = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protocol/v1/Explanation.full.json");
        let mut explanation: Explanation =
            serde_json::from_str(&std::fs::read_to_string(full).unwrap()).unwrap();
        (explanation.quota, explanation.held) = (None, None);
        let waiting = explanation.waiting_for.as_mut().unwrap();
        (waiting.preempted, waiting.up_to_s, waiting.more) = (false, None, 0);
        assert!(waiting.reserved_for.is_some());
        let said = said_of(&explanation).unwrap();
        assert_eq!(said, " for 4 GPUs: held by job …a7kq2b (alice), then reserved for job …a7kq2b");
        explanation.waiting_for = None;
        let said = said_of(&explanation).unwrap();
        assert!(said.starts_with(": box has room, reserved for job …a7kq2b until "), "{said}");
        explanation.workers[0].reserved_for = None;
        assert_eq!(said_of(&explanation), None);
    }
}
