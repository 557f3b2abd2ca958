//! A worker's session: offers until the start, orders that wake a parked poll, presence.

use std::sync::Arc;
use std::time::Duration;

use gpulayer::actors::messages::front_desk::{
    Acquire, DeregisterWorker, Heartbeat, Keyed, ListWorkers, ResumeWorker, WorkerRefusal,
};
use gpulayer::actors::messages::job_supervisor::{
    SessionClosed, SessionOpened, TaskGone, TasksReported, TasksUnaccounted, WorkerLeaving, WorkerReturned,
};
use gpulayer::actors::messages::lease_reaper::Renew;
use gpulayer::actors::messages::scheduler::{
    WorkerDown, WorkerDraining, WorkerHealth, WorkerLeft, WorkerSecrets, WorkerUp,
};
use gpulayer::actors::messages::worker_session::{
    Describe, DrainDecided, Gathering, NewSession, Offer, SessionPorts, Settled, StopTask,
};
use gpulayer::actors::worker_session::{SessionTells, WorkerSession};
use gpulayer::contract::ids::{JobId, TaskId, WorkerId};
use gpulayer::contract::protocol::{
    AcquireAnswer, AcquireRequest, Assignment, HeartbeatAnswer, HeartbeatRequest, Held, Identity,
    ResumeAnswer, ResumeRequest, StopReason, Timing,
};
use gpulayer::contract::quantity::{Cpus, Seconds, Timestamp};
use gpulayer::contract::spec::JobSpec;
use gpulayer::contract::telemetry::{ClockOffset, Telemetry};
use gpulayer::contract::worker::{Capabilities, Drain, Worker, WorkerKind, WorkerState};
use gpulayer::domain::change::{Change, WorkerRecord};
use gpulayer::domain::roll_call::Unaccounted;
use gpulayer::durability::durability;
use gpulayer::journal::Journal;
use gpulayer::store::{CommitPort, StoreError};
use tokio::sync::oneshot;

use crate::recorder::{Heard, recorder, settle};

const WORKER: WorkerId = WorkerId::from_u128(5);
const TASK: TaskId = TaskId::from_u128(6);

struct Nowhere;

