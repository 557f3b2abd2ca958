//! What workers, their sessions and the scheduler bring to the supervisor.

use std::collections::HashMap;
use std::sync::Arc;

use actix::{Context, Handler};
use tracing::error;

use super::{JobSupervisor, Session, answer, given_up};
use crate::actors::messages::job_supervisor::{
    LeaseResumed, PlacementProposed, SessionOpened, TaskGone, TasksReported, WorkerReturned,
};
use crate::actors::messages::scheduler::{CapacityFreed, PlacementAccepted, PlacementRefused};
use crate::clock;
use crate::contract::error_code::ErrorCode;
use crate::contract::event::EventType;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::protocol::{Report, ReportItem, ReportResult};
use crate::contract::worker::TaskState;
use crate::domain::change::{Change, TaskRecord, TaskStanding};
use crate::domain::job::{Judged, NewTask, PlacementRefusal, ReportRefusal, late_results};
use crate::domain::ledger::{Ledger, SharedSpec};
use crate::domain::placement::{Placement, Preemption, Seated};

impl JobSupervisor {
    /// The specs of these jobs that are not in memory, from the store.
    fn stored_specs(&self, placements: &[Placement]) -> HashMap<JobId, SharedSpec> {
        let wanted: Vec<JobId> = placements
            .iter()
            .map(|placement| placement.job_id)
            .filter(|job_id| self.jobs.get(job_id).is_some_and(|job| job.spec.is_none()))
            .collect();
        if wanted.is_empty() {
            return HashMap::new();
        }
        match self.reads.specs(&wanted) {
            Ok(specs) => specs
                .into_iter()
                .filter_map(|(job_id, text)| match serde_json::from_str(&text) {
                    Ok(spec) => Some((job_id, SharedSpec::new(spec))),
                    Err(error) => {
                        error!(%job_id, %error, "a stored spec cannot be read");
                        None
                    }
                })
                .collect(),
            Err(error) => {
                error!(%error, "specs cannot be read from the store");
                HashMap::new()
            }
        }
    }

    fn judge_placement(
        &mut self,
        ledger: &mut Ledger,
        placement: &Placement,
        stored: &HashMap<JobId, SharedSpec>,
    ) -> Result<(), PlacementRefused> {
        let refused = |gone| PlacementRefused { job_id: placement.job_id, gone };
        let Some(job) = self.jobs.get_mut(&placement.job_id) else { return Err(refused(true)) };
        let seats: Option<Vec<NewTask>> =
            placement.seats.iter().map(|seat| new_task(self.sessions.get(&seat.worker_id)?, seat)).collect();
        let Some(seats) = seats.filter(|_| self.stopping.is_none()) else { return Err(refused(false)) };
        let held = job.spec.is_some() && job.member.is_none();
        let Some(spec) = job.spec.clone().or_else(|| stored.get(&placement.job_id).cloned()) else {
            return Err(refused(false));
        };
        match job.place(ledger, placement.job_epoch, seats, spec) {
            Ok(()) => {
                if held {
                    self.held_specs = self.held_specs.saturating_sub(1);
                }
                self.tasks.extend(job.placed().map(|placed| (placed.task_id, placement.job_id)));
                Ok(())
            }
            Err(PlacementRefusal::NotQueued | PlacementRefusal::StaleEpoch { .. }) => Err(refused(true)),
            Err(PlacementRefusal::NotWhole { .. }) => Err(refused(false)),
        }
    }

    fn judge_report(&mut self, ledger: &mut Ledger, worker_id: WorkerId, item: &ReportItem) -> Judged {
        let job_id = self.tasks.get(&item.task_id).copied();
        let Some(job) = job_id.and_then(|job_id| self.jobs.get_mut(&job_id)) else {
            return self.judge_settled(ledger, worker_id, item);
        };
        if job.placed_as(item.task_id).is_some_and(|placed| placed.worker != worker_id) {
            return Err(ReportRefusal::StaleEpoch);
        }
        job.report(ledger, item.task_id, item.epoch, &item.report)
    }

