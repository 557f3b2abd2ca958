//! One upload: bytes appended to a partial file and hashed as they come, resumable after a cut, a suspension or
//! a restart. At most one upload per digest and sender is live; a second one is refused at once, so that it holds no
//! thread.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use super::copy::hash_into;
use super::error::ArtifactError;
use super::store::{ArtifactStore, present, sync_folder};
use crate::contract::artifact::Digest;

/// Beyond this many interrupted uploads their hashes are forgotten, and a resumed one is read again instead.
const MAX_PARKED: usize = 1024;

/// The hash of the first `received_bytes` of a partial file.
#[derive(Debug)]
pub(super) struct Parked {
    hash: Sha256,
    received_bytes: u64,
}

/// How an upload may go on.
#[derive(Debug)]
pub enum Begun {
    /// Append from the offset asked for.
    Upload(Box<Upload>),
    /// It is here already, and now pinned: nothing to send.
    Present {
        /// Its length in bytes.
        size_bytes: u64,
    },
    /// The offset asked for lies beyond what was received: go on from here instead.
    Gap {
        /// Bytes received so far.
        received_bytes: u64,
    },
}

/// Whose upload it is. Whoever may not know what is here sends blindly: into a file of their own, and all of it, also
/// when the artifact is here already, so that nothing tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sender {
    /// May know of every artifact; these share one file per digest.
    Knowing,
    /// May not; told apart by this number.
    Blind(u64),
}

/// What names an upload.
pub(super) type UploadKey = (Digest, Sender);

/// The name of an upload's file.
fn partial_name((digest, sender): UploadKey) -> String {
    match sender {
        Sender::Knowing => digest.hex(),
        Sender::Blind(number) => format!("{}-{number:016x}", digest.hex()),
    }
}

/// The upload whose file has this name.
pub(super) fn upload_named(name: &str) -> Option<UploadKey> {
    match name.split_once('-') {
        None => Some((Digest::from_hex(name).ok()?, Sender::Knowing)),
        Some((hex, number)) => {
            Some((Digest::from_hex(hex).ok()?, Sender::Blind(u64::from_str_radix(number, 16).ok()?)))
        }
    }
}

/// An artifact on its way in. Dropping it keeps what was received for a later `begin`.
#[derive(Debug)]
pub struct Upload {
    store: ArtifactStore,
    key: UploadKey,
    path: PathBuf,
    file: File,
    /// `None` once the partial file is published or removed.
    hash: Option<Sha256>,
    received_bytes: u64,
    // After the fields above: the next upload may begin only when this one's hash is parked.
    _claim: Claim,
}

/// The exclusive right to a digest's partial file.
#[derive(Debug)]
struct Claim {
    store: ArtifactStore,
    key: UploadKey,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.store.shared.uploads.lock().live.remove(&self.key);
    }
}

impl ArtifactStore {
    /// Starts or takes up the upload of `digest` at byte `offset`. 0 starts over; an offset below what was
    /// received drops what lies behind it. [`ArtifactError::UploadBusy`] while another upload of the digest is
    /// live: whoever sends it waits, not a thread here.
    pub fn begin(&self, digest: Digest, offset: u64) -> Result<Begun, ArtifactError> {
        self.begin_as(digest, offset, Sender::Knowing)
    }

    /// The same by a certain sender. To a blind one nothing is ever [`Begun::Present`].
    pub fn begin_as(&self, digest: Digest, offset: u64, sender: Sender) -> Result<Begun, ArtifactError> {
        let key = (digest, sender);
        let claim = self.claim(key)?;
        if sender == Sender::Knowing
            && self.touch(digest)?
            && let Some(size_bytes) = self.size_bytes(digest)?
        {
            return Ok(Begun::Present { size_bytes });
        }
        let path = self.partial_path(&partial_name(key));
        let parked = self.shared.uploads.lock().parked.remove(&key);
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(offset == 0).truncate(offset == 0);
        let Some(mut file) = present(open.open(&path)).map_err(ArtifactError::at("open", &path))? else {
            return Ok(Begun::Gap { received_bytes: 0 });
        };
        let length = file.metadata().map_err(ArtifactError::at("look at", &path))?.len();
        if offset > length {
            if let Some(parked) = parked {
                self.park(key, parked);
            }
            return Ok(Begun::Gap { received_bytes: length });
        }
        if offset < length {
            file.set_len(offset).map_err(ArtifactError::at("truncate", &path))?;
        }
        let hash = match parked {
            Some(parked) if parked.received_bytes == offset => parked.hash,
            _ => {
                let mut hash = Sha256::new();
                hash_into(&mut hash, &file, offset).map_err(ArtifactError::at("read", &path))?;
                hash
            }
        };
        file.seek(SeekFrom::Start(offset)).map_err(ArtifactError::at("seek in", &path))?;
        Ok(Begun::Upload(Box::new(Upload {
            store: self.clone(),
            key,
            path,
            file,
            hash: Some(hash),
            received_bytes: offset,
            _claim: claim,
        })))
    }