impl CommitPort for Nowhere {
    fn apply(&mut self, _: &[Change], _: u64) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Scene {
    session: SessionPorts,
    up: Heard<WorkerUp>,
    down: Heard<WorkerDown>,
    health: Heard<WorkerHealth>,
    secrets: Heard<WorkerSecrets>,
    renewed: Heard<Renew>,
    returned: Heard<WorkerReturned>,
    gone: Heard<TaskGone>,
    unaccounted: Heard<TasksUnaccounted>,
    draining: Heard<WorkerDraining>,
    left: Heard<WorkerLeft>,
    closed: Heard<SessionClosed>,
    leaving: Heard<WorkerLeaving>,
    opened: Heard<SessionOpened>,
    _reported: Heard<TasksReported>,
    _journal: Journal,
}

fn identity(incarnation: u64) -> Identity {
    Identity { machine_id: "m".into(), boot_id: "b".into(), incarnation }
}

fn capabilities() -> Capabilities {
    Capabilities {
        version: "0".into(),
        hostname: "h".into(),
        os: "linux".into(),
        arch: "x86_64".into(),
        cpus: Cpus::ONE,
        memory_bytes: 1,
        labels: Default::default(),
        gpus: vec![],
        secrets: Vec::new(),
        spec_secret_refs: false,
        limits: Default::default(),
        pythons: Vec::new(),
        interpreters: Vec::new(),
        advertise_address: None,
    }
}

/// A session of a worker the store remembers, at incarnation 1.
fn scene() -> Scene {
    scene_of(None)
}

fn scene_of(drain: Option<Drain>) -> Scene {
    let (opened, heard_opened) = recorder();
    let (reported, heard_reported) = recorder();
    let (returned, heard_returned) = recorder();
    let (gone, heard_gone) = recorder();
    let (unaccounted, heard_unaccounted) = recorder();
    let (renew, heard_renewed) = recorder();
    let (up, heard_up) = recorder();
    let (down, heard_down) = recorder();
    let (health, heard_health) = recorder();
    let (secrets, heard_secrets) = recorder();
    let (draining, heard_draining) = recorder();
    let (left, heard_left) = recorder();
    let (closed, heard_closed) = recorder();
    let (leaving, heard_leaving) = recorder();
    let tells = SessionTells {
        opened,
        reported,
        returned,
        gone,
        unaccounted,
        renew,
        up,
        down,
        health,
        secrets,
        draining,
        left,
        closed,
        leaving,
    };
    let (mark, durability) = durability();
    let journal = Journal::start(Nowhere, 1, move |seq| mark.advance(seq), |_| {}).unwrap();
    let record = WorkerRecord {
        id: WORKER,
        name: "host".into(),
        kind: WorkerKind::Remote,
        identity: identity(1),
        capabilities: capabilities(),
        session_hash: None,
        registered_at: Timestamp::default(),
        registration: None,
        gone: false,
        drain,
    };
    let timing = Timing { heartbeat_s: Seconds::new(2), lease_ttl_s: Seconds::new(20) };
    let opening = NewSession { record, greeting: None };
    let session = WorkerSession::new(opening, timing, journal.clone(), durability, tells).open();
    Scene {
        session,
        up: heard_up,
        down: heard_down,
        health: heard_health,
        secrets: heard_secrets,
        renewed: heard_renewed,
        returned: heard_returned,
        gone: heard_gone,
        unaccounted: heard_unaccounted,
        draining: heard_draining,
        left: heard_left,
        closed: heard_closed,
        leaving: heard_leaving,
        opened: heard_opened,
        _reported: heard_reported,
        _journal: journal,
    }
}

fn offer() -> Offer {
    let assignment = Assignment {
        task_id: TASK,
        job_id: JobId::from_u128(7),
        epoch: 1,
        attempt: 1,
        spec: Arc::new(JobSpec::command(["true"])),
        gpus: Vec::new(),
        array: None,
        gang: None,
        checkpoint: None,
    };
    Offer { assignment }
}

type Answer<T> = oneshot::Receiver<Result<T, WorkerRefusal>>;

fn acquire(scene: &Scene, have: &[Held]) -> Answer<AcquireAnswer> {
    let (reply, answer) = oneshot::channel();
    let request =
        AcquireRequest { wait_s: Seconds::new(30), max_tasks: 8, have: have.to_vec(), ..Default::default() };
    scene.session.acquire.do_send(Acquire { worker_id: WORKER, request, reply });
    answer
}

fn heartbeat(scene: &Scene, seq: u64, incarnation: u64, tasks: &[Held]) -> Answer<HeartbeatAnswer> {
    let (reply, answer) = oneshot::channel();
    let request = HeartbeatRequest { seq, incarnation, tasks: tasks.to_vec(), ..HeartbeatRequest::default() };
    scene.session.heartbeat.do_send(Heartbeat { worker_id: WORKER, request, reply });
    answer
}

fn resume(scene: &Scene, identity: Identity) -> Answer<ResumeAnswer> {
    resume_of(scene, identity, "process")
}

fn resume_of(scene: &Scene, identity: Identity, process: &str) -> Answer<ResumeAnswer> {
    let (reply, answer) = oneshot::channel();
    let request = ResumeRequest {
        worker_id: WORKER,
        identity,
        name: Some("renamed".to_owned()),
        capabilities: capabilities(),
        tasks: vec![held()],
        process: Some(process.to_owned()),
        moved: false,
    };
    scene.session.resume.do_send(ResumeWorker { worker_id: WORKER, request, reply });
    answer
}

fn held() -> Held {
    Held { task_id: TASK, epoch: 1, phase: None }
}

#[actix::test]
async fn a_parked_poll_wakes_for_an_offer_and_the_offer_stands_until_the_start() {
    let scene = scene();
    let mut parked = acquire(&scene, &[]);
    settle().await;
    assert!(parked.try_recv().is_err(), "there is nothing yet");
    scene.session.offer.do_send(offer());
    assert_eq!(parked.await.unwrap().unwrap().assignments, [offer().assignment]);
    let again = acquire(&scene, &[]).await.unwrap().unwrap();
    assert_eq!(again.assignments, [offer().assignment], "an answer may have been lost on its way");
    let mut known = acquire(&scene, &[held()]);
    settle().await;
    assert!(known.try_recv().is_err(), "it has it");
    scene.session.settled.do_send(Settled { task_id: TASK, started: true });
    let mut after = acquire(&scene, &[]);
    settle().await;
    assert!(after.try_recv().is_err(), "a started task is offered no more");
    assert_eq!(known.await.unwrap().unwrap(), AcquireAnswer::default(), "the newer poll replaced it");
}

#[actix::test]
async fn a_poll_whose_caller_went_away_takes_no_offer_with_it() {
    let scene = scene();
    let parked = acquire(&scene, &[]);
    settle().await;
    drop(parked);
    scene.session.offer.do_send(offer());
    let next = acquire(&scene, &[]).await.unwrap().unwrap();
    assert_eq!(next.assignments, [offer().assignment]);
}

#[actix::test]
async fn a_poll_ends_by_itself_after_its_wait() {
    tokio::time::pause();
    let scene = scene();
    let answer = acquire(&scene, &[]).await.unwrap().unwrap();
    assert_eq!(answer, AcquireAnswer::default());
}

#[actix::test]
async fn a_stop_wakes_a_parked_poll_and_rides_on_every_answer_until_the_end() {
    let scene = scene();
    let parked = acquire(&scene, &[held()]);
    settle().await;
    scene.session.stop.do_send(StopTask {
        task_id: TASK,
        cause: StopReason::Drained,
        now: false,
        lost: false,
    });
    assert_eq!(parked.await.unwrap().unwrap().orders.cancel_task_ids, [TASK]);
    scene.session.stop.do_send(StopTask {
        task_id: TASK,
        cause: StopReason::Cancelled,
        now: true,
        lost: false,
    });
    let orders = heartbeat(&scene, 1, 1, &[held()]).await.unwrap().unwrap().orders;
    assert_eq!((orders.cancel_task_ids, orders.kill_task_ids), (vec![], vec![TASK]));
    scene.session.settled.do_send(Settled { task_id: TASK, started: false });
    let orders = heartbeat(&scene, 2, 1, &[]).await.unwrap().unwrap().orders;
    assert_eq!(orders.kill_task_ids, []);
}

#[actix::test]
async fn a_lost_task_is_ordered_dead_until_the_worker_no_longer_lists_it() {
    let mut scene = scene();
    scene.session.stop.do_send(StopTask { task_id: TASK, cause: StopReason::Lost, now: true, lost: true });
    scene.session.settled.do_send(Settled { task_id: TASK, started: false });
    let orders = heartbeat(&scene, 1, 1, &[held()]).await.unwrap().unwrap().orders;
    assert_eq!(orders.kill_task_ids, [TASK]);
    assert_eq!(scene.gone.so_far(), []);
    let orders = heartbeat(&scene, 2, 1, &[]).await.unwrap().unwrap().orders;
    assert_eq!(orders.kill_task_ids, []);
    assert_eq!(scene.gone.next().await, TaskGone { worker_id: WORKER, task_id: TASK });
}

#[actix::test]
async fn presence_follows_heartbeats_and_old_ones_do_not_count() {
    tokio::time::pause();
    let mut scene = scene();
    heartbeat(&scene, 5, 1, &[held()]).await.unwrap().unwrap();
    settle().await;
    assert_eq!(scene.up.so_far().len(), 1);
    assert_eq!(scene.renewed.so_far(), [Renew { worker_id: WORKER, tasks: vec![(TASK, 1)] }]);
    heartbeat(&scene, 4, 1, &[held()]).await.unwrap().unwrap();
    settle().await;
    assert_eq!(scene.renewed.so_far(), [], "an older one renews nothing");
    tokio::time::sleep(Duration::from_secs(21)).await;
    settle().await;
    assert_eq!(scene.down.so_far(), [WorkerDown { worker_id: WORKER }]);
    heartbeat(&scene, 6, 1, &[]).await.unwrap().unwrap();
    settle().await;
    assert_eq!(scene.up.so_far().len(), 1, "it is back");
}

#[actix::test]
async fn a_resume_supersedes_the_older_incarnation_and_a_clone_is_refused_while_the_original_lives() {
    let mut scene = scene();
    resume(&scene, identity(2)).await.unwrap().unwrap();
    let returned = scene.returned.next().await;
    assert_eq!((returned.incarnation, returned.rebooted, returned.held), (2, false, vec![held()]));
    let old = heartbeat(&scene, 1, 1, &[]).await.unwrap();
    assert_eq!(old.unwrap_err(), WorkerRefusal::Superseded);
    assert_eq!(resume(&scene, identity(1)).await.unwrap().unwrap_err(), WorkerRefusal::Superseded);
    let twin = resume_of(&scene, identity(2), "another").await.unwrap();
    assert_eq!(twin.unwrap_err(), WorkerRefusal::Superseded, "a second process with the same number");
    resume(&scene, identity(2)).await.unwrap().expect("a repeat, whose answer was lost");
    assert!(!scene.returned.next().await.rebooted);
    let clone = Identity { machine_id: "other".into(), ..identity(9) };
    assert_eq!(resume(&scene, clone).await.unwrap().unwrap_err(), WorkerRefusal::IdentityInUse);
    let rebooted = Identity { boot_id: "b2".into(), ..identity(3) };
    let too_soon = resume(&scene, rebooted.clone()).await.unwrap();
    assert_eq!(too_soon.unwrap_err(), WorkerRefusal::IdentityInUse, "it may be a copy of a live one");
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(6)).await;
    resume(&scene, rebooted).await.unwrap().expect("three heartbeats of the old one were missed");
    assert!(scene.returned.next().await.rebooted);
}

