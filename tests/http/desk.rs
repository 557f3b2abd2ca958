//! The front desk of these tests: accepts what the real one would, writes it to the real store, and remembers what
//! it was told.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::{Actor, Context, Handler};
use parking_lot::Mutex;
use tokio::sync::watch;

use gpulayer::actors::messages::Reply;
use gpulayer::actors::messages::front_desk::*;
use gpulayer::clock;
use gpulayer::contract::end::{End, EndReason};
use gpulayer::contract::error_code::ErrorCode;
use gpulayer::contract::event::{Event, EventType};
use gpulayer::contract::ids::{JobId, TaskId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::*;
use gpulayer::contract::quantity::Seconds;
use gpulayer::contract::server::StopRequest;
use gpulayer::contract::worker::{Drain, Worker, WorkerKind, WorkerState};
use gpulayer::contract::yielded::Yielded;
use gpulayer::credentials::known::Credentials;
use gpulayer::domain::change::{Change, JobStanding, UsedKey, WorkerRecord};
use gpulayer::domain::credentials::table::TokenTable;
use gpulayer::http::Desk;
use gpulayer::journal::Seq;
use gpulayer::store::{CommitPort, ONLY_TERM, Writer};

use crate::stand::{TASK, WORKER, worker};

pub const NEW_WORKER: WorkerId = WorkerId::from_u128(77);
pub const NEW_SESSION: &str = "gls_fresh";

/// What the desk shares with the test.
pub struct Shared {
    writer: Mutex<Writer>,
    durable: watch::Sender<Seq>,
    pub standings: Mutex<HashMap<JobId, JobStanding>>,
    used: Mutex<HashMap<[u8; 32], ()>>,
    waiting: Mutex<Vec<(JobId, Until, Reply<()>)>>,
    positions: Mutex<u64>,
    /// What submissions are refused with.
    pub refusal: Mutex<Option<SubmitRefusal>>,
    /// What worker calls are refused with.
    pub worker_refusal: Mutex<Option<WorkerRefusal>>,
    /// Everything workers reported.
    pub reports: Mutex<Vec<(WorkerId, ReportRequest)>>,
    /// Acquires that are parked.
    pub parked: Mutex<Vec<Reply<Result<AcquireAnswer, WorkerRefusal>>>>,
    /// What registered workers were recorded as.
    pub kinds: Mutex<Vec<WorkerKind>>,
    /// Stops that were asked for.
    pub stops: Mutex<Vec<StopRequest>>,
    /// Why jobs wait.
    pub reason: Mutex<String>,
    /// Whether every credential asks what-ifs already.
    pub busy: Mutex<bool>,
    /// A job that waits for others first: the scheduler does not know it.
    pub waits: Mutex<Option<JobId>>,
    /// The one job that holds a place.
    pub holder: Mutex<Option<Holder>>,
    /// What is said of every job that is submitted.
    pub outlook: Mutex<Option<gpulayer::domain::placement::Outlook>>,
    /// What was last asked of the worker.
    pub drain: Mutex<Option<DrainOrder>>,
    /// Tasks that were evicted: they are gone at once here.
    pub evicted: Mutex<Vec<TaskId>>,
    /// Tokens, as the supervisor knows them.
    pub tokens: Mutex<TokenTable>,
    /// Whether the worker was revoked.
    pub revoked: AtomicBool,
    /// Powers that were used.
    pub acts: Mutex<Vec<(Act, String)>>,
    /// What the edge looks tokens up in.
    pub credentials: Mutex<Option<Arc<Credentials>>>,
    /// The job whose log the test's task writes.
    pub owner: Mutex<Option<JobId>>,
}

impl Shared {
    pub fn new(writer: Writer, durable: watch::Sender<Seq>) -> Self {
        Self {
            writer: Mutex::new(writer),
            durable,
            standings: Mutex::default(),
            used: Mutex::default(),
            waiting: Mutex::default(),
            positions: Mutex::new(0),
            refusal: Mutex::new(None),
            worker_refusal: Mutex::new(None),
            reports: Mutex::default(),
            parked: Mutex::default(),
            kinds: Mutex::default(),
            stops: Mutex::default(),
            reason: Mutex::new("1 worker: needs 9 CPUs, has 2".to_owned()),
            waits: Mutex::default(),
            holder: Mutex::default(),
            busy: Mutex::default(),
            outlook: Mutex::default(),
            drain: Mutex::default(),
            evicted: Mutex::default(),
            tokens: Mutex::default(),
            revoked: AtomicBool::default(),
            acts: Mutex::default(),
            credentials: Mutex::default(),
            owner: Mutex::default(),
        }
    }

    /// What the edge looks tokens up in.
    pub fn credentials(&self) -> Arc<Credentials> {
        self.credentials.lock().clone().unwrap()
    }

    /// The one worker there is.
    fn fleet(&self) -> Worker {
        let WorkerRecord { id, name, kind, capabilities, .. } = worker(false);
        let draining = matches!(*self.drain.lock(), Some(DrainOrder::Drain { .. }));
        let since = clock::now();
        Worker {
            id,
            name,
            kind,
            state: if draining { WorkerState::Draining } else { WorkerState::Busy },
            capabilities,
            tasks: vec![TASK],
            last_seen: Some(since),
            health: None,
            drain: draining.then_some(Drain { since, deadline: None }),
            leaving: false,
            longest_silence_s: None,
            telemetry: None,
            clock_offset_s: None,
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Writes what the supervisor would have written before the edge was there.
    pub fn record(&self, changes: &[Change]) {
        self.writer.lock().apply(changes, ONLY_TERM).unwrap();
    }

    fn commit(&self, changes: &[Change]) {
        self.writer.lock().apply(changes, ONLY_TERM).unwrap();
        self.durable.send_modify(|seq| seq.0 += 1);
    }

    /// Records values that a job's generator yielded, as the supervisor would.
    pub fn yielded(&self, job_id: JobId, texts: &[&str]) {
        let moved = {
            let mut standings = self.standings.lock();
            let standing = standings.get_mut(&job_id).unwrap();
            standing.yielded += texts.len() as u64;
            standing.clone()
        };
        let first_n = moved.yielded + 1 - texts.len() as u64;
        let value = |text: &&str| Yielded {
            text: Some((*text).to_owned()),
            artifact: None,
            size_bytes: text.len() as u64,
        };
        let values = texts.iter().map(value).collect();
        self.commit(&[Change::ValuesYielded(job_id, first_n, values), Change::JobMoved(job_id, moved)]);
        self.wake();
    }

    /// Records an event of a job, as the supervisor would.
    pub fn happened(&self, job_id: JobId, kind: EventType) {
        self.happened_with(job_id, kind, serde_json::json!({}));
    }

    /// The same, with what it tells.
    pub fn happened_with(&self, job_id: JobId, kind: EventType, data: serde_json::Value) {
        let mut standings = self.standings.lock();
        let standing = standings.get_mut(&job_id).unwrap();
        standing.event_seq += 1;
        let position = {
            let mut positions = self.positions.lock();
            *positions += 1;
            *positions
        };
        let event = Event {
            seq: standing.event_seq,
            position,
            time: clock::now(),
            kind,
            job_id: Some(job_id),
            task_id: None,
            data,
        };
        let moved = Change::JobMoved(job_id, standing.clone());
        drop(standings);
        self.commit(&[moved, Change::EventAppended(Box::new(event))]);
        self.wake();
    }

    /// Queues a job again that left for another.
    pub fn preempted(&self, job_id: JobId, by: JobId) {
        let moved = {
            let mut standings = self.standings.lock();
            let standing = standings.get_mut(&job_id).unwrap();
            (standing.state, standing.went_for) = (JobState::Queued, Some(by));
            Change::JobMoved(job_id, standing.clone())
        };
        self.commit(&[moved]);
    }

    /// Moves a job, as the supervisor would.
    pub fn moved(&self, job_id: JobId, state: JobState) {
        self.moved_unheard(job_id, state);
        self.wake();
    }

    /// The same, and nobody who waits for it is told.
    pub fn moved_unheard(&self, job_id: JobId, state: JobState) {
        {
            let mut standings = self.standings.lock();
            let standing = standings.get_mut(&job_id).unwrap();
            standing.state = state;
            if state.ended() {
                standing.ended_at = Some(clock::now());
                let reason =
                    if state == JobState::Cancelled { EndReason::Cancelled } else { EndReason::Completed };
                standing.end = Some(Box::new(End::of(reason, None)));
            }
            let moved = Change::JobMoved(job_id, standing.clone());
            self.commit(&[moved]);
        }
    }

    fn satisfied(&self, job_id: JobId, until: Until) -> bool {
        self.standings.lock().get(&job_id).is_none_or(|standing| {
            standing.state.ended()
                || match until {
                    Until::Ended => false,
                    Until::EventAfter(after) => standing.event_seq > after,
                    Until::YieldedAfter(after) => standing.yielded > after,
                }
        })
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for (job_id, until, reply) in waiting {
            if self.satisfied(job_id, until) {
                let _ = reply.send(());
            } else {
                self.waiting.lock().push((job_id, until, reply));
            }
        }
    }

    /// How many are parked for a job's news.
    pub fn watchers(&self) -> usize {
        let mut waiting = self.waiting.lock();
        waiting.retain(|(_, _, reply)| !reply.is_closed());
        waiting.len()
    }

    fn first_use(&self, key: Option<&UsedKey>) -> bool {
        key.is_none_or(|key| self.used.lock().insert(key.scope, ()).is_none())
    }
}

pub struct FakeDesk(pub Arc<Shared>);

impl FakeDesk {
    pub fn open(shared: Arc<Shared>) -> Desk {
        let desk = FakeDesk(shared).start();
        Desk {
            submit_jobs: desk.clone().recipient(),
            cancel_job: desk.clone().recipient(),
            purge_job: desk.clone().recipient(),
            watch_job: desk.clone().recipient(),
            explain_queue: desk.clone().recipient(),
            explain: desk.clone().recipient(),
            look_ahead: desk.clone().recipient(),
            count_jobs: desk.clone().recipient(),
            who_holds: desk.clone().recipient(),
            why_held: desk.clone().recipient(),
            change_drain: desk.clone().recipient(),
            evict_task: desk.clone().recipient(),
            revoke_worker: desk.clone().recipient(),
            make_token: desk.clone().recipient(),
            revoke_token: desk.clone().recipient(),
            spend_token: desk.clone().recipient(),
            record_act: desk.clone().recipient(),
            record_upload: desk.clone().recipient(),
            register_worker: desk.clone().recipient(),
            resume_worker: desk.clone().recipient(),
            heartbeat: desk.clone().recipient(),
            acquire: desk.clone().recipient(),
            report_tasks: desk.clone().recipient(),
            deregister_worker: desk.clone().recipient(),
            list_workers: desk.recipient(),
        }
    }
}

impl Actor for FakeDesk {
    type Context = Context<Self>;
}

macro_rules! handles {
    ($($message:ty => |$shared:ident, $call:ident| $body:block)*) => {
        $(impl Handler<$message> for FakeDesk {
            type Result = ();

            fn handle(&mut self, $call: $message, _: &mut Context<Self>) {
                let $shared = &self.0;
                $body
            }
        })*
    };
}

handles! {
    SubmitJobs => |shared, call| {
        if let Some(refusal) = shared.refusal.lock().clone() {
            let _ = call.reply.send(Err(refusal));
            return;
        }
        if !shared.first_use(call.key.as_deref()) {
            let _ = call.reply.send(Ok(Keyed::Repeat));
            return;
        }
        let mut changes = Vec::new();
        for job in call.jobs {
            let standing = queued();
            shared.standings.lock().insert(job.record.id, standing.clone());
            changes.push(Change::JobInserted(job.record, standing));
        }
        changes.extend(call.key.map(Change::KeyUsed));
        shared.commit(&changes);
        let _ = call.reply.send(Ok(Keyed::Done(())));
    }
    CancelJob => |shared, call| {
        if !shared.first_use(call.key.as_deref()) {
            let _ = call.reply.send(Keyed::Repeat);
            return;
        }
        let live = !shared.satisfied(call.job_id, Until::Ended);
        if live {
            shared.moved(call.job_id, JobState::Cancelled);
        }
        if let Some(key) = call.key {
            shared.commit(&[Change::KeyUsed(key)]);
        }
        let _ = call.reply.send(Keyed::Done(live));
    }
    PurgeJob => |shared, call| {
        let state = shared.standings.lock()[&call.job_id].state;
        if !state.ended() {
            let _ = call.reply.send(Err(JobNotEnded { state }));
            return;
        }
        shared.standings.lock().remove(&call.job_id);
        let mut changes = vec![Change::JobPurged(call.job_id)];
        changes.extend(call.key.map(Change::KeyUsed));
        shared.commit(&changes);
        let _ = call.reply.send(Ok(Keyed::Done(())));
    }
    WatchJob => |shared, call| {
        shared.waiting.lock().push((call.job_id, call.until, call.reply));
        shared.wake();
    }
    ExplainQueue => |shared, call| {
        let line = shared.reason.lock().clone();
        let _ = call.reply.send(Some(QueueReason { line, reserved_for: None }));
    }
    Explain => |shared, call| {
        let placer = gpulayer::domain::placement::Placer::new(Default::default());
        let answer = match call.question {
            Question::Wish { by: Some(_), .. } if *shared.busy.lock() => Err(Unexplained::TooManyOfOne),
            Question::Wish { like: Some(name), .. } => Err(Unexplained::NoSuchWorker(name)),
            Question::Wish { job, .. } => Ok(Some(placer.explain_wish(&job, clock::now(), &mut Default::default()))),
            Question::Job { job_id, .. } if *shared.waits.lock() == Some(job_id) => Ok(None),
            Question::Job { job_id, .. } => {
                let wish = gpulayer::domain::placement::wish(job_id, 0, "p".into(), Default::default(), clock::now());
                let summary = shared.reason.lock().clone();
                Ok(Some(gpulayer::contract::explain::Explanation { summary, ..placer.explain_wish(&wish, clock::now(), &mut Default::default()) }))
            }
        };
        let _ = call.reply.send(answer);
    }
    LookAhead => |shared, call| {
        let _ = call.reply.send(shared.outlook.lock().iter().cycle().take(call.shapes.len()).cloned().collect());
    }
    WhyHeld => |_shared, call| {
        let _ = call.reply.send(None);
    }
    WhoHolds => |shared, call| {
        let _ = call.reply.send(*shared.holder.lock());
    }
    CountJobs => |shared, call| {
        let queued = shared.standings.lock().values().filter(|one| one.state == JobState::Queued).count();
        let _ = call.reply.send(JobCounts { queued, ..JobCounts::default() });
    }
    RegisterWorker => |shared, call| {
        assert!(call.with_token);
        shared.kinds.lock().push(call.request.kind);
        let timing = Timing { heartbeat_s: Seconds::new(2), lease_ttl_s: Seconds::new(20) };
        let _ = call.reply.send(RegisterAnswer {
            worker_id: NEW_WORKER,
            session_token: NEW_SESSION.to_owned(),
            timing,
        });
    }
    ResumeWorker => |shared, call| {
        let timing = Timing { heartbeat_s: Seconds::new(2), lease_ttl_s: Seconds::new(20) };
        let answer = ResumeAnswer { timing, orders: Orders::default() };
        let _ = call.reply.send(shared.worker_refusal.lock().map_or(Ok(answer), Err));
    }
    Heartbeat => |shared, call| {
        let answer = HeartbeatAnswer { server_time: clock::now(), orders: Orders::default() };
        let _ = call.reply.send(shared.worker_refusal.lock().map_or(Ok(answer), Err));
    }
    Acquire => |shared, call| {
        if call.request.wait_s == Seconds::default() {
            let _ = call.reply.send(Ok(AcquireAnswer::default()));
        } else {
            shared.parked.lock().push(call.reply);
        }
    }
    ReportTasks => |shared, call| {
        if let Some(refusal) = *shared.worker_refusal.lock() {
            let _ = call.reply.send(Err(refusal));
            return;
        }
        // Epoch 1 is right, every other is stale.
        let results = call.request.items.iter().map(|item| match item.epoch {
            1 => ReportResult::Ok { job_state: JobState::Running },
            _ => ReportResult::Refused { code: ErrorCode::StaleEpoch },
        });
        let answer = ReportAnswer { results: results.collect(), ..ReportAnswer::default() };
        shared.reports.lock().push((call.worker_id, call.request));
        let _ = call.reply.send(Ok(answer));
    }
    DeregisterWorker => |shared, call| {
        let _ = shared;
        let _ = call.reply.send(Ok(()));
    }
    ListWorkers => |shared, call| {
        let _ = call.reply.send(vec![shared.fleet()]);
    }
    ChangeDrain => |shared, call| {
        if call.worker_id != WORKER {
            let _ = call.reply.send(Err(UnknownWorker));
            return;
        }
        if !shared.first_use(call.key.as_deref()) {
            let _ = call.reply.send(Ok(Keyed::Repeat));
            return;
        }
        shared.commit(&call.key.map(Change::KeyUsed).into_iter().collect::<Vec<_>>());
        *shared.drain.lock() = Some(call.order);
        let _ = call.reply.send(Ok(Keyed::Done(())));
    }
    EvictTask => |shared, call| {
        let refusal = match (call.worker_id, call.task_id) {
            (WORKER, TASK) if !shared.evicted.lock().contains(&TASK) => None,
            (WORKER, _) => Some(EvictRefusal::NotThere),
            _ => Some(EvictRefusal::UnknownWorker),
        };
        if let Some(refusal) = refusal {
            let _ = call.reply.send(Err(refusal));
            return;
        }
        shared.commit(&call.key.map(Change::KeyUsed).into_iter().collect::<Vec<_>>());
        shared.evicted.lock().push(call.task_id);
        let _ = call.reply.send(Ok(Keyed::Done(true)));
    }
}

handles! {
    RevokeWorker => |shared, call| {
        if call.worker_id != WORKER || shared.revoked.load(Ordering::Relaxed) {
            let _ = call.reply.send(Err(UnknownWorker));
            return;
        }
        shared.commit(&call.key.map(Change::KeyUsed).into_iter().collect::<Vec<_>>());
        shared.revoked.store(true, Ordering::Relaxed);
        shared.credentials().end_session(WORKER);
        let _ = call.reply.send(Ok(Keyed::Done(())));
    }
    MakeToken => |shared, call| {
        if !shared.first_use(call.key.as_deref()) {
            let _ = call.reply.send(Ok(Keyed::Repeat));
            return;
        }
        let made = shared.tokens.lock().create(*call.record, clock::now()).cloned();
        let _ = call.reply.send(made.map(|made| {
            shared.credentials().admit(&made);
            let mut changes = vec![Change::TokenRecorded(Box::new(made))];
            changes.extend(call.key.map(Change::KeyUsed));
            shared.commit(&changes);
            Keyed::Done(())
        }));
    }
    RevokeToken => |shared, call| {
        if !shared.first_use(call.key.as_deref()) {
            let _ = call.reply.send(Ok(Keyed::Repeat));
            return;
        }
        let revoked = shared.tokens.lock().revoke(&call.name, call.afar, clock::now()).cloned();
        let _ = call.reply.send(revoked.map(|revoked| {
            shared.credentials().revoke(&revoked.hash);
            let mut changes = vec![Change::TokenRecorded(Box::new(revoked))];
            changes.extend(call.key.map(Change::KeyUsed));
            shared.commit(&changes);
            Keyed::Done(())
        }));
    }
    SpendToken => |shared, call| {
        let spent = shared.tokens.lock().spend(&call.hash, &call.registration, clock::now()).map(drop);
        let _ = call.reply.send(spent);
    }
    RecordUpload => |shared, call| {
        let sent = call.uploaders.into_iter();
        let changes: Vec<_> =
            sent.map(|uploader| Change::ArtifactSent(call.digest, uploader, clock::now())).collect();
        shared.commit(&changes);
        let _ = call.reply.send(());
    }
    RecordAct => |shared, call| {
        shared.acts.lock().push((call.act, call.target));
        let _ = call.reply.send(());
    }
}

fn queued() -> JobStanding {
    JobStanding {
        state: JobState::Queued,
        attempt: 1,
        preemptions: 0,
        epoch: 0,
        event_seq: 0,
        worker: None,
        phase: None,
        scheduled_at: None,
        started_at: None,
        ended_at: None,
        unreachable_since: None,
        cancel_requested_at: None,
        not_before: None,
        avoid: None,
        went_for: None,
        memory_bytes: None,
        checkpoint: None,
        yielded: 0,
        end: None,
    }
}
