//! Full disks, as small volumes of their own: the worker's, the daemon's, the artifacts', the log's. Each is filled,
//! the state that follows is looked at, room is made, and everything goes on without a restart.

use std::process::Command;
use std::time::Duration;

use gpulayer::actors::task_runner::DiskRoom;
use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState};
use gpulayer::domain::disk::Watermarks;
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{House, binary, eventually, shell};
use crate::volume::Volume;

const MIB: u64 = 1 << 20;
/// Runs until its workspace has the file `go`, a line at the beginning and one at the end.
const WAITS: &str = "echo up; while [ ! -e go ]; do sleep 0.05; done; echo down";

/// With room for a test: full below 8 MiB, tidies below 16.
fn start(house: &House, port: u64) -> FarWorker {
    let flags = ["--min-free", "8MiB", "--evict-below", "16MiB"];
    FarWorker::start_with(house, &format!("http://127.0.0.1:{port}"), &flags)
}

fn port(house: &House) -> u64 {
    let log = std::fs::read_to_string(house.path().join("log")).unwrap();
    let (_, rest) = log.rsplit_once("127.0.0.1:").unwrap_or_else(|| panic!("no port in {log}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

fn configured(house: &House, text: &str) {
    std::fs::create_dir_all(house.home()).unwrap();
    std::fs::write(house.home().join("config.toml"), text).unwrap();
}

async fn until_worker_is(house: &House, state: &str) -> Value {
    eventually(&format!("the worker to be {state}"), async || {
        let workers: Value = house.client().get("/v1/workers").await.unwrap();
        let worker = workers["items"].get(0)?.clone();
        (worker["state"] == json!(state)).then_some(worker)
    })
    .await
}

/// Lets every task that waits go on; others, which come and go meanwhile, do not care.
fn go(worker_folder: &std::path::Path) {
    for task in std::fs::read_dir(worker_folder.join("tasks")).unwrap().flatten() {
        let _ = std::fs::write(task.path().join("workspace/go"), "");
    }
}

fn storage_full(error: &gpulayer::client::ClientError) -> bool {
    error.problem().is_some_and(|problem| problem.code.word() == "storage_full" && problem.retryable)
}

#[actix_rt::test]
async fn a_worker_with_a_full_disk_says_so_takes_nothing_and_recovers_by_itself() {
    let house = House::new();
    let Some(volume) = Volume::tmpfs(&house.path().join("far"), 64) else { return };
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let port = port(&house);
    let worker = start(&house, port);
    until_worker_is(&house, "idle").await;

    // Something kept that may go when it gets tight.
    let dumped = house.submit(&shell("head -c 4000000 /dev/zero > core")).await.id;
    house.end(dumped).await;
    let kept = volume.path().join("kept").join(dumped.to_string());
    eventually("the workspace to be kept", async || kept.join("workspace/core").exists().then_some(())).await;

    let running = house.submit(&shell(WAITS)).await.id;
    house.logged(running, "up").await;
    volume.fill(MIB / 2);
    let described = until_worker_is(&house, "unhealthy").await;
    let health = described["health"].as_str().unwrap();
    assert!(health.starts_with("disk full on ") && health.contains("needs 8 MiB"), "{health}");
    assert!(!kept.exists(), "what was kept went first");

    let waiting = house.submit(&shell("echo at last")).await.id;
    let reason = eventually("a reason", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{waiting}")).await.unwrap();
        assert_eq!(job.state, JobState::Queued);
        job.queue_reason
    })
    .await;
    assert!(reason.starts_with("1 worker: disk full on "), "{reason}");

    // What runs goes on to its end; also with a worker that starts anew on the full disk.
    drop(worker);
    volume.fill(0);
    let worker = start(&house, port);
    until_worker_is(&house, "unhealthy").await;
    go(volume.path());
    let job = house.end(running).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1), "{job:?}");

    volume.free();
    let job = house.end(waiting).await;
    assert_eq!(job.state, JobState::Succeeded, "{job:?}");
    until_worker_is(&house, "idle").await;
    drop(worker);
}

#[test]
fn caches_that_share_their_bytes_make_room_before_a_workspace_does() {
    let house = House::new();
    let Some(volume) = Volume::tmpfs(&house.path().join("far"), 64) else { return };
    let environments = volume.path().join("environments/0");
    let (environment, cache) = (environments.join("0".repeat(32)), environments.join("uv-cache"));
    let kept = volume.path().join("kept/job_1/workspace");
    for folder in [&environment, &cache, &kept] {
        std::fs::create_dir_all(folder).unwrap();
    }
    // As `uv` installs: neither gives the bytes back without the other.
    std::fs::write(cache.join("package"), vec![1; 30 << 20]).unwrap();
    std::fs::hard_link(cache.join("package"), environment.join("package")).unwrap();
    std::fs::write(kept.join("core"), vec![1; 4 << 20]).unwrap();
    volume.fill(10 * MIB);
    let room =
        DiskRoom::new(volume.path(), Watermarks { min_free_bytes: 8 * MIB, evict_below_bytes: 16 * MIB });
    room.look();
    assert!(!environment.exists() && !cache.exists());
    assert!(volume.free_bytes() > 30 * MIB, "{} are free", volume.free_bytes());
    assert!(kept.join("core").exists(), "there was enough without it");
}

