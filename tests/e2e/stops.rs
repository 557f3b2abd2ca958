//! The verbs that stop: what each does to running, queued and new jobs, what programs read, and that no restart
//! forgets an order.

use std::time::Duration;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState, Page};
use gpulayer::contract::worker::{Task, Worker, WorkerState};
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{House, eventually, shell};
use crate::remote_worker::port;

/// Reads its stop file when it is told to stop, prints what it found, and says so with its status.
const READER: &str =
    r#"trap 'cat "$GPULAYER_STOP_FILE"; exit 7' TERM; echo up; while :; do sleep 0.05; done"#;

fn small(text: &str) -> Value {
    let mut spec = shell(text);
    spec["resources"] = json!({"cpus": 0.1});
    spec
}

fn url(house: &House) -> String {
    format!("http://127.0.0.1:{}", port(house))
}

impl House {
    async fn running(&self, spec: &Value) -> JobId {
        let id = self.submit(spec).await.id;
        self.logged(id, "up").await;
        id
    }

    async fn only_worker(&self) -> Worker {
        eventually("the worker", async || {
            let page: Page<Worker> = self.client().get("/v1/workers").await.unwrap();
            page.items.into_iter().next()
        })
        .await
    }

    async fn live_task(&self, id: JobId) -> Task {
        let page: Page<Task> = self.client().get(&format!("/v1/jobs/{id}/tasks")).await.unwrap();
        page.items.into_iter().next_back().unwrap()
    }

    /// Runs a command line that must succeed, and gives what it printed.
    fn printed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[actix_rt::test]
async fn a_program_reads_why_it_has_to_stop_whoever_says_so() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let mut timed = small(READER);
    timed["timeout_s"] = json!(0.5);
    let timed = house.running(&timed).await;
    let cancelled = house.running(&small(READER)).await;
    let evicted = house.running(&small(READER)).await;
    let drained = house.running(&small(READER)).await;
    let said = house.printed(&["cancel", &cancelled.to_string()]);
    assert!(said.contains("with 10.0 s of grace"), "{said}");
    let task = house.live_task(evicted).await.id.to_string();
    house.printed(&["worker", "evict", &task]);
    house.end(evicted).await;
    let worker = house.only_worker().await;
    let said = house.printed(&["worker", "drain", &worker.name, "--deadline", "1s"]);
    assert!(said.contains("takes no new tasks"), "{said}");
    for (id, word, reason, state) in [
        (timed, "timed_out", EndReason::TimedOut, JobState::TimedOut),
        (cancelled, "cancelled", EndReason::Cancelled, JobState::Cancelled),
        (evicted, "evicted", EndReason::Evicted, JobState::Failed),
        (drained, "drained", EndReason::Drained, JobState::Failed),
    ] {
        let job = house.end(id).await;
        let end = job.end.unwrap();
        assert_eq!((job.state, end.reason, end.exit_code), (state, reason, Some(7)), "{word}");
        let log = house.log(id).await;
        assert!(log.iter().any(|line| line == word), "{word}: {log:?}");
    }
    assert_eq!(house.leftovers(), [""; 0]);
}

