//! Records to store, made from small numbers.

use std::sync::Arc;

use gpulayer::contract::artifact::Digest;
use gpulayer::contract::event::{Event, EventType};
use gpulayer::contract::ids::{JobId, TaskId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::quantity::Timestamp;
use gpulayer::contract::worker::TaskState;
use gpulayer::domain::change::{Change, JobRecord, JobStanding, TaskRecord, TaskStanding, UsedKey};

pub fn job_id(number: u64) -> JobId {
    JobId::from_u128(number.into())
}

pub fn task_id(number: u64) -> TaskId {
    TaskId::from_u128(number.into())
}

pub fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

pub fn record(number: u64) -> JobRecord {
    JobRecord {
        id: job_id(number),
        spec: Arc::from(r#"{"workload":{"command":{"argv":["/bin/true"]}}}"#),
        name: None,
        project: "default".into(),
        labels: "{}".into(),
        priority: 0,
        shape: Arc::from("{}"),
        submitted_by: "me".into(),
        submitted_at: time(number as i64),
        queue_deadline: None,
        retry_of: None,
        warnings: Vec::new(),
        artifacts: Vec::new(),
    }
}

pub fn standing(state: JobState, event_seq: u64) -> JobStanding {
    JobStanding {
        state,
        attempt: 1,
        preemptions: 0,
        epoch: 0,
        event_seq,
        worker: None,
        phase: None,
        scheduled_at: None,
        started_at: None,
        ended_at: state.ended().then(|| time(99)),
        unreachable_since: None,
        cancel_requested_at: None,
        not_before: None,
        avoid: None,
        went_for: None,
        memory_bytes: None,
        checkpoint: None,
        yielded: 0,
        end: None,
    }
}

pub fn inserted(number: u64) -> Change {
    Change::JobInserted(Box::new(record(number)), standing(JobState::Queued, 1))
}

pub fn task(number: u64, job: u64) -> TaskRecord {
    TaskRecord {
        id: task_id(number),
        job_id: job_id(job),
        attempt: 1,
        epoch: 1,
        worker: WorkerId::from_u128(7),
        assigned_at: time(5),
        memory_bytes: None,
        gpus: vec!["GPU-1".into()],
        weight: 7,
        gang: None,
    }
}

pub fn task_standing(state: TaskState, stale: bool) -> TaskStanding {
    let ended_at = state.ended().then(|| time(9));
    TaskStanding { ended_at, stale, ..TaskStanding::of(state) }
}

pub fn event(job: u64, seq: u64, position: u64) -> Change {
    Change::EventAppended(Box::new(Event {
        seq,
        position,
        time: time(1),
        kind: EventType::JobQueued,
        job_id: Some(job_id(job)),
        task_id: None,
        data: serde_json::json!({ "cause": "submitted" }),
    }))
}

pub fn key(number: u8, used_at: Timestamp) -> Change {
    Change::KeyUsed(Box::new(UsedKey {
        scope: [number; 32],
        body: [number; 32],
        status: 201,
        answer: "[]".into(),
        used_at,
    }))
}

pub fn digest(number: u8) -> Digest {
    Digest::from_bytes([number; 32])
}
