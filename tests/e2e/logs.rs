//! Logs by the command line: floods, odd bytes, and followers whose daemon or connection goes away again and again.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpulayer::contract::artifact::Digest;
use gpulayer::contract::job::JobState;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::house::{House, argv, eventually, shell};

fn numbered(prefix: &str, count: usize) -> String {
    (1..=count).map(|number| format!("{prefix} {number}\n")).collect()
}

/// A job that prints this many numbered lines, slowly.
fn counting(count: usize) -> Value {
    shell(&format!("i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo line $i; sleep 0.01; done"))
}

#[actix_rt::test]
async fn a_flood_keeps_its_last_line_and_every_byte() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let program = "import sys\nblock = (b'x' * 99 + b'\\n') * 10000\nfor _ in range(40): sys.stdout.buffer.write(block)\nsys.stdout.buffer.write(b'LAST\\n')";
    let id = house.submit(&argv(&["python3", "-c", program])).await.id;
    let job = house.end(id).await;
    assert_eq!(job.state, JobState::Succeeded);
    let lines = house.log(id).await;
    assert_eq!(lines.last().map(String::as_str), Some("LAST"));
    assert!(lines.len() < 300_000, "{}", lines.len());
    let marks: Vec<&String> = lines.iter().filter(|line| line.starts_with('…')).collect();
    assert!(!marks.is_empty() && marks.iter().all(|mark| mark.contains("gpulayer logs --full")));
    let whole = job.log_artifact.unwrap();
    let tasks: Value = house.client().get(&format!("/v1/jobs/{id}/tasks")).await.unwrap();
    let of_task: Digest = serde_json::from_value(tasks["items"][0]["log_artifact"].clone()).unwrap();
    assert_eq!(of_task, whole);
    let shown = house.run(&["show", "@last"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains(&format!("whole log    {whole}")));
    let full = house.run(&["logs", "--full", "@last"]);
    let mut expected = [b"x".repeat(99).as_slice(), b"\n"].concat().repeat(400_000);
    expected.extend_from_slice(b"LAST\n");
    assert!(full.stdout == expected, "{} of {} bytes", full.stdout.len(), expected.len());
    assert!(house.run(&["rm", &id.to_string()]).status.success());
}

#[actix_rt::test]
async fn odd_bytes_come_back_exactly_and_lines_say_everything_they_can() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let program = "import os\nos.write(1, b'a' * (5 << 20) + b'\\n\\xff\\xfe bad\\nnul\\x00inside\\n\\x1b]0;title\\x07\\nend')";
    let id = house.submit(&argv(&["python3", "-c", program])).await.id;
    assert!(house.end(id).await.log_artifact.is_some());
    let lines = house.run(&["logs", "@last"]).stdout;
    let text = String::from_utf8(lines).unwrap();
    assert_eq!(text.matches('a').count(), (5 << 20) + "bad".len() - 2, "all pages of long lines");
    assert!(text.ends_with("\\xFF\\xFE bad\nnul\\0inside\n\u{1b}]0;title\u{7}\nend\n"));
    let mut expected = b"a".repeat(5 << 20);
    expected.extend_from_slice(b"\n\xff\xfe bad\nnul\x00inside\n\x1b]0;title\x07\nend");
    assert!(house.run(&["logs", "--full", "@last"]).stdout == expected);
}

#[actix_rt::test]
async fn what_the_lines_say_is_all_there_is() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let id = house.submit(&shell("echo one; echo two >&2; printf three")).await.id;
    assert_eq!(house.end(id).await.log_artifact, None);
    let full = String::from_utf8(house.run(&["logs", "--full", "@last"]).stdout).unwrap();
    let mut lines: Vec<&str> = full.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one", "three", "two"]);
}

