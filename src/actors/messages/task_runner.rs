//! To the task runner, the worker's side of a task.

use actix::Message;

use super::Reply;
use crate::contract::protocol::{Assignment, Held, Orders};

/// The server assigned these.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TasksAssigned {
    /// Deduplicated by (task, epoch).
    pub assignments: Vec<Assignment>,
}

/// Orders that rode on an answer.
#[derive(Debug, Clone, PartialEq, Message)]
#[rtype(result = "()")]
pub struct OrdersReceived {
    /// What to stop.
    pub orders: Orders,
}

/// What is held right now?
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ListHeld {
    /// Every task with its phase.
    pub reply: Reply<Vec<Held>>,
}
