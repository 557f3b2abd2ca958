//! What goes into the main database: one insert form per table, made from the domain's records. Every form writes
//! its whole row with NULLs spelled out, because diesel caches a statement only when its columns never vary.

use diesel::Insertable;
use serde::{Deserialize, Serialize};

use super::schema::{
    events, job_results, job_standings, jobs, late_results, outbox, task_standings, tasks, tokens, used_keys,
    workers,
};
use super::words;
use crate::contract::artifact::Digest;
use crate::contract::event::Event;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::quantity::Timestamp;
use crate::contract::token::Role;
use crate::contract::worker::Phase;
use crate::domain::change::{
    JobRecord, JobResults, JobStanding, OutboxEntry, TaskRecord, TaskStanding, TokenRecord, UsedKey,
    WorkerRecord,
};

/// JSON of a type of our own; these serialize without fail, and an empty text would be noticed when read.
pub fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The database's 64-bit integers are signed. Numbers beyond come back the same: both directions wrap.
pub fn signed(value: u64) -> i64 {
    value as i64
}

#[derive(Insertable)]
#[diesel(table_name = jobs, treat_none_as_default_value = false)]
pub struct JobForm<'a> {
    id: [u8; 16],
    name: Option<&'a str>,
    project: &'a str,
    labels: &'a str,
    priority: i32,
    submitted_by: &'a str,
    submitted_at: i64,
    queue_deadline: Option<i64>,
    retry_of: Option<[u8; 16]>,
    shape: &'a str,
    parent: Option<[u8; 16]>,
    array_index: Option<i64>,
    warnings: String,
    spec: &'a str,
}

impl<'a> From<&'a JobRecord> for JobForm<'a> {
    fn from(record: &'a JobRecord) -> Self {
        Self {
            id: record.id.to_bytes(),
            name: record.name.as_deref(),
            project: &record.project,
            labels: &record.labels,
            priority: record.priority,
            submitted_by: &record.submitted_by,
            submitted_at: record.submitted_at.micros(),
            queue_deadline: record.queue_deadline.map(|time| time.micros()),
            retry_of: record.retry_of.map(JobId::to_bytes),
            shape: &record.shape,
            parent: None,
            array_index: None,
            warnings: json(&record.warnings),
            spec: &record.spec,
        }
    }
}

impl<'a> JobForm<'a> {
    /// A child of an array with this record; its spec stands with the array.
    pub fn child(record: &'a JobRecord, id: JobId, index: u64) -> Self {
        Self {
            id: id.to_bytes(),
            parent: Some(record.id.to_bytes()),
            array_index: Some(signed(index)),
            retry_of: None,
            warnings: "[]".to_owned(),
            spec: "",
            ..Self::from(record)
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = job_standings, treat_none_as_default_value = false)]
pub struct JobStandingForm {
    job_id: [u8; 16],
    state: &'static str,
    attempt: i64,
    epoch: i64,
    event_seq: i64,
    worker: Option<[u8; 16]>,
    phase: Option<&'static str>,
    scheduled_at: Option<i64>,
    started_at: Option<i64>,
    ended_at: Option<i64>,
    unreachable_since: Option<i64>,
    cancel_requested_at: Option<i64>,
    attempts: Option<String>,
    end_json: Option<String>,
}

/// What attempts before this one have left to the next, as one JSON text: rare, and nothing is looked up by it.
#[derive(Default, PartialEq, Serialize, Deserialize)]
pub struct Attempts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avoid: Option<WorkerId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub went_for: Option<JobId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(default)]
    pub preemptions: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Digest>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub yielded: u64,
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Attempts {
    fn of(standing: &JobStanding) -> Option<String> {
        let JobStanding {
            not_before, avoid, went_for, memory_bytes, preemptions, checkpoint, yielded, ..
        } = *standing;
        let attempts = Self { not_before, avoid, went_for, memory_bytes, preemptions, checkpoint, yielded };
        (attempts != Self::default()).then(|| json(&attempts))
    }
}