#[actix_rt::test]
async fn a_follower_outlives_its_daemon_and_starts_the_next_one() {
    let house = House::new();
    let submitted = house.run(&[
        "submit",
        "--",
        "sh",
        "-c",
        counting(900)["workload"]["command"]["shell"].as_str().unwrap(),
    ]);
    let id = String::from_utf8(submitted.stdout).unwrap().trim().to_owned();
    let mut follower =
        house.command(&["logs", "-f", &id]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = follower.stdout.take().unwrap();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        text
    });
    let holder = || std::fs::read_to_string(house.state().join("lock")).ok()?.trim().parse::<i32>().ok();
    let mut killed = Vec::new();
    for line in ["line 100", "line 250", "line 400", "line 600", "line 700"] {
        // This client starts nothing: what answers was started by the follower.
        house.logged(id.parse().unwrap(), line).await;
        let pid =
            eventually("a daemon of its own", async || holder().filter(|pid| !killed.contains(pid))).await;
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        killed.push(pid);
    }
    let end = follower.wait().unwrap();
    assert_eq!(reading.join().unwrap(), numbered("line", 900));
    assert!(end.success());
}

/// Forwards connections to a port, and cuts each after so many bytes of the answer.
struct CuttingProxy {
    port: u16,
    cuts: Arc<AtomicU64>,
}

impl CuttingProxy {
    fn before(target: u16, mut seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let cuts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&cuts);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (cuts, after) = (Arc::clone(&counted), 1 + (seed >> 33) % 9000);
                std::thread::spawn(move || {
                    let Ok(client) = client else { return };
                    let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
                    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                    std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
                    let (mut answer, mut back) =
                        (server.try_clone().unwrap().take(after), client.try_clone().unwrap());
                    let sent = std::io::copy(&mut answer, &mut back).unwrap_or(0);
                    drop(back.flush());
                    cuts.fetch_add(u64::from(sent == after), Ordering::Relaxed);
                    drop((client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both)));
                });
            }
        });
        Self { port, cuts }
    }
}

#[actix_rt::test]
async fn a_follower_sees_every_line_once_however_its_connection_is_cut() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--port", "0"]).await;
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let proxy = CuttingProxy::before(house.port(), seed);
    let id = house.submit(&counting(800)).await.id;
    let token = std::fs::read_to_string(house.home().join("client-token")).unwrap();
    let url = format!("http://127.0.0.1:{}", proxy.port);
    let followed = tokio::task::spawn_blocking({
        let mut command = house.command(&["--server", &url, "logs", "-f", &id.to_string()]);
        command.env("GPULAYER_TOKEN", token.trim());
        move || command.output().unwrap()
    });
    let followed = followed.await.unwrap();
    let stderr = String::from_utf8_lossy(&followed.stderr);
    assert_eq!(String::from_utf8_lossy(&followed.stdout), numbered("line", 800), "{stderr}");
    assert!(followed.status.success());
    assert!(proxy.cuts.load(Ordering::Relaxed) > 10, "it was cut");
}

#[actix_rt::test]
async fn a_log_whose_spool_is_damaged_says_what_it_lost() {
    let house = House::new();
    let mut daemon = house.daemon().await;
    let id = house
        .submit(&shell(
            "for i in 1 2 3; do echo line $i; done; while [ ! -e go ]; do sleep 0.02; done; echo four",
        ))
        .await
        .id;
    house.logged(id, "line 3").await;
    daemon.kill();
    let tasks = house.state().join("worker/tasks");
    let task = std::fs::read_dir(&tasks).unwrap().next().unwrap().unwrap().path();
    std::fs::write(task.join("workspace/go"), "").unwrap();
    eventually("the end to be written down", async || {
        std::fs::read_to_string(task.join("shim.json")).ok().filter(|text| text.lines().count() == 2)
    })
    .await;
    let spool = std::fs::OpenOptions::new().write(true).open(task.join("spool")).unwrap();
    spool.set_len(13 + 6 + 13).unwrap();
    daemon = house.daemon().await;
    let job = house.end(id).await;
    assert_eq!(job.state, JobState::Succeeded);
    let log = house.log(id).await;
    assert_eq!(log[..3], ["line 1", "line 2", "line 3"]);
    assert!(log[3].starts_with("1 line lost here"), "{log:?}");
    assert!(
        job.warnings.iter().any(|warning| warning.detail.starts_with("the log lacks")),
        "{:?}",
        job.warnings
    );
    drop(daemon);
    assert_eq!(json!(job.end.unwrap().exit_code), json!(0));
}
