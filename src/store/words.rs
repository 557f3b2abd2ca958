//! The words that stand for enums in the database. They are the words of the wire where those have one, and stay
//! readable to whoever opens the file with another tool.

use super::error::StoreError;
use crate::contract::job::JobState;
use crate::contract::worker::{Phase, TaskState, WorkerKind};

const TASK_STATES: [TaskState; 8] = [
    TaskState::Assigned,
    TaskState::Running,
    TaskState::Succeeded,
    TaskState::Failed,
    TaskState::Cancelled,
    TaskState::TimedOut,
    TaskState::Lost,
    TaskState::Declined,
];

pub const fn worker_kind(kind: WorkerKind) -> &'static str {
    match kind {
        WorkerKind::Local => "local",
        WorkerKind::Remote => "remote",
    }
}

fn find<T: Copy>(
    all: &[T],
    word: impl Fn(T) -> &'static str,
    text: &str,
    what: &'static str,
) -> Result<T, StoreError> {
    all.iter().copied().find(|one| word(*one) == text).ok_or(StoreError::Corrupt { what })
}

pub fn read_job_state(text: &str) -> Result<JobState, StoreError> {
    find(&JobState::ALL, JobState::word, text, "job_standings.state")
}

pub fn read_phase(text: &str) -> Result<Phase, StoreError> {
    find(&Phase::ALL, Phase::word, text, "job_standings.phase")
}

pub fn read_task_state(text: &str) -> Result<TaskState, StoreError> {
    find(&TASK_STATES, TaskState::word, text, "task_standings.state")
}

pub fn read_worker_kind(text: &str) -> Result<WorkerKind, StoreError> {
    find(&[WorkerKind::Local, WorkerKind::Remote], worker_kind, text, "workers.kind")
}
