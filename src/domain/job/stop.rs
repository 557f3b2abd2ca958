//! Stopping: cancel, limits, drain and evict, and the withdrawal of a placement.

use serde_json::json;

use super::tasks::TaskEnd;
use super::{LiveJob, Stage, Stands, Stop};
use crate::contract::end::{End, EndReason};
use crate::contract::event::EventType;
use crate::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use crate::contract::job::JobState;
use crate::domain::change::StopCause;
use crate::domain::dependency;
use crate::domain::ledger::{Ledger, Notice};

impl LiveJob {
    /// Cancels: at once if the task has not started, else by asking the worker. Says whether anything changed.
    pub fn cancel(&mut self, ledger: &mut Ledger, now: bool) -> bool {
        match self.state() {
            JobState::Running => self.ask_to_stop(ledger, StopCause::Cancel, now, None),
            state if state.ended() => false,
            _ => {
                self.end_unstarted(ledger, EndReason::Cancelled, None);
                true
            }
        }
    }

    /// The daemon leaves and takes what runs with it. What has not started is left queued.
    pub fn shut_down(&mut self, ledger: &mut Ledger) {
        if self.state() == JobState::Running {
            self.ask_to_stop(ledger, StopCause::Shutdown, false, None);
        } else {
            self.withdraw(ledger);
        }
    }

    /// `queue_timeout_s` came due.
    pub fn queue_timeout(&mut self, ledger: &mut Ledger) {
        self.queue_timed_out(ledger, None);
    }

    /// The same of a job of which is known what it waited for.
    pub fn queue_timed_out(&mut self, ledger: &mut Ledger, waited_for: Option<&str>) {
        let unstarted = !self.state().ended() && self.started_at.is_none();
        if unstarted && self.queue_deadline.is_some_and(|deadline| deadline <= ledger.now) {
            let waited = ledger.now.since(self.submitted_at).millis() / 1000;
            let mut detail = format!("not started within queue_timeout_s; waited {waited} s");
            let own = dependency::queue_reason(&self.waits);
            if let Some(reason) = waited_for.or(own.as_deref()) {
                detail = format!("{detail}: {reason}");
            }
            self.end_unstarted(ledger, EndReason::QueueTimedOut, Some(detail));
        }
    }

    /// The pause before the next attempt is over.
    pub fn backoff_over(&mut self, ledger: &mut Ledger) {
        if matches!(self.stage, Stage::Queued) && self.not_before.is_some_and(|time| time <= ledger.now) {
            // From here on something else keeps it waiting, and that is shown.
            self.not_before = None;
            self.moved(ledger);
            ledger.tell(Notice::Queued(self.id));
        }
    }

    /// The server's own backstop for `timeout_s`: the shim should have stopped the task long ago.
    pub fn run_timeout(&mut self, ledger: &mut Ledger, epoch: Epoch) {
        if epoch == self.epoch {
            self.ask_to_stop(ledger, StopCause::Timeout, false, None);
        }
    }

    /// Takes a placement back that has not started: the job is queued again and no attempt is used.
    pub fn withdraw(&mut self, ledger: &mut Ledger) {
        if self.state() == JobState::Scheduled {
            self.take_back(ledger, 0);
        }
    }

    /// Takes back what was placed on this worker and has not started.
    pub fn withdraw_from(&mut self, ledger: &mut Ledger, worker: WorkerId) {
        if let Some(rank) = self.rank_on(worker).filter(|rank| self.assigned().contains(rank)) {
            self.take_back(ledger, rank);
        }
    }

    /// The deadline of the drain of this worker passed: what still runs there is stopped with its grace. Says whether
    /// anything changed.
    pub fn drain(&mut self, ledger: &mut Ledger, worker: WorkerId) -> bool {
        match self.rank_on(worker) {
            Some(rank) => self.ask_to_stop(ledger, StopCause::Drain, false, Some(rank)),
            None => false,
        }
    }

    /// An operator wants this task gone. One that has not started goes elsewhere if it can; a started one is stopped
    /// with its grace. Says whether anything changed.
    pub fn evict(&mut self, ledger: &mut Ledger, task_id: TaskId) -> bool {
        let Some(rank) = self.rank_of(task_id) else { return false };
        match self.tasks().get(rank).map(|task| (&task.stands, task.placed.worker)) {
            Some((Stands::Assigned, worker)) => {
                self.avoid = Some(worker);
                self.take_back(ledger, rank);
                true
            }
            Some((Stands::Running(_), _)) => self.ask_to_stop(ledger, StopCause::Evict, false, Some(rank)),
            _ => false,
        }
    }

