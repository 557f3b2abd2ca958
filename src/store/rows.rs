//! What comes out of the main database: one row form per table, and how it becomes the domain's records again.

use std::collections::BTreeMap;
use std::sync::Arc;

use diesel::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::error::StoreError;
use super::forms::Attempts;
use super::schema::{
    events, job_results, job_standings, jobs, outbox, task_standings, tasks, tokens, used_keys, workers,
};
use super::words;
use crate::contract::artifact::Digest;
use crate::contract::event::{Event, EventType};
use crate::contract::function::Returned;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::job::{Job, JobState};
use crate::contract::protocol::Identity;
use crate::contract::quantity::Timestamp;
use crate::contract::token::{Role, TokenKind};
use crate::contract::worker::{Drain, Task};
use crate::domain::change::{
    JobStanding, OutboxEntry, OutboxId, StopCause, TaskRecord, TaskStanding, TokenRecord, UsedKey,
    WorkerRecord,
};
use crate::domain::dependency::{self, Wait};
use crate::domain::verdict::{binary, left_out};

fn corrupt(what: &'static str) -> StoreError {
    StoreError::Corrupt { what }
}

fn json<T: DeserializeOwned>(text: &str, what: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| corrupt(what))
}

fn number<T: TryFrom<i64>>(value: i64, what: &'static str) -> Result<T, StoreError> {
    T::try_from(value).map_err(|_| corrupt(what))
}

/// Reads a job's id.
pub fn job_id(bytes: &[u8], what: &'static str) -> Result<JobId, StoreError> {
    JobId::from_bytes(bytes).ok_or(corrupt(what))
}

fn task_id(bytes: &[u8], what: &'static str) -> Result<TaskId, StoreError> {
    TaskId::from_bytes(bytes).ok_or(corrupt(what))
}

fn worker_id(bytes: &[u8], what: &'static str) -> Result<WorkerId, StoreError> {
    WorkerId::from_bytes(bytes).ok_or(corrupt(what))
}

/// Reads a SHA-256.
pub fn hash(bytes: &[u8], what: &'static str) -> Result<[u8; 32], StoreError> {
    bytes.try_into().map_err(|_| corrupt(what))
}

fn time(micros: Option<i64>) -> Option<Timestamp> {
    micros.map(Timestamp::from_micros)
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = jobs)]
pub struct JobRow {
    pub id: Vec<u8>,
    pub name: Option<String>,
    pub project: String,
    pub labels: String,
    pub submitted_by: String,
    pub submitted_at: i64,
    pub retry_of: Option<Vec<u8>>,
    pub parent: Option<Vec<u8>>,
    pub array_index: Option<i64>,
    pub warnings: String,
    pub spec: String,
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = job_standings)]
pub struct JobStandingRow {
    pub state: String,
    pub attempt: i64,
    pub epoch: i64,
    pub event_seq: i64,
    pub worker: Option<Vec<u8>>,
    pub phase: Option<String>,
    pub scheduled_at: Option<i64>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    pub unreachable_since: Option<i64>,
    pub cancel_requested_at: Option<i64>,
    pub attempts: Option<String>,
    pub end_json: Option<String>,
}

impl JobStandingRow {
    pub fn read(self) -> Result<JobStanding, StoreError> {
        let attempts = self.attempts.map(|text| json(&text, "job_standings.attempts")).transpose()?;
        let Attempts { not_before, avoid, went_for, memory_bytes, preemptions, checkpoint, yielded } =
            attempts.unwrap_or_default();
        Ok(JobStanding {
            state: words::read_job_state(&self.state)?,
            attempt: number(self.attempt, "job_standings.attempt")?,
            preemptions,
            epoch: number(self.epoch, "job_standings.epoch")?,
            event_seq: self.event_seq as u64,
            worker: self.worker.map(|bytes| worker_id(&bytes, "job_standings.worker")).transpose()?,
            phase: self.phase.as_deref().map(words::read_phase).transpose()?,
            scheduled_at: time(self.scheduled_at),
            started_at: time(self.started_at),
            ended_at: time(self.ended_at),
            unreachable_since: time(self.unreachable_since),
            cancel_requested_at: time(self.cancel_requested_at),
            not_before,
            avoid,
            went_for,
            memory_bytes,
            checkpoint,
            yielded,
            end: self.end_json.map(|text| json(&text, "job_standings.end_json").map(Box::new)).transpose()?,
        })
    }
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = job_results)]
pub struct JobResultsRow {
    pub outputs: String,
    pub undeclared: String,
    pub log_artifact: Option<Vec<u8>>,
    pub result: Option<String>,
    pub warnings: String,
}

