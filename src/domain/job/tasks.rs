//! The tasks of a job's newest placement: one, or one for each rank of a gang. What happens to one of them, until it is
//! over; what follows for the job when all are over.

use std::sync::Arc;

use serde_json::json;

use super::{Ended, LiveJob, Stage, gang};
use crate::contract::artifact::Digest;
use crate::contract::end::{End, EndReason};
use crate::contract::event::EventType;
use crate::contract::gang::GangPlace;
use crate::contract::ids::{TaskId, WorkerId};
use crate::contract::protocol::Finish;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::contract::worker::{Phase, TaskState};
use crate::domain::change::{Change, JobResults, StopCause, TaskStanding};
use crate::domain::ledger::{Ledger, Notice, SharedSpec};
use crate::domain::placement::Grant;
use crate::domain::retry::{NextAttempt, next_attempt};

/// A task and where it stands.
#[derive(Debug, Clone)]
pub struct LiveTask {
    /// What it is.
    pub placed: Placed,
    /// Where it stands.
    pub stands: Stands,
}

/// What does not change about a task.
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
    /// Which task of a gang it is.
    pub gang: Option<Arc<GangPlace>>,
}

/// Where a task stands.
#[derive(Debug, Clone)]
pub enum Stands {
    /// Its worker has not started it.
    Assigned,
    /// It started.
    Running(Run),
    /// It is over, and others of its gang are not.
    Over(Box<Over>),
}

/// A started task.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// When it started.
    pub started_at: Timestamp,
    /// The phase it has reached, as far as it was reported.
    pub phase: Option<Phase>,
    /// Why it has to stop, once it has to.
    pub stop: Option<Stop>,
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

/// A task that is over.
#[derive(Debug, Clone)]
pub struct Over {
    /// When.
    pub at: Timestamp,
    /// How.
    pub how: Outcome,
    /// Why it was told to stop, if it was.
    pub stop: Option<StopCause>,
    /// What it brought back.
    pub results: Arc<JobResults>,
    /// What it reported, to know a repeat by.
    pub reported: Option<Box<Finish>>,
}

/// How a task came to be over.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Its worker never started it.
    NotStarted(NotStarted),
    /// It started, and ended so.
    Ended(End),
}

/// Why a placement came to nothing. No attempt was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotStarted {
    /// The worker did not take it.
    Declined,
    /// The worker did not start it in time.
    Late,
    /// It was taken back.
    Withdrawn,
}

impl NotStarted {
    /// `data.cause` of the event that queues the job again.
    const fn word(self) -> &'static str {
        match self {
            NotStarted::Declined => "declined",
            NotStarted::Late => "not_started",
            NotStarted::Withdrawn => "withdrawn",
        }
    }

    const fn pause(self) -> Seconds {
        match self {
            NotStarted::Declined | NotStarted::Late => super::DECLINE_PAUSE,
            NotStarted::Withdrawn => Seconds::new(0),
        }
    }
}

impl LiveTask {
    /// What it is, while it lives.
    pub fn alive(&self) -> Option<&Placed> {
        (!matches!(self.stands, Stands::Over(_))).then_some(&self.placed)
    }

    /// What it is, and how it ended, when it is over.
    pub(super) fn over(&self) -> Option<(&Placed, &Over)> {
        if let Stands::Over(over) = &self.stands { Some((&self.placed, over)) } else { None }
    }

    /// How it runs, if it does.
    pub fn run(&self) -> Option<&Run> {
        if let Stands::Running(run) = &self.stands { Some(run) } else { None }
    }

    pub(super) fn run_mut(&mut self) -> Option<&mut Run> {
        if let Stands::Running(run) = &mut self.stands { Some(run) } else { None }
    }

    /// Whether its worker started it.
    pub(super) fn started(&self) -> bool {
        match &self.stands {
            Stands::Assigned => false,
            Stands::Running(_) => true,
            Stands::Over(over) => matches!(over.how, Outcome::Ended(_)),
        }
    }

    /// What it reported at its end.
    fn reported(self) -> Option<(TaskId, Box<Finish>)> {
        let Stands::Over(over) = self.stands else { return None };
        Some((self.placed.task_id, over.reported?))
    }

    /// As the store kept it.
    pub(super) fn restore(restored: RestoredTask, phase: Option<Phase>) -> Self {
        let RestoredTask { placed, standing } = restored;
        let stop = standing.stop_cause.map(|cause| Stop { cause, now: standing.stop_now });
        let stands = match (standing.ended_at, standing.started_at) {
            (None, None) => Stands::Assigned,
            (None, Some(started_at)) => {
                let unreachable_since = standing.unreachable_since;
                Stands::Running(Run { started_at, phase, stop, unreachable_since })
            }
            (Some(at), started_at) => {
                let how = match (standing.state, standing.end) {
                    (TaskState::Declined, _) => Outcome::NotStarted(NotStarted::Declined),
                    (TaskState::Lost, _) if started_at.is_none() => Outcome::NotStarted(NotStarted::Late),
                    (_, Some(end)) if started_at.is_some() => Outcome::Ended(*end),
                    _ => Outcome::NotStarted(NotStarted::Withdrawn),
                };
                let results = standing.results.unwrap_or_default();
                Stands::Over(Box::new(Over { at, how, stop: standing.stop_cause, results, reported: None }))
            }
        };
        Self { placed, stands }
    }
}

