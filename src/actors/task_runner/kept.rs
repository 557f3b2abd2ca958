//! Workspaces with undeclared files, kept until `workspace_ttl_s` has passed or the disk needs the room:
//! `kept/<job_id>/workspace`. One per job, the newest attempt's. Of one that went, `kept/<job_id>.gone` says when and
//! why for a week.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::folder::{TaskFolder, write_private};
use super::room::disk_usage;
use super::trash::{Trash, tell};
use crate::artifacts::{RelativePath, RemoveError, open_beneath, open_folder, open_folder_beneath};
use crate::contract::ids::{JobId, TaskId};
use crate::contract::quantity::{Seconds, Timestamp};
use crate::domain::disk::{Disposable, Entry};

const KEPT_FILE: &str = "kept.json";
const WORKSPACE: &str = "workspace";
const GONE: &str = "gone";
/// The default of `workspace_ttl_s`.
const USUAL_TTL: Seconds = Seconds::new(86_400);
/// How long it is remembered that a workspace went.
const REMEMBERED: Seconds = Seconds::new(7 * 86_400);

/// The kept workspaces of one worker; clones share the folder.
#[derive(Debug, Clone)]
pub struct KeptWorkspaces {
    folder: PathBuf,
    trash: Trash,
}

/// A folder of [`KeptWorkspaces`], by name: whatever lies there can go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place(std::ffi::OsString);

#[derive(Serialize, Deserialize)]
struct KeptFile {
    expires_at: Timestamp,
    /// Absent in those of older versions.
    #[serde(default)]
    kept_at: Timestamp,
}

/// Why a workspace is kept no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Cause {
    Expired,
    NoRoom,
}

#[derive(Serialize, Deserialize)]
struct GoneFile {
    at: Timestamp,
    cause: Cause,
}

/// A file of the workspace in this folder's folder.
fn file_in(folder: &Path, name: &str, path: &RelativePath) -> Option<File> {
    let workspace = RelativePath::new(&format!("{name}/{WORKSPACE}")).ok()?;
    let workspace = open_folder_beneath(open_folder(folder).ok()?.as_fd(), &workspace).ok()?;
    open_beneath(workspace.as_fd(), path).ok()
}

impl KeptWorkspaces {
    /// Those beneath this folder, which need not exist yet.
    pub fn new(folder: PathBuf) -> Self {
        let trash = folder.with_file_name("trash");
        Self { folder, trash: Trash::new(trash) }
    }

    /// Opens a kept file for reading; `None` when it is not there (any more), or is no regular file, or lies behind
    /// a link. A workspace is taken over a moment after its task's end is known: until then it is found where the
    /// `ended` task left it.
    pub fn open(&self, job_id: JobId, ended: Option<TaskId>, path: &RelativePath) -> Option<File> {
        let kept = || file_in(&self.folder, &job_id.to_string(), path);
        let left = || file_in(&self.folder.with_file_name("tasks"), &ended?.to_string(), path);
        // Once more: it may have been taken over between the two looks.
        kept().or_else(left).or_else(kept)
    }

    /// When and why the workspace of a job went, for people; `None` = it is there, or nothing is known of it.
    pub fn gone(&self, job_id: JobId) -> Option<String> {
        if self.of(job_id).exists() {
            return None;
        }
        let text = fs::read(self.mark_of(&job_id.to_string())).ok()?;
        let gone: GoneFile = serde_json::from_slice(&text).ok()?;
        let why = match gone.cause {
            Cause::Expired => "its workspace_ttl_s had passed",
            Cause::NoRoom => "the worker's disk needed the room (worker_evict_below_bytes)",
        };
        Some(format!("the workspace was removed at {}: {why}", gone.at))
    }

    /// Drops what is kept for a job, such as one that was purged.
    pub fn discard(&self, job_id: JobId) -> io::Result<()> {
        let _ = fs::remove_file(self.mark_of(&job_id.to_string()));
        self.trash.throw(&self.of(job_id)).map_err(io::Error::other)
    }

