//! Links that lose packets and connections that are reset: slower, and nothing else.

use std::time::{Duration, Instant};

use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::JobState;
use serde_json::{Value, json};

use crate::stand::Stand;

/// A job that prints, and leaves some kilobytes.
fn talkative() -> Value {
    json!({
        "workload": {"command": {"shell": "seq 300; head -c 60000 /dev/urandom > out.bin; sleep 0.2; echo done"}},
        "outputs": [{"path": "out.bin"}],
    })
}

async fn all_succeed_at_once(stand: &Stand, jobs: &[JobId]) {
    for id in jobs {
        let job = stand.end(*id).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1), "{job:?}");
        assert_eq!(job.outputs.len(), 1);
        let lines: Value = stand.client().get(&format!("/v1/jobs/{id}/logs?limit=500&tail=1")).await.unwrap();
        assert_eq!(lines["items"][0]["text"], json!("done"), "no line is lost");
    }
}

#[actix_rt::test]
async fn a_link_that_loses_every_fifth_packet_slows_jobs_down_and_breaks_none() {
    let Some(stand) = Stand::lay().await else { return };
    let machines = [stand.network.machine("w1"), stand.network.machine_behind_nat("w2")];
    let mut workers = Vec::new();
    for machine in &machines {
        workers.push(stand.worker(machine).await);
        machine.lose(20);
    }
    let mut jobs = Vec::new();
    for _ in 0..8 {
        jobs.push(stand.submit(&talkative()).await);
    }
    all_succeed_at_once(&stand, &jobs).await;
}

#[actix_rt::test]
async fn connections_that_are_reset_over_and_over_break_no_job() {
    let Some(stand) = Stand::lay().await else { return };
    let machine = stand.network.machine("w1");
    let _worker = stand.worker(&machine).await;
    let mut jobs = Vec::new();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(6) {
        jobs.push(stand.submit(&talkative()).await);
        // Longer than a beat, shorter than a lease.
        machine.reset();
        tokio::time::sleep(Duration::from_millis(700)).await;
        machine.heal();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    all_succeed_at_once(&stand, &jobs).await;
}
