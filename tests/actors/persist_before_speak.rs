//! The supervisor says nothing that is not on disk: with a commit held back, no answer and no effect leaves; with
//! it released, they leave in order. A failed commit is never spoken of.

use std::sync::Arc;
use std::sync::mpsc;

use actix::{Addr, AsyncContext, Context};
use gpulayer::actors::job_supervisor::restore::restore;
use gpulayer::actors::job_supervisor::{JobSupervisor, SupervisorTells};
use gpulayer::actors::messages::Durable;
use gpulayer::actors::messages::front_desk::{
    CancelJob, Keyed, NewJob, PrepareStop, SubmitJobs, SubmitRefusal,
};
use gpulayer::actors::messages::job_supervisor::{
    LeaseExpired, PlacementProposed, SessionOpened, TasksReported,
};
use gpulayer::actors::messages::lease_reaper::{Forget, Started, Watch};
use gpulayer::actors::messages::scheduler::{
    CapacityFreed, JobQueued, JobUnqueued, PlacementAccepted, PlacementRefused,
};
use gpulayer::actors::messages::worker_session::{
    DrainDecided, Offer, SessionPorts, SessionRevoked, Settled, StopTask,
};
use gpulayer::clock;
use gpulayer::contract::end::{End, EndReason};
use gpulayer::contract::gang::Peer;
use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::{Finish, Report, ReportAnswer, ReportItem, ReportResult};
use gpulayer::contract::spec::JobSpec;
use gpulayer::credentials::known::Credentials;
use gpulayer::domain::change::{Change, JobRecord, UsedKey};
use gpulayer::domain::placement::{Placement, Seated};
use gpulayer::journal::Journal;
use gpulayer::store::{CommitPort, ONLY_TERM, Store, StoreError, Writer};
use tokio::sync::oneshot;

use crate::recorder::{Heard, recorder, settle};

pub const WORKER: WorkerId = WorkerId::from_u128(4);

/// Commits one batch per permit, and tells that it has one in hand.
struct Gated {
    writer: Writer,
    permits: mpsc::Receiver<()>,
}

impl CommitPort for Gated {
    fn apply(&mut self, batch: &[Change], term: u64) -> Result<(), StoreError> {
        // The test's end drops the sender: then everything may pass.
        let _ = self.permits.recv();
        self.writer.apply(batch, term)
    }
}

/// The worker, as others of a gang reach it.
pub fn peer() -> Peer {
    Peer { worker: WORKER, name: "box".into(), address: "10.0.0.1".into() }
}

pub struct Scene {
    pub supervisor: Addr<JobSupervisor>,
    permits: mpsc::Sender<()>,
    pub queued: Heard<JobQueued>,
    accepted: Heard<PlacementAccepted>,
    pub refused: Heard<PlacementRefused>,
    pub freed: Heard<CapacityFreed>,
    watched: Heard<Watch>,
    pub offers: Heard<Offer>,
    pub stops: Heard<StopTask>,
    pub drains: Heard<DrainDecided>,
    pub revoked: Heard<SessionRevoked>,
    pub credentials: Arc<Credentials>,
    pub ports: SessionPorts,
    _rest: (Heard<Started>, Heard<Forget>, Heard<Settled>, Heard<JobUnqueued>),
    pub store: Store,
    _folder: tempfile::TempDir,
}