    /// A report of a task the supervisor no longer holds: the store knows how it ended. An identical repeat gets
    /// the first answer; a late result of a lost task is recorded and changes nothing.
    fn judge_settled(&mut self, ledger: &mut Ledger, worker_id: WorkerId, item: &ReportItem) -> Judged {
        let known = match self.reads.task_finish(item.task_id) {
            Ok(Some(known)) => known,
            Ok(None) => return Err(ReportRefusal::StaleEpoch),
            Err(error) => {
                error!(task_id = %item.task_id, %error, "a task cannot be read from the store");
                return Err(ReportRefusal::StaleEpoch);
            }
        };
        if known.record.worker != worker_id || known.record.epoch != item.epoch {
            return Err(ReportRefusal::StaleEpoch);
        }
        match (&item.report, known.standing.state) {
            (Report::Finish(_), TaskState::Lost) => {
                self.record_late_finish(ledger, &known.record, item);
                self.task_gone(worker_id, item.task_id);
                Err(ReportRefusal::TaskEnded)
            }
            (Report::Finish(finish), _) => {
                let same = known.standing.end.as_ref().is_some_and(|end| {
                    end.exit_code == finish.end.exit_code && end.signal == finish.end.signal
                });
                if same { Ok(known.job_state) } else { Err(ReportRefusal::StaleEpoch) }
            }
            _ => Err(ReportRefusal::TaskEnded),
        }
    }

    fn record_late_finish(&mut self, ledger: &mut Ledger, record: &TaskRecord, item: &ReportItem) {
        let Report::Finish(finish) = &item.report else { return };
        if self.reads.came_late(item.task_id).unwrap_or(false) {
            // Its answer was lost, and it says it again.
            return;
        }
        let job_id = record.job_id;
        let results = late_results(finish);
        let data = serde_json::json!({"end": finish.end, "outputs": results.outputs});
        let kept = Change::LateResults(item.task_id, job_id, Arc::new(results));
        if let Some(job) = self.jobs.get_mut(&job_id) {
            ledger.change(kept);
            job.remark(ledger, item.task_id, EventType::StaleFinish, data);
        } else if let Ok(Some(mut standing)) = self.reads.job_standing(job_id) {
            ledger.change(kept);
            standing.event_seq += 1;
            ledger.event(job_id, standing.event_seq, Some(item.task_id), EventType::StaleFinish, data);
            ledger.change(Change::JobMoved(job_id, standing));
        }
    }

    /// The process tree of a task that was given up is gone: its place is free.
    fn task_gone(&mut self, worker_id: WorkerId, task_id: TaskId) {
        if let Some(stale) = self.stale.remove(&task_id) {
            if let Ok(Some(known)) = self.reads.task_finish(task_id) {
                let row = TaskStanding { stale: false, ..known.standing };
                self.journal.append(vec![Change::TaskMoved(task_id, row)]);
            }
            self.tells.freed.do_send(CapacityFreed { worker_id, place: stale.place });
        }
    }

    pub(super) fn jobs_on(&self, worker_id: WorkerId) -> Vec<(TaskId, JobId)> {
        let on_it = |task_id: &TaskId, job_id: &JobId| {
            let placed = self.jobs.get(job_id).and_then(|job| job.placed_as(*task_id));
            placed.is_some_and(|placed| placed.worker == worker_id)
        };
        let tasks = self.tasks.iter().filter(|(task_id, job_id)| on_it(task_id, job_id));
        tasks.map(|(task_id, job_id)| (*task_id, *job_id)).collect()
    }
}

/// A task for this seat, if its worker is still the one that it was proposed for.
fn new_task(session: &Session, seat: &Seated) -> Option<NewTask> {
    let fresh = session.incarnation == seat.incarnation && session.drain.is_none() && !session.leaving;
    fresh.then(|| NewTask { task_id: clock::task_id(), seat: seat.clone(), peer: session.peer.clone() })
}

