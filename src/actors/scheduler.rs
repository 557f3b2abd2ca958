//! Scheduler: proposes which queued job goes to which worker. On its own arbiter, so that a long pass delays
//! nobody.
//!
//! Owns: the queue and the pool, as far as it has been told, and what it proposed and nobody answered yet.
//! Never: decides; the supervisor disposes of every proposal.
//! Told by: the supervisor (`JobQueued`, `JobUnqueued`, `PlacementAccepted`, `PlacementRefused`, `CapacityFreed`,
//! `CapacityTaken`, `StopPlacing`), worker sessions (`WorkerUp`, `WorkerDown`, `WorkerHealth`, `WorkerSecrets`,
//! `WorkerDraining`, `WorkerLeft`), the front desk (`ExplainQueue`).
//! Tells: the supervisor (`PlacementProposed`).
//! After a restart: empty; the supervisor queues every waiting job and reports every held place again.

use std::collections::HashMap;

use actix::{Actor, AsyncContext, Context, Handler, Message, Recipient};
use tracing::error;

use super::messages::front_desk::ExplainQueue;
use super::messages::job_supervisor::PlacementProposed;
use super::messages::scheduler::{
    CapacityFreed, CapacityTaken, JobQueued, JobUnqueued, PlacementAccepted, PlacementRefused, StopPlacing,
    WorkerDown, WorkerDraining, WorkerHealth, WorkerLeft, WorkerSecrets, WorkerUp,
};
use super::messages::send;
use crate::contract::ids::{JobId, WorkerId};
use crate::domain::placement::{Amount, Placed, Pool, Queue, place, queue_reason};

/// A batch of submissions arrives as one message per job.
const MAILBOX: usize = 65_536;
/// Checks of a shape against a worker in one pass; the rest follows after the mailbox has been looked at again.
const BUDGET_CHECKS: u32 = 50_000;

/// See the module.
pub struct Scheduler {
    queue: Queue,
    pool: Pool,
    proposed: HashMap<JobId, Placed>,
    pass_due: bool,
    stopped: bool,
    supervisor: Recipient<PlacementProposed>,
}

/// Run a pass, once everything that was queued in the mailbox has been taken in.
#[derive(Message)]
#[rtype(result = "()")]
struct RunPass;

impl Scheduler {
    /// A scheduler without jobs and workers.
    pub fn new(supervisor: Recipient<PlacementProposed>) -> Self {
        Self {
            queue: Queue::new(),
            pool: Pool::new(),
            proposed: HashMap::new(),
            pass_due: false,
            stopped: false,
            supervisor,
        }
    }

    fn pass_soon(&mut self, ctx: &mut Context<Self>) {
        if !self.pass_due && !self.stopped {
            self.pass_due = true;
            ctx.notify(RunPass);
        }
    }

    fn release(&mut self, worker_id: WorkerId, amount: Amount) {
        if let Err(error) = self.pool.release(worker_id, amount) {
            // The books are the scheduler's own: a mismatch wastes or overlaps a place until the next restart,
            // which rebuilds them from the store.
            error!(%error, "placement books do not balance");
        }
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<JobQueued> for Scheduler {
    type Result = ();

    fn handle(&mut self, queued: JobQueued, ctx: &mut Self::Context) {
        self.queue.insert(queued.job);
        self.pass_soon(ctx);
    }
}

impl Handler<JobUnqueued> for Scheduler {
    type Result = ();

    fn handle(&mut self, unqueued: JobUnqueued, _: &mut Self::Context) {
        self.queue.remove(unqueued.job_id);
    }
}

impl Handler<RunPass> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: RunPass, ctx: &mut Self::Context) {
        self.pass_due = false;
        if self.stopped {
            return;
        }
        let pass = place(&mut self.queue, &mut self.pool, BUDGET_CHECKS);
        if !pass.placements.is_empty() {
            let placements = pass.placements.iter().map(Placed::proposal).collect();
            self.proposed.extend(pass.placements.into_iter().map(|placed| (placed.job.job_id, placed)));
            self.supervisor.do_send(PlacementProposed { placements });
        }
        if pass.exhausted {
            self.pass_soon(ctx);
        }
    }
}

impl Handler<PlacementAccepted> for Scheduler {
    type Result = ();

    fn handle(&mut self, accepted: PlacementAccepted, _: &mut Self::Context) {
        self.proposed.remove(&accepted.job_id);
    }
}

impl Handler<PlacementRefused> for Scheduler {
    type Result = ();

    fn handle(&mut self, refused: PlacementRefused, ctx: &mut Self::Context) {
        if let Some(placed) = self.proposed.remove(&refused.job_id) {
            self.release(placed.worker_id, placed.job.shape.amount());
            if !refused.gone && !self.queue.contains(refused.job_id) {
                self.queue.insert(placed.job);
            }
            self.pass_soon(ctx);
        }
    }
}

impl Handler<CapacityFreed> for Scheduler {
    type Result = ();

    fn handle(&mut self, freed: CapacityFreed, ctx: &mut Self::Context) {
        self.release(freed.worker_id, freed.shape.amount());
        self.pass_soon(ctx);
    }
}

impl Handler<CapacityTaken> for Scheduler {
    type Result = ();

    fn handle(&mut self, taken: CapacityTaken, _: &mut Self::Context) {
        self.pool.record_held(taken.worker_id, taken.shape.amount());
    }
}

impl Handler<WorkerUp> for Scheduler {
    type Result = ();

    fn handle(&mut self, up: WorkerUp, ctx: &mut Self::Context) {
        self.pool.worker_up(up.worker_id, &up.name, up.kind, up.incarnation, &up.capabilities);
        self.pass_soon(ctx);
    }
}

impl Handler<WorkerDown> for Scheduler {
    type Result = ();

    fn handle(&mut self, down: WorkerDown, _: &mut Self::Context) {
        // Not there: it never was up, so there is nothing to take back.
        let _ = self.pool.worker_down(down.worker_id);
    }
}

impl Handler<WorkerHealth> for Scheduler {
    type Result = ();

    fn handle(&mut self, health: WorkerHealth, ctx: &mut Self::Context) {
        self.pool.worker_health(health.worker_id, health.unhealthy);
        self.pass_soon(ctx);
    }
}

impl Handler<WorkerSecrets> for Scheduler {
    type Result = ();

    fn handle(&mut self, secrets: WorkerSecrets, ctx: &mut Self::Context) {
        self.pool.worker_secrets(secrets.worker_id, secrets.names);
        self.pass_soon(ctx);
    }
}

impl Handler<WorkerDraining> for Scheduler {
    type Result = ();

    fn handle(&mut self, told: WorkerDraining, ctx: &mut Self::Context) {
        self.pool.worker_draining(told.worker_id, told.draining);
        self.pass_soon(ctx);
    }
}

impl Handler<WorkerLeft> for Scheduler {
    type Result = ();

    fn handle(&mut self, left: WorkerLeft, _: &mut Self::Context) {
        self.pool.worker_left(left.worker_id);
    }
}

impl Handler<ExplainQueue> for Scheduler {
    type Result = ();

    fn handle(&mut self, question: ExplainQueue, _: &mut Self::Context) {
        let reason = self.queue.shape(question.job_id).map(|shape| queue_reason(shape, &self.pool));
        send(question.reply, reason);
    }
}

impl Handler<StopPlacing> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: StopPlacing, _: &mut Self::Context) {
        self.stopped = true;
    }
}