/// Begins the reason of a job that waits because another took its place; which one is not everybody's to know.
pub const PREEMPTED: &str = "preempted";

/// What the next attempt of a queued job does differently; the scheduler's reason comes on top.
fn next_attempt(standing: &JobStanding) -> Option<String> {
    let differs = standing.not_before.is_some() || standing.memory_bytes.is_some();
    if standing.state != JobState::Queued || !(differs || standing.went_for.is_some()) {
        return None;
    }
    let mut said = standing.went_for.map_or_else(String::new, |_| format!("{PREEMPTED}, "));
    said.push_str(&format!("attempt {}", standing.attempt));
    if let Some(time) = standing.not_before {
        said.push_str(&format!(", not before {time}"));
    }
    if let Some(bytes) = standing.memory_bytes {
        said.push_str(&format!(", asks for {} of memory after oom_killed", binary(bytes)));
    }
    Some(said)
}

/// What stands in tables of its own, as few jobs have it.
#[derive(Queryable)]
pub struct Beside {
    /// What it waits for.
    pub waits: Option<String>,
    /// The spec of a child of an array.
    pub child_spec: Option<String>,
    /// Where the children of an array are.
    pub progress: Option<String>,
}

/// A job as the API shows it, from its up to three rows and what stands beside. Of `queue_reason` only what is stored is known here.
pub fn read_job(
    row: JobRow,
    standing: JobStandingRow,
    results: Option<JobResultsRow>,
    beside: Beside,
) -> Result<Job, StoreError> {
    let standing = standing.read()?;
    let queue_reason = match beside.waits {
        Some(waits) => dependency::queue_reason(&json::<Vec<Wait>>(&waits, "job_waits.waits")?),
        None => next_attempt(&standing),
    };
    let labels: BTreeMap<String, String> = json(&row.labels, "jobs.labels")?;
    // A child's stands with its array.
    let spec =
        RawValue::from_string(beside.child_spec.unwrap_or(row.spec)).map_err(|_| corrupt("jobs.spec"))?;
    let mut job = Job {
        id: job_id(&row.id, "jobs.id")?,
        name: row.name,
        project: row.project,
        labels,
        submitted_by: row.submitted_by,
        state: standing.state,
        queue_reason,
        spec: Arc::from(spec),
        attempt: standing.attempt,
        parent: row.parent.map(|bytes| job_id(&bytes, "jobs.parent")).transpose()?,
        array_index: row.array_index.map(|index| index as u64),
        retry_of: row.retry_of.map(|bytes| job_id(&bytes, "jobs.retry_of")).transpose()?,
        worker: standing.worker,
        submitted_at: Timestamp::from_micros(row.submitted_at),
        scheduled_at: standing.scheduled_at,
        started_at: standing.started_at,
        ended_at: standing.ended_at,
        unreachable_since: standing.unreachable_since,
        cancel_requested_at: standing.cancel_requested_at,
        preempted_by: standing.went_for.filter(|_| !standing.state.ended()),
        progress: beside.progress.map(|text| json(&text, "job_progress.progress")).transpose()?,
        end: standing.end.map(|end| *end),
        result: None,
        outputs: Vec::new(),
        undeclared: Vec::new(),
        log_artifact: None,
        warnings: json(&row.warnings, "jobs.warnings")?,
    };
    if let Some(results) = results {
        job.outputs = json(&results.outputs, "job_results.outputs")?;
        job.undeclared = json(&results.undeclared, "job_results.undeclared")?;
        let digest = results.log_artifact.map(|bytes| hash(&bytes, "job_results.log_artifact"));
        job.log_artifact = digest.transpose()?.map(Digest::from_bytes);
        let returned =
            results.result.map(|text| json::<Returned>(&text, "job_results.result")).transpose()?;
        job.result = returned.map(Into::into);
        job.warnings.extend(json::<Vec<crate::contract::problem::Warning>>(
            &results.warnings,
            "job_results.warnings",
        )?);
    }
    if let Some(end) = &mut job.end {
        left_out::explain(end, &job.warnings);
    }
    Ok(job)
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = tasks)]
pub struct TaskRow {
    pub id: Vec<u8>,
    pub job_id: Vec<u8>,
    pub attempt: i64,
    pub epoch: i64,
    pub worker: Vec<u8>,
    pub assigned_at: i64,
    pub memory_bytes: Option<i64>,
    pub gpus: Option<String>,
    pub weight: i64,
    pub gang: Option<String>,
}

