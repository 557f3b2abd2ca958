//! What a newcomer types on the wrong machine, with the wrong token or by half, and what is said about it.

use std::process::Output;

use gpulayer::contract::server::{Listening, ServerStatus};

use crate::house::{GPULAYER, House, alive, eventually};

fn text(output: &Output) -> (i32, String, String) {
    let read = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), read(&output.stdout), read(&output.stderr))
}

/// A server as `up` makes it, on loopback.
fn up(house: &House) -> (u32, Listening) {
    let (status, out, err) = text(&house.run(&["up", "--host", "127.0.0.1", "--port", "0", "--json"]));
    assert_eq!(status, 0, "{err}");
    let up: ServerStatus = serde_json::from_str(&out).unwrap();
    (up.pid, up.listening.unwrap())
}

fn connect(laptop: &House, server: &House, at: &Listening) {
    let token = server.home().join("client-token");
    let pin = at.pin.unwrap().to_string();
    let words = ["connect", &at.url, "--token-file", token.to_str().unwrap(), "--pin", &pin, "--name", "lab"];
    assert!(laptop.run(&words).status.success());
}

#[actix_rt::test]
async fn down_stops_this_machines_daemon_alone_and_says_whose_it_was() {
    let (server, laptop) = (House::new(), House::new());
    let (pid, at) = up(&server);
    connect(&laptop, &server, &at);
    for elsewhere in ["lab", &at.url] {
        let (status, _, err) = text(&laptop.run(&["down", "--yes", "--server", elsewhere]));
        assert_eq!(status, 2, "{err}");
        assert!(err.contains("on that server's machine"), "{err}");
    }
    assert!(laptop.run(&["--server", "local", "ps"]).status.success());
    let (status, _, err) = text(&laptop.run(&["down", "--yes"]));
    assert_eq!(status, 0, "{err}");
    assert!(err.contains("the saved server lab") && err.contains("goes on"), "{err}");
    assert!(alive(pid));
}

#[actix_rt::test]
async fn a_daemon_that_was_to_be_kept_comes_back_as_it_was() {
    let house = House::new();
    let (pid, at) = up(&house);
    let (status, _, err) = text(&house.run(&["down", "--keep"]));
    assert_eq!(status, 0, "{err}");
    assert!(err.contains("the next command here starts it as `up` did"), "{err}");
    eventually("the daemon to be gone", async || (!alive(pid)).then_some(())).await;
    assert!(house.run(&["ps"]).status.success());
    let back: ServerStatus = house.client().get("/v1/server").await.unwrap();
    assert_eq!(back.listening.unwrap(), at, "workers find it again");
    assert!(house.run(&["down", "--yes"]).status.success());
    assert!(house.run(&["ps"]).status.success());
    let plain: ServerStatus = house.client().get("/v1/server").await.unwrap();
    assert_eq!(plain.listening, None);
    // `ss -ltnp` and `ps` are to name it.
    let name = std::fs::read_to_string(format!("/proc/{}/comm", plain.pid)).unwrap();
    assert_eq!(name, "gpulayer\n");
}

#[test]
fn a_saved_token_that_is_not_valid_is_to_be_saved_anew() {
    let (server, laptop) = (House::new(), House::new());
    let (_, at) = up(&server);
    connect(&laptop, &server, &at);
    let file = laptop.home().join("connections.toml");
    let saved = std::fs::read_to_string(&file).unwrap();
    let token = std::fs::read_to_string(server.home().join("client-token")).unwrap();
    std::fs::write(&file, saved.replace(token.trim(), &format!("glc_{}", "0".repeat(64)))).unwrap();
    let (status, _, err) = text(&laptop.run(&["ps"]));
    assert_eq!(status, 1, "{err}");
    assert!(err.contains("the token saved for `lab`") && err.contains("gpulayer connect https://"), "{err}");
    assert!(!err.contains("set GPULAYER_TOKEN"), "{err}");
}

