//! What strikes: which processes are killed or frozen, and whose task was in a killed shim's hands.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpulayer::contract::ids::TaskId;
use gpulayer::process::ExitRecord;
use rand::RngExt;
use rand::rngs::StdRng;
use rustix::process::Signal;
use serde_json::Value;

use crate::house::DEADLINE;
use crate::processes;

/// One blow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blow {
    /// `kill -9` of the daemon, and with it of the worker inside.
    Daemon,
    /// `kill -9` of the standalone worker.
    FarWorker,
    /// Both at once.
    DaemonAndFarWorker,
    /// One shim.
    Shim,
    /// A few shims.
    Shims,
    /// Every process of ours.
    Everything,
    /// SIGTERM to the daemon: leaves its tasks to their shims.
    Goodbye,
    /// The daemon is stopped for a moment and goes on.
    FrozenDaemon,
    /// The same of the standalone worker.
    FrozenFarWorker,
    /// The same of one shim.
    FrozenShim,
}

const BLOWS: [Blow; 10] = [
    Blow::Daemon,
    Blow::FarWorker,
    Blow::Shim,
    Blow::DaemonAndFarWorker,
    Blow::Shims,
    Blow::Everything,
    Blow::FrozenDaemon,
    Blow::FrozenFarWorker,
    Blow::FrozenShim,
    Blow::Goodbye,
];

impl Blow {
    /// Each in turn, then any of them: a short run has seen them all.
    pub fn of_round(round: usize, rng: &mut StdRng) -> Self {
        // Drawn in any case, so that what follows does not depend on the round's number.
        let any = BLOWS[rng.random_range(0..BLOWS.len())];
        BLOWS.get(round).copied().unwrap_or(any)
    }
}

/// What killed shims had in their hands.
#[derive(Debug, Default)]
pub struct Victims {
    /// Tasks that were not over: each must end `internal`.
    pub running: BTreeSet<TaskId>,
    /// Tasks that some shim was just about to take: it may have been a killed one.
    pub begun: BTreeSet<TaskId>,
}

/// Kills shims. They are stopped first, so that what they hold cannot change any more.
pub fn kill_shims(shims: &[u32], worker_folders: &[PathBuf], victims: &mut Victims) {
    /// Whatever happens meanwhile, none stays stopped.
    struct Doomed<'a>(&'a [u32]);
    impl Drop for Doomed<'_> {
        fn drop(&mut self) {
            self.0.iter().for_each(|shim| processes::signal(*shim, Signal::KILL));
        }
    }
    let _doomed = Doomed(shims);
    for shim in shims {
        processes::signal(*shim, Signal::STOP);
    }
    let began = Instant::now();
    for shim in shims {
        while !matches!(processes::state(*shim), None | Some('T' | 'Z')) {
            assert!(began.elapsed() < DEADLINE, "shim {shim} does not stop");
            // A stop is told to the parent alone, which is the worker; its state is looked at, under a deadline.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    note_held(shims, worker_folders, victims);
}

fn note_held(shims: &[u32], worker_folders: &[PathBuf], victims: &mut Victims) {
    for folder in worker_folders {
        let Ok(tasks) = std::fs::read_dir(folder.join("tasks")) else { continue };
        for task in tasks.flatten().map(|entry| entry.path()) {
            let Some(id) = task.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
            match holder(&task) {
                None if task.join("shim.json").exists() => drop(victims.begun.insert(id)),
                // One that was on its way to a killed shim goes to another.
                None => {}
                Some(pid) if shims.contains(&pid) && matches!(ExitRecord::read(&task), Ok(None)) => {
                    victims.running.insert(id);
                }
                Some(_) => {}
            }
        }
    }
}

/// Whoever took this task, dead or alive.
fn holder(task: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(task.join("shim.json")).ok()?;
    let shim: Value = serde_json::from_str(text.lines().next()?).ok()?;
    shim["pid"].as_u64()?.try_into().ok()
}
