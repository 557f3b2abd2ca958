//! The life of one job, from acceptance to its end: every step that the contract allows (CONTRACT, Words and
//! states), as a pure function that writes into a [`Ledger`] what to persist and whom to tell. Refusals change
//! nothing.

mod finish;
mod loss;
mod place;
mod report;
mod stop;
mod waits;

use std::sync::Arc;

use serde_json::json;

use super::array::Member;
use super::change::{Change, JobRecord, JobStanding, StopCause, TaskStanding};
use super::dependency::Wait;
use super::ledger::{Alarm, Ledger, Notice, SharedSpec};
use super::placement::{Grant, Holding, Place, Shape};
use crate::contract::artifact::Digest;
use crate::contract::end::{End, EndReason};
use crate::contract::event::EventType;
use crate::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use crate::contract::job::JobState;
use crate::contract::protocol::Finish;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::contract::worker::{Phase, TaskState};

pub use finish::late_results;
pub use place::{PlacementRefusal, with_memory};
pub use report::{Judged, ReportRefusal};

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
    /// What this attempt asks for, once it has grown above the spec's request.
    memory_bytes: Option<u64>,
    /// Jobs that have to be over before this one is placed.
    waits: Vec<Wait>,
    stage: Stage,
}

/// Where a live job stands, with what belongs to it there.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Waits for a place.
    Queued,
    /// Placed; its task has not started.
    Scheduled(Box<Placed>),
    /// Its task started.
    Running(Box<Placed>, Run),
    /// Over.
    Ended(Box<Ended>),
}

/// The newest placement.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The task.
    pub task_id: TaskId,
    /// Where.
    pub worker: WorkerId,
    /// What runs.
    pub spec: SharedSpec,
    /// What it was granted.
    pub grant: Grant,
    /// How much of all machines that is, in millionths.
    pub weight: u64,
}

/// A started task.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// When this task started.
    pub started_at: Timestamp,
    /// Why it has to stop, once it has to.
    pub stop: Option<Stop>,
    /// When somebody asked the job to stop, whatever this task is stopped for: no attempt follows then.
    pub cancel_requested_at: Option<Timestamp>,
    /// Since when its worker has not answered, under `wait`.
    pub unreachable_since: Option<Timestamp>,
}

/// A stop that was asked for. The first cause wins; only its hurry may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// Why.
    pub cause: StopCause,
    /// Without grace.
    pub now: bool,
}

