//! JobSupervisor: the one who disposes. Every step of every job is decided here, one after the other.
//!
//! Owns: all live jobs, arrays and their tasks, who waits for whom, the idempotency keys, the credentials, the tables
//! `jobs`, `arrays`, `tasks`, `events`, `used_keys`, `tokens`.
//! Never: speaks before the disk has it; waits for anybody; touches bytes of logs or artifacts.
//! Told by: the front desk (`SubmitJobs`, `CancelJob`, `PurgeJob`, `ChangeDrain`, `EvictTask`, `RevokeWorker`,
//! `MakeToken`, `RevokeToken`, `SpendToken`, `RecordAct`, `RecordUpload`, `WatchJob`, `WhyHeld`, `CountJobs`,
//! `PrepareStop`, `StorageLevel`), the scheduler (`PlacementProposed`, `QueueLeft`, `UsageTaken`), worker sessions (`SessionOpened`, `SessionClosed`,
//! `TasksReported`, `WorkerReturned`, `WorkerLeaving`, `TaskGone`, `TasksUnaccounted`), the lease reaper
//! (`LeaseExpired`, `LeaseResumed`), the journal (`Durable`).
//! Tells: the scheduler, the lease reaper, worker sessions.
//! After a restart: rebuilt from the store by [`restore`]; whatever followed from a job's state is told again.

mod alarms;
mod arrays;
mod clients;
mod departures;
mod dependants;
mod draining;
mod keys;
pub mod restore;
mod roll_call;
mod speech;
mod tokens;
pub mod usage;
mod watchers;
mod workers;

use std::collections::HashMap;
use std::sync::Arc;

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};

use self::alarms::Alarms;
use self::arrays::Arrays;
use self::departures::TimedOutArrays;
use self::dependants::{Dependants, over};
use self::keys::Keys;
use self::restore::Restoration;
use self::speech::{Speech, Speeches};
use self::watchers::{Reached, Watchers};
use super::messages::job_supervisor::LeaseExpired;
use super::messages::lease_reaper::{Forget, Started, Watch};
use super::messages::scheduler::{
    CapacityFreed, CapacityTaken, JobQueued, JobUnqueued, PlacementAccepted, PlacementRefused,
    QueueTimeoutsOver, StopPlacing, TaskBounded,
};
use super::messages::worker_session::{Offer, SessionPorts, Settled, StopTask};
use super::messages::{Durable, Reply, send};
use crate::clock;
use crate::contract::gang::Peer;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::protocol::StopReason;
use crate::contract::worker::Drain;
use crate::credentials::known::Credentials;
use crate::domain::credentials::table::TokenTable;
use crate::domain::job::LiveJob;
use crate::domain::ledger::{Alarm, Ledger, Notice};
use crate::domain::placement::{Luggage, Place, QueuedJob, Shape};
use crate::domain::queue_limit::QueueLimits;
use crate::journal::{Journal, Seq};
use crate::store::Reads;

/// The front desk bounds what comes in; a burst of reports and submissions must not be refused here.
const MAILBOX: usize = 65_536;
/// Parsed specs of queued jobs kept in memory; those of later jobs are read back from the store when placed.
const HELD_SPECS: usize = 2_048;
/// How often used keys past their time are dropped from memory.
const PRUNE_EVERY: std::time::Duration = std::time::Duration::from_secs(3600);
/// How often it is written down which tokens were used: one row for each that was, and none if none was.
const NOTE_USE_EVERY: std::time::Duration = std::time::Duration::from_secs(60);

/// Whom the supervisor tells.
#[derive(Clone)]
pub struct SupervisorTells {
    /// The scheduler.
    pub queued: Recipient<JobQueued>,
    /// The scheduler.
    pub unqueued: Recipient<JobUnqueued>,
    /// The scheduler.
    pub timed_out: Recipient<QueueTimeoutsOver>,
    /// The scheduler.
    pub accepted: Recipient<PlacementAccepted>,
    /// The scheduler.
    pub refused: Recipient<PlacementRefused>,
    /// The scheduler.
    pub freed: Recipient<CapacityFreed>,
    /// The scheduler.
    pub taken: Recipient<CapacityTaken>,
    /// The scheduler.
    pub bounded: Recipient<TaskBounded>,
    /// The scheduler.
    pub stop_placing: Recipient<StopPlacing>,
    /// The lease reaper.
    pub watch: Recipient<Watch>,
    /// The lease reaper.
    pub started: Recipient<Started>,
    /// The lease reaper.
    pub forget: Recipient<Forget>,
}

