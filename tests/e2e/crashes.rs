//! `kill -9` at random moments: what was acknowledged is there, runs once, and reaches its right end.

use std::time::Duration;

use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState};
use rand::RngExt;
use serde_json::Value;

use crate::house::{House, assert_unique, eventually, shell};

/// The long run (`scripts/soak`) asks for more.
fn rounds(default: usize) -> usize {
    std::env::var("GPULAYER_CRASH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(default)
}

fn burst() -> usize {
    std::env::var("GPULAYER_CRASH_BURST").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(300)
}

/// Submits from many connections until the daemon dies; answers every acknowledged id.
async fn submit_until_killed(house: &House, count: usize) -> Vec<JobId> {
    let submitters = (0..16).map(|_| {
        let client = house.client().with_reconnect_for(Duration::ZERO);
        actix_rt::spawn(async move {
            let mut acknowledged = Vec::new();
            for _ in 0..count / 16 {
                let spec = serde_json::json!({
                    "workload": {"command": {"argv": ["/bin/true"]}},
                    "resources": {"cpus": 0.25},
                });
                match client.post::<Job>("/v1/jobs", &spec).await {
                    Ok(job) => acknowledged.push(job.id),
                    Err(_) => break,
                }
            }
            acknowledged
        })
    });
    let mut all = Vec::new();
    for submitter in submitters.collect::<Vec<_>>() {
        all.extend(submitter.await.unwrap());
    }
    all
}

#[actix_rt::test]
async fn every_acknowledged_job_survives_a_kill_during_a_burst_and_ends_once() {
    let house = House::new();
    let mut acknowledged = Vec::new();
    for round in 0..rounds(4) {
        let daemon = house.daemon().await;
        let after = Duration::from_millis(rand::rng().random_range(5..400));
        println!("round {round}: killed after {after:?}");
        let killer = std::thread::spawn(move || {
            std::thread::park_timeout(after);
            daemon.kill();
        });
        acknowledged.extend(submit_until_killed(&house, burst()).await);
        killer.join().unwrap();
    }
    let _daemon = house.daemon().await;
    assert_unique(acknowledged.iter().copied());
    for id in &acknowledged {
        let job = house.end(*id).await;
        assert_eq!(job.state, JobState::Succeeded, "{job:?}");
        assert_eq!(job.attempt, 1, "attempts tell the truth");
    }
    let events: Value = house.client().get(&format!("/v1/jobs/{}/events", acknowledged[0])).await.unwrap();
    let sequence: Vec<u64> =
        events["items"].as_array().unwrap().iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(sequence, (1..=sequence.len() as u64).collect::<Vec<_>>(), "no event is lost or doubled");
    eventually("no process is left", async || house.leftovers().is_empty().then_some(())).await;
}

#[actix_rt::test]
async fn a_running_task_goes_on_while_the_daemon_is_down_and_is_adopted() {
    let house = House::new();
    let daemon = house.daemon().await;
    let mut spec =
        shell("echo before; while [ ! -e go ]; do sleep 0.05; done; echo after; echo made > out.txt");
    spec["outputs"] = serde_json::json!([{"path": "out.txt"}]);
    let id = house.submit(&spec).await.id;
    house.logged(id, "before").await;
    daemon.kill();
    let workspace = glob_one(&house, "worker/tasks/*/workspace");
    std::fs::write(workspace.join("go"), "").unwrap();
    eventually("the task's end without a daemon", async || workspace.join("out.txt").exists().then_some(()))
        .await;
    let _daemon = house.daemon().await;
    let job = house.end(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1), "{job:?}");
    assert_eq!(house.log(id).await, ["before", "after"]);
    assert_eq!(job.outputs.len(), 1);
    assert_eq!(house.leftovers(), Vec::<String>::new());
}

#[actix_rt::test]
async fn a_log_that_is_written_through_three_kills_has_every_line_once() {
    let house = House::new();
    let mut daemon = house.daemon().await;
    let id = house
        .submit(&shell("i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo line $i; sleep 0.005; done"))
        .await
        .id;
    for line in ["line 50", "line 150", "line 250"] {
        house.logged(id, line).await;
        daemon.kill();
        daemon = house.daemon().await;
    }
    assert_eq!(house.end(id).await.state, JobState::Succeeded);
    let expected: Vec<String> = (1..=600).map(|number| format!("line {number}")).collect();
    assert_eq!(house.log(id).await, expected);
}

#[actix_rt::test]
async fn a_cancel_given_while_the_task_outlived_its_daemon_reaches_it() {
    let house = House::new();
    let daemon = house.daemon().await;
    let id = house.submit(&shell("echo up; trap '' TERM; while :; do sleep 0.1; done")).await.id;
    house.logged(id, "up").await;
    daemon.kill();
    let daemon = house.daemon().await;
    let _: Value = house
        .client()
        .post(&format!("/v1/jobs/{id}/cancel"), &serde_json::json!({"now": true}))
        .await
        .unwrap();
    assert_eq!(house.end(id).await.state, JobState::Cancelled);
    assert_eq!(house.leftovers(), Vec::<String>::new());
    assert!(daemon.terminate().success());
}

/// The one path beneath the state folder that this pattern matches.
fn glob_one(house: &House, pattern: &str) -> std::path::PathBuf {
    let (before, after) = pattern.split_once('*').unwrap();
    let mut found: Vec<_> = std::fs::read_dir(house.state().join(before))
        .unwrap()
        .map(|entry| entry.unwrap().path().join(after.trim_start_matches('/')))
        .filter(|path| path.exists())
        .collect();
    assert_eq!(found.len(), 1, "{pattern}");
    found.pop().unwrap()
}

#[tokio::test]
async fn a_daemon_whose_workers_identity_was_lost_or_cut_goes_on_with_its_tasks() {
    let house = House::new();
    let mut daemon = house.daemon().await;
    let go = house.path().join("go");
    let job = house
        .submit(&shell(&format!("echo up; until [ -e {} ]; do sleep 0.02; done; echo done", go.display())))
        .await;
    house.logged(job.id, "up").await;
    let identity = house.state().join("worker/identity.json");
    for damage in [Some(30), Some(0), None] {
        daemon.kill();
        match damage {
            Some(bytes) => {
                std::fs::File::options().write(true).open(&identity).unwrap().set_len(bytes).unwrap()
            }
            None => std::fs::remove_file(&identity).unwrap(),
        }
        daemon = house.daemon().await;
    }
    std::fs::write(go, "").unwrap();
    let ended = house.end(job.id).await;
    assert_eq!(ended.state, JobState::Succeeded, "{ended:?}");
    assert_eq!(house.log(job.id).await, ["up", "done"]);
    let workers: serde_json::Value = house.client().get("/v1/workers").await.unwrap();
    assert_eq!(workers["items"].as_array().unwrap().len(), 1, "{workers}");
}
