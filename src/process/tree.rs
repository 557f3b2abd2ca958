//! Killing whole process trees: by descent from the shim, and by environment when the shim itself is gone.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{ProcessError, TASK_ID_VARIABLE};
use crate::contract::ids::TaskId;
use crate::domain::gpus::Whose;

/// A tree may fork while it is walked, so it is walked again until nothing new shows up, so many times at most;
/// the caller comes again until nothing is left.
const STOP_PASSES: usize = 64;
/// A swept process that does not end within this is looked at, and killed, again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A chain of processes is not longer; a pid used again while this looks could lead in a circle.
const MOST_ANCESTORS: usize = 256;

/// What `/proc/<pid>/stat` says that matters here.
struct Stat {
    parent: u32,
    threads: u32,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The second field is the program's name in parentheses and may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let threads = fields.nth(15)?.parse().ok()?;
        Some(Self { parent, threads })
    }
}

/// The children of a process, of all its threads. A process that ends meanwhile has none.
fn children(pid: u32, threads: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut read = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    };
    if threads == 1 {
        read(Path::new(&format!("/proc/{pid}/task/{pid}/children")));
    } else if let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) {
        threads.flatten().for_each(|thread| read(&thread.path().join("children")));
    }
    found
}

/// Sends a signal to a process if it is still what it was looked up as. The handle pins whatever has the pid now,
/// so that a pid used again in between is never hit.
pub(super) fn signal_if(pid: u32, signal: Signal, still: impl FnOnce(u32) -> bool) {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else { return };
    if still(pid) {
        // It may end by itself at any moment, and a setuid program may be out of reach; callers look again.
        let _ = pidfd_send_signal(&handle, signal);
    }
}

/// Sends SIGKILL to every descendant of this process. They are all stopped first, so that none can fork away
/// between the look and the kill. Ended ones stay until they are reaped.
pub(super) fn kill_descendants() {
    let me = std::process::id();
    for (pid, parent) in stop_descendants(me) {
        signal_if(pid, Signal::KILL, |pid| is_child(pid, parent, me));
    }
}

/// Every descendant of this process that there is at the moment, ended ones included.
pub(super) fn descendants() -> Vec<u32> {
    descendants_of(std::process::id())
}

/// The same of another process.
pub(super) fn descendants_of(root: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut ahead = children(root, 0);
    while let Some(pid) = ahead.pop() {
        // A pid used again while this looks could lead in a circle.
        if !found.contains(&pid) {
            found.push(pid);
            ahead.extend(children(pid, Stat::read(pid).map_or(0, |stat| stat.threads)));
        }
    }
    found
}

fn is_child(pid: u32, parent: u32, root: u32) -> bool {
    // Whoever loses its parent becomes a child of the root.
    Stat::read(pid).is_some_and(|stat| stat.parent == parent || stat.parent == root)
}

/// Stops every descendant of a process, each before its own children are looked up: whoever is stopped gets no
/// more of them, so that the walk gains on a tree that forks away from it. Returns them with their parents.
fn stop_descendants(root: u32) -> HashMap<u32, u32> {
    let mut seen = HashMap::new();
    for _ in 0..STOP_PASSES {
        let before = seen.len();
        let mut ahead: Vec<(u32, u32)> = children(root, 0).into_iter().map(|pid| (pid, root)).collect();
        while let Some((pid, parent)) = ahead.pop() {
            if seen.insert(pid, parent).is_none() {
                signal_if(pid, Signal::STOP, |pid| is_child(pid, parent, root));
            }
            let threads = Stat::read(pid).map_or(0, |stat| stat.threads);
            ahead.extend(children(pid, threads).into_iter().map(|child| (child, pid)));
        }
        if seen.len() == before {
            break;
        }
    }
    seen
}

