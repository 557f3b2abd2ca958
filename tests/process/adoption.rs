//! Shims whose worker was killed, and tasks whose shim was.

use std::path::Path;
use std::time::Duration;

use gpulayer::process::{ExitRecord, ShimEvent, StopCause, Wait, holder, sweep};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{
    Bench, PATIENCE, end_of, event_of, is_running, noted_pids, pool_in, records_of, shims, until,
    until_printed,
};

const PATIENT: &str =
    "echo $$ >> pids; echo READY; while [ ! -e go ]; do sleep 0.01; done; echo BACK; exit 6";

fn sockets(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder.join("shims")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().ends_with(".sock")).count()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn a_running_task_is_adopted_by_the_next_worker() {
    let bench = Bench::new();
    let launch = bench.shell(PATIENT);
    let process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    drop(process);
    let folder = bench.kill_worker();
    assert!(holder(&launch.task_folder).unwrap().is_some());

    let pool = pool_in(folder.path());
    let mut adopted = pool.adopt().await.unwrap();
    assert_eq!(adopted.len(), 1);
    let mut adopted = adopted.remove(0);
    assert_eq!((adopted.task_id, &adopted.task_folder), (launch.task_id, &launch.task_folder));
    let pid = noted_pids(&launch.task_folder)[0];
    assert_eq!(event_of(&mut adopted.process).await, Some(ShimEvent::Started { pid }));
    assert_eq!(event_of(&mut adopted.process).await, Some(ShimEvent::Logged { through_n: 1 }));
    std::fs::write(launch.workspace.join("go"), "").unwrap();
    let exit = end_of(&mut adopted.process).await;
    assert_eq!((exit.wait, exit.last_n), (Wait::Exited { code: 6 }, 2));
    assert_eq!(holder(&launch.task_folder).unwrap(), None);
    // It is not of this worker's build, perhaps: it goes.
    until("the adopted shim is gone", || sockets(folder.path()) == 0).await;
}

fn is_stopped(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
}

/// Stops its own shim.
const RUDE: &str = "kill -STOP $PPID; echo $$ >> pids; exec sleep 600";

#[tokio::test]
async fn a_task_that_stops_its_shim_can_be_stopped_all_the_same() {
    let bench = Bench::new();
    let launch = bench.shell(RUDE);
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    until("it has stopped its shim", || launch.workspace.join("pids").exists()).await;
    until("the shim stands still", || shims(bench.path()).iter().any(|pid| is_stopped(*pid))).await;
    process.stop(true).await.unwrap();
    assert!(matches!(end_of(&mut process).await.wait, Wait::Signalled { .. }));
}

#[tokio::test]
async fn a_stopped_shim_is_woken_and_adopted() {
    let bench = Bench::new();
    let launch = bench.shell(RUDE);
    let process = bench.pool.launch(launch.clone()).await.unwrap();
    until("it has stopped its shim", || launch.workspace.join("pids").exists()).await;
    drop(process);
    let folder = bench.kill_worker();
    let pool = pool_in(folder.path());
    let mut adopted = pool.adopt().await.unwrap();
    assert_eq!(adopted.len(), 1);
    adopted[0].process.stop(true).await.unwrap();
    assert!(matches!(end_of(&mut adopted[0].process).await.wait, Wait::Signalled { .. }));
}

