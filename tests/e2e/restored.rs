//! An older copy of the server's state is put back while its worker lives on: what the server does not know is ended,
//! what it takes for running and is not there is lost, and what both know goes on.

use std::path::Path;
use std::process::Command;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState};
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{House, alive, eventually, shell};

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// A job that runs until the file is there.
async fn until(house: &House, file: &Path) -> JobId {
    let text = format!(
        "setsid sleep 600 & echo pids $$ $!; while [ ! -e {} ]; do sleep 0.05; done; echo done",
        file.display()
    );
    let mut spec = shell(&text);
    spec["resources"] = json!({"cpus": 0.1});
    house.submit(&spec).await.id
}

async fn pids(house: &House, id: JobId) -> Vec<u32> {
    eventually("the program to begin", async || {
        let log = house.log(id).await;
        let line = log.iter().find_map(|line| line.strip_prefix("pids "))?;
        Some(line.split(' ').map(|pid| pid.parse().unwrap()).collect())
    })
    .await
}

#[actix_rt::test]
async fn an_older_state_put_back_leaves_no_task_that_only_one_side_knows() {
    let house = House::new();
    let daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let port = house.port().to_string();
    let flags = ["--no-worker", "--port", &port];
    let mut worker = FarWorker::start(&house, &format!("http://127.0.0.1:{port}"));
    let files = ["both", "gone"].map(|name| house.path().join(name));
    let both = until(&house, &files[0]).await;
    let gone = until(&house, &files[1]).await;
    let both_pids = pids(&house, both).await;
    pids(&house, gone).await;
    eventually("both to be known as running", async || {
        let server: Value = house.client().get("/v1/server").await.unwrap();
        (server["jobs"]["running"] == 2).then_some(())
    })
    .await;
    daemon.kill();
    let older = house.path().join("older");
    copy(&house.state(), &older);

    let daemon = house.daemon_with(&flags).await;
    std::fs::write(&files[1], "").unwrap();
    assert_eq!(house.end(gone).await.state, JobState::Succeeded);
    let newer = until(&house, &house.path().join("never")).await;
    let newer_pids = pids(&house, newer).await;
    daemon.kill();
    std::fs::remove_dir_all(house.state()).unwrap();
    copy(&older, &house.state());

    let _daemon = house.daemon_with(&flags).await;
    let job: Job = house.client().get(&format!("/v1/jobs/{gone}")).await.unwrap();
    assert_eq!(job.state, JobState::Running, "this state does not know better yet");
    let job = house.end(gone).await;
    let end = job.end.unwrap();
    assert_eq!(end.reason, EndReason::WorkerLost);
    assert!(
        end.detail.as_ref().is_some_and(|detail| detail.contains("its worker no longer has it")),
        "{end:?}"
    );
    eventually("what this state does not know to be killed", async || {
        newer_pids.iter().all(|pid| !alive(*pid)).then_some(())
    })
    .await;
    assert!(both_pids.iter().all(|pid| alive(*pid)), "what both know goes on");
    assert!(worker.is_up());
    std::fs::write(&files[0], "").unwrap();
    let job = house.end(both).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1), "{job:?}");
}