    /// Bytes received of an unfinished upload, if there is one.
    pub fn received(&self, digest: Digest) -> Result<Option<u64>, ArtifactError> {
        self.received_from(digest, Sender::Knowing)
    }

    /// The same of a certain sender.
    pub fn received_from(&self, digest: Digest, sender: Sender) -> Result<Option<u64>, ArtifactError> {
        let path = self.partial_path(&partial_name((digest, sender)));
        let found = present(std::fs::metadata(&path)).map_err(ArtifactError::at("look at", &path))?;
        Ok(found.map(|metadata| metadata.len()))
    }

    fn claim(&self, key: UploadKey) -> Result<Claim, ArtifactError> {
        if !self.shared.uploads.lock().live.insert(key) {
            return Err(ArtifactError::UploadBusy { digest: key.0 });
        }
        Ok(Claim { store: self.clone(), key })
    }

    fn park(&self, key: UploadKey, parked: Parked) {
        let mut uploads = self.shared.uploads.lock();
        if uploads.parked.len() >= MAX_PARKED {
            uploads.parked.clear();
        }
        uploads.parked.insert(key, parked);
    }
}

impl Upload {
    /// Bytes received so far, those of earlier parts included.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Adds the next bytes. After an error the upload holds what it held before, unless it is `TooLarge`.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), ArtifactError> {
        let limit_bytes = self.store.shared.limits.max_artifact_bytes;
        if self.received_bytes.saturating_add(bytes.len() as u64) > limit_bytes {
            self.remove();
            return Err(ArtifactError::TooLarge { limit_bytes });
        }
        if let Err(error) = self.file.write_all(bytes) {
            // A part of them may have been written, and the hash knows nothing of it.
            let undone = self.file.set_len(self.received_bytes);
            if undone.and_then(|()| self.file.seek(SeekFrom::Start(self.received_bytes))).is_err() {
                self.remove();
            }
            return Err(ArtifactError::at("write", &self.path)(error));
        }
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
        self.received_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Stops here for now. What was received is on disk when this returns; its length in bytes.
    pub fn suspend(self) -> Result<u64, ArtifactError> {
        self.file.sync_all().map_err(ArtifactError::at("sync", &self.path))?;
        if let Some(folder) = self.path.parent() {
            sync_folder(folder)?;
        }
        Ok(self.received_bytes)
    }

    /// Checks the digest and publishes the artifact; its length in bytes. Durable when this returns. After a
    /// mismatch nothing of it is kept.
    pub fn finish(mut self) -> Result<u64, ArtifactError> {
        let Some(hash) = self.hash.take() else {
            return Err(ArtifactError::Absent { digest: self.key.0 });
        };
        let actual = Digest::from_bytes(hash.finalize().into());
        if actual != self.key.0 {
            self.remove();
            return Err(ArtifactError::DigestMismatch { expected: self.key.0, actual });
        }
        // After a failed sync nobody knows what is on disk: the sender has to start over.
        if let Err(error) = self.store.publish(&self.file, &self.path, self.key.0) {
            self.remove();
            return Err(error);
        }
        Ok(self.received_bytes)
    }

    fn remove(&mut self) {
        self.hash = None;
        if let Err(error) = present(std::fs::remove_file(&self.path)) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a partial upload");
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(hash) = self.hash.take() {
            self.store.park(self.key, Parked { hash, received_bytes: self.received_bytes });
        }
    }
}
