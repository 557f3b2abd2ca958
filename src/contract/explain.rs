//! Why a job waits, and what would let it run: the answer of `…/explain`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::end::EndReason;
use super::ids::{JobId, TaskId, WorkerId};
use super::job::JobState;
use super::problem::Warning;
use super::quantity::{Seconds, Timestamp};

/// How a job stands to the workers there are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The best that any worker can do for it; `never` also when its project may never have so much.
    pub verdict: Verdict,
    /// In one line, as `queue_reason` has it.
    pub summary: String,
    /// What a job waits for before it waits for a worker (others to end, its turn in its array): the rest is how it would
    /// stand then. Absent for one that waits for a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Every worker's answer, those with one answer together; what may change first.
    pub workers: Vec<WorkersAnswer>,
    /// Jobs that are served before it, in the order of now; those that no worker could ever take, or whose project may have
    /// no more now, are none. Absent for a job that was not submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// The first of those, as far as whoever asks may see them; a few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub served_before: Vec<JobId>,
    /// Why some of them go first that have its priority and are newer; absent when none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub favoured: Option<Favoured>,
    /// Workers that it needs at once; absent = one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Why its project may have no more now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
    /// Jobs of the project that have what it may have, those that end the soonest first; a few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quota_held_by: Vec<Holder>,
    /// What is reserved for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservedPlace>,
    /// What is missing on the worker that could take it the soonest, and who holds that; absent when it is not tasks that
    /// it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// What is to be said of the support of the best worker that could ever take it, when no test covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untested: Option<String>,
    /// When it starts at the latest, if every job before it takes all the time it may and no worker goes; absent when
    /// nobody can know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_by: Option<Timestamp>,
    /// When no worker could ever take it: the smallest change after which one could, though not at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Suggestion>,
    /// The smallest changes that would let it start now, each for itself; the smallest first.
    pub suggestions: Vec<Suggestion>,
    /// What was noticed when the spec was read; of a spec that is judged and not submitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

/// A project that has had less of the machines than another, by their shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Favoured {
    /// Which; absent when whoever asks may not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

/// What waiting helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing: no machine is like that.
    Never,
    /// It would fit if less were taken.
    NotNow,
    /// There is room now.
    Fits,
}

/// One answer and the workers that give it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkersAnswer {
    /// Whether waiting helps.
    pub verdict: Verdict,
    /// What is missing.
    pub reason: String,
    /// Their names, by id.
    pub workers: Vec<String>,
    /// They have room, which is kept for this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for: Option<ReservedFor>,
}

/// Whose a place will be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct ReservedFor {
    /// Which job; absent when whoever asks may not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// It can start by then, so whoever has ended before may have the place meanwhile; absent when nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// Workers that are kept for a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservedPlace {
    /// Their names.
    pub workers: Vec<String>,
    /// When they are free at the latest; absent when nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_by: Option<Timestamp>,
}

/// What a job waits for, on one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingFor {
    /// `1 GPU`, `2 CPUs`, `16 GiB of memory`.
    pub what: String,
    /// The worker's name; of a gang, the names of all of them.
    pub worker: String,
    /// Whose tasks have to end, those that end the soonest first; a few of them.
    pub held_by: Vec<Holder>,
    /// So many more.
    #[serde(default)]
    pub more: u64,
    /// All of them have ended after so long; absent when nobody knows, or when that does not help (`reserved_for`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_s: Option<Seconds>,
    /// Whether those tasks were told to leave for this job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preempted: bool,
    /// That room is kept for this job, whose turn is first: when those tasks have ended (none of them, when others leave
    /// for it), it starts, and `up_to_s` is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for: Option<ReservedFor>,
}

/// A job with a task that holds what another waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Holder {
    /// Which; absent when whoever asks may not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Whose; absent with `job`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_by: Option<String>,
    /// It has ended after so long; absent when nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_s: Option<Seconds>,
}

/// A change of the spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Suggestion {
    /// In words.
    pub change: String,
    /// The field of the spec.
    pub pointer: String,
    /// Its new value; null takes it out.
    pub value: serde_json::Value,
}

/// `POST /v1/explain`: a spec that is judged and not submitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhatIf {
    /// As for `POST /v1/jobs`.
    #[schema(value_type = super::spec::JobSpec)]
    pub spec: serde_json::Value,
    /// As if there were more workers like this one (a name or an id), all of them idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    /// So many (1); only with `like`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<u32>,
    /// As if this job were gone (its id).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<JobId>,
}

/// The answer of `GET /v1/jobs/{id}/explain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Explained {
    /// Of a job that waits.
    Waits(Box<Explanation>),
    /// Of a job that has ended.
    Past(Box<PastExplanation>),
}

/// What an ended job waited for, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PastExplanation {
    /// How it ended.
    pub state: JobState,
    /// In one line.
    pub summary: String,
    /// When it was submitted.
    pub queued_at: Timestamp,
    /// How long it waited in all: for each of its places, and for its end if it had none then.
    pub waited_s: Seconds,
    /// The try it came to.
    pub attempts: u32,
    /// How often its place was taken for a job of a higher priority.
    pub preemptions: u32,
    /// How often it was given a place.
    pub placed: u32,
    /// The newest of its places, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<PastPlacement>,
    /// How it stood to the workers when it left the queue without a place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_queue: Option<LastStanding>,
}

/// A place that a job had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastPlacement {
    /// The task.
    pub task_id: TaskId,
    /// The try it belonged to.
    pub attempt: u32,
    /// Where.
    pub worker: WorkerId,
    /// Its rank in a gang; absent for the task of a job that is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// With these GPUs, by uuid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// When it was given.
    pub placed_at: Timestamp,
    /// How long the job had waited for it, since it was queued (again).
    #[serde(default)]
    pub waited_s: Seconds,
    /// When its worker started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// What the job had waited for last; absent where it found room as soon as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<String>,
}

/// How a job stood to the workers when it left the queue. Of bounded size, whatever the number of workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LastStanding {
    /// The best that any worker could do for it.
    pub verdict: Verdict,
    /// In one line.
    pub summary: String,
    /// The workers' answers, those with one answer together; what might have changed first.
    pub workers: Vec<CountedAnswer>,
    /// Why its project could have no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
    /// What was reserved for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservedPlace>,
    /// When no worker could ever take it: the smallest change after which one could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Suggestion>,
    /// The smallest changes that would have let it start, each for itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<Suggestion>,
}

/// One answer and how many workers gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountedAnswer {
    /// Whether waiting helped.
    pub verdict: Verdict,
    /// What was missing.
    pub reason: String,
    /// So many.
    pub workers: u64,
    /// Some of their names.
    pub names: Vec<String>,
}