#[actix_rt::test]
async fn a_drain_under_load_outlives_a_crash_and_a_resume_lets_the_queue_go_on() {
    let house = House::new();
    let daemon = house.daemon().await;
    let mut retried = small(READER);
    retried["retry"] = json!({"max_attempts": 2, "retry_on": ["drained"]});
    let retried = house.running(&retried).await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(house.running(&small(READER)).await);
    }
    let ends_itself = house.submit(&small("echo up; sleep 0.3")).await.id;
    let worker = house.only_worker().await;
    house.printed(&["worker", "drain", &worker.name, "--deadline", "5s"]);
    let late = house.submit(&small("echo late")).await.id;
    daemon.kill();
    let daemon = house.daemon().await;
    for id in &runs {
        assert_eq!(house.end(*id).await.end.unwrap().reason, EndReason::Drained);
    }
    // Placed or not when the drain came, it ends as it would have, now or after the resume.
    let queued = async |id: JobId| {
        let job: Job = house.client().get(&format!("/v1/jobs/{id}")).await.unwrap();
        (job.state == JobState::Queued).then_some(job.queue_reason)
    };
    eventually("the reason", async || {
        let reason = queued(late).await.flatten();
        (reason.as_deref() == Some("1 worker: draining")).then_some(())
    })
    .await;
    eventually("the drained one to be queued again", async || queued(retried).await).await;
    let shown: Worker = house.client().get(&format!("/v1/workers/{}", worker.id)).await.unwrap();
    assert_eq!((shown.state, shown.id), (WorkerState::Draining, worker.id), "it stays, and stays drained");
    daemon.kill();
    let _daemon = house.daemon().await;
    // Offline until its first word.
    eventually("the worker to be back", async || {
        (house.only_worker().await.state != WorkerState::Offline).then_some(())
    })
    .await;
    assert!(house.printed(&["worker", "list"]).contains("draining"));
    house.printed(&["workers", "resume", &worker.name]);
    for id in [late, ends_itself] {
        assert_eq!(house.end(id).await.state, JobState::Succeeded);
    }
    eventually("the second attempt", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{retried}")).await.unwrap();
        (job.state == JobState::Running && job.attempt == 2).then_some(())
    })
    .await;
    house.printed(&["cancel", "--now", &retried.to_string()]);
    assert_eq!(house.end(retried).await.end.unwrap().reason, EndReason::Cancelled);
    assert_eq!(house.leftovers(), [""; 0]);
}

#[actix_rt::test]
async fn a_kill_that_was_ordered_while_the_worker_was_away_is_a_kill_after_every_restart() {
    let house = House::new();
    let daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let worker = FarWorker::start(&house, &url(&house));
    let mut spec = shell("trap '' TERM; echo up; while :; do sleep 0.05; done");
    spec["grace_s"] = json!(1000);
    spec["on_unreachable"] = json!("wait");
    let id = house.running(&spec).await;
    house.printed(&["cancel", &id.to_string()]);
    drop(worker);
    house.printed(&["cancel", "--now", &id.to_string()]);
    daemon.kill();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let _worker = FarWorker::start(&house, &url(&house));
    // A thousand seconds of grace would be longer than anybody waits here.
    assert_eq!(house.end(id).await.end.unwrap().reason, EndReason::Cancelled);
    assert_eq!(house.leftovers(), [""; 0]);
}

#[actix_rt::test]
async fn heartbeats_keep_time_with_every_core_busy_and_outputs_on_their_way() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    std::fs::write(house.home().join("config.toml"), "heartbeat_s = 1\nlease_ttl_s = 8\n").unwrap();
    let _daemon = house.daemon().await;
    let mut busy = Vec::new();
    for _ in 0..4 {
        busy.push(house.running(&small("echo up; while :; do :; done")).await);
    }
    let mut uploads = Vec::new();
    for _ in 0..2 {
        let mut spec = small("head -c 150000000 /dev/urandom > big; sync big");
        spec["outputs"] = json!([{"path": "big"}]);
        uploads.push(house.submit(&spec).await.id);
    }
    for id in uploads.iter().chain(&busy[..1]) {
        if busy.contains(id) {
            house.printed(&["cancel", "--now", &id.to_string()]);
        }
        let job = house.end(*id).await;
        assert!(busy.contains(id) || job.outputs.len() == 1, "{job:?}");
    }
    let worker = house.only_worker().await;
    let silence = worker.longest_silence_s.expect("it has heartbeats").duration();
    assert!(silence < Duration::from_secs(8), "a lease would have run out: {silence:?}");
    for id in &busy[1..] {
        let job: Job = house.client().get(&format!("/v1/jobs/{id}")).await.unwrap();
        assert_eq!((job.state, job.attempt, job.unreachable_since), (JobState::Running, 1, None));
    }
    house.printed(&["down", "--yes"]);
}

