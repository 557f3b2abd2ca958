//! Stopping: cancel, limits, drain and evict, and the withdrawal of a placement.

use serde_json::json;

use super::{LiveJob, Stage, Stop, TaskEnd};
use crate::contract::end::{End, EndReason};
use crate::contract::event::EventType;
use crate::contract::ids::{Epoch, TaskId};
use crate::contract::quantity::Seconds;
use crate::domain::change::StopCause;
use crate::domain::dependency;
use crate::domain::ledger::{Ledger, Notice};

impl LiveJob {
    /// Cancels: at once if the task has not started, else by asking the worker. Says whether anything changed.
    pub fn cancel(&mut self, ledger: &mut Ledger, now: bool) -> bool {
        match &self.stage {
            Stage::Queued | Stage::Scheduled(_) => {
                self.end_unstarted(ledger, EndReason::Cancelled, None);
                true
            }
            Stage::Running(..) => self.ask_to_stop(ledger, StopCause::Cancel, now),
            Stage::Ended(_) => false,
        }
    }

    /// The daemon leaves and takes what runs with it. What has not started is left queued.
    pub fn shut_down(&mut self, ledger: &mut Ledger) {
        self.withdraw(ledger);
        self.ask_to_stop(ledger, StopCause::Shutdown, false);
    }

    /// `queue_timeout_s` came due.
    pub fn queue_timeout(&mut self, ledger: &mut Ledger) {
        self.queue_timed_out(ledger, None);
    }

    /// The same of a job of which is known what it waited for.
    pub fn queue_timed_out(&mut self, ledger: &mut Ledger, waited_for: Option<&str>) {
        let unstarted =
            matches!(self.stage, Stage::Queued | Stage::Scheduled(_)) && self.started_at.is_none();
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
            self.ask_to_stop(ledger, StopCause::Timeout, false);
        }
    }

    /// Takes a placement back that has not started: the job is queued again and no attempt is used.
    pub fn withdraw(&mut self, ledger: &mut Ledger) {
        if let Stage::Scheduled(placed) = &self.stage {
            let placed = placed.clone();
            let end = End::of(EndReason::Cancelled, "withdrawn before its start".to_owned());
            self.task_moved(ledger, &placed, None, TaskEnd::ended(&end));
            self.release(ledger, &placed);
            self.spec = Some(placed.spec.clone());
            self.requeue(ledger, "withdrawn", Seconds::default());
        }
    }

    /// The deadline of its worker's drain passed: what still runs there is stopped with its grace. Says whether
    /// anything changed.
    pub fn drain(&mut self, ledger: &mut Ledger) -> bool {
        self.ask_to_stop(ledger, StopCause::Drain, false)
    }

    /// An operator wants this task gone. One that has not started goes elsewhere if it can; a started one is stopped
    /// with its grace. Says whether anything changed.
    pub fn evict(&mut self, ledger: &mut Ledger, task_id: TaskId) -> bool {
        match &self.stage {
            Stage::Scheduled(placed) if placed.task_id == task_id => {
                self.avoid = Some(placed.worker);
                self.withdraw(ledger);
                true
            }
            Stage::Running(placed, _) if placed.task_id == task_id => {
                self.ask_to_stop(ledger, StopCause::Evict, false)
            }
            _ => false,
        }
    }

    /// A job of a higher priority takes the place of this placement. One that has not started goes back to the queue at
    /// once; a started one is stopped with its grace, and queued again when its tree is gone. Says whether anything
    /// changed.
    pub fn preempt(&mut self, ledger: &mut Ledger, epoch: Epoch) -> bool {
        if epoch != self.epoch {
            return false;
        }
        match &self.stage {
            Stage::Scheduled(_) => {
                self.withdraw(ledger);
                true
            }
            Stage::Running(..) => self.ask_to_stop(ledger, StopCause::Preempt, false),
            Stage::Queued | Stage::Ended(_) => false,
        }
    }

    /// The first cause of a stop stays; a later one can only take the grace away, and a cancel takes the other
    /// attempts away.
    fn ask_to_stop(&mut self, ledger: &mut Ledger, cause: StopCause, now: bool) -> bool {
        let at = ledger.now;
        let Stage::Running(placed, run) = &mut self.stage else { return false };
        let before = *run;
        let stop = run.stop.get_or_insert(Stop { cause, now });
        stop.now |= now;
        let for_good = matches!(cause, StopCause::Cancel | StopCause::Shutdown);
        if for_good {
            run.cancel_requested_at.get_or_insert(at);
        }
        let (stop, placed, run) = (*stop, placed.clone(), *run);
        let (harder, cancelled) =
            (before.stop != run.stop, before.cancel_requested_at != run.cancel_requested_at);
        if !harder && !cancelled {
            return false;
        }
        if harder {
            self.task_moved(ledger, &placed, Some(&run), TaskEnd::running());
        }
        let kind = if for_good { EventType::JobCancelRequested } else { EventType::TaskStopRequested };
        let data = json!({"cause": cause.word(), "now": stop.now});
        self.event(ledger, Some(placed.task_id), kind, data);
        self.moved(ledger);
        if harder {
            let (worker, task_id) = (placed.worker, placed.task_id);
            ledger.tell(Notice::Stop { worker, task_id, cause: stop.cause, now: stop.now });
        }
        true
    }

    /// It will never be started: so it ends, unless it has been.
    pub fn cannot_start(&mut self, ledger: &mut Ledger, end: End) {
        if matches!(self.stage, Stage::Queued | Stage::Scheduled(_)) {
            self.end_unstarted_so(ledger, end);
        }
    }

    fn end_unstarted(&mut self, ledger: &mut Ledger, reason: EndReason, detail: Option<String>) {
        self.end_unstarted_so(ledger, End::of(reason, detail));
    }

    fn end_unstarted_so(&mut self, ledger: &mut Ledger, end: End) {
        let detail = end.detail.clone();
        if let Stage::Scheduled(placed) = &self.stage {
            let placed = placed.clone();
            // A task that has not started can only be cancelled, whatever ended its job.
            let task_end = End::of(EndReason::Cancelled, detail);
            self.task_moved(ledger, &placed, None, TaskEnd::ended(&task_end));
            self.release(ledger, &placed);
        } else {
            ledger.tell(Notice::Unqueued(self.id));
        }
        self.end(ledger, end, None, None);
    }
}
