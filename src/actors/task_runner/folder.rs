//! A task's folder on its worker: everything that must outlive a restart of the worker.
//!
//! | name | meaning |
//! |---|---|
//! | `task.json` | the assignment and the boot it was received in; written once, before the start is reported |
//! | `workspace/` | where the program runs |
//! | `tmp/` | its `TMPDIR` |
//! | `before.json` | what staging put into the workspace; absent when it put nothing there |
//! | `shim.json`, `spool`, `overflow.zst`, `stop` | the shim's, see `process` |
//! | `whole-log.zst` | all that the program wrote, on its way to the server |
//!
//! Nothing is fsynced: a restart of the machine ends the task anyway, and anything less keeps the page cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::spares::Spares;
use crate::artifacts::{Snapshot, remove_tree};
use crate::contract::protocol::Assignment;
use crate::contract::spec::{JobSpec, Workload};
use crate::process::{self, RunAs};

pub(super) const TASK_FILE: &str = "task.json";
const BEFORE_FILE: &str = "before.json";
pub(super) const WORKSPACE: &str = "workspace";
pub(super) const TMP: &str = "tmp";
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
}

/// What `task.json` holds.
#[derive(Debug, Deserialize)]
pub(super) struct TaskFile {
    /// The boot in which it was received.
    pub(super) boot_id: String,
    /// The task.
    pub(super) assignment: Assignment,
}

#[derive(Serialize)]
struct TaskFileRef<'a> {
    boot_id: &'a str,
    assignment: &'a Assignment,
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
        let folder = Self { path: tasks.join(assignment.task_id.to_string()) };
        let made = folder.fill(boot_id, assignment, spares);
        if made.is_err() {
            // On a full disk half of it may be there, and would be taken for the remains of a task.
            let _ = remove_tree(&folder.path);
        }
        made.map(|()| folder)
    }

    fn fill(&self, boot_id: &str, assignment: &Assignment, spares: &mut Spares) -> io::Result<()> {
        if !spares.take(&self.path) {
            self.make()?;
        }
        let bytes = serde_json::to_vec(&TaskFileRef { boot_id, assignment })?;
        write_private(&self.path.join(TASK_FILE), &bytes)
    }

    /// Empties the workspace of a task that was never launched: staging may have come halfway. What is written down of
    /// the task stays, and no room is needed that was not there before.
    pub(super) fn empty(&self) -> io::Result<()> {
        for folder in [self.workspace(), self.tmp()] {
            remove_tree(&folder).map_err(io::Error::other)?;
            fs::DirBuilder::new().mode(0o700).create(&folder)?;
        }
        remove_files(&self.path, &LEFTOVERS)?;
        remove_files(&self.path, &[BEFORE_FILE])
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
        let text = fs::read(path.join(TASK_FILE)).ok();
        let file = text.and_then(|text| serde_json::from_slice(&text).ok());
        (Self { path }, file)
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

    /// Writes down what staging brought.
    pub(super) fn remember(&self, before: &Snapshot) -> io::Result<()> {
        if before.is_empty() {
            return Ok(());
        }
        write_private(&self.path.join(BEFORE_FILE), &serde_json::to_vec(before)?)
    }

    /// What staging had brought.
    pub(super) fn before(&self) -> Snapshot {
        let text = fs::read(self.path.join(BEFORE_FILE)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Whether there is nothing in the workspace, or no workspace any more.
    pub(super) fn workspace_is_empty(&self) -> bool {
        match fs::read_dir(self.workspace()) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// Makes the folder a spare one, or removes it if it holds nothing but what every task leaves; whether it is gone.
    pub(super) fn remove_usual(&self, spares: &mut Spares) -> io::Result<bool> {
        if spares.give(self) {
            return Ok(true);
        }
        remove_files(&self.path, &LEFTOVERS)?;
        remove_files(&self.path, &[TASK_FILE])?;
        let emptied = gone(fs::remove_dir(self.workspace())) && gone(fs::remove_dir(self.tmp()));
        Ok(emptied && gone(fs::remove_dir(&self.path)))
    }

    /// Moves the folder away, then drops all of it but the workspace.
    pub(super) fn keep_workspace(&self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        remove_files(to, &LEFTOVERS)?;
        remove_files(to, &LOG_LEFTOVERS)?;
        remove_files(to, &[TASK_FILE, BEFORE_FILE])?;
        remove_tree(&to.join(TMP)).map_err(io::Error::other)
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
fn remove_files(folder: &Path, names: &[&str]) -> io::Result<()> {
    for name in names {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn gone(removed: io::Result<()>) -> bool {
    match removed {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// Writes a file only its owner can read.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::contract::ids::{JobId, TaskId};

    fn assignment() -> Assignment {
        Assignment {
            task_id: TaskId::from_u128(7),
            job_id: JobId::from_u128(9),
            epoch: 1,
            attempt: 1,
            spec: Arc::new(JobSpec::command(["true"])),
        }
    }

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