/// Kills every process that carries one of these tasks' [`TASK_ID_VARIABLE`] in its environment, and what
/// descends from those, until none is left; returns how many there were. For tasks whose shim is gone: a live
/// shim does this better. Blocks, for `patience` at most; then the error names who is left.
///
/// A process that ended but was not yet reaped by its parent counts as gone: it holds nothing.
pub fn sweep(task_ids: &[TaskId], patience: Duration) -> Result<usize, ProcessError> {
    let wanted: HashSet<Vec<u8>> =
        task_ids.iter().map(|id| format!("{TASK_ID_VARIABLE}={id}").into_bytes()).collect();
    let deadline = Instant::now() + patience;
    let mut killed = HashMap::new();
    loop {
        let marked = marked_processes(&wanted)?;
        if marked.is_empty() {
            // A descendant need not be marked, so it is waited for and not looked for.
            let left: Vec<u32> = still_there(&killed, deadline);
            return if left.is_empty() {
                Ok(killed.len())
            } else {
                Err(ProcessError::Survivors { pids: left })
            };
        }
        // As with `kill_descendants`, all are stopped before the first is killed.
        for pid in &marked {
            signal_if(*pid, Signal::STOP, |pid| is_marked(pid, &wanted));
        }
        for root in &marked {
            // Held before any is killed: afterwards an orphan of theirs belongs to nobody we know.
            let descendants = stop_descendants(*root);
            for (pid, parent) in &descendants {
                if is_child(*pid, *parent, *root) {
                    note(&mut killed, *pid);
                }
            }
            for process in descendants.keys().filter_map(|pid| killed.get(pid)?.as_ref()) {
                // It may have ended by itself.
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
        for pid in &marked {
            note(&mut killed, *pid);
            signal_if(*pid, Signal::KILL, |pid| is_marked(pid, &wanted));
        }
        let left = still_there(&killed, deadline.min(Instant::now() + LOOK_AGAIN));
        if Instant::now() >= deadline {
            let left = if left.is_empty() { marked_processes(&wanted)? } else { left };
            return if left.is_empty() {
                Ok(killed.len())
            } else {
                Err(ProcessError::Survivors { pids: left })
            };
        }
    }
}

/// Takes hold of a process that is about to be killed, while its pid is surely its own.
fn note(killed: &mut HashMap<u32, Option<OwnedFd>>, pid: u32) {
    killed.entry(pid).or_insert_with(|| {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        // It is gone already, or the kernel has no more descriptors to give: then only the mark is looked for.
        pidfd_open(number, PidfdFlags::empty()).ok()
    });
}

/// Those that have not ended by then.
fn still_there(killed: &HashMap<u32, Option<OwnedFd>>, by: Instant) -> Vec<u32> {
    let has_ended = |process: &OwnedFd| {
        let left = by.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(process, PollFlags::IN)];
        matches!(poll(&mut polled, Timespec::try_from(left).ok().as_ref()), Ok(1))
    };
    let held = killed.iter().filter_map(|(pid, process)| Some((*pid, process.as_ref()?)));
    held.filter(|(_, process)| !has_ended(process)).map(|(pid, _)| pid).collect()
}

fn marked_processes(wanted: &HashSet<Vec<u8>>) -> Result<Vec<u32>, ProcessError> {
    let failed = |source: io::Error| ProcessError::File {
        operation: "list processes in",
        path: "/proc".into(),
        source,
    };
    let me = std::process::id();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if pid != me && is_marked(pid, wanted) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Whose a process is: the task whose mark it or one of its ancestors carries, or some task of the shim it descends
/// from, if that is one of `shims`.
pub(super) fn whose(pid: u32, is_own_shim: impl Fn(u32) -> bool) -> Whose {
    let mut at = pid;
    let Some(mut stat) = Stat::read(at) else { return Whose::Unseen };
    for _ in 0..MOST_ANCESTORS {
        if is_own_shim(at) {
            return Whose::SomeTask;
        }
        if let Some(task_id) = mark_of(at) {
            return Whose::Task(task_id);
        }
        at = stat.parent;
        if at == std::process::id() {
            return Whose::Ourselves;
        }
        match Stat::read(at).filter(|_| at > 1) {
            Some(of_parent) => stat = of_parent,
            None => break,
        }
    }
    Whose::Outsider
}

/// Whether a process is a shim, or in the tree of a task of any worker of this host.
pub fn is_of_a_task(pid: u32) -> bool {
    matches!(whose(pid, super::pool::is_shim), Whose::Task(_) | Whose::SomeTask)
}

fn mark_of(pid: u32) -> Option<TaskId> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mark = format!("{TASK_ID_VARIABLE}=").into_bytes();
    let id = environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(&*mark))?;
    std::str::from_utf8(id).ok()?.parse().ok()
}

fn is_marked(pid: u32, wanted: &HashSet<Vec<u8>>) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| wanted.contains(variable))
}
