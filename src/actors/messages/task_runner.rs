//! To the task runner, the worker's side of a task.

use actix::Message;

use super::Reply;
use crate::contract::protocol::{Assignment, Orders};

/// The server assigned these; those it holds already are passed over.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TasksAssigned {
    /// As they came.
    pub assignments: Vec<Assignment>,
}

/// Orders that rode on an answer.
#[derive(Debug, Clone, PartialEq, Message)]
#[rtype(result = "()")]
pub struct OrdersReceived {
    /// What to stop.
    pub orders: Orders,
}

/// The worker has a session: reports may go.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct SessionOpened;

/// The session was revoked: kill everything, tell nobody.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct AbandonTasks {
    /// Answered when no process of any task is left.
    pub reply: Reply<()>,
}

/// Say when there is no task, which may be at once.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TellWhenIdle {
    /// Answered when all are put away.
    pub reply: Reply<()>,
}
