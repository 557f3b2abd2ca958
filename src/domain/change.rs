//! What a decision asks the store to persist. Rows are after-images: applying one twice leaves the same state,
//! and of two changes to one row in one batch only the last needs to be written.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::dependency::Wait;
use crate::contract::array::ArrayProgress;
use crate::contract::artifact::{Digest, OutputFile, UndeclaredFile};
use crate::contract::end::{End, EndReason};
use crate::contract::event::Event;
use crate::contract::function::Returned;
use crate::contract::gang::GangPlace;
use crate::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use crate::contract::job::JobState;
use crate::contract::problem::Warning;
use crate::contract::progress::TaskProgress;
use crate::contract::protocol::{Identity, StopReason};
use crate::contract::quantity::Timestamp;
use crate::contract::token::{Role, Token, TokenKind};
use crate::contract::worker::{Capabilities, Drain, Phase, TaskState, WorkerKind};
use crate::contract::yielded::Yielded;
use crate::domain::placement::GpuUuid;
use crate::domain::placement::usage::NotedUsage;

/// One durable step. A batch of them is one transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A job was accepted.
    JobInserted(Box<JobRecord>, JobStanding),
    /// A job moved, or something about it changed.
    JobMoved(JobId, JobStanding),
    /// The jobs that have to be over before this one is placed; empty = none any more.
    JobWaits(JobId, Vec<Wait>),
    /// Outputs of other jobs became inputs of a job that waits: its spec, and all artifacts that it names now.
    InputsFilled(JobId, Arc<str>, Vec<Digest>),
    /// A job's collected files, at its end.
    JobResults(JobId, Arc<JobResults>),
    /// An array was accepted: its children. Its own row is a job's.
    ArrayInserted(Box<ArrayRecord>),
    /// Children of an array moved: how many are where.
    ArrayMoved(JobId, ArrayProgress),
    /// A job's checkpoint is kept, and the one before it no longer.
    CheckpointKept {
        /// The job.
        job_id: JobId,
        /// The new one; `None` = none is needed any more.
        kept: Option<Digest>,
        /// The one before it.
        before: Option<Digest>,
    },
    /// The program of a job said how far it is.
    JobProgressed(JobId, Box<TaskProgress>),
    /// A job's generator yielded values, from this number on; their artifacts are kept as long as the job is.
    ValuesYielded(JobId, u64, Vec<Yielded>),
    /// Outputs of other jobs became inputs of an array that waits: its spec, that of each child, and all artifacts that
    /// they name now.
    ArrayFilled(JobId, Arc<str>, Arc<str>, Vec<Digest>),
    /// A child of an array got a place: the artifacts that it needs there.
    ArtifactsNamed(JobId, Vec<Digest>),
    /// How a job stood to the workers when it left the queue without a place, as JSON; kept as long as the job. Of an
    /// array, how its waiting children stood.
    JobExplained(JobId, Arc<str>),
    /// What every project had had of the machines: what was noted before is forgotten.
    UsageNoted(Arc<NotedUsage>),
    /// An ended job and all that belongs to it goes; with an array its children.
    JobPurged(JobId),
    /// A placement.
    TaskInserted(TaskRecord),
    /// A task moved.
    TaskMoved(TaskId, TaskStanding),
    /// A task that was given up brought these back late; they are kept as long as its job.
    LateResults(TaskId, JobId, Arc<JobResults>),
    /// Something happened.
    EventAppended(Box<Event>),
    /// A client's key was used.
    KeyUsed(Box<UsedKey>),
    /// A worker registered, resumed or left.
    WorkerRecorded(Box<WorkerRecord>),
    /// Somebody who may not see everything sent the bytes of an artifact.
    ArtifactSent(Digest, Uploader, Timestamp),
    /// A credential was made, used or revoked.
    TokenRecorded(Box<TokenRecord>),
    /// Something must be done outside, at least once.
    OutboxQueued(Box<OutboxEntry>),
    /// It was done.
    OutboxDelivered(OutboxId),
}