impl TaskRow {
    pub fn read(self) -> Result<TaskRecord, StoreError> {
        Ok(TaskRecord {
            id: task_id(&self.id, "tasks.id")?,
            job_id: job_id(&self.job_id, "tasks.job_id")?,
            attempt: number(self.attempt, "tasks.attempt")?,
            epoch: number(self.epoch, "tasks.epoch")?,
            worker: worker_id(&self.worker, "tasks.worker")?,
            assigned_at: Timestamp::from_micros(self.assigned_at),
            memory_bytes: self.memory_bytes.map(|bytes| bytes as u64),
            gpus: self.gpus.map_or(Ok(Vec::new()), |text| json(&text, "tasks.gpus"))?,
            weight: self.weight as u64,
            gang: self.gang.map(|text| json(&text, "tasks.gang").map(Arc::new)).transpose()?,
        })
    }
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = task_standings)]
pub struct TaskStandingRow {
    pub state: String,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    pub unreachable_since: Option<i64>,
    pub stop_cause: Option<String>,
    pub stop_now: bool,
    pub end_json: Option<String>,
    pub log_artifact: Option<Vec<u8>>,
    pub stale: bool,
    pub results: Option<String>,
}

impl TaskStandingRow {
    pub fn read(self) -> Result<TaskStanding, StoreError> {
        let cause = |word: String| StopCause::from_word(&word).ok_or(corrupt("task_standings.stop_cause"));
        Ok(TaskStanding {
            state: words::read_task_state(&self.state)?,
            started_at: time(self.started_at),
            ended_at: time(self.ended_at),
            unreachable_since: time(self.unreachable_since),
            stop_cause: self.stop_cause.map(cause).transpose()?,
            stop_now: self.stop_now,
            end: self
                .end_json
                .map(|text| json(&text, "task_standings.end_json").map(Box::new))
                .transpose()?,
            log_artifact: self
                .log_artifact
                .map(|bytes| hash(&bytes, "task_standings.log_artifact").map(Digest::from_bytes))
                .transpose()?,
            stale: self.stale,
            results: self
                .results
                .map(|text| json(&text, "task_standings.results").map(Arc::new))
                .transpose()?,
        })
    }
}

/// A task as the API shows it, with the outputs that came back late, as JSON.
pub fn read_task(row: TaskRow, standing: TaskStandingRow, late: Option<String>) -> Result<Task, StoreError> {
    let (record, standing) = (row.read()?, standing.read()?);
    Ok(Task {
        id: record.id,
        job_id: record.job_id,
        attempt: record.attempt,
        epoch: record.epoch,
        rank: record.rank(),
        worker: record.worker,
        gpus: record.gpus.iter().map(|uuid| uuid.to_string()).collect(),
        state: standing.state,
        assigned_at: record.assigned_at,
        started_at: standing.started_at,
        ended_at: standing.ended_at,
        end: standing.end.map(|end| *end),
        log_artifact: standing.log_artifact,
        late_outputs: late.map_or(Ok(Vec::new()), |text| json(&text, "late_results.outputs"))?,
    })
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = events)]
pub struct EventRow {
    pub position: i64,
    pub job_id: Option<Vec<u8>>,
    pub seq: i64,
    pub time: i64,
    pub kind: String,
    pub task_id: Option<Vec<u8>>,
    pub data: String,
}

