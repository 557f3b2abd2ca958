//! Control groups, as far as this host has them: limits that hold, trees that cannot hide, and nothing left behind.
//!
//! A test that needs what the host does not have says so on standard error, which `.config/nextest.toml` shows even
//! when the test passes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gpulayer::contract::worker::{EnforcedLimits, TreeKill};
use gpulayer::process::{Launch, Limits, ShimEvent, ShimPool, StopCause, Wait, holder, sweep};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{
    Bench, PATIENCE, end_of, event_of, is_running, noted_pids, pool_in, shims, until, until_printed,
};
use crate::frozen::Frozen;

const MIB: u64 = 1 << 20;

/// Takes memory in a child until it is killed; the parent then exits with 1.
const HUNGRY: &str = "
import os, subprocess, sys
if len(sys.argv) == 1:
    print('child ended with', subprocess.run([sys.executable, '-c', open('hungry.py').read(), 'child']).returncode)
    sys.exit(1)
keep = []
while True:
    keep.append(bytearray(os.urandom(1 << 20)) * 4)
";

fn hungry(bench: &Bench, memory_bytes: Option<u64>) -> Launch {
    let mut launch = bench.launch_of(["python3", "hungry.py"]);
    std::fs::write(launch.workspace.join("hungry.py"), HUNGRY).unwrap();
    launch.limits = Limits { memory_bytes, ..Limits::default() };
    launch
}

/// Whether the host has what a test needs.
fn has(bench: &Bench, what: &str, needs: impl Fn(EnforcedLimits) -> bool) -> bool {
    let enforced = bench.pool.enforced();
    let has = needs(enforced);
    if !has {
        eprintln!("NOT TESTED: this host gives no {what} to this user ({enforced:?})");
    }
    has
}

/// The folders of a process' groups, as far as they are a worker's.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter(|path| path.contains("/gpulayer-")).map(PathBuf::from).collect()
}

