//! `Job` and its states, as clients see them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::artifact::{Digest, OutputFile, UndeclaredFile};
use super::end::End;
use super::function::FunctionResult;
use super::ids::{JobId, WorkerId};
use super::problem::Warning;
use super::quantity::Timestamp;

/// A job's state (CONTRACT, Words and states).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits for a place.
    Queued,
    /// A machine is being made for it.
    Provisioning,
    /// Has a worker; not started.
    Scheduled,
    /// Started.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Was stopped by somebody.
    Cancelled,
    /// Ran, or waited, too long.
    TimedOut,
}

impl JobState {
    /// All of them, in the order of a job's life.
    pub const ALL: [JobState; 8] = [
        JobState::Queued,
        JobState::Provisioning,
        JobState::Scheduled,
        JobState::Running,
        JobState::Succeeded,
        JobState::Failed,
        JobState::Cancelled,
        JobState::TimedOut,
    ];

    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            JobState::Queued => "queued",
            JobState::Provisioning => "provisioning",
            JobState::Scheduled => "scheduled",
            JobState::Running => "running",
            JobState::Succeeded => "succeeded",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
            JobState::TimedOut => "timed_out",
        }
    }

    /// Whether nothing follows.
    pub const fn ended(self) -> bool {
        matches!(self, JobState::Succeeded | JobState::Failed | JobState::Cancelled | JobState::TimedOut)
    }

    /// The legal steps (CONTRACT, Words and states); nothing else is.
    pub const fn may_become(self, next: JobState) -> bool {
        use JobState::{Cancelled, Failed, Provisioning, Queued, Running, Scheduled, Succeeded, TimedOut};
        match self {
            Queued => matches!(next, Provisioning | Scheduled | Cancelled | TimedOut | Failed),
            Provisioning => matches!(next, Queued | Scheduled | Cancelled | TimedOut | Failed),
            Scheduled => matches!(next, Running | Queued | Cancelled | TimedOut | Failed),
            Running => matches!(next, Succeeded | Failed | Cancelled | TimedOut | Queued),
            Succeeded | Failed | Cancelled | TimedOut => false,
        }
    }
}

/// A job as the API shows it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// From the spec.
    pub name: Option<String>,
    /// From the spec.
    pub project: String,
    /// From the spec.
    pub labels: BTreeMap<String, String>,
    /// Name of the credential, or the local user.
    pub submitted_by: String,
    /// Where it stands.
    pub state: JobState,
    /// Why it is not placed yet, grouped per worker; only while queued. A list of jobs says it only of those that wait for
    /// something else (other jobs, their next attempt): of one that waits for a worker it is null there, and said by
    /// `GET /v1/jobs/{id}`.
    pub queue_reason: Option<String>,
    /// The spec in canonical form (defaults left out).
    #[schema(value_type = super::spec::JobSpec)]
    pub spec: Arc<RawValue>,
    /// Rises at every requeue of a started job; starts at 1.
    pub attempt: u32,
    /// The array it belongs to.
    pub parent: Option<JobId>,
    /// Its index there.
    pub array_index: Option<u64>,
    /// The job this one repeats.
    pub retry_of: Option<JobId>,
    /// The worker of its newest task.
    pub worker: Option<WorkerId>,
    /// When it was accepted.
    pub submitted_at: Timestamp,
    /// When its newest task was placed.
    pub scheduled_at: Option<Timestamp>,
    /// When its first attempt started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Since when its worker has not answered, under `on_unreachable: wait`.
    pub unreachable_since: Option<Timestamp>,
    /// When somebody asked it to stop while it ran.
    pub cancel_requested_at: Option<Timestamp>,
    /// The job of a higher priority for which its newest task leaves, or left before it was queued again; until it has its
    /// next place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempted_by: Option<JobId>,
    /// Of an array: how many children are where (`ArrayProgress`). Of any other job: what its program said last of how far
    /// it is (`TaskProgress`), of a gang that of rank 0.
    pub progress: Option<serde_json::Value>,
    /// How it ended.
    pub end: Option<End>,
    /// What its function returned or raised.
    pub result: Option<FunctionResult>,
    /// Collected files.
    pub outputs: Vec<OutputFile>,
    /// Files no output declares, kept on the worker.
    pub undeclared: Vec<UndeclaredFile>,
    /// The whole log as one artifact, when the stored lines differ from it.
    pub log_artifact: Option<Digest>,
    /// What was noticed at submission or at the end.
    pub warnings: Vec<Warning>,
}

impl Job {
    /// Whether it is an array: one whose tasks are its children's.
    pub fn is_array(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.get("queued").is_some())
    }
}

/// Most things of which a submission says that they were left out of its source.
pub const MOST_LEFT_OUT: usize = 64;
/// Header of `POST /v1/jobs` with a JSON list of [`LeftOutOfSource`]: no part of the spec, and remembered as warnings,
/// so that a program that misses such a file is told why.
pub const LEFT_OUT_HEADER: &str = "x-gpulayer-left-out";

/// Something that was left out when a source was made from a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOutOfSource {
    /// By whose word: `.gitignore`, `.gpulayerignore`, `the bundle`.
    pub by: String,
    /// Its path in the source; a folder ends with `/`.
    pub path: String,
}

/// `POST /v1/jobs/{id}/cancel`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CancelRequest {
    /// Without grace.
    #[serde(default)]
    pub now: bool,
}

/// `POST /v1/jobs/{id}/retry`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RetryRequest {
    /// Of an array: only the children that did not succeed.
    #[serde(default)]
    pub failed: bool,
}

/// `POST /v1/jobs/batch`: the specs as JSON, read by the server's validator.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BatchRequest {
    /// Up to 10,000 specs; all are accepted or none.
    #[schema(min_items = 1, max_items = 10_000)]
    pub jobs: Vec<serde_json::Value>,
}

/// The answer to a batch.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BatchAnswer {
    /// In the order of the request.
    pub ids: Vec<JobId>,
    /// What was noticed, with pointers `/jobs/N/…`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

/// A page of a list, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// Pass as `cursor` for the next page; absent at the end.
    pub next_cursor: Option<String>,
}

/// A page of an append-only sequence, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Sequence<T> {
    /// The entries.
    pub items: Vec<T>,
    /// Pass as `after` for what follows.
    pub next_after: u64,
    /// Whether nothing will follow.
    pub ended: bool,
}
