//! Two of everything: daemons on one state folder, commands that both start one, calls under one key.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gpulayer::contract::job::{Job, JobState};
use rand::RngExt;
use serde_json::Value;

use crate::far_worker::FarWorker;
use crate::house::{House, alive, argv, eventually, shell};
use crate::processes;

#[actix_rt::test]
async fn a_second_daemon_on_one_state_folder_is_refused_and_the_first_goes_on() {
    let house = House::new();
    let daemon = house.daemon().await;
    let output = house.run(&[
        "server",
        "start",
        "--no-tcp",
        "--socket",
        house.path().join("other.sock").to_str().unwrap(),
    ]);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains(&daemon.pid().to_string()), "it names the holder: {complaint}");
    assert_eq!(house.end(house.submit(&argv(&["true"])).await.id).await.state, JobState::Succeeded);
}

#[actix_rt::test]
async fn a_second_worker_in_one_folder_is_refused_and_the_first_goes_on() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let url = format!("unix:{}", house.state().join("gpulayer.sock").display());
    let _worker = FarWorker::start(&house, &url);
    let mut far = argv(&["true"]);
    far["target"] = serde_json::json!("remote");
    assert_eq!(house.end(house.submit(&far).await.id).await.state, JobState::Succeeded);
    let second = FarWorker::command(&house, &url).output().unwrap();
    let complaint = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("another worker runs in"), "{complaint}");
    assert_eq!(house.end(house.submit(&far).await.id).await.state, JobState::Succeeded);
}

#[actix_rt::test]
async fn commands_that_start_the_daemon_at_once_get_their_jobs_done_although_it_is_killed() {
    let house = House::new();
    let count = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i; sleep 0.02; done";
    let runs: Vec<_> = (0..4)
        .map(|_| {
            let mut command =
                house.command(&["run", "--source", "none", "--cpus", "0.1", "--", "sh", "-c", count]);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            command.current_dir(house.path()).spawn().unwrap()
        })
        .collect();
    for _ in 0..3 {
        // The runs may be done already: then this starts it.
        assert!(house.run(&["whoami"]).status.success());
        let daemon: u32 = eventually("a daemon", async || {
            let holder = std::fs::read_to_string(house.state().join("lock")).ok()?;
            let pid = holder.trim().parse().ok()?;
            let ours = processes::command_line(pid).contains("gpulayer");
            (ours && alive(pid) && house.state().join("gpulayer.sock").exists()).then_some(pid)
        })
        .await;
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..300))).await;
        processes::signal(daemon, rustix::process::Signal::KILL);
        eventually("it to be gone", async || (!alive(daemon)).then_some(())).await;
    }
    let expected: String = (1..=40).map(|number| format!("{number}\n")).collect();
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    }
    assert!(house.run(&["whoami"]).status.success());
    let jobs: Value = house.client().get("/v1/jobs").await.unwrap();
    assert_eq!(jobs["items"].as_array().unwrap().len(), 4, "each was accepted once");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn two_runs_that_both_start_the_daemon_share_one() {
    let house = House::new();
    let runs: Vec<_> = (0..4)
        .map(|number| {
            let mut command =
                house.command(&["run", "--source", "none", "--", "sh", "-c", &format!("echo {number}")]);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            command.current_dir(house.path()).spawn().unwrap()
        })
        .collect();
    for (number, run) in runs.into_iter().enumerate() {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{number}\n"));
    }
    let server: Value = serde_json::from_slice(&house.run(&["whoami", "--json"]).stdout).unwrap();
    assert_eq!(server["via"], "unix_socket");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[actix_rt::test]
async fn fifty_calls_under_one_key_make_one_job() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let socket = house.state().join("gpulayer.sock");
    let body = argv(&["true"]).to_string();
    let request = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Idempotency-Key: the-one\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let (socket, request) = (socket.clone(), request.clone());
            std::thread::spawn(move || {
                let mut stream = UnixStream::connect(socket).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
                std::io::read_to_string(stream).unwrap()
            })
        })
        .collect();
    let mut bodies = Vec::new();
    let mut replayed = 0;
    for caller in callers {
        let answer = caller.join().unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        replayed += usize::from(answer.to_lowercase().contains("idempotency-replayed: true"));
        bodies.push(answer.split_once("\r\n\r\n").unwrap().1.to_owned());
    }
    assert_eq!(replayed, 49);
    assert!(bodies.iter().all(|body| body == &bodies[0]), "the same answer for all");
    let jobs: Value = house.client().get("/v1/jobs").await.unwrap();
    assert_eq!(jobs["items"].as_array().unwrap().len(), 1);
}

#[actix_rt::test]
async fn a_stolen_socket_path_is_no_daemon_and_a_stale_one_is_replaced() {
    let house = House::new();
    let daemon = house.daemon().await;
    daemon.kill();
    assert!(house.state().join("gpulayer.sock").exists(), "a killed daemon leaves its socket");
    let daemon = house.daemon().await;
    let socket = house.state().join("gpulayer.sock");
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "not a socket").unwrap();
    assert!(daemon.terminate().success());
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "not a socket", "it removes only what is its own");
    let output = house.run(&["server", "start", "--no-tcp"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a socket"), "{output:?}");
}

#[actix_rt::test]
async fn two_finishes_of_one_task_give_one_end() {
    let house = House::new();
    let daemon = house.daemon().await;
    let id = house.submit(&shell("echo once")).await.id;
    let first = house.end(id).await;
    daemon.kill();
    let _daemon = house.daemon().await;
    let again: Job = house.client().get(&format!("/v1/jobs/{id}")).await.unwrap();
    assert_eq!((again.end, again.ended_at), (first.end, first.ended_at));
    eventually("the folder of the settled task to go", async || {
        std::fs::read_dir(house.state().join("worker/tasks")).ok()?.next().is_none().then_some(())
    })
    .await;
}
