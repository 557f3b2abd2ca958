//! A worker that takes no more tasks: because an operator empties it, because it says that it is about to leave, and
//! when it has left.

use actix::Handler;

use super::WorkerSession;
use crate::actors::messages::front_desk::{DeregisterWorker, Keyed};
use crate::actors::messages::job_supervisor::{SessionClosed, WorkerLeaving};
use crate::actors::messages::scheduler::{WorkerDraining, WorkerLeft};
use crate::actors::messages::worker_session::DrainDecided;

impl WorkerSession {
    /// Whether nothing new goes there, by an operator's word or its own.
    pub(super) fn takes_no_more(&self) -> bool {
        self.record.drain.is_some() || self.leaving
    }

    fn tell_draining(&self) {
        let (worker_id, draining) = (self.record.id, self.takes_no_more());
        self.tells.draining.do_send(WorkerDraining { worker_id, draining });
    }

    /// It says whether it is about to leave. Once said it holds: what was on its way before takes nothing back.
    pub(super) fn heard_leaving(&mut self, leaving: bool) {
        if leaving && !self.leaving {
            self.leaving = true;
            self.tell_draining();
            self.tells.leaving.do_send(WorkerLeaving { worker_id: self.record.id });
        }
    }

    /// It is there again, and has not said that it leaves.
    pub(super) fn stays(&mut self) {
        if std::mem::take(&mut self.leaving) {
            self.tell_draining();
        }
    }
}

impl Handler<DrainDecided> for WorkerSession {
    type Result = ();

    fn handle(&mut self, decided: DrainDecided, _: &mut Self::Context) {
        self.record.drain = decided.drain;
        self.tell_draining();
        self.record_with(decided.key, decided.reply, Ok(Keyed::Done(())));
    }
}

impl Handler<DeregisterWorker> for WorkerSession {
    type Result = ();

    fn handle(&mut self, call: DeregisterWorker, ctx: &mut Self::Context) {
        self.record.gone = true;
        self.release_parked(ctx);
        self.fell_silent(ctx);
        let worker_id = self.record.id;
        self.tells.left.do_send(WorkerLeft { worker_id });
        self.tells.closed.do_send(SessionClosed { worker_id });
        self.record_then(call.reply, Ok(()));
    }
}
