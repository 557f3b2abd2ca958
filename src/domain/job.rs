//! The life of one job, from acceptance to its end: every step that the contract allows (CONTRACT, Words and
//! states), as a pure function that writes into a [`Ledger`] what to persist and whom to tell. Refusals change
//! nothing.

mod finish;
mod gang;
mod loss;
mod place;
mod report;
mod stop;
mod tasks;
mod waits;
mod yielded;

use std::sync::Arc;

use serde_json::json;

use super::array::Member;
use super::change::{Change, JobRecord, JobStanding};
use super::dependency::Wait;
use super::ledger::{Alarm, Ledger, Notice, SharedSpec};
use super::placement::{Again, Holding, Place, Shape};
use crate::contract::artifact::Digest;
use crate::contract::end::{End, EndReason};
use crate::contract::event::EventType;
use crate::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use crate::contract::job::JobState;
use crate::contract::protocol::Finish;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::contract::worker::Phase;

pub use finish::late_results;
pub use place::{NewTask, PlacementRefusal, with_memory};
pub use report::{Judged, ReportRefusal};
pub use tasks::{LiveTask, NotStarted, Outcome, Over, Placed, RestoredTask, Run, Stands, Stop};

/// Added to `timeout_s` in the server's own backstop, so that slow preparation never trips it (CONTRACT,
/// Leases and loss).
pub const PREPARATION_ALLOWANCE: Seconds = Seconds::new(3600);
/// Pause before a job is offered again after a worker declined it or never started it.
pub const DECLINE_PAUSE: Seconds = Seconds::new(1);

/// A job that has not ended, or whose end is not yet durable.
#[derive(Debug, Clone)]
pub struct LiveJob {
    /// Its id.
    pub id: JobId,
    /// Higher goes first.
    pub priority: i32,
    /// When it was accepted.
    pub submitted_at: Timestamp,
    /// When its queue timeout ends.
    pub queue_deadline: Option<Timestamp>,
    /// What it asks of a machine.
    pub shape: Arc<Shape>,
    /// Whose share it counts towards.
    pub project: Arc<str>,
    /// Its spec while it is worth keeping in memory; a queued job's may have been left in the store.
    pub spec: Option<SharedSpec>,
    /// A worker to keep away from if another would do.
    pub avoid: Option<WorkerId>,
    /// For whom its newest task goes, or went; until it is placed again.
    went_for: Option<JobId>,
    /// The array it is a child of.
    pub member: Option<Box<Member>>,
    attempt: u32,
    preemptions: u32,
    epoch: Epoch,
    event_seq: u64,
    worker: Option<WorkerId>,
    phase: Option<Phase>,
    scheduled_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    not_before: Option<Timestamp>,
    /// When somebody asked it to stop while it ran: no attempt follows, whatever ends this one.
    cancel_requested_at: Option<Timestamp>,
    /// What this attempt asks for, once it has grown above the spec's request.
    memory_bytes: Option<u64>,
    /// What its next attempt begins with.
    checkpoint: Option<Digest>,
    /// Number of the newest value that its generator yielded.
    yielded: u64,
    /// Jobs that have to be over before this one is placed.
    waits: Vec<Wait>,
    stage: Stage,
}

/// Where a live job stands, with what belongs to it there.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Waits for a place.
    Queued,
    /// Placed: its tasks, by rank; at least one, and not all of them over.
    Placed(Vec<LiveTask>),
    /// Over.
    Ended(Box<Ended>),
}

/// How a job ended, and by which tasks.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The end.
    pub end: End,
    /// When.
    pub ended_at: Timestamp,
    /// The tasks that settled it, with what each reported.
    pub tasks: Vec<(TaskId, Box<Finish>)>,
}

