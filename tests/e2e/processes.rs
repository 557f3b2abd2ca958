//! A look at this machine's processes: those of a house, by what they carry, and their shims.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// All pids, with their folders in /proc.
fn all() -> impl Iterator<Item = (u32, PathBuf)> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let folder = entry.ok()?.path();
        Some((folder.file_name()?.to_str()?.parse().ok()?, folder))
    })
}

/// Live processes that carry `mark` in their environment or on their command line.
pub fn marked(mark: &str) -> Vec<u32> {
    let carries =
        |file: PathBuf| std::fs::read(file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(mark));
    let found =
        all().filter(|(_, folder)| carries(folder.join("environ")) || carries(folder.join("cmdline")));
    found.map(|(pid, _)| pid).collect()
}

/// The shims whose sockets lie in this worker folder. A child of one that has not come to its `exec` yet looks the
/// same and is none: to stop it would hold up its parent, which waits for that.
pub fn shims(worker_folder: &Path) -> Vec<u32> {
    let sockets = worker_folder.join("shims");
    let found = all().filter(|(pid, folder)| {
        std::fs::read_link(folder.join("cwd")).is_ok_and(|cwd| cwd == sockets) && state(*pid) != Some('Z')
    });
    let alike: Vec<u32> = found.map(|(pid, _)| pid).collect();
    let none = |pid: &u32| parent(*pid).is_none_or(|parent| alike.contains(&parent));
    alike.iter().copied().filter(|pid| !none(pid)).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The control groups that a worker made for its shims and their tasks.
pub fn groups(worker_folder: &Path) -> Vec<PathBuf> {
    let bases = std::fs::read_to_string(worker_folder.join("groups")).unwrap_or_default();
    let beneath = bases.lines().filter_map(|base| std::fs::read_dir(base).ok()).flatten();
    let folders =
        beneath.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(|path| path.is_dir());
    folders.filter(|path| path.file_name().is_some_and(|name| name != "worker")).collect()
}

/// Kills whoever is in a worker's control groups, and removes them all: what is in them has lost everything else that
/// would tell it apart, and a house that is gone has no next start to sweep them.
pub fn remove_groups(worker_folder: &Path) {
    let bases = std::fs::read_to_string(worker_folder.join("groups")).unwrap_or_default();
    for base in bases.lines().map(Path::new) {
        let began = Instant::now();
        while base.exists() && began.elapsed() < Duration::from_secs(2) {
            let beneath = std::fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
            for group in beneath.filter(|path| path.is_dir()) {
                let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
                for pid in members.lines().filter_map(|pid| pid.parse().ok()) {
                    signal(pid, Signal::KILL);
                }
                // Refused while one of them is still ending.
                let _ = std::fs::remove_dir(group);
            }
            if std::fs::remove_dir(base).is_err() {
                // Nothing tells that a group has become empty: tried again, so many times at most.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// The letter that /proc gives a process's state; `None` when it is gone.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The largest resident memory it has had, in bytes.
pub fn peak_memory_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// How many descriptors it has open.
pub fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// What it was started as, for a message.
pub fn command_line(pid: u32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid}: {}", String::from_utf8_lossy(&words).replace('\0', " "))
}

/// Sends a signal; one that is gone already has got what it wanted.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    let _ = kill_process(pid, signal);
}
