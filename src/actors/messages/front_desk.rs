//! To the front desk: all that comes in over HTTP or from the worker in this process. It passes each on to
//! the one actor that can answer; the answer goes straight back through the [`Reply`].

use std::sync::Arc;

use actix::Message;

use super::Reply;
use crate::contract::artifact::Digest;
use crate::contract::explain::Explanation;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::job::JobState;
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, HeartbeatAnswer, HeartbeatRequest, RegisterAnswer, RegisterRequest,
    ReportAnswer, ReportRequest, ResumeAnswer, ResumeRequest,
};
use crate::contract::quantity::Seconds;
use crate::contract::spec::JobSpec;
use crate::contract::worker::Worker;
use crate::credentials::known::Pass;
use crate::domain::array::NewArray;
use crate::domain::change::{JobRecord, TokenRecord, Uploader, UsedKey};
pub use crate::domain::credentials::audit::{Act, Author};
pub use crate::domain::credentials::table::TokenRefusal;
use crate::domain::dependency::Wait;
pub use crate::domain::placement::QueueReason;
use crate::domain::placement::{Outlook, QueuedJob, Shape};
pub use crate::domain::queue_limit::ProjectFull;

/// A keyed call's outcome (CONTRACT, Requests and answers, `Idempotency-Key`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keyed<T> {
    /// Done now, and on disk.
    Done(T),
    /// The key was used before: the store holds the first answer (and the body it belongs to).
    Repeat,
}

/// A validated job: its record, its parsed spec.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// What will be stored.
    pub record: Box<JobRecord>,
    /// The same spec, parsed.
    pub spec: Arc<JobSpec>,
    /// The jobs that it waits for.
    pub waits: Vec<Wait>,
    /// Its children, when it is an array.
    pub array: Option<NewArray>,
    /// What it begins with, as it repeats a job that left a checkpoint; of an array, with the places of its children.
    pub checkpoints: Vec<(usize, Digest)>,
}

/// Accept these jobs, all or none. Answered when they are on disk.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SubmitJobs {
    /// In the order of the request.
    pub jobs: Vec<NewJob>,
    /// The token it came with: one that was revoked while the request was on its way submits nothing.
    pub pass: Option<Arc<Pass>>,
    /// The client's key, stored in the same commit.
    pub key: Option<Box<UsedKey>>,
    /// Answered once durable.
    pub reply: Reply<Result<Keyed<()>, SubmitRefusal>>,
}

/// Why jobs are not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitRefusal {
    /// Less than `min_free_bytes` is left.
    #[error("the disk is nearly full")]
    StorageFull,
    /// The daemon is leaving: on-demand daemons hand over, `down` stops.
    #[error("the daemon is stopping")]
    Stopping,
    /// The token was revoked while the request was on its way.
    #[error("the token was revoked")]
    Revoked,
    /// A project would have more jobs than it may.
    #[error(transparent)]
    ProjectFull(#[from] ProjectFull),
}

/// Stop this job: at once if it has not started, else with its grace.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CancelJob {
    /// Which.
    pub job_id: JobId,
    /// Without grace.
    pub now: bool,
    /// Who asks, when that is to be on record.
    pub by: Option<Box<Author>>,
    /// The client's key, stored in the same commit.
    pub key: Option<Box<UsedKey>>,
    /// `Done(true)` = this call changed something, `Done(false)` = it had ended or was being cancelled already.
    /// Answered when the store shows it; a job the supervisor does not hold has ended or never was.
    pub reply: Reply<Keyed<bool>>,
}

/// Remove an ended job and all that belongs to it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PurgeJob {
    /// Which; the edge has checked that it exists.
    pub job_id: JobId,
    /// The array it is a child of: while that has not ended, its children are counted.
    pub parent: Option<JobId>,
    /// Who asks, when that is to be on record.
    pub by: Option<Box<Author>>,
    /// The client's key, stored in the same commit.
    pub key: Option<Box<UsedKey>>,
    /// `Err` = it has not ended.
    pub reply: Reply<Result<Keyed<()>, JobNotEnded>>,
}

/// A purge of a live job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the job is {state:?}")]
pub struct JobNotEnded {
    /// Where it stands.
    pub state: JobState,
}

/// What a watcher of a job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Its end.
    Ended,
    /// An event after this number, or its end.
    EventAfter(u64),
    /// A yielded value after this number, or its end.
    YieldedAfter(u64),
}

/// Park until something of a job is on disk. A job that is not live answers at once: the store knows the rest.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct WatchJob {
    /// Which.
    pub job_id: JobId,
    /// What for.
    pub until: Until,
    /// Answered when it is so; dropped by the asker when it no longer cares.
    pub reply: Reply<()>,
}