#[actix::test]
async fn a_new_name_in_its_table_of_secrets_is_passed_on_once() {
    let mut scene = scene();
    for (seq, names) in [(1, None), (2, Some(vec!["A".to_owned()])), (3, Some(vec!["A".to_owned()]))] {
        let (reply, answer) = oneshot::channel();
        let request = HeartbeatRequest { seq, incarnation: 1, secrets: names, ..HeartbeatRequest::default() };
        scene.session.heartbeat.do_send(Heartbeat { worker_id: WORKER, request, reply });
        answer.await.unwrap().unwrap();
    }
    settle().await;
    assert_eq!(scene.secrets.so_far(), [WorkerSecrets { worker_id: WORKER, names: vec!["A".to_owned()] }]);
}

async fn described(scene: &Scene) -> (WorkerState, Option<String>) {
    let (reply, answer) = oneshot::channel();
    scene.session.describe.do_send(Describe { into: Gathering::answering(ListWorkers { reply }) });
    let worker = answer.await.unwrap().remove(0);
    (worker.state, worker.health)
}

#[actix::test]
async fn a_worker_that_says_it_is_unhealthy_is_shown_so_and_the_scheduler_hears_of_every_change_once() {
    let mut scene = scene();
    let say = |scene: &Scene, seq, why: Option<&str>| {
        let (reply, answer) = oneshot::channel();
        let health = why.map(str::to_owned);
        let request = HeartbeatRequest {
            seq,
            incarnation: 1,
            tasks: vec![held()],
            health,
            ..HeartbeatRequest::default()
        };
        scene.session.heartbeat.do_send(Heartbeat { worker_id: WORKER, request, reply });
        answer
    };
    let told = |why: Option<&str>| WorkerHealth { worker_id: WORKER, unhealthy: why.map(str::to_owned) };
    say(&scene, 1, Some("disk full")).await.unwrap().unwrap();
    assert_eq!(described(&scene).await, (WorkerState::Unhealthy, Some("disk full".into())));
    say(&scene, 2, Some("disk full")).await.unwrap().unwrap();
    settle().await;
    assert_eq!(scene.health.so_far(), [told(Some("disk full"))]);
    assert_eq!(scene.renewed.so_far().len(), 2, "its tasks go on");
    // A late one says nothing new.
    say(&scene, 1, None).await.unwrap().unwrap();
    say(&scene, 3, None).await.unwrap().unwrap();
    assert_eq!(described(&scene).await, (WorkerState::Busy, None));
    assert_eq!(scene.health.so_far(), [told(None)]);
    // A new start of it has a new disk to look at.
    say(&scene, 4, Some("disk full")).await.unwrap().unwrap();
    resume(&scene, identity(2)).await.unwrap().unwrap();
    settle().await;
    assert_eq!(scene.health.so_far(), [told(Some("disk full")), told(None)]);
}

