//! Generators as functions: each value is kept once, whoever is killed in the middle.

use std::path::Path;

use gpulayer::contract::job::{Job, JobState, Sequence};
use gpulayer::contract::yielded::YieldedValue;
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{House, eventually};
use crate::remote_worker::port;

/// Yields `n` numbers, every third of them with much beside it, and waits for a file behind each of `gates`.
const MODULE: &str = r#"
import os, time

def count(n, gates, folder):
    for each in range(1, n + 1):
        yield [each, "x" * 20_000 if each % 3 == 0 else ""]
        if each in gates:
            while not os.path.exists(f"{folder}/{each}"):
                time.sleep(0.01)
    return "counted"
"#;

async fn submitted(house: &House, n: u64, gates: &[u64]) -> Job {
    let path = house.path().join("own.py");
    std::fs::write(&path, MODULE).unwrap();
    let put = house.run(&["artifact", "put", path.to_str().unwrap()]);
    let module = String::from_utf8(put.stdout).unwrap().trim().to_owned();
    let payload = json!({"args": [n, gates, house.path()]}).to_string();
    let function = json!({"payload": payload, "serializer": "json", "entrypoint": "own:count"});
    let spec = json!({
        "workload": {"function": function},
        "inputs": [{"artifact": module, "path": "own.py"}],
        "retry": {"max_attempts": 2, "retry_on": ["any"]},
    });
    house.submit(&spec).await
}

/// All values so far, page after page.
async fn values(house: &House, job: &Job) -> Vec<YieldedValue> {
    let mut found: Vec<YieldedValue> = Vec::new();
    loop {
        let after = found.last().map_or(0, |value| value.n);
        let path = format!("/v1/jobs/{}/yielded?limit=500&after={after}", job.id);
        let page: Sequence<YieldedValue> = house.client().get(&path).await.unwrap();
        if page.items.is_empty() {
            return found;
        }
        found.extend(page.items);
    }
}

async fn yielded(house: &House, job: &Job, n: usize) {
    eventually("the values", async || (values(house, job).await.len() >= n).then_some(())).await;
}

/// Each of them once, in order, with its own contents.
fn assert_counted(house: &House, values: &[YieldedValue], n: u64) {
    let numbers: Vec<u64> = values.iter().map(|value| value.n).collect();
    assert_eq!(numbers, (1..=n).collect::<Vec<_>>());
    for YieldedValue { n, value } in values {
        let text = value.text.clone().unwrap_or_else(|| {
            let to = house.path().join("value");
            let address = value.artifact.unwrap().to_string();
            let got = house.run(&["artifact", "get", &address, "--force", "-o", to.to_str().unwrap()]);
            assert!(got.status.success(), "{got:?}");
            std::fs::read_to_string(to).unwrap()
        });
        assert_eq!(value.artifact.is_some(), n % 3 == 0, "{n}");
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&read[0], text.len() as u64), (&json!(n), value.size_bytes));
    }
}

#[actix_rt::test]
async fn no_value_is_lost_or_doubled_over_kills_of_a_worker_and_of_the_server() {
    let house = House::new();
    let flags = ["--no-worker", "--port", "0"];
    let daemon = house.daemon_with(&flags).await;
    let at = port(&house);
    let url = format!("http://127.0.0.1:{at}");
    let worker = FarWorker::start(&house, &url);
    let job = submitted(&house, 200, &[50, 100, 150]).await;
    let open = |gate: u64| std::fs::write(house.path().join(gate.to_string()), "").unwrap();

    yielded(&house, &job, 50).await;
    drop(worker);
    open(50);
    let worker = FarWorker::start(&house, &url);
    yielded(&house, &job, 100).await;
    daemon.kill();
    open(100);
    let port = at.to_string();
    let daemon = house.daemon_with(&["--no-worker", "--port", &port]).await;
    yielded(&house, &job, 150).await;
    // Both, and the program ends meanwhile.
    drop(worker);
    daemon.kill();
    open(150);
    let _daemon = house.daemon_with(&["--no-worker", "--port", &port]).await;
    let _worker = FarWorker::start(&house, &url);
    let ended = house.end(job.id).await;
    assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 1), "{ended:?}");
    assert_eq!(ended.result.unwrap().inline.unwrap().get(), "\"counted\"");
    assert_counted(&house, &values(&house, &job).await, 200);
    // Nothing of it is left on the worker.
    let left: Vec<_> = std::fs::read_dir(FarWorker::folder(&house).join("tasks")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[actix_rt::test]
async fn what_another_attempt_yields_again_is_known() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let job = submitted(&house, 20, &[10]).await;
    yielded(&house, &job, 10).await;
    // The first attempt dies of it, the second finds the gate open.
    kill_whoever_runs(&house.state().join("worker/runner"));
    std::fs::write(house.path().join("10"), "").unwrap();
    let ended = house.end(job.id).await;
    assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 2), "{ended:?}");
    assert_counted(&house, &values(&house, &job).await, 20);
}

/// Whoever runs a program of this folder.
fn kill_whoever_runs(folder: &Path) {
    for entry in std::fs::read_dir("/proc").unwrap() {
        let entry = entry.unwrap();
        let Ok(command) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let folder = folder.as_os_str().as_encoded_bytes();
        if command.split(|byte| *byte == 0).any(|word| word.starts_with(folder)) {
            let pid: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}