/// What the store kept of a live job.
#[derive(Debug)]
pub struct Restored {
    /// Its id.
    pub id: JobId,
    /// Higher goes first.
    pub priority: i32,
    /// When it was accepted.
    pub submitted_at: Timestamp,
    /// When its queue timeout ends.
    pub queue_deadline: Option<Timestamp>,
    /// What it asks of a machine.
    pub shape: Arc<Shape>,
    /// Whose share it counts towards.
    pub project: Arc<str>,
    /// Jobs that have to be over before it is placed.
    pub waits: Vec<Wait>,
    /// The rest. Its `memory_bytes` is in `shape` already.
    pub standing: JobStanding,
    /// The tasks of its newest placement by rank, if one of them has not ended.
    pub tasks: Vec<RestoredTask>,
}

impl LiveJob {
    /// Accepts a job: it is queued from now on.
    pub fn accept(ledger: &mut Ledger, record: Box<JobRecord>, spec: SharedSpec, shape: Arc<Shape>) -> Self {
        Self::accept_after(ledger, record, spec, shape, Vec::new())
    }

    /// Accepts a job that waits for others.
    pub fn accept_after(
        ledger: &mut Ledger,
        record: Box<JobRecord>,
        spec: SharedSpec,
        shape: Arc<Shape>,
        waits: Vec<Wait>,
    ) -> Self {
        let mut job = Self { spec: Some(spec), waits, ..Self::template(&record, shape) };
        ledger.change(Change::JobInserted(record, job.standing()));
        job.event_seq = 0;
        if !job.waits.is_empty() {
            ledger.change(Change::JobWaits(job.id, job.waits.clone()));
        }
        job.event(ledger, None, EventType::JobQueued, json!({"cause": "submitted"}));
        job.enqueue(ledger);
        job
    }

    /// What the children of an array with this record have in common.
    pub fn template(record: &JobRecord, shape: Arc<Shape>) -> Self {
        Self {
            id: record.id,
            priority: record.priority,
            submitted_at: record.submitted_at,
            queue_deadline: record.queue_deadline,
            shape,
            project: record.project.as_str().into(),
            spec: None,
            avoid: None,
            went_for: None,
            member: None,
            attempt: 1,
            preemptions: 0,
            epoch: 0,
            event_seq: 1,
            worker: None,
            phase: None,
            scheduled_at: None,
            started_at: None,
            not_before: None,
            cancel_requested_at: None,
            memory_bytes: None,
            checkpoint: None,
            yielded: 0,
            waits: Vec::new(),
            stage: Stage::Queued,
        }
    }

    /// Rebuilds a live job from the store. Tells nothing: see [`LiveJob::rederive`].
    pub fn restore(restored: Restored) -> Self {
        let Restored { id, priority, submitted_at, queue_deadline, shape, project, waits, standing, tasks } =
            restored;
        let phase = standing.phase;
        let tasks: Vec<LiveTask> = tasks.into_iter().map(|task| LiveTask::restore(task, phase)).collect();
        let stage = if tasks.is_empty() { Stage::Queued } else { Stage::Placed(tasks) };
        Self {
            id,
            priority,
            submitted_at,
            queue_deadline,
            shape,
            project,
            spec: None,
            avoid: standing.avoid,
            went_for: standing.went_for,
            member: None,
            attempt: standing.attempt,
            preemptions: standing.preemptions,
            epoch: standing.epoch,
            event_seq: standing.event_seq,
            worker: standing.worker,
            phase: standing.phase,
            scheduled_at: standing.scheduled_at,
            started_at: standing.started_at,
            not_before: standing.not_before,
            cancel_requested_at: standing.cancel_requested_at,
            memory_bytes: standing.memory_bytes,
            checkpoint: standing.checkpoint,
            yielded: standing.yielded,
            waits,
            stage,
        }
    }

    /// After a restart: everything that followed from the job's state and was only in memory, told again.
    pub fn rederive(&self, ledger: &mut Ledger) {
        if matches!(self.stage, Stage::Queued) {
            self.enqueue(ledger);
        }
        for task in self.tasks() {
            self.rederive_task(ledger, task);
        }
    }

