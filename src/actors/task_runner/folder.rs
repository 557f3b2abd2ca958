//! A task's folder on its worker: everything that must outlive a restart of the worker.
//!
//! | name | meaning |
//! |---|---|
//! | `task.json` | the assignment, the boot it was received in, and which folder its workspace is; written once, before the start is reported |
//! | `workspace/` | where the program runs |
//! | `tmp/` | its `TMPDIR` |
//! | `function/` | of a Python function: its call, and what it returned (see `function`) |
//! | `before.json` | what staging put into the workspace; absent when it put nothing there |
//! | `shim.json`, `spool`, `overflow.zst`, `stop` | the shim's, see `process` |
//! | `whole-log.zst` | all that the program wrote, on its way to the server |
//!
//! Its program may rename, replace and mount over anything here, the folder itself included. So whatever is opened
//! after the program ran is opened beneath the folder of tasks without following a link or entering a mount, and the
//! workspace must be the very folder that was made for the task.
//!
//! Nothing is fsynced: a restart of the machine ends the task anyway, and anything less keeps the page cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, OFlags, mkdirat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::spares::Spares;
use crate::artifacts::{
    FolderId, RelativePath, Snapshot, empty_folder, open_beneath, open_folder, open_folder_beneath,
    remove_in, remove_tree,
};
use crate::contract::protocol::{Assignment, StopReason};
use crate::contract::spec::{JobSpec, Workload};
use crate::process::{self, RunAs};

pub(super) const TASK_FILE: &str = "task.json";
const BEFORE_FILE: &str = "before.json";
pub(super) const WORKSPACE: &str = "workspace";
pub(super) const TMP: &str = "tmp";
pub(super) const FUNCTION: &str = "function";
pub(super) const CHECKPOINT: &str = "checkpoint";
const KEPT_FILE: &str = "checkpoint-kept";
const YIELDED_MARK_FILE: &str = "yielded-brought";
const PROGRESS_FILE: &str = ".gpulayer-progress.json";
/// More is not read.
const MOST_PROGRESS_BYTES: u64 = 16 * 1024;
/// An assignment comes in a body of at most so many bytes.
const MOST_TASK_BYTES: u64 = 64 << 20;
/// Of a million files, each with its path.
const MOST_BEFORE_BYTES: u64 = 512 << 20;
/// Of files that hold a number or a word.
const MOST_WORD_BYTES: u64 = 4096;
/// All that a finished task usually leaves beside its workspace and its `task.json`.
pub(super) const LEFTOVERS: [&str; 3] = [process::SPOOL_FILE, process::SHIM_FILE, process::STOP_FILE];
/// What the log of some leaves beside that.
const LOG_LEFTOVERS: [&str; 2] = [process::OVERFLOW_FILE, process::WHOLE_LOG_FILE];

/// The mode of a folder that other users may pass through and not list.
const PASSABLE: u32 = 0o711;

/// The folder of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskFolder {
    path: PathBuf,
    /// Which folder its workspace is; `None` = a build that did not write it down made it.
    made: Option<FolderId>,
}

/// What `task.json` holds.
#[derive(Debug, Deserialize)]
pub(super) struct TaskFile {
    /// The boot in which it was received.
    pub(super) boot_id: String,
    /// The task.
    pub(super) assignment: Assignment,
    #[serde(default)]
    workspace: Option<FolderId>,
}

#[derive(Serialize)]
struct TaskFileRef<'a> {
    boot_id: &'a str,
    assignment: &'a Assignment,
    workspace: FolderId,
}

impl TaskFolder {
    /// Makes the folder of a new task, with an empty workspace, from a spare one if there is one. One that is there
    /// already (a start that was never answered before the worker restarted) is made anew.
    pub(super) fn create(
        tasks: &Path,
        boot_id: &str,
        assignment: &Assignment,
        spares: &mut Spares,
    ) -> io::Result<Self> {
        let mut folder = Self { path: tasks.join(assignment.task_id.to_string()), made: None };
        let made = folder.fill(boot_id, assignment, spares);
        if made.is_err() {
            // On a full disk half of it may be there, and would be taken for the remains of a task.
            let _ = remove_tree(&folder.path);
        }
        made.map(|()| folder)
    }

    fn fill(&mut self, boot_id: &str, assignment: &Assignment, spares: &mut Spares) -> io::Result<()> {
        if !spares.take(&self.path) {
            self.make()?;
        }
        let workspace = FolderId::of(self.open_workspace()?.as_fd())?;
        self.made = Some(workspace);
        let bytes = serde_json::to_vec(&TaskFileRef { boot_id, assignment, workspace })?;
        write_private(&self.path.join(TASK_FILE), &bytes)
    }

