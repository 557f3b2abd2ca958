//! Leases that run out, workers that come back (CONTRACT, Leases and loss).

use std::sync::Arc;

use serde_json::json;

use super::finish::again_elsewhere;
use super::tasks::TaskEnd;
use super::{LiveJob, NotStarted, Outcome, Over, Placed, Run, Stage, Stands};
use crate::contract::end::{End, EndReason, Owner};
use crate::contract::event::EventType;
use crate::contract::ids::{Epoch, TaskId, WorkerId};
use crate::contract::spec::OnUnreachable;
use crate::domain::change::StopCause;
use crate::domain::ledger::{Alarm, Ledger, Notice};

impl LiveJob {
    /// The lease of this task ran out, or it did not start in time.
    pub fn lease_expired(&mut self, ledger: &mut Ledger, task_id: TaskId, epoch: Epoch) {
        let Some(rank) = self.rank_of(task_id).filter(|_| epoch == self.epoch) else { return };
        let Some(task) = self.tasks().get(rank) else { return };
        let placed = task.placed.clone();
        match task.stands {
            Stands::Assigned => {
                let detail = "the worker did not start the task in time".to_owned();
                let end = End::of(EndReason::WorkerLost, detail);
                let data = json!({"worker": placed.worker});
                self.event(ledger, Some(placed.task_id), EventType::TaskNotStarted, data);
                self.not_started(ledger, rank, NotStarted::Late, TaskEnd::ended(&end));
            }
            Stands::Running(run) if run.unreachable_since.is_none() => {
                // Of a gang that ended nothing is left to wait for.
                let doomed = run.stop.is_some_and(|stop| stop.cause == StopCause::Gang);
                if doomed || placed.spec.on_unreachable() == OnUnreachable::Replace {
                    self.lose(
                        ledger,
                        (rank, &placed, &run),
                        EndReason::WorkerLost,
                        "its lease ran out",
                        true,
                    );
                } else {
                    self.wait_for_worker(ledger, rank);
                }
            }
            Stands::Running(_) | Stands::Over(_) => {}
        }
    }

    /// `unreachable_timeout_s` came due.
    pub fn unreachable_timeout(&mut self, ledger: &mut Ledger, epoch: Epoch) {
        for rank in self.running() {
            if let Some((placed, run)) = self.runs(rank)
                && epoch == self.epoch
                && run
                    .unreachable_since
                    .is_some_and(|since| since.plus(placed.spec.unreachable_timeout_s) <= ledger.now)
            {
                let detail = "the worker did not come back within unreachable_timeout_s";
                self.lose(ledger, (rank, &placed, &run), EndReason::WorkerLost, detail, true);
            }
        }
    }

    /// The worker answers for this task again.
    pub fn lease_renewed(&mut self, ledger: &mut Ledger, task_id: TaskId, epoch: Epoch) {
        let Some(rank) = self.rank_of(task_id).filter(|_| epoch == self.epoch) else { return };
        let Stage::Placed(tasks) = &mut self.stage else { return };
        let Some(task) = tasks.get_mut(rank) else { return };
        let (worker, placed) = (task.placed.worker, task.placed.clone());
        if let Some(run) = task.run_mut()
            && run.unreachable_since.take().is_some()
        {
            let run = *run;
            self.task_moved(ledger, &placed, Some(&run), TaskEnd::running());
            self.event(ledger, Some(task_id), EventType::JobReachable, json!({"worker": worker}));
            self.moved(ledger);
        }
    }

    /// A worker came back and does not have this job's task any more, or its machine restarted.
    pub fn worker_returned_without(&mut self, ledger: &mut Ledger, worker: WorkerId, rebooted: bool) {
        let (reason, detail) = if rebooted {
            (EndReason::WorkerRebooted, "the worker's machine restarted")
        } else {
            (
                EndReason::WorkerLost,
                "the worker came back and knows nothing of the task: its files there were removed or damaged; what is found of such a task is killed",
            )
        };
        self.gone_from(ledger, worker, reason, detail);
    }

    /// Its worker, which is there and was not started anew, does not have this job's task any more.
    pub fn missing_on(&mut self, ledger: &mut Ledger, worker: WorkerId) {
        let detail =
            "its worker no longer has it: it ended there, and how it ended is not known to this server";
        self.gone_from(ledger, worker, EndReason::WorkerLost, detail);
    }

