//! To the lease reaper, the one judge of deadlines.

use actix::Message;

use crate::contract::ids::{Epoch, TaskId, WorkerId};

/// A task was placed: it must start, and then stay renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct Watch {
    /// The task.
    pub task_id: TaskId,
    /// Its placement.
    pub epoch: Epoch,
    /// Where.
    pub worker_id: WorkerId,
}

/// A watched task started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct Started {
    /// The task.
    pub task_id: TaskId,
    /// Its lease had run out before a restart, and its job waits for the worker.
    pub suspended: bool,
}

/// A worker says that it still holds these.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct Renew {
    /// Who.
    pub worker_id: WorkerId,
    /// Task and placement.
    pub tasks: Vec<(TaskId, Epoch)>,
}

/// A task needs no watching any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct Forget {
    /// The task.
    pub task_id: TaskId,
}
