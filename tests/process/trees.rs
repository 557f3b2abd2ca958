//! How tasks are ended by others, and that nothing of their trees is left.

use std::time::{Duration, Instant};

use gpulayer::process::{Launch, ShimEvent, StopCause, Wait};

use crate::bench::{Bench, end_of, event_of, is_running, noted_pids, until_printed};

/// A tree that does not want to die: deaf, in several sessions, one of it without a living parent.
const GHOSTS: &str = r#"
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
def haunt():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        time.sleep(60)
def daemon():
    os.setsid()
    if os.fork() == 0:
        haunt()
    os._exit(0)
for kind in (haunt, daemon, lambda: (os.setsid(), haunt()), lambda: (os.close(1), os.close(2), haunt())):
    if os.fork() == 0:
        kind()
while not os.path.exists("pids") or len(open("pids").read().split("\n")) < 5:
    time.sleep(0.01)
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\n")
print("READY", flush=True)
"#;

fn waiting_ghosts(bench: &Bench) -> Launch {
    bench.python(&format!("{GHOSTS}\nwhile True:\n    time.sleep(60)\n"))
}

fn assert_gone(launch: &Launch) {
    let pids = noted_pids(&launch.task_folder);
    assert_eq!(pids.len(), 5, "the program did not get that far");
    let left: Vec<u32> = pids.into_iter().filter(|pid| is_running(*pid)).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[tokio::test]
async fn a_stop_ends_the_whole_tree_after_its_grace() {
    let bench = Bench::new();
    let mut launch = waiting_ghosts(&bench);
    launch.grace = Duration::from_millis(300);
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    let begun = Instant::now();
    process.stop(false).await.unwrap();
    let exit = end_of(&mut process).await;
    assert!(begun.elapsed() >= launch.grace);
    assert_gone(&launch);
    assert_eq!(exit.wait, Wait::Signalled { signal: 9, name: "SIGKILL".into() });
    assert_eq!((exit.stop.unwrap().cause, exit.after_stop), (StopCause::Requested, true));
    assert_eq!(std::fs::read_to_string(launch.task_folder.join("stop")).unwrap(), "stopped\n");
    assert_eq!(event_of(&mut process).await, None);
}

#[tokio::test]
async fn a_timeout_counts_from_the_exec_and_does_the_same() {
    let bench = Bench::new();
    let mut launch =
        bench.shell("trap '' TERM; echo $$ > pids; setsid sleep 60 & echo $! >> pids; wait; wait");
    launch.grace = Duration::from_millis(100);
    launch.timeout = Some(Duration::from_millis(900));
    let ended = bench.run(launch.clone()).await;
    let pids = noted_pids(&launch.task_folder);
    assert_eq!((pids.len(), pids.iter().any(|pid| is_running(*pid))), (2, false));
    assert_eq!((ended.exit.stop.unwrap().cause, ended.exit.after_stop), (StopCause::Timeout, true));
    assert!(ended.exit.duration >= Duration::from_secs(1), "{:?}", ended.exit.duration);
    assert_eq!(std::fs::read_to_string(launch.task_folder.join("stop")).unwrap(), "timed_out\n");
}

#[tokio::test]
async fn the_rest_of_a_tree_goes_with_the_process_that_ends_by_itself() {
    let bench = Bench::new();
    let launch = bench.python(&format!("{GHOSTS}\nsys.exit(7)\n"));
    let ended = bench.run(launch.clone()).await;
    assert_gone(&launch);
    assert_eq!(ended.exit.wait, Wait::Exited { code: 7 });
    assert_eq!((ended.exit.stop, ended.exit.after_stop), (None, false));
    assert_eq!(ended.texts(), ["READY"]);
}

#[tokio::test]
async fn a_child_that_holds_the_pipe_does_not_hold_the_end() {
    let bench = Bench::new();
    let begun = Instant::now();
    let ended = bench.run(bench.shell("sleep 300 & echo parent done; exit 0")).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!((ended.texts(), ended.exit.wait), (vec!["parent done".to_owned()], Wait::Exited { code: 0 }));
}

#[tokio::test]
async fn a_program_that_ends_within_its_grace_decides_how() {
    let bench = Bench::new();
    for signal in ["TERM", "USR1"] {
        let mut launch = bench.shell(&format!(
            "trap 'cat ../stop; echo; exit 9' {signal}; echo READY; while :; do sleep 0.01; done"
        ));
        launch.stop_signal = serde_json::from_value(signal.into()).unwrap();
        let folder = launch.task_folder.clone();
        let mut process = bench.pool.launch(launch).await.unwrap();
        until_printed(&folder, "READY").await;
        process.stop(false).await.unwrap();
        let exit = end_of(&mut process).await;
        assert_eq!((exit.wait, exit.after_stop), (Wait::Exited { code: 9 }, true));
        let texts: Vec<String> =
            crate::bench::records_of(&folder).into_iter().map(|record| record.text).collect();
        // A shell may also remark on its killed child.
        assert!(texts.contains(&"stopped".to_owned()), "{texts:?}");
    }
}

#[tokio::test]
async fn a_second_harder_stop_shortens_the_first() {
    let bench = Bench::new();
    let mut launch = waiting_ghosts(&bench);
    launch.grace = Duration::from_secs(3600);
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    process.stop(false).await.unwrap();
    process.stop(false).await.unwrap();
    process.stop(true).await.unwrap();
    let exit = end_of(&mut process).await;
    assert_gone(&launch);
    assert!(exit.after_stop);
}

#[tokio::test]
async fn a_stop_at_any_moment_around_start_and_end_is_one_end() {
    let bench = Bench::new();
    for pause_us in (0..4000).step_by(200) {
        let mut process = bench.pool.launch(bench.shell("exit 3")).await.unwrap();
        tokio::time::sleep(Duration::from_micros(pause_us)).await;
        process.stop(pause_us % 400 == 0).await.unwrap();
        let exit = end_of(&mut process).await;
        match exit.wait {
            Wait::Exited { code: 3 } => assert_eq!(exit.after_stop, exit.stop.is_some()),
            Wait::Signalled { signal: 9 | 15, .. } => assert!(exit.after_stop),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_stopped_program_hears_the_stop_signal() {
    let bench = Bench::new();
    let mut launch =
        bench.shell("trap 'exit 4' TERM; echo READY; kill -STOP $$; while :; do sleep 0.01; done");
    launch.grace = Duration::from_secs(3600);
    let folder = launch.task_folder.clone();
    let mut process = bench.pool.launch(launch).await.unwrap();
    until_printed(&folder, "READY").await;
    process.stop(false).await.unwrap();
    assert_eq!(end_of(&mut process).await.wait, Wait::Exited { code: 4 });
}

#[tokio::test]
async fn a_fork_storm_leaves_nothing() {
    let bench = Bench::new();
    // The first ends by itself while its children fork on, the second is killed while it forks.
    let storm = r#"
import os, time
open("pids", "w").write(f"{os.getpid()}\n")
for _ in range(40):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                time.sleep(0.02)
                os._exit(0)
print("STORM", flush=True)
"#;
    for tail in ["", "while True:\n    time.sleep(60)\n"] {
        let launch = bench.python(&format!("{storm}{tail}"));
        let task = format!("GPULAYER_TASK_ID={}", launch.task_id);
        let mut process = bench.pool.launch(launch.clone()).await.unwrap();
        if !tail.is_empty() {
            until_printed(&launch.task_folder, "STORM").await;
            process.stop(true).await.unwrap();
        }
        end_of(&mut process).await;
        assert_eq!(processes_with(&task), Vec::<u32>::new());
    }
}

fn processes_with(variable: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    })
    .collect()
}

#[tokio::test]
async fn a_start_is_told_with_the_pid() {
    let bench = Bench::new();
    let launch = bench.shell("echo $$ > pids; echo READY; exec sleep 60");
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    let Some(ShimEvent::Started { pid }) = event_of(&mut process).await else { panic!("no start") };
    until_printed(&launch.task_folder, "READY").await;
    assert_eq!(noted_pids(&launch.task_folder), [pid]);
    process.stop(true).await.unwrap();
    end_of(&mut process).await;
    assert!(!is_running(pid));
}