/// What the store kept of a task.
#[derive(Debug)]
pub struct RestoredTask {
    /// What it is.
    pub placed: Placed,
    /// Where it stands.
    pub standing: TaskStanding,
}

/// How a task row is written.
pub(super) struct TaskEnd<'a> {
    pub(super) state: TaskState,
    pub(super) end: Option<&'a End>,
    pub(super) log_artifact: Option<Digest>,
    pub(super) stale: bool,
    pub(super) results: Option<Arc<JobResults>>,
}

impl<'a> TaskEnd<'a> {
    pub(super) fn running() -> Self {
        Self { state: TaskState::Running, end: None, log_artifact: None, stale: false, results: None }
    }

    pub(super) fn ended(end: &'a End) -> Self {
        Self { state: end.reason.task_state(), end: Some(end), ..Self::running() }
    }
}

impl LiveJob {
    /// Writes the row of a task of the newest placement.
    pub(super) fn task_moved(
        &self,
        ledger: &mut Ledger,
        placed: &Placed,
        run: Option<&Run>,
        end: TaskEnd<'_>,
    ) {
        let stop = run.and_then(|run| run.stop);
        self.task_row(ledger, placed, run, stop, end);
    }

    fn task_row(
        &self,
        ledger: &mut Ledger,
        placed: &Placed,
        run: Option<&Run>,
        stop: Option<Stop>,
        end: TaskEnd<'_>,
    ) {
        let ended = end.state.ended();
        ledger.change(Change::TaskMoved(
            placed.task_id,
            TaskStanding {
                state: end.state,
                started_at: run.map(|run| run.started_at),
                ended_at: ended.then_some(ledger.now),
                unreachable_since: run.filter(|_| !ended).and_then(|run| run.unreachable_since),
                stop_cause: stop.map(|stop| stop.cause),
                stop_now: stop.is_some_and(|stop| stop.now),
                end: end.end.map(|end| Box::new(end.clone())),
                log_artifact: end.log_artifact,
                stale: end.stale,
                results: end.results,
            },
        ));
    }

    /// The place of a task among those of the newest placement.
    pub(super) fn rank_of(&self, task_id: TaskId) -> Option<usize> {
        self.tasks().iter().position(|task| task.placed.task_id == task_id)
    }

    /// The place of the task that lives on this worker.
    pub(super) fn rank_on(&self, worker: WorkerId) -> Option<usize> {
        self.tasks().iter().position(|task| task.alive().is_some_and(|placed| placed.worker == worker))
    }

