//! The scheduler proposes, and takes back what is refused.

use std::sync::Arc;

use actix::{Actor, Addr};
use gpulayer::actors::messages::front_desk::ExplainQueue;
use gpulayer::actors::messages::job_supervisor::{PlacementProposed, QueueLeft};
use gpulayer::actors::messages::scheduler::{
    CapacityFreed, JobQueued, JobUnqueued, PlacementAccepted, PlacementRefused, QueueTimeoutsOver,
    StopPlacing, WorkerDown, WorkerUp,
};
use gpulayer::actors::scheduler::{Scheduler, SchedulerTells};
use gpulayer::clock;
use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::quantity::{Cpus, Timestamp};
use gpulayer::contract::worker::{Capabilities, WorkerKind};
use gpulayer::domain::placement::{Luggage, Place, Policy, QueuedJob, Shape};

use crate::recorder::{Heard, recorder, settle};

const WORKER: WorkerId = WorkerId::from_u128(9);

fn started() -> (Addr<Scheduler>, Heard<PlacementProposed>) {
    let (scheduler, heard, _) = started_and_left();
    (scheduler, heard)
}

fn started_and_left() -> (Addr<Scheduler>, Heard<PlacementProposed>, Heard<QueueLeft>) {
    let (proposed, heard) = recorder();
    let (left, heard_left) = recorder();
    let tells = SchedulerTells { proposed, left, usage: recorder().0 };
    (Scheduler::new(clock::system(), Policy::default(), tells).start(), heard, heard_left)
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
    answer.await.unwrap().map(|reason| reason.line)
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

#[actix_rt::test]
async fn who_times_out_leaves_at_once_and_all_are_answered_for() {
    let (scheduler, mut proposed, mut left) = started_and_left();
    scheduler.do_send(worker(0));
    // More than one slice, of one kind.
    let jobs = 5_000_u128;
    for number in 1..=jobs {
        scheduler.do_send(job(number));
    }
    let unknown = JobId::from_u128(1 << 100);
    let mut job_ids: Vec<JobId> = (1..=jobs).map(JobId::from_u128).collect();
    job_ids.push(unknown);
    scheduler.do_send(QueueTimeoutsOver { job_ids });
    // Room that comes now is for nobody of them.
    scheduler.do_send(worker(4));
    let mut answers = Vec::new();
    while answers.len() <= jobs as usize {
        answers.extend(left.next().await.departures);
    }
    assert_eq!(answers.pop(), Some((unknown, None)));
    assert!(answers.iter().all(|(_, standing)| standing.is_some()));
    let first = answers[0].1.clone().unwrap();
    let sharing = answers.iter().filter(|(_, standing)| Arc::ptr_eq(standing.as_ref().unwrap(), &first));
    assert_eq!(sharing.count(), 2_000, "a slice shares one");
    settle().await;
    assert!(proposed.so_far().is_empty());
}

#[actix_rt::test]
async fn who_is_cancelled_while_it_waits_is_answered_for_and_who_does_not_wait_is_not() {
    let (scheduler, _proposed, mut left) = started_and_left();
    scheduler.do_send(worker(0));
    scheduler.do_send(job(1));
    scheduler.do_send(JobUnqueued { job_id: JobId::from_u128(2) });
    scheduler.do_send(JobUnqueued { job_id: JobId::from_u128(1) });
    let departures = left.next().await.departures;
    assert_eq!(departures.len(), 1);
    let (job_id, standing) = &departures[0];
    assert_eq!(*job_id, JobId::from_u128(1));
    let standing = standing.as_ref().unwrap();
    assert_eq!((standing.workers[0].workers, standing.workers[0].names[0].as_str()), (1, "host"));
    assert!(standing.summary.contains("1 CPU"), "{}", standing.summary);
    settle().await;
    assert!(left.so_far().is_empty());
}