/// How a job ended, and by which task.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The end.
    pub end: End,
    /// When.
    pub ended_at: Timestamp,
    /// The task that settled it, with what it reported.
    pub task: Option<(TaskId, Box<Finish>)>,
    /// When somebody had asked it to stop.
    pub cancel_requested_at: Option<Timestamp>,
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
    /// Its task that has not ended, with its spec.
    pub task: Option<(Placed, TaskStanding)>,
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
            memory_bytes: None,
            waits: Vec::new(),
            stage: Stage::Queued,
        }
    }

    /// Rebuilds a live job from the store. Tells nothing: see [`LiveJob::rederive`].
    pub fn restore(restored: Restored) -> Self {
        let Restored { id, priority, submitted_at, queue_deadline, shape, project, waits, standing, task } =
            restored;
        let stage = match task {
            None => Stage::Queued,
            Some((placed, task)) => match task.started_at {
                None => Stage::Scheduled(Box::new(placed)),
                Some(started_at) => {
                    let stop = task.stop_cause.map(|cause| Stop { cause, now: task.stop_now });
                    let run = Run {
                        started_at,
                        stop,
                        cancel_requested_at: standing.cancel_requested_at,
                        unreachable_since: standing.unreachable_since,
                    };
                    Stage::Running(Box::new(placed), run)
                }
            },
        };
        Self {
            id,
            priority,
            submitted_at,
            queue_deadline,
            shape,
            project,
            spec: None,
            avoid: standing.avoid,
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
            memory_bytes: standing.memory_bytes,
            waits,
            stage,
        }
    }

    /// After a restart: everything that followed from the job's state and was only in memory, told again.
    pub fn rederive(&self, ledger: &mut Ledger) {
        match &self.stage {
            Stage::Queued => self.enqueue(ledger),
            Stage::Scheduled(placed) => {
                ledger.tell(Notice::Watch(placed.worker, placed.task_id, self.epoch));
                ledger.tell(Notice::Offer(placed.worker, Box::new(self.assignment(placed))));
                self.arm_queue_timeout(ledger);
            }
            Stage::Running(placed, run) => {
                ledger.tell(Notice::Watch(placed.worker, placed.task_id, self.epoch));
                ledger.tell(Notice::Started(placed.worker, placed.task_id));
                self.arm_run_limits(ledger, placed, run);
                if let Some(stop) = run.stop {
                    ledger.tell(Notice::Stop {
                        worker: placed.worker,
                        task_id: placed.task_id,
                        cause: stop.cause,
                        now: stop.now,
                    });
                }
            }
            Stage::Ended(_) => {}
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
            Stage::Scheduled(_) => JobState::Scheduled,
            Stage::Running(..) => JobState::Running,
            Stage::Ended(ended) => ended.end.reason.job_state(),
        }
    }

    /// The newest placement, while it lives.
    pub fn placed(&self) -> Option<&Placed> {
        match &self.stage {
            Stage::Scheduled(placed) | Stage::Running(placed, _) => Some(placed),
            Stage::Queued | Stage::Ended(_) => None,
        }
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
        }
    }

    /// What is left of its `timeout_s` if it runs, counted from its start; none when it has no limit.
    pub fn time_left(&self, now: Timestamp) -> Option<Seconds> {
        let Stage::Running(placed, run) = &self.stage else { return None };
        placed.spec.timeout_s.map(|limit| run.started_at.plus(limit).since(now))
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
            unreachable_since: None,
            cancel_requested_at: None,
            not_before: self.not_before,
            avoid: self.avoid,
            memory_bytes: self.memory_bytes,
            end: None,
        };
        match &self.stage {
            Stage::Queued | Stage::Scheduled(_) => {}
            Stage::Running(_, run) => {
                standing.unreachable_since = run.unreachable_since;
                standing.cancel_requested_at = run.cancel_requested_at;
            }
            Stage::Ended(ended) => {
                standing.ended_at = Some(ended.ended_at);
                standing.cancel_requested_at = ended.cancel_requested_at;
                standing.end = Some(Box::new(ended.end.clone()));
            }
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
            let backstop = run.started_at.plus(PREPARATION_ALLOWANCE).plus(timeout);
            ledger.tell(Notice::Wake(backstop, Alarm::RunTimeout(self.id, self.epoch)));
        }
        if let Some(since) = run.unreachable_since {
            let limit = since.plus(placed.spec.unreachable_timeout_s);
            ledger.tell(Notice::Wake(limit, Alarm::UnreachableTimeout(self.id, self.epoch)));
        }
    }

    /// Ends the task row of the newest placement.
    fn task_moved(&self, ledger: &mut Ledger, placed: &Placed, run: Option<&Run>, end: TaskEnd<'_>) {
        ledger.change(Change::TaskMoved(
            placed.task_id,
            TaskStanding {
                state: end.state,
                started_at: run.map(|run| run.started_at),
                ended_at: end.state.ended().then_some(ledger.now),
                stop_cause: run.and_then(|run| run.stop).map(|stop| stop.cause),
                stop_now: run.and_then(|run| run.stop).is_some_and(|stop| stop.now),
                end: end.end.map(|end| Box::new(end.clone())),
                log_artifact: end.log_artifact,
                stale: end.stale,
            },
        ));
    }

    /// Ends the job. `task` is the task that settled it, with what it reported.
    fn end(
        &mut self,
        ledger: &mut Ledger,
        end: End,
        task: Option<(TaskId, Box<Finish>)>,
        cancelled_at: Option<Timestamp>,
    ) {
        self.wait_no_more(ledger);
        let data = json!({"state": end.reason.job_state(), "end": &end});
        let task_id = task.as_ref().map(|(task_id, _)| *task_id);
        self.stage = Stage::Ended(Box::new(Ended {
            end,
            ended_at: ledger.now,
            task,
            cancel_requested_at: cancelled_at,
        }));
        self.event(ledger, task_id, EventType::JobEnded, data);
        self.moved(ledger);
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

/// How a task row is written.
struct TaskEnd<'a> {
    state: TaskState,
    end: Option<&'a End>,
    log_artifact: Option<Digest>,
    stale: bool,
}

impl<'a> TaskEnd<'a> {
    fn running() -> Self {
        Self { state: TaskState::Running, end: None, log_artifact: None, stale: false }
    }

    fn ended(end: &'a End) -> Self {
        Self { state: end.reason.task_state(), end: Some(end), log_artifact: None, stale: false }
    }
}
