//! Worker protocol 1: what a worker says and what it is answered. Every request carries
//! `X-GpuLayer-Protocol: 1`; every task message carries the epoch it belongs to.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::array::ArrayPlace;
use super::artifact::{Digest, OutputFile, UndeclaredFile};
use super::end::End;
use super::error_code::ErrorCode;
use super::function::Returned;
use super::gang::GangPlace;
use super::gpu::{GpuNews, Interpreter};
use super::ids::{Epoch, JobId, TaskId, WorkerId};
use super::job::JobState;
use super::log::LogRecord;
use super::problem::Warning;
use super::progress::TaskProgress;
use super::quantity::{Cpus, Seconds, Timestamp};
use super::spec::JobSpec;
use super::telemetry::{ClockOffset, Telemetry};
use super::worker::{Capabilities, Phase, StuckProcess, WorkerKind};
use super::yielded::Yielded;

/// The header that names the version.
pub const PROTOCOL_HEADER: &str = "X-GpuLayer-Protocol";
/// The header of every answer that names this start of the server: another one in its place is another start.
pub const START_HEADER: &str = "x-gpulayer-start";
/// The version this build speaks.
pub const PROTOCOL: u32 = 1;

/// Tells a restart from a reboot from a clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Identity {
    /// Of the machine's installation.
    pub machine_id: String,
    /// Of this boot of the machine.
    pub boot_id: String,
    /// Of this start of the agent; rises with every start.
    pub incarnation: u64,
}

/// `POST /v1/workers/register`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RegisterRequest {
    /// What people call it.
    #[schema(
        max_length = 63,
        pattern = r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$"
    )]
    pub name: String,
    /// Who it is.
    #[serde(flatten)]
    pub identity: Identity,
    /// What it has.
    pub capabilities: Capabilities,
    /// How it reaches the server; the HTTP edge always records `remote`.
    #[serde(default = "remote")]
    pub kind: WorkerKind,
    /// Random, and the same until an answer was kept: a worker that registers again under it never heard of the
    /// registration before, which is void.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration: Option<String>,
}

fn remote() -> WorkerKind {
    WorkerKind::Remote
}

/// The answer: identity and credential (shown once, stored hashed), and the times to keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RegisterAnswer {
    /// Its id from now on.
    pub worker_id: WorkerId,
    /// `gls_…`; empty over the in-process channel.
    pub session_token: String,
    /// The times to keep.
    #[serde(flatten)]
    pub timing: Timing,
}

/// Times the server expects a worker to keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Timing {
    /// Between heartbeats.
    pub heartbeat_s: Seconds,
    /// After which a silent task's lease runs out.
    pub lease_ttl_s: Seconds,
}

/// A task a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Held {
    /// The task.
    pub task_id: TaskId,
    /// Its placement.
    pub epoch: Epoch,
    /// Where it stands; absent before the start was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
}

/// `POST /v1/worker/resume`: a restarted agent takes its session up again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResumeRequest {
    /// Which worker it was.
    pub worker_id: WorkerId,
    /// Who it is now.
    #[serde(flatten)]
    pub identity: Identity,
    /// What people call it from now on; absent: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        max_length = 63,
        pattern = r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$"
    )]
    pub name: Option<String>,
    /// What it has now.
    pub capabilities: Capabilities,
    /// What it still holds.
    pub tasks: Vec<Held>,
    /// Random, of this start's process: tells a repeat, whose first answer was lost, from a second process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Its folder does not lie where the start before left it, on the same boot: it was moved, or copied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moved: bool,
}

/// Why a task is told to stop: the word that its program reads in `GPULAYER_STOP_FILE`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Somebody cancelled the job.
    Cancelled,
    /// It ran longer than `timeout_s`.
    TimedOut,
    /// Its worker was drained and the deadline passed.
    Drained,
    /// An operator evicted the task.
    Evicted,
    /// A job of higher priority takes the place.
    Preempted,
    /// Another task of its gang ended, without which it cannot go on.
    GangEnded,
    /// The worker's credential was revoked.
    Revoked,
    /// The server gave the task up while its worker did not answer.
    Lost,
    /// No worker came back for the task.
    Orphaned,
    /// One that this build has no word for, or that was not said.
    #[default]
    #[serde(other)]
    Stopped,
}

impl StopReason {
    /// The word in the stop file.
    pub const fn word(self) -> &'static str {
        match self {
            StopReason::Cancelled => "cancelled",
            StopReason::TimedOut => "timed_out",
            StopReason::Drained => "drained",
            StopReason::Evicted => "evicted",
            StopReason::Preempted => "preempted",
            StopReason::GangEnded => "gang_ended",
            StopReason::Revoked => "revoked",
            StopReason::Lost => "lost",
            StopReason::Orphaned => "orphaned",
            StopReason::Stopped => "stopped",
        }
    }
}

