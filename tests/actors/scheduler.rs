//! The scheduler proposes, and takes back what is refused.

use std::sync::Arc;

use actix::{Actor, Addr};
use gpulayer::actors::messages::front_desk::ExplainQueue;
use gpulayer::actors::messages::job_supervisor::PlacementProposed;
use gpulayer::actors::messages::scheduler::{
    CapacityFreed, JobQueued, JobUnqueued, PlacementAccepted, PlacementRefused, StopPlacing, WorkerDown,
    WorkerUp,
};
use gpulayer::actors::scheduler::Scheduler;
use gpulayer::clock;
use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::quantity::{Cpus, Timestamp};
use gpulayer::contract::worker::{Capabilities, WorkerKind};
use gpulayer::domain::placement::{Luggage, Place, Policy, QueuedJob, Shape};

use crate::recorder::{Heard, recorder, settle};

const WORKER: WorkerId = WorkerId::from_u128(9);

fn started() -> (Addr<Scheduler>, Heard<PlacementProposed>) {
    let (proposed, heard) = recorder();
    (Scheduler::new(clock::system(), Policy::default(), proposed).start(), heard)
}

fn job(number: u128) -> JobQueued {
    JobQueued {
        job: QueuedJob {
            job_id: JobId::from_u128(number),
            epoch: 0,
            priority: 0,
            submitted_at: Timestamp::from_micros(number as i64),
            shape: Arc::new(Shape::default()),
            project: "default".into(),
            avoid: None,
            luggage: Luggage::default(),
        },
    }
}

fn worker(cores: u32) -> WorkerUp {
    WorkerUp {
        worker_id: WORKER,
        name: "host".into(),
        kind: WorkerKind::Local,
        incarnation: 1,
        capabilities: Capabilities {
            version: "0".into(),
            hostname: "host".into(),
            os: "linux".into(),
            arch: "x86_64".into(),
            cpus: Cpus::from_millis(cores * 1000),
            memory_bytes: 1 << 30,
            labels: Default::default(),
            gpus: vec![],
            secrets: Vec::new(),
            spec_secret_refs: false,
            limits: Default::default(),
            pythons: Vec::new(),
            interpreters: Vec::new(),
            advertise_address: None,
        },
    }
}

fn jobs(heard: &mut Heard<PlacementProposed>) -> Vec<u128> {
    let proposed = heard.so_far();
    proposed.iter().flat_map(|proposed| &proposed.placements).map(|placed| placed.job_id.as_u128()).collect()
}

async fn reason(scheduler: &Addr<Scheduler>, number: u128) -> Option<String> {
    let (reply, answer) = tokio::sync::oneshot::channel();
    scheduler.do_send(ExplainQueue { job_id: JobId::from_u128(number), reply });
    answer.await.unwrap()
}

#[actix::test]
async fn the_oldest_go_first_and_the_rest_wait_for_room_with_a_reason() {
    let (scheduler, mut heard) = started();
    for number in [3, 1, 2] {
        scheduler.do_send(job(number));
    }
    assert!(reason(&scheduler, 2).await.unwrap().contains("no worker"));
    scheduler.do_send(worker(2));
    settle().await;
    assert_eq!(jobs(&mut heard), [1, 2]);
    assert!(reason(&scheduler, 3).await.unwrap().contains("1 worker"));
    assert_eq!(reason(&scheduler, 1).await, None, "it is placed");
    scheduler.do_send(PlacementAccepted { job_id: JobId::from_u128(1) });
    scheduler
        .do_send(CapacityFreed { worker_id: WORKER, place: Place { job_id: JobId::from_u128(1), epoch: 1 } });
    settle().await;
    assert_eq!(jobs(&mut heard), [3]);
}

#[actix::test]
async fn a_refused_proposal_gives_its_room_back_and_the_job_waits_again_unless_it_is_gone() {
    let (scheduler, mut heard) = started();
    scheduler.do_send(worker(1));
    scheduler.do_send(job(1));
    scheduler.do_send(job(2));
    settle().await;
    assert_eq!(jobs(&mut heard), [1]);
    let refused = |gone| PlacementRefused { job_id: JobId::from_u128(1), gone };
    scheduler.do_send(refused(false));
    settle().await;
    assert_eq!(jobs(&mut heard), [1], "it waits again, and is the oldest");
    scheduler.do_send(refused(true));
    settle().await;
    assert_eq!(jobs(&mut heard), [2], "no reservation leaked");
}

#[actix::test]
async fn nothing_is_proposed_to_a_worker_that_is_down_nor_for_a_job_that_left_nor_after_the_stop() {
    let (scheduler, mut heard) = started();
    scheduler.do_send(worker(4));
    scheduler.do_send(WorkerDown { worker_id: WORKER });
    scheduler.do_send(job(1));
    scheduler.do_send(job(2));
    settle().await;
    assert_eq!(jobs(&mut heard), []);
    scheduler.do_send(JobUnqueued { job_id: JobId::from_u128(1) });
    scheduler.do_send(worker(4));
    settle().await;
    assert_eq!(jobs(&mut heard), [2]);
    scheduler.do_send(StopPlacing);
    scheduler.do_send(job(3));
    settle().await;
    assert_eq!(jobs(&mut heard), []);
}
