//! Joining and leaving as it goes wrong for newcomers: closed folders, a server that lost what it knew, one with a new
//! key, a worker that is about to go.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gpulayer::contract::job::JobState;
use gpulayer::contract::server::{Listening, ServerStatus};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::house::{House, alive, argv, binary, eventually, shell};
use crate::joined::Joined;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A server as `up` makes it, on loopback.
fn up(house: &House) -> Listening {
    let output = house.run(&["up", "--host", "127.0.0.1", "--port", "0", "--json"]);
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice::<ServerStatus>(&output.stdout).unwrap().listening.unwrap()
}

fn far(house: &House) -> PathBuf {
    house.path().join("far")
}

/// `gpulayer join` on another machine, as its user types it.
fn join(house: &House, at: &Listening, flags: &[&str]) -> Command {
    let mut command = house.command(&["join", &at.url, "--pin", &at.pin.unwrap().to_string()]);
    command.arg("--folder").arg(far(house)).args(["--allow-root-tasks", "--name", "box"]).args(flags);
    command.arg("--token-file").arg(house.home().join("join-token"));
    command.env("GPULAYER_HOME", house.path().join("other"));
    command
}

/// `gpulayer worker WORDS` there.
fn worker(house: &House, words: &[&str]) -> Command {
    let mut command = house.command(&["worker"]);
    command.args(words).arg("--folder").arg(far(house)).env("GPULAYER_HOME", house.path().join("other"));
    command
}

async fn fleet(house: &House) -> Vec<Value> {
    let workers: Value = house.client().get("/v1/workers").await.unwrap();
    workers["items"].as_array().unwrap().clone()
}

/// The remote one of them, by its state and its id.
async fn remote(house: &House) -> Option<(String, String)> {
    let found = fleet(house).await.into_iter().find(|worker| worker["kind"] == "remote")?;
    Some((found["state"].as_str()?.to_owned(), found["id"].as_str()?.to_owned()))
}

async fn job(house: &House, id: gpulayer::contract::ids::JobId) -> Value {
    house.client().get(&format!("/v1/jobs/{id}")).await.unwrap()
}

fn on_box(mut spec: Value) -> Value {
    spec["resources"] = json!({ "worker": "box" });
    spec
}

#[actix_rt::test]
async fn the_line_for_root_works_on_a_machine_that_has_nothing_yet() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: only root can run tasks as another user");
        return;
    }
    let house = House::new();
    let at = up(&house);
    std::fs::set_permissions(house.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    // Another machine: an empty /var/lib, and a home of the usual name.
    let line = r#"mount -t tmpfs none /var/lib && umask 022 && exec "$0" "$@""#;
    let mut joining = Command::new("unshare");
    joining.args(["--mount", "sh", "-c", line]).arg(binary("gpulayer"));
    joining.args(["join", &at.url, "--token-file"]).arg(house.home().join("join-token"));
    joining.args(["--pin", &at.pin.unwrap().to_string(), "--name", "box", "--task-user", "nobody"]);
    joining.env("GPULAYER_HOME", house.path().join("root/.gpulayer")).env_remove("GPULAYER_STATE");
    let mut joined = Joined::start(joining.stdin(Stdio::null()));
    joined.says("joined");
    let id = house.submit(&on_box(shell("id -un; pwd"))).await.id;
    assert_eq!(house.end(id).await.state, JobState::Succeeded);
    let log = house.log(id).await;
    assert!(log[0] == "nobody" && log[1].starts_with("/var/lib/gpulayer/joined/"), "{log:?}");
    joined.signal(Signal::INT);
    joined.says("left https://");
    assert_eq!(joined.ends(), Some(0));
}

#[actix_rt::test]
async fn folders_that_are_made_for_a_task_user_let_it_pass_and_others_stay_closed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: only root can run tasks as another user");
        return;
    }
    let house = House::new();
    let at = up(&house);
    std::fs::set_permissions(house.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (name, flags, above) in
        [("others", &["--task-user", "nobody"][..], 0o711), ("own", &["--allow-root-tasks"], 0o700)]
    {
        let folder = house.path().join(name).join("deep/worker");
        let mut command = house.command(&["join", &at.url, "--pin", &at.pin.unwrap().to_string()]);
        command.arg("--folder").arg(&folder).args(flags).args(["--name", name, "--token-file"]);
        command.arg(house.home().join("join-token")).env("GPULAYER_HOME", house.path().join("other"));
        let mut joined = Joined::start(&mut command);
        joined.says("joined");
        let modes = (mode(&house.path().join(name)), mode(folder.parent().unwrap()));
        assert_eq!(modes, (above, above), "{name}");
        joined.signal(Signal::INT);
        joined.says("left");
    }
}