#[actix_rt::test]
async fn an_input_that_does_not_fit_ends_its_job_as_disk_full_and_says_what_fills_the_disk() {
    let house = House::new();
    let Some(volume) = Volume::tmpfs(&house.path().join("far"), 64) else { return };
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let _worker = start(&house, port(&house));
    until_worker_is(&house, "idle").await;
    let file = house.path().join("big");
    std::fs::write(&file, (0..60 * MIB).map(|at| (at >> 12) as u8).collect::<Vec<u8>>()).unwrap();
    let put = house.run(&["artifact", "put", "big"]);
    let address = String::from_utf8(put.stdout).unwrap().trim().to_owned();
    assert!(put.status.success(), "{address}");
    let mut spec = shell("true");
    spec["inputs"] = json!([{"artifact": address, "path": "big"}]);
    volume.fill(40 * MIB);
    let job = house.end(house.submit(&spec).await.id).await;
    let end = job.end.unwrap();
    let detail = end.detail.unwrap();
    assert_eq!((job.state, end.reason), (JobState::Failed, EndReason::DiskFull), "{detail}");
    assert!(detail.contains("input `big`") && detail.contains(" free on "), "{detail}");
    // Nothing of it stays in the way of the next one.
    until_worker_is(&house, "idle").await;
    assert!(volume.free_bytes() > 38 * MIB, "{} are free", volume.free_bytes());
    let next = house.end(house.submit(&shell("true")).await.id).await;
    assert_eq!(next.state, JobState::Succeeded);
}

#[actix_rt::test]
async fn a_daemon_with_a_full_disk_refuses_submissions_and_finishes_what_it_accepted() {
    let house = House::new();
    configured(
        &house,
        "min_free_bytes = \"100MiB\"\nworker_min_free_bytes = \"1MiB\"\nworker_evict_below_bytes = \"1MiB\"\n",
    );
    let Some(volume) = Volume::tmpfs(&house.state(), 300) else { return };
    let daemon = house.daemon().await;
    let client = house.client();
    let hasty = house.client().with_reconnect_for(Duration::ZERO);
    let finishing = house.submit(&shell(WAITS)).await.id;
    let cancelled = house.submit(&shell("echo up; sleep 1000")).await.id;
    house.logged(finishing, "up").await;
    house.logged(cancelled, "up").await;
    volume.fill(0);
    let mut accepted: Vec<JobId> = Vec::new();
    eventually("submissions to be refused", async || {
        match hasty.post::<Job>("/v1/jobs", &shell("true")).await {
            Ok(job) => {
                accepted.push(job.id);
                None
            }
            Err(error) => {
                assert!(storage_full(&error), "{error:?}");
                Some(())
            }
        }
    })
    .await;
    let _: Job = client.post(&format!("/v1/jobs/{cancelled}/cancel"), &json!({})).await.unwrap();
    assert_eq!(house.end(cancelled).await.state, JobState::Cancelled);
    eventually("the cancelled task to be gone", async || {
        (std::fs::read_dir(house.state().join("worker/tasks")).unwrap().count() == 1).then_some(())
    })
    .await;
    go(&house.state().join("worker"));
    assert_eq!(house.end(finishing).await.state, JobState::Succeeded);
    assert_eq!(house.log(finishing).await, ["up", "down"]);

    // A restart on a disk without any room says what to do, and comes up when there is some.
    daemon.kill();
    for held_back in ["ballast", "ballast-logs", "worker/ballast"] {
        let _ = std::fs::remove_file(house.state().join(held_back));
    }
    volume.fill(0);
    let mut start = Command::new("timeout");
    start
        .arg("60")
        .arg(binary("gpulayer"))
        .args(["server", "start", "--no-tcp"])
        .env("GPULAYER_HOME", house.home());
    let failed = start.env_remove("GPULAYER_STATE").output().unwrap();
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success(), "{said}");
    // At its start, or at the first commit that found none.
    let told = ["no room left on the disk of", "Make room or repair the disk, then start it again"];
    assert!(told.iter().any(|words| said.contains(words)), "{said}");
    volume.free();
    let _daemon = house.daemon().await;
    for id in [finishing, cancelled].into_iter().chain(accepted) {
        assert!(house.end(id).await.state.ended());
    }
    let job = eventually("submissions to be taken again", async || {
        hasty.post::<Job>("/v1/jobs", &shell("true")).await.ok()
    })
    .await;
    assert_eq!(house.end(job.id).await.state, JobState::Succeeded);
    assert!(house.leftovers().is_empty());
}

