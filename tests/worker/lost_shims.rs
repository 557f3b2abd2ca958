//! Tasks whose shim was killed, and worse: with files half written, pids used again, processes that do not die.

use std::process::{Child, Command};
use std::sync::Arc;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::TaskId;
use gpulayer::contract::protocol::Report;
use gpulayer::contract::quantity::Seconds;
use gpulayer::contract::spec::JobSpec;

use crate::frozen::Frozen;
use crate::server::{Server, is_alive, shell, stop, until};

fn kill(pid: &str) {
    assert!(Command::new("kill").args(["-9", pid]).status().unwrap().success());
    until("the killed to go", || !is_alive(pid));
}

/// A running task without its worker and without its shim: its id and its pid.
fn bereft(server: &Arc<Server>) -> (TaskId, String) {
    let worker = server.start_worker();
    let task_id = server.offer(shell("echo $$; echo $PPID; echo ready; sleep 1000"));
    server.until_line(task_id, "ready");
    let lines = server.lines_of(task_id);
    stop(worker);
    kill(&lines[1]);
    (task_id, lines[0].clone())
}

/// Somebody else's process.
struct Innocent(Child);

impl Innocent {
    fn new() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Innocent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pid_that_is_used_again_is_not_taken_for_the_shim() {
    let server = Server::new();
    let (task_id, pid) = bereft(&server);
    let mut innocent = Innocent::new();
    let file = server.task_folder(task_id).join("shim.json");
    let mut shim: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    shim["pid"] = innocent.0.id().into();
    std::fs::write(&file, format!("{shim}\n")).unwrap();
    let worker = server.start_worker();
    assert_eq!(server.finish_of(task_id).end.reason, EndReason::Internal);
    assert!(!is_alive(&pid) && innocent.lives());
    stop(worker);
}

#[test]
fn half_written_files_of_a_shim_cost_its_task_and_no_more() {
    let server = Server::new();
    let (task_id, pid) = bereft(&server);
    let lines = server.lines_of(task_id);
    let folder = server.task_folder(task_id);
    let text = std::fs::read_to_string(folder.join("shim.json")).unwrap();
    std::fs::write(folder.join("shim.json"), &text[..text.len() / 2]).unwrap();
    let mut spool = std::fs::read(folder.join("spool")).unwrap();
    let half = spool.len() / 6;
    spool.extend_from_within(..half);
    std::fs::write(folder.join("spool"), spool).unwrap();
    let worker = server.start_worker();
    assert_eq!(server.finish_of(task_id).end.reason, EndReason::Internal);
    assert!(!is_alive(&pid));
    assert_eq!(server.lines_of(task_id), lines);
    assert_eq!(server.run(shell("true")).1.end.reason, EndReason::Completed);
    stop(worker);
}

#[test]
fn what_does_not_die_keeps_its_task_and_holds_up_no_start() {
    let server = Server::new();
    let (task_id, pid) = bereft(&server);
    let Some(frozen) = Frozen::freeze(pid.parse().unwrap()) else {
        eprintln!(
            "NOT TESTED: no process can be kept from dying here, {} is not there for this user",
            Frozen::ROOT
        );
        return;
    };
    let worker = server.start_worker();
    assert_eq!(server.run(shell("true")).1.end.reason, EndReason::Completed);
    let told = server.until("word of the stuck", |record| {
        record.reports.iter().find_map(|item| match &item.report {
            Report::Stuck { processes } if item.task_id == task_id => Some(processes.clone()),
            _ => None,
        })
    });
    assert!(told.iter().any(|process| process.pid.to_string() == pid), "{told:?}");
    let held = server.until("a heartbeat", |record| record.beats.last().map(|beat| beat.tasks.clone()));
    assert!(held.iter().any(|held| held.task_id == task_id), "it is not held any more: {held:?}");
    assert!(is_alive(&pid));
    frozen.thaw();
    assert_eq!(server.finish_of(task_id).end.reason, EndReason::Internal);
    assert!(!is_alive(&pid));
    stop(worker);
}

#[test]
fn a_shim_killed_in_the_grace_of_a_timeout_leaves_a_timeout() {
    for away in [false, true] {
        let server = Server::new();
        let worker = server.start_worker();
        let spec = JobSpec {
            timeout_s: Some(Seconds::from_millis(300)),
            grace_s: Seconds::new(1000),
            ..shell("trap 'echo deaf' TERM; echo $$; echo $PPID; while :; do sleep 0.05; done")
        };
        let task_id = server.offer(spec);
        server.until_line(task_id, "deaf");
        let lines = server.lines_of(task_id);
        if away {
            stop(worker);
            kill(&lines[1]);
            let worker = server.start_worker();
            assert_eq!(server.finish_of(task_id).end.reason, EndReason::TimedOut);
            stop(worker);
        } else {
            kill(&lines[1]);
            assert_eq!(server.finish_of(task_id).end.reason, EndReason::TimedOut);
            stop(worker);
        }
        assert!(!is_alive(&lines[0]));
    }
}

#[test]
fn a_folder_that_is_not_called_like_a_task_is_gone_after_the_next_start() {
    let server = Server::new();
    let worker = server.start_worker();
    let (task_id, _) =
        server.run(shell("cd ../..; mv $GPULAYER_TASK_ID $GPULAYER_TASK_ID.x; mkfifo pipe; ln -s / all"));
    let tasks = server.worker_folder().join("tasks");
    assert!(tasks.join(format!("{task_id}.x")).exists());
    stop(worker);
    let worker = server.start_worker();
    assert_eq!(server.run(shell("true")).1.end.reason, EndReason::Completed);
    until("the strays to go", || std::fs::read_dir(&tasks).unwrap().count() == 0);
    stop(worker);
}
