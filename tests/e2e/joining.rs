//! How a machine becomes a worker, stays one, and stops being one: `join`, `worker start`, `worker stop`.

use std::path::PathBuf;
use std::process::{Command, Output};

use gpulayer::contract::job::JobState;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::house::{House, alive, argv, shell};
use crate::joined::Joined;

fn url(house: &House) -> String {
    format!("http://127.0.0.1:{}", house.port())
}

fn far(house: &House) -> PathBuf {
    house.path().join("far")
}

/// `gpulayer join` as another user of this machine would type it, with a home of its own.
fn join(house: &House, flags: &[&str]) -> Command {
    let mut command = house.command(&["join", &url(house), "--folder"]);
    command.arg(far(house)).args(flags).arg("--token-file").arg(house.home().join("join-token"));
    command.env("GPULAYER_HOME", house.path().join("other"));
    command
}

/// `gpulayer worker WORDS --folder …` there.
fn worker(house: &House, words: &[&str]) -> Command {
    let mut command = house.command(&["worker"]);
    command.args(words).arg("--folder").arg(far(house)).env("GPULAYER_HOME", house.path().join("other"));
    command
}

async fn names(house: &House) -> Vec<(String, String)> {
    let workers: Value = house.client().get("/v1/workers").await.unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let items = workers["items"].as_array().unwrap();
    items.iter().map(|worker| (text(&worker["name"]), text(&worker["state"]))).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[actix_rt::test]
async fn a_worker_that_joined_once_comes_back_without_a_flag_or_a_token() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let mut first = Joined::start(&mut join(
        &house,
        &["--allow-root-tasks", "--name", "box", "--label", "zone=a", "--python", "/bin/sh"],
    ));
    let line = first.says("joined");
    assert!(line.starts_with(&format!("joined {} as box (wkr_", url(&house))), "{line}");
    let mut spec = shell("echo up; while [ ! -e go ]; do sleep 0.05; done; echo down");
    spec["resources"] = json!({"labels": {"zone": "a"}, "worker": "box"});
    let id = house.submit(&spec).await.id;
    house.logged(id, "up").await;
    let twice = join(&house, &["--allow-root-tasks"]).output().unwrap();
    assert_eq!(twice.status.code(), Some(1));
    assert!(said(&twice).contains("another worker runs in"), "{}", said(&twice));
    let stopped = worker(&house, &["stop"]).output().unwrap();
    assert!(stopped.status.success() && said(&stopped).contains("worker start --folder"), "{stopped:?}");
    assert_eq!(first.ends(), Some(0));
    let nothing = worker(&house, &["stop"]).output().unwrap();
    assert!(nothing.status.success() && said(&nothing).contains("no worker runs in"), "{nothing:?}");

    std::fs::remove_file(house.home().join("join-token")).unwrap();
    let mut second = Joined::start(&mut worker(&house, &["start"]));
    let again = second.says("joined");
    assert_eq!(again.replace(" again", ""), line, "the same worker, with the same id");
    let task = std::fs::read_dir(far(&house).join("tasks")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(task.join("workspace/go"), "").unwrap();
    assert_eq!(house.end(id).await.state, JobState::Succeeded);
    assert_eq!(names(&house).await.len(), 1);
    let workers: Value = house.client().get("/v1/workers").await.unwrap();
    assert_eq!(workers["items"][0]["capabilities"]["pythons"], json!(["/bin/sh"]));
    // A second join to the same server is the same worker too.
    second.signal(Signal::TERM);
    assert_eq!(second.ends(), Some(0));
    let mut third = Joined::start(&mut worker(&house, &["start"]));
    assert_eq!(third.says("joined"), again);
    third.signal(Signal::TERM);
    assert_eq!(third.ends(), Some(0));
    let mut renamed = Joined::start(&mut worker(&house, &["start", "--name", "shed"]));
    assert_eq!(renamed.says("joined"), again.replace(" as box ", " as shed "));
    assert_eq!(names(&house).await, [("shed".to_owned(), "idle".to_owned())]);
}

#[actix_rt::test]
async fn an_interrupt_leaves_for_good_when_nothing_runs_and_says_what_does() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let mut joined = Joined::start(&mut join(&house, &["--allow-root-tasks"]));
    joined.says("joined");
    let long = house.submit(&shell("echo up; while [ ! -e go ]; do sleep 0.05; done")).await.id;
    house.logged(long, "up").await;
    joined.says("1 task now");
    joined.signal(Signal::INT);
    joined.says("takes no new tasks, and leaves when its task has ended");
    joined.says("worker start --folder");
    let late = house.submit(&argv(&["true"])).await.id;
    let task = std::fs::read_dir(far(&house).join("tasks")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(task.join("workspace/go"), "").unwrap();
    joined.says("left http://");
    assert_eq!(joined.ends(), Some(0));
    assert_eq!(house.end(long).await.state, JobState::Succeeded);
    assert_eq!(names(&house).await, [], "it said goodbye");
    let waits: Value = house.client().get(&format!("/v1/jobs/{late}")).await.unwrap();
    assert_eq!(waits["started_at"], json!(null), "nothing new was taken");

    // It needs a token again, and a second interrupt does not wait.
    let mut joined = Joined::start(&mut join(&house, &["--allow-root-tasks"]));
    joined.says("joined");
    assert_eq!(house.end(late).await.state, JobState::Succeeded);
    let long = house.submit(&shell("echo up; exec sleep 600")).await.id;
    house.logged(long, "up").await;
    joined.says("1 task now");
    joined.signal(Signal::INT);
    joined.says("takes no new tasks");
    joined.signal(Signal::INT);
    joined.says("left for now; 1 task go");
    assert_eq!(joined.ends(), Some(0));
    let job: Value = house.client().get(&format!("/v1/jobs/{long}")).await.unwrap();
    assert_eq!(job["state"], json!("running"));
    let _back = Joined::start(&mut worker(&house, &["start"]));
    house.client().post::<Value>(&format!("/v1/jobs/{long}/cancel"), &json!({"now": true})).await.unwrap();
    assert_eq!(house.end(long).await.state, JobState::Cancelled);
}

#[actix_rt::test]
async fn whoever_cannot_join_is_told_why_and_what_to_do() {
    let house = House::new();
    let daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        (output.status.code(), said(&output))
    };
    let mut without = house.command(&["join", &url(&house), "--allow-root-tasks", "--folder"]);
    let (code, text) = run(without.arg(far(&house)));
    assert_eq!(code, Some(2));
    assert!(text.contains("--token-file") && text.contains("GPULAYER_JOIN_TOKEN"), "{text}");
    assert!(!far(&house).join("server.json").exists(), "nothing is remembered of what cannot be");
    let (code, text) = run(without.env("GPULAYER_JOIN_TOKEN", format!("glj_{}", "0".repeat(64))));
    assert_eq!(code, Some(1));
    assert!(text.contains("does not accept this worker") && text.contains("hint: the join token"), "{text}");
    assert!(!far(&house).join("server.json").exists(), "nor of what was refused");
    if rustix::process::geteuid().is_root() {
        let (code, text) = run(&mut join(&house, &[]));
        assert_eq!(code, Some(2));
        assert!(text.contains("--task-user USER") && text.contains("--allow-root-tasks"), "{text}");
    }
    let (code, text) = run(&mut join(&house, &["--cpus", "none", "--label", "x", "--allow-root-tasks"]));
    assert_eq!(code, Some(2));
    assert!(text.contains("--cpus none") && text.contains("--label x"), "{text}");
    let mut late = join(&house, &["--allow-root-tasks"]);
    daemon.kill();
    let (code, text) = run(&mut late);
    assert_eq!(code, Some(1));
    assert!(text.contains("cannot join http://") && text.contains("because: no answer"), "{text}");
    let (code, text) =
        run(house.command(&["worker", "start"]).env("GPULAYER_HOME", house.path().join("new")));
    assert_eq!(code, Some(2));
    assert!(text.contains("this machine has joined no server"), "{text}");
}

