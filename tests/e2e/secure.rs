//! `up`, `connect` and `doctor --server` over TLS, with real processes: a server here, and people elsewhere who have
//! homes of their own.

use std::process::Output;

use gpulayer::client::{Client, Endpoint, Trust};
use gpulayer::contract::job::JobState;
use gpulayer::contract::server::ServerStatus;
use serde_json::Value;

use crate::far_worker::FarWorker;
use crate::house::{House, alive, eventually, shell};

fn text(output: &Output) -> (i32, String, String) {
    let read = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), read(&output.stdout), read(&output.stderr))
}

/// `up` on loopback: what runs.
fn up(house: &House, flags: &[&str]) -> ServerStatus {
    let mut args = vec!["up", "--json"];
    args.extend(flags);
    let (status, out, err) = text(&house.run(&args));
    assert_eq!(status, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

const NEAR: &[&str] = &["--host", "127.0.0.1", "--port", "0"];

fn kill(pid: u32) {
    let process = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

#[actix_rt::test]
async fn up_comes_back_where_it_was_until_it_is_taken_down() {
    let house = House::new();
    let first = up(&house, NEAR);
    let listening = first.listening.unwrap();
    assert!(listening.self_signed && listening.url.starts_with("https://127.0.0.1:"), "{listening:?}");
    let again = up(&house, &[]);
    assert_eq!(again.pid, first.pid, "it is as asked for");
    kill(first.pid);
    eventually("the daemon to be gone", async || (!alive(first.pid)).then_some(())).await;
    // A worker elsewhere waits at that address, with that key.
    let (status, _, err) = text(&house.run(&["ps"]));
    assert_eq!(status, 0, "{err}");
    let token = std::fs::read_to_string(house.home().join("client-token")).unwrap();
    let far = Client::new(Endpoint::parse(&listening.url).unwrap())
        .with_trust(Trust::pinned(listening.pin.unwrap()))
        .with_token(token.trim())
        .unwrap();
    let back: ServerStatus = far.get("/v1/server").await.unwrap();
    assert_ne!(back.pid, first.pid);
    assert_eq!((back.listening.as_ref(), back.on_demand), (Some(&listening), false));
    let other = up(&house, &["--no-worker"]);
    assert_ne!(other.pid, back.pid, "it is asked for otherwise");
    assert_eq!(other.listening.unwrap(), listening);
    assert_eq!(text(&house.run(&["down"])).0, 0);
    house.run(&["ps"]);
    let own: ServerStatus = house.client().get("/v1/server").await.unwrap();
    assert_eq!((own.on_demand, own.listening), (true, None));
}

#[actix_rt::test]
async fn up_at_once_after_a_kill_keeps_what_runs_and_what_waits() {
    let house = House::new();
    let first = up(&house, NEAR);
    let go = house.path().join("go");
    let running = house
        .submit(&shell(&format!("echo up; until [ -e {} ]; do sleep 0.02; done", go.display())))
        .await
        .id;
    let mut next = shell("echo next");
    next["depends_on"] = serde_json::json!([{"job": running}]);
    let waiting = house.submit(&next).await.id;
    house.logged(running, "up").await;
    // Not waited for: it may not be gone yet.
    kill(first.pid);
    let second = up(&house, &[]);
    assert_ne!(second.pid, first.pid);
    assert_eq!(second.listening, first.listening);
    // And what a client is told of right after it was told so outlives the next kill.
    let last = house.submit(&shell("echo last")).await.id;
    kill(second.pid);
    let third = up(&house, &[]);
    assert_eq!((third.pid == second.pid, third.listening), (false, first.listening));
    std::fs::write(go, "").unwrap();
    for (id, said) in [(running, "up"), (waiting, "next"), (last, "last")] {
        let job = house.end(id).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1), "{job:?}");
        assert_eq!(house.log(id).await, [said]);
    }
    assert_eq!(text(&house.run(&["down"])).0, 0);
    assert_eq!(house.leftovers(), [""; 0]);
}

#[actix_rt::test]
async fn a_laptop_connects_once_and_runs_jobs_there() {
    let (server, laptop) = (House::new(), House::new());
    let listening = up(&server, NEAR).listening.unwrap();
    let (url, pin) = (listening.url, listening.pin.unwrap().to_string());
    let token_file = server.home().join("client-token");
    let token_file = token_file.to_str().unwrap();
    // Without a pin nothing is believed and nothing is saved; what is seen can be compared.
    let roots = laptop.path().join("roots.pem");
    std::fs::copy(other_authority(&laptop), &roots).unwrap();
    let unpinned =
        laptop.command(&["connect", &url, "--token-file", token_file]).env("SSL_CERT_FILE", &roots).output();
    let (status, _, err) = text(&unpinned.unwrap());
    assert_eq!(status, 1, "{err}");
    assert!(err.contains(&format!("--pin {pin}")) && err.contains("does not trust"), "{err}");
    let wrong = format!("sha256:{}", "07".repeat(32));
    let (status, _, err) = text(&laptop.run(&["connect", &url, "--token-file", token_file, "--pin", &wrong]));
    assert_eq!(status, 1, "{err}");
    assert!(err.contains(&pin) && err.contains(&wrong) && err.contains("in between"), "{err}");
    assert!(!laptop.home().join("connections.toml").exists());
    let (status, out, err) =
        text(&laptop.run(&["connect", &url, "--token-file", token_file, "--pin", &pin, "--name", "lab"]));
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("saved as lab"), "{out}");
    let (status, out, err) = text(&laptop.run(&["run", "--source", "none", "--", "echo", "there"]));
    assert_eq!((status, out.as_str()), (0, "there\n"), "{err}");
    let listed = text(&laptop.run(&["connect", "--list"])).1;
    assert!(listed.contains("lab") && listed.contains(&url) && !listed.contains("glc_"), "{listed}");
    assert!(!laptop.state().join("gpulayer.sock").exists(), "no daemon was started here");
    let (status, out, err) = text(&laptop.run(&["doctor", "--server", "lab", "--hold", "1"]));
    assert_eq!(status, 0, "{out}{err}");
    for part in ["connection", "TLS 1.3", "the pinned key", "admin", "held for 1 s", "clock", "throughput"] {
        assert!(out.contains(part), "{part} in {out}");
    }
    assert_eq!(text(&laptop.run(&["connect", "--use", "local"])).0, 0);
    assert_eq!(text(&laptop.run(&["--server", "lab", "whoami"])).0, 0);
    assert_eq!(text(&laptop.run(&["connect", "--remove", "lab"])).0, 0);
    let (status, _, err) = text(&laptop.run(&["--server", "lab", "ps"]));
    assert_eq!(status, 2, "{err}");
    // Everything in one line, which is no argument.
    let token = std::fs::read_to_string(token_file).unwrap();
    let address = url.strip_prefix("https://").unwrap();
    let line = format!("gpulayer://{}@{address}?pin={pin}", token.trim());
    let (status, _, err) = text(&laptop.command(&["whoami"]).env("GPULAYER_URL", &line).output().unwrap());
    assert_eq!(status, 0, "{err}");
    std::fs::write(laptop.path().join("line"), &line).unwrap();
    let from = std::fs::File::open(laptop.path().join("line")).unwrap();
    let (status, out, err) = text(&laptop.command(&["connect", "-"]).stdin(from).output().unwrap());
    assert_eq!(status, 0, "{err}");
    assert!(!out.contains("glc_") && !err.contains("glc_"), "{out}{err}");
}

