//! FrontDesk: where everything from outside comes in, over HTTP or from the worker in this process.
//!
//! Owns: the directory of worker sessions, and the registration of new workers.
//! Never: decides about jobs; never answers for another actor: it passes the question on with its reply.
//! Told by: the HTTP edge and the in-process worker channel.
//! Tells: the supervisor, the scheduler, worker sessions.
//! After a restart: opens a session for every worker the store remembers.

use std::collections::HashMap;
use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient};
use tokio::sync::oneshot;
use tracing::error;

use super::messages::front_desk::{
    Acquire, CancelJob, ChangeDrain, CountJobs, DeregisterWorker, EvictTask, Explain, ExplainQueue,
    Heartbeat, ListWorkers, LookAhead, MakeToken, PrepareStop, PurgeJob, RecordAct, RecordUpload,
    RegisterWorker, ReportTasks, ResumeWorker, RevokeToken, RevokeWorker, SpendToken, StorageLevel,
    SubmitJobs, WatchJob, WhoHolds, WhyHeld, WorkerRefusal,
};
use super::messages::send;
use super::messages::worker_session::{Describe, Gathering, NewSession, OpenSession, SessionPorts};
use crate::clock;
use crate::contract::ids::WorkerId;
use crate::contract::protocol::{RegisterAnswer, Timing};
use crate::credentials;
use crate::domain::change::WorkerRecord;

/// Every HTTP connection can have one message here; the edge bounds how many there are.
const MAILBOX: usize = 65_536;

/// Whom the front desk passes things on to.
pub struct DeskTells {
    /// The supervisor.
    pub submit: Recipient<SubmitJobs>,
    /// The supervisor.
    pub cancel: Recipient<CancelJob>,
    /// The supervisor.
    pub purge: Recipient<PurgeJob>,
    /// The supervisor.
    pub watch: Recipient<WatchJob>,
    /// The supervisor.
    pub count: Recipient<CountJobs>,
    /// The supervisor.
    pub holds: Recipient<WhoHolds>,
    /// The supervisor.
    pub held: Recipient<WhyHeld>,
    /// The supervisor.
    pub drain: Recipient<ChangeDrain>,
    /// The supervisor.
    pub evict: Recipient<EvictTask>,
    /// The supervisor.
    pub revoke: Recipient<RevokeWorker>,
    /// The supervisor.
    pub make_token: Recipient<MakeToken>,
    /// The supervisor.
    pub revoke_token: Recipient<RevokeToken>,
    /// The supervisor.
    pub spend_token: Recipient<SpendToken>,
    /// The supervisor.
    pub record_act: Recipient<RecordAct>,
    /// The supervisor.
    pub record_upload: Recipient<RecordUpload>,
    /// The supervisor.
    pub prepare_stop: Recipient<PrepareStop>,
    /// The supervisor.
    pub storage: Recipient<StorageLevel>,
    /// The scheduler.
    pub explain_queue: Recipient<ExplainQueue>,
    /// The scheduler.
    pub explain: Recipient<Explain>,
    /// The scheduler.
    pub look_ahead: Recipient<LookAhead>,
}

/// See the module.
pub struct FrontDesk {
    tells: DeskTells,
    timing: Timing,
    remembered: Vec<WorkerRecord>,
    sessions: HashMap<WorkerId, SessionPorts>,
    /// Who registered under what.
    registrations: HashMap<(String, String), WorkerId>,
    open_session: OpenSession,
}

impl FrontDesk {
    /// A front desk that knows these workers.
    pub fn new(
        tells: DeskTells,
        timing: Timing,
        remembered: Vec<WorkerRecord>,
        open_session: OpenSession,
    ) -> Self {
        Self {
            tells,
            timing,
            remembered,
            sessions: HashMap::new(),
            registrations: HashMap::new(),
            open_session,
        }
    }

    /// A registration whose answer was lost: nobody has its session, so nobody would ever run what is placed there.
    fn drop_unheard(&self, worker_id: Option<WorkerId>) {
        let session = worker_id.and_then(|worker_id| Some((worker_id, self.sessions.get(&worker_id)?)));
        if let Some((worker_id, session)) = session {
            let (reply, _nobody) = oneshot::channel();
            session.deregister.do_send(DeregisterWorker { worker_id, reply });
        }
    }