/// See the module.
pub struct JobSupervisor {
    now: clock::Now,
    journal: Journal,
    reads: Reads,
    tells: SupervisorTells,
    jobs: HashMap<JobId, LiveJob>,
    tasks: HashMap<TaskId, JobId>,
    stale: HashMap<TaskId, StaleTask>,
    /// What those hold that were stale at the start, until the scheduler is told.
    stale_holdings: Vec<CapacityTaken>,
    sessions: HashMap<WorkerId, Session>,
    shapes: HashMap<Arc<Shape>, ()>,
    position: u64,
    speeches: Speeches,
    watchers: Watchers,
    dependants: Dependants,
    arrays: Arrays,
    timed_out_arrays: TimedOutArrays,
    limits: QueueLimits,
    alarms: Alarms,
    timer: Option<SpawnHandle>,
    keys: Keys,
    tokens: TokenTable,
    credentials: Arc<Credentials>,
    held_specs: usize,
    storage_full: bool,
    stopping: Option<Stopping>,
}

/// A task that was given up while its process tree may still be there: its place stays taken.
#[derive(Debug)]
pub struct StaleTask {
    /// Where.
    pub worker_id: WorkerId,
    /// Which placement.
    pub place: Place,
}

struct Session {
    /// How others of a gang reach it.
    peer: Peer,
    incarnation: u64,
    /// Set while it takes no new tasks.
    drain: Option<Drain>,
    /// It takes no new tasks either, by its own word.
    leaving: bool,
    ports: SessionPorts,
}

/// The daemon is leaving.
enum Stopping {
    /// Nothing new; what runs goes on.
    Keeping,
    /// Nothing new; answered once nothing runs.
    Draining(Option<Reply<()>>),
}

impl JobSupervisor {
    /// A supervisor of what the store remembers.
    pub fn new(
        now: clock::Now,
        journal: Journal,
        reads: Reads,
        tells: SupervisorTells,
        restored: Restoration,
    ) -> Self {
        let tasks = restored
            .jobs
            .iter()
            .flat_map(|job| job.placed().map(|placed| (placed.task_id, job.id)))
            .collect();
        Self {
            keys: Keys::remembered(restored.key_scopes),
            tokens: TokenTable::remembered(restored.tokens),
            credentials: restored.credentials,
            now,
            journal,
            reads,
            tells,
            jobs: restored.jobs.into_iter().map(|job| (job.id, job)).collect(),
            tasks,
            stale: restored.stale,
            stale_holdings: restored.stale_holdings,
            sessions: HashMap::new(),
            shapes: HashMap::new(),
            position: restored.position,
            speeches: Speeches::default(),
            watchers: Watchers::default(),
            dependants: Dependants::default(),
            arrays: Arrays::restored(restored.arrays),
            timed_out_arrays: TimedOutArrays::default(),
            limits: QueueLimits::default(),
            alarms: Alarms::default(),
            timer: None,
            held_specs: 0,
            storage_full: false,
            stopping: None,
        }
    }

    /// The same, with limits on how many jobs projects may have.
    pub fn limited(self, mut limits: QueueLimits) -> Self {
        self.jobs.values().for_each(|job| limits.came(&job.project, 1));
        Self { limits, ..self }
    }

    fn ledger(&self) -> Ledger {
        Ledger::new((self.now)(), self.position)
    }

    /// One step of one job. `None` when the supervisor does not hold it.
    fn step<T>(
        &mut self,
        ctx: &mut Context<Self>,
        job_id: JobId,
        act: impl FnOnce(&mut LiveJob, &mut Ledger) -> T,
    ) -> Option<T> {
        let mut ledger = self.ledger();
        let outcome = act(self.jobs.get_mut(&job_id)?, &mut ledger);
        self.commit(ctx, ledger, &[job_id]);
        Some(outcome)
    }