/// A task that takes its time to leave says for whom it does, wherever it is looked at.
#[actix_rt::test]
async fn a_task_that_leaves_says_for_whom() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    let config = "worker_cpus = 1\n[projects.spare]\npreemptible = true\n";
    std::fs::write(house.home().join("config.toml"), config).unwrap();
    let _daemon = house.daemon().await;
    let mut spec = shell("trap '' TERM; echo up; while :; do sleep 0.1; done");
    (spec["project"], spec["grace_s"]) = (json!("spare"), json!(600));
    let yields = house.running(&spec).await;
    let mut urgent = shell("true");
    urgent["priority"] = json!(5);
    let urgent = house.submit(&urgent).await.id;
    eventually("it to be told to leave", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{yields}")).await.unwrap();
        (job.preempted_by == Some(urgent)).then_some(())
    })
    .await;
    let leaves =
        format!("leaves for job …{} (preempted)", &urgent.to_string()[urgent.to_string().len() - 6..]);
    let given = yields.to_string();
    for args in [vec!["ps"], vec!["show", &given]] {
        assert!(house.printed(&args).contains(&leaves), "{args:?}");
    }
    let explained = house.run(&["explain", &yields.to_string()]);
    assert!(String::from_utf8_lossy(&explained.stderr).contains(&leaves), "{explained:?}");
    assert!(house.run(&["cancel", "--now", &yields.to_string()]).status.success());
    assert_eq!(house.end(urgent).await.state, JobState::Succeeded);
}

#[actix_rt::test]
async fn a_task_that_yields_is_stopped_for_a_higher_priority_and_runs_again_without_using_an_attempt() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    let config = "worker_cpus = 1\n[projects.spare]\npreemptible = true\n";
    std::fs::write(house.home().join("config.toml"), config).unwrap();
    let daemon = house.daemon().await;
    let mut spec = shell(READER);
    spec["project"] = json!("spare");
    let yields = house.running(&spec).await;
    // The same priority waits; a higher one does not.
    let equal = house.submit(&shell("true")).await.id;
    let mut urgent = shell("echo up; while [ ! -e go ]; do sleep 0.05; done");
    urgent["priority"] = json!(5);
    let urgent = house.running(&urgent).await;
    let stopped = house.live_task(yields).await;
    assert_eq!(stopped.end.map(|end| end.reason), Some(EndReason::Preempted));
    assert!(house.log(yields).await.iter().any(|line| line.contains("preempted")), "it could read why");
    let waits: Job = house.client().get(&format!("/v1/jobs/{yields}")).await.unwrap();
    assert_eq!(
        (waits.state, waits.attempt, waits.preempted_by),
        (JobState::Queued, 2, Some(urgent)),
        "{waits:?}"
    );
    let reason = waits.queue_reason.unwrap();
    let by =
        format!("preempted by job …{}, attempt 2 · ", &urgent.to_string()[urgent.to_string().len() - 6..]);
    assert!(reason.starts_with(&by) && reason.contains("needs 1 CPU"), "{reason}");
    let shown = house.printed(&["show", &yields.to_string()]);
    assert!(shown.contains(&by) && !shown.contains("worker  "), "it has no worker now: {shown}");

    // A restart in between forgets nothing of it.
    drop(daemon);
    let _daemon = house.daemon().await;
    let task = house.live_task(urgent).await.id;
    let workspace = house.state().join(format!("worker/tasks/{task}/workspace/go"));
    std::fs::write(workspace, "").unwrap();
    assert_eq!(house.end(urgent).await.state, JobState::Succeeded);
    eventually("the next attempt", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{yields}")).await.unwrap();
        (job.state == JobState::Running && job.attempt == 2 && job.preempted_by.is_none()).then_some(())
    })
    .await;
    assert!(house.run(&["cancel", "--now", &yields.to_string()]).status.success());
    assert_eq!(house.end(yields).await.state, JobState::Cancelled);
    assert_eq!(house.end(equal).await.state, JobState::Succeeded);
    assert_eq!(house.leftovers(), [""; 0]);
}
