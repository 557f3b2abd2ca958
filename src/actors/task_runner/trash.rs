//! Where folders go that nobody needs any more: moved here at once, so that no restart takes them for something
//! else, and then removed. What cannot be removed (a mount in it, a file made immutable) stays here, is named
//! once, and is tried again now and then.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::artifacts::{RemoveError, remove_tree};

/// The trash of one worker; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Trash {
    folder: PathBuf,
    thrown: Arc<AtomicU64>,
}

impl Trash {
    /// The trash in this folder, which need not exist yet.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, thrown: Arc::default() }
    }

    /// Takes a folder away from where it is and removes it, however much there is. Blocks. After an error the folder
    /// is here, or where it was when even that is not possible, and what could be removed of it is gone.
    pub(super) fn throw(&self, path: &Path) -> Result<(), RemoveError> {
        match self.take(path) {
            Some(taken) => remove_tree(&taken),
            None => remove_tree(path),
        }
    }

    /// Moves it here; `None` when it is not there, or cannot be moved (another volume, no room for a name).
    fn take(&self, path: &Path) -> Option<PathBuf> {
        let name = path.file_name()?;
        let number = self.thrown.fetch_add(1, Ordering::Relaxed);
        let taken = self.folder.join(format!("{}-{number}-{}", std::process::id(), name.display()));
        match fs::rename(path, &taken) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).ok()?;
                fs::rename(path, &taken).ok()?;
            }
            moved => moved.ok()?,
        }
        Some(taken)
    }

    /// Tries again to remove what is still here. Blocks. `first` = nobody was told of it yet.
    pub(super) fn empty(&self, first: bool) {
        let Ok(listing) = fs::read_dir(&self.folder) else {
            // Not there: nothing was ever thrown away.
            return;
        };
        for path in listing.filter_map(|entry| Some(entry.ok()?.path())) {
            match remove_tree(&path) {
                Ok(()) => {}
                Err(error) if first => tell(&error),
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "still cannot be removed");
                }
            }
        }
    }
}

/// Names what stays in the trash, and what becomes of it.
pub(super) fn tell(error: &RemoveError) {
    tracing::warn!(
        error = error as &dyn std::error::Error,
        "the remains of a task cannot be removed; it is tried again now and then"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_thrown_away_is_gone_and_what_was_left_goes_later() {
        let worker = tempfile::tempdir().unwrap();
        let trash = Trash::new(worker.path().join("trash"));
        trash.empty(true);
        trash.throw(&worker.path().join("never was")).unwrap();
        for _ in 0..2 {
            fs::create_dir_all(worker.path().join("task/deep")).unwrap();
            trash.throw(&worker.path().join("task")).unwrap();
            assert!(!worker.path().join("task").exists());
        }
        fs::create_dir_all(worker.path().join("trash/of an earlier start/deep")).unwrap();
        trash.empty(true);
        assert_eq!(fs::read_dir(worker.path().join("trash")).unwrap().count(), 0);
    }
}
