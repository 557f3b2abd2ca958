//! A worker that is emptied: what was placed and has not started goes elsewhere, what runs is stopped at the deadline
//! and not before, and both stand after a restart.

use gpulayer::actors::messages::front_desk::{
    ChangeDrain, DrainOrder, EvictRefusal, EvictTask, Keyed, UnknownWorker,
};
use gpulayer::actors::messages::job_supervisor::{SessionClosed, SessionOpened, WorkerLeaving};
use gpulayer::actors::messages::worker_session::DrainDecided;
use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::{TaskId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::{Report, StopReason};
use gpulayer::contract::quantity::{Seconds, Timestamp};
use gpulayer::contract::worker::{Drain, TaskState};
use tokio::sync::oneshot;

use crate::persist_before_speak::{Scene, WORKER, finish, job_id, peer, scene};
use crate::recorder::settle;

type Drained = oneshot::Receiver<Result<Keyed<()>, UnknownWorker>>;

/// What the session would do: write the row and answer.
fn recorded(decided: DrainDecided) -> Option<Drain> {
    // Not every test waits for the answer.
    let _ = decided.reply.send(Ok(Keyed::Done(())));
    decided.drain
}

fn change(scene: &Scene, worker_id: WorkerId, order: DrainOrder) -> Drained {
    let (reply, answer) = oneshot::channel();
    scene.supervisor.do_send(ChangeDrain { worker_id, order, by: None, key: None, reply });
    answer
}

fn evict(
    scene: &Scene,
    worker_id: WorkerId,
    task_id: TaskId,
) -> oneshot::Receiver<Result<Keyed<bool>, EvictRefusal>> {
    let (reply, answer) = oneshot::channel();
    scene.supervisor.do_send(EvictTask { worker_id, task_id, by: None, key: None, reply });
    answer
}

#[actix::test]
async fn a_drain_takes_back_what_has_not_started_and_stops_the_rest_at_its_deadline() {
    let mut scene = scene();
    scene.permit_all();
    for number in [1, 2] {
        scene.submit(number, None).await.unwrap().unwrap();
        scene.queued.next().await;
        scene.place(number);
    }
    let (runs, waits) = (scene.offers.next().await, scene.offers.next().await);
    scene.report(&runs, Report::Start).await.unwrap().unwrap();

    let drained = change(&scene, WORKER, DrainOrder::Drain { deadline: None });
    assert!(recorded(scene.drains.next().await).unwrap().deadline.is_none());
    assert_eq!(drained.await.unwrap(), Ok(Keyed::Done(())));
    assert_eq!(scene.queued.next().await.job.job_id, waits.assignment.job_id, "it goes elsewhere");
    let (reads, second) = (scene.store.reader(), waits.assignment.job_id);
    // The scheduler is told before the commit.
    let durable = async {
        while reads.tasks(second).unwrap()[0].state != TaskState::Cancelled {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), durable).await.unwrap();
    assert_eq!(reads.job(second).unwrap().unwrap().attempt, 1, "no attempt is used");
    settle().await;
    assert!(scene.stops.so_far().is_empty(), "without a deadline it may end by itself");

    scene.place_again(2, 1);
    scene.refused.next().await;

    change(&scene, WORKER, DrainOrder::Drain { deadline: Some(Seconds::from_millis(1)) });
    recorded(scene.drains.next().await);
    let stop = scene.stops.next().await;
    assert_eq!((stop.task_id, stop.cause, stop.now), (runs.assignment.task_id, StopReason::Drained, false));
    scene.report(&runs, finish(EndReason::Cancelled, true)).await.unwrap().unwrap();
    let job = reads.job(runs.assignment.job_id).unwrap().unwrap();
    assert_eq!((job.state, job.end.unwrap().reason), (JobState::Failed, EndReason::Drained));
}

#[actix::test]
async fn what_a_leaving_worker_has_not_started_goes_elsewhere_at_once_and_so_it_does_when_it_has_left() {
    let mut scene = scene();
    scene.permit_all();
    for number in [1, 2] {
        scene.submit(number, None).await.unwrap().unwrap();
        scene.queued.next().await;
        scene.place(number);
    }
    let (runs, waits) = (scene.offers.next().await, scene.offers.next().await);
    scene.report(&runs, Report::Start).await.unwrap().unwrap();
    scene.supervisor.do_send(WorkerLeaving { worker_id: WORKER });
    assert_eq!(scene.queued.next().await.job.job_id, waits.assignment.job_id, "it goes elsewhere");
    scene.place_again(2, 1);
    scene.refused.next().await;
    assert!(scene.stops.so_far().is_empty(), "what runs may end by itself");

    // It came back, was given one, and leaves before it starts it.
    let ports = scene.ports.clone();
    scene.supervisor.do_send(SessionOpened {
        worker_id: WORKER,
        peer: peer(),
        incarnation: 1,
        drain: None,
        ports,
    });
    scene.place_again(2, 1);
    let given = scene.offers.next().await;
    scene.supervisor.do_send(SessionClosed { worker_id: WORKER });
    let queued = scene.queued.next().await.job;
    assert_eq!((queued.job_id, queued.avoid), (given.assignment.job_id, None));
    let reads = scene.store.reader();
    let durable = async {
        let states = || reads.tasks(given.assignment.job_id).unwrap().into_iter().map(|task| task.state);
        while states().any(|state| state != TaskState::Cancelled) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), durable).await.unwrap();
    assert_eq!(reads.job(given.assignment.job_id).unwrap().unwrap().attempt, 1, "no attempt is used");
}