async fn fleet(scene: &Scene) -> Vec<Worker> {
    let (reply, answer) = oneshot::channel();
    let into = Gathering::answering(ListWorkers { reply });
    scene.session.describe.do_send(Describe { into });
    answer.await.unwrap()
}

#[actix::test]
async fn a_drain_is_recorded_shown_and_told_to_the_scheduler() {
    let mut scene = scene();
    heartbeat(&scene, 1, 1, &[held()]).await.unwrap().unwrap();
    let drain = Some(Drain { since: Timestamp::default(), deadline: None });
    for (drain, state) in [(drain, WorkerState::Draining), (None, WorkerState::Busy)] {
        let (reply, recorded) = oneshot::channel();
        scene.session.drain.do_send(DrainDecided { drain, key: None, reply });
        assert_eq!(recorded.await.unwrap(), Ok(Keyed::Done(())));
        let told = scene.draining.next().await;
        assert_eq!((told.worker_id, told.draining), (WORKER, drain.is_some()));
        let shown = fleet(&scene).await;
        assert_eq!((shown[0].state, shown[0].drain), (state, drain));
    }
}

#[actix::test]
async fn a_remembered_drain_is_told_before_the_worker_is_up() {
    let drain = Some(Drain { since: Timestamp::default(), deadline: None });
    let mut scene = scene_of(drain);
    assert_eq!(scene.opened.next().await.drain, drain);
    assert!(scene.draining.next().await.draining);
    assert!(scene.up.so_far().is_empty());
}