#[tokio::test]
async fn a_task_without_a_worker_ends_by_itself_and_its_shim_too() {
    let bench = Bench::new();
    let launch = bench.shell(PATIENT);
    bench.pool.prewarm(3).unwrap();
    until("three sockets", || sockets(bench.path()) == 3).await;
    let process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    drop(process);
    let folder = bench.kill_worker();
    until("the idle shims are gone", || sockets(folder.path()) == 1).await;
    std::fs::write(launch.workspace.join("go"), "").unwrap();
    until("the busy one is gone", || sockets(folder.path()) == 0).await;
    let exit = ExitRecord::read(&launch.task_folder).unwrap().unwrap();
    assert_eq!((exit.wait, exit.last_n), (Wait::Exited { code: 6 }, 2));
    assert_eq!(pool_in(folder.path()).adopt().await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_task_without_a_worker_for_too_long_is_stopped() {
    let bench = Bench::new();
    let mut launch = bench.shell(PATIENT);
    launch.orphan_timeout = Duration::from_millis(200);
    let process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    drop(process);
    let folder = bench.kill_worker();
    until("the end", || ExitRecord::read(&launch.task_folder).unwrap().is_some()).await;
    let exit = ExitRecord::read(&launch.task_folder).unwrap().unwrap();
    assert_eq!((exit.stop.unwrap().cause, exit.after_stop), (StopCause::Orphaned, true));
    assert_eq!(std::fs::read_to_string(launch.task_folder.join("stop")).unwrap(), "orphaned\n");
    drop(folder);
}

#[tokio::test]
async fn a_newer_connection_takes_over_and_dead_sockets_are_removed() {
    let bench = Bench::new();
    let launch = bench.shell(PATIENT);
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    drop(std::os::unix::net::UnixListener::bind(bench.path().join("shims/1.sock")).unwrap());
    let pool = pool_in(bench.path());
    let mut adopted = pool.adopt().await.unwrap();
    assert_eq!((adopted.len(), sockets(bench.path())), (1, 1));
    while !matches!(event_of(&mut process).await, Some(ShimEvent::ShimLost)) {}
    adopted[0].process.stop(true).await.unwrap();
    assert!(end_of(&mut adopted[0].process).await.after_stop);
}

#[tokio::test]
async fn after_a_killed_shim_a_sweep_leaves_nothing() {
    let bench = Bench::new();
    // One of them has cleared its environment; it is found as a child of one that has not.
    let launch = bench.shell(
        "trap '' TERM HUP INT; setsid sh -c 'echo $$ >> pids; sleep 60' & \
         (env -i sh -c 'echo $$ >> pids; /bin/sleep 60'; true) & \
         echo $$ >> pids; while [ $(wc -l < pids) -lt 3 ]; do sleep 0.01; done; echo READY; wait",
    );
    let other = bench.shell(PATIENT);
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    let mut bystander = bench.pool.launch(other.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    until_printed(&other.task_folder, "READY").await;
    let shim = holder(&launch.task_folder).unwrap().unwrap();
    // All that can be blocked is.
    for number in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::PIPE] {
        signal(shim, number);
    }
    assert!(records_of(&launch.task_folder).len() == 1 && is_running(shim));
    signal(shim, Signal::KILL);
    while !matches!(event_of(&mut process).await, Some(ShimEvent::ShimLost)) {}
    until("the lock is free", || holder(&launch.task_folder).unwrap().is_none()).await;
    assert_eq!(ExitRecord::read(&launch.task_folder).unwrap(), None);
    let pids = noted_pids(&launch.task_folder);
    assert_eq!((pids.len(), pids.iter().all(|pid| is_running(*pid))), (3, true));
    let task_id = launch.task_id;
    let swept = tokio::task::spawn_blocking(move || sweep(&[task_id], PATIENCE)).await.unwrap().unwrap();
    assert!(swept >= 3, "{swept}");
    assert!(pids.iter().all(|pid| !is_running(*pid)));
    assert_eq!(sweep(&[task_id], PATIENCE).unwrap(), 0);

    std::fs::write(other.workspace.join("go"), "").unwrap();
    assert_eq!(end_of(&mut bystander).await.wait, Wait::Exited { code: 6 });
}

#[tokio::test]
async fn a_task_is_launched_once_from_its_folder() {
    let bench = Bench::new();
    let launch = bench.shell("echo ran");
    assert_eq!(bench.run(launch.clone()).await.exit.wait, Wait::Exited { code: 0 });
    let first = ExitRecord::read(&launch.task_folder).unwrap();
    let again = bench.run(launch.clone()).await.exit.wait;
    assert!(matches!(again, Wait::NotStarted { .. }), "{again:?}");
    assert_eq!(ExitRecord::read(&launch.task_folder).unwrap(), first);
    assert_eq!(records_of(&launch.task_folder).len(), 1);
}

#[tokio::test]
async fn a_worker_that_is_killed_right_after_a_launch_leaves_it_running_or_not_begun() {
    for pause_us in (0..6000).step_by(500) {
        let bench = Bench::new();
        let launch = bench.shell("echo ran");
        drop(bench.pool.launch(launch.clone()).await.unwrap());
        tokio::time::sleep(Duration::from_micros(pause_us)).await;
        let folder = bench.kill_worker();
        // The next worker, at once. What it is not given it may launch again, so nothing else may run.
        let pool = pool_in(folder.path());
        let adopted = pool.adopt().await.unwrap();
        let begun = launch.task_folder.join("shim.json").exists();
        for mut adopted in adopted {
            assert_eq!(end_of(&mut adopted.process).await.wait, Wait::Exited { code: 0 });
        }
        until("every shim is gone", || sockets(folder.path()) == 0).await;
        if !begun {
            assert!(!launch.task_folder.join("shim.json").exists(), "begun behind the worker's back");
        }
    }
}