#[actix_rt::test]
async fn a_worker_goes_on_in_the_background() {
    let house = House::new();
    let daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let output = join(&house, &["--allow-root-tasks", "--name", "box", "--detach"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.starts_with(&format!("joined {} as box (wkr_", url(&house))), "{shown}");
    assert!(shown.contains("worker stop --folder"), "{shown}");
    let job = house.submit(&argv(&["echo", "hello"])).await;
    assert_eq!(house.end(job.id).await.state, JobState::Succeeded);
    assert_eq!(names(&house).await.len(), 1);
    let pid: u32 = std::fs::read_to_string(far(&house).join("lock")).unwrap().trim().parse().unwrap();
    assert!(alive(pid));
    let environ = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    assert!(!environ.contains("glj_"), "the token is not passed on");
    assert!(worker(&house, &["stop"]).output().unwrap().status.success());
    assert!(!alive(pid));
    // Names of places are read where they were given, though it works in another folder.
    let mut near =
        house.command(&["join", &url(&house), "--folder", "near", "--allow-root-tasks", "--detach"]);
    near.current_dir(house.path())
        .env("GPULAYER_HOME", "other")
        .env("GPULAYER_JOIN_TOKEN_FILE", "h/join-token");
    let output = near.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let pid = std::fs::read_to_string(house.path().join("near/lock")).unwrap();
    let environ = std::fs::read_to_string(format!("/proc/{}/environ", pid.trim())).unwrap();
    assert!(!environ.contains("JOIN_TOKEN"), "{environ}");
    assert!(
        environ.contains(&format!("GPULAYER_HOME={}", house.path().join("other").display())),
        "{environ}"
    );
    let mut stop = house.command(&["worker", "stop", "--folder"]);
    assert!(stop.arg(house.path().join("near")).output().unwrap().status.success());
    // One that cannot come back says why, with the end of its log.
    std::fs::write(far(&house).join("identity.json"), "{").unwrap();
    let broken = worker(&house, &["start"]).output().unwrap();
    assert_eq!(broken.status.code(), Some(1));
    assert!(said(&broken).contains("cannot be understood"), "{}", said(&broken));
    drop(daemon);
}

#[actix_rt::test]
async fn tasks_of_another_user_come_to_their_workspace_and_nowhere_else() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: only root can run tasks as another user");
        return;
    }
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let mode = |mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(house.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o700);
    let closed = join(&house, &["--task-user", "nobody"]).output().unwrap();
    assert_eq!(closed.status.code(), Some(1));
    assert!(said(&closed).contains("cannot pass through"), "{}", said(&closed));
    mode(0o711);
    let mut joined = Joined::start(&mut join(&house, &["--task-user", "nobody"]));
    joined.says("joined");
    let folder = far(&house);
    let text = format!(
        "id -un; echo $USER; echo $HOME; cat in.txt; echo more >> in.txt && echo changed
         for file in {0}/identity.json {0}/server.json {0}/lock {0}/cache {0}/kept {0}/shims ../task.json ../spool; do
             cat $file >/dev/null 2>&1 && echo read $file
             ls $file/ >/dev/null 2>&1 && echo listed $file
         done
         ls {0} >/dev/null 2>&1 && echo listed all
         touch $TMPDIR/x && mkdir made && echo out > made/out.txt && echo stray > stray.txt
         ln {0}/identity.json made/linked 2>/dev/null
         chmod 700 made
         cat $GPULAYER_STOP_FILE 2>/dev/null; exit 0",
        folder.display()
    );
    let bytes = b"given\n";
    let digest = upload(&house, bytes).await;
    let mut spec = shell(&text);
    spec["inputs"] = json!([{"artifact": digest, "path": "in.txt", "mode": "rw"}]);
    spec["outputs"] = json!([{"path": "made/**"}]);
    let id = house.submit(&spec).await.id;
    let job = house.end(id).await;
    assert_eq!(job.state, JobState::Succeeded, "{job:?} {:?}", house.log(id).await);
    let home = std::fs::read_to_string("/etc/passwd").unwrap();
    let home = home.lines().find(|line| line.starts_with("nobody:")).unwrap().split(':').nth(5).unwrap();
    assert_eq!(house.log(id).await, ["nobody", "nobody", home, "given", "changed"]);
    let paths: Vec<_> = job.outputs.iter().map(|output| output.path.as_str()).collect();
    assert_eq!(paths, ["made/out.txt"]);
    // A stop reaches it, its file can be read, and its whole tree goes.
    let text = "trap 'cat $GPULAYER_STOP_FILE; exit 0' TERM
        (setsid sh -c 'trap \"\" TERM; exec sleep 997' &)
        echo up; while :; do sleep 0.05; done";
    let id = house.submit(&shell(text)).await.id;
    house.logged(id, "up").await;
    house.client().post::<Value>(&format!("/v1/jobs/{id}/cancel"), &json!({})).await.unwrap();
    assert_eq!(house.end(id).await.state, JobState::Cancelled);
    // The shell may say on its other stream that its `sleep` was ended too.
    assert!(house.log(id).await.iter().any(|line| line == "cancelled"), "{:?}", house.log(id).await);
    assert_eq!(house.leftovers(), Vec::<String>::new());
    // The next task starts from nothing, whoever it belongs to.
    let id = house.submit(&argv(&["ls", "-A"])).await.id;
    assert_eq!(house.end(id).await.state, JobState::Succeeded);
    assert_eq!(house.log(id).await, Vec::<String>::new());
}