#[actix::test]
async fn a_worker_that_leaves_for_good_is_forgotten_everywhere() {
    let mut scene = scene();
    heartbeat(&scene, 1, 1, &[]).await.unwrap().unwrap();
    let (reply, left) = oneshot::channel();
    scene.session.deregister.do_send(DeregisterWorker { worker_id: WORKER, reply });
    left.await.unwrap().unwrap();
    assert_eq!(scene.left.next().await.worker_id, WORKER);
    assert_eq!(scene.closed.next().await.worker_id, WORKER);
    assert!(fleet(&scene).await.is_empty());
}

#[actix::test]
async fn a_worker_that_says_it_leaves_gets_nothing_new_until_it_returns() {
    let mut scene = scene();
    heartbeat(&scene, 1, 1, &[held()]).await.unwrap().unwrap();
    let (reply, answer) = oneshot::channel();
    let request = AcquireRequest { leaving: true, ..AcquireRequest::default() };
    scene.session.acquire.do_send(Acquire { worker_id: WORKER, request, reply });
    answer.await.unwrap().unwrap();
    assert_eq!(scene.leaving.next().await, WorkerLeaving { worker_id: WORKER });
    assert!(scene.draining.next().await.draining);
    // One that was on its way before takes nothing back, and one that says it again is no news.
    heartbeat(&scene, 2, 1, &[held()]).await.unwrap().unwrap();
    let (reply, answer) = oneshot::channel();
    let request = HeartbeatRequest { seq: 3, incarnation: 1, leaving: true, ..HeartbeatRequest::default() };
    scene.session.heartbeat.do_send(Heartbeat { worker_id: WORKER, request, reply });
    answer.await.unwrap().unwrap();
    settle().await;
    assert_eq!((scene.leaving.so_far(), scene.draining.so_far()), (vec![], vec![]));
    let shown = fleet(&scene).await.remove(0);
    assert_eq!((shown.state, shown.leaving, shown.drain), (WorkerState::Draining, true, None));
    // An operator's word does not keep it.
    let (reply, recorded) = oneshot::channel();
    scene.session.drain.do_send(DrainDecided { drain: None, key: None, reply });
    assert_eq!(recorded.await.unwrap(), Ok(Keyed::Done(())));
    assert!(scene.draining.next().await.draining);
    resume(&scene, identity(2)).await.unwrap().unwrap();
    assert!(!scene.draining.next().await.draining);
    assert!(!fleet(&scene).await[0].leaving);
}