impl EventRow {
    pub fn read(self) -> Result<Event, StoreError> {
        Ok(Event {
            seq: self.seq as u64,
            position: self.position as u64,
            time: Timestamp::from_micros(self.time),
            kind: EventType::from_word(&self.kind).ok_or(corrupt("events.kind"))?,
            job_id: self.job_id.map(|bytes| job_id(&bytes, "events.job_id")).transpose()?,
            task_id: self.task_id.map(|bytes| task_id(&bytes, "events.task_id")).transpose()?,
            data: json(&self.data, "events.data")?,
        })
    }
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = used_keys)]
pub struct UsedKeyRow {
    pub scope: Vec<u8>,
    pub body: Vec<u8>,
    pub status: i32,
    pub answer: String,
    pub used_at: i64,
}

impl UsedKeyRow {
    pub fn read(self) -> Result<UsedKey, StoreError> {
        Ok(UsedKey {
            scope: hash(&self.scope, "used_keys.scope")?,
            body: hash(&self.body, "used_keys.body")?,
            status: number(self.status.into(), "used_keys.status")?,
            answer: self.answer,
            used_at: Timestamp::from_micros(self.used_at),
        })
    }
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = workers)]
pub struct WorkerRow {
    pub id: Vec<u8>,
    pub name: String,
    pub kind: String,
    pub machine_id: String,
    pub boot_id: String,
    pub incarnation: i64,
    pub capabilities: String,
    pub session_hash: Option<Vec<u8>>,
    pub registered_at: i64,
    pub registration: Option<String>,
    pub gone: bool,
    pub drain_since: Option<i64>,
    pub drain_deadline: Option<i64>,
}

impl WorkerRow {
    pub fn read(self) -> Result<WorkerRecord, StoreError> {
        Ok(WorkerRecord {
            id: worker_id(&self.id, "workers.id")?,
            name: self.name,
            kind: words::read_worker_kind(&self.kind)?,
            identity: Identity {
                machine_id: self.machine_id,
                boot_id: self.boot_id,
                incarnation: self.incarnation as u64,
            },
            capabilities: json(&self.capabilities, "workers.capabilities")?,
            session_hash: self.session_hash.map(|bytes| hash(&bytes, "workers.session_hash")).transpose()?,
            registered_at: Timestamp::from_micros(self.registered_at),
            registration: self.registration,
            gone: self.gone,
            drain: self.drain_since.map(|since| Drain {
                since: Timestamp::from_micros(since),
                deadline: time(self.drain_deadline),
            }),
        })
    }
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = tokens)]
pub struct TokenRow {
    pub hash: Vec<u8>,
    pub kind: String,
    pub name: String,
    pub role: Option<String>,
    pub projects: String,
    pub max_priority: Option<i32>,
    pub submits_as: Option<String>,
    pub created_at: i64,
    pub created_by: String,
    pub expires_at: Option<i64>,
    pub revoked_at: Option<i64>,
    pub last_used_at: Option<i64>,
    pub used_for: Option<String>,
}

impl TokenRow {
    pub fn read(self) -> Result<TokenRecord, StoreError> {
        Ok(TokenRecord {
            hash: hash(&self.hash, "tokens.hash")?,
            kind: TokenKind::from_word(&self.kind).ok_or(corrupt("tokens.kind"))?,
            name: self.name,
            role: self.role.map(|word| Role::from_word(&word).ok_or(corrupt("tokens.role"))).transpose()?,
            projects: json(&self.projects, "tokens.projects")?,
            max_priority: self.max_priority,
            user: self.submits_as,
            created_at: Timestamp::from_micros(self.created_at),
            created_by: self.created_by,
            expires_at: time(self.expires_at),
            revoked_at: time(self.revoked_at),
            last_used_at: time(self.last_used_at),
            used_for: self.used_for,
        })
    }
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = outbox)]
pub struct OutboxRow {
    pub id: Vec<u8>,
    pub kind: String,
    pub payload: String,
    pub created_at: i64,
}

impl OutboxRow {
    pub fn read(self) -> Result<OutboxEntry, StoreError> {
        let id = self.id.as_slice().try_into().map_err(|_| corrupt("outbox.id"))?;
        Ok(OutboxEntry {
            id: OutboxId(u128::from_be_bytes(id)),
            kind: self.kind,
            payload: self.payload,
            created_at: Timestamp::from_micros(self.created_at),
        })
    }
}
