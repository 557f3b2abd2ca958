//! To a worker's session. What the worker itself says (`Heartbeat`, `Acquire`, `ReportTasks`, …) comes as the
//! front desk got it.

use std::sync::{Arc, Mutex};

use actix::{Message, Recipient};

use super::front_desk::{
    Acquire, DeregisterWorker, Heartbeat, Keyed, ListWorkers, ReportTasks, ResumeWorker, UnknownWorker,
};
use super::{Reply, send};
use crate::contract::ids::TaskId;
use crate::contract::protocol::{Assignment, RegisterAnswer, StopReason};
use crate::contract::worker::{Drain, Worker};
use crate::credentials::known::Credentials;
use crate::domain::change::{Change, WorkerRecord};

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
    /// Why; of two orders the first one's stays.
    pub cause: StopReason,
    /// Without grace.
    pub now: bool,
    /// The server has given the task up; the order stands until the worker no longer lists it.
    pub lost: bool,
}

/// The task started, or is over for the server: stop offering it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct Settled {
    /// The task.
    pub task_id: TaskId,
    /// It only started: a stop that was asked for stands.
    pub started: bool,
}

/// The worker is being emptied, or takes tasks again: write it into its row, with this key, and answer.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct DrainDecided {
    /// What it is from now on.
    pub drain: Option<Drain>,
    /// The client's key as a change for the same commit.
    pub key: Option<Change>,
    /// Answered once durable.
    pub reply: Reply<Result<Keyed<()>, UnknownWorker>>,
}

/// The worker was revoked: its session is over. Write it into its row, with this key, let the edge know, and answer.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SessionRevoked {
    /// Its tasks that were given up while their process trees may still be there.
    pub lost: Vec<TaskId>,
    /// Where its session token is known.
    pub credentials: Arc<Credentials>,
    /// The client's key as a change for the same commit.
    pub key: Option<Change>,
    /// Answered once durable.
    pub reply: Reply<Result<Keyed<()>, UnknownWorker>>,
}

/// What are you? Pushed into one list by every session; the last one to let go of it sends the answer.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct Describe {
    /// Where the description goes.
    pub into: Arc<Gathering>,
}

/// A list that answers when nobody adds to it any more.
#[derive(Debug)]
pub struct Gathering {
    workers: Mutex<Vec<Worker>>,
    reply: Mutex<Option<Reply<Vec<Worker>>>>,
}

impl Gathering {
    /// An empty list that will answer this question.
    pub fn answering(question: ListWorkers) -> Arc<Self> {
        Arc::new(Self { workers: Mutex::default(), reply: Mutex::new(Some(question.reply)) })
    }

    /// Adds one.
    pub fn add(&self, worker: Worker) {
        if let Ok(mut workers) = self.workers.lock() {
            workers.push(worker);
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        let workers = self.workers.get_mut().map(std::mem::take).unwrap_or_default();
        if let Some(reply) = self.reply.get_mut().ok().and_then(Option::take) {
            let mut workers = workers;
            workers.sort_by_key(|worker| std::cmp::Reverse(worker.id));
            send(reply, workers);
        }
    }
}

/// How the others reach one worker's session.
#[derive(Debug, Clone)]
pub struct SessionPorts {
    /// For the supervisor.
    pub offer: Recipient<Offer>,
    /// For the supervisor.
    pub stop: Recipient<StopTask>,
    /// For the supervisor.
    pub settled: Recipient<Settled>,
    /// For the supervisor.
    pub drain: Recipient<DrainDecided>,
    /// For the supervisor.
    pub revoke: Recipient<SessionRevoked>,
    /// For the front desk.
    pub resume: Recipient<ResumeWorker>,
    /// For the front desk.
    pub heartbeat: Recipient<Heartbeat>,
    /// For the front desk.
    pub acquire: Recipient<Acquire>,
    /// For the front desk.
    pub report: Recipient<ReportTasks>,
    /// For the front desk.
    pub deregister: Recipient<DeregisterWorker>,
    /// For the front desk.
    pub describe: Recipient<Describe>,
}

/// What a session is opened with: a worker that registers now, or one the store remembers.
#[derive(Debug)]
pub struct NewSession {
    /// The worker's row.
    pub record: WorkerRecord,
    /// Answered once the row is durable; `None` for a remembered worker.
    pub greeting: Option<(Reply<RegisterAnswer>, RegisterAnswer)>,
}

/// Opens sessions; given to the front desk by the root, so that no actor knows another.
pub type OpenSession = Box<dyn Fn(NewSession) -> SessionPorts>;
