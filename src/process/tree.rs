//! Killing whole process trees: by descent from the shim, and by environment when the shim itself is gone.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{ProcessError, TASK_ID_VARIABLE};
use crate::contract::ids::TaskId;

/// A tree that forks faster than it is walked is stopped in so many passes, then killed as far as it was seen;
/// the caller comes again until nothing is left.
const STOP_PASSES: usize = 16;

fn pids_in(text: &str) -> impl Iterator<Item = u32> {
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok())
}

/// The children of a process, of all its threads. A process that ends meanwhile has none.
fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found = Vec::new();
    for thread in threads.flatten() {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(pids_in(&text));
    }
    found
}

/// All descendants of a process, parents first.
fn descendants(root: u32) -> Vec<u32> {
    let mut found = children(root);
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let more = children(*pid);
        found.extend(more);
        next += 1;
    }
    found
}

/// A process as something that a pid used again cannot stand in for.
fn handle(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Sends SIGKILL to every descendant of this process. They are stopped first, so that none can fork away
/// between the look and the kill. Ended ones stay until they are reaped. Returns how many it saw.
pub(super) fn kill_descendants() -> usize {
    let me = std::process::id();
    let mut stopped = HashSet::new();
    for _ in 0..STOP_PASSES {
        let mut grew = false;
        for pid in descendants(me) {
            if stopped.insert(pid) {
                grew = true;
                signal_descendant(pid, Signal::STOP);
            }
        }
        if !grew {
            break;
        }
    }
    for pid in &stopped {
        signal_descendant(*pid, Signal::KILL);
    }
    stopped.len()
}

fn signal_descendant(pid: u32, signal: Signal) {
    // Between the walk and here the process may have been reaped by its parent. The handle pins whatever has
    // the pid now; only if that still descends from us does it get the signal.
    let Some(handle) = handle(pid) else { return };
    if descends_from_me(pid) {
        // It may end by itself at any moment, and a setuid program may be out of reach; the caller looks again.
        let _ = pidfd_send_signal(&handle, signal);
    }
}

fn descends_from_me(mut pid: u32) -> bool {
    let me = std::process::id();
    while pid > 1 {
        match parent(pid) {
            Some(parent) if parent == me => return true,
            Some(parent) => pid = parent,
            None => return false,
        }
    }
    false
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The second field is the program's name in parentheses and may hold anything.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
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
    let mut killed = HashSet::new();
    loop {
        let mut found = marked_processes(&wanted)?;
        if found.is_empty() {
            return Ok(killed.len());
        }
        for pid in found.clone() {
            found.extend(descendants(pid));
        }
        // All are stopped before the first is killed: see `kill_descendants`.
        let mut handles = Vec::new();
        for pid in &found {
            let Some(handle) = handle(*pid) else { continue };
            // Again, now that the handle pins it; a descendant may have cleared its environment.
            if is_marked(*pid, &wanted) || has_marked_ancestor(*pid, &wanted) {
                let _ = pidfd_send_signal(&handle, Signal::STOP);
                handles.push((*pid, handle));
            }
        }
        for (pid, handle) in &handles {
            if pidfd_send_signal(handle, Signal::KILL).is_ok() {
                killed.insert(*pid);
            }
        }
        let survivors = wait_for_ends(handles, deadline);
        if !survivors.is_empty() && Instant::now() >= deadline {
            return Err(ProcessError::Survivors { pids: survivors });
        }
    }
}

fn marked_processes(wanted: &HashSet<Vec<u8>>) -> Result<HashSet<u32>, ProcessError> {
    let failed = |source: io::Error| ProcessError::File {
        operation: "list processes in",
        path: "/proc".into(),
        source,
    };
    let me = std::process::id();
    let mut found = HashSet::new();
    for entry in std::fs::read_dir("/proc").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if pid != me && is_marked(pid, wanted) {
            found.insert(pid);
        }
    }
    Ok(found)
}

fn is_marked(pid: u32, wanted: &HashSet<Vec<u8>>) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| wanted.contains(variable))
}

fn has_marked_ancestor(mut pid: u32, wanted: &HashSet<Vec<u8>>) -> bool {
    while pid > 1 {
        match parent(pid) {
            Some(parent) if is_marked(parent, wanted) => return true,
            Some(parent) => pid = parent,
            None => return false,
        }
    }
    false
}

/// Waits until all have ended, or the deadline; returns who is left.
fn wait_for_ends(mut handles: Vec<(u32, OwnedFd)>, deadline: Instant) -> Vec<u32> {
    while !handles.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let ended: Vec<bool> = {
            let mut polled: Vec<PollFd<'_>> =
                handles.iter().map(|(_, handle)| PollFd::new(handle, PollFlags::IN)).collect();
            match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            polled.iter().map(|one| !one.revents().is_empty()).collect()
        };
        let mut ended = ended.into_iter();
        handles.retain(|_| !ended.next().unwrap_or(false));
    }
    handles.into_iter().map(|(pid, _)| pid).collect()
}
