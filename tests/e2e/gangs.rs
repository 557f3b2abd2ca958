//! Gangs on real machines' worth of processes: one daemon, a worker per node, one shell or Python program per rank.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use gpulayer::contract::ids::{JobId, TaskId};
use gpulayer::contract::job::{Job, JobState, Page, Sequence};
use gpulayer::contract::log::LogLine;
use gpulayer::contract::worker::{Phase, Task, TaskState, Worker, WorkerState};
use serde_json::{Value, json};

use crate::house::{Daemon, House, binary, eventually, shell};
use crate::processes;

/// Workers of one house, each a process of its own with two cores.
struct Rack<'a> {
    house: &'a House,
    url: String,
    workers: Vec<Option<Child>>,
}

impl<'a> Rack<'a> {
    async fn of(house: &'a House, count: usize) -> (Daemon, Self) {
        let daemon = house.daemon_with(&["--port", "0", "--no-worker"]).await;
        let url = format!("http://127.0.0.1:{}", house.port());
        let mut rack = Self { house, url, workers: Vec::new() };
        for _ in 0..count {
            rack.add().await;
        }
        (daemon, rack)
    }

    fn folder(&self, number: usize) -> PathBuf {
        self.house.path().join(format!("box{number}"))
    }

    fn start(&self, number: usize) -> Child {
        let mut log = std::fs::OpenOptions::new();
        let log = log.create(true).append(true).open(self.house.path().join("workers.log")).unwrap();
        Command::new(binary("gpulayer-worker"))
            .args(["--url", &self.url, "--name", &format!("box{number}"), "--allow-root-tasks"])
            .args(["--cpus", "2", "--advertise-address", "127.0.0.1", "--join-token-file"])
            .arg(self.house.home().join("join-token"))
            .arg("--folder")
            .arg(self.folder(number))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// One more worker, which has said what it has.
    async fn add(&mut self) {
        let number = self.workers.len();
        self.workers.push(Some(self.start(number)));
        self.is(&format!("box{number}"), WorkerState::Idle).await;
    }

    async fn is(&self, name: &str, state: WorkerState) {
        eventually("a worker's state", async || {
            let workers: Page<Worker> = self.house.client().get("/v1/workers").await.ok()?;
            workers.items.iter().any(|worker| worker.name == name && worker.state == state).then_some(())
        })
        .await;
    }

    /// `kill -9` of a worker and of the shims of its tasks: as if its machine were gone.
    fn pull_the_plug(&mut self, number: usize) {
        let mut worker = self.workers[number].take().unwrap();
        worker.kill().unwrap();
        worker.wait().unwrap();
        for shim in processes::shims(&self.folder(number)) {
            processes::signal(shim, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Rack<'_> {
    fn drop(&mut self) {
        for worker in self.workers.iter_mut().flatten() {
            let _ = worker.kill();
            let _ = worker.wait();
        }
        for number in 0..self.workers.len() {
            processes::remove_groups(&self.folder(number));
        }
    }
}

fn gang(nodes: usize, text: &str) -> Value {
    let mut spec = shell(text);
    spec["distributed"] = json!({"nodes": nodes, "launcher": "env"});
    spec["resources"] = json!({"cpus": 2});
    spec
}

async fn tasks(house: &House, job: JobId) -> Vec<Task> {
    house.client().get::<Page<Task>>(&format!("/v1/jobs/{job}/tasks")).await.unwrap().items
}

async fn executes(house: &House, job: JobId) {
    eventually("all ranks to execute", async || {
        let phases: Sequence<Value> =
            house.client().get(&format!("/v1/jobs/{job}/events?limit=500")).await.ok()?;
        let executing: std::collections::BTreeSet<TaskId> = phases
            .items
            .iter()
            .filter(|event| event["data"]["phase"] == json!(Phase::Executing))
            .map(|event| serde_json::from_value(event["task_id"].clone()).unwrap())
            .collect();
        let live = tasks(house, job).await.into_iter().filter(|task| !task.state.ended());
        let live: Vec<TaskId> = live.map(|task| task.id).collect();
        (!live.is_empty() && live.iter().all(|id| executing.contains(id))).then_some(())
    })
    .await;
}

/// Rank 0 adds up what the others send it and sends the sum back, over sockets on the addresses they were given.
const ALL_REDUCE: &str = r#"
import os, socket, time
rank, nodes, port = int(os.environ["GPULAYER_RANK"]), int(os.environ["GPULAYER_NODES"]), int(os.environ["PORT"])
peers = os.environ["GPULAYER_PEERS"].split(",")
assert len(peers) == nodes
if rank == 0:
    listener = socket.create_server((peers[0], port))
    others = [listener.accept()[0] for _ in range(nodes - 1)]
    total = 1 + sum(int(other.recv(16)) for other in others)
    for other in others:
        other.sendall(str(total).encode())
else:
    while True:
        try:
            hub = socket.create_connection((peers[0], port))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    hub.sendall(str(rank + 1).encode())
    total = int(hub.recv(16))
print(f"rank {rank} has {total}", flush=True)
open(f"shard-{rank}", "w").write(str(total))
if rank == 0:
    open("model", "w").write("weights")
"#;

#[actix_rt::test]
async fn a_gang_waits_whole_then_runs_once_per_node_and_meets() {
    let house = House::new();
    let (daemon, mut rack) = Rack::of(&house, 2).await;
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut spec = gang(3, "");
    spec["workload"]["command"] = json!({"argv": ["python3", "-c", ALL_REDUCE]});
    spec["env"] = json!({"PORT": port.to_string()});
    spec["outputs"] = json!([{"path": "shard-*", "name": "shards"}, {"path": "model"}]);
    let job = house.submit(&spec).await.id;
    let reason = eventually("the reason", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{job}")).await.unwrap();
        job.queue_reason
    })
    .await;
    assert!(reason.contains('3'), "it says how many nodes it needs: {reason}");
    assert!(tasks(&house, job).await.is_empty(), "nothing of it is placed before all of it can be");
    rack.add().await;

    let ended = house.end(job).await;
    assert_eq!(ended.state, JobState::Succeeded, "{ended:?}");
    let mut placed = tasks(&house, job).await;
    placed.sort_by_key(|task| task.rank);
    assert_eq!(placed.iter().map(|task| task.rank).collect::<Vec<_>>(), [0, 1, 2]);
    crate::house::assert_unique(placed.iter().map(|task| task.worker));
    assert!(placed.iter().all(|task| task.state == TaskState::Succeeded && task.epoch == 1));
    let lines: Sequence<LogLine> = house.client().get(&format!("/v1/jobs/{job}/logs")).await.unwrap();
    let mut said: Vec<(u32, &str)> = lines.items.iter().map(|line| (line.rank, line.text.as_str())).collect();
    said.sort_unstable();
    assert_eq!(said, [(0, "rank 0 has 6"), (1, "rank 1 has 6"), (2, "rank 2 has 6")]);
    let files: Vec<&str> = ended.outputs.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(files, ["model", "shard-0", "shard-1", "shard-2"], "each rank brings its own");
    let warned: Vec<&str> = ended.warnings.iter().map(|warning| warning.pointer.as_str()).collect();
    assert_eq!(warned, ["/distributed/nodes"], "two workers could not hold it when it was submitted");

    let text = "echo \"I am $GPULAYER_RANK\"; [ $GPULAYER_RANK = 1 ] && exit 4; sleep 600";
    let run = house
        .command(&["run", "--distributed=env", "--nodes", "3", "--cpus", "2", "--shell", text])
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert_eq!(run.status.code(), Some(4), "{err}");
    assert!(out.lines().any(|line| line == "[1] I am 1"), "{out}");
    assert!(err.contains("rank 1 on box"), "{err}");
    assert!(house.leftovers().is_empty(), "{:?}", house.leftovers());
    drop(daemon);
}

#[actix_rt::test]
async fn one_rank_that_falls_takes_the_others_along_and_frees_every_node() {
    let house = House::new();
    let (daemon, _rack) = Rack::of(&house, 3).await;
    // Rank 2 needs what rank 0 brings, so it falls after it and for another reason; both have children.
    let text = "sleep 600 & case $GPULAYER_RANK in 0) sleep 0.3; kill -KILL $$;; 2) trap 'exit 9' TERM; wait; wait;; *) wait;; esac";
    let mut spec = gang(3, text);
    spec["grace_s"] = json!(5);
    let job = house.submit(&spec).await.id;
    let ended = house.end(job).await;
    let end = ended.end.unwrap();
    assert_eq!((ended.state, end.reason.word()), (JobState::Failed, "signalled"), "{end:?}");
    assert!(end.detail.is_some_and(|detail| detail.starts_with("rank 0 on box")));
    let states = tasks(&house, job).await;
    let of_rank = |rank| states.iter().find(|task| task.rank == rank).unwrap();
    assert_eq!(of_rank(0).state, TaskState::Failed);
    for rank in [1, 2] {
        assert_eq!(of_rank(rank).state, TaskState::Cancelled, "{:?}", of_rank(rank));
    }
    assert!(house.leftovers().is_empty(), "{:?}", house.leftovers());
    // All nodes are free again, and whole gangs go one after the other.
    let mut next = Vec::new();
    for _ in 0..3 {
        next.push(house.submit(&gang(3, "true")).await);
    }
    for job in next {
        assert_eq!(house.end(job.id).await.state, JobState::Succeeded);
    }

    let mut missing = gang(2, "true");
    missing["outputs"] = json!([{"path": "never"}]);
    let missing = house.submit(&missing).await;
    let missing = house.end(missing.id).await.end.unwrap();
    assert_eq!(missing.reason.word(), "missing_output");
    drop(daemon);
}

#[actix_rt::test]
async fn a_gang_outlives_the_daemon_and_what_a_rank_brought_before_is_kept() {
    let house = House::new();
    let (daemon, rack) = Rack::of(&house, 2).await;
    let go = house.path().join("go");
    let text = format!(
        "echo $GPULAYER_RANK > part-$GPULAYER_RANK; [ $GPULAYER_RANK = 1 ] && exit 0; until [ -e {} ]; do sleep 0.05; done",
        go.display()
    );
    let mut spec = gang(2, &text);
    spec["outputs"] = json!([{"path": "part-*"}]);
    let job = house.submit(&spec).await.id;
    eventually("rank 1 to end", async || {
        let tasks = tasks(&house, job).await;
        tasks.iter().any(|task| task.rank == 1 && task.state == TaskState::Succeeded).then_some(())
    })
    .await;
    let port = house.port().to_string();
    daemon.kill();
    let daemon = house.daemon_with(&["--port", &port, "--no-worker"]).await;
    let job_now: Job = house.client().get(&format!("/v1/jobs/{job}")).await.unwrap();
    assert_eq!(job_now.state, JobState::Running);
    std::fs::write(&go, "").unwrap();
    let ended = house.end(job).await;
    assert_eq!(ended.state, JobState::Succeeded, "{ended:?}");
    assert_eq!(ended.attempt, 1);
    let files: Vec<&str> = ended.outputs.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(files, ["part-0", "part-1"]);
    drop((daemon, rack));
}

#[actix_rt::test]
async fn a_gang_that_loses_a_machine_names_it_and_is_tried_again_on_others() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    std::fs::set_permissions(house.home(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(house.home().join("config.toml"), "heartbeat_s = 1\nlease_ttl_s = 6\n").unwrap();
    let (daemon, mut rack) = Rack::of(&house, 3).await;
    let go = house.path().join("go");
    let text = format!(
        "echo attempt $GPULAYER_ATTEMPT; [ $GPULAYER_ATTEMPT = 2 ] && exit 0; until [ -e {} ]; do sleep 0.05; done; [ $GPULAYER_RANK = 0 ] && exit 1; sleep 600",
        go.display()
    );
    let mut spec = gang(2, &text);
    spec["retry"] = json!({"max_attempts": 2, "retry_on": ["worker_lost"]});
    let job = house.submit(&spec).await.id;
    executes(&house, job).await;
    let lost = tasks(&house, job).await.into_iter().find(|task| task.rank == 1).unwrap();
    let worker: Worker = house.client().get(&format!("/v1/workers/{}", lost.worker)).await.unwrap();
    rack.pull_the_plug(worker.name.strip_prefix("box").unwrap().parse().unwrap());
    // Its peer notices first, as it does when a connection breaks: that is not the cause.
    std::fs::write(&go, "").unwrap();
    let ended = house.end(job).await;
    assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 2), "{ended:?}");
    let all = tasks(&house, job).await;
    assert_eq!(all.iter().filter(|task| task.attempt == 2).count(), 2);
    assert!(all.iter().all(|task| task.attempt == 1 || task.worker != lost.worker));
    drop(daemon);
}

#[actix_rt::test]
async fn draining_one_node_stops_the_gang_there_and_it_goes_on_elsewhere() {
    let house = House::new();
    let (daemon, rack) = Rack::of(&house, 3).await;
    let mut spec = gang(2, "echo attempt $GPULAYER_ATTEMPT; [ $GPULAYER_ATTEMPT = 2 ] && exit 0; sleep 600");
    spec["retry"] = json!({"max_attempts": 2, "retry_on": ["operator"]});
    let job = house.submit(&spec).await.id;
    executes(&house, job).await;
    let drained = tasks(&house, job).await.into_iter().find(|task| task.rank == 1).unwrap();
    let there: Page<Job> = house.client().get(&format!("/v1/jobs?worker={}", drained.worker)).await.unwrap();
    assert_eq!(there.items.iter().map(|job| job.id).collect::<Vec<_>>(), [job], "it is on that worker too");
    let shown = house.command(&["worker", "show", &drained.worker.to_string()]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let on_it = |task: &Task| shown.contains(&task.id.to_string());
    let all = tasks(&house, job).await;
    assert_eq!(
        all.iter().filter(|task| on_it(task)).map(|task| task.rank).collect::<Vec<_>>(),
        [1],
        "{shown}"
    );
    let path = format!("/v1/workers/{}/drain", drained.worker);
    house.client().post::<Worker>(&path, &json!({"deadline_s": 0})).await.unwrap();
    let ended = house.end(job).await;
    assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 2), "{ended:?}");
    let first: Vec<Task> = tasks(&house, job).await.into_iter().filter(|task| task.attempt == 1).collect();
    let reason = |rank| {
        let task = first.iter().find(|task| task.rank == rank).unwrap();
        task.end.as_ref().unwrap().reason.word()
    };
    assert_eq!((reason(0), reason(1)), ("cancelled", "drained"));

    // A cancel stops all of them.
    let job = house.submit(&gang(2, "sleep 600")).await.id;
    executes(&house, job).await;
    house.client().post::<Job>(&format!("/v1/jobs/{job}/cancel"), &json!({})).await.unwrap();
    assert_eq!(house.end(job).await.state, JobState::Cancelled);
    assert!(tasks(&house, job).await.iter().all(|task| task.state == TaskState::Cancelled));
    assert!(house.leftovers().is_empty(), "{:?}", house.leftovers());
    drop((daemon, rack));
}

/// What a worker did not answer before the server was killed is known after it, per task, and is over with its return.
#[actix_rt::test]
async fn a_silent_worker_is_waited_for_over_a_restart_and_comes_back() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    std::fs::set_permissions(house.home(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(house.home().join("config.toml"), "heartbeat_s = 1\nlease_ttl_s = 6\n").unwrap();
    let (daemon, rack) = Rack::of(&house, 2).await;
    let go = house.path().join("go");
    let text = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let job = house.submit(&gang(2, &text)).await.id;
    executes(&house, job).await;
    let silent = tasks(&house, job).await.into_iter().find(|task| task.rank == 1).unwrap();
    let worker: Worker = house.client().get(&format!("/v1/workers/{}", silent.worker)).await.unwrap();
    let number: usize = worker.name.strip_prefix("box").unwrap().parse().unwrap();
    let pid = rack.workers[number].as_ref().unwrap().id();
    processes::signal(pid, rustix::process::Signal::STOP);
    let unreachable = async |wanted: bool| {
        eventually("whether its worker answers", async || {
            let job: Job = house.client().get(&format!("/v1/jobs/{job}")).await.ok()?;
            (job.unreachable_since.is_some() == wanted).then_some(())
        })
        .await;
    };
    unreachable(true).await;
    let port = house.port().to_string();
    daemon.kill();
    let daemon = house.daemon_with(&["--port", &port, "--no-worker"]).await;
    unreachable(true).await;
    processes::signal(pid, rustix::process::Signal::CONT);
    unreachable(false).await;
    std::fs::write(&go, "").unwrap();
    let ended = house.end(job).await;
    assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 1), "{ended:?}");
    let events: Sequence<Value> =
        house.client().get(&format!("/v1/jobs/{job}/events?limit=500")).await.unwrap();
    let of_kind = |kind: &str| events.items.iter().filter(|event| event["type"] == kind).count();
    assert_eq!((of_kind("job_unreachable"), of_kind("job_reachable")), (1, 1), "one task, once");
    drop((daemon, rack));
}