    /// The same of its task on this worker, whose session begins anew.
    pub fn rederive_on(&self, ledger: &mut Ledger, worker: WorkerId) {
        for task in self.tasks().iter().filter(|task| task.placed.worker == worker) {
            self.rederive_task(ledger, task);
        }
    }

    fn rederive_task(&self, ledger: &mut Ledger, task: &LiveTask) {
        let placed = &task.placed;
        match &task.stands {
            Stands::Assigned => {
                ledger.tell(Notice::Watch(placed.worker, placed.task_id, self.epoch));
                ledger.tell(Notice::Offer(placed.worker, Box::new(self.assignment(placed))));
                self.arm_queue_timeout(ledger);
            }
            Stands::Running(run) => {
                ledger.tell(Notice::Watch(placed.worker, placed.task_id, self.epoch));
                let (worker, task_id) = (placed.worker, placed.task_id);
                let suspended = run.unreachable_since.is_some();
                ledger.tell(Notice::Started { worker, task_id, suspended });
                self.arm_run_limits(ledger, placed, run);
                if let Some(Stop { cause, now }) = run.stop {
                    ledger.tell(Notice::Stop { worker, task_id, cause, now });
                }
            }
            Stands::Over(_) => {}
        }
    }

    /// Where it stands.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Counts placements; 0 before the first.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The try it is at, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Number of its newest event.
    pub fn event_seq(&self) -> u64 {
        self.event_seq
    }

    /// Not to be placed before this time.
    pub fn not_before(&self) -> Option<Timestamp> {
        self.not_before
    }

    /// The state on the wire.
    pub fn state(&self) -> JobState {
        match &self.stage {
            Stage::Queued => JobState::Queued,
            Stage::Placed(tasks) if tasks.iter().any(LiveTask::started) => JobState::Running,
            Stage::Placed(_) => JobState::Scheduled,
            Stage::Ended(ended) => ended.end.reason.job_state(),
        }
    }

    /// The tasks of the newest placement by rank, also those that are over; none when it has none that lives.
    pub fn tasks(&self) -> &[LiveTask] {
        if let Stage::Placed(tasks) = &self.stage { tasks } else { &[] }
    }

    /// Those of them that live.
    pub fn placed(&self) -> impl Iterator<Item = &Placed> {
        self.tasks().iter().filter_map(LiveTask::alive)
    }

    /// The one of them with this id.
    pub fn placed_as(&self, task_id: TaskId) -> Option<&Placed> {
        self.placed().find(|placed| placed.task_id == task_id)
    }

    /// The newest placement by its name among all placements.
    pub fn place_key(&self) -> Place {
        Place { job_id: self.id, epoch: self.epoch }
    }

    /// What the newest placement holds on its worker.
    pub fn holding(&self, placed: &Placed) -> Holding {
        Holding {
            grant: placed.grant.clone(),
            project: self.project.clone(),
            priority: self.priority,
            weight: placed.weight,
            ends_by: None,
            again: Some(Again { shape: self.shape.clone(), submitted_at: self.submitted_at }),
        }
    }

    /// What is left of its `timeout_s` if it runs, counted from its start; none when it has no limit.
    pub fn time_left(&self, now: Timestamp) -> Option<Seconds> {
        let left =
            |task: &LiveTask| Some(task.run()?.started_at.plus(task.placed.spec.timeout_s?).since(now));
        self.tasks().iter().filter_map(left).max()
    }