/// What never changes about a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRecord {
    /// Its id.
    pub id: JobId,
    /// Canonical spec as JSON.
    pub spec: Arc<str>,
    /// From the spec, for lists.
    pub name: Option<String>,
    /// From the spec, for lists.
    pub project: String,
    /// From the spec, as a JSON object.
    pub labels: String,
    /// From the spec, to queue it again after a restart.
    pub priority: i32,
    /// `Resources` and `target` as JSON, to queue it again after a restart without reading the spec.
    pub shape: Arc<str>,
    /// Name of the credential, or the local user.
    pub submitted_by: String,
    /// When it was accepted.
    pub submitted_at: Timestamp,
    /// The absolute time its queue timeout ends; `None` = never.
    pub queue_deadline: Option<Timestamp>,
    /// The job it repeats.
    pub retry_of: Option<JobId>,
    /// What was noticed at submission.
    pub warnings: Vec<Warning>,
    /// Artifacts the spec names: kept as long as the job is.
    pub artifacts: Vec<Digest>,
}

/// What never changes about the children of an array.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrayRecord {
    /// The parent's record; the children have its project, labels, priority, shape, submitter and times.
    pub record: Box<JobRecord>,
    /// The first child's id; the others follow it, one by one.
    pub first_child: JobId,
    /// What each child runs, as JSON.
    pub child_spec: Arc<str>,
    /// The children's indices, in order.
    pub indices: Vec<u64>,
    /// Number of the first child's first event; the others follow it, one by one.
    pub first_position: u64,
}

/// What changes about a job; one row, written whole.
#[derive(Debug, Clone, PartialEq)]
pub struct JobStanding {
    /// Where it stands.
    pub state: JobState,
    /// Rises at every requeue of a started job; from 1.
    pub attempt: u32,
    /// How many of its attempts were preempted; these do not count against `max_attempts`.
    pub preemptions: u32,
    /// Counts placements; 0 before the first.
    pub epoch: Epoch,
    /// Last event number.
    pub event_seq: u64,
    /// Worker of the newest task.
    pub worker: Option<WorkerId>,
    /// The phase its newest task has reached, as far as it was reported.
    pub phase: Option<Phase>,
    /// When the newest task was placed.
    pub scheduled_at: Option<Timestamp>,
    /// When the first attempt started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Since when its worker has not answered.
    pub unreachable_since: Option<Timestamp>,
    /// When somebody asked it to stop while it ran.
    pub cancel_requested_at: Option<Timestamp>,
    /// Not placed again before this time (retry backoff).
    pub not_before: Option<Timestamp>,
    /// The worker that the next placement keeps away from if another would do.
    pub avoid: Option<WorkerId>,
    /// The job of a higher priority for which its newest task goes, or went; until it is placed again.
    pub went_for: Option<JobId>,
    /// What this attempt asks for, once `memory_growth` has raised it above the spec's request.
    pub memory_bytes: Option<u64>,
    /// What its next attempt begins with.
    pub checkpoint: Option<Digest>,
    /// Number of the newest value that its generator yielded, in whichever attempt; 0 = none.
    pub yielded: u64,
    /// How it ended.
    pub end: Option<Box<End>>,
}

/// Files of an ended job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobResults {
    /// Collected files.
    pub outputs: Vec<OutputFile>,
    /// Files no output declares.
    pub undeclared: Vec<UndeclaredFile>,
    /// The whole log, when the stored lines differ from it.
    pub log_artifact: Option<Digest>,
    /// What a function returned or raised.
    pub result: Option<Returned>,
    /// What was noticed at the end.
    pub warnings: Vec<Warning>,
}

impl JobResults {
    /// The artifacts that they are made of: kept as long as the job is.
    pub fn artifacts(&self) -> Vec<Digest> {
        let collected = self.outputs.iter().filter_map(|file| file.artifact);
        let returned = self.result.as_ref().and_then(|result| result.artifact);
        collected.chain(self.log_artifact).chain(returned).collect()
    }
}

