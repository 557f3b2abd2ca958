//! Who holds a task, and how it ended: `shim.json`, one file per task, made once and locked for as long as the
//! shim holds the task. Its first line is the shim, (boot, pid, start time); its second the [`ExitRecord`].
//!
//! One file and not two, as making a file is the dearest thing a shim does for a short task. A line that does
//! not end counts as not there. Nothing is synced: a crash of the machine ends the task's tree in any case.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::plain_file::{open_plain, read_short};
use super::{ExitRecord, ProcessError, SHIM_FILE};

/// Its two lines are shorter: what is longer some program wrote there.
const MOST_BYTES: u64 = 1 << 20;

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
}

/// When a process started, in clock ticks since the boot.
pub(super) fn start_ticks(pid: u32) -> io::Result<u64> {
    Ok(runs_and_start(pid)?.1)
}

/// Whether this very process runs. One that has ended and waits to be reaped does not, nor one that is about to.
pub(super) fn runs_since(pid: u32, start_ticks: u64) -> bool {
    runs_and_start(pid).is_ok_and(|(runs, ticks)| runs && ticks == start_ticks)
}

fn runs_and_start(pid: u32) -> io::Result<(bool, u64)> {
    /// `PF_EXITING` of the kernel: it does nothing more, and is a zombie in a moment.
    const EXITING: u64 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may hold anything.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next().and_then(|field| field.chars().next());
    let flags: Option<u64> = fields.nth(5).and_then(|field| field.parse().ok());
    let start = fields.nth(12).and_then(|field| field.parse().ok());
    let runs = state.zip(flags).map(|(state, flags)| !matches!(state, 'Z' | 'X') && flags & EXITING == 0);
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "no start time in /proc/<pid>/stat");
    runs.zip(start).ok_or_else(missing)
}

/// A shim's hold on a task: the locked file.
pub(super) struct Claim {
    file: File,
}

impl Claim {
    /// Takes a task that no shim has ever had: a folder is launched from once, whatever a worker does.
    pub(super) fn take(task_folder: &Path, shim: &Identity) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create_new(true).mode(0o600).open(task_folder.join(SHIM_FILE))?;
        // Nobody else locks it for longer than a look.
        flock(&file, FlockOperation::LockExclusive)?;
        let mut claim = Self { file };
        claim.append(shim)?;
        Ok(claim)
    }

    /// Writes down the end. There is room for it even on a full disk, as the first line has brought a block.
    pub(super) fn conclude(&mut self, record: &ExitRecord) -> io::Result<()> {
        self.append(record)
    }

    fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.file.write_all(&bytes)
    }
}

fn read_lines(task_folder: &Path) -> Result<Vec<Vec<u8>>, ProcessError> {
    let path = task_folder.join(SHIM_FILE);
    let read = open_plain(&path).and_then(|file| read_short(file, MOST_BYTES));
    match read {
        Ok(text) => {
            let mut lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            // What is behind the last line end: nothing, or a line that was not finished.
            lines.pop();
            Ok(lines)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(ProcessError::File { operation: "read", path, source }),
    }
}

/// The shim that took the task of this folder, alive or not; `None` while none has, or none has said who it is.
pub(super) fn shim_of(task_folder: &Path) -> Result<Option<Identity>, ProcessError> {
    let lines = read_lines(task_folder)?;
    Ok(lines.first().and_then(|line| serde_json::from_slice(line).ok()))
}

impl ExitRecord {
    /// Reads a task folder's record; `None` while there is none.
    pub fn read(task_folder: &Path) -> Result<Option<ExitRecord>, ProcessError> {
        let lines = read_lines(task_folder)?;
        let parsed = lines.get(1).map(|line| serde_json::from_slice(line)).transpose();
        parsed.map_err(|source| ProcessError::Garbled { path: task_folder.join(SHIM_FILE), source })
    }
}

/// The pid of the live shim that holds this task folder, if one does, whether or not its socket can be reached.
/// `Some(0)`: it holds the folder but has not said who it is.
pub fn holder(task_folder: &Path) -> Result<Option<u32>, ProcessError> {
    let path = task_folder.join(SHIM_FILE);
    let locked = open_plain(&path).and_then(|file| Ok(flock(&file, FlockOperation::NonBlockingLockShared)?));
    match locked {
        Ok(()) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ProcessError::File { operation: "lock", path, source }),
    }
    let alive = shim_of(task_folder)?
        .filter(|shim| start_ticks(shim.pid).is_ok_and(|ticks| ticks == shim.start_ticks));
    Ok(Some(alive.map_or(0, |shim| shim.pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_held_by_one_shim_once() {
        let folder = tempfile::tempdir().unwrap();
        let me = Identity::of_this_process().unwrap();
        assert_eq!(holder(folder.path()).unwrap(), None);
        let held = Claim::take(folder.path(), &me).unwrap();
        assert_eq!(holder(folder.path()).unwrap(), Some(std::process::id()));
        assert!(Claim::take(folder.path(), &me).is_err());
        drop(held);
        assert_eq!(holder(folder.path()).unwrap(), None);
        assert!(Claim::take(folder.path(), &me).is_err());
        assert_eq!(holder(&folder.path().join("absent")).unwrap(), None);
    }

    #[test]
    fn one_that_a_program_made_endless_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        File::create(folder.path().join(SHIM_FILE)).unwrap().set_len(1 << 40).unwrap();
        let refused = ExitRecord::read(folder.path()).unwrap_err();
        let ProcessError::File { source, .. } = refused else { panic!("{refused}") };
        assert_eq!(source.kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_half_written_record_is_none_and_a_wrong_one_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ExitRecord::read(folder.path()).unwrap(), None);
        for (text, is_error) in [("{}\n", false), ("{}\n{\"task_id\":", false), ("{}\n{}\n", true)] {
            std::fs::write(folder.path().join(SHIM_FILE), text).unwrap();
            match ExitRecord::read(folder.path()) {
                Ok(record) => assert!(record.is_none() && !is_error, "{text}"),
                Err(_) => assert!(is_error, "{text}"),
            }
        }
    }
}