    /// The session of a worker; without one, its calls are refused.
    fn session(&self, worker_id: WorkerId) -> Result<&SessionPorts, WorkerRefusal> {
        self.sessions.get(&worker_id).ok_or(WorkerRefusal::Revoked)
    }
}

/// What it registered under, on which boot: many machines may be made of one image, in which a worker had tried.
fn registration_of(record: &WorkerRecord) -> Option<(String, String)> {
    Some((record.registration.clone()?, record.identity.boot_id.clone()))
}

impl Actor for FrontDesk {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        for record in std::mem::take(&mut self.remembered) {
            let worker_id = record.id;
            if let Some(registration) = registration_of(&record).filter(|_| !record.gone) {
                self.registrations.insert(registration, worker_id);
            }
            let ports = (self.open_session)(NewSession { record, greeting: None });
            self.sessions.insert(worker_id, ports);
        }
    }
}

macro_rules! pass_on {
    ($($message:ident to $port:ident),* $(,)?) => {
        $(impl Handler<$message> for FrontDesk {
            type Result = ();

            fn handle(&mut self, message: $message, _: &mut Self::Context) {
                self.tells.$port.do_send(message);
            }
        })*
    };
}

pass_on! {
    SubmitJobs to submit,
    CancelJob to cancel,
    PurgeJob to purge,
    WatchJob to watch,
    CountJobs to count,
    WhoHolds to holds,
    WhyHeld to held,
    ChangeDrain to drain,
    EvictTask to evict,
    RevokeWorker to revoke,
    MakeToken to make_token,
    RevokeToken to revoke_token,
    SpendToken to spend_token,
    RecordAct to record_act,
    RecordUpload to record_upload,
    PrepareStop to prepare_stop,
    StorageLevel to storage,
    ExplainQueue to explain_queue,
    Explain to explain,
    LookAhead to look_ahead,
}

macro_rules! pass_to_session {
    ($($message:ident to $port:ident),* $(,)?) => {
        $(impl Handler<$message> for FrontDesk {
            type Result = ();

            fn handle(&mut self, call: $message, _: &mut Self::Context) {
                match self.session(call.worker_id) {
                    Ok(session) => session.$port.do_send(call),
                    Err(refusal) => send(call.reply, Err(refusal)),
                }
            }
        })*
    };
}

pass_to_session! {
    ResumeWorker to resume,
    Heartbeat to heartbeat,
    Acquire to acquire,
    ReportTasks to report,
    DeregisterWorker to deregister,
}

impl Handler<RegisterWorker> for FrontDesk {
    type Result = ();

    fn handle(&mut self, call: RegisterWorker, _: &mut Self::Context) {
        let session_token = match call.with_token.then(|| credentials::mint(credentials::SESSION_PREFIX)) {
            None => String::new(),
            Some(Ok(token)) => token,
            Some(Err(error)) => {
                // The dropped reply tells the caller to come again.
                error!(%error, "a worker cannot be registered");
                return;
            }
        };
        let record = WorkerRecord {
            id: clock::worker_id(),
            name: call.request.name,
            kind: call.request.kind,
            identity: call.request.identity,
            capabilities: call.request.capabilities,
            session_hash: call.with_token.then(|| credentials::hash(&session_token)),
            registered_at: clock::now(),
            registration: call.request.registration,
            gone: false,
            drain: None,
        };
        let worker_id = record.id;
        if let Some(registration) = registration_of(&record) {
            let before = self.registrations.insert(registration, worker_id);
            self.drop_unheard(before);
        }
        let answer = RegisterAnswer { worker_id, session_token, timing: self.timing };
        let ports = (self.open_session)(NewSession { record, greeting: Some((call.reply, answer)) });
        self.sessions.insert(worker_id, ports);
    }
}

impl Handler<ListWorkers> for FrontDesk {
    type Result = ();

    fn handle(&mut self, question: ListWorkers, _: &mut Self::Context) {
        let into = Gathering::answering(question);
        for session in self.sessions.values() {
            session.describe.do_send(Describe { into: Arc::clone(&into) });
        }
    }
}
