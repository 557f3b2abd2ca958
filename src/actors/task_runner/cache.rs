//! Artifacts that came over a network, kept by digest for the next task: `cache/sha256/<hex>`, read-only files that
//! tasks get copies of (reflinks where the file system can).
//!
//! The one exception are large arguments of functions, which every call only reads: where tasks run as the worker's own
//! user, and nothing of the worker is safe from them, a call gets one under a second name and not as a copy. So the
//! server's own files, on its machine, are copied here for that: the store is never linked to. A call that changes its
//! argument changes it for those that read it at that moment, and for nobody after them.
//!
//! Nothing is fsynced. What an earlier start of the worker left may be damaged (a crash between a name and its
//! bytes, a bad disk), so its bytes are hashed once before their first use; after that the size and the time of
//! the last change are compared at each use, and hashed again when they differ. The time of the last change is also
//! when a file was last used.
//!
//! Unpacked trees are not cached: to make 1,000 small files again from a tar took less time than to copy them from
//! a tree (measured on ext4, and a reflink saves nothing on small files).

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::artifacts::{Whole, copy_contents, remove_tree};
use crate::client::worker_channel::{ChannelError, WorkerChannel};
use crate::contract::artifact::Digest;
use crate::contract::quantity::Timestamp;
use crate::domain::disk::{Disposable, Entry};

/// The cache of one worker; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    /// What was hashed in this start and found whole.
    whole: Whole,
    /// Who reads, fetches or checks what.
    turns: Mutex<HashMap<Digest, Turn>>,
    fills: AtomicU64,
}

/// One file's readers and the right to fill it.
#[derive(Debug, Default)]
struct Turn {
    users: usize,
    filling: Arc<tokio::sync::Mutex<()>>,
}

/// A cached artifact, which stays in the cache as long as this lives.
#[derive(Debug)]
pub(super) struct Taken {
    /// Its bytes.
    pub(super) file: File,
    _use: Option<Use>,
}

impl Taken {
    /// Bytes that no cache holds.
    pub(super) fn uncached(file: File) -> Self {
        Self { file, _use: None }
    }
}

#[derive(Debug)]
struct Use {
    cache: Cache,
    digest: Digest,
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut turns = self.cache.shared.turns.lock();
        if let Some(turn) = turns.get_mut(&self.digest) {
            turn.users -= 1;
            if turn.users == 0 {
                turns.remove(&self.digest);
            }
        }
    }
}

/// A file on its way in; removed unless it was given its name.
struct Filling(PathBuf);

impl Drop for Filling {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What a look for an artifact found.
enum Found {
    Here(Taken),
    Vacant(Vacant),
}

/// The right to fill a place.
struct Vacant {
    used: Use,
    scratch: Filling,
    _turn: OwnedMutexGuard<()>,
}

impl Vacant {
    /// Gives the file at `scratch` its name.
    fn fill(self, file: File) -> Taken {
        let Self { used, scratch, _turn } = self;
        let path = used.cache.path_of(used.digest);
        let keep = || {
            let read_only = rustix::fs::Mode::from_raw_mode(0o444);
            rustix::fs::fchmod(&file, read_only)?;
            fs::rename(&scratch.0, &path)?;
            file.metadata()
        };
        match keep() {
            Ok(stat) => used.cache.shared.whole.remember(used.digest, &stat),
            // This task has its bytes all the same.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "an artifact cannot be kept in the cache")
            }
        }
        Taken { file, _use: Some(used) }
    }
}

impl Cache {
    /// The cache in this folder, which need not exist yet.
    pub(super) fn new(folder: PathBuf) -> Self {
        let shared =
            Shared { folder, whole: Whole::default(), turns: Mutex::default(), fills: AtomicU64::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// Clears what an earlier start was fetching.
    pub(super) fn clear_unfinished(&self) {
        let filling = self.shared.folder.join("filling");
        if let Err(error) = remove_tree(&filling) {
            tracing::warn!(error = &error as &dyn std::error::Error, "an unfinished download stays");
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.shared.folder
    }

    /// An artifact's bytes, fetched only when they are not here. Of several who want the same at once one fetches and
    /// the others wait; dropping it throws away what was fetched so far.
    pub(super) async fn take(
        &self,
        channel: &dyn WorkerChannel,
        digest: Digest,
    ) -> Result<Taken, ChannelError> {
        let vacant = match self.look_for(digest).await? {
            Found::Here(taken) => return Ok(taken),
            Found::Vacant(vacant) => vacant,
        };
        let file = channel.fetch(digest, &vacant.scratch.0).await?;
        Ok(vacant.fill(file))
    }

    /// The same of an artifact whose bytes are in a file that tasks must not come near: those of a copy.
    pub(super) async fn take_copy(&self, digest: Digest, of: &File) -> Result<Taken, ChannelError> {
        let vacant = match self.look_for(digest).await? {
            Found::Here(taken) => return Ok(taken),
            Found::Vacant(vacant) => vacant,
        };
        let path = vacant.scratch.0.clone();
        let copied = async {
            let of = of.try_clone()?;
            // Before whoever wants it may give up: it is removed by this name.
            let to = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            let copy = move || copy_contents(&of, &to, of.metadata()?.len()).map(|()| to);
            tokio::task::spawn_blocking(copy).await?
        };
        let copied = copied.await;
        let file = copied.map_err(|source| ChannelError::LocalFile { operation: "copy to", path, source })?;
        Ok(vacant.fill(file))
    }

    async fn look_for(&self, digest: Digest) -> Result<Found, ChannelError> {
        let (used, filling) = self.enter(digest);
        let turn = filling.lock_owned().await;
        if let Some(file) = self.find(digest).await {
            return Ok(Found::Here(Taken { file, _use: Some(used) }));
        }
        for part in ["sha256", "filling"] {
            let path = self.shared.folder.join(part);
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(|source| ChannelError::LocalFile { operation: "create", path, source })?;
        }
        let number = self.shared.fills.fetch_add(1, Ordering::Relaxed);
        let scratch = Filling(self.shared.folder.join("filling").join(number.to_string()));
        Ok(Found::Vacant(Vacant { used, scratch, _turn: turn }))
    }

    fn enter(&self, digest: Digest) -> (Use, Arc<tokio::sync::Mutex<()>>) {
        let mut turns = self.shared.turns.lock();
        let turn = turns.entry(digest).or_default();
        turn.users += 1;
        (Use { cache: self.clone(), digest }, Arc::clone(&turn.filling))
    }

    /// The file, if it is here and whole.
    async fn find(&self, digest: Digest) -> Option<File> {
        let cache = self.clone();
        let found = tokio::task::spawn_blocking(move || cache.find_now(digest)).await;
        match found.unwrap_or_else(|gone| Err(gone.into())) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%digest, %error, "a cached artifact cannot be used; it is fetched again");
                None
            }
        }
    }