#[actix::test]
async fn the_longest_silence_between_heartbeats_is_known() {
    let scene = scene();
    tokio::time::pause();
    for (seq, pause_s) in [(1, 2), (2, 7), (3, 3), (4, 0)] {
        heartbeat(&scene, seq, 1, &[]).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(pause_s)).await;
    }
    let silence = fleet(&scene).await[0].longest_silence_s.unwrap();
    assert_eq!(silence.millis() / 100, 70, "{silence:?}");
}

#[actix::test]
async fn what_a_heartbeat_measures_is_shown_and_a_clock_that_is_off_gets_a_note() {
    let scene = scene();
    let shown = async || {
        let (reply, answer) = oneshot::channel();
        scene.session.describe.do_send(Describe { into: Gathering::answering(ListWorkers { reply }) });
        answer.await.unwrap().remove(0)
    };
    let beat = async |seq, clock_ms| {
        let (reply, answer) = oneshot::channel();
        let request = HeartbeatRequest {
            seq,
            incarnation: 1,
            telemetry: Some(Telemetry { load: Some(0.5), ..Telemetry::default() }),
            clock_offset_s: Some(ClockOffset::from_millis(clock_ms)),
            ..HeartbeatRequest::default()
        };
        scene.session.heartbeat.do_send(Heartbeat { worker_id: WORKER, request, reply });
        answer.await.unwrap().unwrap();
    };
    assert_eq!(shown().await.telemetry, None);
    beat(1, 400).await;
    let worker = shown().await;
    assert_eq!(worker.telemetry.and_then(|measured| measured.load), Some(0.5));
    assert_eq!((worker.clock_offset_s, worker.notes), (Some(ClockOffset::from_millis(400)), vec![]));
    beat(2, -61_000).await;
    let worker = shown().await;
    assert!(worker.notes[0].contains("61.0 s behind"), "{:?}", worker.notes);
    assert_eq!((worker.state, worker.health), (WorkerState::Idle, None), "it works all the same");
}

#[actix::test]
async fn a_task_that_is_not_expected_there_or_missing_is_told_when_heartbeats_in_a_row_say_so() {
    let mut scene = scene();
    let beat = async |scene: &Scene, seq: u64, tasks: &[Held]| {
        let (reply, answer) = oneshot::channel();
        let request = HeartbeatRequest {
            seq,
            incarnation: 1,
            tasks: tasks.to_vec(),
            answered_seq: seq.checked_sub(1),
            ..HeartbeatRequest::default()
        };
        scene.session.heartbeat.do_send(Heartbeat { worker_id: WORKER, request, reply });
        answer.await.unwrap().unwrap();
    };
    for seq in 1..=2 {
        beat(&scene, seq, &[held()]).await;
    }
    settle().await;
    assert_eq!(scene.unaccounted.so_far(), []);
    beat(&scene, 3, &[held()]).await;
    let told = |strangers: &[Held], missing: &[TaskId]| TasksUnaccounted {
        worker_id: WORKER,
        tasks: Unaccounted { strangers: strangers.to_vec(), missing: missing.to_vec() },
    };
    assert_eq!(scene.unaccounted.next().await, told(&[held()], &[]));

    // Offered, started, and listed all the while.
    scene.session.offer.do_send(offer());
    for seq in 4..=9 {
        beat(&scene, seq, &[held()]).await;
    }
    scene.session.settled.do_send(Settled { task_id: TASK, started: true });
    for seq in 10..=15 {
        beat(&scene, seq, &[held()]).await;
    }
    for seq in 16..=17 {
        beat(&scene, seq, &[]).await;
    }
    settle().await;
    assert_eq!(scene.unaccounted.so_far(), []);
    beat(&scene, 18, &[]).await;
    assert_eq!(scene.unaccounted.next().await, told(&[], &[TASK]));

    // Settled since, and ordered to end.
    scene.session.settled.do_send(Settled { task_id: TASK, started: false });
    scene.session.stop.do_send(StopTask { task_id: TASK, cause: StopReason::Lost, now: true, lost: true });
    for seq in 19..=25 {
        beat(&scene, seq, &[held()]).await;
    }
    settle().await;
    assert_eq!(scene.unaccounted.so_far(), []);
}
