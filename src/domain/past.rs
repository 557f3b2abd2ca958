//! What an ended job had waited for and what became of it, from what was written down while it lived.

use serde_json::Value;

use crate::contract::end::EndReason;
use crate::contract::event::{Event, EventType};
use crate::contract::explain::{LastStanding, PastExplanation, PastPlacement};
use crate::contract::job::Job;
use crate::contract::worker::Task;

/// Placements that are said at most, the newest.
const MOST_PLACEMENTS: usize = 20;

/// `tasks` and `events` are all of the job's, oldest first; `left_queue` is what was kept when it left the queue without a
/// place.
pub fn explain(
    job: &Job,
    tasks: &[Task],
    events: &[Event],
    left_queue: Option<LastStanding>,
) -> PastExplanation {
    let said = |task: &Task| {
        let by_it = |event: &&Event| event.kind == EventType::JobScheduled && event.task_id == Some(task.id);
        events.iter().find(by_it).map(|event| &event.data)
    };
    let placement = |task: &Task| {
        let data = said(task);
        let text = |key: &str| data.and_then(|data| data.get(key)).and_then(Value::as_str).map(str::to_owned);
        let gpus = data.and_then(|data| data.get("gpus")).and_then(Value::as_array);
        PastPlacement {
            task_id: task.id,
            attempt: task.attempt,
            worker: task.worker,
            gpus: gpus.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
            placed_at: task.assigned_at,
            started_at: task.started_at,
            ended_at: task.ended_at,
            reason: task.end.as_ref().map(|end| end.reason),
            waited_for: text("waited_for"),
        }
    };
    let newest = tasks.len().saturating_sub(MOST_PLACEMENTS);
    let placements: Vec<PastPlacement> = tasks[newest..].iter().map(placement).collect();
    let first_place = tasks.first().map(|task| task.assigned_at);
    let waited_until = first_place.or(job.started_at).or(job.ended_at).unwrap_or(job.submitted_at);
    let preempted = |task: &&Task| task.end.as_ref().is_some_and(|end| end.reason == EndReason::Preempted);
    let mut past = PastExplanation {
        state: job.state,
        summary: String::new(),
        queued_at: job.submitted_at,
        waited_s: waited_until.since(job.submitted_at),
        attempts: job.attempt,
        preemptions: u32::try_from(tasks.iter().filter(preempted).count()).unwrap_or(u32::MAX),
        placed: u32::try_from(tasks.len()).unwrap_or(u32::MAX),
        placements,
        left_queue,
    };
    past.summary = summary(job, &past);
    past
}

fn summary(job: &Job, past: &PastExplanation) -> String {
    let waited = past.waited_s.millis() / 1000;
    let Some(last) = past.placements.last() else {
        let end = job.end.as_ref().map_or("ended", |end| end.reason.word());
        let began = job.started_at.is_some();
        return match &past.left_queue {
            Some(left) if !began => format!("never started ({end}), waited {waited} s: {}", left.summary),
            _ if began => format!("its children began after {waited} s"),
            _ => match job.end.as_ref().and_then(|end| end.detail.as_deref()) {
                Some(detail) => format!("never started ({end}): {detail}"),
                None => format!("never started ({end}), waited {waited} s"),
            },
        };
    };
    let mut text = match &last.waited_for {
        Some(reason) => format!("waited {waited} s, last for: {reason}"),
        None => format!("waited {waited} s"),
    };
    if past.placed > 1 {
        text += &format!("; placed {} times", past.placed);
    }
    if past.preemptions > 0 {
        text += &format!(", {} of them ended for a job of a higher priority", past.preemptions);
    }
    text
}