/// What never changes about a task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRecord {
    /// Its id.
    pub id: TaskId,
    /// Its job.
    pub job_id: JobId,
    /// The job's attempt.
    pub attempt: u32,
    /// The placement.
    pub epoch: Epoch,
    /// Where.
    pub worker: WorkerId,
    /// When it was placed.
    pub assigned_at: Timestamp,
    /// The memory it was placed with, when it is not what the spec asks for.
    pub memory_bytes: Option<u64>,
    /// The GPUs it was granted, by uuid.
    pub gpus: Vec<GpuUuid>,
    /// How much of all machines it was granted, in millionths (fair share).
    pub weight: u64,
    /// Which task of a gang it is.
    pub gang: Option<Arc<GangPlace>>,
}

impl TaskRecord {
    /// Its place in its gang; 0 without one.
    pub fn rank(&self) -> u32 {
        self.gang.as_ref().map_or(0, |gang| gang.rank)
    }
}

/// What changes about a task; one row, written whole.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskStanding {
    /// Where it stands.
    pub state: TaskState,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Since when its worker has not answered, while it runs.
    pub unreachable_since: Option<Timestamp>,
    /// Why it has to stop; set once, the first wins.
    pub stop_cause: Option<StopCause>,
    /// Whether it has to stop without grace.
    pub stop_now: bool,
    /// How it ended.
    pub end: Option<Box<End>>,
    /// Its whole log, when the stored lines say less; the job refers to it until it is purged.
    pub log_artifact: Option<Digest>,
    /// Whether its resources on the worker are still taken although the task has ended (CONTRACT, Leases and
    /// loss).
    pub stale: bool,
    /// What a task of a gang brought back: it becomes its job's when all tasks are over.
    pub results: Option<Arc<JobResults>>,
}

impl TaskStanding {
    /// Nothing but this is known of it.
    pub const fn of(state: TaskState) -> Self {
        Self {
            state,
            started_at: None,
            ended_at: None,
            unreachable_since: None,
            stop_cause: None,
            stop_now: false,
            end: None,
            log_artifact: None,
            stale: false,
            results: None,
        }
    }
}

/// Why a started task has to stop. Durable, set once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// Somebody cancelled the job.
    Cancel,
    /// `timeout_s` and the preparation allowance passed (the server's own backstop).
    Timeout,
    /// Its worker was drained and the deadline passed.
    Drain,
    /// An operator evicted it.
    Evict,
    /// The daemon was stopped with what ran on it (`gpulayer down`).
    Shutdown,
    /// A job of a higher priority takes the place.
    Preempt,
    /// Another task of its gang ended, or has to.
    Gang,
}

impl StopCause {
    /// All of them.
    pub const ALL: [StopCause; 7] = [
        StopCause::Cancel,
        StopCause::Timeout,
        StopCause::Drain,
        StopCause::Evict,
        StopCause::Shutdown,
        StopCause::Preempt,
        StopCause::Gang,
    ];

    /// The end of a task that was stopped for it.
    pub const fn end_reason(self) -> EndReason {
        match self {
            StopCause::Cancel | StopCause::Shutdown | StopCause::Gang => EndReason::Cancelled,
            StopCause::Timeout => EndReason::TimedOut,
            StopCause::Drain => EndReason::Drained,
            StopCause::Evict => EndReason::Evicted,
            StopCause::Preempt => EndReason::Preempted,
        }
    }

    /// What its worker is told.
    pub const fn told(self) -> StopReason {
        match self {
            StopCause::Cancel | StopCause::Shutdown => StopReason::Cancelled,
            StopCause::Timeout => StopReason::TimedOut,
            StopCause::Drain => StopReason::Drained,
            StopCause::Evict => StopReason::Evicted,
            StopCause::Preempt => StopReason::Preempted,
            StopCause::Gang => StopReason::GangEnded,
        }
    }

    /// The word kept in the database.
    pub const fn word(self) -> &'static str {
        match self {
            StopCause::Cancel => "cancel",
            StopCause::Timeout => "timeout",
            StopCause::Drain => "drain",
            StopCause::Evict => "evict",
            StopCause::Shutdown => "shutdown",
            StopCause::Preempt => "preempt",
            StopCause::Gang => "gang",
        }
    }

    /// Reads the word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.word() == word)
    }
}

