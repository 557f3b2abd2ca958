//! Room on the disk: how much is left, and a ballast file that is given up when a commit finds none.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use super::error::StoreError;

/// Below this submissions are refused: enough for the databases to take every finish and cancel of what was accepted.
pub const DEFAULT_MIN_FREE_BYTES: u64 = 256 << 20;
/// What the ballast holds back.
pub const DEFAULT_BALLAST_BYTES: u64 = 64 << 20;

/// With less than this left a database cannot even be opened for writing: its index of the log takes some.
pub const NEXT_TO_NOTHING_BYTES: u64 = 1 << 20;

/// Bytes an ordinary user can still write to the file system of `path`.
pub fn free_bytes(path: &Path) -> Result<u64, StoreError> {
    let room = rustix::fs::statvfs(path).map_err(|errno| StoreError::File {
        act: "measure the free space of",
        path: path.to_owned(),
        source: errno.into(),
    })?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

/// A file that takes up room so that it can be freed at once for a finish or a cancel.
#[derive(Debug)]
pub struct Ballast {
    path: PathBuf,
    bytes: u64,
}

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Bytes left beside the ballast.
    pub free_bytes: u64,
    /// Whether that is less than `min_free_bytes`: submissions get `storage_full`.
    pub full: bool,
}

impl Ballast {
    /// A ballast of so many bytes in this folder. Nothing is written before [`Ballast::look`].
    pub fn new(folder: &Path, bytes: u64) -> Self {
        Self::named(folder, "ballast", bytes)
    }

    /// The same under another name, for a folder that has one already.
    pub(super) fn named(folder: &Path, name: &str, bytes: u64) -> Self {
        Self { path: folder.join(name), bytes }
    }

    /// Frees the room when next to nothing is left beside it, so that a start finds some; whether it did.
    pub fn give_way(&self) -> bool {
        self.folder_is_full() && self.release()
    }

    /// Whether a write that failed there may have failed for lack of room, whatever it was called.
    pub(super) fn folder_is_full(&self) -> bool {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        free_bytes(folder).is_ok_and(|free| free < NEXT_TO_NOTHING_BYTES)
    }

    /// Looks how much room there is, and takes the ballast again when it is gone and would leave enough.
    /// Called at start-up and now and then.
    pub fn look(&self, min_free_bytes: u64) -> Result<Level, StoreError> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut free_bytes = free_bytes(folder)?;
        if !self.is_there() && free_bytes >= min_free_bytes.saturating_add(self.bytes) && self.take() {
            free_bytes -= self.bytes;
        }
        Ok(Level { free_bytes, full: free_bytes < min_free_bytes })
    }

    /// Frees the room. `false` = there was nothing to free.
    pub fn release(&self) -> bool {
        std::fs::remove_file(&self.path).is_ok()
    }

    fn is_there(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|file| file.len() == self.bytes)
    }

    /// A ballast is a comfort: where it cannot be had, the daemon works without.
    fn take(&self) -> bool {
        let reserve = |file: File| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, self.bytes);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path);
        match file.and_then(|file| Ok(reserve(file)?)) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, path = %self.path.display(), "no ballast");
                self.release();
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ballast_is_taken_when_there_is_room_and_freed_once() {
        let folder = tempfile::tempdir().unwrap();
        let ballast = Ballast::new(folder.path(), 1 << 20);
        let level = ballast.look(1).unwrap();
        assert!(!level.full);
        assert_eq!(std::fs::metadata(folder.path().join("ballast")).unwrap().len(), 1 << 20);
        assert!(ballast.release());
        assert!(!ballast.release());
    }

    #[test]
    fn without_room_there_is_no_ballast_and_the_level_says_full() {
        let folder = tempfile::tempdir().unwrap();
        let ballast = Ballast::new(folder.path(), 1 << 20);
        assert!(ballast.look(u64::MAX).unwrap().full);
        assert!(!ballast.release());
    }
}