/// A certificate authority that has nothing to do with the server.
fn other_authority(house: &House) -> std::path::PathBuf {
    let elsewhere = House::new();
    up(&elsewhere, NEAR);
    let path = house.path().join("other.pem");
    std::fs::copy(elsewhere.home().join("tls/cert.pem"), &path).unwrap();
    path
}

#[actix_rt::test]
async fn a_doctor_says_which_part_of_the_way_is_at_fault() {
    let (server, laptop) = (House::new(), House::new());
    let listening = up(&server, NEAR).listening.unwrap();
    let report = |url: &str, token: &str| {
        let mut command = laptop.command(&["doctor", "--json", "--hold", "0", "--server", url]);
        let pin = listening.pin.unwrap().to_string();
        let (status, out, _) =
            text(&command.env("GPULAYER_PIN", pin).env("GPULAYER_TOKEN", token).output().unwrap());
        let checks: Vec<Value> = serde_json::from_str(&out).unwrap();
        let last = checks.last().unwrap().clone();
        (status, last["what"].as_str().unwrap().to_owned(), last["verdict"].as_str().unwrap().to_owned())
    };
    let bad = |what: &str| (1, what.to_owned(), "bad".to_owned());
    assert_eq!(report("https://127.0.0.1:1", "glc_x"), bad("connection"));
    assert_eq!(report("https://no-such-host.invalid", "glc_x"), bad("connection"));
    assert_eq!(report(&listening.url, "glc_x"), bad("token"));
    let open = listening.url.replace("https", "http");
    assert_eq!(report(&open, "glc_x"), bad("HTTP"));
}

