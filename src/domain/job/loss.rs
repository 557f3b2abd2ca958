//! Leases that run out, workers that come back (CONTRACT, Leases and loss).

use serde_json::json;

use super::finish::again_elsewhere;
use super::{DECLINE_PAUSE, LiveJob, Placed, Run, Stage, TaskEnd};
use crate::contract::end::{End, EndReason, Owner};
use crate::contract::event::EventType;
use crate::contract::ids::{Epoch, WorkerId};
use crate::contract::spec::OnUnreachable;
use crate::domain::ledger::{Alarm, Ledger, Notice};

impl LiveJob {
    /// The lease of this placement ran out, or it did not start in time.
    pub fn lease_expired(&mut self, ledger: &mut Ledger, epoch: Epoch) {
        if epoch != self.epoch {
            return;
        }
        match &self.stage {
            Stage::Scheduled(placed) => {
                let placed = placed.clone();
                let detail = "the worker did not start the task in time".to_owned();
                let end = End::of(EndReason::WorkerLost, detail);
                self.task_moved(ledger, &placed, None, TaskEnd::ended(&end));
                self.event(
                    ledger,
                    Some(placed.task_id),
                    EventType::TaskNotStarted,
                    json!({"worker": placed.worker}),
                );
                self.avoid = Some(placed.worker);
                self.spec = Some(placed.spec.clone());
                self.release(ledger, &placed);
                self.requeue(ledger, "not_started", DECLINE_PAUSE);
            }
            Stage::Running(placed, run) if run.unreachable_since.is_none() => {
                match placed.spec.on_unreachable() {
                    OnUnreachable::Replace => {
                        let (placed, run) = (placed.clone(), *run);
                        self.lose(ledger, &placed, &run, EndReason::WorkerLost, "its lease ran out", true);
                    }
                    OnUnreachable::Wait => self.wait_for_worker(ledger),
                }
            }
            Stage::Queued | Stage::Running(..) | Stage::Ended(_) => {}
        }
    }

    /// `unreachable_timeout_s` came due.
    pub fn unreachable_timeout(&mut self, ledger: &mut Ledger, epoch: Epoch) {
        if let Stage::Running(placed, run) = &self.stage
            && epoch == self.epoch
            && run
                .unreachable_since
                .is_some_and(|since| since.plus(placed.spec.unreachable_timeout_s) <= ledger.now)
        {
            let (placed, run) = (placed.clone(), *run);
            let detail = "the worker did not come back within unreachable_timeout_s";
            self.lose(ledger, &placed, &run, EndReason::WorkerLost, detail, true);
        }
    }

    /// The worker answers for this placement again.
    pub fn lease_renewed(&mut self, ledger: &mut Ledger, epoch: Epoch) {
        if let Stage::Running(placed, run) = &mut self.stage
            && epoch == self.epoch
            && run.unreachable_since.take().is_some()
        {
            let (worker, task_id) = (placed.worker, placed.task_id);
            self.event(ledger, Some(task_id), EventType::JobReachable, json!({"worker": worker}));
            self.moved(ledger);
        }
    }

    /// A worker came back and does not have this job's task any more, or its machine restarted.
    pub fn worker_returned_without(&mut self, ledger: &mut Ledger, worker: WorkerId, rebooted: bool) {
        if let Stage::Running(placed, run) = &self.stage
            && placed.worker == worker
        {
            let (placed, run) = (placed.clone(), *run);
            let (reason, detail) = if rebooted {
                (EndReason::WorkerRebooted, "the worker's machine restarted")
            } else {
                (
                    EndReason::WorkerLost,
                    "the worker came back and knows nothing of the task: its files there were removed or damaged; what is found of such a task is killed",
                )
            };
            self.lose(ledger, &placed, &run, reason, detail, false);
        }
    }

