//! What control groups cost a short task: the same tasks under shims with and without them, in turns, so that whatever
//! else the machine does falls on both.
//!
//! `cargo run --example groups -- ROUNDS`: prints the CPU of shim and program per task, in microseconds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use gpulayer::clock;
use gpulayer::contract::worker::TreeKill;
use gpulayer::process::{self, Launch, Limits, ShimEvent, ShimPool};

const TASKS_PER_ROUND: u32 = 500;
/// `/proc/<pid>/stat` counts in hundredths of a second.
const TICK_US: u64 = 10_000;

fn main() {
    process::run_if_shim();
    let rounds: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(measure(rounds));
}

async fn measure(rounds: u32) {
    // The best round of each: a busy machine only ever adds.
    let mut best_us = [u64::MAX; 2];
    for _ in 0..rounds {
        for (with_groups, best_us) in [false, true].into_iter().zip(&mut best_us) {
            *best_us = round(with_groups).await.min(*best_us);
        }
    }
    let per_task = best_us.map(|best_us| best_us / u64::from(TASKS_PER_ROUND));
    println!(
        "CPU per task: {} us without groups, {} us with them ({:+.1} %)",
        per_task[0],
        per_task[1],
        (per_task[1] as f64 / per_task[0] as f64 - 1.0) * 100.0
    );
}

/// CPU of one shim and all its tasks.
async fn round(with_groups: bool) -> u64 {
    let before = children_cpu_us();
    let folder = tempfile::tempdir().unwrap();
    let own = Path::new("/proc/self/exe");
    let pool = if with_groups {
        ShimPool::new(folder.path(), 1).unwrap()
    } else {
        ShimPool::without_groups(folder.path(), 1, own).unwrap()
    };
    assert_eq!(with_groups, pool.enforced().tree_kill != TreeKill::Walk, "this host has no control groups");
    for number in 0..TASKS_PER_ROUND {
        let mut task = pool.launch(launch(folder.path(), number)).await.unwrap();
        while !matches!(task.recv().await, Some(ShimEvent::Ended(_)) | None) {}
    }
    drop(pool);
    // The shim is reaped by the runtime, and only then counted.
    while std::fs::read_dir(folder.path().join("shims")).unwrap().count() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    children_cpu_us() - before
}

fn launch(folder: &Path, number: u32) -> Launch {
    let task_id = clock::task_id();
    let task_folder = folder.join(number.to_string());
    std::fs::create_dir_all(task_folder.join("workspace")).unwrap();
    Launch {
        task_id,
        workspace: task_folder.join("workspace"),
        task_folder,
        cwd: PathBuf::new(),
        argv: vec!["/bin/true".into()],
        env: vec![(process::TASK_ID_VARIABLE.into(), task_id.to_string().into())],
        secrets: Vec::new(),
        stop_signal: Default::default(),
        grace: Duration::from_secs(10),
        timeout: None,
        prelude: None,
        stay: None,
        orphan_timeout: Duration::from_secs(10),
        limits: Limits { memory_bytes: None, cpu_millis: Some(1000), pids: Some(16_384) },
        log: Default::default(),
        run_as: None,
        gpu_locks: Vec::new(),
    }
}

/// User and system time of all children that were waited for.
fn children_cpu_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().skip(13).take(2);
    fields.map(|field| field.parse::<u64>().unwrap() * TICK_US).sum()
}
