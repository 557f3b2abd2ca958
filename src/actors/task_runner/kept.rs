//! Workspaces with undeclared files, kept until `workspace_ttl_s` has passed: `kept/<job_id>/workspace`.
//! One per job, the newest attempt's.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::folder::{TaskFolder, remove_tree, write_private};
use crate::artifacts::{RelativePath, open_beneath, open_folder};
use crate::contract::ids::JobId;
use crate::contract::quantity::Timestamp;

const KEPT_FILE: &str = "kept.json";
const WORKSPACE: &str = "workspace";

/// The kept workspaces of one worker; clones share the folder.
#[derive(Debug, Clone)]
pub struct KeptWorkspaces {
    folder: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct KeptFile {
    expires_at: Timestamp,
}

impl KeptWorkspaces {
    /// Those beneath this folder, which need not exist yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Opens a kept file for reading; `None` when it is not there (any more), or is no regular file, or lies behind
    /// a link.
    pub fn open(&self, job_id: JobId, path: &RelativePath) -> Option<File> {
        let workspace = open_folder(&self.of(job_id).join(WORKSPACE)).ok()?;
        open_beneath(workspace.as_fd(), path).ok()
    }

    /// Drops what is kept for a job, such as one that was purged.
    pub fn discard(&self, job_id: JobId) -> io::Result<()> {
        remove_tree(&self.of(job_id))
    }

    /// Takes over a finished task's folder.
    pub(super) fn keep(&self, task: &TaskFolder, job_id: JobId, expires_at: Timestamp) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        write_private(&task.path().join(KEPT_FILE), &serde_json::to_vec(&KeptFile { expires_at })?)?;
        let place = self.of(job_id);
        remove_tree(&place)?;
        task.keep_workspace(&place)
    }

    /// Removes what has expired; how many workspaces.
    pub(super) fn remove_expired(&self, now: Timestamp) -> io::Result<usize> {
        let listing = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            listing => listing?,
        };
        let mut removed = 0;
        for entry in listing {
            let path = entry?.path();
            if expires_at(&path).is_none_or(|expires_at| expires_at <= now) {
                remove_tree(&path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn of(&self, job_id: JobId) -> PathBuf {
        self.folder.join(job_id.to_string())
    }
}

fn expires_at(kept: &Path) -> Option<Timestamp> {
    let text = fs::read(kept.join(KEPT_FILE)).ok()?;
    Some(serde_json::from_slice::<KeptFile>(&text).ok()?.expires_at)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Arc;

    use super::super::spares::Spares;
    use super::*;
    use crate::contract::ids::TaskId;
    use crate::contract::protocol::Assignment;
    use crate::contract::spec::JobSpec;

    #[test]
    fn kept_files_can_be_read_until_they_expire() {
        let worker = tempfile::tempdir().unwrap();
        let job_id = JobId::from_u128(9);
        let assignment = Assignment {
            task_id: TaskId::from_u128(7),
            job_id,
            epoch: 1,
            attempt: 1,
            spec: Arc::new(JobSpec::command(["true"])),
        };
        let task = TaskFolder::create(worker.path(), "boot", &assignment, &mut Spares::default()).unwrap();
        fs::create_dir(task.workspace().join("deep")).unwrap();
        fs::write(task.workspace().join("deep/core.txt"), "dumped").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", task.workspace().join("link")).unwrap();

        let kept = KeptWorkspaces::new(worker.path().join("kept"));
        kept.keep(&task, job_id, Timestamp::from_micros(10)).unwrap();
        assert!(!task.path().exists());

        let path = |text| RelativePath::new(text).unwrap();
        let mut text = String::new();
        kept.open(job_id, &path("deep/core.txt")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "dumped");
        assert!(kept.open(job_id, &path("link")).is_none());
        assert!(kept.open(JobId::from_u128(1), &path("deep/core.txt")).is_none());

        assert_eq!(kept.remove_expired(Timestamp::from_micros(9)).unwrap(), 0);
        assert_eq!(kept.remove_expired(Timestamp::from_micros(10)).unwrap(), 1);
        assert!(kept.open(job_id, &path("deep/core.txt")).is_none());
    }
}