    /// A job of a higher priority takes the place of this placement. One that has not started goes back to the queue at
    /// once; a started one is stopped with its grace, and queued again when its tree is gone. Says whether anything
    /// changed.
    pub fn preempt(&mut self, ledger: &mut Ledger, epoch: Epoch, by: JobId) -> bool {
        match self.state() {
            _ if epoch != self.epoch => false,
            JobState::Scheduled => {
                self.went_for = Some(by);
                self.withdraw(ledger);
                true
            }
            JobState::Running => {
                let before = self.went_for.replace(by);
                let asked = self.ask_to_stop(ledger, StopCause::Preempt, false, None);
                for placed in self.placed().filter(|_| asked) {
                    let ends_by = ledger.now.plus(placed.spec.grace_s);
                    ledger.tell(Notice::Bounded(placed.worker, self.place_key(), ends_by));
                }
                if !asked {
                    self.went_for = before;
                }
                asked
            }
            _ => false,
        }
    }

    /// Stops what runs; what has not started is taken back. The cause is that of all tasks, or of the `only` one: then
    /// the others go because that one does. A cancel takes the other attempts away. Says whether anything changed.
    fn ask_to_stop(&mut self, ledger: &mut Ledger, cause: StopCause, now: bool, only: Option<usize>) -> bool {
        let running = self.running();
        let for_good = matches!(cause, StopCause::Cancel | StopCause::Shutdown);
        let cancelled = for_good && self.cancel_requested_at.is_none();
        if cancelled {
            self.cancel_requested_at = Some(ledger.now);
        }
        let mut changed = cancelled;
        for rank in self.assigned() {
            self.take_back_for_gang(ledger, rank);
            changed = true;
        }
        for rank in running {
            let cause = if only.is_none_or(|only| only == rank) { cause } else { StopCause::Gang };
            changed |= self.stop_task(ledger, rank, cause, now);
        }
        if changed && for_good {
            let alone = if let [only] = self.tasks() { Some(only.placed.task_id) } else { None };
            let hurry = self
                .tasks()
                .iter()
                .any(|task| task.run().is_some_and(|run| run.stop.is_some_and(|stop| stop.now)));
            let data = json!({"cause": cause.word(), "now": hurry});
            self.event(ledger, alone, EventType::JobCancelRequested, data);
        }
        if changed {
            self.moved(ledger);
        }
        self.settle_if_over(ledger);
        changed
    }

    /// The first cause of a stop stays; a later one can only take the grace away. Says whether anything changed.
    pub(super) fn stop_task(
        &mut self,
        ledger: &mut Ledger,
        rank: usize,
        cause: StopCause,
        now: bool,
    ) -> bool {
        let Stage::Placed(tasks) = &mut self.stage else { return false };
        let Some(task) = tasks.get_mut(rank) else { return false };
        let placed = task.placed.clone();
        let Some(run) = task.run_mut() else { return false };
        let before = run.stop;
        let stop = run.stop.get_or_insert(Stop { cause, now });
        stop.now |= now;
        let (stop, run) = (*stop, *run);
        if before == Some(stop) {
            return false;
        }
        self.task_moved(ledger, &placed, Some(&run), TaskEnd::running());
        if !matches!(cause, StopCause::Cancel | StopCause::Shutdown) {
            let data = json!({"cause": cause.word(), "now": stop.now});
            self.event(ledger, Some(placed.task_id), EventType::TaskStopRequested, data);
            self.moved(ledger);
        }
        let (worker, task_id) = (placed.worker, placed.task_id);
        ledger.tell(Notice::Stop { worker, task_id, cause: stop.cause, now: stop.now });
        true
    }

    /// It will never be started: so it ends, unless it has been.
    pub fn cannot_start(&mut self, ledger: &mut Ledger, end: End) {
        if matches!(self.state(), JobState::Queued | JobState::Scheduled) {
            self.end_unstarted_so(ledger, end);
        }
    }

    fn end_unstarted(&mut self, ledger: &mut Ledger, reason: EndReason, detail: Option<String>) {
        self.end_unstarted_so(ledger, End::of(reason, detail));
    }

    fn end_unstarted_so(&mut self, ledger: &mut Ledger, end: End) {
        let detail = end.detail.clone();
        if let Stage::Placed(tasks) = &mut self.stage {
            // A task that has not started can only be cancelled, whatever ended its job.
            let task_end = End::of(EndReason::Cancelled, detail);
            for task in std::mem::take(tasks) {
                self.task_moved(ledger, &task.placed, None, TaskEnd::ended(&task_end));
                self.release(ledger, &task.placed);
            }
        } else {
            ledger.tell(Notice::Unqueued(self.id));
        }
        self.end(ledger, end, Vec::new());
    }
}