#[test]
fn what_would_be_unsafe_or_cannot_work_is_refused_before_anything_starts() {
    let house = House::new();
    let (status, _, err) = text(&house.run(&["server", "start", "--host", "0.0.0.0", "--port", "0"]));
    assert_eq!(status, 2, "{err}");
    for way in ["--self-signed", "--tls-cert", "--allow-insecure-remote"] {
        assert!(err.contains(way), "{way} in {err}");
    }
    let mut start = vec!["server", "start", "--port", "0"];
    let (certificate, key) = (house.path().join("c.pem"), house.path().join("k.pem"));
    start.extend(["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()]);
    let (status, _, err) = text(&house.run(&start));
    assert!(status == 1 && err.contains("c.pem"), "{err}");
    std::fs::write(&certificate, "x").unwrap();
    let (status, _, err) = text(&house.run(&start));
    assert!(status == 1 && err.contains("holds no certificate"), "{err}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (status, _, err) = text(&house.run(&["server", "start", "--port", &port]));
    assert!(status == 1 && err.contains(&format!("port {port} on 127.0.0.1 is taken")), "{err}");
    assert!(!house.state().join("gpulayer.db").exists(), "nothing was started");
}

/// The line that `up` prints for curl, as it is; the one for Python is tried by tests/python.
#[actix_rt::test]
async fn what_up_prints_for_curl_works() {
    let house = House::new();
    let (status, page, err) = text(&house.run(&{
        let mut args = vec!["up"];
        args.extend(NEAR);
        args
    }));
    assert_eq!(status, 0, "{err}");
    let line = page.lines().find(|line| line.starts_with("  curl "));
    let line = line.unwrap_or_else(|| panic!("no line for curl in {page}"));
    let ran = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
    let (status, out, err) = text(&ran);
    assert_eq!(status, 0, "{line}\n{err}");
    let answer: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert!(answer["items"].is_array(), "{answer}");
}

#[actix_rt::test]
async fn the_first_tokens_are_made_before_the_server_runs_and_it_never_sees_them() {
    let house = House::new();
    let file = house.path().join("admin-token");
    let init = ["server", "init", "--json", "--client-token-file", file.to_str().unwrap()];
    let (status, out, err) = text(&house.run(&init));
    assert_eq!(status, 0, "{err}");
    let made: Value = serde_json::from_str(&out).unwrap();
    let join = made["join_token"].as_str().unwrap();
    let admin = std::fs::read_to_string(&file).unwrap();
    assert!(
        made["client_token"].is_null() && join.starts_with("glj_") && admin.starts_with("glc_"),
        "{made}"
    );
    let seed = std::fs::read_to_string(house.home().join("server-credentials.json")).unwrap();
    assert!(!seed.contains("glc_") && !seed.contains("glj_"), "{seed}");
    let (status, _, err) = text(&house.run(&["server", "init"]));
    assert!(status == 1 && err.contains("not overwritten"), "{err}");
    let daemon = house.daemon_with(&["--self-signed", "--port", "0", "--no-worker"]).await;
    let status: ServerStatus = house.client().get("/v1/server").await.unwrap();
    let listening = status.listening.unwrap();
    let far = Client::new(Endpoint::parse(&listening.url).unwrap())
        .with_trust(Trust::pinned(listening.pin.unwrap()));
    let whoami =
        async |token: &str| far.clone().with_token(token.trim()).unwrap().get::<Value>("/v1/whoami").await;
    assert_eq!(whoami(&admin).await.unwrap()["role"], "admin");
    assert!(whoami(join).await.is_err(), "it only joins");
    drop(daemon);
}

/// The whole way over TLS, and the daemon's death in the middle of a task of a worker elsewhere.
#[actix_rt::test]
async fn a_worker_elsewhere_finds_a_killed_up_again() {
    let house = House::new();
    let first = up(&house, &["--host", "127.0.0.1", "--port", "0", "--no-worker"]);
    let listening = first.listening.unwrap();
    let pin = listening.pin.unwrap().to_string();
    let _worker = FarWorker::start_with(&house, &listening.url, &["--pin", &pin]);
    let mut spec = shell("echo up; while [ ! -e go ]; do sleep 0.05; done; echo down");
    spec["target"] = serde_json::json!("remote");
    let id = house.submit(&spec).await.id;
    house.logged(id, "up").await;
    kill(first.pid);
    eventually("the daemon to be gone", async || (!alive(first.pid)).then_some(())).await;
    let (status, out, err) = text(&house.run(&["ps"]));
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("running"), "{out}");
    let task =
        std::fs::read_dir(FarWorker::folder(&house).join("tasks")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(task.join("workspace/go"), "").unwrap();
    let job = house.end(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1), "{job:?}");
    assert_eq!(house.log(id).await, ["up", "down"]);
}

#[test]
fn the_environments_proxy_is_used_for_what_is_elsewhere_and_named_when_it_fails() {
    let house = House::new();
    let near = up(&house, NEAR).listening.unwrap();
    let ask = |url: &str| {
        let mut command = house.command(&["--server", url, "whoami"]);
        command.env("https_proxy", "http://ann:secret@127.0.0.1:1").env("no_proxy", "inside.invalid");
        let token = std::fs::read_to_string(house.home().join("client-token")).unwrap();
        command.env("GPULAYER_TOKEN", token.trim()).env("GPULAYER_PIN", near.pin.unwrap().to_string());
        text(&command.output().unwrap())
    };
    assert_eq!(ask(&near.url).0, 0, "this machine is not reached through a proxy");
    let (status, _, err) = ask("https://elsewhere.invalid");
    assert!(
        status == 1 && err.contains("through the proxy http://127.0.0.1:1") && !err.contains("secret"),
        "{err}"
    );
    let (_, _, err) = ask("https://inside.invalid");
    assert!(err.contains("no answer from https://inside.invalid"), "{err}");
}

#[actix_rt::test]
async fn a_server_is_not_moved_away_from_workers_that_joined_it_unless_that_is_meant() {
    let house = House::new();
    let free =
        || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let first = up(&house, NEAR);
    let url = first.listening.as_ref().unwrap().url.clone();
    let other = free();
    let moved = up(&house, &["--port", &other]);
    assert_ne!(moved.pid, first.pid, "nobody has joined: it moves");
    let listening = moved.listening.unwrap();
    assert_ne!(listening.url, url);
    let pin = listening.pin.unwrap().to_string();
    let _worker = FarWorker::start_with(&house, &listening.url, &["--pin", &pin]);
    eventually("the worker to join", async || {
        let workers: Value = house.client().get("/v1/workers").await.ok()?;
        workers["items"].as_array()?.iter().any(|worker| worker["name"] == "far").then_some(())
    })
    .await;
    let third = free();
    let (status, _, err) = text(&house.run(&["up", "--port", &third]));
    assert_eq!(status, 1, "{err}");
    assert!(
        err.contains("1 worker has joined at") && err.contains(": far") && err.contains("--yes"),
        "{err}"
    );
    let (status, _, err) = text(&house.run(&["up", "--host", "127.0.0.2"]));
    assert_eq!(status, 1, "{err}");
    let there: ServerStatus = house.client().get("/v1/server").await.unwrap();
    assert_eq!(there.pid, moved.pid, "it is where it was");
    // What does not move it needs no word.
    let again = up(&house, &["--no-worker"]);
    assert_eq!(again.listening.unwrap().url, listening.url);
    let gone = up(&house, &["--port", &third, "--yes"]);
    assert!(gone.listening.unwrap().url.ends_with(&third));
}