/// Why is this job not placed yet?
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ExplainQueue {
    /// Which.
    pub job_id: JobId,
    /// `None` when it does not wait.
    pub reply: Reply<Option<QueueReason>>,
}

/// Where could jobs like these run at all?
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LookAhead {
    /// A project each, and what the job asks for.
    pub shapes: Vec<(Arc<str>, Arc<Shape>)>,
    /// One for each, in order.
    pub reply: Reply<Vec<Outlook>>,
}

/// Why, and what would help?
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Explain {
    /// Of what.
    pub question: Question,
    /// `None` when that job does not wait.
    pub reply: Reply<Result<Option<Explanation>, Unexplained>>,
}

/// What is to be explained.
#[derive(Debug)]
pub enum Question {
    /// Why a job waits.
    Job {
        /// Which.
        job_id: JobId,
        /// Its `grace_s`.
        grace_s: Seconds,
    },
    /// How this one would stand, which nobody submitted.
    Wish {
        /// It.
        job: Box<QueuedJob>,
        /// Its `grace_s`.
        grace_s: Seconds,
        /// As if there were more workers like this one (name or id).
        like: Option<String>,
        /// So many.
        more: u32,
        /// As if this one did not wait.
        without: Option<JobId>,
        /// The credential that asks what if; `None` = it stands for a job that was submitted.
        by: Option<[u8; 32]>,
    },
}

/// Why a question is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unexplained {
    /// No worker has the name or id that it named.
    #[error("no worker is called `{0}`")]
    NoSuchWorker(String),
    /// The same credential asks as many what-ifs as it may at once.
    #[error(
        "this credential asks about two specs already, and more only when one of them is answered; try again shortly"
    )]
    TooManyOfOne,
    /// Too many questions of this kind wait.
    #[error("too many ask for explanations; try again shortly")]
    TooMany,
}

/// Why is the scheduler not told of this job?
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct WhyHeld {
    /// Which.
    pub job_id: JobId,
    /// `None` = it is, or the job does not wait. Answered when the store shows it.
    pub reply: Reply<Option<Held>>,
}

/// What keeps a job from being looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// One line for people.
    Reason(String),
    /// It is an array: ask why this child waits.
    Child(JobId),
}

/// Who holds the places, if that is simple?
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct WhoHolds {
    /// The one job that is placed now; `None` when there is none, or more than one. Answered at once.
    pub reply: Reply<Option<Holder>>,
}

/// The only job that holds a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Which.
    pub job_id: JobId,
    /// What is left of its `timeout_s`, when it has one.
    pub at_most: Option<Seconds>,
}

/// How much is queued and running: for `/v1/server`, the metrics and the idle exit.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CountJobs {
    /// Answered at once.
    pub reply: Reply<JobCounts>,
}

/// Live jobs by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Wait for a place.
    pub queued: usize,
    /// Placed, not started.
    pub scheduled: usize,
    /// Started.
    pub running: usize,
}

/// A worker introduces itself.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RegisterWorker {
    /// What it says.
    pub request: RegisterRequest,
    /// Whether it needs a session token (not over the in-process channel).
    pub with_token: bool,
    /// Answered once durable.
    pub reply: Reply<RegisterAnswer>,
}

/// What an operator wants of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOrder {
    /// No new tasks; what still runs after `deadline` is stopped with its grace.
    Drain {
        /// From now; `None` = never, the tasks end by themselves.
        deadline: Option<Seconds>,
    },
    /// It takes tasks again. A task that was told to stop stays told.
    Resume,
}

/// Empty a worker, or let it take tasks again.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ChangeDrain {
    /// Which.
    pub worker_id: WorkerId,
    /// What.
    pub order: DrainOrder,
    /// Who asks, when that is to be on record.
    pub by: Option<Box<Author>>,
    /// The client's key, stored in the same commit.
    pub key: Option<Box<UsedKey>>,
    /// Answered once durable.
    pub reply: Reply<Result<Keyed<()>, UnknownWorker>>,
}

/// No such worker, or it has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no such worker")]
pub struct UnknownWorker;

/// Stop one task of a worker with its grace; one that has not started goes elsewhere.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct EvictTask {
    /// Where.
    pub worker_id: WorkerId,
    /// Which.
    pub task_id: TaskId,
    /// Who asks, when that is to be on record.
    pub by: Option<Box<Author>>,
    /// The client's key, stored in the same commit.
    pub key: Option<Box<UsedKey>>,
    /// `Done(true)` = this call changed something, `Done(false)` = it was told to stop already. Answered once durable.
    pub reply: Reply<Result<Keyed<bool>, EvictRefusal>>,
}