    /// Takes over a finished task's folder.
    pub(super) fn keep(
        &self,
        task: &TaskFolder,
        job_id: JobId,
        now: Timestamp,
        ttl: Seconds,
    ) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let place = self.of(job_id);
        self.trash.throw(&place).map_err(io::Error::other)?;
        task.keep_workspace(&place)?;
        // Last: on a full disk there is room for it only now. Without it the workspace is kept for the usual time.
        let file = KeptFile { expires_at: now.plus(ttl), kept_at: now };
        if let Err(error) = write_private(&place.join(KEPT_FILE), &serde_json::to_vec(&file)?) {
            tracing::warn!(path = %place.display(), %error, "how long to keep a workspace cannot be written down");
        }
        Ok(())
    }

    /// Removes what has expired, and the memory of what went long ago; how many workspaces.
    pub(super) fn remove_expired(&self, now: Timestamp) -> usize {
        let mut removed = 0;
        for path in self.listed() {
            if path.extension().is_some_and(|extension| extension == GONE) {
                let long_ago = read::<GoneFile>(&path).is_none_or(|gone| gone.at.plus(REMEMBERED) <= now);
                if long_ago {
                    let _ = fs::remove_file(&path);
                }
            } else if kept_file(&path).is_none_or(|kept| kept.expires_at <= now) {
                match self.remove(&path, Cause::Expired, now) {
                    Ok(()) => removed += 1,
                    Err(error) => tell(&error),
                }
            }
        }
        removed
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What is kept, for whoever makes room. Blocks: it measures every one of them.
    pub(super) fn entries(&self, now: Timestamp) -> Vec<Entry<Place>> {
        let entry = |path: PathBuf| {
            let key = Place(path.file_name()?.to_owned());
            let kind = match kept_file(&path) {
                Some(kept) if kept.expires_at > now => Disposable::Kept { kept_at: kept.kept_at },
                kept => Disposable::Expired { expires_at: kept.map_or(now, |kept| kept.expires_at) },
            };
            Some(Entry { key, kind, size_bytes: disk_usage(&path), in_use: false })
        };
        self.listed().into_iter().filter(|path| path.is_dir()).filter_map(entry).collect()
    }

    /// Removes one because the disk needs the room. Blocks.
    pub(super) fn evict(&self, place: &Place, now: Timestamp) -> Result<(), RemoveError> {
        self.remove(&self.folder.join(&place.0), Cause::NoRoom, now)
    }

    /// Removes first and remembers then: on a full disk the memory finds room only afterwards.
    fn remove(&self, path: &Path, cause: Cause, now: Timestamp) -> Result<(), RemoveError> {
        let removed = self.trash.throw(path);
        if let Some(name) = path.file_name().and_then(|name| name.to_str())
            && let Ok(text) = serde_json::to_vec(&GoneFile { at: now, cause })
            && let Err(error) = write_private(&self.mark_of(name), &text)
        {
            tracing::debug!(%error, "why a workspace went is not remembered");
        }
        removed
    }

    fn listed(&self) -> Vec<PathBuf> {
        match fs::read_dir(&self.folder) {
            Ok(listing) => listing.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                tracing::warn!(path = %self.folder.display(), %error, "kept workspaces cannot be listed");
                Vec::new()
            }
        }
    }

    fn of(&self, job_id: JobId) -> PathBuf {
        self.folder.join(job_id.to_string())
    }

    fn mark_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{GONE}"))
    }
}

/// Without a readable file: the usual time from the last change of the folder.
fn kept_file(kept: &Path) -> Option<KeptFile> {
    read(&kept.join(KEPT_FILE)).or_else(|| {
        let kept_at = Timestamp::from_micros(fs::metadata(kept).ok()?.mtime().saturating_mul(1_000_000));
        Some(KeptFile { expires_at: kept_at.plus(USUAL_TTL), kept_at })
    })
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Arc;

    use super::super::spares::Spares;
    use super::*;
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
            gpus: Vec::new(),
            array: None,
            gang: None,
            checkpoint: None,
        };
        let tasks = worker.path().join("tasks");
        fs::create_dir(&tasks).unwrap();
        let task = TaskFolder::create(&tasks, "boot", &assignment, &mut Spares::default()).unwrap();
        fs::create_dir(task.workspace().join("deep")).unwrap();
        fs::write(task.workspace().join("deep/core.txt"), "dumped").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", task.workspace().join("link")).unwrap();

        let kept = KeptWorkspaces::new(worker.path().join("kept"));
        let early = RelativePath::new("deep/core.txt").unwrap();
        assert!(kept.open(job_id, Some(TaskId::from_u128(7)), &early).is_some(), "before it is taken over");
        assert!(kept.open(job_id, Some(TaskId::from_u128(8)), &early).is_none());
        let at = Timestamp::from_micros;
        kept.keep(&task, job_id, at(8), Seconds::from_millis(2)).unwrap();
        assert!(!task.path().exists());

        let path = |text| RelativePath::new(text).unwrap();
        let mut text = String::new();
        kept.open(job_id, None, &path("deep/core.txt")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "dumped");
        assert!(kept.open(job_id, None, &path("link")).is_none());
        assert!(kept.open(JobId::from_u128(1), None, &path("deep/core.txt")).is_none());

        let workspace = kept.of(job_id).join(WORKSPACE);
        fs::rename(&workspace, worker.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(worker.path().join("moved"), &workspace).unwrap();
        assert!(kept.open(job_id, None, &path("deep/core.txt")).is_none(), "through a link in its place");

        assert_eq!(kept.remove_expired(at(2007)), 0);
        assert_eq!(kept.gone(job_id), None);
        assert_eq!(kept.remove_expired(at(2008)), 1);
        assert!(kept.open(job_id, None, &path("deep/core.txt")).is_none());
        let gone = kept.gone(job_id).unwrap();
        assert!(gone.contains("1970-01-01T00:00:00.002008Z") && gone.contains("workspace_ttl_s"), "{gone}");
        kept.remove_expired(at(2008).plus(REMEMBERED));
        assert_eq!(kept.gone(job_id), None);
    }

    #[test]
    fn what_is_removed_to_make_room_is_remembered_as_that() {
        let worker = tempfile::tempdir().unwrap();
        let kept = KeptWorkspaces::new(worker.path().join("kept"));
        let (job_id, now) = (JobId::from_u128(9), Timestamp::from_micros(5));
        let place = kept.of(job_id);
        fs::create_dir_all(place.join(WORKSPACE)).unwrap();
        fs::write(place.join(WORKSPACE).join("big"), vec![1; 64 << 10]).unwrap();
        let file = KeptFile { expires_at: Timestamp::from_micros(9), kept_at: Timestamp::from_micros(1) };
        fs::write(place.join(KEPT_FILE), serde_json::to_vec(&file).unwrap()).unwrap();
        let entries = kept.entries(now);
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].kind, Disposable::Kept { kept_at: file.kept_at });
        assert!(entries[0].size_bytes >= 64 << 10);
        kept.evict(&entries[0].key, now).unwrap();
        assert!(!place.exists());
        assert!(kept.gone(job_id).unwrap().contains("needed the room"));
        assert!(kept.entries(now).is_empty(), "the memory of it is nothing that could go");
        kept.discard(job_id).unwrap();
        assert_eq!(kept.gone(job_id), None);
    }
}