#[test]
fn a_client_token_joins_nothing_and_is_not_sent() {
    let house = House::new();
    let token = house.path().join("token");
    std::fs::write(&token, format!("glc_{}", "0".repeat(64))).unwrap();
    let flags = ["--allow-root-tasks", "--token-file", token.to_str().unwrap()];
    let joined = |server: &str| text(&house.run(&[&["join", server][..], &flags].concat()));
    let (status, _, err) = joined("https://127.0.0.1:1");
    assert_eq!(status, 2, "{err}");
    assert!(err.contains("~/.gpulayer/join-token") && !err.contains("glc_0"), "{err}");
    let (status, _, err) = joined("10.88.0.2:8470");
    assert_eq!(status, 2, "{err}");
    assert!(err.contains("did you mean https://10.88.0.2:8470?"), "{err}");
}

#[test]
fn a_doctor_knows_what_this_machine_knows_of_the_server() {
    let (server, laptop) = (House::new(), House::new());
    let (_, at) = up(&server);
    let pin = at.pin.unwrap().to_string();
    let doctor = |house: &House, flags: &[&str]| {
        text(&house.run(&[&["doctor", "--hold", "0", "--server", &at.url][..], flags].concat()))
    };
    let (status, out, err) = doctor(&server, &[]);
    assert_eq!(status, 0, "its own key and token: {out}{err}");
    assert!(out.contains("the pinned key") && out.contains("admin"), "{out}");
    let tls = |out: &str| out.lines().find(|line| line.starts_with("TLS")).unwrap().to_owned();
    let other = format!("sha256:{}", "07".repeat(32));
    let (status, out, _) = doctor(&laptop, &["--pin", &other]);
    assert_eq!(status, 1, "{out}");
    assert!(tls(&out).contains("BAD") && tls(&out).contains(&pin), "{out}");
    let (status, out, _) = doctor(&laptop, &["--pin", &pin]);
    assert_eq!(status, 1, "{out}");
    assert!(tls(&out).contains(" ok ") && out.contains("none: set GPULAYER_TOKEN"), "{out}");
    // Joined there, a worker's machine needs neither.
    let join_token = server.home().join("join-token");
    let words = ["join", &at.url, "--pin", &pin, "--allow-root-tasks", "--detach", "--token-file"];
    let (status, _, err) = text(&laptop.run(&[&words[..], &[join_token.to_str().unwrap()]].concat()));
    assert_eq!(status, 0, "{err}");
    let (status, out, err) = doctor(&laptop, &[]);
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("this machine has joined there"), "{out}");
    assert!(laptop.run(&["worker", "stop"]).status.success());
    // Whoever may only look is refused one measurement, which is no fault of the way.
    let made = text(&server.run(&["token", "create", "--name", "eve", "--role", "viewer"]));
    let mut looks = laptop.command(&["doctor", "--hold", "0", "--server", &at.url, "--pin", &pin]);
    let (status, out, err) = text(&looks.env("GPULAYER_TOKEN", made.1.trim()).output().unwrap());
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("viewer") && out.contains("not measured"), "{out}");
}

#[actix_rt::test]
async fn a_job_starts_no_daemon_that_would_end_with_it() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let elsewhere = house.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let ps = |with: &str| {
        format!("HOME={} {with} {GPULAYER} ps > said 2>&1; echo $?; cat said", elsewhere.display())
    };
    let (status, out, _) = text(&house.run(&["run", "--source", "none", "--shell", &ps("")]));
    assert_eq!(status, 0, "{out}");
    assert!(out.starts_with("1\n") && out.contains("this is part of a job"), "{out}");
    assert!(!elsewhere.join(".gpulayer/state/gpulayer.sock").exists());
    let own = format!("GPULAYER_HOME={}", elsewhere.join("own").display());
    let (_, out, _) = text(&house.run(&["run", "--source", "none", "--shell", &ps(&own)]));
    assert!(out.starts_with("0\n"), "one of its own is its own affair: {out}");
}
