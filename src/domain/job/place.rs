//! A placement: proposed by the scheduler, judged here.

use std::sync::Arc;

use serde_json::json;

use super::{LiveJob, LiveTask, Placed, Stage, Stands};
use crate::contract::event::EventType;
use crate::contract::gang::{GangPlace, Peer};
use crate::contract::ids::{Epoch, TaskId};
use crate::contract::protocol::Assignment;
use crate::contract::quantity::Timestamp;
use crate::contract::spec::JobSpec;
use crate::domain::change::{Change, TaskRecord};
use crate::domain::ledger::{Ledger, Notice, SharedSpec};
use crate::domain::placement::{Grant, Seated};
use crate::domain::spec::child_artifacts;

/// Why a proposal is void.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlacementRefusal {
    /// The job waits no more.
    #[error("the job is not queued")]
    NotQueued,
    /// It was made on an earlier state of the job.
    #[error("the proposal was made on epoch {proposed}, the job is at {actual}")]
    StaleEpoch {
        /// Of the proposal.
        proposed: Epoch,
        /// Of the job.
        actual: Epoch,
    },
    /// It has not a seat for each node.
    #[error("the proposal has {seats} seats for {nodes} nodes")]
    NotWhole {
        /// Of the proposal.
        seats: usize,
        /// Of the job.
        nodes: usize,
    },
}

/// The spec as this attempt runs it: what its processes are held to must be what they were placed with.
pub fn with_memory(spec: SharedSpec, memory_bytes: Option<u64>) -> SharedSpec {
    if memory_bytes.is_none() || spec.resources.memory_bytes == memory_bytes {
        return spec;
    }
    let mut grown = (*spec).clone();
    grown.resources.memory_bytes = memory_bytes;
    SharedSpec::new(grown)
}

/// A seat, and what it gets.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// The task's id.
    pub task_id: TaskId,
    /// Where.
    pub seat: Seated,
    /// How the others of its gang reach that worker.
    pub peer: Peer,
}

impl LiveJob {
    /// Gives the job a task on each of these seats, by rank: all of them, or none.
    pub fn place(
        &mut self,
        ledger: &mut Ledger,
        proposed_on: Epoch,
        seats: Vec<NewTask>,
        spec: SharedSpec,
    ) -> Result<(), PlacementRefusal> {
        if !matches!(self.stage, Stage::Queued) || !self.waits.is_empty() || self.held() {
            return Err(PlacementRefusal::NotQueued);
        }
        if proposed_on != self.epoch {
            return Err(PlacementRefusal::StaleEpoch { proposed: proposed_on, actual: self.epoch });
        }
        if seats.len() != self.shape.nodes() {
            return Err(PlacementRefusal::NotWhole { seats: seats.len(), nodes: self.shape.nodes() });
        }
        self.epoch += 1;
        self.worker = seats.first().map(|new| new.seat.worker_id);
        self.phase = None;
        self.scheduled_at = Some(ledger.now);
        self.not_before = None;
        self.went_for = None;
        self.spec = None;
        let spec = with_memory(spec, self.memory_bytes);
        let mut data = json!({"worker": self.worker, "attempt": self.attempt, "epoch": self.epoch});
        if spec.distributed.is_some() {
            let told = |new: &NewTask| json!({"task_id": new.task_id, "worker": new.seat.worker_id, "gpus": new.seat.gpus});
            data["tasks"] = seats.iter().map(told).collect();
        } else if let [NewTask { seat, .. }] = seats.as_slice()
            && !seat.gpus.is_empty()
        {
            data["gpus"] = json!(seat.gpus);
        }
        let first = seats.first().map(|new| new.task_id).filter(|_| spec.distributed.is_none());
        let gangs = gang_places(&spec, &seats);
        let tasks = seats.into_iter().zip(gangs).map(|(NewTask { task_id, seat, .. }, gang)| {
            let grant = Grant { amount: self.shape.amount(), gpus: seat.gpus };
            let (worker, spec, weight) = (seat.worker_id, spec.clone(), seat.weight);
            LiveTask {
                placed: Placed { task_id, worker, spec, grant, weight, gang },
                stands: Stands::Assigned,
            }
        });
        let tasks: Vec<LiveTask> = tasks.collect();
        for LiveTask { placed, .. } in &tasks {
            ledger.change(Change::TaskInserted(self.record(placed, ledger.now)));
        }
        if let Some(member) = &self.member {
            let named = child_artifacts(&spec, member.layout.place(member.place).item.as_ref());
            if !named.is_empty() {
                ledger.change(Change::ArtifactsNamed(self.id, named));
            }
        }
        self.stage = Stage::Placed(tasks);
        self.event(ledger, first, EventType::JobScheduled, data);
        self.moved(ledger);
        for placed in self.placed() {
            ledger.tell(Notice::Watch(placed.worker, placed.task_id, self.epoch));
            ledger.tell(Notice::Offer(placed.worker, Box::new(self.assignment(placed))));
        }
        Ok(())
    }

    fn record(&self, placed: &Placed, assigned_at: Timestamp) -> TaskRecord {
        TaskRecord {
            id: placed.task_id,
            job_id: self.id,
            attempt: self.attempt,
            epoch: self.epoch,
            worker: placed.worker,
            assigned_at,
            memory_bytes: self.memory_bytes,
            gpus: placed.grant.gpus.clone(),
            weight: placed.weight,
            gang: placed.gang.clone(),
        }
    }

    pub(super) fn assignment(&self, placed: &Placed) -> Assignment {
        Assignment {
            task_id: placed.task_id,
            job_id: self.id,
            epoch: self.epoch,
            attempt: self.attempt,
            spec: as_run(placed),
            gpus: placed.grant.gpus.iter().map(|uuid| uuid.to_string()).collect(),
            array: self.member.as_ref().map(|member| member.layout.place(member.place)),
            gang: placed.gang.clone(),
            checkpoint: self.checkpoint,
        }
    }
}

/// A declared output of a gang may come from any of its tasks, so none of them can say that it is missing.
pub(super) fn as_run(placed: &Placed) -> SharedSpec {
    if placed.gang.is_none() || placed.spec.outputs.iter().all(|output| output.optional) {
        return placed.spec.clone();
    }
    let mut spec = (*placed.spec).clone();
    for output in &mut spec.outputs {
        output.optional = true;
    }
    SharedSpec::new(spec)
}

/// Which task of a gang each seat is; none for a job that is none.
fn gang_places(spec: &JobSpec, seats: &[NewTask]) -> Vec<Option<Arc<GangPlace>>> {
    let peers: Vec<Peer> = seats.iter().map(|new| new.peer.clone()).collect();
    let place = |rank| GangPlace { rank, peers: peers.clone() };
    (0..).zip(seats).map(|(rank, _)| spec.distributed.as_ref().map(|_| Arc::new(place(rank)))).collect()
}