    /// Empties the workspace of a task that was never launched: staging may have come halfway. What is written down of
    /// the task stays, and no room is needed that was not there before.
    pub(super) fn empty(&self) -> io::Result<()> {
        let folder = self.open()?;
        // Not made again: it would be another one.
        empty_folder(self.open_workspace()?.as_fd()).map_err(io::Error::other)?;
        for name in [TMP, FUNCTION] {
            remove_in(folder.as_fd(), name).map_err(io::Error::other)?;
        }
        mkdirat(&folder, TMP, 0o700.into())?;
        remove_files(folder.as_fd(), &LEFTOVERS)?;
        remove_files(folder.as_fd(), &[BEFORE_FILE])
    }

    fn make(&self) -> io::Result<()> {
        let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        match make(&self.path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                remove_tree(&self.path).map_err(io::Error::other)?;
                make(&self.path)?;
            }
            made => made?,
        }
        make(&self.workspace())?;
        make(&self.tmp())
    }

    /// Lets the user that the task runs as in: workspace and temporary folder become its own, the task's folder can be
    /// passed through and not listed. Last of all before the launch, so that no other task of that user meets the
    /// worker at work in there.
    pub(super) fn open_to(&self, user: &RunAs) -> io::Result<()> {
        fs::set_permissions(&self.path, fs::Permissions::from_mode(PASSABLE))?;
        for folder in [self.tmp(), self.workspace()] {
            std::os::unix::fs::lchown(folder, Some(user.uid), Some(user.gid))?;
        }
        Ok(())
    }

    /// A folder found after a restart, and what its `task.json` says; `None` when that is not whole.
    pub(super) fn found(path: PathBuf) -> (Self, Option<TaskFile>) {
        let mut folder = Self { path, made: None };
        let file: Option<TaskFile> =
            folder.read(TASK_FILE, MOST_TASK_BYTES).ok().and_then(|text| serde_json::from_slice(&text).ok());
        folder.made = file.as_ref().and_then(|file| file.workspace);
        (folder, file)
    }

    /// Opens the folder.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        let (Some(tasks), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(ErrorKind::InvalidInput.into());
        };
        open_folder_beneath(open_folder(tasks)?.as_fd(), &relative(&name.to_string_lossy())?)
    }

    /// Opens the workspace that was made for the task; refuses whatever else the program put in its place.
    pub(super) fn open_workspace(&self) -> io::Result<OwnedFd> {
        let workspace = open_folder_beneath(self.open()?.as_fd(), &relative(WORKSPACE)?)?;
        match self.made {
            Some(made) if FolderId::of(workspace.as_fd())? != made => Err(io::Error::new(
                ErrorKind::InvalidInput,
                "it is not the folder that was made for the task",
            )),
            _ => Ok(workspace),
        }
    }

    /// Opens [`TaskFolder::root`].
    pub(super) fn open_root(&self, spec: &JobSpec) -> io::Result<OwnedFd> {
        real_folder(spec).map_or_else(|| self.open_workspace(), open_folder)
    }

    fn read(&self, name: &str, most_bytes: u64) -> io::Result<Vec<u8>> {
        process::read_short(open_beneath(self.open()?.as_fd(), &relative(name)?)?, most_bytes)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.path.join(WORKSPACE)
    }

    pub(super) fn tmp(&self) -> PathBuf {
        self.path.join(TMP)
    }

    pub(super) fn function(&self) -> PathBuf {
        self.path.join(FUNCTION)
    }

    /// In the temporary folder, which is the task's own.
    pub(super) fn progress_file(&self) -> PathBuf {
        self.tmp().join(PROGRESS_FILE)
    }

    /// Where the program keeps what its next attempt begins with; in the temporary folder as well.
    pub(super) fn checkpoint(&self) -> PathBuf {
        self.tmp().join(CHECKPOINT)
    }

    /// Whether there is something that may be one.
    pub(super) fn has_checkpoint(&self) -> bool {
        fs::symlink_metadata(self.checkpoint()).is_ok()
    }

    /// A new file on the disk of the task that nobody else finds.
    pub(super) fn nameless_file(&self) -> io::Result<File> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let path = self.path.join(format!("packed-{}", MADE.fetch_add(1, Ordering::Relaxed)));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    }

    /// Opens the temporary folder.
    pub(super) fn open_tmp(&self) -> io::Result<OwnedFd> {
        open_folder_beneath(self.open()?.as_fd(), &relative(TMP)?)
    }

    /// A program that counts its checkpoints says when one is whole: only such a one is kept. Whether there is one that
    /// was not kept yet; of a program that does not count, the folder as it is left.
    pub(super) fn wants_checkpoint(&self, counted: u64) -> bool {
        let kept = self
            .read(KEPT_FILE, MOST_WORD_BYTES)
            .ok()
            .and_then(|text| String::from_utf8(text).ok()?.parse().ok());
        counted == 0 || counted > kept.unwrap_or(0)
    }

    /// From now on this one is kept.
    pub(super) fn note_checkpoint(&self, counted: u64) -> io::Result<()> {
        write_private(&self.path.join(KEPT_FILE), counted.to_string().as_bytes())
    }

    /// How far what a generator yielded was brought.
    pub(super) fn yielded_mark(&self) -> Option<String> {
        String::from_utf8(self.read(YIELDED_MARK_FILE, MOST_WORD_BYTES).ok()?).ok()
    }

    /// From now on it was brought so far.
    pub(super) fn note_yielded_mark(&self, mark: &str) -> io::Result<()> {
        write_private(&self.path.join(YIELDED_MARK_FILE), mark.as_bytes())
    }

    /// What the program wrote of its progress; `None` when that is as it was, or nothing.
    pub(super) fn progress(&self, known: &mut Option<(u64, i128)>) -> io::Result<Option<Vec<u8>>> {
        let path = relative(&format!("{TMP}/{PROGRESS_FILE}"))?;
        let file = open_beneath(self.open()?.as_fd(), &path)?;
        let found = file.metadata()?;
        let stamp = (found.ino(), i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec()));
        if *known == Some(stamp) {
            return Ok(None);
        }
        *known = Some(stamp);
        let mut bytes = Vec::new();
        file.take(MOST_PROGRESS_BYTES).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    pub(super) fn stop_file(&self) -> PathBuf {
        self.path.join(process::STOP_FILE)
    }

    /// What the program's paths are relative to: the workspace, or the real folder of a task that runs in one
    /// (`cwd` absolute).
    pub(super) fn root(&self, spec: &JobSpec) -> PathBuf {
        real_folder(spec).map_or_else(|| self.workspace(), Path::to_owned)
    }

    /// Whether any shim ever took the task.
    pub(super) fn was_launched(&self) -> bool {
        self.path.join(process::SHIM_FILE).exists()
    }

    /// Whether a shim has begun to stop the task for its timeout.
    pub(super) fn was_timed_out(&self) -> bool {
        self.read(process::STOP_FILE, MOST_WORD_BYTES)
            .is_ok_and(|word| word.trim_ascii() == StopReason::TimedOut.word().as_bytes())
    }

    /// Writes down what staging brought.
    pub(super) fn remember(&self, before: &Snapshot) -> io::Result<()> {
        if before.is_empty() {
            return Ok(());
        }
        write_private(&self.path.join(BEFORE_FILE), &serde_json::to_vec(before)?)
    }

    /// What staging had brought.
    pub(super) fn before(&self) -> Snapshot {
        let text = self.read(BEFORE_FILE, MOST_BEFORE_BYTES).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Whether there is nothing in the workspace. One that is not there any more may be there under another name.
    pub(super) fn workspace_is_empty(&self) -> bool {
        self.open_workspace().and_then(|workspace| is_empty(workspace.as_fd())).unwrap_or(false)
    }

    /// Makes the folder a spare one, or removes it if it holds nothing but what every task leaves; whether it is gone.
    pub(super) fn remove_usual(&self, spares: &mut Spares) -> io::Result<bool> {
        if spares.give(self) {
            return Ok(true);
        }
        let folder = self.open()?;
        remove_files(folder.as_fd(), &LEFTOVERS)?;
        remove_files(folder.as_fd(), &[TASK_FILE])?;
        let emptied = [WORKSPACE, TMP].iter().all(|name| gone(unlinkat(&folder, *name, AtFlags::REMOVEDIR)));
        Ok(emptied && gone(unlinkat(rustix::fs::CWD, &self.path, AtFlags::REMOVEDIR)))
    }

    /// Moves the folder away, then drops all of it but the workspace.
    pub(super) fn keep_workspace(&self, to: &Path) -> io::Result<()> {
        let folder = self.open()?;
        fs::rename(&self.path, to)?;
        remove_files(folder.as_fd(), &LEFTOVERS)?;
        remove_files(folder.as_fd(), &LOG_LEFTOVERS)?;
        remove_files(folder.as_fd(), &[KEPT_FILE, YIELDED_MARK_FILE])?;
        remove_files(folder.as_fd(), &[TASK_FILE, BEFORE_FILE])?;
        for name in [TMP, FUNCTION] {
            remove_in(folder.as_fd(), name).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// The absolute folder a task runs in, when it does not run in its workspace.
pub(super) fn real_folder(spec: &JobSpec) -> Option<&Path> {
    let Workload::Command(command) = &spec.workload else {
        return None;
    };
    command.cwd.as_deref().map(Path::new).filter(|cwd| cwd.is_absolute())
}

/// Removes those of these files that are there.
fn remove_files(folder: BorrowedFd<'_>, names: &[&str]) -> io::Result<()> {
    for name in names {
        match unlinkat(folder, *name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn gone(removed: rustix::io::Result<()>) -> bool {
    matches!(removed, Ok(()) | Err(Errno::NOENT))
}

fn is_empty(folder: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(super::spares::names(folder)?.is_empty())
}

pub(super) fn relative(path: &str) -> io::Result<RelativePath> {
    RelativePath::new(path).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))
}

/// Writes a file only its owner can read, never through a link.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file: File = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)?;
    file.write_all(bytes)
}

/// Of a task in tests.
#[cfg(test)]
pub(super) fn assignment() -> Assignment {
    Assignment {
        task_id: crate::contract::ids::TaskId::from_u128(7),
        job_id: crate::contract::ids::JobId::from_u128(9),
        epoch: 1,
        attempt: 1,
        spec: std::sync::Arc::new(JobSpec::command(["true"])),
        gpus: Vec::new(),
        array: None,
        gang: None,
        checkpoint: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_folder_can_be_read_back_and_goes_by_name() {
        let tasks = tempfile::tempdir().unwrap();
        let folder = TaskFolder::create(tasks.path(), "boot", &assignment(), &mut Spares::default()).unwrap();
        let (found, file) = TaskFolder::found(folder.path().to_owned());
        let file = file.unwrap();
        assert_eq!((found, file.boot_id.as_str(), file.assignment), (folder.clone(), "boot", assignment()));
        fs::write(folder.path().join(process::SHIM_FILE), "{}").unwrap();
        assert!(folder.remove_usual(&mut Spares::default()).unwrap());
        assert!(!folder.path().exists());
    }

    #[test]
    fn what_a_program_left_goes_too() {
        let tasks = tempfile::tempdir().unwrap();
        let folder = TaskFolder::create(tasks.path(), "boot", &assignment(), &mut Spares::default()).unwrap();
        let closed = folder.workspace().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::write(closed.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("/", folder.tmp().join("root")).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
        assert!(!folder.remove_usual(&mut Spares::default()).unwrap());
        remove_tree(folder.path()).unwrap();
        assert!(!folder.path().exists());
        assert!(Path::new("/").exists());
    }

    #[test]
    fn what_a_program_made_endless_is_not_read() {
        let tasks = tempfile::tempdir().unwrap();
        let folder = TaskFolder::create(tasks.path(), "boot", &assignment(), &mut Spares::default()).unwrap();
        folder.note_checkpoint(3).unwrap();
        folder.note_yielded_mark("7").unwrap();
        assert!(!folder.wants_checkpoint(3) && folder.yielded_mark().is_some());
        let make = |name: &str, size_bytes| {
            // Holes: a disk of any size holds them.
            File::create(folder.path().join(name)).unwrap().set_len(size_bytes).unwrap();
        };
        [KEPT_FILE, YIELDED_MARK_FILE, process::STOP_FILE].iter().for_each(|name| make(name, 1 << 20));
        [TASK_FILE, BEFORE_FILE].iter().for_each(|name| make(name, 1 << 40));
        assert!(folder.wants_checkpoint(3) && folder.yielded_mark().is_none());
        assert!(folder.before().is_empty() && !folder.was_timed_out());
        assert!(TaskFolder::found(folder.path().to_owned()).1.is_none());
    }

    #[test]
    fn a_half_written_task_file_is_none() {
        let tasks = tempfile::tempdir().unwrap();
        let folder = TaskFolder::create(tasks.path(), "boot", &assignment(), &mut Spares::default()).unwrap();
        fs::write(folder.path().join(TASK_FILE), "{\"boot_id\":").unwrap();
        assert!(TaskFolder::found(folder.path().to_owned()).1.is_none());
        // A start that is reported again begins with a fresh folder.
        TaskFolder::create(tasks.path(), "boot", &assignment(), &mut Spares::default()).unwrap();
        assert!(TaskFolder::found(folder.path().to_owned()).1.is_some());
    }
}
