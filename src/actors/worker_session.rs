//! WorkerSession: the server's side of one worker.
//!
//! Owns: the worker's row in the store, what is held out to it, what it must stop, its parked acquire.
//! Never: decides about tasks; reports go on to the supervisor.
//! Told by: the front desk (what the worker says), the supervisor (`Offer`, `StopTask`, `Settled`, `DrainDecided`,
//! `SessionRevoked`).
//! Tells: the supervisor (`TasksReported`, `WorkerReturned`, `TaskGone`, `TasksUnaccounted`, `SessionOpened`,
//! `SessionClosed`, `WorkerLeaving`), the lease reaper (`Renew`), the scheduler (`WorkerUp`, `WorkerDown`,
//! `WorkerHealth`, `WorkerSecrets`,
//! `WorkerDraining`, `WorkerLeft`).
//! After a restart: opened again from the worker's row, offline until its first word; offers and stops are told
//! again by the supervisor.

mod departure;
mod heartbeats;
mod news;
mod vitals;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};
use tokio::time::Instant;

use super::messages::front_desk::{Acquire, Keyed, ReportTasks, ResumeWorker, WorkerRefusal};
use super::messages::job_supervisor::{
    SessionClosed, SessionOpened, TaskGone, TasksReported, TasksUnaccounted, WorkerLeaving, WorkerReturned,
};
use super::messages::lease_reaper::Renew;
use super::messages::scheduler::{
    WorkerDown, WorkerDraining, WorkerHealth, WorkerLeft, WorkerSecrets, WorkerUp,
};
use super::messages::worker_session::{
    Describe, NewSession, Offer, SessionPorts, SessionRevoked, Settled, StopTask,
};
use super::messages::{Reply, send};
use crate::clock;
use crate::contract::gang::Peer;
use crate::contract::ids::TaskId;
use crate::contract::protocol::{
    AcquireAnswer, Assignment, Held, Orders, RegisterAnswer, ReportAnswer, ResumeAnswer, ResumeRequest,
    StopOrder, Timing,
};
use crate::contract::quantity::{Seconds, Timestamp};
use crate::contract::worker::{Worker, WorkerKind, WorkerState};
use crate::domain::change::{Change, WorkerRecord};
use crate::domain::roll_call::RollCall;
use crate::domain::worker_return::{self, Known, Newcomer, Pace, Return, ReturnRefusal};
use crate::durability::Durability;
use crate::journal::Journal;
use vitals::Vitals;

/// A worker has at most a few calls in flight; offers come in bursts.
const MAILBOX: usize = 4_096;
/// A parked acquire is never held longer, whatever the worker asks (CONTRACT, Requests and answers: long polls).
const LONGEST_PARK: Seconds = Seconds::new(60);

/// Whom a session tells.
#[derive(Clone)]
pub struct SessionTells {
    /// The supervisor.
    pub opened: Recipient<SessionOpened>,
    /// The supervisor.
    pub reported: Recipient<TasksReported>,
    /// The supervisor.
    pub returned: Recipient<WorkerReturned>,
    /// The supervisor.
    pub gone: Recipient<TaskGone>,
    /// The supervisor.
    pub unaccounted: Recipient<TasksUnaccounted>,
    /// The lease reaper.
    pub renew: Recipient<Renew>,
    /// The scheduler.
    pub up: Recipient<WorkerUp>,
    /// The scheduler.
    pub down: Recipient<WorkerDown>,
    /// The scheduler.
    pub health: Recipient<WorkerHealth>,
    /// The scheduler.
    pub secrets: Recipient<WorkerSecrets>,
    /// The scheduler.
    pub draining: Recipient<WorkerDraining>,
    /// The scheduler.
    pub left: Recipient<WorkerLeft>,
    /// The supervisor.
    pub closed: Recipient<SessionClosed>,
    /// The supervisor.
    pub leaving: Recipient<WorkerLeaving>,
}

