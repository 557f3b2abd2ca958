//! A daemon on its way out: what stops it waits for it, and what needs the next one waits too.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use gpulayer::client::ClientError;
use gpulayer::contract::end::EndReason;
use gpulayer::contract::error_code::ErrorCode;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{House, alive, eventually, shell};

/// A job that hears no polite stop, for this long.
async fn deaf(house: &House, grace_s: u32) -> JobId {
    let mut spec = shell("trap '' TERM; echo up; while :; do sleep 0.05; done");
    spec["grace_s"] = json!(grace_s);
    let id = house.submit(&spec).await.id;
    house.logged(id, "up").await;
    id
}

/// Starts `down` and reads what it says until it shows what it waits for.
fn down(house: &House) -> (Child, Vec<String>) {
    let mut down = house.command(&["down", "--yes"]).stderr(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(down.stderr.as_mut().unwrap());
    let mut lines = Vec::new();
    for line in said.lines() {
        lines.push(line.unwrap());
        if lines.last().unwrap().ends_with("is still stopping") {
            break;
        }
    }
    (down, lines)
}

fn lock(path: &Path) -> File {
    File::options().create(true).truncate(false).write(true).open(path).unwrap()
}

#[actix_rt::test]
async fn down_returns_when_the_daemon_has_gone_and_shows_what_it_waits_for() {
    let house = House::new();
    let daemon = house.daemon().await;
    let id = deaf(&house, 5).await.to_string();
    let (mut down, said) = down(&house);
    assert!(said.iter().any(|line| line.contains(&format!("process {}", daemon.pid()))), "{said:?}");
    assert!(said.iter().any(|line| line.contains(&id[id.len() - 6..])), "{said:?}");
    let client = house.client().with_reconnect_for(std::time::Duration::ZERO);
    let refused = client.get::<Value>("/readyz").await.unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused(problem) if problem.code == ErrorCode::NotReady),
        "{refused}"
    );
    assert!(down.wait().unwrap().success());
    flock(lock(&house.state().join("lock")), FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(house.leftovers(), [""; 0]);
    eventually("the process to end", async || (!alive(daemon.pid())).then_some(())).await;
    let _next = house.daemon().await;
    let job: Job = house.client().get(&format!("/v1/jobs/{id}")).await.unwrap();
    let end = job.end.unwrap();
    assert_eq!(end.reason, EndReason::Cancelled);
    assert!(end.detail.as_ref().is_some_and(|detail| detail.contains("gpulayer down")), "{end:?}");
}

#[actix_rt::test]
async fn an_interrupted_down_says_that_the_stop_goes_on_and_a_signal_cuts_it_short() {
    let house = House::new();
    let daemon = house.daemon().await;
    let id = deaf(&house, 1000).await;
    let (down, _) = down(&house);
    kill_process(Pid::from_child(&down), Signal::INT).unwrap();
    let output = down.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("still stopping"), "{output:?}");
    assert!(alive(daemon.pid()));
    assert!(daemon.terminate().success());

    let _daemon = house.daemon().await;
    assert!(house.run(&["cancel", "--now", &id.to_string()]).status.success());
    assert_eq!(house.end(id).await.state, JobState::Cancelled);
    assert_eq!(house.leftovers(), [""; 0]);
}

#[actix_rt::test]
async fn a_daemon_whose_socket_was_removed_is_found_and_stopped() {
    let house = House::new();
    let daemon = house.daemon().await;
    std::fs::remove_file(house.state().join("gpulayer.sock")).unwrap();
    let down = house.run(&["down", "--yes"]);
    assert!(down.status.success(), "{down:?}");
    assert!(String::from_utf8_lossy(&down.stderr).contains("has stopped"), "{down:?}");
    eventually("the process to end", async || (!alive(daemon.pid())).then_some(())).await;
}

#[test]
fn a_daemon_that_cannot_be_reached_is_named_and_not_called_absent() {
    let house = House::new();
    std::fs::create_dir_all(house.state()).unwrap();
    std::fs::write(house.state().join("lock"), "4242\n").unwrap();
    let held = lock(&house.state().join("lock"));
    flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
    for args in [&["down", "--yes"][..], &["whoami"]] {
        let output = house.run(args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("process 4242 holds") && said.contains("kill 4242"), "{said}");
    }
}

