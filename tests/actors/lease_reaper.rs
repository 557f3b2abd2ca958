//! Leases on a paused clock.

use std::time::Duration;

use actix::{Actor, Addr};
use gpulayer::actors::lease_reaper::LeaseReaper;
use gpulayer::actors::messages::job_supervisor::{LeaseExpired, LeaseResumed};
use gpulayer::actors::messages::lease_reaper::{Forget, Renew, Started, Watch};
use gpulayer::contract::ids::{TaskId, WorkerId};
use gpulayer::domain::lease::LeaseTimes;

use crate::recorder::{Heard, recorder, settle};

const TASK: TaskId = TaskId::from_u128(1);
const WORKER: WorkerId = WorkerId::from_u128(2);
const TIMES: LeaseTimes = LeaseTimes { ttl_ms: 20_000, start_ms: 10_000, stall_ms: 5_000 };

fn reaper() -> (Addr<LeaseReaper>, Heard<LeaseExpired>, Heard<LeaseResumed>) {
    let (expired, heard_expired) = recorder();
    let (resumed, heard_resumed) = recorder();
    (LeaseReaper::new(TIMES, expired, resumed).start(), heard_expired, heard_resumed)
}

fn renew() -> Renew {
    Renew { worker_id: WORKER, tasks: vec![(TASK, 1)] }
}

async fn pass(seconds: u64) {
    for _ in 0..seconds {
        tokio::time::advance(Duration::from_secs(1)).await;
        settle().await;
    }
}

async fn watched(reaper: &Addr<LeaseReaper>) {
    reaper.do_send(Watch { task_id: TASK, epoch: 1, worker_id: WORKER });
    settle().await;
}

#[actix::test]
async fn a_task_that_does_not_start_is_reported_once() {
    tokio::time::pause();
    let (reaper, mut expired, _resumed) = reaper();
    watched(&reaper).await;
    pass(9).await;
    assert_eq!(expired.so_far(), []);
    pass(30).await;
    assert_eq!(expired.so_far(), [LeaseExpired { task_id: TASK, epoch: 1 }]);
}

#[actix::test]
async fn heartbeats_keep_a_started_task_and_silence_loses_it() {
    tokio::time::pause();
    let (reaper, mut expired, mut resumed) = reaper();
    watched(&reaper).await;
    reaper.do_send(Started { task_id: TASK, suspended: false });
    for _ in 0..6 {
        pass(10).await;
        reaper.do_send(renew());
    }
    settle().await;
    assert_eq!(expired.so_far(), []);
    pass(25).await;
    assert_eq!(expired.so_far(), [LeaseExpired { task_id: TASK, epoch: 1 }]);
    reaper.do_send(renew());
    settle().await;
    assert_eq!(resumed.so_far(), [LeaseResumed { task_id: TASK, epoch: 1 }]);
}

#[actix::test]
async fn a_forgotten_lease_is_never_heard_of_again() {
    tokio::time::pause();
    let (reaper, mut expired, mut resumed) = reaper();
    watched(&reaper).await;
    reaper.do_send(Forget { task_id: TASK });
    pass(40).await;
    reaper.do_send(renew());
    settle().await;
    assert_eq!((expired.so_far(), resumed.so_far()), (vec![], vec![]));
}

#[actix::test]
async fn a_server_that_stood_still_blames_nobody() {
    tokio::time::pause();
    let (reaper, mut expired, _resumed) = reaper();
    watched(&reaper).await;
    reaper.do_send(Started { task_id: TASK, suspended: false });
    settle().await;
    tokio::time::advance(Duration::from_secs(300)).await;
    settle().await;
    assert_eq!(expired.so_far(), [], "the gap is the server's own");
    pass(19).await;
    assert_eq!(expired.so_far(), []);
    pass(3).await;
    assert_eq!(expired.so_far(), [LeaseExpired { task_id: TASK, epoch: 1 }]);
}
