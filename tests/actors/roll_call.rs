//! What the supervisor makes of a worker whose heartbeats list too much or too little.

use gpulayer::actors::messages::job_supervisor::{LeaseExpired, TasksUnaccounted};
use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::TaskId;
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::{Held, Report, StopReason};
use gpulayer::contract::spec::{JobSpec, OnUnreachable};
use gpulayer::domain::roll_call::Unaccounted;

use crate::persist_before_speak::{Scene, WORKER, finish, job_id, scene};
use crate::recorder::settle;

fn tell(scene: &Scene, strangers: Vec<Held>, missing: Vec<TaskId>) {
    let tasks = Unaccounted { strangers, missing };
    scene.supervisor.do_send(TasksUnaccounted { worker_id: WORKER, tasks });
}

fn held(task_id: TaskId) -> Held {
    Held { task_id, epoch: 1, phase: None }
}

async fn placed(
    scene: &mut Scene,
    number: u128,
    spec: JobSpec,
) -> (TaskId, gpulayer::actors::messages::worker_session::Offer) {
    scene.submit_spec(number, spec, None).await.unwrap().unwrap();
    scene.place(number);
    let offer = scene.offers.next().await;
    (offer.assignment.task_id, offer)
}

#[actix::test]
async fn a_task_that_nobody_knows_is_ordered_dead_and_no_other_is() {
    let mut scene = scene();
    scene.permit_all();
    let (offered, offer) = placed(&mut scene, 1, JobSpec::command(["true"])).await;
    tell(&scene, vec![held(offered)], vec![]);
    scene.report(&offer, Report::Start).await.unwrap().unwrap();
    tell(&scene, vec![held(offered)], vec![]);
    scene.report(&offer, finish(EndReason::Completed, false)).await.unwrap().unwrap();
    tell(&scene, vec![held(offered)], vec![]);
    settle().await;
    assert_eq!(scene.stops.so_far(), [], "it is known, and so is its end");

    let stranger = TaskId::from_u128(77);
    tell(&scene, vec![held(offered), held(stranger)], vec![]);
    let order = scene.stops.next().await;
    assert_eq!((order.task_id, order.cause, order.now, order.lost), (stranger, StopReason::Lost, true, true));
}

#[actix::test]
async fn a_task_that_was_given_up_is_ordered_dead_again() {
    let mut scene = scene();
    scene.permit_all();
    let mut spec = JobSpec::command(["true"]);
    spec.on_unreachable = Some(OnUnreachable::Replace);
    let (task_id, offer) = placed(&mut scene, 1, spec).await;
    scene.report(&offer, Report::Start).await.unwrap().unwrap();
    scene.supervisor.do_send(LeaseExpired { task_id, epoch: 1 });
    assert_eq!(scene.stops.next().await.task_id, task_id);
    tell(&scene, vec![held(task_id)], vec![]);
    assert_eq!(scene.stops.next().await.task_id, task_id);
}

#[actix::test]
async fn a_started_task_that_its_worker_no_longer_has_is_lost_and_frees_its_place() {
    let mut scene = scene();
    scene.permit_all();
    let (task_id, offer) = placed(&mut scene, 1, JobSpec::command(["true"])).await;
    tell(&scene, vec![], vec![task_id]);
    settle().await;
    let job = |scene: &Scene| scene.store.reader().job(job_id(1)).unwrap().unwrap();
    assert_eq!(job(&scene).state, JobState::Scheduled, "it has not started");
    scene.report(&offer, Report::Start).await.unwrap().unwrap();
    tell(&scene, vec![], vec![task_id]);
    assert_eq!(scene.freed.next().await.worker_id, WORKER);
    let end = job(&scene).end.unwrap();
    assert_eq!(end.reason, EndReason::WorkerLost);
    assert!(end.detail.unwrap().contains("its worker no longer has it"));
    assert_eq!(scene.stops.so_far(), [], "there is nothing to kill");
}
