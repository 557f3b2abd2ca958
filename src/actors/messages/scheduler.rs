//! To the scheduler.

use actix::Message;

use crate::contract::ids::{JobId, WorkerId};
use crate::contract::quantity::Timestamp;
use crate::contract::worker::{Capabilities, WorkerKind};
use crate::domain::placement::QueuedJob;
pub use crate::domain::placement::{Holding, Place};

/// A job waits for a place.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct JobQueued {
    /// The job, with all the scheduler needs to know of it.
    pub job: QueuedJob,
}

/// A job no longer waits (cancelled, timed out). If it waited, the answer is `QueueLeft`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct JobUnqueued {
    /// The job.
    pub job_id: JobId,
}

/// `queue_timeout_s` of these jobs is over: they wait no more. The answer is `QueueLeft`, for every one of them.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct QueueTimeoutsOver {
    /// Which.
    pub job_ids: Vec<JobId>,
}

/// A proposal holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct PlacementAccepted {
    /// The job.
    pub job_id: JobId,
}

/// A proposal is void; what it took goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct PlacementRefused {
    /// The job.
    pub job_id: JobId,
    /// Whether the job waits no more and must not be proposed again.
    pub gone: bool,
}

/// What a task took is free again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct CapacityFreed {
    /// Where.
    pub worker_id: WorkerId,
    /// Which placement.
    pub place: Place,
}

/// After a restart: a task already sits on a worker.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct CapacityTaken {
    /// Where.
    pub worker_id: WorkerId,
    /// Which placement.
    pub place: Place,
    /// What it took.
    pub holding: Holding,
}

/// A task will have ended by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct TaskBounded {
    /// Where.
    pub worker_id: WorkerId,
    /// Which placement.
    pub place: Place,
    /// When.
    pub ends_by: Timestamp,
}

/// A worker can take tasks.
#[derive(Debug, Clone, PartialEq, Message)]
#[rtype(result = "()")]
pub struct WorkerUp {
    /// Who.
    pub worker_id: WorkerId,
    /// Its name.
    pub name: String,
    /// How it reaches the server.
    pub kind: WorkerKind,
    /// This start of it.
    pub incarnation: u64,
    /// What it has.
    pub capabilities: Capabilities,
}

/// A worker takes no tasks for now; what it holds stays reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct WorkerDown {
    /// Who.
    pub worker_id: WorkerId,
}

/// A worker is unhealthy, or well again. It is told again at every [`WorkerUp`].
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct WorkerHealth {
    /// Who.
    pub worker_id: WorkerId,
    /// Why it takes no tasks, in its own words; `None` = it is well.
    pub unhealthy: Option<String>,
}

/// A worker's table of secrets was written.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct WorkerSecrets {
    /// Who.
    pub worker_id: WorkerId,
    /// The names it has now.
    pub names: Vec<String>,
}

/// An operator empties a worker, or lets it take tasks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct WorkerDraining {
    /// Who.
    pub worker_id: WorkerId,
    /// Whether it takes no new tasks.
    pub draining: bool,
}

/// A worker left for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct WorkerLeft {
    /// Who.
    pub worker_id: WorkerId,
}

/// The daemon is stopping: propose nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct StopPlacing;