impl JobStandingForm {
    pub fn new(job_id: JobId, standing: &JobStanding) -> Self {
        Self {
            job_id: job_id.to_bytes(),
            state: standing.state.word(),
            attempt: standing.attempt.into(),
            epoch: standing.epoch.into(),
            event_seq: signed(standing.event_seq),
            worker: standing.worker.map(|id| id.to_bytes()),
            phase: standing.phase.map(Phase::word),
            scheduled_at: standing.scheduled_at.map(|time| time.micros()),
            started_at: standing.started_at.map(|time| time.micros()),
            ended_at: standing.ended_at.map(|time| time.micros()),
            unreachable_since: standing.unreachable_since.map(|time| time.micros()),
            cancel_requested_at: standing.cancel_requested_at.map(|time| time.micros()),
            attempts: Attempts::of(standing),
            end_json: standing.end.as_deref().map(json),
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = job_results, treat_none_as_default_value = false)]
pub struct JobResultsForm {
    job_id: [u8; 16],
    outputs: String,
    undeclared: String,
    log_artifact: Option<[u8; 32]>,
    result: Option<String>,
    warnings: String,
}

impl JobResultsForm {
    pub fn new(job_id: JobId, results: &JobResults) -> Self {
        Self {
            job_id: job_id.to_bytes(),
            outputs: json(&results.outputs),
            undeclared: json(&results.undeclared),
            log_artifact: results.log_artifact.map(|digest| *digest.bytes()),
            result: results.result.as_ref().map(json),
            warnings: json(&results.warnings),
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = late_results, treat_none_as_default_value = false)]
pub struct LateResultsForm {
    task_id: [u8; 16],
    job_id: [u8; 16],
    outputs: String,
    log_artifact: Option<[u8; 32]>,
}

impl LateResultsForm {
    pub fn new(task_id: TaskId, job_id: JobId, results: &JobResults) -> Self {
        Self {
            task_id: task_id.to_bytes(),
            job_id: job_id.to_bytes(),
            outputs: json(&results.outputs),
            log_artifact: results.log_artifact.map(|digest| *digest.bytes()),
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = tasks)]
pub struct TaskForm {
    id: [u8; 16],
    job_id: [u8; 16],
    attempt: i64,
    epoch: i64,
    worker: [u8; 16],
    assigned_at: i64,
    memory_bytes: Option<i64>,
    gpus: Option<String>,
    weight: i64,
    gang: Option<String>,
}

impl From<&TaskRecord> for TaskForm {
    fn from(record: &TaskRecord) -> Self {
        Self {
            id: record.id.to_bytes(),
            job_id: record.job_id.to_bytes(),
            attempt: record.attempt.into(),
            epoch: record.epoch.into(),
            worker: record.worker.to_bytes(),
            assigned_at: record.assigned_at.micros(),
            memory_bytes: record.memory_bytes.map(signed),
            gpus: (!record.gpus.is_empty()).then(|| json(&record.gpus)),
            weight: signed(record.weight),
            gang: record.gang.as_deref().map(json),
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = task_standings, treat_none_as_default_value = false)]
pub struct TaskStandingForm {
    task_id: [u8; 16],
    state: &'static str,
    started_at: Option<i64>,
    ended_at: Option<i64>,
    unreachable_since: Option<i64>,
    stop_cause: Option<&'static str>,
    stop_now: bool,
    end_json: Option<String>,
    log_artifact: Option<[u8; 32]>,
    stale: bool,
    results: Option<String>,
}

impl TaskStandingForm {
    pub fn new(task_id: TaskId, standing: &TaskStanding) -> Self {
        Self {
            task_id: task_id.to_bytes(),
            state: standing.state.word(),
            started_at: standing.started_at.map(|time| time.micros()),
            ended_at: standing.ended_at.map(|time| time.micros()),
            unreachable_since: standing.unreachable_since.map(|time| time.micros()),
            stop_cause: standing.stop_cause.map(|cause| cause.word()),
            stop_now: standing.stop_now,
            end_json: standing.end.as_deref().map(json),
            log_artifact: standing.log_artifact.map(|digest| *digest.bytes()),
            stale: standing.stale,
            results: standing.results.as_deref().map(json),
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = events, treat_none_as_default_value = false)]
pub struct EventForm {
    position: i64,
    job_id: Option<[u8; 16]>,
    seq: i64,
    time: i64,
    kind: &'static str,
    task_id: Option<[u8; 16]>,
    data: String,
}

impl From<&Event> for EventForm {
    fn from(event: &Event) -> Self {
        Self {
            position: signed(event.position),
            job_id: event.job_id.map(JobId::to_bytes),
            seq: signed(event.seq),
            time: event.time.micros(),
            kind: event.kind.word(),
            task_id: event.task_id.map(TaskId::to_bytes),
            data: json(&event.data),
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = used_keys)]
pub struct UsedKeyForm<'a> {
    scope: &'a [u8],
    body: &'a [u8],
    status: i32,
    answer: &'a str,
    used_at: i64,
}

impl<'a> From<&'a UsedKey> for UsedKeyForm<'a> {
    fn from(key: &'a UsedKey) -> Self {
        Self {
            scope: &key.scope,
            body: &key.body,
            status: key.status.into(),
            answer: &key.answer,
            used_at: key.used_at.micros(),
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = workers, treat_none_as_default_value = false)]
pub struct WorkerForm<'a> {
    id: [u8; 16],
    name: &'a str,
    kind: &'static str,
    machine_id: &'a str,
    boot_id: &'a str,
    incarnation: i64,
    capabilities: String,
    session_hash: Option<&'a [u8]>,
    registered_at: i64,
    registration: Option<&'a str>,
    gone: bool,
    drain_since: Option<i64>,
    drain_deadline: Option<i64>,
}

impl<'a> From<&'a WorkerRecord> for WorkerForm<'a> {
    fn from(record: &'a WorkerRecord) -> Self {
        Self {
            id: record.id.to_bytes(),
            name: &record.name,
            kind: words::worker_kind(record.kind),
            machine_id: &record.identity.machine_id,
            boot_id: &record.identity.boot_id,
            incarnation: signed(record.identity.incarnation),
            capabilities: json(&record.capabilities),
            session_hash: record.session_hash.as_ref().map(|hash| hash.as_slice()),
            registered_at: record.registered_at.micros(),
            registration: record.registration.as_deref(),
            gone: record.gone,
            drain_since: record.drain.map(|drain| drain.since.micros()),
            drain_deadline: record.drain.and_then(|drain| drain.deadline).map(|time| time.micros()),
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = tokens, treat_none_as_default_value = false)]
pub struct TokenForm<'a> {
    hash: &'a [u8],
    kind: &'static str,
    name: &'a str,
    role: Option<&'static str>,
    projects: String,
    max_priority: Option<i32>,
    submits_as: Option<&'a str>,
    created_at: i64,
    created_by: &'a str,
    expires_at: Option<i64>,
    revoked_at: Option<i64>,
    last_used_at: Option<i64>,
    used_for: Option<&'a str>,
}

impl<'a> From<&'a TokenRecord> for TokenForm<'a> {
    fn from(record: &'a TokenRecord) -> Self {
        Self {
            hash: &record.hash,
            kind: record.kind.word(),
            name: &record.name,
            role: record.role.map(Role::word),
            projects: json(&record.projects),
            max_priority: record.max_priority,
            submits_as: record.user.as_deref(),
            created_at: record.created_at.micros(),
            created_by: &record.created_by,
            expires_at: record.expires_at.map(|time| time.micros()),
            revoked_at: record.revoked_at.map(|time| time.micros()),
            last_used_at: record.last_used_at.map(|time| time.micros()),
            used_for: record.used_for.as_deref(),
        }
    }
}

#[derive(Insertable)]
#[diesel(table_name = outbox)]
pub struct OutboxForm<'a> {
    id: [u8; 16],
    kind: &'a str,
    payload: &'a str,
    created_at: i64,
}

impl<'a> From<&'a OutboxEntry> for OutboxForm<'a> {
    fn from(entry: &'a OutboxEntry) -> Self {
        Self {
            id: entry.id.0.to_be_bytes(),
            kind: &entry.kind,
            payload: &entry.payload,
            created_at: entry.created_at.micros(),
        }
    }
}
