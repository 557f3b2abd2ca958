//! What must hold when all is over: every job at its right end, every line once, every step legal.

use std::collections::BTreeMap;

use gpulayer::contract::artifact::Digest;
use gpulayer::contract::end::EndReason;
use gpulayer::contract::event::{Event, EventType};
use gpulayer::contract::ids::{JobId, TaskId};
use gpulayer::contract::job::{Job, JobState, Page, Sequence};
use gpulayer::contract::log::{LogLine, Stream};
use gpulayer::contract::worker::{Task, TaskState};
use sha2::{Digest as _, Sha256};

use super::blows::Victims;
use super::load::{Kind, mark};
use crate::house::House;

/// A job that the server has acknowledged.
pub struct Given {
    pub name: String,
    pub kind: Kind,
    pub id: JobId,
}

/// What a check has seen.
#[derive(Default)]
pub struct Seen {
    pub ends: BTreeMap<&'static str, u64>,
    pub lines: u64,
    pub attempts: u64,
}

/// Waits for a job's end and checks all of it; answers its lines on standard output.
pub async fn check(house: &House, given: &Given, victims: &Victims, seen: &mut Seen) -> Vec<String> {
    let Given { name, kind, id } = given;
    let job = house.end(*id).await;
    let told = format!("{name} {id} {kind:?}");
    assert_eq!(job.name.as_deref(), Some(name.as_str()), "{told}");
    let mut tasks: Page<Task> = house.client().get(&format!("/v1/jobs/{id}/tasks")).await.unwrap();
    tasks.items.sort_by_key(|task| task.epoch);
    let lines: Vec<LogLine> = all(house, &format!("/v1/jobs/{id}/logs"), |line: &LogLine| line.seq).await;
    let events: Vec<Event> = all(house, &format!("/v1/jobs/{id}/events"), |event: &Event| event.seq).await;
    check_steps(&told, &job, &events);
    check_attempts(&told, &job, *kind, &tasks.items, victims);
    for task in &tasks.items {
        check_lines(&told, *kind, task, &lines);
    }
    if job.state == JobState::Succeeded {
        check_outputs(house, given, &job);
    }
    *seen.ends.entry(job.end.as_ref().unwrap().reason.word()).or_default() += 1;
    seen.lines += lines.len() as u64;
    seen.attempts += u64::from(job.attempt);
    printed(&lines, None)
}

/// All pages of a sequence, which must be numbered from 1 without a gap.
async fn all<T: serde::de::DeserializeOwned>(house: &House, path: &str, seq: fn(&T) -> u64) -> Vec<T> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let page: Sequence<T> = house.client().get(&format!("{path}?limit=500&after={after}")).await.unwrap();
        if page.items.is_empty() {
            return found;
        }
        after = page.next_after;
        for item in page.items {
            found.push(item);
            assert_eq!(seq(found.last().unwrap()), found.len() as u64, "{path}");
        }
    }
}

/// The states that the events tell of follow one another as the contract says, and nothing follows the end.
fn check_steps(told: &str, job: &Job, events: &[Event]) {
    let mut state = None;
    for event in events {
        let next = match event.kind {
            EventType::JobQueued => JobState::Queued,
            EventType::JobScheduled => JobState::Scheduled,
            EventType::JobRunning => JobState::Running,
            EventType::JobEnded => job.state,
            _ => {
                let late = state.is_some_and(JobState::ended) && event.kind != EventType::StaleFinish;
                assert!(!late, "{told}: {:?} after the end", event.kind);
                continue;
            }
        };
        let legal = state.map_or(next == JobState::Queued, |state: JobState| state.may_become(next));
        assert!(legal, "{told}: from {state:?} to {next:?} by event {}", event.seq);
        state = Some(next);
    }
    assert_eq!(state, Some(job.state), "{told}");
}

/// The end is the right one, and only a killed shim is an excuse for another.
fn check_attempts(told: &str, job: &Job, kind: Kind, tasks: &[Task], victims: &Victims) {
    let mut fallen = 0;
    for task in tasks {
        let Some(end) = &task.end else {
            let unstarted =
                matches!(task.state, TaskState::Declined | TaskState::Lost | TaskState::Cancelled);
            assert!(unstarted && task.started_at.is_none(), "{told}: {task:?}");
            continue;
        };
        let killed = victims.running.contains(&task.id);
        if end.reason == EndReason::Internal {
            assert!(killed || victims.begun.contains(&task.id), "{told}: its shim was not killed: {end:?}");
            fallen += 1;
        } else if killed {
            // Both happened: the stop and the kill of the shim.
            assert!(matches!(kind, Kind::Deaf | Kind::Overtime), "{told}: its shim was killed: {end:?}");
        }
    }
    let end = job.end.as_ref().unwrap_or_else(|| panic!("{told}: no end"));
    let retried = if kind.max_attempts() > 1 { fallen } else { 0 };
    assert_eq!(job.attempt, 1 + retried, "{told}: attempts tell the truth: {tasks:?}");
    let expected = match kind {
        _ if end.reason == EndReason::Internal => {
            assert!(fallen > 0 && kind.max_attempts() == 1, "{told}: {end:?}");
            EndReason::Internal
        }
        Kind::Short { code } if code != 0 => {
            assert_eq!(end.exit_code, Some(code), "{told}");
            EndReason::ExitNonzero
        }
        Kind::Deaf => EndReason::Cancelled,
        Kind::Overtime => EndReason::TimedOut,
        _ => EndReason::Completed,
    };
    assert_eq!((end.reason, job.state), (expected, expected.job_state()), "{told}: {end:?}");
}

/// A task that ended by itself has printed all of its lines once, a killed one the first of them.
fn check_lines(told: &str, kind: Kind, task: &Task, lines: &[LogLine]) {
    let (Some(expected), Some(end)) = (kind.lines(), &task.end) else { return };
    let printed = printed(lines, Some(task.id));
    let whole = matches!(end.reason, EndReason::Completed | EndReason::ExitNonzero | EndReason::TimedOut);
    let right = if whole { printed == expected } else { expected.starts_with(&printed) };
    if !right {
        let at = printed.iter().zip(&expected).position(|(one, other)| one != other);
        panic!(
            "{told}: {} lines of {}, the first wrong one at {at:?}: {:?}",
            printed.len(),
            expected.len(),
            printed.get(at.unwrap_or(printed.len().saturating_sub(1)))
        );
    }
}

fn printed(lines: &[LogLine], task: Option<TaskId>) -> Vec<String> {
    let of_program = lines.iter().filter(|line| line.stream == Stream::Stdout);
    of_program.filter(|line| task.is_none_or(|id| line.task_id == id)).map(|line| line.text.clone()).collect()
}

fn check_outputs(house: &House, given: &Given, job: &Job) {
    let expected = given.kind.outputs(&mark(house.path(), &given.name));
    assert_eq!(job.outputs.len(), expected.len(), "{}: {:?}", given.name, job.outputs);
    for (path, bytes) in expected {
        let file = job.outputs.iter().find(|file| file.path == path);
        let digest = Digest::from_hex(&hex::encode(Sha256::digest(&bytes))).unwrap();
        assert_eq!(file.and_then(|file| file.artifact), Some(digest), "{}: {path}", given.name);
    }
}