    /// Journals what was decided and lines up what may be said afterwards. `touched`: the jobs it was about.
    fn commit(&mut self, ctx: &mut Context<Self>, mut ledger: Ledger, touched: &[JobId]) -> Seq {
        let parents = self.tally(&mut ledger);
        self.position = ledger.position;
        let seq = self.journal.append(ledger.changes);
        for notice in ledger.notices {
            match notice {
                Notice::Queued(job_id) => self.tell_queued(job_id),
                Notice::Unqueued(job_id) => self.tells.unqueued.do_send(JobUnqueued { job_id }),
                Notice::Wake(at, alarm) => self.set_alarm(ctx, at, alarm),
                effect => self.speeches.push(seq, Speech::Notice(effect)),
            }
        }
        for job_id in touched {
            let Some(job) = self.jobs.get(job_id) else { continue };
            let reached = Reached::by(job);
            for reply in self.watchers.satisfied(*job_id, reached) {
                self.speeches.push(seq, answer(reply, ()));
            }
            if reached.ended {
                self.speeches.push(seq, Speech::JobOver(*job_id));
            }
        }
        for parent in parents {
            self.parent_moved(seq, parent);
        }
        self.sweep_on(ctx);
        seq
    }

    /// Says this once everything decided so far is on disk (at once if it is).
    fn say_at_newest(&mut self, speech: Speech) {
        let newest = self.journal.newest();
        self.speeches.push(newest, speech);
        self.speak();
    }

    fn speak(&mut self) {
        while let Some(speech) = self.speeches.due() {
            match speech {
                Speech::Answer(speak) => speak(),
                Speech::Notice(notice) => self.give_notice(notice),
                Speech::JobOver(job_id) => self.forget_job(job_id),
                Speech::SpecStored(job_id) => self.release_spec(job_id),
            }
        }
    }

    fn give_notice(&mut self, notice: Notice) {
        match notice {
            // Told at once, in `commit`.
            Notice::Queued(_) | Notice::Unqueued(_) | Notice::Wake(..) => {}
            Notice::Offer(worker_id, assignment) => {
                if let Some(session) = self.sessions.get(&worker_id) {
                    session.ports.offer.do_send(Offer { assignment: *assignment });
                }
            }
            Notice::Watch(worker_id, task_id, epoch) => {
                self.tells.watch.do_send(Watch { task_id, epoch, worker_id });
            }
            Notice::Started { worker, task_id, suspended } => {
                self.tells.started.do_send(Started { task_id, suspended });
                self.tell_settled(worker, task_id, true);
            }
            Notice::Stop { worker: worker_id, task_id, cause, now } => {
                self.tell_stop(worker_id, StopTask { task_id, cause: cause.told(), now, lost: false });
            }
            Notice::Settled(worker_id, task_id) => {
                self.tells.forget.do_send(Forget { task_id });
                self.tell_settled(worker_id, task_id, false);
                self.tasks.remove(&task_id);
            }
            Notice::Freed(worker_id, place) => self.tells.freed.do_send(CapacityFreed { worker_id, place }),
            Notice::Bounded(worker_id, place, ends_by) => {
                self.tells.bounded.do_send(TaskBounded { worker_id, place, ends_by });
            }
            Notice::Stale(worker_id, task_id, place) => {
                self.stale.insert(task_id, StaleTask { worker_id, place });
                self.tell_stop(worker_id, given_up(task_id));
            }
        }
    }

    fn tell_settled(&self, worker_id: WorkerId, task_id: TaskId, started: bool) {
        if let Some(session) = self.sessions.get(&worker_id) {
            session.ports.settled.do_send(Settled { task_id, started });
        }
    }

    fn tell_stop(&self, worker_id: WorkerId, order: StopTask) {
        if let Some(session) = self.sessions.get(&worker_id) {
            session.ports.stop.do_send(order);
        }
    }

    fn tell_queued(&self, job_id: JobId) {
        if let Some(job) = self.jobs.get(&job_id) {
            self.tells.queued.do_send(JobQueued {
                job: QueuedJob {
                    job_id,
                    epoch: job.epoch(),
                    priority: job.priority,
                    submitted_at: job.submitted_at,
                    shape: job.shape.clone(),
                    project: job.project.clone(),
                    avoid: job.avoid,
                    // One whose spec was left in the store goes without: it is a hint.
                    luggage: job.spec.as_deref().map_or_else(Luggage::default, Luggage::of),
                },
            });
        }
    }

    fn forget_job(&mut self, job_id: JobId) {
        if let Some(job) = self.jobs.remove(&job_id) {
            self.limits.ended(&job.project);
            if job.spec.is_some() && job.member.is_none() {
                self.held_specs = self.held_specs.saturating_sub(1);
            }
            self.note_over(job_id, over(&job));
        } else {
            self.forget_array(job_id);
        }
        if self.jobs.capacity() > 4 * self.jobs.len().max(4_096) {
            self.jobs.shrink_to(2 * self.jobs.len());
        }
        self.answer_drained();
    }

