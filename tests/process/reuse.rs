//! One shim, many tasks.

use gpulayer::process::Wait;
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, end_of, is_running, shims, until};

fn open_descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[tokio::test]
async fn a_hundred_tasks_leave_their_shim_as_it_was() {
    let bench = Bench::new();
    bench.run(bench.launch_of(["true"])).await;
    let [shim] = shims(bench.path())[..] else { panic!("{:?}", shims(bench.path())) };
    let before = open_descriptors(shim);
    for index in 0..100 {
        let ended = match index % 4 {
            0 => bench.run(bench.shell(&format!("echo {index}; exit {index}"))).await,
            1 => bench.run(bench.shell(&format!("sleep 60 & exit {index}"))).await,
            2 => bench.run(bench.launch_of(["no-such-program"])).await,
            _ => bench.run(bench.shell(&format!("exit {index}"))).await,
        };
        match ended.exit.wait {
            Wait::Exited { code } => assert_eq!(code, index),
            other => assert!(index % 4 == 2, "{other:?}"),
        }
    }
    assert_eq!(shims(bench.path()), [shim]);
    assert_eq!(open_descriptors(shim), before);
    let children = std::fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).unwrap();
    assert_eq!(children, "");
}

#[tokio::test]
async fn tasks_at_the_same_time_have_shims_of_their_own() {
    let bench = Bench::new();
    let mut running = Vec::new();
    for code in 0..8 {
        running.push(bench.pool.launch(bench.shell(&format!("sleep 0.2; exit {code}"))).await.unwrap());
    }
    for (code, process) in running.iter_mut().enumerate() {
        assert_eq!(end_of(process).await.wait, Wait::Exited { code: code as i32 });
    }
    until("all but the four to keep are gone", || shims(bench.path()).len() == 4).await;
}

#[tokio::test]
async fn a_killed_idle_shim_is_not_used_and_leaves_no_zombie() {
    let bench = Bench::new();
    bench.pool.prewarm(1).unwrap();
    until("its socket", || shims(bench.path()).len() == 1).await;
    let killed = shims(bench.path())[0];
    kill_process(Pid::from_raw(killed as i32).unwrap(), Signal::KILL).unwrap();
    until("it is reaped", || !std::path::Path::new(&format!("/proc/{killed}")).exists()).await;
    assert_eq!(bench.run(bench.shell("exit 2")).await.exit.wait, Wait::Exited { code: 2 });
    assert!(!is_running(killed));
}
