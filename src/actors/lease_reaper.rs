//! LeaseReaper: the one judge of lease deadlines.
//!
//! Owns: a [`LeaseTable`] on the monotonic clock.
//! Never: decides what a lost lease means for a job; that is the supervisor's.
//! Told by: the supervisor (`Watch`, `Started`, `Forget`), worker sessions (`Renew`).
//! Tells: the supervisor (`LeaseExpired`, `LeaseResumed`).
//! After a restart: empty; the supervisor watches every live task again, each with a full term.

use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, Message, Recipient};
use tokio::time::Instant;

use super::messages::job_supervisor::{LeaseExpired, LeaseResumed};
use super::messages::lease_reaper::{Forget, Renew, Started, Watch};
use crate::domain::lease::{LeaseTable, LeaseTimes, Tick};

/// Room for a burst of placements and finishes between two looks.
const MAILBOX: usize = 16_384;

/// See the module.
pub struct LeaseReaper {
    table: LeaseTable,
    look_every: Duration,
    born: Instant,
    expired: Recipient<LeaseExpired>,
    resumed: Recipient<LeaseResumed>,
}

/// Look at the deadlines, after every renewal that was already queued.
#[derive(Message)]
#[rtype(result = "()")]
struct Look;

impl LeaseReaper {
    /// A reaper that keeps these times and looks often enough to notice its own stalls.
    pub fn new(
        times: LeaseTimes,
        expired: Recipient<LeaseExpired>,
        resumed: Recipient<LeaseResumed>,
    ) -> Self {
        let look_every = Duration::from_millis((times.stall_ms / 4).clamp(10, 1_000));
        Self { table: LeaseTable::new(times, 0), look_every, born: Instant::now(), expired, resumed }
    }

    fn tick(&self) -> Tick {
        self.born.elapsed().as_millis() as Tick
    }
}

impl Actor for LeaseReaper {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        ctx.run_interval(self.look_every, |_, ctx| ctx.notify(Look));
    }
}

impl Handler<Watch> for LeaseReaper {
    type Result = ();

    fn handle(&mut self, watch: Watch, _: &mut Self::Context) {
        self.table.watch(self.tick(), watch.task_id, watch.epoch, watch.worker_id);
    }
}

impl Handler<Started> for LeaseReaper {
    type Result = ();

    fn handle(&mut self, started: Started, _: &mut Self::Context) {
        self.table.started(self.tick(), started.task_id, started.suspended);
    }
}

impl Handler<Renew> for LeaseReaper {
    type Result = ();

    fn handle(&mut self, renew: Renew, _: &mut Self::Context) {
        for (task_id, epoch) in self.table.renew(self.tick(), renew.worker_id, &renew.tasks) {
            self.resumed.do_send(LeaseResumed { task_id, epoch });
        }
    }
}

impl Handler<Look> for LeaseReaper {
    type Result = ();

    fn handle(&mut self, _: Look, _: &mut Self::Context) {
        for (task_id, epoch) in self.table.expired(self.tick()) {
            self.expired.do_send(LeaseExpired { task_id, epoch });
        }
    }
}

impl Handler<Forget> for LeaseReaper {
    type Result = ();

    fn handle(&mut self, forget: Forget, _: &mut Self::Context) {
        self.table.forget(forget.task_id);
    }
}
