//! Where a decision writes down what must be persisted and who must be told.

use std::sync::Arc;

use serde_json::{Value, json};

use super::change::{Change, StopCause};
use super::placement::Place;
use crate::contract::event::{Event, EventType};
use crate::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use crate::contract::protocol::Assignment;
use crate::contract::quantity::Timestamp;

/// What one step asks for: durable changes, and notices to send (see [`Notice`] for when).
#[derive(Debug)]
pub struct Ledger {
    /// The moment of the step.
    pub now: Timestamp,
    /// Number of the newest event, server-wide.
    pub position: u64,
    /// In the order they were decided.
    pub changes: Vec<Change>,
    /// In the order they were decided.
    pub notices: Vec<Notice>,
}

impl Ledger {
    /// An empty page. `position` is the number of the newest event so far.
    pub fn new(now: Timestamp, position: u64) -> Self {
        Self { now, position, changes: Vec::new(), notices: Vec::new() }
    }

    /// Writes a change down.
    pub fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Writes a notice down.
    pub fn tell(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    /// Writes an event down under the job's next number.
    pub fn event(&mut self, job_id: JobId, seq: u64, task_id: Option<TaskId>, kind: EventType, data: Value) {
        self.position += 1;
        self.changes.push(Change::EventAppended(Box::new(Event {
            seq,
            position: self.position,
            time: self.now,
            kind,
            job_id: Some(job_id),
            task_id,
            data,
        })));
    }
}

impl Ledger {
    /// Adds to what this step says of a job's new place: what it had waited for last.
    pub fn waited_for(&mut self, job_id: JobId, reason: &str) {
        let placed = self.events_of(job_id).find(|event| event.kind == EventType::JobScheduled);
        if let Some(event) = placed {
            event.data["waited_for"] = reason.into();
        }
    }

    /// Adds to what this step says of a job that had to go: for which job that was.
    pub fn went_for(&mut self, job_id: JobId, by: JobId) {
        let went =
            |event: &&mut Event| matches!(event.kind, EventType::TaskStopRequested | EventType::JobQueued);
        for event in self.events_of(job_id).filter(went) {
            event.data["for"] = json!(by);
        }
    }

    /// The events of this step, the newest first.
    fn events_of(&mut self, job_id: JobId) -> impl Iterator<Item = &mut Event> {
        self.changes.iter_mut().rev().filter_map(move |change| match change {
            Change::EventAppended(event) if event.job_id == Some(job_id) => Some(&mut **event),
            _ => None,
        })
    }
}

/// Who must be told what. [`Notice::Queued`] and [`Notice::Unqueued`] only concern the scheduler, whose
/// proposals come back to be judged, so they may go out at once; every other notice is an effect that must
/// wait until the changes of its step are durable.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// The job waits for a place.
    Queued(JobId),
    /// The job waits no more.
    Unqueued(JobId),
    /// Hand this to the worker.
    Offer(WorkerId, Box<Assignment>),
    /// The lease begins: the task has to start, then stay renewed.
    Watch(WorkerId, TaskId, Epoch),
    /// The task started.
    Started {
        /// Where.
        worker: WorkerId,
        /// Which.
        task_id: TaskId,
        /// Its worker has not answered since before a restart, and its job waits for it.
        suspended: bool,
    },
    /// The worker must stop the task.
    Stop {
        /// Where.
        worker: WorkerId,
        /// Which.
        task_id: TaskId,
        /// Why.
        cause: StopCause,
        /// Without grace.
        now: bool,
    },
    /// The task is over for the server: no lease, no offer.
    Settled(WorkerId, TaskId),
    /// What this placement took of the worker is free again.
    Freed(WorkerId, Place),
    /// What this placement took stays taken until the worker reports the task's tree gone.
    Stale(WorkerId, TaskId, Place),
    /// The task will have ended by then.
    Bounded(WorkerId, Place, Timestamp),
    /// Ask again at this time: a limit may have passed.
    Wake(Timestamp, Alarm),
}

/// Which limit to look at when a [`Notice::Wake`] comes due. One that no longer applies changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// `queue_timeout_s`.
    QueueTimeout(JobId),
    /// The pause before the next attempt.
    BackoffOver(JobId),
    /// `timeout_s` and the preparation allowance, of this placement.
    RunTimeout(JobId, Epoch),
    /// `unreachable_timeout_s`, of this placement.
    UnreachableTimeout(JobId, Epoch),
    /// The deadline of this worker's drain.
    DrainDeadline(WorkerId),
}

/// A spec, shared.
pub type SharedSpec = Arc<crate::contract::spec::JobSpec>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_to_go_says_for_which_job() {
        let mut ledger = Ledger::new(Timestamp::from_micros(0), 0);
        let [goes, other, by] = [1, 2, 3].map(JobId::from_u128);
        for job in [goes, other] {
            ledger.event(job, 1, None, EventType::TaskStopRequested, json!({"cause": "preempt"}));
        }
        ledger.went_for(goes, by);
        let told: Vec<_> = ledger.events_of(goes).map(|event| event.data.clone()).collect();
        assert_eq!(told, [json!({"cause": "preempt", "for": by})]);
        assert!(ledger.events_of(other).all(|event| event.data.get("for").is_none()));
    }
}