impl Handler<PlacementProposed> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, proposed: PlacementProposed, ctx: &mut Self::Context) {
        let stored = self.stored_specs(&proposed.placements);
        let mut ledger = self.ledger();
        let mut touched = Vec::with_capacity(proposed.placements.len());
        let waited_for: HashMap<_, _> = proposed.waited_for.into_iter().collect();
        for placement in &proposed.placements {
            match self.judge_placement(&mut ledger, placement, &stored) {
                Ok(()) => {
                    let job_id = placement.job_id;
                    touched.push(job_id);
                    if let Some(reason) = waited_for.get(&job_id) {
                        ledger.waited_for(job_id, reason);
                    }
                    self.tells.accepted.do_send(PlacementAccepted { job_id });
                }
                Err(refused) => self.tells.refused.do_send(refused),
            }
        }
        for Preemption { place, by } in proposed.preemptions {
            if let Some(job) = self.jobs.get_mut(&place.job_id)
                && job.preempt(&mut ledger, place.epoch, by)
            {
                ledger.went_for(place.job_id, by);
                touched.push(place.job_id);
            }
        }
        self.commit(ctx, ledger, &touched);
    }
}

impl Handler<SessionOpened> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, opened: SessionOpened, ctx: &mut Self::Context) {
        let SessionOpened { worker_id, peer, incarnation, drain, ports } = opened;
        self.sessions.insert(worker_id, Session { peer, incarnation, drain, leaving: false, ports });
        if drain.is_some() {
            // A crash between the drain and its withdrawals leaves some behind.
            self.withdraw_from(ctx, worker_id);
            self.arm_drain(ctx, worker_id, drain);
        }
        let mut ledger = self.ledger();
        for (_, job_id) in self.jobs_on(worker_id) {
            if let Some(job) = self.jobs.get(&job_id) {
                job.rederive_on(&mut ledger, worker_id);
            }
        }
        self.commit(ctx, ledger, &[]);
        let lost: Vec<TaskId> = self
            .stale
            .iter()
            .filter(|(_, stale)| stale.worker_id == worker_id)
            .map(|(task_id, _)| *task_id)
            .collect();
        for task_id in lost {
            self.tell_stop(worker_id, given_up(task_id));
        }
        self.speak();
    }
}

impl Handler<TasksReported> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, reported: TasksReported, ctx: &mut Self::Context) {
        let mut ledger = self.ledger();
        let mut touched = Vec::with_capacity(reported.items.len());
        let mut answered = reported.answer;
        for item in &reported.items {
            touched.extend(self.tasks.get(&item.task_id));
            let judged = self.judge_report(&mut ledger, reported.worker_id, item);
            answered.results.push(match judged {
                Ok(job_state) => ReportResult::Ok { job_state },
                Err(ReportRefusal::StaleEpoch) => ReportResult::Refused { code: ErrorCode::StaleEpoch },
                Err(ReportRefusal::TaskEnded) => ReportResult::Refused { code: ErrorCode::TaskEnded },
            });
        }
        touched.dedup();
        let seq = self.commit(ctx, ledger, &touched);
        self.speeches.push(seq, answer(reported.reply, Ok(answered)));
        self.speak();
    }
}

impl Handler<WorkerReturned> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, returned: WorkerReturned, ctx: &mut Context<Self>) {
        let worker_id = returned.worker_id;
        if let Some(session) = self.sessions.get_mut(&worker_id) {
            session.incarnation = returned.incarnation;
            session.peer = returned.peer;
            session.leaving = false;
        }
        for (task_id, job_id) in self.jobs_on(worker_id) {
            let kept = !returned.rebooted && returned.held.iter().any(|held| held.task_id == task_id);
            if !kept {
                self.step(ctx, job_id, |job, ledger| {
                    job.worker_returned_without(ledger, worker_id, returned.rebooted);
                });
            }
        }
        for held in &returned.held {
            if !self.tasks.contains_key(&held.task_id) {
                self.tell_stop(worker_id, given_up(held.task_id));
            }
        }
        self.speak();
    }
}

impl Handler<LeaseResumed> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, resumed: LeaseResumed, ctx: &mut Self::Context) {
        if let Some(job_id) = self.tasks.get(&resumed.task_id).copied() {
            self.step(ctx, job_id, |job, ledger| job.lease_renewed(ledger, resumed.task_id, resumed.epoch));
        }
    }
}

impl Handler<TaskGone> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, gone: TaskGone, _: &mut Self::Context) {
        self.task_gone(gone.worker_id, gone.task_id);
        self.speak();
    }
}
