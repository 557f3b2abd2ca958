//! To the job supervisor. Client commands come as the front desk got them (`SubmitJobs`, `CancelJob`,
//! `PurgeJob`, `WatchJob`, `CountJobs`, `PrepareStop`, `StorageLevel`); these come from other actors.

use actix::Message;

use super::Reply;
use crate::contract::ids::{Epoch, TaskId, WorkerId};
use crate::contract::protocol::{Held, ReportItem, ReportResult};
pub use crate::domain::placement::Placement;

/// The scheduler found places. Answered per job with `PlacementAccepted` or `PlacementRefused`.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct PlacementProposed {
    /// In the order they were decided.
    pub placements: Vec<Placement>,
}

/// A worker reported; each item is judged alone, all in one commit.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TasksReported {
    /// Who.
    pub worker_id: WorkerId,
    /// What, in the order it happened.
    pub items: Vec<ReportItem>,
    /// One result per item, once durable.
    pub reply: Reply<Vec<ReportResult>>,
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

/// A worker answered for tasks again: what it holds now, after a resume or in a heartbeat that followed a silence.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct WorkerReturned {
    /// Who.
    pub worker_id: WorkerId,
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