    /// Its worker, which is there and was not started anew, does not have this job's task any more.
    pub fn missing_on(&mut self, ledger: &mut Ledger, worker: WorkerId) {
        if let Stage::Running(placed, run) = &self.stage
            && placed.worker == worker
        {
            let (placed, run) = (placed.clone(), *run);
            let detail =
                "its worker no longer has it: it ended there, and how it ended is not known to this server";
            self.lose(ledger, &placed, &run, EndReason::WorkerLost, detail, false);
        }
    }

    /// Its worker left for good. What has not started there goes elsewhere; it held nothing else, or took it along.
    pub fn worker_left(&mut self, ledger: &mut Ledger) {
        self.withdraw(ledger);
        if let Stage::Running(placed, run) = &self.stage {
            let (placed, run) = (placed.clone(), *run);
            self.lose(
                ledger,
                &placed,
                &run,
                EndReason::WorkerLost,
                "its worker left the server for good",
                false,
            );
        }
    }

    /// Its worker was revoked. What has not started there goes elsewhere; a started task ends, and whatever it still
    /// holds stays taken until the worker says that it is gone. Says whether a started one was given up.
    pub fn revoke(&mut self, ledger: &mut Ledger) -> bool {
        match &self.stage {
            Stage::Scheduled(_) => {
                self.withdraw(ledger);
                false
            }
            Stage::Running(placed, run) => {
                let (placed, run) = (placed.clone(), *run);
                let detail = "an operator revoked its worker, which kills the task and brings nothing back";
                // Of two causes the first names the end: what was being cancelled is cancelled.
                let reason = run.stop.map_or(EndReason::Revoked, |stop| stop.cause.end_reason());
                let mut end = End::of(reason, detail.to_owned());
                if reason.owner() == Owner::Operator {
                    end.advice = Some(again_elsewhere(&placed.spec.retry, reason));
                }
                let row = TaskEnd { stale: true, ..TaskEnd::ended(&end) };
                self.task_moved(ledger, &placed, Some(&run), row);
                if self.next_attempt(&placed, &run, &end).is_some() {
                    self.event(ledger, Some(placed.task_id), EventType::TaskEnded, json!({"end": &end}));
                }
                ledger.tell(Notice::Settled(placed.worker, placed.task_id));
                ledger.tell(Notice::Stale(placed.worker, placed.task_id, self.place_key()));
                self.settle(ledger, &placed, &run, end, None);
                true
            }
            Stage::Queued | Stage::Ended(_) => false,
        }
    }

    fn wait_for_worker(&mut self, ledger: &mut Ledger) {
        if let Stage::Running(placed, run) = &mut self.stage {
            run.unreachable_since = Some(ledger.now);
            let limit = ledger.now.plus(placed.spec.unreachable_timeout_s);
            let (worker, task_id) = (placed.worker, placed.task_id);
            self.event(ledger, Some(task_id), EventType::JobUnreachable, json!({"worker": worker}));
            self.moved(ledger);
            ledger.tell(Notice::Wake(limit, Alarm::UnreachableTimeout(self.id, self.epoch)));
        }
    }

    /// Declares a started task lost. `stale`: its process tree may still be there.
    fn lose(
        &mut self,
        ledger: &mut Ledger,
        placed: &Placed,
        run: &Run,
        reason: EndReason,
        detail: &str,
        stale: bool,
    ) {
        let end = End::of(reason, detail.to_owned());
        let row = TaskEnd { state: reason.task_state(), end: Some(&end), log_artifact: None, stale };
        self.task_moved(ledger, placed, Some(run), row);
        let data = json!({"worker": placed.worker, "reason": reason, "stale": stale});
        self.event(ledger, Some(placed.task_id), EventType::TaskLost, data);
        if stale {
            ledger.tell(Notice::Settled(placed.worker, placed.task_id));
            ledger.tell(Notice::Stale(placed.worker, placed.task_id, self.place_key()));
        } else {
            self.release(ledger, placed);
        }
        self.settle(ledger, placed, run, end, None);
    }
}