    /// The row as it stands.
    pub fn standing(&self) -> JobStanding {
        let mut standing = JobStanding {
            state: self.state(),
            attempt: self.attempt,
            preemptions: self.preemptions,
            epoch: self.epoch,
            event_seq: self.event_seq,
            worker: self.worker,
            phase: self.phase,
            scheduled_at: self.scheduled_at,
            started_at: self.started_at,
            ended_at: None,
            unreachable_since: self.tasks().iter().filter_map(|task| task.run()?.unreachable_since).min(),
            cancel_requested_at: self.cancel_requested_at,
            not_before: self.not_before,
            avoid: self.avoid,
            went_for: self.went_for,
            memory_bytes: self.memory_bytes,
            checkpoint: self.checkpoint,
            yielded: self.yielded,
            end: None,
        };
        if let Stage::Ended(ended) = &self.stage {
            standing.ended_at = Some(ended.ended_at);
            standing.end = Some(Box::new(ended.end.clone()));
        }
        standing
    }

    fn event(
        &mut self,
        ledger: &mut Ledger,
        task_id: Option<TaskId>,
        kind: EventType,
        data: serde_json::Value,
    ) {
        self.event_seq += 1;
        ledger.event(self.id, self.event_seq, task_id, kind, data);
    }

    fn moved(&self, ledger: &mut Ledger) {
        ledger.change(Change::JobMoved(self.id, self.standing()));
    }

    fn enqueue(&self, ledger: &mut Ledger) {
        if self.held() {
            return;
        }
        self.arm_queue_timeout(ledger);
        if !self.waits.is_empty() {
            return;
        }
        match self.not_before {
            Some(time) if time > ledger.now => ledger.tell(Notice::Wake(time, Alarm::BackoffOver(self.id))),
            _ => ledger.tell(Notice::Queued(self.id)),
        }
    }

    fn arm_queue_timeout(&self, ledger: &mut Ledger) {
        if let (Some(deadline), None) = (self.queue_deadline, self.started_at) {
            ledger.tell(Notice::Wake(deadline, Alarm::QueueTimeout(self.id)));
        }
    }

    fn arm_run_limits(&self, ledger: &mut Ledger, placed: &Placed, run: &Run) {
        if let Some(timeout) = placed.spec.timeout_s {
            // Of a task that a restarted server finds running it begins anew: the shim keeps the limit itself.
            let backstop = ledger.now.plus(PREPARATION_ALLOWANCE).plus(timeout);
            ledger.tell(Notice::Wake(backstop, Alarm::RunTimeout(self.id, self.epoch)));
        }
        if let Some(since) = run.unreachable_since {
            let limit = since.plus(placed.spec.unreachable_timeout_s);
            ledger.tell(Notice::Wake(limit, Alarm::UnreachableTimeout(self.id, self.epoch)));
        }
    }

    /// Puts the job back into the queue, not before `pause` has passed.
    fn requeue(&mut self, ledger: &mut Ledger, cause: &'static str, pause: Seconds) {
        self.stage = Stage::Queued;
        self.not_before = (pause > Seconds::default()).then(|| ledger.now.plus(pause));
        let data = json!({"cause": cause, "attempt": self.attempt});
        self.event(ledger, None, EventType::JobQueued, data);
        self.moved(ledger);
        self.enqueue(ledger);
    }

    /// Queues the next attempt after an end for this reason, and says what is different about it.
    fn requeue_after(&mut self, ledger: &mut Ledger, reason: EndReason, pause: Seconds) {
        self.stage = Stage::Queued;
        self.not_before = (pause > Seconds::default()).then(|| ledger.now.plus(pause));
        let mut data = json!({"cause": "retry", "attempt": self.attempt, "after": reason});
        if let Some(worker) = self.avoid {
            data["avoid"] = json!(worker);
        }
        if let Some(memory_bytes) = self.memory_bytes {
            data["memory_bytes"] = json!(memory_bytes);
        }
        if let Some(time) = self.not_before {
            data["not_before"] = json!(time);
        }
        self.event(ledger, None, EventType::JobQueued, data);
        self.moved(ledger);
        self.enqueue(ledger);
    }

    /// From now on it asks for this much memory.
    fn ask_for(&mut self, memory_bytes: u64) {
        self.memory_bytes = Some(memory_bytes);
        self.shape = Arc::new(self.shape.with_memory(memory_bytes));
    }
}
