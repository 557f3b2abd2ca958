//! A placement: proposed by the scheduler, judged here.

use serde_json::json;

use super::{LiveJob, Placed, Stage};
use crate::contract::event::EventType;
use crate::contract::ids::{Epoch, TaskId};
use crate::contract::protocol::Assignment;
use crate::domain::change::{Change, TaskRecord};
use crate::domain::ledger::{Ledger, Notice, SharedSpec};
use crate::domain::placement::{Grant, Seated};

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

impl LiveJob {
    /// Gives the job a task on this seat.
    pub fn place(
        &mut self,
        ledger: &mut Ledger,
        proposed_on: Epoch,
        seat: &Seated,
        task_id: TaskId,
        spec: SharedSpec,
    ) -> Result<(), PlacementRefusal> {
        if !matches!(self.stage, Stage::Queued) || !self.waits.is_empty() || self.held() {
            return Err(PlacementRefusal::NotQueued);
        }
        if proposed_on != self.epoch {
            return Err(PlacementRefusal::StaleEpoch { proposed: proposed_on, actual: self.epoch });
        }
        let worker = seat.worker_id;
        self.epoch += 1;
        self.worker = Some(worker);
        self.phase = None;
        self.scheduled_at = Some(ledger.now);
        self.not_before = None;
        self.spec = None;
        let spec = with_memory(spec, self.memory_bytes);
        let grant = Grant { amount: self.shape.amount(), gpus: seat.gpus.clone() };
        let placed = Placed { task_id, worker, spec, grant, weight: seat.weight };
        let assignment = self.assignment(&placed);
        self.stage = Stage::Scheduled(Box::new(placed));
        ledger.change(Change::TaskInserted(TaskRecord {
            id: task_id,
            job_id: self.id,
            attempt: self.attempt,
            epoch: self.epoch,
            worker,
            assigned_at: ledger.now,
            memory_bytes: self.memory_bytes,
            gpus: seat.gpus.clone(),
            weight: seat.weight,
        }));
        if let Some(member) = &self.member {
            ledger.change(Change::ArtifactsShared { parent: member.parent, child: self.id });
        }
        let mut data = json!({"worker": worker, "attempt": self.attempt, "epoch": self.epoch});
        if !seat.gpus.is_empty() {
            data["gpus"] = json!(seat.gpus);
        }
        self.event(ledger, Some(task_id), EventType::JobScheduled, data);
        self.moved(ledger);
        ledger.tell(Notice::Watch(worker, task_id, self.epoch));
        ledger.tell(Notice::Offer(worker, Box::new(assignment)));
        Ok(())
    }

    pub(super) fn assignment(&self, placed: &Placed) -> Assignment {
        Assignment {
            task_id: placed.task_id,
            job_id: self.id,
            epoch: self.epoch,
            attempt: self.attempt,
            spec: placed.spec.clone(),
            gpus: placed.grant.gpus.iter().map(|uuid| uuid.to_string()).collect(),
            array: self.member.as_ref().map(|member| member.layout.place(member.place)),
        }
    }
}