#[test]
fn something_that_takes_calls_and_never_answers_does_not_hold_a_command() {
    let house = House::new();
    let socket = house.path().join("mute.sock");
    let _mute = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let output = house.run(&["--server", socket.to_str().unwrap(), "ps"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("has not answered"), "{output:?}");
}

#[actix_rt::test]
async fn a_command_given_while_a_daemon_leaves_waits_for_it_and_starts_the_next() {
    let house = House::new();
    assert!(house.run(&["whoami"]).status.success());
    assert!(house.run(&["down", "--yes"]).status.success());
    // What a daemon looks like whose socket has gone already and whose process has not.
    let held = lock(&house.state().join("lock"));
    flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut command = house.command(&["run", "--source", "none", "--", "true"]);
    let run = command.current_dir(house.path()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the command to want a daemon", async || {
        // Opened anew each time, so that it is let go of at once.
        let start = lock(&house.state().join("start.lock"));
        flock(&start, FlockOperation::NonBlockingLockShared).is_err().then_some(())
    })
    .await;
    drop(held);
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[actix_rt::test]
async fn a_second_down_says_what_it_waits_for() {
    let house = House::new();
    let daemon = house.daemon().await;
    let id = deaf(&house, 1000).await;
    let (mut first, _) = down(&house);
    let mut second = house.command(&["down", "--yes"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(second.stderr.take().unwrap()).lines();
    let line = said.next().unwrap().unwrap();
    assert!(
        line.contains("waiting for another command") && line.contains(&daemon.pid().to_string()),
        "{line}"
    );
    let kill = json!({"now": true});
    house.client().post::<Value>(&format!("/v1/jobs/{id}/cancel"), &kill).await.unwrap();
    assert!(first.wait().unwrap().success() && second.wait().unwrap().success());
}

#[actix_rt::test]
async fn commands_that_still_follow_a_job_leave_a_stopped_daemon_stopped() {
    let house = House::new();
    let cpus = std::thread::available_parallelism().unwrap().to_string();
    let submit = |text: &str| {
        let output = house.run(&["submit", "--source", "none", "--cpus", &cpus, "--shell", text]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().parse::<JobId>().unwrap()
    };
    let (running, queued) = (submit("echo up; sleep 1000"), submit("true"));
    house.logged(running, "up").await;
    let follow = |args: &[&str], job: JobId| {
        let mut command = house.command(args);
        command.arg(job.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut followers =
        [follow(&["attach"], running), follow(&["logs", "-f"], running), follow(&["attach"], queued)];
    // Each of them has asked for something.
    for follower in &mut followers[..2] {
        let mut line = String::new();
        BufReader::new(follower.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
    }
    let mut line = String::new();
    BufReader::new(followers[2].stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("waiting"), "{line}");

    assert!(house.run(&["down", "--yes"]).status.success());
    let [attached, logs, waiting] = followers.map(|follower| follower.wait_with_output().unwrap());
    flock(lock(&house.state().join("lock")), FlockOperation::NonBlockingLockExclusive)
        .expect("nobody started it again");
    assert_eq!(attached.status.code(), Some(130), "{attached:?}");
    assert!(logs.status.success(), "{logs:?}");
    assert_eq!(waiting.status.code(), Some(75), "{waiting:?}");
    let said = String::from_utf8_lossy(&waiting.stderr).into_owned();
    assert!(said.contains("`gpulayer down` stopped it meanwhile"), "{said}");
    // What is typed now starts the next daemon, and that one does what waits.
    let output = house.run(&["wait", &queued.to_string()]);
    assert!(output.status.success(), "{output:?}");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[actix_rt::test]
async fn down_lets_followers_see_the_end_of_a_task_on_another_machine() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let url = format!("http://127.0.0.1:{}", house.port());
    let _worker = FarWorker::start(&house, &url);
    let id =
        house.submit(&shell("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done")).await.id;
    house.logged(id, "up").await;
    let token = std::fs::read_to_string(house.home().join("client-token")).unwrap();
    let follow = |args: &[&str], far: bool| {
        let mut command = house.command(args);
        command.arg(id.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if far {
            command.env("GPULAYER_URL", &url).env("GPULAYER_TOKEN", token.trim());
            command.env("GPULAYER_HOME", house.path().join("elsewhere"));
        }
        command.spawn().unwrap()
    };
    let mut attached: Vec<_> =
        [false, false, false, true, true, true].map(|far| follow(&["attach"], far)).into();
    let mut log = follow(&["logs", "-f"], true);
    for follower in attached.iter_mut().chain([&mut log]) {
        let mut line = String::new();
        BufReader::new(follower.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
    }
    assert!(house.run(&["down", "--yes"]).status.success());
    for follower in attached {
        let output = follower.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("bye\n"), "{output:?}");
    }
    let output = log.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.ends_with(b"bye\n"), "{output:?}");
}