fn base_folders(worker_folder: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(worker_folder.join("groups")).unwrap_or_default();
    text.lines().map(PathBuf::from).collect()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn a_child_killed_for_want_of_memory_is_seen_although_its_parent_exits() {
    let bench = Bench::new();
    if !has(&bench, "memory limits", |limits| limits.memory) {
        return;
    }
    let ended = bench.run(hungry(&bench, Some(64 * MIB))).await;
    assert_eq!(ended.exit.wait, Wait::Exited { code: 1 });
    assert_eq!(ended.texts(), ["child ended with -9"]);
    let exit = ended.exit;
    assert_eq!((exit.memory_limit_bytes, exit.oom_kills), (Some(64 * MIB), Some(1)));
    let peak = exit.peak_memory_bytes.unwrap();
    assert!((60 * MIB..=64 * MIB).contains(&peak), "{peak}");
    assert!(exit.oom_killed_after.is_some_and(|after| after <= exit.duration), "{:?}", exit.oom_killed_after);
}

#[tokio::test]
async fn a_group_that_is_used_again_says_nothing_of_the_task_before() {
    let bench = Bench::new();
    if !has(&bench, "memory limits", |limits| limits.memory) {
        return;
    }
    bench.run(bench.launch_of(["true"])).await;
    let first = shims(bench.path());
    bench.run(hungry(&bench, Some(48 * MIB))).await;
    // Much page cache is left in the group by this one.
    let mut cached = bench.shell("head -c 30000000 /dev/zero > left; cat left > /dev/null");
    cached.limits.memory_bytes = Some(48 * MIB);
    assert!(bench.run(cached).await.exit.peak_memory_bytes.unwrap() > 24 * MIB);
    let mut small = bench.launch_of(["true"]);
    small.limits.memory_bytes = Some(48 * MIB);
    let exit = bench.run(small).await.exit;
    assert_eq!((exit.oom_kills, exit.oom_killed_after), (Some(0), None));
    let peak = exit.peak_memory_bytes.unwrap();
    assert!(peak < 20 * MIB, "{peak}");
    let exit = bench.run(bench.launch_of(["true"])).await.exit;
    assert_eq!((exit.memory_limit_bytes, exit.oom_kills), (None, Some(0)));
    // And the limit is gone with it.
    let exit = bench.run(bench.python("keep = bytearray(96 << 20)")).await.exit;
    assert_eq!(exit.wait, Wait::Exited { code: 0 });
    if shims(bench.path()) != first {
        eprintln!("NOT TESTED: this host is so slow that a task outlived its second, and its shim");
    }
}

#[tokio::test]
async fn what_a_task_leaves_in_memory_does_not_count_for_the_next_one() {
    let bench = Bench::new();
    if !has(&bench, "memory limits", |limits| limits.memory) {
        return;
    }
    let left = PathBuf::from(format!("/dev/shm/gpulayer-test-{}", std::process::id()));
    bench.run(bench.shell(&format!("head -c 50000000 /dev/zero > {}", left.display()))).await;
    let mut innocent = bench.python("keep = bytearray(30 << 20)");
    innocent.limits.memory_bytes = Some(64 * MIB);
    let exit = bench.run(innocent).await.exit;
    std::fs::remove_file(left).unwrap();
    assert_eq!(exit.wait, Wait::Exited { code: 0 });
    assert_eq!((exit.memory_limit_bytes, exit.memory_not_held), (Some(64 * MIB), false));
    assert_eq!(exit.oom_kills, Some(0));
}

#[tokio::test]
async fn a_task_gets_no_more_cpu_and_no_more_processes_than_it_may() {
    let bench = Bench::new();
    if has(&bench, "CPU limits", |limits| limits.cpu) {
        let mut busy = bench.python(
            "import os, time\nos.fork()\nend = time.monotonic() + 3\nwhile time.monotonic() < end:\n    pass\n",
        );
        busy.limits.cpu_millis = Some(200);
        let throttling = bench.run(busy).await.exit.cpu_throttling.unwrap();
        assert_eq!(throttling.cpu_millis, 200);
        // Two want 2 cores and get a fifth of one. On a machine that is busy with others, some periods pass without a
        // wait.
        assert!(throttling.throttled_periods > 0, "{throttling:?}");
    }
    if has(&bench, "process limits", |limits| limits.pids) {
        let mut many = bench.python(
            "import os, sys, time\nborn = 0\ntry:\n    while born < 100:\n        if os.fork() == 0:\n            time.sleep(60)\n\
             \x20       born += 1\nexcept BlockingIOError:\n    pass\nprint(born)\n",
        );
        many.limits.pids = Some(20);
        let ended = bench.run(many).await;
        let born: u32 = ended.texts()[0].parse().unwrap();
        assert!((10..20).contains(&born), "{born}");
    }
}

#[tokio::test]
async fn a_task_that_goes_on_has_its_group_for_itself_and_its_shim_is_not_used_again() {
    let bench = Bench::new();
    if !has(&bench, "control groups", |limits| limits.tree_kill != TreeKill::Walk) {
        return;
    }
    let launch = bench.shell("echo $$ > pids; echo READY; sleep 60 & wait");
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    let (shim, task) = (holder(&launch.task_folder).unwrap().unwrap(), noted_pids(&launch.task_folder)[0]);
    let group = groups_of(task);
    assert!(!group.is_empty());
    assert_eq!(groups_of(shim), group, "a short task is spared the move");
    until("the shim steps out", || groups_of(shim).iter().all(|group| group.ends_with("outside"))).await;
    assert_eq!(groups_of(task), group);
    process.stop(true).await.unwrap();
    let exit = end_of(&mut process).await;
    assert_eq!((exit.stop.unwrap().cause, is_running(task)), (StopCause::Requested, false));
    // Another is there before anybody needs it.
    until("the shim goes and another comes", || matches!(shims(bench.path())[..], [other] if other != shim))
        .await;
    assert_eq!(bench.run(bench.launch_of(["true"])).await.exit.wait, Wait::Exited { code: 0 });
}

/// A task of which one process hides from everything but its group: no mark, no parent, a session of its own.
fn hidden(bench: &Bench) -> Launch {
    bench.shell(
        "(env -i setsid sh -c 'echo $$ >> pids; exec /bin/sleep 300' &) ; \
         echo $$ >> pids; while [ $(wc -l < pids) -lt 2 ]; do sleep 0.01; done; echo READY; sleep 300",
    )
}

#[tokio::test]
async fn after_a_killed_shim_not_even_a_process_without_mark_and_parent_is_left() {
    let bench = Bench::new();
    if !has(&bench, "control groups", |limits| limits.tree_kill != TreeKill::Walk) {
        return;
    }
    let launch = hidden(&bench);
    let bystander = hidden(&bench);
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    let mut other = bench.pool.launch(bystander.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    until_printed(&bystander.task_folder, "READY").await;
    signal(holder(&launch.task_folder).unwrap().unwrap(), Signal::KILL);
    while !matches!(event_of(&mut process).await, Some(ShimEvent::ShimLost)) {}
    let pids = noted_pids(&launch.task_folder);
    assert_eq!((pids.len(), pids.iter().all(|pid| is_running(*pid))), (2, true));
    let (pool, task_id, folder) = (bench.pool.clone(), launch.task_id, launch.task_folder.clone());
    let swept = move || pool.sweep(task_id, &folder, PATIENCE);
    assert!(tokio::task::spawn_blocking(swept).await.unwrap().unwrap() >= 2);
    assert!(pids.iter().all(|pid| !is_running(*pid)));
    // A task whose shim lives is none of this.
    assert!(noted_pids(&bystander.task_folder).iter().all(|pid| is_running(*pid)));
    assert_eq!(bench.pool.sweep_orphans(PATIENCE).unwrap(), 0);
    assert!(noted_pids(&bystander.task_folder).iter().all(|pid| is_running(*pid)));
    other.stop(true).await.unwrap();
    end_of(&mut other).await;
}

#[tokio::test]
async fn a_start_sweeps_what_shims_of_an_earlier_one_left() {
    let bench = Bench::new();
    if !has(&bench, "control groups", |limits| limits.tree_kill != TreeKill::Walk) {
        return;
    }
    let launch = hidden(&bench);
    let process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    drop(process);
    let shim = holder(&launch.task_folder).unwrap().unwrap();
    let pids = noted_pids(&launch.task_folder);
    let folder = bench.kill_worker();
    signal(shim, Signal::KILL);
    until("the shim is gone", || !is_running(shim)).await;
    // The folder that would tell of the task is lost as well.
    std::fs::remove_dir_all(&launch.task_folder).unwrap();
    let pool = pool_in(folder.path());
    assert!(pool.adopt().await.unwrap().is_empty());
    assert!(pool.sweep_orphans(PATIENCE).unwrap() >= 2);
    assert!(pids.iter().all(|pid| !is_running(*pid)));
    let bases = base_folders(folder.path());
    assert!(!bases.is_empty());
    drop(pool);
    until("no group is left", || bases.iter().all(|base| !base.exists())).await;
}

#[tokio::test]
async fn the_last_shim_takes_the_groups_with_it() {
    let bench = Bench::new();
    if !has(&bench, "control groups", |limits| limits.tree_kill != TreeKill::Walk) {
        return;
    }
    bench.pool.prewarm(3).unwrap();
    bench.run(bench.shell("sleep 60 & exit 3")).await;
    let bases = base_folders(bench.path());
    assert!(bases.iter().any(|base| base.exists()));
    let folder = bench.kill_worker();
    until("no group is left", || bases.iter().all(|base| !base.exists())).await;
    drop(folder);
}

#[tokio::test]
async fn what_does_not_die_is_told_about_and_holds_up_nothing_else() {
    let bench = Bench::new();
    let launch = bench.shell("sleep 300 & echo $! > pids; echo READY; wait");
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    let stuck = noted_pids(&launch.task_folder)[0];
    let comm = format!("/proc/{stuck}/comm");
    until("the exec", || std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep")).await;
    let Some(frozen) = Frozen::freeze(stuck) else {
        eprintln!(
            "NOT TESTED: no process can be kept from dying here, {} is not there for this user",
            Frozen::ROOT
        );
        process.stop(true).await.unwrap();
        end_of(&mut process).await;
        return;
    };
    process.stop(true).await.unwrap();
    let told = loop {
        match event_of(&mut process).await {
            Some(ShimEvent::Stuck(processes)) => break processes,
            Some(ShimEvent::Started { .. } | ShimEvent::Logged { .. }) => {}
            other => panic!("ended although {stuck} lives: {other:?}"),
        }
    };
    assert_eq!((told.len(), told[0].pid, told[0].command.as_str()), (1, stuck, "sleep"), "{told:?}");
    assert!(!told[0].state.is_empty() && !told[0].waits_in.is_empty(), "{told:?}");
    // The next worker is told as well, and others go their way.
    let mut adopted = pool_in(bench.path()).adopt().await.unwrap();
    assert_eq!(adopted.len(), 1);
    let again = loop {
        match event_of(&mut adopted[0].process).await {
            Some(ShimEvent::Stuck(processes)) => break processes,
            Some(ShimEvent::Started { .. } | ShimEvent::Logged { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(again, told);
    assert_eq!(bench.run(bench.launch_of(["true"])).await.exit.wait, Wait::Exited { code: 0 });
    assert!(is_running(stuck));
    frozen.thaw();
    let exit = end_of(&mut adopted[0].process).await;
    assert!(exit.after_stop && !is_running(stuck), "{exit:?}");
}

#[tokio::test]
async fn the_kernel_is_told_to_end_tasks_before_their_shims() {
    let bench = Bench::new();
    let adjusted = |pid: u32| -> i32 {
        std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
    };
    let launch = bench.shell("echo $$ > pids; echo READY; sleep 60");
    let mut process = bench.pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    let (shim, task) = (holder(&launch.task_folder).unwrap().unwrap(), noted_pids(&launch.task_folder)[0]);
    assert!(adjusted(shim) < adjusted(task), "{} {}", adjusted(shim), adjusted(task));
    assert!(adjusted(shim) <= adjusted(std::process::id()));
    if adjusted(shim) >= 0 {
        eprintln!(
            "NOT TESTED: this user may not lower oom_score_adj; tasks are put forward instead, which was tested"
        );
    }
    process.stop(true).await.unwrap();
    end_of(&mut process).await;
}

#[tokio::test]
async fn without_groups_trees_are_killed_by_descent() {
    let bench = Bench::new();
    let pool = ShimPool::without_groups(bench.path(), 1, Path::new(env!("CARGO_BIN_EXE_gpulayer"))).unwrap();
    assert_eq!(pool.enforced(), EnforcedLimits::default());
    let mut launch =
        bench.shell("setsid sh -c 'trap \"\" TERM; echo $$ > pids; sleep 60' & echo READY; wait");
    launch.limits.memory_bytes = Some(64 * MIB);
    let mut process = pool.launch(launch.clone()).await.unwrap();
    until_printed(&launch.task_folder, "READY").await;
    until("its pid", || !noted_pids(&launch.task_folder).is_empty()).await;
    process.stop(true).await.unwrap();
    let exit = end_of(&mut process).await;
    assert!(!is_running(noted_pids(&launch.task_folder)[0]));
    assert_eq!((exit.memory_limit_bytes, exit.oom_kills, exit.cpu_throttling), (None, None, None));
    assert_eq!(sweep(&[launch.task_id], Duration::from_secs(1)).unwrap(), 0);
}