pub fn scene() -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let context = Context::<JobSupervisor>::new();
    let supervisor = context.address();
    let (permits, gate) = mpsc::channel();
    let told = supervisor.clone();
    let journal = Journal::start(
        Gated { writer: store.writer().unwrap(), permits: gate },
        ONLY_TERM,
        move |through| told.do_send(Durable { through }),
        |error| panic!("{error}"),
    )
    .unwrap();
    let (queued, heard_queued) = recorder();
    let (unqueued, heard_unqueued) = recorder();
    let (accepted, heard_accepted) = recorder();
    let (refused, heard_refused) = recorder();
    let (freed, heard_freed) = recorder();
    let (watch, heard_watched) = recorder();
    let (started, heard_started) = recorder();
    let (forget, heard_forget) = recorder();
    let tells = SupervisorTells {
        queued,
        unqueued,
        timed_out: recorder().0,
        accepted,
        refused,
        freed,
        taken: recorder().0,
        bounded: recorder().0,
        stop_placing: recorder().0,
        watch,
        started,
        forget,
    };
    let reads = store.reader();
    let restored = restore(&reads, clock::now()).unwrap();
    let credentials = restored.credentials.clone();
    context.run(JobSupervisor::new(clock::system(), journal, reads, tells, restored));
    let (offer, offers) = recorder();
    let (stop, stops) = recorder();
    let (settled, heard_settled) = recorder();
    let (drain, drains) = recorder();
    let (revoke, revoked) = recorder();
    let ports = SessionPorts {
        offer,
        stop,
        settled,
        drain,
        revoke,
        resume: recorder().0,
        heartbeat: recorder().0,
        acquire: recorder().0,
        report: recorder().0,
        deregister: recorder().0,
        describe: recorder().0,
    };
    supervisor.do_send(SessionOpened {
        worker_id: WORKER,
        peer: peer(),
        incarnation: 1,
        drain: None,
        ports: ports.clone(),
    });
    Scene {
        supervisor,
        permits,
        queued: heard_queued,
        accepted: heard_accepted,
        refused: heard_refused,
        freed: heard_freed,
        watched: heard_watched,
        offers,
        stops,
        drains,
        revoked,
        credentials,
        ports,
        _rest: (heard_started, heard_forget, heard_settled, heard_unqueued),
        store,
        _folder: folder,
    }
}

pub fn new_job(number: u128, spec: JobSpec) -> NewJob {
    let record = JobRecord {
        id: JobId::from_u128(number),
        spec: serde_json::to_string(&spec).unwrap().into(),
        name: None,
        project: "default".into(),
        labels: "{}".into(),
        priority: 0,
        shape: "{}".into(),
        submitted_by: "me".into(),
        submitted_at: clock::now(),
        queue_deadline: None,
        retry_of: None,
        warnings: vec![],
        artifacts: vec![],
    };
    let (waits, checkpoints) = (Vec::new(), Vec::new());
    NewJob { record: Box::new(record), spec: Arc::new(spec), waits, array: None, checkpoints }
}

type Submitted = oneshot::Receiver<Result<Keyed<()>, SubmitRefusal>>;

pub fn job_id(number: u128) -> JobId {
    JobId::from_u128(number)
}

/// A worker's last word about a task.
pub fn finish(reason: EndReason, after_stop: bool) -> Report {
    Report::Finish(Box::new(Finish {
        end: End::of(reason, None),
        after_stop,
        outputs: vec![],
        undeclared: vec![],
        log_artifact: None,
        result: None,
        warnings: vec![],
    }))
}

impl Scene {
    /// From now on every commit passes.
    pub fn permit_all(&mut self) {
        self.permits = mpsc::channel().0;
    }

    pub fn submit(&self, number: u128, key: Option<u8>) -> Submitted {
        self.submit_spec(number, JobSpec::command(["true"]), key)
    }

    pub fn submit_spec(&self, number: u128, spec: JobSpec, key: Option<u8>) -> Submitted {
        let (reply, answer) = oneshot::channel();
        let key = key.map(|byte| {
            Box::new(UsedKey {
                scope: [byte; 32],
                body: [0; 32],
                status: 201,
                answer: "[]".into(),
                used_at: clock::now(),
            })
        });
        self.supervisor.do_send(SubmitJobs { jobs: vec![new_job(number, spec)], pass: None, key, reply });
        answer
    }

    /// One more commit passes.
    pub fn permit(&self) {
        self.permits.send(()).unwrap();
    }

    pub fn place(&self, number: u128) {
        self.place_again(number, 0);
    }

    /// The same for a job that was placed so many times before.
    pub fn place_again(&self, number: u128, job_epoch: u32) {
        let seat = Seated { worker_id: WORKER, incarnation: 1, gpus: Vec::new(), weight: 1 };
        let placement = Placement { job_id: job_id(number), job_epoch, seats: vec![seat] };
        self.supervisor.do_send(PlacementProposed {
            placements: vec![placement],
            preemptions: Vec::new(),
            waited_for: Vec::new(),
        });
    }

    pub fn report(
        &self,
        offer: &Offer,
        report: Report,
    ) -> oneshot::Receiver<Result<ReportAnswer, gpulayer::actors::messages::front_desk::WorkerRefusal>> {
        let (reply, answer) = oneshot::channel();
        let item = ReportItem { task_id: offer.assignment.task_id, epoch: offer.assignment.epoch, report };
        self.supervisor.do_send(TasksReported {
            worker_id: WORKER,
            items: vec![item],
            answer: ReportAnswer::default(),
            reply,
        });
        answer
    }
}

