//! Tasks that somebody, or the clock, stops.

use gpulayer::client::worker_channel::SessionEnd;
use gpulayer::contract::end::EndReason;
use gpulayer::contract::protocol::{Finish, Orders, Report, StopOrder, StopReason};
use gpulayer::contract::quantity::Seconds;
use gpulayer::contract::spec::{JobSpec, Output};
use gpulayer::worker::{Farewell, WorkerEnd};

use crate::server::{Server, is_alive, shell, stop, until};

#[test]
fn a_task_that_was_cancelled_before_its_start_executes_nothing() {
    for refused in [true, false] {
        let server = Server::new();
        let worker = server.start_worker();
        let marker = server.folder().join("ran");
        server.change(|record| {
            record.hold_starts = true;
            record.refuse_starts = refused;
        });
        let task_id = server.offer(shell(&format!("touch {}", marker.display())));
        server.until("the task to be held", |record| {
            record.beats.last()?.tasks.iter().any(|held| held.task_id == task_id).then_some(())
        });
        server.change(|record| record.orders.cancel_task_ids = vec![task_id]);
        let beats = server.change(|record| record.beats.len());
        // The order rides on the answer to a heartbeat; the one after it is sent when it has arrived.
        server.until("the order to arrive", |record| (record.beats.len() > beats + 2).then_some(()));
        server.change(|record| record.hold_starts = false);
        if refused {
            until("the folder to go", || !server.task_folder(task_id).exists());
            server.until("a start and nothing else", |record| {
                let of_task: Vec<_> = record.reports.iter().filter(|item| item.task_id == task_id).collect();
                (of_task.len() == 1 && of_task[0].report == Report::Start).then_some(())
            });
        } else {
            let finish = server.finish_of(task_id);
            assert_eq!((finish.end.reason, finish.after_stop), (EndReason::Cancelled, true));
        }
        assert!(!marker.exists());
        stop(worker);
    }
}

#[test]
fn a_cancelled_program_gets_its_signal_and_its_grace() {
    let server = Server::new();
    let worker = server.start_worker();
    // No child, which would get the group's signal as well, and no moment at which the signal could be missed.
    let text = "import signal\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n\
        print('ready', flush=True)\n\
        signal.sigwait({signal.SIGTERM})\n\
        print('stopping')";
    let task_id = server.offer(JobSpec::command(["python3", "-c", text]));
    server.until_line(task_id, "ready");
    server.change(|record| record.orders.cancel_task_ids = vec![task_id]);
    let finish = server.finish_of(task_id);
    assert_eq!((finish.end.reason, finish.after_stop), (EndReason::Cancelled, true));
    assert_eq!(finish.end.exit_code, Some(0));
    assert_eq!(server.lines_of(task_id), ["ready", "stopping"]);
    stop(worker);
}

#[test]
fn a_kill_does_not_wait_for_a_program_that_will_not_hear() {
    let server = Server::new();
    let worker = server.start_worker();
    let mut spec = shell("trap '' TERM; setsid sleep 1000 & echo $!; echo ready; wait");
    spec.grace_s = Seconds::new(1000);
    let task_id = server.offer(spec);
    server.until_line(task_id, "ready");
    server.change(|record| record.orders.cancel_task_ids = vec![task_id]);
    until("the stop to begin", || server.task_folder(task_id).join("stop").exists());
    server.change(|record| record.orders.kill_task_ids = vec![task_id]);
    let finish = server.finish_of(task_id);
    assert_eq!((finish.end.reason, finish.end.signal.as_deref()), (EndReason::Cancelled, Some("SIGKILL")));
    assert!(!is_alive(&server.lines_of(task_id)[0]), "its child is still there");
    stop(worker);
}

#[test]
fn a_program_that_runs_too_long_is_timed_out() {
    let server = Server::new();
    let worker = server.start_worker();
    let mut spec = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done");
    spec.timeout_s = Some(Seconds::from_millis(200));
    spec.grace_s = Seconds::from_millis(100);
    let (_, finish) = server.run(spec);
    assert_eq!((finish.end.reason, finish.after_stop), (EndReason::TimedOut, true));
    let both = "ran longer than timeout_s = 0.2; it did not end within grace_s = 0.1 of its stop signal and was killed";
    assert_eq!(finish.end.detail.as_deref(), Some(both));
    stop(worker);
}