/// One task that has to stop, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopOrder {
    /// Which.
    pub task_id: TaskId,
    /// Why.
    #[serde(default)]
    pub cause: StopReason,
    /// Without grace.
    #[serde(default)]
    pub now: bool,
}

/// Orders that ride on every answer to a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Orders {
    /// Stop these, each with its cause. The two lists below name the same tasks, for workers that do not know this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<StopOrder>,
    /// Stop these with their grace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel_task_ids: Vec<TaskId>,
    /// Kill these at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kill_task_ids: Vec<TaskId>,
    /// The session is over: kill everything and leave.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

/// The answer to a resume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResumeAnswer {
    /// The times to keep.
    #[serde(flatten)]
    pub timing: Timing,
    /// What to stop.
    #[serde(flatten)]
    pub orders: Orders,
}

/// `POST /v1/worker/heartbeat`: renews the leases of the tasks listed, and only those.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatRequest {
    /// Rises; an older one is ignored.
    pub seq: u64,
    /// Of this start of the agent.
    pub incarnation: u64,
    /// What it holds.
    pub tasks: Vec<Held>,
    /// How its machine is doing.
    #[serde(default, deserialize_with = "Telemetry::lenient", skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
    /// How far its clock is from the server's, as measured with the heartbeat before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_s: Option<ClockOffset>,
    /// Why it is unhealthy, when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// GPUs whose standing is another than it said last; absent = none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<GpuNews>>,
    /// What its interpreters can import, once that was found out; absent = as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreters: Option<Vec<Interpreter>>,
    /// Names in its `[secrets]` table, whenever it may change; absent = as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
    /// The newest heartbeat of this start that it had the answer to when it wrote this one. Only then does it count that
    /// a task is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_seq: Option<u64>,
    /// It takes no new tasks, and leaves when those it has are over. Holds until the worker resumes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatAnswer {
    /// The server's clock, to measure the offset.
    pub server_time: Timestamp,
    /// What to stop.
    #[serde(flatten)]
    pub orders: Orders,
}

/// What is free on a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Free {
    /// Cores not granted.
    pub cpus: Cpus,
    /// Memory not granted, in bytes.
    pub memory_bytes: u64,
}

/// `POST /v1/worker/acquire`: long poll for assigned tasks not in `have`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AcquireRequest {
    /// How long to park when there is nothing, ≤ 60.
    pub wait_s: Seconds,
    /// What is free there.
    #[serde(default)]
    pub free: Free,
    /// At most so many.
    pub max_tasks: u32,
    /// What it has already.
    #[serde(default)]
    pub have: Vec<Held>,
    /// As in a heartbeat.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

/// The answer to an acquire.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AcquireAnswer {
    /// Tasks to start.
    pub assignments: Vec<Assignment>,
    /// What to stop.
    #[serde(flatten)]
    pub orders: Orders,
}

/// A task for a worker, with all it needs to run it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Assignment {
    /// The task.
    pub task_id: TaskId,
    /// Its job.
    pub job_id: JobId,
    /// This placement.
    pub epoch: Epoch,
    /// The job's attempt.
    pub attempt: u32,
    /// What to run.
    #[schema(value_type = JobSpec)]
    pub spec: Arc<JobSpec>,
    /// The GPUs it was granted, by uuid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// Which child of an array it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayPlace>,
    /// Which task of a gang it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<GangPlace>)]
    pub gang: Option<Arc<GangPlace>>,
    /// The checkpoint that earlier attempts left, of a gang that of rank 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Digest>,
}

/// One thing a worker reports of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportItem {
    /// The task.
    pub task_id: TaskId,
    /// The placement it belongs to.
    pub epoch: Epoch,
    /// What happened.
    #[serde(flatten)]
    pub report: Report,
}

