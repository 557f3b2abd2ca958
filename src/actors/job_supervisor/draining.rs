//! What operators ask of workers: to be emptied, to take tasks again, to let go of one task, to be gone.

use std::sync::Arc;

use actix::{Context, Handler};
use serde_json::json;

use super::{JobSupervisor, answer};
use crate::actors::messages::front_desk::{
    Act, ChangeDrain, DrainOrder, EvictRefusal, EvictTask, Keyed, RevokeWorker, UnknownWorker,
};
use crate::actors::messages::job_supervisor::{SessionClosed, WorkerLeaving};
use crate::actors::messages::worker_session::{DrainDecided, SessionRevoked};
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::worker::Drain;
use crate::domain::ledger::Alarm;

impl JobSupervisor {
    /// Takes back what was placed on this worker and has not started: it goes elsewhere, and no attempt is used.
    pub(super) fn withdraw_from(&mut self, ctx: &mut Context<Self>, worker_id: WorkerId) {
        for (_, job_id) in self.jobs_on(worker_id) {
            self.step(ctx, job_id, |job, ledger| job.withdraw_from(ledger, worker_id));
        }
    }

    /// Makes sure that the deadline is looked at when it comes, also after a restart that slept through it.
    pub(super) fn arm_drain(&mut self, ctx: &mut Context<Self>, worker_id: WorkerId, drain: Option<Drain>) {
        if let Some(deadline) = drain.and_then(|drain| drain.deadline) {
            self.set_alarm(ctx, deadline, Alarm::DrainDeadline(worker_id));
        }
    }

    /// A drain's deadline may have come. One that was moved or taken back since says nothing.
    pub(super) fn drain_overdue(&mut self, ctx: &mut Context<Self>, worker_id: WorkerId) {
        let deadline = self.sessions.get(&worker_id).and_then(|session| session.drain?.deadline);
        if deadline.is_some_and(|deadline| deadline <= (self.now)()) {
            for (_, job_id) in self.jobs_on(worker_id) {
                self.step(ctx, job_id, |job, ledger| job.drain(ledger, worker_id));
            }
            self.speak();
        }
    }
}

impl Handler<ChangeDrain> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: ChangeDrain, ctx: &mut Self::Context) {
        let ChangeDrain { worker_id, order, by, key, reply } = call;
        if !self.sessions.contains_key(&worker_id) {
            self.say_at_newest(answer(reply, Err(UnknownWorker)));
            return;
        }
        let Some(key) = self.take_key(key) else {
            self.say_at_newest(answer(reply, Ok(Keyed::Repeat)));
            return;
        };
        if let Some(author) = by {
            // On disk before the worker's row, which its session writes: no act without its record.
            let mut ledger = self.ledger();
            let (act, with) = match order {
                DrainOrder::Drain { deadline } => (Act::WorkerDrain, json!({ "deadline_s": deadline })),
                DrainOrder::Resume => (Act::WorkerResume, json!({})),
            };
            ledger.audit(&author, act, &worker_id.to_string(), with);
            self.commit(ctx, ledger, &[]);
        }
        let now = (self.now)();
        let Some(session) = self.sessions.get_mut(&worker_id) else { return };
        session.drain = match order {
            DrainOrder::Resume => None,
            DrainOrder::Drain { deadline } => Some(Drain {
                since: session.drain.map_or(now, |drain| drain.since),
                deadline: deadline.map(|span| now.plus(span)),
            }),
        };
        let (drain, port) = (session.drain, session.ports.drain.clone());
        if drain.is_some() {
            self.withdraw_from(ctx, worker_id);
        }
        // The session writes the row and answers; nothing new is placed there from here on.
        port.do_send(DrainDecided { drain, key, reply });
        self.arm_drain(ctx, worker_id, drain);
        self.speak();
    }
}

impl Handler<EvictTask> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: EvictTask, ctx: &mut Self::Context) {
        let EvictTask { worker_id, task_id, by, key, reply } = call;
        let there = self.tasks.get(&task_id).copied().filter(|job_id| {
            let placed = self.jobs.get(job_id).and_then(|job| job.placed_as(task_id));
            placed.is_some_and(|placed| placed.worker == worker_id)
        });
        let Some(job_id) = there else {
            let known = self.sessions.contains_key(&worker_id);
            let refusal = if known { EvictRefusal::NotThere } else { EvictRefusal::UnknownWorker };
            self.say_at_newest(answer(reply, Err(refusal)));
            return;
        };
        let Some(key) = self.take_key(key) else {
            self.say_at_newest(answer(reply, Ok(Keyed::Repeat)));
            return;
        };
        let mut ledger = self.ledger();
        let changed = self.jobs.get_mut(&job_id).is_some_and(|job| job.evict(&mut ledger, task_id));
        if let Some(author) = by.filter(|_| changed) {
            let with = json!({ "worker": worker_id, "job": job_id });
            ledger.audit(&author, Act::TaskEvict, &task_id.to_string(), with);
        }
        ledger.changes.extend(key);
        self.commit(ctx, ledger, &[job_id]);
        self.say_at_newest(answer(reply, Ok(Keyed::Done(changed))));
    }
}

impl Handler<RevokeWorker> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: RevokeWorker, ctx: &mut Self::Context) {
        let RevokeWorker { worker_id, by, key, reply } = call;
        let Some(port) = self.sessions.get(&worker_id).map(|session| session.ports.revoke.clone()) else {
            self.say_at_newest(answer(reply, Err(UnknownWorker)));
            return;
        };
        let Some(key) = self.take_key(key) else {
            self.say_at_newest(answer(reply, Ok(Keyed::Repeat)));
            return;
        };
        let on_it = self.jobs_on(worker_id);
        let mut ledger = self.ledger();
        let mut lost = Vec::new();
        for (task_id, job_id) in &on_it {
            if self.jobs.get_mut(job_id).is_some_and(|job| job.revoke(&mut ledger, worker_id)) {
                lost.push(*task_id);
            }
        }
        if let Some(author) = by {
            let with = json!({ "tasks": lost });
            ledger.audit(&author, Act::WorkerRevoke, &worker_id.to_string(), with);
        }
        let touched: Vec<JobId> = on_it.into_iter().map(|(_, job_id)| job_id).collect();
        self.commit(ctx, ledger, &touched);
        // Nothing is placed there from here on, and no order goes there: its worker is told that it is over.
        self.sessions.remove(&worker_id);
        let credentials = Arc::clone(&self.credentials);
        port.do_send(SessionRevoked { lost, credentials, key, reply });
        self.answer_drained();
        self.speak();
    }
}

impl Handler<SessionClosed> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, closed: SessionClosed, ctx: &mut Self::Context) {
        self.sessions.remove(&closed.worker_id);
        self.credentials.end_session(closed.worker_id);
        for (_, job_id) in self.jobs_on(closed.worker_id) {
            self.step(ctx, job_id, |job, ledger| job.worker_left(ledger, closed.worker_id));
        }
        self.answer_drained();
        self.speak();
    }
}

impl Handler<WorkerLeaving> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, leaving: WorkerLeaving, ctx: &mut Self::Context) {
        if let Some(session) = self.sessions.get_mut(&leaving.worker_id) {
            session.leaving = true;
            self.withdraw_from(ctx, leaving.worker_id);
            self.speak();
        }
    }
}
