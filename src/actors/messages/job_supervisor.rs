//! To the job supervisor. Client commands come as the front desk got them (`SubmitJobs`, `CancelJob`,
//! `PurgeJob`, `ChangeDrain`, `EvictTask`, `RevokeWorker`, `MakeToken`, `RevokeToken`, `SpendToken`, `RecordAct`,
//! `RecordUpload`, `WatchJob`, `WhyHeld`, `CountJobs`, `PrepareStop`, `StorageLevel`); these come from other actors.

use std::sync::Arc;

use actix::Message;

use super::Reply;
use super::front_desk::WorkerRefusal;
use super::worker_session::SessionPorts;
use crate::contract::explain::LastStanding;
use crate::contract::gang::Peer;
use crate::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use crate::contract::protocol::{Held, ReportAnswer, ReportItem};
use crate::contract::worker::Drain;
use crate::domain::placement::usage::NotedUsage;
pub use crate::domain::placement::{Placement, Preemption};
use crate::domain::roll_call::Unaccounted;

/// The scheduler found places. Answered per job with `PlacementAccepted` or `PlacementRefused`.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct PlacementProposed {
    /// In the order they were decided.
    pub placements: Vec<Placement>,
    /// Tasks that have to go for jobs of a higher priority; nobody waits for an answer.
    pub preemptions: Vec<Preemption>,
    /// What those of the placed jobs that had to wait had waited for last, as far as it was noted.
    pub waited_for: Vec<(JobId, Arc<str>)>,
}

/// Jobs left the queue without a place; this is how they stood then.
#[derive(Debug, Clone, PartialEq, Message)]
#[rtype(result = "()")]
pub struct QueueLeft {
    /// Each with how it stood; `None` = it was not in the queue. Jobs that stood alike share one.
    pub departures: Vec<(JobId, Option<Arc<LastStanding>>)>,
}

/// What every project had had of the machines at the time of a pass: to go on from after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct UsageTaken {
    /// It.
    pub usage: NotedUsage,
}

/// A worker reported; each item is judged alone, all in one commit.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TasksReported {
    /// Who.
    pub worker_id: WorkerId,
    /// What, in the order it happened.
    pub items: Vec<ReportItem>,
    /// The answer so far: assignments and orders from the session. Its `results` get one entry per item.
    pub answer: ReportAnswer,
    /// Answered once durable.
    pub reply: Reply<Result<ReportAnswer, WorkerRefusal>>,
}

/// A worker's session is there to be talked to.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct SessionOpened {
    /// Whose.
    pub worker_id: WorkerId,
    /// How others of a gang reach that worker.
    pub peer: Peer,
    /// The worker's incarnation.
    pub incarnation: u64,
    /// Set when it is being emptied.
    pub drain: Option<Drain>,
    /// How to reach it.
    pub ports: SessionPorts,
}

/// A worker says that it leaves when its tasks are over: it takes no new ones, until it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct WorkerLeaving {
    /// Whose.
    pub worker_id: WorkerId,
}

/// A worker left for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct SessionClosed {
    /// Whose.
    pub worker_id: WorkerId,
}

/// A suspended lease was renewed: the worker answers for the task again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct LeaseResumed {
    /// The task.
    pub task_id: TaskId,
    /// Its placement.
    pub epoch: Epoch,
}

/// A lease ran out, or a placed task was not started in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct LeaseExpired {
    /// The task.
    pub task_id: TaskId,
    /// Its placement.
    pub epoch: Epoch,
}

/// A restarted worker took its session up again, and holds these.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct WorkerReturned {
    /// Who.
    pub worker_id: WorkerId,
    /// How others of a gang reach it now.
    pub peer: Peer,
    /// Its new incarnation.
    pub incarnation: u64,
    /// Whether its machine restarted in between: everything it held before is gone.
    pub rebooted: bool,
    /// What it holds.
    pub held: Vec<Held>,
}

/// A worker no longer holds the process tree of a task that ended without its word: its resources are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct TaskGone {
    /// Where.
    pub worker_id: WorkerId,
    /// The task.
    pub task_id: TaskId,
}

/// A worker's heartbeats list tasks that its session does not expect there, or none of what started there.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct TasksUnaccounted {
    /// Whose.
    pub worker_id: WorkerId,
    /// What it holds and what it lacks.
    pub tasks: Unaccounted,
}