#[test]
fn a_revoked_worker_kills_its_tasks_and_leaves() {
    let server = Server::new();
    let worker = server.start_worker();
    let task_id = server.offer(shell("echo $$; echo ready; sleep 1000"));
    server.until_line(task_id, "ready");
    let pid = server.lines_of(task_id)[0].clone();
    assert!(is_alive(&pid));
    server.change(|record| record.orders = Orders { revoked: true, ..Orders::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(worker.ended());
    assert_eq!(worker.stop(Farewell::Silent).unwrap(), WorkerEnd::SessionOver(SessionEnd::Revoked));
    assert!(!is_alive(&pid));
    let finishes = server.change(|record| {
        record.reports.iter().filter(|item| matches!(item.report, Report::Finish(_))).count()
    });
    assert_eq!(finishes, 0);
}

#[test]
fn a_stop_in_a_hurry_leaves_outputs_behind_that_cannot_be_sent_and_names_them() {
    let server = Server::new();
    let worker = server.start_worker();
    server.change(|record| record.hold_publishes = true);
    let output = |path: &str| Output { path: path.to_owned(), name: None, optional: false };
    let outputs = vec![output("a"), output("b")];
    let task_id = server.offer(JobSpec { outputs, ..shell("echo 1 > a; echo 2 > b") });
    server.until("an output to be on its way", |record| (record.publishes > 0).then_some(()));
    server.change(|record| record.orders.cancel_task_ids = vec![task_id]);
    let beats = server.change(|record| record.beats.len());
    server.until("the order to arrive", |record| (record.beats.len() > beats + 2).then_some(()));
    let finished =
        server.change(|record| record.reports.iter().any(|item| matches!(item.report, Report::Finish(_))));
    assert!(!finished, "with grace the outputs are waited for");
    server.change(|record| record.orders.kill_task_ids = vec![task_id]);
    let finish = server.finish_of(task_id);
    assert_eq!((finish.end.reason, finish.after_stop), (EndReason::MissingOutput, false));
    assert_eq!((finish.end.exit_code, finish.warnings.len()), (Some(0), 2), "{finish:?}");
    let left: Vec<_> = finish.undeclared.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(left, ["a", "b"], "kept for whoever wants them");
    stop(worker);
}

/// Leaves a checkpoint that it does not count, and sleeps.
const LEAVES_ONE: &str =
    r#"mkdir "$GPULAYER_CHECKPOINT_DIR"; echo 1 > "$GPULAYER_CHECKPOINT_DIR/step"; echo ready; "#;

#[test]
fn nobody_in_a_hurry_waits_for_a_checkpoint() {
    let server = Server::new();
    let worker = server.start_worker();
    // On its way when the order comes.
    server.change(|record| record.hold_publishes = true);
    let task_id = server.offer(shell(&format!("{LEAVES_ONE} exit 3")));
    server.until("the checkpoint to be on its way", |record| (record.publishes > 0).then_some(()));
    server.change(|record| record.orders.kill_task_ids = vec![task_id]);
    let finish = server.finish_of(task_id);
    assert_eq!((finish.end.reason, finish.end.exit_code), (EndReason::ExitNonzero, Some(3)));
    let said = |finish: &Finish| {
        assert_eq!(finish.warnings.len(), 1, "{finish:?}");
        finish.warnings[0]
            .detail
            .starts_with("the checkpoint could not be kept: the task was ordered to stop")
    };
    assert!(said(&finish), "{finish:?}");
    // There when it was cancelled at once: not even begun.
    server.change(|record| (record.hold_publishes, record.publishes) = (false, 0));
    let task_id = server.offer(shell(&format!("{LEAVES_ONE} sleep 1000")));
    server.until_line(task_id, "ready");
    let cancel = StopOrder { task_id, cause: StopReason::Cancelled, now: true };
    server.change(|record| record.orders.stops = vec![cancel]);
    let finish = server.finish_of(task_id);
    assert!(finish.end.reason == EndReason::Cancelled && said(&finish), "{finish:?}");
    assert_eq!(server.change(|record| record.publishes), 0);
    // Another attempt follows an eviction, however much of a hurry it is in.
    let task_id = server.offer(shell(&format!("{LEAVES_ONE} sleep 1000")));
    server.until_line(task_id, "ready");
    let evict = StopOrder { task_id, cause: StopReason::Evicted, now: true };
    server.change(|record| record.orders.stops = vec![evict]);
    assert_eq!(server.finish_of(task_id).warnings, []);
    assert_eq!(server.change(|record| record.publishes), 1);
    stop(worker);
}

#[test]
fn nobody_in_a_hurry_waits_for_a_long_result_and_a_short_one_comes() {
    let server = Server::new();
    let worker = server.start_worker();
    server.change(|record| record.hold_publishes = true);
    for (length, comes) in [(100_000, false), (10, true)] {
        let payload = format!(r#"{{"args": ["x", {length}]}}"#);
        let spec = serde_json::json!({"workload": {"function": {
            "serializer": "json", "entrypoint": "operator:mul", "payload": payload}}});
        let task_id = server.offer(serde_json::from_value(spec).unwrap());
        if !comes {
            server.until("the result to be on its way", |record| (record.publishes > 0).then_some(()));
            server.change(|record| record.orders.kill_task_ids = vec![task_id]);
        }
        let finish = server.finish_of(task_id);
        assert_eq!(
            (finish.result.is_some(), finish.warnings.len()),
            (comes, usize::from(!comes)),
            "{finish:?}"
        );
    }
    stop(worker);
}