/// See the module.
pub struct WorkerSession {
    record: WorkerRecord,
    timing: Timing,
    journal: Journal,
    durability: Durability,
    tells: SessionTells,
    greeting: Option<(Reply<RegisterAnswer>, RegisterAnswer)>,
    offers: BTreeMap<TaskId, Assignment>,
    stops: BTreeMap<TaskId, StopOrder>,
    /// Stops that must stand although the server has settled the task: its tree may still be there.
    lost: BTreeSet<TaskId>,
    parked: Option<Parked>,
    presence: Presence,
    /// When it spoke last, or this session was opened: the silence by which a newcomer is judged.
    heard_at: Instant,
    /// The process that resumed last.
    process: Option<String>,
    vitals: Vitals,
    roll_call: RollCall,
    /// It said that it leaves when its tasks are over.
    leaving: bool,
    /// Why it says it is unhealthy; as old as its newest heartbeat.
    unhealthy: Option<String>,
}

struct Parked {
    have: Vec<Held>,
    max_tasks: usize,
    reply: Reply<Result<AcquireAnswer, WorkerRefusal>>,
    timer: SpawnHandle,
}

enum Presence {
    Offline { last_seen: Option<Timestamp> },
    Online { last_seen: Timestamp, holds: Vec<TaskId>, silence: SpawnHandle },
}

impl WorkerSession {
    /// How others of a gang reach this worker.
    fn peer(&self) -> Peer {
        let WorkerRecord { id, name, capabilities, .. } = &self.record;
        let address = capabilities.advertise_address.as_ref().unwrap_or(&capabilities.hostname);
        Peer { worker: *id, name: name.clone(), address: address.clone() }
    }

    /// A session for this worker; it becomes reachable through the ports in [`SessionPorts`].
    pub fn new(
        opening: NewSession,
        timing: Timing,
        journal: Journal,
        durability: Durability,
        tells: SessionTells,
    ) -> Self {
        Self {
            record: opening.record,
            greeting: opening.greeting,
            timing,
            journal,
            durability,
            tells,
            offers: BTreeMap::new(),
            stops: BTreeMap::new(),
            lost: BTreeSet::new(),
            parked: None,
            presence: Presence::Offline { last_seen: None },
            heard_at: Instant::now(),
            process: None,
            vitals: Vitals::default(),
            roll_call: RollCall::default(),
            leaving: false,
            unhealthy: None,
        }
    }

    fn orders(&self) -> Orders {
        let with = |now: bool| {
            let chosen = self.stops.values().filter(move |order| order.now == now);
            chosen.map(|order| order.task_id).collect()
        };
        Orders {
            stops: self.stops.values().copied().collect(),
            cancel_task_ids: with(false),
            kill_task_ids: with(true),
            revoked: false,
        }
    }

    fn open_offers(&self, have: &[Held], max_tasks: usize) -> Vec<Assignment> {
        let fresh = self.offers.values().filter(|offer| {
            !have.iter().any(|held| held.task_id == offer.task_id && held.epoch == offer.epoch)
        });
        fresh.take(max_tasks).cloned().collect()
    }

    /// Answers the parked acquire if there is something to say.
    fn serve(&mut self, ctx: &mut Context<Self>, orders_changed: bool) {
        let Some(parked) = self.parked.take_if(|parked| !parked.reply.is_closed()) else { return };
        let assignments = self.open_offers(&parked.have, parked.max_tasks);
        if assignments.is_empty() && !orders_changed {
            self.parked = Some(parked);
            return;
        }
        ctx.cancel_future(parked.timer);
        // A caller that went away in this instant loses the answer, not the offer: it stands until the start.
        send(parked.reply, Ok(AcquireAnswer { assignments, orders: self.orders() }));
    }

    fn release_parked(&mut self, ctx: &mut Context<Self>) {
        if let Some(parked) = self.parked.take() {
            ctx.cancel_future(parked.timer);
            send(parked.reply, Ok(AcquireAnswer { assignments: Vec::new(), orders: self.orders() }));
        }
    }

