//! What an ended job had waited for and what became of it, from what was written down while it lived.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::contract::end::EndReason;
use crate::contract::event::{Event, EventType};
use crate::contract::explain::{LastStanding, PastExplanation, PastPlacement};
use crate::contract::ids::Epoch;
use crate::contract::job::Job;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::contract::worker::Task;

/// Tasks whose places are said at most, the newest.
const MOST_PLACEMENTS: usize = 20;

/// `tasks` and `events` are all of the job's, oldest first; `left_queue` is what was kept when it left the queue without a
/// place; `last_began` is of an array, when the last of its children began.
pub fn explain(
    job: &Job,
    tasks: &[Task],
    events: &[Event],
    left_queue: Option<LastStanding>,
    last_began: Option<Timestamp>,
) -> PastExplanation {
    // One placement of a gang is one event and several tasks, of one epoch.
    let said = |task: &Task| {
        let by_it = |event: &&Event| {
            event.kind == EventType::JobScheduled && event.data["epoch"].as_u64() == Some(task.epoch.into())
        };
        events.iter().find(by_it).map(|event| &event.data)
    };
    let waits = waits(job, tasks, events);
    let gangs: BTreeSet<Epoch> = tasks.iter().filter(|task| task.rank > 0).map(|task| task.epoch).collect();
    let placement = |task: &Task| PastPlacement {
        task_id: task.id,
        attempt: task.attempt,
        worker: task.worker,
        rank: gangs.contains(&task.epoch).then_some(task.rank),
        gpus: task.gpus.clone(),
        placed_at: task.assigned_at,
        waited_s: waits.before.get(&task.epoch).copied().unwrap_or_default(),
        started_at: task.started_at,
        ended_at: task.ended_at,
        reason: task.end.as_ref().map(|end| end.reason),
        waited_for: said(task)
            .and_then(|data| data.get("waited_for"))
            .and_then(Value::as_str)
            .map(str::to_owned),
    };
    let newest = tasks.len().saturating_sub(MOST_PLACEMENTS);
    let placements: Vec<PastPlacement> = tasks[newest..].iter().map(placement).collect();
    let preempted = |task: &&Task| task.end.as_ref().is_some_and(|end| end.reason == EndReason::Preempted);
    let mut past = PastExplanation {
        state: job.state,
        summary: String::new(),
        queued_at: job.submitted_at,
        waited_s: waits.in_all,
        attempts: job.attempt,
        preemptions: placements_of(tasks.iter().filter(preempted)),
        placed: placements_of(tasks.iter()),
        placements,
        left_queue,
    };
    past.summary = summary(job, &past, last_began);
    past
}

fn placements_of<'a>(tasks: impl Iterator<Item = &'a Task>) -> u32 {
    let epochs: BTreeSet<Epoch> = tasks.map(|task| task.epoch).collect();
    u32::try_from(epochs.len()).unwrap_or(u32::MAX)
}

/// How long a job waited.
struct Waits {
    before: BTreeMap<Epoch, Seconds>,
    in_all: Seconds,
}

fn waits(job: &Job, tasks: &[Task], events: &[Event]) -> Waits {
    let placed: BTreeMap<Epoch, Timestamp> =
        tasks.iter().map(|task| (task.epoch, task.assigned_at)).collect();
    let queued = |after: Timestamp, until: Timestamp| {
        let again =
            |event: &&Event| event.kind == EventType::JobQueued && event.time >= after && event.time <= until;
        events.iter().filter(again).map(|event| event.time).next_back()
    };
    let (mut since, mut before, mut millis) = (Some(job.submitted_at), BTreeMap::new(), 0);
    let mut last = None;
    for (epoch, placed_at) in placed {
        if let Some(last) = last {
            since = queued(last, placed_at);
        }
        let waited = since.map_or_else(Seconds::default, |since| placed_at.since(since));
        millis += waited.millis();
        before.insert(epoch, waited);
        last = Some(placed_at);
    }
    // It may have ended while it waited.
    if let Some(ended_at) = job.ended_at {
        let until = job.started_at.filter(|_| last.is_none()).unwrap_or(ended_at);
        let tasks_ended = tasks.iter().filter_map(|task| task.ended_at).max();
        let since = match (last, tasks_ended) {
            (None, _) => Some(job.submitted_at),
            (Some(_), Some(ended)) => queued(ended, until),
            (Some(_), None) => None,
        };
        millis += since.map_or(0, |since| until.since(since).millis());
    }
    Waits { before, in_all: Seconds::from_millis(millis) }
}

/// `its first child began after 2 s, its last after 95 s`.
fn children_began(job: &Job, last_began: Option<Timestamp>) -> String {
    let after = |time: Timestamp| time.since(job.submitted_at).millis() / 1000;
    let first = after(job.started_at.unwrap_or(job.submitted_at));
    match last_began.map(after) {
        Some(last) => format!("its first child began after {first} s, its last after {last} s"),
        None => format!("its first child began after {first} s"),
    }
}

fn summary(job: &Job, past: &PastExplanation, last_began: Option<Timestamp>) -> String {
    let waited = past.waited_s.millis() / 1000;
    let Some(last) = past.placements.last() else {
        let end = job.end.as_ref().map_or("ended", |end| end.reason.word());
        let began = job.started_at.is_some();
        return match &past.left_queue {
            Some(left) if !began => format!("never started ({end}), waited {waited} s: {}", left.summary),
            _ if began => children_began(job, last_began),
            _ => match job.end.as_ref().and_then(|end| end.detail.as_deref()) {
                Some(detail) => format!("never started ({end}): {detail}"),
                None => format!("never started ({end}), waited {waited} s"),
            },
        };
    };
    let in_all = if past.placed > 1 { " in all" } else { "" };
    let mut text = match &last.waited_for {
        Some(reason) => format!("waited {waited} s{in_all}, last for: {reason}"),
        None => format!("waited {waited} s{in_all}"),
    };
    if past.placed > 1 {
        text += &format!("; placed {} times", past.placed);
    }
    if past.preemptions > 0 {
        text += &format!(", {} of them ended for a job of a higher priority", past.preemptions);
    }
    text
}