#[actix_rt::test]
async fn a_server_that_lost_its_database_is_joined_again_with_its_new_token_and_nothing_is_left() {
    let house = House::new();
    let at = up(&house);
    let mut first = Joined::start(&mut join(&house, &at, &[]));
    first.says("joined");
    let (_, before) = remote(&house).await.unwrap();
    let text = "trap '' TERM INT HUP; setsid sleep 613 & echo up; while :; do sleep 0.1; done";
    let id = house.submit(&on_box(shell(text))).await.id;
    house.logged(id, "up").await;
    first.says("1 task now");
    assert!(house.run(&["down", "--keep"]).status.success());
    std::fs::remove_dir_all(house.state()).unwrap();
    for token in ["join-token", "client-token"] {
        std::fs::remove_file(house.home().join(token)).unwrap();
    }
    let port = at.url.rsplit_once(':').unwrap().1.to_owned();
    let output = house.run(&["up", "--host", "127.0.0.1", "--port", &port, "--json"]);
    assert!(output.status.success(), "{}", said(&output));

    // The worker is not known, says so with what to do, and gives nothing up: the database may come back.
    first.says("does not know this worker");
    first.says("hint: when the server has its database back");
    assert_eq!(tasks(&house).len(), 1);
    let stopped = worker(&house, &["stop"]).output().unwrap();
    assert!(said(&stopped).contains("what it ran goes on"), "{stopped:?}");
    // Without a token it is refused, and still gives nothing up.
    let alone = worker(&house, &["start"]).output().unwrap();
    assert_eq!(alone.status.code(), Some(1));
    assert!(
        said(&alone).contains("does not know this worker")
            && said(&alone).contains("hint: its database was lost")
    );
    assert_eq!(tasks(&house).len(), 1);
    assert!(pids_of("sleep\x00613").len() == 1, "it runs");

    let mut again = Joined::start(&mut join(&house, &at, &[]));
    again.says("it joins anew; 1 task of the session before it are killed");
    again.says("joined");
    let (_, after) = remote(&house).await.unwrap();
    assert_ne!(before, after);
    assert_eq!(tasks(&house), Vec::<PathBuf>::new());
    assert_eq!(pids_of("sleep\x00613"), Vec::<u32>::new(), "no process of the old session is left");
    let id = house.submit(&on_box(argv(&["true"]))).await.id;
    assert_eq!(house.end(id).await.state, JobState::Succeeded);
    again.signal(Signal::INT);
    again.says("left https://");
}

/// Folders of tasks on the other machine.
fn tasks(house: &House) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(far(house).join("tasks")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Processes with this in their command line.
fn pids_of(words: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let meant = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(words))
    };
    pids.filter(|pid| meant(pid) && alive(*pid)).collect()
}