    /// The worker spoke: it is there, and holds what it says (`None` = it said nothing about that).
    fn heard(&mut self, ctx: &mut Context<Self>, holds: Option<Vec<TaskId>>) {
        self.heard_at = Instant::now();
        let silence = ctx.run_later(self.timing.lease_ttl_s.duration(), Self::fell_silent);
        let before = std::mem::replace(&mut self.presence, Presence::Offline { last_seen: None });
        let known = match before {
            Presence::Online { holds, silence, .. } => {
                ctx.cancel_future(silence);
                holds
            }
            Presence::Offline { .. } => {
                self.announce();
                Vec::new()
            }
        };
        let holds = holds.unwrap_or(known);
        self.presence = Presence::Online { last_seen: clock::now(), holds, silence };
    }

    fn announce(&self) {
        self.tells.up.do_send(WorkerUp {
            worker_id: self.record.id,
            name: self.record.name.clone(),
            kind: self.record.kind,
            incarnation: self.record.identity.incarnation,
            capabilities: self.record.capabilities.clone(),
        });
    }

    fn fell_silent(&mut self, ctx: &mut Context<Self>) {
        if let Presence::Online { last_seen, silence, .. } = &self.presence {
            let last_seen = Some(*last_seen);
            ctx.cancel_future(*silence);
            self.presence = Presence::Offline { last_seen };
            self.tells.down.do_send(WorkerDown { worker_id: self.record.id });
        }
    }

    fn judge_resume(&self, request: &ResumeRequest) -> Result<Return, WorkerRefusal> {
        if self.record.gone {
            return Err(WorkerRefusal::Revoked);
        }
        let silent_for = u64::try_from(self.heard_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let known = Known {
            identity: &self.record.identity,
            process: self.process.as_deref(),
            silent_for: Seconds::from_millis(silent_for),
            in_process: self.record.kind == WorkerKind::Local,
        };
        let newcomer = Newcomer {
            identity: &request.identity,
            process: request.process.as_deref(),
            moved: request.moved,
        };
        let pace = Pace { heartbeat: self.timing.heartbeat_s, lease_ttl: self.timing.lease_ttl_s };
        worker_return::judge(known, newcomer, pace).map_err(|refusal| match refusal {
            ReturnRefusal::InUse => WorkerRefusal::IdentityInUse,
            ReturnRefusal::Outdated => WorkerRefusal::Superseded,
        })
    }

    /// Tells a worker whose session is over so, once that is on disk.
    fn refuse_gone<T: 'static>(&self, reply: Reply<Result<T, WorkerRefusal>>) {
        let (newest, durability) = (self.journal.newest(), self.durability.clone());
        actix::spawn(async move {
            durability.reached(newest).await;
            send(reply, Err(WorkerRefusal::Revoked));
        });
    }

    fn state(&self) -> WorkerState {
        match &self.presence {
            Presence::Offline { .. } => WorkerState::Offline,
            Presence::Online { .. } if self.unhealthy.is_some() => WorkerState::Unhealthy,
            Presence::Online { .. } if self.takes_no_more() => WorkerState::Draining,
            Presence::Online { holds, .. } if holds.is_empty() => WorkerState::Idle,
            Presence::Online { .. } => WorkerState::Busy,
        }
    }

    /// Writes the worker's row and answers once it is on disk.
    fn record_then<T: 'static>(&self, reply: Reply<T>, answer: T) {
        self.record_with(None, reply, answer);
    }

    /// The same in one commit with a client's key.
    fn record_with<T: 'static>(&self, key: Option<Change>, reply: Reply<T>, answer: T) {
        let mut changes = vec![Change::WorkerRecorded(Box::new(self.record.clone()))];
        changes.extend(key);
        let seq = self.journal.append(changes);
        let durability = self.durability.clone();
        actix::spawn(async move {
            durability.reached(seq).await;
            send(reply, answer);
        });
    }

    /// Starts a session on this thread's arbiter and answers how to reach it.
    pub fn open(self) -> SessionPorts {
        ports_of(&self.start())
    }
}

