//! Workers that go and come back, and what their tasks do meanwhile.

use std::path::Path;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::protocol::Report;
use gpulayer::contract::spec::JobSpec;
use gpulayer::contract::worker::Phase;

use crate::server::{Server, is_alive, shell, stop, until};

fn waits_for(go: &Path) -> JobSpec {
    shell(&format!("echo $$; echo before; until [ -e {} ]; do sleep 0.01; done; echo after", go.display()))
}

#[test]
fn a_running_task_is_adopted_and_its_log_goes_on() {
    let server = Server::new();
    let worker = server.start_worker();
    let go = server.folder().join("go");
    let task_id = server.offer(waits_for(&go));
    server.until_line(task_id, "before");
    let pid = server.lines_of(task_id)[0].clone();
    stop(worker);
    assert!(is_alive(&pid), "stopping the worker stopped its task");

    let worker = server.start_worker();
    let resumed = server.until("the worker to resume", |record| record.resumes.first().cloned());
    assert_eq!(resumed.tasks.len(), 1);
    assert_eq!(resumed.identity.incarnation, 2);
    std::fs::write(go, "").unwrap();
    assert_eq!(server.finish_of(task_id).end.reason, EndReason::Completed);
    assert_eq!(server.lines_of(task_id), [pid.as_str(), "before", "after"]);
    let starts =
        server.change(|record| record.reports.iter().filter(|item| item.report == Report::Start).count());
    assert_eq!((starts, server.change(|record| record.registrations)), (1, 1));
    stop(worker);
}

#[test]
fn a_task_that_ended_while_its_worker_was_away_is_finished_by_the_next() {
    let server = Server::new();
    let worker = server.start_worker();
    let go = server.folder().join("go");
    let spec = JobSpec {
        outputs: vec![gpulayer::contract::spec::Output {
            path: "out.txt".into(),
            name: None,
            optional: false,
        }],
        ..shell(&format!(
            "echo before; until [ -e {} ]; do sleep 0.01; done; echo late > out.txt",
            go.display()
        ))
    };
    let task_id = server.offer(spec);
    server.until_line(task_id, "before");
    stop(worker);
    std::fs::write(go, "").unwrap();
    until("the program's end", || server.has_ended(task_id));

    let worker = server.start_worker();
    let finish = server.finish_of(task_id);
    assert_eq!((finish.end.reason, finish.outputs.len()), (EndReason::Completed, 1));
    assert_eq!(server.lines_of(task_id), ["before"]);
    until("the folder to go", || !server.task_folder(task_id).exists());
    stop(worker);
}

#[test]
fn a_start_that_was_never_answered_is_reported_again() {
    let server = Server::new();
    let worker = server.start_worker();
    server.change(|record| record.hold_starts = true);
    let task_id = server.offer(shell("echo once"));
    until("the task's folder", || server.task_folder(task_id).join("task.json").exists());
    stop(worker);
    server.change(|record| record.hold_starts = false);
    // The offer still stands as well, as it would with a real server: the worker must not take it twice.
    let worker = server.start_worker();
    assert_eq!(server.finish_of(task_id).end.reason, EndReason::Completed);
    assert_eq!(server.lines_of(task_id), ["once"]);
    stop(worker);
}

#[test]
fn a_task_whose_shim_was_killed_ends_and_nothing_of_it_is_left() {
    let server = Server::new();
    let worker = server.start_worker();
    let task_id = server.offer(shell("echo $$; echo $PPID; echo ready; sleep 1000"));
    server.until_line(task_id, "ready");
    let lines = server.lines_of(task_id);
    stop(worker);
    let killed = std::process::Command::new("kill").args(["-9", &lines[1]]).status().unwrap();
    assert!(killed.success());
    until("the shim to go", || !is_alive(&lines[1]));

    let worker = server.start_worker();
    assert_eq!(server.finish_of(task_id).end.reason, EndReason::Internal);
    assert!(!is_alive(&lines[0]));
    assert_eq!(server.lines_of(task_id), lines);
    stop(worker);
}

#[test]
fn remains_of_half_a_task_and_of_another_boot_are_removed() {
    let server = Server::new();
    let half = server.task_folder(gpulayer::clock::task_id());
    std::fs::create_dir_all(&half).unwrap();
    std::fs::write(half.join("task.json"), "{\"boot_id\":\"x\",\"assi").unwrap();
    let worker = server.start_worker();
    assert_eq!(server.run(shell("true")).1.end.reason, EndReason::Completed);
    assert!(!half.exists());

    let go = server.folder().join("go");
    let task_id = server.offer(waits_for(&go));
    server.until_line(task_id, "before");
    let pid = server.lines_of(task_id)[0].clone();
    stop(worker);
    let task_file = server.task_folder(task_id).join("task.json");
    let text = std::fs::read_to_string(&task_file).unwrap();
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::write(&task_file, text.replace(boot_id.trim(), "another-boot")).unwrap();
    let worker = server.start_worker();
    let resumed = server.until("the worker to resume", |record| record.resumes.first().cloned());
    assert_eq!(resumed.tasks, []);
    assert!(!server.task_folder(task_id).exists() && !is_alive(&pid));
    stop(worker);
}

#[test]
fn an_adopted_task_is_reported_as_executing_again() {
    let server = Server::new();
    let worker = server.start_worker();
    let go = server.folder().join("go");
    let task_id = server.offer(waits_for(&go));
    server.until_line(task_id, "before");
    stop(worker);
    let worker = server.start_worker();
    server.until("executing, told again", |record| {
        let executing = Report::Phase { phase: Phase::Executing };
        (record.reports.iter().filter(|item| item.report == executing).count() >= 2).then_some(())
    });
    std::fs::write(go, "").unwrap();
    assert_eq!(server.finish_of(task_id).end.reason, EndReason::Completed);
    stop(worker);
}

#[test]
fn what_a_shim_noticed_while_its_worker_was_away_is_told_by_the_next() {
    let server = Server::new();
    let worker = server.start_worker();
    let go = server.folder().join("go");
    let task_id = server.offer(waits_for(&go));
    server.until_line(task_id, "before");
    stop(worker);
    std::fs::write(go, "").unwrap();
    until("the program's end", || server.has_ended(task_id));
    // As if the kernel had done to it what no test can make it do everywhere.
    let path = server.task_folder(task_id).join("shim.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let (shim, record) = text.split_once('\n').unwrap();
    let mut record: serde_json::Value = serde_json::from_str(record).unwrap();
    record["oom_kills"] = 1.into();
    record["memory_not_held"] = true.into();
    record["lost_records"] = 5.into();
    record["duration"] = serde_json::json!({"secs": 60, "nanos": 0});
    record["cpu_throttling"] = serde_json::json!({"cpu_millis": 100, "periods": 10, "throttled_periods": 9});
    std::fs::write(&path, format!("{shim}\n{record}\n")).unwrap();
    let worker = server.start_worker();
    let finish = server.finish_of(task_id);
    assert_eq!(finish.end.reason, EndReason::Completed);
    let said: Vec<&str> = finish.warnings.iter().map(|warning| warning.detail.as_str()).collect();
    for part in [
        "held to 0.1 CPUs",
        "killed 1 of the task's processes",
        "did not take the memory limit",
        "last 5 lines",
    ] {
        assert!(said.iter().any(|detail| detail.contains(part)), "{part}: {said:?}");
    }
    stop(worker);
}
