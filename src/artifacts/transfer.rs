//! Files into and out of the store on one machine, without HTTP: the in-process worker's outputs and inputs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::copy::{copy_contents, copy_hashed};
use super::error::ArtifactError;
use super::store::{ArtifactStore, present};
use crate::contract::artifact::Digest;

/// What an import made of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// Its address.
    pub digest: Digest,
    /// Its length in bytes.
    pub size_bytes: u64,
}

/// A temporary file that goes away unless it was published.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = present(fs::remove_file(&self.0)) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove a temporary file");
        }
    }
}

impl ArtifactStore {
    /// Copies a file into the store. Does not follow a link at `path`. Durable when this returns.
    pub fn import_file(&self, path: &Path) -> Result<Imported, ArtifactError> {
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.cast_signed())
            .open(path)
            .map_err(ArtifactError::at("open", path))?;
        self.import(&file, path)
    }

    /// Copies an open file into the store; `shown` names it in errors. Durable when this returns. The digest is
    /// that of the bytes stored, even when somebody writes to the file meanwhile.
    pub fn import(&self, source: &File, shown: &Path) -> Result<Imported, ArtifactError> {
        let metadata = source.metadata().map_err(ArtifactError::at("look at", shown))?;
        if !metadata.is_file() {
            return Err(ArtifactError::NotRegular { path: shown.to_owned() });
        }
        let size_bytes = metadata.len();
        let limit_bytes = self.shared.limits.max_artifact_bytes;
        if size_bytes > limit_bytes {
            return Err(ArtifactError::TooLarge { limit_bytes });
        }
        let number = self.shared.next_import.fetch_add(1, Ordering::Relaxed);
        let path = self.partial_path(&format!("import-{}-{number}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(ArtifactError::at("create", &path))?;
        let temporary = Temporary(path);
        let hash = copy_hashed(source, &file, size_bytes).map_err(ArtifactError::at("copy from", shown))?;
        let digest = Digest::from_bytes(sha2::Digest::finalize(hash).into());
        if !self.touch(digest)? {
            self.publish(&file, &temporary.0, digest)?;
        }
        Ok(Imported { digest, size_bytes })
    }

    /// Copies an artifact to a new file at `dest` (mode 0644); its length in bytes. Never a link into the store.
    pub fn export_to(&self, digest: Digest, dest: &Path) -> Result<u64, ArtifactError> {
        let (source, size_bytes) = self.open_read(digest)?.ok_or(ArtifactError::Absent { digest })?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(dest)
            .map_err(ArtifactError::at("create", dest))?;
        copy_contents(&source, &file, size_bytes).map_err(ArtifactError::at("write", dest))?;
        Ok(size_bytes)
    }
}
