//! Scheduler: proposes which queued job goes to which worker. On its own arbiter, so that a long pass delays
//! nobody.
//!
//! Owns: the queue and the pool, as far as it has been told, and what it proposed and nobody answered yet.
//! Never: decides; the supervisor disposes of every proposal.
//! Told by: the supervisor (`JobQueued`, `JobUnqueued`, `PlacementAccepted`, `PlacementRefused`, `QueueTimeoutsOver`,
//! `CapacityFreed`, `CapacityTaken`, `TaskBounded`, `StopPlacing`), worker sessions (`WorkerUp`, `WorkerDown`, `WorkerHealth`, `WorkerSecrets`,
//! `WorkerDraining`, `WorkerLeft`), the front desk (`ExplainQueue`, `Explain`, `LookAhead`).
//! Tells: the supervisor (`PlacementProposed`, `QueueLeft`, `UsageTaken`).
//! Records: every input and every pass, for `gpulayer replay`; nobody waits for that.
//! After a restart: empty, but for who had how much before; the supervisor queues every waiting job and reports every held place again.

mod departures;
mod explainer;
mod notes;
mod questions;

use actix::{Actor, AsyncContext, Context, Handler, Message, Recipient};
use tracing::error;

use self::departures::Departures;
use self::explainer::Explainer;
use self::notes::Notes;
use super::messages::front_desk::{Explain, ExplainQueue, LookAhead};
use super::messages::job_supervisor::{PlacementProposed, QueueLeft, UsageTaken};
use super::messages::scheduler::{
    CapacityFreed, CapacityTaken, JobQueued, JobUnqueued, PlacementAccepted, PlacementRefused,
    QueueTimeoutsOver, StopPlacing, TaskBounded, WorkerDown, WorkerDraining, WorkerHealth, WorkerLeft,
    WorkerSecrets, WorkerUp,
};
use super::messages::send;
use crate::clock;
use crate::contract::ids::JobId;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::domain::placement::replay::{Answer, Entry, Passed};
use crate::domain::placement::usage::NotedUsage;
use crate::domain::placement::{Input, Pass, Placed, Placer, Policy};
use crate::recording::Recorder;

/// A batch of submissions arrives as one message per job.
const MAILBOX: usize = 65_536;
/// Checks of a shape against a worker in one pass; the rest follows after the mailbox has been looked at again.
const BUDGET_CHECKS: u32 = 50_000;

/// Whom the scheduler tells.
pub struct SchedulerTells {
    /// The supervisor.
    pub proposed: Recipient<PlacementProposed>,
    /// The supervisor.
    pub left: Recipient<QueueLeft>,
    /// The supervisor.
    pub usage: Recipient<UsageTaken>,
}

/// Between two notes of who had how much: a restart reads the tasks that ended since.
const TAKE_USAGE_EVERY: Seconds = Seconds::new(60);

/// See the module.
pub struct Scheduler {
    placer: Placer,
    now: clock::Now,
    pass_due: bool,
    stopped: bool,
    tells: SchedulerTells,
    departures: Departures,
    notes: Notes,
    usage_taken_at: Timestamp,
    recorder: Option<Recorder>,
    /// Counts what the placer was told.
    inputs: u64,
    explainer: Explainer,
}

/// Run a pass, once everything that was queued in the mailbox has been taken in.
#[derive(Message)]
#[rtype(result = "()")]
struct RunPass;

impl Scheduler {
    /// A scheduler without jobs and workers.
    pub fn new(now: clock::Now, policy: Policy, tells: SchedulerTells) -> Self {
        Self {
            placer: Placer::new(policy),
            usage_taken_at: now(),
            now,
            pass_due: false,
            stopped: false,
            tells,
            departures: Departures::default(),
            notes: Notes::default(),
            recorder: None,
            inputs: 0,
            explainer: Explainer::start(),
        }
    }