#[actix_rt::test]
async fn a_worker_that_is_leaving_is_given_nothing_and_what_it_was_given_goes_back_at_once() {
    let house = House::new();
    let at = up(&house);
    let mut joined = Joined::start(&mut join(&house, &at, &[]));
    joined.says("joined");
    let long = house.submit(&on_box(shell("echo up; while [ ! -e go ]; do sleep 0.05; done"))).await.id;
    house.logged(long, "up").await;
    joined.says("1 task now");
    joined.signal(Signal::INT);
    joined.says("takes no new tasks");
    eventually("the server to know", async || (remote(&house).await?.0 == "draining").then_some(())).await;
    let listed = house.run(&["worker", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("leaves when its tasks are over"), "{listed:?}");
    let late = house.submit(&on_box(argv(&["true"]))).await.id;
    eventually("a reason", async || {
        let late = job(&house, late).await;
        assert_ne!(late["state"], "scheduled", "{late}");
        late["queue_reason"].as_str().is_some_and(|reason| reason.contains("draining")).then_some(())
    })
    .await;
    std::fs::write(tasks(&house)[0].join("workspace/go"), "").unwrap();
    joined.says("left https://");
    assert_eq!(house.end(long).await.state, JobState::Succeeded);
    let late_job = job(&house, late).await;
    assert_eq!((&late_job["state"], &late_job["attempt"]), (&json!("queued"), &json!(1)));
    let placed: Value = house.client().get(&format!("/v1/jobs/{late}/tasks")).await.unwrap();
    assert_eq!(placed["items"], json!([]), "it was never given to anybody");
    let mut back = Joined::start(&mut join(&house, &at, &[]));
    back.says("joined");
    assert_eq!(house.end(late).await.state, JobState::Succeeded);
}

#[actix_rt::test]
async fn a_started_worker_goes_to_the_background_and_an_interrupt_leaves_it_joined() {
    let house = House::new();
    let at = up(&house);
    let detached = join(&house, &at, &["--detach"]).output().unwrap();
    let shown = String::from_utf8_lossy(&detached.stdout).into_owned();
    assert!(shown.contains("worker start --detach --folder"), "{shown}{}", said(&detached));
    let twice = worker(&house, &["start", "--detach"]).output().unwrap();
    assert!(!twice.status.success() && said(&twice).contains("another worker runs in"), "{twice:?}");
    let stopped = worker(&house, &["stop"]).output().unwrap();
    assert!(stopped.status.success() && !said(&stopped).contains("what it ran"), "{}", said(&stopped));

    // In the foreground an interrupt stops it, and it stays what it is.
    let (_, id) = remote(&house).await.unwrap();
    let mut started = Joined::start(&mut worker(&house, &["start"]));
    started.says("joined");
    started.signal(Signal::INT);
    let line = started.says("stays a worker of https://");
    assert!(line.contains("worker start --folder"), "{line}");
    assert_eq!(started.ends(), Some(0));
    assert_eq!(remote(&house).await.unwrap().1, id);

    // The printed command, and with a task.
    let again = worker(&house, &["start", "--detach"]).output().unwrap();
    let shown = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(again.status.success() && shown.starts_with("box works for https://"), "{shown}{}", said(&again));
    let job = house.submit(&on_box(shell("echo up; while [ ! -e go ]; do sleep 0.05; done"))).await.id;
    house.logged(job, "up").await;
    assert!(said(&worker(&house, &["stop"]).output().unwrap()).contains("what it ran goes on"));
    let mut started = Joined::start(&mut worker(&house, &["start"]));
    started.says("joined");
    started.signal(Signal::INT);
    started.says("left for now; 1 task goes on");
    assert_eq!(started.ends(), Some(0));
    std::fs::write(tasks(&house)[0].join("workspace/go"), "").unwrap();
    assert!(worker(&house, &["start", "--detach"]).output().unwrap().status.success());
    assert_eq!(house.end(job).await.state, JobState::Succeeded);
    assert_eq!(remote(&house).await.unwrap().1, id);
    assert!(worker(&house, &["stop"]).output().unwrap().status.success());
}

#[actix_rt::test]
async fn a_worker_whose_server_has_a_new_key_says_how_to_take_it() {
    let house = House::new();
    let at = up(&house);
    let mut joined = Joined::start(&mut join(&house, &at, &[]));
    joined.says("joined");
    let (_, id) = remote(&house).await.unwrap();
    assert!(house.run(&["down", "--yes"]).status.success());
    std::fs::remove_dir_all(house.home().join("tls")).unwrap();
    let port = at.url.rsplit_once(':').unwrap().1.to_owned();
    let output = house.run(&["up", "--host", "127.0.0.1", "--port", &port, "--json"]);
    let now: ServerStatus = serde_json::from_slice(&output.stdout).unwrap();
    let pin = now.listening.unwrap().pin.unwrap().to_string();
    let hint = joined.says("  hint: somebody may be in between");
    assert!(hint.contains(&format!("--pin {pin}")) && hint.contains("worker stop --folder"), "{hint}");
    joined.signal(Signal::TERM);
    assert_eq!(joined.ends(), Some(0));
    let mut started = Joined::start(&mut worker(&house, &["start"]));
    started.says(&format!("--pin {pin}"));
    started.signal(Signal::TERM);
    assert_eq!(started.ends(), Some(0));
    let mut started = Joined::start(&mut worker(&house, &["start", "--pin", &pin]));
    started.says("joined");
    assert_eq!(remote(&house).await.unwrap().1, id, "the same worker");
}

#[actix_rt::test]
async fn whoever_leaves_without_the_server_knowing_is_told_so() {
    let house = House::new();
    let at = up(&house);
    let mut joined = Joined::start(&mut join(&house, &at, &[]));
    joined.says("joined");
    assert!(house.run(&["down", "--yes"]).status.success());
    joined.says("no contact with");
    joined.signal(Signal::INT);
    let line = joined.says("was not told that box leaves");
    assert!(line.contains("gpulayer worker revoke box"), "{line}");
    assert_eq!(joined.ends(), Some(0));
}

#[actix_rt::test]
async fn a_server_that_nobody_reaches_any_more_says_so() {
    let house = House::new();
    let at = up(&house);
    let mut joined = Joined::start(&mut join(&house, &at, &[]));
    joined.says("joined");
    let listed = house.run(&["worker", "list"]);
    assert!(listed.status.success() && !said(&listed).contains("listens"), "{listed:?}");
    assert!(house.run(&["down", "--yes"]).status.success());
    joined.says("no contact with");
    // The command that asks is the one that starts it.
    let listed = house.run(&["worker", "list"]);
    let why = "machines that joined cannot reach this server, which listens on no port: `gpulayer up`";
    assert!(listed.status.success() && said(&listed).contains(why), "{listed:?}");
    let shown = house.run(&["worker", "show", "box"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains(why), "{shown:?}");
    let port = at.url.rsplit_once(':').unwrap().1.to_owned();
    assert!(house.run(&["up", "--host", "127.0.0.1", "--port", &port]).status.success());
    eventually("the worker to be back", async || (remote(&house).await?.0 == "idle").then_some(())).await;
    let listed = house.run(&["worker", "list"]);
    assert!(listed.status.success() && !said(&listed).contains("listens"), "{listed:?}");
}
