//! No process outlives its task, whatever the program did.

use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState};
use serde_json::{Value, json};

use crate::house::{House, alive, argv, eventually, shell};

/// A child, a grandchild in a session of its own and a daemon, all deaf to the polite signals; each notes its pid.
const GHOSTS: &str = r#"
import os, signal, time
for deaf in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(deaf, signal.SIG_IGN)
def note():
    with open("pids", "a") as pids:
        pids.write(f"{os.getpid()}\n")
note()
if os.fork() == 0:
    note()
    if os.fork() == 0:
        os.setsid()
        note()
        if os.fork() == 0:
            note()
            while True: time.sleep(1)
        time.sleep(0.1)
        os._exit(0)
    while True: time.sleep(1)
while len(open("pids").readlines()) < 4: time.sleep(0.01)
print("READY", flush=True)
while True: time.sleep(1)
"#;

fn ghosts(extra: Value) -> Value {
    let mut spec = argv(&["python3", "-c", GHOSTS]);
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

/// The pids a ghost tree noted in its workspace, while it runs.
async fn pids(house: &House, id: JobId) -> Vec<u32> {
    house.logged(id, "READY").await;
    let tasks = std::fs::read_dir(house.state().join("worker/tasks")).unwrap();
    let notes =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("workspace/pids")).ok());
    let pids: Vec<u32> =
        notes.flat_map(|note| note.lines().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect();
    assert_eq!(pids.len(), 4);
    pids
}

#[actix_rt::test]
async fn cancel_kills_the_whole_tree() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let id = house.submit(&ghosts(json!({"grace_s": 0.2}))).await.id;
    let pids = pids(&house, id).await;
    let _: Value = house.client().post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await.unwrap();
    let job = house.end(id).await;
    assert_eq!(job.state, JobState::Cancelled, "{job:?}");
    assert!(pids.iter().all(|pid| !alive(*pid)), "a job is terminal only when its tree is gone");
}

#[actix_rt::test]
async fn a_timeout_kills_the_whole_tree() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let id = house.submit(&ghosts(json!({"grace_s": 0.2, "timeout_s": 2}))).await.id;
    let pids = pids(&house, id).await;
    let job = house.end(id).await;
    assert_eq!((job.state, job.end.unwrap().reason), (JobState::TimedOut, EndReason::TimedOut));
    assert!(pids.iter().all(|pid| !alive(*pid)));
}

#[actix_rt::test]
async fn down_kills_the_whole_tree_and_leaves_the_queue() {
    let house = House::new();
    let daemon = house.daemon().await;
    let id = house.submit(&ghosts(json!({"grace_s": 0.2}))).await.id;
    let pids = pids(&house, id).await;
    let mut large = shell("true");
    large["resources"] = json!({"cpus": 3000});
    let waiting = house.submit(&large).await.id;
    let output = house.run(&["down", "--yes"]);
    assert!(output.status.success(), "{output:?}");
    drop(daemon);
    assert!(pids.iter().all(|pid| !alive(*pid)));
    let _daemon = house.daemon().await;
    assert_eq!(house.end(id).await.state, JobState::Cancelled);
    // Until the worker has come back too, that is the reason.
    let reason = eventually("a reason that names the size", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{waiting}")).await.unwrap();
        assert_eq!(job.state, JobState::Queued);
        job.queue_reason.filter(|reason| reason.contains("3000"))
    });
    reason.await;
}

#[actix_rt::test]
async fn a_program_that_ends_takes_its_children_with_it() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let id = house.submit(&shell("sleep 300 & echo parent done; exit 0")).await.id;
    let job = house.end(id).await;
    assert_eq!(job.state, JobState::Succeeded, "the job ends when the program does, not when its pipes do");
    assert_eq!(house.log(id).await, ["parent done"]);
    assert_eq!(house.leftovers(), Vec::<String>::new());
}

#[actix_rt::test]
async fn a_killed_shim_ends_its_task_and_leaves_nothing() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let id = house.submit(&ghosts(json!({}))).await.id;
    let pids = pids(&house, id).await;
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pids[0])).unwrap();
    let shim: i32 = status.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap();
    let shim = rustix::process::Pid::from_raw(shim).unwrap();
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();
    let job = house.end(id).await;
    assert_eq!(job.end.unwrap().reason, EndReason::Internal);
    eventually("the tree to be swept", async || pids.iter().all(|pid| !alive(*pid)).then_some(())).await;
}

#[actix_rt::test]
async fn a_cancel_at_any_early_moment_ends_the_job_once() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let client = house.client();
    for pause_us in [0, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000] {
        let id = house.submit(&shell("exec sleep 60")).await.id;
        tokio::time::sleep(std::time::Duration::from_micros(pause_us)).await;
        let _: Value = client.post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await.unwrap();
        let job = house.end(id).await;
        assert_eq!(job.state, JobState::Cancelled, "after {pause_us} µs: {job:?}");
    }
    assert_eq!(house.leftovers(), Vec::<String>::new());
}
