//! Who holds a task: (boot, pid, start time) in `shim.json`, and a lock on the task's folder.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use serde::{Deserialize, Serialize};

use super::ProcessError;

const IDENTITY_FILE: &str = "shim.json";

/// One process of one boot; a pid alone can be used again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) boot_id: String,
    pub(super) pid: u32,
    /// Field 22 of `/proc/<pid>/stat`.
    pub(super) start_ticks: u64,
}

impl Identity {
    /// Of this process.
    pub(super) fn of_this_process() -> io::Result<Self> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let pid = std::process::id();
        let start_ticks = start_ticks(pid)?;
        Ok(Self { boot_id: boot_id.trim().to_owned(), pid, start_ticks })
    }

    /// Leaves it in a task's folder.
    pub(super) fn write(&self, task_folder: &OwnedFd) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = openat(task_folder, IDENTITY_FILE, flags, Mode::from_raw_mode(0o600))?;
        File::from(file).write_all(&serde_json::to_vec(self)?)
    }
}

/// When a process started, in clock ticks since the boot.
fn start_ticks(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may hold anything.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name
        .split_ascii_whitespace()
        .nth(19)
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time in /proc/<pid>/stat"))
}

/// Opens and locks a task's folder for as long as the descriptor lives. `WouldBlock`: another shim holds it.
pub(super) fn lock(task_folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(task_folder, flags, Mode::empty())?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

/// The pid of the live shim that holds this task folder, if one does, whether or not its socket can be reached.
/// `Some(0)`: it holds the folder but has not said who it is.
pub fn holder(task_folder: &Path) -> Result<Option<u32>, ProcessError> {
    match lock(task_folder) {
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(ProcessError::File { operation: "lock", path: task_folder.to_owned(), source });
        }
    }
    let written = std::fs::read(task_folder.join(IDENTITY_FILE)).unwrap_or_default();
    let shim = serde_json::from_slice::<Identity>(&written).ok();
    let alive = shim.filter(|shim| start_ticks(shim.pid).is_ok_and(|ticks| ticks == shim.start_ticks));
    Ok(Some(alive.map_or(0, |shim| shim.pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(holder(folder.path()).unwrap(), None);
        let held = lock(folder.path()).unwrap();
        assert_eq!(holder(folder.path()).unwrap(), Some(0));
        Identity::of_this_process().unwrap().write(&held).unwrap();
        assert_eq!(holder(folder.path()).unwrap(), Some(std::process::id()));
        drop(held);
        assert_eq!(holder(folder.path()).unwrap(), None);
        assert_eq!(holder(&folder.path().join("absent")).unwrap(), None);
    }
}