#[actix::test]
async fn every_answer_and_effect_waits_for_its_commit() {
    let mut scene = scene();
    let mut submitted = scene.submit(1, None);
    assert_eq!(scene.queued.next().await.job.job_id, JobId::from_u128(1), "the scheduler is told at once");
    assert!(submitted.try_recv().is_err(), "the client is not");
    scene.permit();
    assert_eq!(submitted.await.unwrap().unwrap(), Keyed::Done(()));
    assert_eq!(scene.store.reader().job(JobId::from_u128(1)).unwrap().unwrap().state, JobState::Queued);

    scene.place(1);
    scene.accepted.next().await;
    settle().await;
    assert!(scene.offers.so_far().is_empty() && scene.watched.so_far().is_empty());
    scene.permit();
    let offer = scene.offers.next().await;
    assert_eq!(scene.watched.next().await.task_id, offer.assignment.task_id);

    let mut started = scene.report(&offer, Report::Start);
    settle().await;
    assert!(started.try_recv().is_err(), "nothing may execute before the start is on disk");
    scene.permit();
    let results = started.await.unwrap().unwrap().results;
    assert_eq!(results, [ReportResult::Ok { job_state: JobState::Running }]);

    let (reply, mut cancelled) = oneshot::channel();
    scene.supervisor.do_send(CancelJob {
        job_id: JobId::from_u128(1),
        now: false,
        by: None,
        key: None,
        reply,
    });
    settle().await;
    assert!(cancelled.try_recv().is_err() && scene.stops.so_far().is_empty());
    scene.permit();
    assert_eq!(cancelled.await.unwrap(), Keyed::Done(true));
    assert!(!scene.stops.next().await.now);
    assert!(scene.freed.so_far().is_empty(), "the task still runs");
}

#[actix::test]
async fn a_stop_does_not_wait_for_a_task_whose_worker_does_not_answer() {
    let mut scene = scene();
    // Submit, place, start, cancel, loss.
    for _ in 0..5 {
        scene.permit();
    }
    scene.submit(1, None).await.unwrap().unwrap();
    scene.place(1);
    let offer = scene.offers.next().await;
    scene.report(&offer, Report::Start).await.unwrap().unwrap();
    let (reply, mut prepared) = oneshot::channel();
    scene.supervisor.do_send(PrepareStop { cancel_running: true, reply });
    scene.stops.next().await;
    settle().await;
    assert!(prepared.try_recv().is_err(), "the task still runs");
    let Offer { assignment } = offer;
    scene.supervisor.do_send(LeaseExpired { task_id: assignment.task_id, epoch: assignment.epoch });
    prepared.await.unwrap();
}

#[actix::test]
async fn a_repeat_waits_for_the_first_and_makes_no_second_job() {
    let scene = scene();
    let first = scene.submit(1, Some(7));
    let mut twin = scene.submit(2, Some(7));
    settle().await;
    assert!(twin.try_recv().is_err(), "the first answer is not on disk yet");
    scene.permit();
    assert_eq!(first.await.unwrap().unwrap(), Keyed::Done(()));
    assert_eq!(twin.await.unwrap().unwrap(), Keyed::Repeat);
    assert!(scene.store.reader().job(JobId::from_u128(2)).unwrap().is_none());
    assert!(scene.store.reader().used_key(&[7; 32]).unwrap().is_some());
}

#[actix::test]
async fn an_answer_that_changes_nothing_waits_for_what_it_saw() {
    let scene = scene();
    let submitted = scene.submit(1, None);
    let cancel = || {
        let (reply, answer) = oneshot::channel();
        scene.supervisor.do_send(CancelJob {
            job_id: JobId::from_u128(1),
            now: false,
            by: None,
            key: None,
            reply,
        });
        answer
    };
    let (first, mut second) = (cancel(), cancel());
    settle().await;
    assert!(second.try_recv().is_err(), "that it is cancelled already is not on disk yet");
    scene.permit();
    scene.permit();
    assert_eq!(submitted.await.unwrap().unwrap(), Keyed::Done(()));
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (Keyed::Done(true), Keyed::Done(false)));
}
