//! Programs that end by themselves.

use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::TaskId;
use gpulayer::contract::protocol::Report;
use gpulayer::contract::spec::{Command, JobSpec, Run, Workload};
use gpulayer::contract::worker::Phase;

use crate::server::{Server, shell, stop, until};

fn kinds(server: &Server, task_id: TaskId) -> Vec<&'static str> {
    server.change(|record| {
        let of_task = record.reports.iter().filter(|item| item.task_id == task_id);
        let kind = |report: &Report| match report {
            Report::Start => "start",
            Report::Phase { phase: Phase::Executing } => "executing",
            Report::Phase { .. } => "phase",
            Report::Decline { .. } => "decline",
            Report::Stuck { .. } => "stuck",
            Report::Progress { .. } => "progress",
            Report::Checkpoint { .. } => "checkpoint",
            Report::Yielded { .. } => "yielded",
            Report::Finish(_) => "finish",
        };
        of_task.map(|item| kind(&item.report)).collect()
    })
}

#[test]
fn a_program_runs_and_leaves_nothing_behind() {
    let server = Server::new();
    let worker = server.start_worker();
    let (task_id, finish) = server.run(shell("echo out; echo err >&2; printf last"));
    assert_eq!(finish.end.reason, EndReason::Completed);
    assert_eq!(finish.end.exit_code, Some(0));
    assert!(!finish.after_stop);
    assert!(finish.end.duration_s.is_some());
    let mut lines = server.lines_of(task_id);
    lines.sort();
    assert_eq!(lines, ["err", "last", "out"]);
    let kinds = kinds(&server, task_id);
    assert_eq!((kinds.first(), kinds.last()), (Some(&"start"), Some(&"finish")));
    until("the folder to go", || !server.task_folder(task_id).exists());
    server.until("a heartbeat without it", |record| record.beats.last()?.tasks.is_empty().then_some(()));
    stop(worker);
}

#[test]
fn a_program_that_runs_for_a_while_is_reported_as_executing() {
    let server = Server::new();
    let worker = server.start_worker();
    let go = server.folder().join("go");
    let task_id = server.offer(shell(&format!("until [ -e {} ]; do sleep 0.01; done", go.display())));
    server.until("executing", |record| {
        let executing = Report::Phase { phase: Phase::Executing };
        record.reports.iter().any(|item| item.report == executing).then_some(())
    });
    server.until("a heartbeat that says so", |record| {
        let held = record.beats.last()?.tasks.first().copied()?;
        (held.phase == Some(Phase::Executing) && held.epoch == 1).then_some(())
    });
    std::fs::write(go, "").unwrap();
    assert_eq!(server.finish_of(task_id).end.reason, EndReason::Completed);
    assert_eq!(kinds(&server, task_id), ["start", "executing", "finish"]);
    stop(worker);
}

#[test]
fn the_end_says_what_went_wrong() {
    let server = Server::new();
    let worker = server.start_worker();
    let in_folder = |cwd: &str| {
        let run = Run::Argv(vec!["pwd".to_owned()]);
        JobSpec::new(Workload::Command(Command { run, cwd: Some(cwd.to_owned()) }))
    };
    for (spec, reason, exit_code, said) in [
        (shell("exit 3"), EndReason::ExitNonzero, Some(3), "status 3"),
        (shell("kill -SEGV $$"), EndReason::Signalled, None, "SIGSEGV"),
        (shell("false | true"), EndReason::ExitNonzero, Some(1), "status 1"),
        (JobSpec::command(["no-such-program"]), EndReason::ExecutableNotFound, Some(127), "no-such-program"),
        (JobSpec::command(["/etc/passwd"]), EndReason::ExecutableNotFound, Some(126), "/etc/passwd"),
        (in_folder("nowhere"), EndReason::PrepareFailed, None, "nowhere"),
    ] {
        let (_, finish) = server.run(spec);
        assert_eq!((finish.end.reason, finish.end.exit_code), (reason, exit_code), "{:?}", finish.end);
        let detail = finish.end.detail.unwrap_or_default();
        assert!(detail.contains(said), "{detail}");
    }
    stop(worker);
}

#[test]
fn many_tasks_run_side_by_side_and_each_is_reported_once_and_in_order() {
    let server = Server::new();
    let worker = server.start_worker();
    let tasks: Vec<TaskId> = (0..60).map(|n| server.offer(shell(&format!("echo {n}")))).collect();
    for (n, task_id) in tasks.iter().enumerate() {
        assert_eq!(server.finish_of(*task_id).end.reason, EndReason::Completed);
        assert_eq!(server.lines_of(*task_id), [n.to_string()]);
        let kinds = kinds(&server, *task_id);
        assert!(kinds == ["start", "finish"] || kinds == ["start", "executing", "finish"], "{kinds:?}");
    }
    stop(worker);
}

#[test]
fn a_long_log_arrives_whole_and_before_the_finish() {
    let server = Server::new();
    let worker = server.start_worker();
    let (task_id, finish) = server.run(shell("seq 1 25000"));
    assert_eq!(finish.end.reason, EndReason::Completed);
    let expected: Vec<String> = (1..=25_000).map(|n| n.to_string()).collect();
    assert!(server.lines_of(task_id) == expected);
    stop(worker);
}

#[test]
fn results_wait_for_a_server_that_is_away() {
    let server = Server::new();
    let worker = server.start_worker();
    let go = server.folder().join("go");
    let text = format!("echo before; until [ -e {} ]; do sleep 0.01; done; echo after", go.display());
    let task_id = server.offer(shell(&text));
    server.until_line(task_id, "before");
    server.change(|record| record.unreachable = true);
    std::fs::write(go, "").unwrap();
    until("the program's end", || server.has_ended(task_id));
    assert_eq!(server.lines_of(task_id), ["before"]);
    server.change(|record| record.unreachable = false);
    assert_eq!(server.finish_of(task_id).end.reason, EndReason::Completed);
    assert_eq!(server.lines_of(task_id), ["before", "after"]);
    stop(worker);
}

#[test]
fn a_task_sees_the_allowed_environment_and_no_gpu() {
    let server = Server::new();
    let worker = server.start_worker();
    let mut spec = shell("env -0 | sort -z | tr '\\0' '\\n'; cat");
    spec.env.insert("MINE".into(), "yes".into());
    spec.env.insert("PYTHONUNBUFFERED".into(), String::new());
    let (task_id, finish) = server.run(spec);
    assert_eq!(finish.end.reason, EndReason::Completed, "{:?}", finish.end);
    let lines = server.lines_of(task_id);
    let has = |line: &str| lines.iter().any(|found| found == line);
    assert!(has("CUDA_VISIBLE_DEVICES=") && has("CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{lines:?}");
    assert!(has("MINE=yes") && has("PYTHONUNBUFFERED=") && has("GPULAYER_ATTEMPT=1"), "{lines:?}");
    assert!(has(&format!("GPULAYER_TASK_ID={task_id}")), "{lines:?}");
    let workspace = server.task_folder(task_id).join("workspace");
    assert!(has(&format!("PWD={}", workspace.display())), "{lines:?}");
    // Cargo's variables are the worker's own business.
    assert!(!lines.iter().any(|line| line.starts_with("CARGO")), "{lines:?}");
    stop(worker);
}