fn ports_of(address: &actix::Addr<WorkerSession>) -> SessionPorts {
    SessionPorts {
        offer: address.clone().recipient(),
        stop: address.clone().recipient(),
        settled: address.clone().recipient(),
        drain: address.clone().recipient(),
        revoke: address.clone().recipient(),
        resume: address.clone().recipient(),
        heartbeat: address.clone().recipient(),
        acquire: address.clone().recipient(),
        report: address.clone().recipient(),
        deregister: address.clone().recipient(),
        describe: address.clone().recipient(),
    }
}

impl Actor for WorkerSession {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        let opened = SessionOpened {
            worker_id: self.record.id,
            peer: self.peer(),
            incarnation: self.record.identity.incarnation,
            drain: self.record.drain,
            ports: ports_of(&ctx.address()),
        };
        self.tells.opened.do_send(opened);
        if self.record.drain.is_some() {
            self.tells.draining.do_send(WorkerDraining { worker_id: self.record.id, draining: true });
        }
        if let Some((reply, answer)) = self.greeting.take() {
            self.heard(ctx, Some(Vec::new()));
            self.record_then(reply, answer);
        }
    }
}

impl Handler<ResumeWorker> for WorkerSession {
    type Result = ();

    fn handle(&mut self, call: ResumeWorker, ctx: &mut Self::Context) {
        let request = call.request;
        let rebooted = match self.judge_resume(&request) {
            Ok(back) => back == Return::Rebooted,
            Err(refusal) => {
                send(call.reply, Err(refusal));
                return;
            }
        };
        self.release_parked(ctx);
        self.record.identity = request.identity;
        if let Some(name) = request.name {
            self.record.name = name;
        }
        self.process = request.process;
        self.record.capabilities = request.capabilities;
        self.vitals = Vitals::default();
        self.roll_call.began_anew();
        // Its first heartbeat says it anew.
        self.heard_health(None);
        self.stays();
        self.heard(ctx, Some(request.tasks.iter().map(|held| held.task_id).collect()));
        self.announce();
        if rebooted {
            self.notice_gone(&[]);
        } else {
            self.notice_gone(&request.tasks);
        }
        let renewed = request.tasks.iter().map(|held| (held.task_id, held.epoch)).collect();
        self.tells.renew.do_send(Renew { worker_id: self.record.id, tasks: renewed });
        self.tells.returned.do_send(WorkerReturned {
            worker_id: self.record.id,
            peer: self.peer(),
            incarnation: self.record.identity.incarnation,
            rebooted,
            held: request.tasks,
        });
        let answer = ResumeAnswer { timing: self.timing, orders: self.orders() };
        self.record_then(call.reply, Ok(answer));
    }
}

impl Handler<Offer> for WorkerSession {
    type Result = ();

    fn handle(&mut self, offer: Offer, ctx: &mut Self::Context) {
        self.offers.insert(offer.assignment.task_id, offer.assignment);
        self.serve(ctx, false);
    }
}

impl Handler<Acquire> for WorkerSession {
    type Result = ();

    fn handle(&mut self, call: Acquire, ctx: &mut Self::Context) {
        if self.record.gone {
            self.refuse_gone(call.reply);
            return;
        }
        self.release_parked(ctx);
        self.heard_leaving(call.request.leaving);
        let max_tasks = call.request.max_tasks as usize;
        let assignments = self.open_offers(&call.request.have, max_tasks);
        let wait = call.request.wait_s.min(LONGEST_PARK).duration();
        let owed =
            self.stops.keys().any(|task_id| call.request.have.iter().any(|held| held.task_id == *task_id));
        if !assignments.is_empty() || owed || wait == Duration::ZERO {
            send(call.reply, Ok(AcquireAnswer { assignments, orders: self.orders() }));
            return;
        }
        let timer = ctx.run_later(wait, |session, ctx| session.release_parked(ctx));
        self.parked = Some(Parked { have: call.request.have, max_tasks, reply: call.reply, timer });
    }
}