    /// Its worker left for good. What has not started there goes elsewhere; it held nothing else, or took it along.
    pub fn worker_left(&mut self, ledger: &mut Ledger, worker: WorkerId) {
        self.withdraw_from(ledger, worker);
        self.gone_from(ledger, worker, EndReason::WorkerLost, "its worker left the server for good");
    }

    /// What ran on this worker is not there any more.
    fn gone_from(&mut self, ledger: &mut Ledger, worker: WorkerId, reason: EndReason, detail: &str) {
        if let Some(rank) = self.rank_on(worker)
            && let Some((placed, run)) = self.runs(rank)
        {
            self.lose(ledger, (rank, &placed, &run), reason, detail, false);
        }
    }

    /// Its worker was revoked. What has not started there goes elsewhere; a started task ends, and whatever it still
    /// holds stays taken until the worker says that it is gone. Says whether a started one was given up.
    pub fn revoke(&mut self, ledger: &mut Ledger, worker: WorkerId) -> bool {
        self.withdraw_from(ledger, worker);
        let Some((rank, (placed, run))) =
            self.rank_on(worker).and_then(|rank| Some((rank, self.runs(rank)?)))
        else {
            return false;
        };
        let detail = "an operator revoked its worker, which kills the task and brings nothing back";
        // Of two causes the first names the end: what was being cancelled is cancelled.
        let reason = run.stop.map_or(EndReason::Revoked, |stop| stop.cause.end_reason());
        let mut end = End::of(reason, detail.to_owned());
        if reason.owner() == Owner::Operator {
            end.advice = Some(again_elsewhere(&placed.spec.retry, reason));
        }
        let row = TaskEnd { stale: true, ..TaskEnd::ended(&end) };
        self.task_moved(ledger, &placed, Some(&run), row);
        self.tell_end(ledger, &placed, &end);
        ledger.tell(Notice::Settled(placed.worker, placed.task_id));
        ledger.tell(Notice::Stale(placed.worker, placed.task_id, self.place_key()));
        self.over(ledger, rank, given_up(ledger, &run, end));
        true
    }

    fn wait_for_worker(&mut self, ledger: &mut Ledger, rank: usize) {
        let Stage::Placed(tasks) = &mut self.stage else { return };
        let Some(task) = tasks.get_mut(rank) else { return };
        let placed = task.placed.clone();
        let (worker, task_id) = (placed.worker, placed.task_id);
        let limit = ledger.now.plus(placed.spec.unreachable_timeout_s);
        let Some(run) = task.run_mut() else { return };
        run.unreachable_since = Some(ledger.now);
        let run = *run;
        self.task_moved(ledger, &placed, Some(&run), TaskEnd::running());
        self.event(ledger, Some(task_id), EventType::JobUnreachable, json!({"worker": worker}));
        self.moved(ledger);
        ledger.tell(Notice::Wake(limit, Alarm::UnreachableTimeout(self.id, self.epoch)));
    }

    /// Declares a started task lost. `stale`: its process tree may still be there.
    pub(super) fn lose(
        &mut self,
        ledger: &mut Ledger,
        (rank, placed, run): (usize, &Placed, &Run),
        reason: EndReason,
        detail: &str,
        stale: bool,
    ) {
        let end = End::of(reason, detail.to_owned());
        let row = TaskEnd { stale, ..TaskEnd::ended(&end) };
        self.task_moved(ledger, placed, Some(run), row);
        let data = json!({"worker": placed.worker, "reason": reason, "stale": stale});
        self.event(ledger, Some(placed.task_id), EventType::TaskLost, data);
        if stale {
            ledger.tell(Notice::Settled(placed.worker, placed.task_id));
            ledger.tell(Notice::Stale(placed.worker, placed.task_id, self.place_key()));
        } else {
            self.release(ledger, placed);
        }
        self.over(ledger, rank, given_up(ledger, run, end));
    }
}

fn given_up(ledger: &Ledger, run: &Run, end: End) -> Over {
    Over {
        at: ledger.now,
        how: Outcome::Ended(end),
        stop: run.stop.map(|stop| stop.cause),
        results: Arc::default(),
        reported: None,
    }
}