/// Why a task cannot be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EvictRefusal {
    /// No such worker, or it has left.
    #[error("there is no such worker")]
    UnknownWorker,
    /// The worker has no such task now.
    #[error("the worker has no such task")]
    NotThere,
}

/// End a worker's session for good and give up its tasks.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RevokeWorker {
    /// Which.
    pub worker_id: WorkerId,
    /// Who asks, when that is to be on record.
    pub by: Option<Box<Author>>,
    /// The client's key, stored in the same commit.
    pub key: Option<Box<UsedKey>>,
    /// Answered once durable.
    pub reply: Reply<Result<Keyed<()>, UnknownWorker>>,
}

/// Make this credential valid.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct MakeToken {
    /// As it will be stored.
    pub record: Box<TokenRecord>,
    /// Who asks, when that is to be on record.
    pub by: Option<Box<Author>>,
    /// The client's key, stored in the same commit.
    pub key: Option<Box<UsedKey>>,
    /// Answered once durable.
    pub reply: Reply<Result<Keyed<()>, TokenRefusal>>,
}

/// Make this credential void.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RevokeToken {
    /// Which.
    pub name: String,
    /// Whether it is asked for over the network.
    pub afar: bool,
    /// Who asks, when that is to be on record.
    pub by: Option<Box<Author>>,
    /// The client's key, stored in the same commit.
    pub key: Option<Box<UsedKey>>,
    /// Answered once durable; from then on it opens nothing.
    pub reply: Reply<Result<Keyed<()>, TokenRefusal>>,
}

/// A worker registers with this credential: may it?
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SpendToken {
    /// Which, by its hash.
    pub hash: [u8; 32],
    /// What the worker registers under.
    pub registration: String,
    /// Answered once durable.
    pub reply: Reply<Result<(), TokenRefusal>>,
}

/// Somebody who may not see everything sent all bytes of an artifact.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RecordUpload {
    /// Which.
    pub digest: Digest,
    /// On whose behalf.
    pub uploaders: Vec<Uploader>,
    /// Answered once durable.
    pub reply: Reply<()>,
}

/// Somebody used a power that no other message tells of.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RecordAct {
    /// Who.
    pub by: Box<Author>,
    /// What.
    pub act: Act,
    /// On what.
    pub target: String,
    /// What else is worth knowing.
    pub with: serde_json::Value,
    /// Answered once durable.
    pub reply: Reply<()>,
}

/// Why a worker's call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WorkerRefusal {
    /// No such worker, or its session is over.
    #[error("the session is over")]
    Revoked,
    /// A newer start has taken over, or has been there before this one.
    #[error(
        "a newer start of this worker has taken over, or this one comes from an older copy of its folder"
    )]
    Superseded,
    /// Another one was there a moment ago; later it may be this one's turn.
    #[error("another machine, or a copy of the folder, answered as this worker a moment ago")]
    IdentityInUse,
}

macro_rules! worker_call {
    ($(#[$doc:meta])* $name:ident, $request:ty, $answer:ty) => {
        $(#[$doc])*
        #[derive(Debug, Message)]
        #[rtype(result = "()")]
        pub struct $name {
            /// Who, by its session.
            pub worker_id: WorkerId,
            /// What it says.
            pub request: $request,
            /// Answered as the protocol says.
            pub reply: Reply<Result<$answer, WorkerRefusal>>,
        }
    };
}

worker_call!(
    /// A restarted agent takes its session up again.
    ResumeWorker, ResumeRequest, ResumeAnswer
);
worker_call!(
    /// A worker is alive and holds these tasks.
    Heartbeat, HeartbeatRequest, HeartbeatAnswer
);
worker_call!(
    /// A worker wants tasks; parked while there are none.
    Acquire, AcquireRequest, AcquireAnswer
);
worker_call!(
    /// A worker reports; answered once durable.
    ReportTasks, ReportRequest, ReportAnswer
);

/// A worker leaves for good.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct DeregisterWorker {
    /// Who.
    pub worker_id: WorkerId,
    /// Answered once durable.
    pub reply: Reply<Result<(), WorkerRefusal>>,
}

/// Who is there?
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ListWorkers {
    /// All known workers, newest first.
    pub reply: Reply<Vec<Worker>>,
}

/// The daemon is about to stop: accept nothing new. `cancel_running` is `down` without `--keep`.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PrepareStop {
    /// Cancel what runs; queued jobs stay queued.
    pub cancel_running: bool,
    /// Answered when nothing runs any more, but for tasks whose worker does not answer (or at once with
    /// `cancel_running: false`).
    pub reply: Reply<()>,
}

/// Free space fell below, or rose above, `min_free_bytes`.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct StorageLevel {
    /// Whether submissions must be refused.
    pub full: bool,
}