#[actix_rt::test]
async fn a_full_artifact_volume_holds_outputs_back_and_nothing_else() {
    let house = House::new();
    configured(&house, "min_free_bytes = \"1MiB\"\n");
    let Some(volume) = Volume::tmpfs(&house.state().join("artifacts"), 32) else { return };
    let _daemon = house.daemon().await;
    std::fs::write(house.path().join("big"), vec![7; 8 << 20]).unwrap();
    volume.fill(MIB);
    let put = house.run(&["artifact", "put", "big"]);
    let said = String::from_utf8_lossy(&put.stderr).into_owned();
    assert!(!put.status.success() && said.contains("disk is full"), "{said}");
    let plain = house.end(house.submit(&shell("echo fine")).await.id).await;
    assert_eq!(plain.state, JobState::Succeeded, "jobs without files do not care");
    let mut spec = shell("head -c 4000000 /dev/urandom > out.bin; echo made");
    spec["outputs"] = json!([{"path": "out.bin"}]);
    let id = house.submit(&spec).await.id;
    house.logged(id, "made").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let job: Job = house.client().get(&format!("/v1/jobs/{id}")).await.unwrap();
    assert_eq!(job.state, JobState::Running, "its output waits for room");
    volume.free();
    let job = house.end(id).await;
    assert_eq!(job.state, JobState::Succeeded, "{job:?}");
    assert_eq!(job.outputs[0].size_bytes, 4_000_000);
    assert!(house.run(&["artifact", "put", "big"]).status.success());
}

#[actix_rt::test]
async fn a_full_log_volume_loses_no_line_and_ends_no_job_before_its_last() {
    let house = House::new();
    let logs = house.path().join("logs");
    let Some(volume) = Volume::tmpfs(&logs, 32) else { return };
    std::fs::create_dir_all(house.state()).unwrap();
    std::os::unix::fs::symlink(logs.join("logs.db"), house.state().join("logs.db")).unwrap();
    let _daemon = house.daemon().await;
    let id = house.submit(&shell("echo up; while [ ! -e go ]; do sleep 0.05; done; for i in $(seq 20000); do echo \"$i $RANDOM$RANDOM$RANDOM$RANDOM\"; done; echo down")).await.id;
    house.logged(id, "up").await;
    volume.fill(0);
    go(&house.state().join("worker"));
    eventually("the log to find no room", async || {
        std::fs::read_to_string(house.path().join("log")).unwrap().contains("log lines wait").then_some(())
    })
    .await;
    let job: Job = house.client().get(&format!("/v1/jobs/{id}")).await.unwrap();
    assert!(!job.state.ended(), "{job:?}");
    let other = house.submit(&shell("true")).await.id;
    assert_eq!(house.end(other).await.state, JobState::Succeeded, "one that writes nothing does not wait");
    volume.free();
    assert_eq!(house.end(id).await.state, JobState::Succeeded);
    let lines = house.log(id).await;
    assert_eq!((lines.len(), lines[20_001].as_str()), (20_002, "down"));
    for (place, line) in lines[1..20_001].iter().enumerate() {
        assert!(line.starts_with(&format!("{} ", place + 1)), "{line}");
    }
}

#[actix_rt::test]
async fn a_program_whose_words_found_no_room_is_not_called_silent() {
    let house = House::new();
    let Some(volume) = Volume::tmpfs(&house.path().join("far"), 64) else { return };
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let _worker = start(&house, port(&house));
    until_worker_is(&house, "idle").await;
    let text = "head -c 200000000 /dev/zero > big; echo rc $?; exit 9";
    let job = house.end(house.submit(&shell(text)).await.id).await;
    let end = job.end.clone().unwrap();
    assert_eq!((end.reason, end.exit_code), (EndReason::DiskFull, Some(9)), "{job:?}");
    assert!(end.basis.unwrap().contains("last words are lost"), "{job:?}");
    assert!(
        house.log(job.id).await.last().unwrap().contains("missing here"),
        "{:?}",
        house.log(job.id).await
    );
    let id = job.id.to_string();
    for words in [&["logs", &id][..], &["logs", "--full", &id]] {
        let said = house.run(words);
        let said = [said.stdout, said.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(!said.contains("printed nothing"), "{words:?}: {said}");
        assert!(said.contains("missing here") || said.contains("are lost"), "{words:?}: {said}");
    }
    drop(volume);
}
