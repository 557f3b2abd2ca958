//! Artifacts that came over a network, kept by digest for the next task: `cache/sha256/<hex>`, read-only files that
//! tasks get copies of (reflinks where the file system can), never links.
//!
//! Nothing is fsynced. What an earlier start of the worker left may be damaged (a crash between a name and its
//! bytes, a bad disk), so its bytes are hashed once before their first use; after that the size and the time of
//! the last change are compared at each use, and hashed again when they differ. The time of the last change is also
//! when a file was last used.
//!
//! Unpacked trees are not cached: to make 1,000 small files again from a tar took less time than to copy them from
//! a tree (measured on ext4, and a reflink saves nothing on small files).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::artifacts::{digest_of, remove_tree};
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
    whole: Mutex<HashMap<Digest, Stamp>>,
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

/// Size in bytes, time of the last change in nanoseconds, inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(u64, i128, u64);

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let stat = file.metadata()?;
        let changed = i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec());
        Ok(Self(stat.len(), changed, stat.ino()))
    }
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

impl Cache {
    /// The cache in this folder, which need not exist yet.
    pub(super) fn new(folder: PathBuf) -> Self {
        let shared =
            Shared { folder, whole: Mutex::default(), turns: Mutex::default(), fills: AtomicU64::new(0) };
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
        let (used, filling) = self.enter(digest);
        let _turn = filling.lock_owned().await;
        if let Some(file) = self.find(digest).await {
            return Ok(Taken { file, _use: Some(used) });
        }
        for part in ["sha256", "filling"] {
            let path = self.shared.folder.join(part);
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(|source| ChannelError::LocalFile { operation: "create", path, source })?;
        }
        let number = self.shared.fills.fetch_add(1, Ordering::Relaxed);
        let scratch = Filling(self.shared.folder.join("filling").join(number.to_string()));
        let file = channel.fetch(digest, &scratch.0).await?;
        let path = self.path_of(digest);
        let keep = || {
            let read_only = rustix::fs::Mode::from_raw_mode(0o444);
            rustix::fs::fchmod(&file, read_only)?;
            fs::rename(&scratch.0, &path)?;
            Stamp::of(&file)
        };
        match keep() {
            Ok(stamp) => drop(self.shared.whole.lock().insert(digest, stamp)),
            // This task has its bytes all the same.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "an artifact cannot be kept in the cache")
            }
        }
        Ok(Taken { file, _use: Some(used) })
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
        let known = self.shared.whole.lock().get(&digest).copied();
        if known != Some(Stamp::of(&file)?) && digest_of(&file)? != digest {
            tracing::warn!(path = %path.display(), "a cached artifact is damaged; it is fetched again");
            self.shared.whole.lock().remove(&digest);
            fs::remove_file(&path)?;
            return Ok(None);
        }
        // A comfort for the order of eviction: without it the file only looks older than it is.
        let _ = file.set_modified(std::time::SystemTime::now());
        let stamp = Stamp::of(&file)?;
        self.shared.whole.lock().insert(digest, stamp);
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
        self.shared.whole.lock().remove(&digest);
        fs::remove_file(self.path_of(digest)).map(|()| true)
    }

    fn path_of(&self, digest: Digest) -> PathBuf {
        self.shared.folder.join("sha256").join(digest.hex())
    }
}