/// On whose behalf an artifact's bytes were sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uploader {
    /// Of a project that the client may submit into.
    Project(String),
    /// Of a worker, as the result of a task.
    Worker(WorkerId),
}

impl std::fmt::Display for Uploader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Uploader::Project(name) => write!(f, "project:{name}"),
            Uploader::Worker(id) => write!(f, "worker:{id}"),
        }
    }
}

/// A client's idempotency key and the answer it got, kept 7 days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedKey {
    /// SHA-256 over credential, method, path and key.
    pub scope: [u8; 32],
    /// SHA-256 of the request body.
    pub body: [u8; 32],
    /// Status of the answer.
    pub status: u16,
    /// What the edge needs to give the same answer again (job ids as JSON).
    pub answer: String,
    /// When it was used.
    pub used_at: Timestamp,
}

/// A worker as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerRecord {
    /// Its id.
    pub id: WorkerId,
    /// Its name.
    pub name: String,
    /// How it reaches the server.
    pub kind: WorkerKind,
    /// Which start of which boot of which machine.
    pub identity: Identity,
    /// What it has.
    pub capabilities: Capabilities,
    /// SHA-256 of its session token; `None` for the in-process channel.
    pub session_hash: Option<[u8; 32]>,
    /// When it registered.
    pub registered_at: Timestamp,
    /// What it registered under, see `RegisterRequest`.
    pub registration: Option<String>,
    /// Whether its session was ended for good (deregistered or revoked).
    pub gone: bool,
    /// Set while it takes no new tasks.
    pub drain: Option<Drain>,
}

/// A credential as the store keeps it: never the token itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// SHA-256 of the token.
    pub hash: [u8; 32],
    /// What it is for.
    pub kind: TokenKind,
    /// What people call it; no two that live share it.
    pub name: String,
    /// What a client may do; `None` for the other kinds.
    pub role: Option<Role>,
    /// The projects it is confined to; empty = none needed, `*` = all.
    pub projects: Vec<String>,
    /// The highest priority it may submit with.
    pub max_priority: Option<i32>,
    /// `submitted_by` of its jobs, when that is not its name.
    pub user: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
    /// From when it is not taken any more.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to a few minutes.
    pub last_used_at: Option<Timestamp>,
    /// The registration an instance token was used for; such a one is of no use for another.
    pub used_for: Option<String>,
}

impl TokenRecord {
    /// A token without bounds of its own: an admin client, or one that joins workers.
    pub fn unconfined(hash: [u8; 32], kind: TokenKind, name: impl Into<String>, now: Timestamp) -> Self {
        Self {
            hash,
            kind,
            name: name.into(),
            role: (kind == TokenKind::Client).then_some(Role::Admin),
            projects: Vec::new(),
            max_priority: None,
            user: None,
            created_at: now,
            created_by: String::new(),
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
            used_for: None,
        }
    }

    /// Whether it is taken at `now`.
    pub fn lives(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }

    /// As clients see it.
    pub fn shown(self) -> Token {
        Token {
            user: self.role.map(|_| self.user.unwrap_or_else(|| self.name.clone())),
            name: self.name,
            kind: self.kind,
            role: self.role,
            projects: self.projects,
            max_priority: self.max_priority,
            created_at: self.created_at,
            created_by: self.created_by,
            expires_at: self.expires_at,
            revoked_at: self.revoked_at,
            last_used_at: self.last_used_at,
        }
    }
}

/// Names an outbox entry to the receiver, so that a repeated delivery is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutboxId(pub u128);

/// An effect on the outside that must survive a crash (webhooks, calls of providers).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEntry {
    /// A UUIDv7.
    pub id: OutboxId,
    /// Who delivers it.
    pub kind: String,
    /// What to deliver, as JSON.
    pub payload: String,
    /// When it was decided.
    pub created_at: Timestamp,
}