    /// The places of the tasks that run.
    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.tasks().len()).filter(|rank| self.tasks()[*rank].run().is_some()).collect()
    }

    /// The places of the tasks that have not started.
    pub(super) fn assigned(&self) -> Vec<usize> {
        let assigned = |rank: &usize| matches!(self.tasks()[*rank].stands, Stands::Assigned);
        (0..self.tasks().len()).filter(assigned).collect()
    }

    /// A task that runs, by its rank.
    pub(super) fn runs(&self, rank: usize) -> Option<(Placed, Run)> {
        let task = self.tasks().get(rank)?;
        Some((task.placed.clone(), *task.run()?))
    }

    /// A task that has not started is over: its place is free, and its gang cannot go on without it.
    pub(super) fn not_started(
        &mut self,
        ledger: &mut Ledger,
        rank: usize,
        why: NotStarted,
        end: TaskEnd<'_>,
    ) {
        let Some(task) = self.tasks().get(rank) else { return };
        let placed = task.placed.clone();
        self.task_moved(ledger, &placed, None, end);
        match why {
            NotStarted::Withdrawn => {}
            NotStarted::Declined | NotStarted::Late => self.avoid = Some(placed.worker),
        }
        self.release(ledger, &placed);
        let how = Outcome::NotStarted(why);
        self.over(
            ledger,
            rank,
            Over { at: ledger.now, how, stop: None, results: Arc::default(), reported: None },
        );
    }

    /// Takes a task back that has not started.
    pub(super) fn take_back(&mut self, ledger: &mut Ledger, rank: usize) {
        let end = End::of(EndReason::Cancelled, "withdrawn before its start".to_owned());
        self.not_started(ledger, rank, NotStarted::Withdrawn, TaskEnd::ended(&end));
    }

    /// Takes back a task that has not started because of another of its gang.
    pub(super) fn take_back_for_gang(&mut self, ledger: &mut Ledger, rank: usize) {
        let Some(task) = self.tasks().get(rank) else { return };
        let placed = task.placed.clone();
        let end =
            End::of(EndReason::Cancelled, "another task of its gang ended before it started".to_owned());
        let stop = Stop { cause: StopCause::Gang, now: false };
        self.task_row(ledger, &placed, None, Some(stop), TaskEnd::ended(&end));
        self.release(ledger, &placed);
        let over = Over {
            at: ledger.now,
            how: Outcome::NotStarted(NotStarted::Withdrawn),
            stop: Some(StopCause::Gang),
            results: Arc::default(),
            reported: None,
        };
        self.set_over(rank, over);
    }

    fn set_over(&mut self, rank: usize, over: Over) {
        if let Stage::Placed(tasks) = &mut self.stage
            && let Some(task) = tasks.get_mut(rank)
        {
            task.stands = Stands::Over(Box::new(over));
        }
    }

    /// A task is over. Its gang ends with it, unless it ended well; when all are over, so is the placement.
    pub(super) fn over(&mut self, ledger: &mut Ledger, rank: usize, over: Over) {
        let well = over.ended_well();
        self.set_over(rank, over);
        if !well {
            self.break_up(ledger);
        }
        if self.tasks().iter().any(|task| task.alive().is_some()) {
            self.moved(ledger);
        }
        self.settle_if_over(ledger);
    }

    /// When all tasks of the placement are over, so is the placement.
    pub(super) fn settle_if_over(&mut self, ledger: &mut Ledger) {
        if self.tasks().iter().all(|task| task.alive().is_none()) {
            self.placement_over(ledger);
        }
    }

    /// All tasks of the placement are over: the job is queued again, or it ends.
    fn placement_over(&mut self, ledger: &mut Ledger) {
        let Stage::Placed(tasks) = &mut self.stage else { return };
        let tasks = std::mem::take(tasks);
        let results = gang::results(&tasks);
        let Some((placed, how)) = gang::outcome(&tasks, &results) else { return };
        if *results != JobResults::default() {
            ledger.change(Change::JobResults(self.id, results));
        }
        match how {
            Outcome::NotStarted(_) if self.cancel_requested_at.is_some() => {
                self.end(ledger, End::of(EndReason::Cancelled, None), Vec::new());
            }
            Outcome::NotStarted(why) => {
                self.spec = Some(placed.spec);
                self.requeue(ledger, why.word(), why.pause());
            }
            Outcome::Ended(end) => match self.next_attempt(&placed, &end) {
                Some(next) => self.try_again(ledger, &placed, end.reason, next),
                None => self.end(ledger, end, tasks.into_iter().filter_map(LiveTask::reported).collect()),
            },
        }
    }

    fn try_again(&mut self, ledger: &mut Ledger, placed: &Placed, after: EndReason, next: NextAttempt) {
        let retry = &placed.spec.retry;
        self.attempt += 1;
        let preempted = after == EndReason::Preempted;
        self.preemptions += u32::from(preempted);
        // Nothing was wrong with the worker of one that was preempted.
        self.avoid = (retry.avoid_worker && !preempted).then_some(placed.worker);
        self.spec = Some(placed.spec.clone());
        if let Some(memory_bytes) = next.memory_bytes {
            self.ask_for(memory_bytes);
        }
        let pause = if preempted { Seconds::default() } else { retry.backoff_s };
        self.requeue_after(ledger, after, pause);
    }

    /// One that was preempted is always followed by another, which does not count. A job that somebody cancelled has no
    /// other attempt, whatever ended this one.
    pub(super) fn next_attempt(&self, placed: &Placed, end: &End) -> Option<NextAttempt> {
        let asked = placed.spec.resources.memory_bytes;
        let next = match end.reason {
            EndReason::Preempted => Some(NextAttempt::default()),
            reason => next_attempt(&placed.spec.retry, self.attempt - self.preemptions, reason, asked),
        };
        next.filter(|_| self.cancel_requested_at.is_none())
    }

    /// Says how a task ended, where the job's own end does not say it.
    pub(super) fn tell_end(&mut self, ledger: &mut Ledger, placed: &Placed, end: &End) {
        if placed.gang.is_some() || self.next_attempt(placed, end).is_some() {
            self.event(ledger, Some(placed.task_id), EventType::TaskEnded, json!({"end": end}));
        }
    }

    /// The lease is over and the worker's resources are free.
    pub(super) fn release(&self, ledger: &mut Ledger, placed: &Placed) {
        ledger.tell(Notice::Settled(placed.worker, placed.task_id));
        ledger.tell(Notice::Freed(placed.worker, self.place_key()));
    }

    /// Ends the job. `tasks`: those that settled it, with what each reported.
    pub(super) fn end(&mut self, ledger: &mut Ledger, end: End, tasks: Vec<(TaskId, Box<Finish>)>) {
        self.wait_no_more(ledger);
        if end.reason == EndReason::Completed {
            self.replace_checkpoint(ledger, None);
        }
        let data = json!({"state": end.reason.job_state(), "end": &end});
        let task_id = if let [(only, _)] = tasks.as_slice() { Some(*only) } else { None };
        self.stage = Stage::Ended(Box::new(Ended { end, ended_at: ledger.now, tasks }));
        self.event(ledger, task_id, EventType::JobEnded, data);
        self.moved(ledger);
    }
}

impl Over {
    pub(super) fn ended_well(&self) -> bool {
        matches!(&self.how, Outcome::Ended(end) if end.reason == EndReason::Completed)
    }
}