/// What a worker reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Report {
    /// Sent on receipt; nothing executes before its answer.
    Start,
    /// A phase of a started task began.
    Phase {
        /// Which one.
        phase: Phase,
    },
    /// The worker does not take the task.
    Decline {
        /// Why.
        detail: String,
    },
    /// Processes of a started task were killed seconds ago and are still there. Its finish comes when they are gone.
    Stuck {
        /// Which, and where they wait.
        processes: Vec<StuckProcess>,
    },
    /// The program said how far it is. Only the newest word counts.
    Progress {
        /// That word.
        progress: TaskProgress,
    },
    /// The program's checkpoint is on the server: the next attempt begins with it.
    Checkpoint {
        /// What was kept; none when its bytes never came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<KeptCheckpoint>,
    },
    /// The function, a generator, yielded values. All of them are reported before its finish.
    Yielded {
        /// Number of the first, counted from 1 in each task.
        first_n: u64,
        /// The values, in order.
        values: Vec<Yielded>,
    },
    /// The task's tree is gone and its log is acknowledged.
    Finish(Box<Finish>),
}

/// A checkpoint of a program: a tar of its files, folders and links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeptCheckpoint {
    /// Its bytes.
    pub artifact: Digest,
    /// How many.
    pub size_bytes: u64,
    /// What is not in it, as it cannot travel: by name and reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// How a task ended on its worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Finish {
    /// Reason and facts as the worker saw them.
    pub end: End,
    /// Whether the exit came after the stop signal was sent.
    #[serde(default)]
    pub after_stop: bool,
    /// Collected files, their bytes already uploaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputFile>,
    /// Files no output declares, kept there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undeclared: Vec<UndeclaredFile>,
    /// The whole log, when the stored lines differ from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_artifact: Option<Digest>,
    /// What the function of a function job returned or raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Returned>,
    /// Files that could not be collected, by name and reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

/// `POST /v1/worker/report`: the same in batches, each item judged alone, one commit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportRequest {
    /// In the order they happened.
    pub items: Vec<ReportItem>,
    /// Answer with new assignments too, without parking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire: Option<AcquireRequest>,
}

/// The answer to a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportAnswer {
    /// One per item, in order.
    pub results: Vec<ReportResult>,
    /// Tasks to start.
    #[serde(default)]
    pub assignments: Vec<Assignment>,
    /// What to stop.
    #[serde(flatten)]
    pub orders: Orders,
}

/// How one reported item was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum ReportResult {
    /// Recorded, or an identical repeat of something recorded.
    Ok {
        /// The job's state afterwards.
        job_state: JobState,
    },
    /// Not recorded: `stale_epoch` or `task_ended`.
    Refused {
        /// Which.
        code: ErrorCode,
    },
}

/// `POST /v1/worker/tasks/{id}/start` and `/executing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EpochRequest {
    /// The placement.
    pub epoch: Epoch,
}

/// `POST /v1/worker/tasks/{id}/decline`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeclineRequest {
    /// The placement.
    pub epoch: Epoch,
    /// Why.
    pub detail: String,
}

/// `POST /v1/worker/tasks/{id}/finish`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FinishRequest {
    /// The placement.
    pub epoch: Epoch,
    /// How it ended.
    #[serde(flatten)]
    pub finish: Finish,
}

/// The answer to a single task call (`start`, `executing`, `decline`, `finish`) that was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskAnswer {
    /// The job's state afterwards.
    pub job_state: JobState,
    /// What to stop.
    #[serde(flatten)]
    pub orders: Orders,
}

/// `POST /v1/worker/tasks/{id}/logs`: records `first_n`, `first_n + 1`, … Without records it asks which one is next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogsRequest {
    /// The placement.
    pub epoch: Epoch,
    /// Number of the first record; records of a task count from 1.
    pub first_n: u64,
    /// Records from this number up to `first_n` are given up if they are not known; the first record says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_from_n: Option<u64>,
    /// The records; those already known are dropped.
    pub records: Vec<LogRecord>,
}

/// The answer once they are durable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogsAnswer {
    /// The number the next record must have.
    pub next_n: u64,
    /// What to stop.
    #[serde(flatten)]
    pub orders: Orders,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_is_not_known_yet_is_a_stop_all_the_same() {
        let read = |text: &str| serde_json::from_str::<StopReason>(text).unwrap();
        assert_eq!(read("\"drained\""), StopReason::Drained);
        assert_eq!(read("\"moon_phase\""), StopReason::Stopped);
        let task_id = TaskId::from_u128(1);
        let order: StopOrder = serde_json::from_value(serde_json::json!({"task_id": task_id})).unwrap();
        assert_eq!(order, StopOrder { task_id, cause: StopReason::Stopped, now: false });
    }

    #[test]
    fn a_stop_reasons_word_is_its_word_on_the_wire() {
        use StopReason as R;
        let all = [R::Cancelled, R::TimedOut, R::Drained, R::Evicted, R::Preempted, R::Revoked, R::Lost];
        for reason in all.into_iter().chain([R::Orphaned, R::Stopped]) {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.word());
        }
    }
}