    /// The same, with all that it is told and answers on record.
    pub fn recorded(self, recorder: Option<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// The same, with what projects had had before.
    pub fn after(mut self, before: NotedUsage) -> Self {
        for (project, used) in before.used {
            self.take_in(Input::Used { project, at: before.at, used });
        }
        self
    }

    /// Says who had how much, if it is time: what comes after is found again from the tasks.
    fn note_usage(&mut self, now: Timestamp) {
        if now >= self.usage_taken_at && now < self.usage_taken_at.plus(TAKE_USAGE_EVERY) {
            return;
        }
        self.usage_taken_at = now;
        let usage = NotedUsage { at: now, used: self.placer.shares().noted() };
        self.tells.usage.do_send(UsageTaken { usage });
    }

    /// Takes one thing in.
    fn take_in(&mut self, input: Input) -> Pass {
        if let Some(recorder) = &self.recorder {
            if recorder.wants_start() {
                recorder.note(Entry::Start(Box::new(self.placer.clone())));
            }
            // A pass is recorded with its answer.
            if !matches!(input, Input::Pass { .. }) {
                recorder.note(Entry::Told(input.clone()));
            }
        }
        self.inputs += 1;
        self.placer.apply(input).unwrap_or_else(|error| {
            // The books are the scheduler's own: a mismatch wastes or overlaps a place until the next restart,
            // which rebuilds them from the store.
            error!(%error, "placement books do not balance");
            Pass::default()
        })
    }

    /// The same, of something that may make room.
    fn take_in_and_place(&mut self, ctx: &mut Context<Self>, input: Input) {
        self.take_in(input);
        if !self.pass_due && !self.stopped {
            self.pass_due = true;
            ctx.notify(RunPass);
        }
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

/// A message that is an input and nothing else; `place`: room may have been made by it.
macro_rules! takes_in {
    ($($message:ident($pattern:pat) => $input:expr, place: $place:literal;)*) => {
        $(
            impl Handler<$message> for Scheduler {
                type Result = ();

                fn handle(&mut self, $pattern: $message, ctx: &mut Self::Context) {
                    if $place {
                        self.take_in_and_place(ctx, $input);
                    } else {
                        self.take_in($input);
                    }
                }
            }
        )*
    };
}

takes_in! {
    JobQueued(JobQueued { job }) => Input::Queued(job), place: true;
    PlacementAccepted(PlacementAccepted { job_id }) => Input::Accepted { job_id }, place: false;
    PlacementRefused(PlacementRefused { job_id, gone }) => Input::Refused { job_id, gone }, place: true;
    CapacityFreed(CapacityFreed { worker_id, place }) => Input::Freed { worker_id, place }, place: true;
    CapacityTaken(CapacityTaken { worker_id, place, holding }) =>
        Input::Taken { worker_id, place, holding }, place: false;
    TaskBounded(TaskBounded { worker_id, place, ends_by }) =>
        Input::Bounded { worker_id, place, ends_by }, place: false;
    WorkerUp(WorkerUp { worker_id, name, kind, incarnation, capabilities }) => Input::WorkerUp {
        worker_id, name, kind, incarnation, capabilities: Box::new(capabilities),
    }, place: true;
    WorkerDown(WorkerDown { worker_id }) => Input::WorkerDown { worker_id }, place: true;
    WorkerHealth(WorkerHealth { worker_id, unhealthy }) =>
        Input::WorkerHealth { worker_id, unhealthy }, place: true;
    WorkerSecrets(WorkerSecrets { worker_id, names }) => Input::WorkerSecrets { worker_id, names }, place: true;
    WorkerDraining(WorkerDraining { worker_id, draining }) =>
        Input::WorkerDraining { worker_id, draining }, place: true;
    WorkerLeft(WorkerLeft { worker_id }) => Input::WorkerLeft { worker_id }, place: true;
}

impl Handler<RunPass> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: RunPass, ctx: &mut Self::Context) {
        self.pass_due = false;
        if self.stopped {
            return;
        }
        let now = (self.now)();
        let pass = self.take_in(Input::Pass { now, budget_checks: BUDGET_CHECKS });
        if let Some(recorder) = &self.recorder {
            let answer = Answer::from(&pass);
            recorder.note(Entry::Passed(Passed { now, budget_checks: BUDGET_CHECKS, answer }));
        }
        if !pass.placements.is_empty() || !pass.preemptions.is_empty() {
            let placements = pass.placements.iter().map(Placed::proposal).collect();
            let waited_for = self.notes.of(&pass.placements);
            let preemptions = pass.preemptions;
            self.tells.proposed.do_send(PlacementProposed { placements, preemptions, waited_for });
        }
        self.notes.note(&self.placer, now);
        self.note_usage(now);
        if pass.exhausted {
            self.pass_due = true;
            ctx.notify(RunPass);
        }
    }
}

/// Say how the next of those stood that left.
#[derive(Message)]
#[rtype(result = "()")]
struct AnswerDepartures;

impl Scheduler {
    /// A job waits no more. How it stood is said a little later, so that the queue is free of it at once.
    fn leave(&mut self, ctx: &mut Context<Self>, job_id: JobId) {
        if self.departures.is_empty() {
            ctx.notify(AnswerDepartures);
        }
        self.departures.add(&self.placer, job_id);
        self.take_in_and_place(ctx, Input::Unqueued { job_id });
    }
}

impl Handler<JobUnqueued> for Scheduler {
    type Result = ();

    fn handle(&mut self, gone: JobUnqueued, ctx: &mut Self::Context) {
        if self.placer.queue().contains(gone.job_id) {
            self.leave(ctx, gone.job_id);
        } else {
            self.take_in_and_place(ctx, Input::Unqueued { job_id: gone.job_id });
        }
    }
}

impl Handler<QueueTimeoutsOver> for Scheduler {
    type Result = ();

    fn handle(&mut self, over: QueueTimeoutsOver, ctx: &mut Self::Context) {
        for job_id in over.job_ids {
            self.leave(ctx, job_id);
        }
    }
}

impl Handler<AnswerDepartures> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: AnswerDepartures, ctx: &mut Self::Context) {
        let departures = self.departures.slice(&self.placer, (self.now)());
        self.tells.left.do_send(QueueLeft { departures });
        if !self.departures.is_empty() {
            ctx.notify(AnswerDepartures);
        }
    }
}

impl Handler<ExplainQueue> for Scheduler {
    type Result = ();

    fn handle(&mut self, question: ExplainQueue, _: &mut Self::Context) {
        send(question.reply, self.placer.reason_of(question.job_id, (self.now)()));
    }
}

impl Handler<Explain> for Scheduler {
    type Result = ();

    fn handle(&mut self, asked: Explain, _: &mut Self::Context) {
        self.explainer.ask(&self.placer, self.inputs, (self.now)(), asked);
    }
}

impl Handler<LookAhead> for Scheduler {
    type Result = ();

    fn handle(&mut self, asked: LookAhead, _: &mut Self::Context) {
        let outlooks = asked.shapes.iter().map(|(project, shape)| self.placer.outlook(project, shape));
        send(asked.reply, outlooks.collect());
    }
}

impl Handler<StopPlacing> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: StopPlacing, _: &mut Self::Context) {
        self.stopped = true;
    }
}