/// Stores bytes with the daemon; their address.
async fn upload(house: &House, bytes: &[u8]) -> String {
    let path = house.path().join("bytes");
    std::fs::write(&path, bytes).unwrap();
    let put = house.run(&["artifact", "put", path.to_str().unwrap()]);
    assert!(put.status.success(), "{put:?}");
    String::from_utf8(put.stdout).unwrap().trim().to_owned()
}

#[actix_rt::test]
async fn a_unit_is_one_that_systemd_takes_and_holds_no_token() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let output = join(&house, &["--allow-root-tasks", "--systemd=-"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let unit = String::from_utf8(output.stdout).unwrap();
    assert!(unit.contains("worker start --folder") && unit.contains("KillMode=process"), "{unit}");
    assert!(!unit.contains("token"), "{unit}");
    assert!(!far(&house).exists(), "it only prints");
    let path = house.path().join("gpulayer-worker.service");
    std::fs::write(&path, unit).unwrap();
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output() {
        Ok(verified) => {
            let text = said(&verified);
            // Older versions ignore a key that newer ones have.
            let own = |line: &&str| line.contains("gpulayer-worker") && !line.contains("Unknown key");
            assert_eq!(text.lines().filter(own).collect::<Vec<_>>(), Vec::<&str>::new());
        }
        Err(error) => eprintln!("NOT TESTED: systemd-analyze cannot be run here: {error}"),
    }
}

#[actix_rt::test]
async fn a_lost_server_is_waited_for_and_said_once() {
    let house = House::new();
    let daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let port = house.port();
    let mut joined = Joined::start(&mut join(&house, &["--allow-root-tasks"]));
    joined.says("joined");
    daemon.kill();
    joined.says("no contact with http://");
    let daemon = house.daemon_with(&["--no-worker", "--port", &port.to_string()]).await;
    joined.says("in contact with http://");
    let lost = joined.said.iter().filter(|line| line.contains("no contact")).count();
    assert_eq!(lost, 1, "{:?}", joined.said);
    let id = house.submit(&argv(&["true"])).await.id;
    assert_eq!(house.end(id).await.state, JobState::Succeeded);
    drop(daemon);
}