#[actix::test]
async fn a_resume_takes_the_deadline_back_and_the_worker_gets_tasks_again() {
    let mut scene = scene();
    scene.permit_all();
    scene.submit(1, None).await.unwrap().unwrap();
    scene.place(1);
    let runs = scene.offers.next().await;
    scene.report(&runs, Report::Start).await.unwrap().unwrap();
    let deadline = Some(Seconds::from_millis(300));
    change(&scene, WORKER, DrainOrder::Drain { deadline });
    let first = recorded(scene.drains.next().await).unwrap();
    change(&scene, WORKER, DrainOrder::Drain { deadline: Some(Seconds::new(600)) });
    let later = recorded(scene.drains.next().await).unwrap();
    assert!(
        later.deadline > first.deadline && later.since == first.since,
        "a later drain moves the deadline"
    );
    change(&scene, WORKER, DrainOrder::Resume);
    assert_eq!(recorded(scene.drains.next().await), None);
    // The first deadline rings, and nobody is stopped for it.
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    settle().await;
    assert!(scene.stops.so_far().is_empty());
    scene.submit(2, None).await.unwrap().unwrap();
    scene.place(2);
    assert_eq!(scene.offers.next().await.assignment.job_id, job_id(2));
}

#[actix::test]
async fn a_drain_stands_after_a_restart_and_its_deadline_is_kept() {
    let mut scene = scene();
    scene.permit_all();
    scene.submit(1, None).await.unwrap().unwrap();
    scene.place(1);
    let runs = scene.offers.next().await;
    scene.report(&runs, Report::Start).await.unwrap().unwrap();
    // The session that the store remembers: its deadline passed while nobody was there.
    let drain = Some(Drain { since: Timestamp::default(), deadline: Some(Timestamp::default()) });
    let ports = scene.ports.clone();
    scene.supervisor.do_send(SessionOpened { worker_id: WORKER, peer: peer(), incarnation: 1, drain, ports });
    assert_eq!(scene.stops.next().await.cause, StopReason::Drained);
}

#[actix::test]
async fn an_eviction_stops_one_task_and_names_its_end() {
    let mut scene = scene();
    scene.permit_all();
    scene.submit(1, None).await.unwrap().unwrap();
    scene.queued.next().await;
    scene.place(1);
    let first = scene.offers.next().await;
    let (worker, task) = (WORKER, first.assignment.task_id);
    let stranger = WorkerId::from_u128(99);
    assert_eq!(evict(&scene, stranger, task).await.unwrap(), Err(EvictRefusal::UnknownWorker));
    assert_eq!(evict(&scene, worker, TaskId::from_u128(1)).await.unwrap(), Err(EvictRefusal::NotThere));
    assert_eq!(evict(&scene, worker, task).await.unwrap(), Ok(Keyed::Done(true)));
    let queued = scene.queued.next().await.job;
    assert_eq!((queued.job_id, queued.avoid), (job_id(1), Some(WORKER)), "not started: it goes elsewhere");

    scene.place_again(1, 1);
    let second = scene.offers.next().await;
    scene.report(&second, Report::Start).await.unwrap().unwrap();
    assert_eq!(evict(&scene, worker, second.assignment.task_id).await.unwrap(), Ok(Keyed::Done(true)));
    assert_eq!(evict(&scene, worker, second.assignment.task_id).await.unwrap(), Ok(Keyed::Done(false)));
    assert_eq!(scene.stops.next().await.cause, StopReason::Evicted);
    scene.report(&second, finish(EndReason::ExitNonzero, true)).await.unwrap().unwrap();
    let end = scene.store.reader().job(job_id(1)).unwrap().unwrap().end.unwrap();
    assert_eq!(end.reason, EndReason::Evicted);
}
