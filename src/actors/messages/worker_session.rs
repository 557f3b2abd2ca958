//! To a worker's session. What the worker itself says (`Heartbeat`, `Acquire`, `ReportTasks`, …) comes as the
//! front desk got it.

use actix::Message;

use crate::contract::ids::TaskId;
use crate::contract::protocol::Assignment;

/// A durable placement for this worker: held out until it starts.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct Offer {
    /// What to hand out.
    pub assignment: Assignment,
}

/// A task that is held out, or running there, has to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct StopTask {
    /// The task.
    pub task_id: TaskId,
    /// Without grace.
    pub now: bool,
}

/// The server has the task's end on record, or took it back: stop offering it, stop asking for its stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct Settled {
    /// The task.
    pub task_id: TaskId,
}