impl Handler<ReportTasks> for WorkerSession {
    type Result = ();

    fn handle(&mut self, call: ReportTasks, _: &mut Self::Context) {
        if self.record.gone {
            self.refuse_gone(call.reply);
            return;
        }
        let acquire = call.request.acquire.unwrap_or_default();
        self.heard_leaving(acquire.leaving);
        let answer = ReportAnswer {
            results: Vec::with_capacity(call.request.items.len()),
            assignments: self.open_offers(&acquire.have, acquire.max_tasks as usize),
            orders: self.orders(),
        };
        let (worker_id, items, reply) = (self.record.id, call.request.items, call.reply);
        self.tells.reported.do_send(TasksReported { worker_id, items, answer, reply });
    }
}

impl Handler<StopTask> for WorkerSession {
    type Result = ();

    fn handle(&mut self, stop: StopTask, ctx: &mut Self::Context) {
        let StopTask { task_id, cause, now, lost } = stop;
        let order = self.stops.entry(task_id).or_insert(StopOrder { task_id, cause, now });
        order.now |= now;
        if lost {
            self.lost.insert(task_id);
        }
        self.serve(ctx, true);
    }
}

impl Handler<Settled> for WorkerSession {
    type Result = ();

    fn handle(&mut self, settled: Settled, _: &mut Self::Context) {
        self.offers.remove(&settled.task_id);
        if settled.started {
            self.roll_call.started(settled.task_id);
        } else {
            self.roll_call.settled(settled.task_id);
        }
        if !settled.started && !self.lost.contains(&settled.task_id) {
            self.stops.remove(&settled.task_id);
        }
    }
}

impl Handler<SessionRevoked> for WorkerSession {
    type Result = ();

    fn handle(&mut self, revoked: SessionRevoked, ctx: &mut Self::Context) {
        self.record.gone = true;
        self.offers.clear();
        self.lost.extend(revoked.lost);
        self.fell_silent(ctx);
        let worker_id = self.record.id;
        self.tells.left.do_send(WorkerLeft { worker_id });
        let mut changes = vec![Change::WorkerRecorded(Box::new(self.record.clone()))];
        changes.extend(revoked.key);
        let seq = self.journal.append(changes);
        if let Some(parked) = self.parked.take() {
            ctx.cancel_future(parked.timer);
            self.refuse_gone(parked.reply);
        }
        let durability = self.durability.clone();
        let SessionRevoked { credentials, reply, .. } = revoked;
        actix::spawn(async move {
            durability.reached(seq).await;
            credentials.end_session(worker_id);
            send(reply, Ok(Keyed::Done(())));
        });
    }
}

impl Handler<Describe> for WorkerSession {
    type Result = ();

    fn handle(&mut self, describe: Describe, _: &mut Self::Context) {
        let (tasks, last_seen) = match &self.presence {
            Presence::Offline { last_seen } => (Vec::new(), *last_seen),
            Presence::Online { last_seen, holds, .. } => (holds.clone(), Some(*last_seen)),
        };
        let online = matches!(self.presence, Presence::Online { .. });
        if !self.record.gone {
            describe.into.add(Worker {
                warnings: Vec::new(),
                id: self.record.id,
                name: self.record.name.clone(),
                kind: self.record.kind,
                state: self.state(),
                capabilities: self.record.capabilities.clone(),
                tasks,
                last_seen,
                health: self.unhealthy.clone().filter(|_| self.state() == WorkerState::Unhealthy),
                drain: self.record.drain,
                longest_silence_s: self.vitals.longest_silence(),
                telemetry: online.then(|| self.vitals.telemetry()).flatten(),
                clock_offset_s: self.vitals.clock_offset(),
                leaving: online && self.leaving,
                notes: if online { self.vitals.notes() } else { Vec::new() },
            });
        }
    }
}