    fn find_now(&self, digest: Digest) -> io::Result<Option<File>> {
        let path = self.path_of(digest);
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        if !self.shared.whole.verify(digest, &file)? {
            tracing::warn!(path = %path.display(), "a cached artifact is damaged; it is fetched again");
            fs::remove_file(&path)?;
            return Ok(None);
        }
        // A comfort for the order of eviction: without it the file only looks older than it is.
        let _ = file.set_modified(std::time::SystemTime::now());
        self.shared.whole.remember(digest, &file.metadata()?);
        Ok(Some(file))
    }

    /// What it holds, for whoever makes room.
    pub(super) fn entries(&self) -> Vec<Entry<Digest>> {
        let Ok(listing) = fs::read_dir(self.shared.folder.join("sha256")) else { return Vec::new() };
        let turns = self.shared.turns.lock();
        let entry = |found: fs::DirEntry| {
            let digest = Digest::from_hex(found.file_name().to_str()?).ok()?;
            let metadata = found.metadata().ok()?;
            let micros = metadata.mtime().saturating_mul(1_000_000) + metadata.mtime_nsec() / 1000;
            Some(Entry {
                key: digest,
                kind: Disposable::Cached { last_used: Timestamp::from_micros(micros) },
                size_bytes: metadata.blocks().saturating_mul(512),
                in_use: turns.contains_key(&digest),
            })
        };
        listing.filter_map(|found| entry(found.ok()?)).collect()
    }

    /// Removes one, unless somebody has begun to use it; whether it is gone.
    pub(super) fn remove(&self, digest: Digest) -> io::Result<bool> {
        let turns = self.shared.turns.lock();
        if turns.contains_key(&digest) {
            return Ok(false);
        }
        self.shared.whole.forget(digest);
        fs::remove_file(self.path_of(digest)).map(|()| true)
    }

    fn path_of(&self, digest: Digest) -> PathBuf {
        self.shared.folder.join("sha256").join(digest.hex())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;
    use crate::artifacts::digest_of;

    fn bytes_of(taken: &Taken) -> Vec<u8> {
        let mut bytes = vec![0; 5];
        taken.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[tokio::test]
    async fn a_copy_is_made_once_and_again_when_a_task_has_changed_it() {
        let folder = tempfile::tempdir().unwrap();
        let stored = folder.path().join("stored");
        fs::write(&stored, b"bytes").unwrap();
        let of = File::open(&stored).unwrap();
        let digest = digest_of(&of).unwrap();
        let cache = Cache::new(folder.path().join("cache"));
        let inode = |taken: &Taken| taken.file.metadata().unwrap().ino();
        let first = cache.take_copy(digest, &of).await.unwrap();
        let second = cache.take_copy(digest, &of).await.unwrap();
        assert_eq!((bytes_of(&first), inode(&first)), (b"bytes".to_vec(), inode(&second)));
        assert_ne!(inode(&first), of.metadata().unwrap().ino());
        // As a task of the same user does, by its second name.
        let own = folder.path().join("own");
        fs::hard_link(cache.path_of(digest), &own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&own, b"other").unwrap();
        let third = cache.take_copy(digest, &of).await.unwrap();
        assert_eq!((bytes_of(&third), bytes_of(&first)), (b"bytes".to_vec(), b"other".to_vec()));
        assert_eq!(fs::read(&stored).unwrap(), b"bytes");
        assert_eq!(fs::read_dir(cache.folder().join("filling")).unwrap().count(), 0);
    }
}