    fn release_spec(&mut self, job_id: JobId) {
        if self.held_specs > HELD_SPECS
            && let Some(job) = self.jobs.get_mut(&job_id)
            && job.spec.take().is_some()
        {
            self.held_specs -= 1;
        }
    }

    /// The shared form of a shape: thousands of jobs that ask for the same keep it once.
    fn shared_shape(&mut self, shape: Shape) -> Arc<Shape> {
        if let Some((shared, ())) = self.shapes.get_key_value(&shape) {
            return shared.clone();
        }
        if self.shapes.len() > 4_096 {
            self.shapes.retain(|shape, ()| Arc::strong_count(shape) > 1);
        }
        let shared = Arc::new(shape);
        self.shapes.insert(shared.clone(), ());
        shared
    }

    fn set_alarm(&mut self, ctx: &mut Context<Self>, at: crate::contract::quantity::Timestamp, alarm: Alarm) {
        if self.alarms.add(at, alarm) {
            self.set_timer(ctx);
        }
    }

    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        self.timer = self.alarms.sleep((self.now)()).map(|sleep| ctx.run_later(sleep, Self::ring));
    }

    fn ring(&mut self, ctx: &mut Context<Self>) {
        self.timer = None;
        let now = (self.now)();
        let mut timed_out = Vec::new();
        while let Some(alarm) = self.alarms.due(now) {
            match alarm {
                Alarm::QueueTimeout(id) => timed_out.push(id),
                Alarm::BackoffOver(id) => {
                    self.step(ctx, id, LiveJob::backoff_over);
                }
                Alarm::RunTimeout(id, epoch) => {
                    self.step(ctx, id, |job, ledger| job.run_timeout(ledger, epoch));
                }
                Alarm::UnreachableTimeout(id, epoch) => {
                    self.step(ctx, id, |job, ledger| job.unreachable_timeout(ledger, epoch));
                }
                Alarm::DrainDeadline(worker_id) => self.drain_overdue(ctx, worker_id),
            }
        }
        self.queue_timeouts(ctx, timed_out);
        self.sweep_on(ctx);
        self.set_timer(ctx);
    }
}

/// The order that a task which was given up must end, whenever its worker can be told.
fn given_up(task_id: TaskId) -> StopTask {
    StopTask { task_id, cause: StopReason::Lost, now: true, lost: true }
}

/// An answer to a caller, as a speech.
fn answer<T: 'static>(reply: Reply<T>, value: T) -> Speech {
    Speech::Answer(Box::new(move || send(reply, value)))
}

impl Actor for JobSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        ctx.run_interval(PRUNE_EVERY, |supervisor, _| supervisor.keys.prune((supervisor.now)()));
        ctx.run_interval(NOTE_USE_EVERY, |supervisor, _| supervisor.note_token_use());
        let mut ledger = self.ledger();
        for job in self.jobs.values() {
            for placed in job.placed() {
                let (place, holding) = (job.place_key(), job.holding(placed));
                self.tells.taken.do_send(CapacityTaken { worker_id: placed.worker, place, holding });
            }
            job.rederive(&mut ledger);
        }
        for taken in std::mem::take(&mut self.stale_holdings) {
            self.tells.taken.do_send(taken);
        }
        let mut waiting: Vec<JobId> =
            self.jobs.values().filter(|job| !job.waits().is_empty()).map(|job| job.id).collect();
        waiting.extend(self.rederive_arrays(&mut ledger));
        let moved = self.await_dependencies(&mut ledger, &waiting);
        self.commit(ctx, ledger, &moved);
        self.speak();
    }
}

impl Handler<Durable> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, durable: Durable, ctx: &mut Self::Context) {
        self.speeches.advance(durable.through);
        self.speak();
        self.judge_dependants(ctx);
    }
}

impl Handler<LeaseExpired> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, expired: LeaseExpired, ctx: &mut Self::Context) {
        if let Some(job_id) = self.tasks.get(&expired.task_id).copied() {
            self.step(ctx, job_id, |job, ledger| job.lease_expired(ledger, expired.task_id, expired.epoch));
            self.answer_drained();
            self.speak();
        }
    }
}
