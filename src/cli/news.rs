//! What the events of a job have to say to somebody who looks on: that an attempt ended and another follows, that its
//! worker is silent, that somebody else stops it. What the log and the last line say anyway is left to them.

use std::time::Duration;

use super::contact::Contact;
use super::error::CliError;
use super::follow::{each_event, parsed};
use super::screen::say;
use super::shown::{harmless, moment};
use super::verdict::{cause, outcome_word};
use crate::contract::end::End;
use crate::contract::event::{Event, EventType};
use crate::contract::ids::JobId;
use crate::contract::quantity::Timestamp;
use crate::contract::worker::StuckProcess;

/// A job that is over sooner has its news in the last line, and costs no second stream.
const AFTER: Duration = Duration::from_secs(2);

/// Says the news of a job until its end.
pub(super) async fn told(contact: &Contact<'_>, id: JobId) -> Result<(), CliError> {
    tokio::time::sleep(AFTER).await;
    let path = format!("/v1/jobs/{id}/events");
    each_event(contact, &path, &mut 0, &mut |kind, text, _| {
        if kind == "event" {
            let event: Event = parsed(&path, text)?;
            news(&event).iter().for_each(|line| say(line));
        }
        Ok(())
    })
    .await
}

/// The event in a sentence, if it is news.
fn news(event: &Event) -> Option<String> {
    let data = &event.data;
    let text = |key: &str| data.get(key).and_then(|value| value.as_str()).unwrap_or_default();
    let line = match event.kind {
        EventType::TaskEnded => {
            let end: End = serde_json::from_value(data.get("end")?.clone()).ok()?;
            let word = outcome_word(end.reason.job_state());
            match cause(&end) {
                Some(cause) => format!("this attempt {word}: {cause}"),
                None => format!("this attempt {word}"),
            }
        }
        EventType::TaskLost => format!("this attempt was given up: {}", text("reason")),
        EventType::TaskDeclined => format!("the worker did not take the job: {}", text("detail")),
        EventType::TaskNotStarted => "the worker did not start the job in time".to_owned(),
        EventType::JobQueued if text("cause") != "submitted" => {
            let attempt = data.get("attempt")?.as_u64()?;
            let not_before = data.get("not_before").and_then(|time| time.as_str()?.parse::<Timestamp>().ok());
            match not_before {
                Some(time) => format!("queued again, attempt {attempt}, not before {}", moment(time)),
                None => format!("queued again, attempt {attempt}"),
            }
        }
        EventType::JobUnreachable => {
            "the worker does not answer; the job goes on there, and is waited for".to_owned()
        }
        EventType::JobReachable => "the worker answers again".to_owned(),
        EventType::TaskStopRequested => format!("the job is being stopped: {}", text("cause")),
        EventType::TaskStuck => {
            let stuck: Vec<StuckProcess> = serde_json::from_value(data.get("processes")?.clone()).ok()?;
            let names: Vec<_> = stuck.iter().map(ToString::to_string).collect();
            format!("killed, but not gone yet: {}", names.join("; "))
        }
        // The log, the reason it waits, this command itself and the last line say these.
        EventType::JobQueued
        | EventType::JobScheduled
        | EventType::JobRunning
        | EventType::JobCancelRequested
        | EventType::JobEnded
        | EventType::TaskPhase
        | EventType::TaskCheckpoint
        | EventType::StaleFinish
        | EventType::Audit => return None,
    };
    Some(harmless(&line, false))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn said(kind: &str, data: Value) -> Option<String> {
        let event = json!({
            "seq": 1, "position": 1, "time": "2026-01-01T00:00:00Z", "type": kind,
            "job_id": "job_01hf7yat00e2g0000000a7kq2b", "task_id": null, "data": data,
        });
        news(&serde_json::from_value(event).unwrap())
    }

    #[test]
    fn an_attempt_that_ended_is_told_with_what_follows() {
        let end = json!({"end": {"reason": "exit_nonzero", "owner": "user", "exit_code": 3, "evidence": []}});
        insta::assert_snapshot!(said("task_ended", end).unwrap(), @"this attempt failed: exit status 3");
        let again = json!({"cause": "retry", "attempt": 2, "after": "exit_nonzero"});
        insta::assert_snapshot!(said("job_queued", again).unwrap(), @"queued again, attempt 2");
        let lost =
            json!({"worker": "wkr_01hf7yat00e2g0000000a7kq2b", "reason": "worker_lost", "stale": true});
        insta::assert_snapshot!(said("task_lost", lost).unwrap(), @"this attempt was given up: worker_lost");
        let stuck =
            json!({"processes": [{"pid": 7, "command": "dd", "state": "D", "waits_in": ["nfs_wait"]}]});
        insta::assert_snapshot!(said("task_stuck", stuck).unwrap(), @"killed, but not gone yet: 7 (dd) in state D, in nfs_wait");
    }

    #[test]
    fn what_is_said_elsewhere_is_no_news() {
        for kind in ["job_scheduled", "job_running", "task_phase", "job_ended"] {
            assert_eq!(said(kind, json!({})), None, "{kind}");
        }
        assert_eq!(said("job_queued", json!({"cause": "submitted"})), None);
        assert_eq!(said("task_ended", json!({})), None, "an event of another version is passed over");
    }
}
