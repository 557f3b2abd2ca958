//! What a worker says with every heartbeat: that it is there, what it holds, and how it is.

use actix::Handler;

use super::{WorkerSession, news};
use crate::actors::messages::front_desk::{Heartbeat, WorkerRefusal};
use crate::actors::messages::job_supervisor::{TaskGone, TasksUnaccounted};
use crate::actors::messages::lease_reaper::Renew;
use crate::actors::messages::scheduler::{WorkerHealth, WorkerSecrets};
use crate::actors::messages::send;
use crate::clock;
use crate::contract::ids::TaskId;
use crate::contract::protocol::{HeartbeatAnswer, HeartbeatRequest, Held};
use crate::domain::roll_call::Call;

impl WorkerSession {
    /// The names in its table of secrets, passed on when they are news.
    fn heard_secrets(&mut self, names: Option<Vec<String>>) {
        if let Some(names) = names.filter(|names| *names != self.record.capabilities.secrets) {
            self.record.capabilities.secrets.clone_from(&names);
            self.tells.secrets.do_send(WorkerSecrets { worker_id: self.record.id, names });
        }
    }

    /// What it said of its own health, passed on when it is news.
    pub(super) fn heard_health(&mut self, unhealthy: Option<String>) {
        if self.unhealthy != unhealthy {
            self.unhealthy.clone_from(&unhealthy);
            self.tells.health.do_send(WorkerHealth { worker_id: self.record.id, unhealthy });
        }
    }

    /// Trees of lost tasks that the worker no longer lists are gone.
    pub(super) fn notice_gone(&mut self, held: &[Held]) {
        let gone: Vec<TaskId> = self
            .lost
            .iter()
            .filter(|task_id| !held.iter().any(|held| held.task_id == **task_id))
            .copied()
            .collect();
        for task_id in gone {
            self.lost.remove(&task_id);
            self.stops.remove(&task_id);
            self.tells.gone.do_send(TaskGone { worker_id: self.record.id, task_id });
        }
    }

    /// What it holds and what it should hold; the supervisor judges what does not fit.
    fn call_the_roll(&mut self, heartbeat: &HeartbeatRequest) {
        let call =
            Call { seq: heartbeat.seq, answered_seq: heartbeat.answered_seq, listed: &heartbeat.tasks };
        let (offers, lost) = (&self.offers, &self.lost);
        let expected = |task_id| offers.contains_key(&task_id) || lost.contains(&task_id);
        let tasks = self.roll_call.hear(call, expected);
        if !tasks.is_empty() {
            self.tells.unaccounted.do_send(TasksUnaccounted { worker_id: self.record.id, tasks });
        }
    }
}

impl Handler<Heartbeat> for WorkerSession {
    type Result = ();

    fn handle(&mut self, call: Heartbeat, ctx: &mut Self::Context) {
        let request = call.request;
        if self.record.gone {
            // It must not look present again: nothing may be placed on it. But what it says of its tasks counts: those
            // that it was to kill are gone when it no longer lists them.
            let known = self.record.identity.incarnation;
            if request.incarnation > known || request.incarnation == known && self.vitals.hear(&request) {
                self.notice_gone(&request.tasks);
            }
            self.refuse_gone(call.reply);
            return;
        }
        if request.incarnation != self.record.identity.incarnation {
            send(call.reply, Err(WorkerRefusal::Superseded));
            return;
        }
        if self.vitals.hear(&request) {
            self.heard(ctx, Some(request.tasks.iter().map(|held| held.task_id).collect()));
            let tasks = request.tasks.iter().map(|held| (held.task_id, held.epoch)).collect();
            self.tells.renew.do_send(Renew { worker_id: self.record.id, tasks });
            self.notice_gone(&request.tasks);
            self.call_the_roll(&request);
            self.heard_health(request.health);
            self.heard_secrets(request.secrets);
            self.heard_leaving(request.leaving);
            if news::take_in(&mut self.record.capabilities, request.gpus, request.interpreters) {
                self.announce();
            }
        }
        send(call.reply, Ok(HeartbeatAnswer { server_time: clock::now(), orders: self.orders() }));
    }
}
