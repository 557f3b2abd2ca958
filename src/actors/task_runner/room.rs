//! The room on the volumes that tasks write to: looks how much there is, makes some by removing what can go, and
//! says why the worker takes no tasks when that is not enough.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::cache::Cache;
use super::kept::{KeptWorkspaces, Place};
use crate::clock;
use crate::contract::artifact::Digest;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::domain::disk::{self, Entry, Eviction, Volume, Watermarks};
use crate::environments::{Environments, Removable};
use crate::store::space::Ballast;

/// The room of one worker; clones share it.
#[derive(Debug, Clone)]
pub struct DiskRoom {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    marks: Watermarks,
    cache: Cache,
    kept: KeptWorkspaces,
    environments: Environments,
    ballast: Ballast,
    unhealthy: Mutex<Option<String>>,
    /// On the fullest volume, as of the last look.
    free_bytes: Mutex<Option<u64>>,
    /// One look at a time.
    looking: Mutex<Stuck>,
}

/// So long environments are left alone when nothing could go: a look has the lock of each for a moment, in which a task
/// that begins may find it taken.
const LEFT_ALONE: Seconds = Seconds::new(60);

/// What is not tried at every look.
#[derive(Debug, Default)]
struct Stuck {
    /// What could not be removed.
    keys: HashSet<Key>,
    /// When environments are next looked at.
    environments_at: Timestamp,
}

/// A volume as it was found.
struct Found {
    volume: Volume,
    device: u64,
    /// A folder on it.
    path: PathBuf,
}

/// What an entry is to whoever removes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Cached(Digest),
    Kept(Place),
    Environment(Removable),
}

/// Room held back in a worker's folder, so that it can start again there when its disk is full.
pub fn worker_ballast(folder: &Path) -> Ballast {
    Ballast::new(folder, 1 << 20)
}

impl DiskRoom {
    /// The room of the worker in this folder. Nothing was looked at yet.
    pub fn new(folder: &Path, marks: Watermarks) -> Self {
        let shared = Shared {
            folder: folder.to_owned(),
            marks,
            cache: Cache::new(folder.join("cache")),
            kept: KeptWorkspaces::new(folder.join("kept")),
            environments: Environments::new(folder.join("environments")),
            ballast: worker_ballast(folder),
            unhealthy: Mutex::default(),
            free_bytes: Mutex::default(),
            looking: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The workspaces it keeps.
    pub fn kept(&self) -> KeptWorkspaces {
        self.shared.kept.clone()
    }

    /// Artifacts that were fetched, for the next task that needs them.
    pub(super) fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    /// Python environments of tasks.
    pub(super) fn environments(&self) -> &Environments {
        &self.shared.environments
    }

    /// Why the worker takes no tasks, as of the last look; `None` = it does.
    pub fn unhealthy(&self) -> Option<String> {
        self.shared.unhealthy.lock().clone()
    }

    /// Free room on the fullest volume, as of the last look.
    pub fn free_bytes(&self) -> Option<u64> {
        *self.shared.free_bytes.lock()
    }

    /// Looks at every volume, makes room where too little is left, and judges what there is then. Blocks.
    pub fn look(&self) {
        self.look_at(&mut self.shared.looking.lock());
    }

    /// The same for a task that has found no room: also at what could not go a moment ago.
    pub(super) fn look_again(&self) {
        let mut stuck = self.shared.looking.lock();
        stuck.environments_at = Timestamp::default();
        self.look_at(&mut stuck);
    }

    fn look_at(&self, stuck: &mut Stuck) {
        let mut volumes = self.volumes();
        if volumes.iter().any(|found| found.volume.free_bytes < self.mark()) {
            for found in &volumes {
                self.make_room(found, stuck);
            }
            volumes = self.volumes();
        }
        if let Err(error) = self.shared.ballast.look(self.shared.marks.min_free_bytes) {
            tracing::debug!(error = &error as &dyn std::error::Error, "no ballast");
        }
        let volumes: Vec<Volume> = volumes.into_iter().map(|found| found.volume).collect();
        *self.shared.free_bytes.lock() = volumes.iter().map(|volume| volume.free_bytes).min();
        let found = disk::unhealthy(&volumes, self.shared.marks);
        let mut unhealthy = self.shared.unhealthy.lock();
        match (&*unhealthy, &found) {
            (None, Some(why)) => tracing::warn!("takes no more tasks: {why}"),
            (Some(_), None) => tracing::info!("has room again and takes tasks"),
            _ => {}
        }
        *unhealthy = found;
    }

    /// The fullest volume and the largest of the worker's folders, for people. Blocks.
    pub(super) fn described(&self) -> String {
        let mut sizes: Vec<(u64, &str)> = ["tasks", "kept", "cache", "environments", "trash"]
            .into_iter()
            .map(|name| (disk_usage(&self.shared.folder.join(name)), name))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let sizes: Vec<String> =
            sizes.iter().map(|(bytes, name)| format!("{name} {}", disk::shown_bytes(*bytes))).collect();
        let volumes = self.volumes();
        let fullest = volumes.iter().map(|found| &found.volume).min_by_key(|volume| volume.free_bytes);
        let free = fullest
            .map(|volume| format!("{} free on {}", disk::shown_bytes(volume.free_bytes), volume.shown));
        let largest = if sizes.is_empty() { String::new() } else { format!("; there: {}", sizes.join(", ")) };
        format!("{}{largest}", free.unwrap_or_else(|| "no volume can be measured".to_owned()))
    }

    fn mark(&self) -> u64 {
        self.shared.marks.evict_below_bytes.max(self.shared.marks.min_free_bytes)
    }

    /// Each volume once. A folder that is not there lies where its parent does.
    fn volumes(&self) -> Vec<Found> {
        let mut volumes: Vec<Found> = Vec::new();
        let folders =
            ["", "tasks", "cache", "kept", "environments"].map(|name| self.shared.folder.join(name));
        for path in folders {
            match measure(&path) {
                Ok((free_bytes, device)) => {
                    if volumes.iter().all(|known| known.device != device) {
                        let shown = path.display().to_string().trim_end_matches('/').to_owned();
                        volumes.push(Found { volume: Volume { shown, free_bytes }, device, path });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(path = %path.display(), %error, "the free disk cannot be seen"),
            }
        }
        volumes
    }

    fn make_room(&self, found: &Found, stuck: &mut Stuck) {
        let Found { volume, device, path } = found;
        if volume.free_bytes >= self.mark() {
            return;
        }
        let Shared { cache, kept, environments, marks, .. } = &*self.shared;
        let now = clock::now();
        let mut entries: Vec<Entry<Key>> = Vec::new();
        if device_of(cache.folder()) == Some(*device) {
            entries.extend(cache.entries().into_iter().map(|entry| entry.map(Key::Cached)));
        }
        if device_of(kept.folder()) == Some(*device) {
            entries.extend(kept.entries(now).into_iter().map(|entry| entry.map(Key::Kept)));
        }
        let may_go = |entry: &Entry<Key>| !entry.in_use && !stuck.keys.contains(&entry.key);
        entries.retain(may_go);
        // Before a workspace goes they are always looked at.
        let looks = !entries.is_empty() || stuck.environments_at <= now;
        if device_of(environments.folder()) == Some(*device) && looks {
            entries.extend(environments.entries().into_iter().map(|entry| entry.map(Key::Environment)));
            entries.retain(may_go);
            if entries.is_empty() {
                stuck.environments_at = now.plus(LEFT_ALONE);
            }
        }
        let mut eviction = Eviction::new(entries, *marks);
        let mut free_bytes = volume.free_bytes;
        while let Some(key) = eviction.next(free_bytes) {
            let removed = match &key {
                Key::Cached(digest) => cache.remove(*digest).map_err(|error| error.to_string()),
                Key::Environment(what) => environments.remove(what).map_err(|error| error.to_string()),
                Key::Kept(place) => kept.evict(place, now).map(|()| true).map_err(|error| error.to_string()),
            };
            match removed {
                Ok(true) => tracing::info!(?key, volume = volume.shown, "removed to make room"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(?key, error, "cannot be removed to make room; it stays");
                    stuck.keys.insert(key);
                }
            }
            // The sizes tell too little of what shares its bytes: environments, and the cache that `uv` links them from.
            free_bytes = measure(path).map_or(free_bytes, |(free_bytes, _)| free_bytes);
        }
    }
}

/// Bytes an ordinary user can still write to the file system of `path`, and its device number.
fn measure(path: &Path) -> io::Result<(u64, u64)> {
    let room = rustix::fs::statvfs(path)?;
    let device = rustix::fs::stat(path)?.st_dev;
    Ok((room.f_bavail.saturating_mul(room.f_frsize), device))
}

fn device_of(path: &Path) -> Option<u64> {
    rustix::fs::stat(path).ok().map(|stat| stat.st_dev)
}

/// What a folder takes up on its disk, in bytes. Follows no link. What cannot be seen counts as nothing.
pub(super) fn disk_usage(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut total = 0u64;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(listing) = std::fs::read_dir(&folder) else { continue };
        for entry in listing.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            total = total.saturating_add(metadata.blocks().saturating_mul(512));
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_without_room_says_so_and_is_well_again_with_other_marks() {
        let worker = tempfile::tempdir().unwrap();
        let room =
            DiskRoom::new(worker.path(), Watermarks { min_free_bytes: u64::MAX, evict_below_bytes: 0 });
        assert_eq!(room.unhealthy(), None);
        room.look();
        let why = room.unhealthy().unwrap();
        assert!(why.starts_with(&format!("disk full on {}, ", worker.path().display())), "{why}");
        let room = DiskRoom::new(worker.path(), Watermarks { min_free_bytes: 0, evict_below_bytes: 0 });
        room.look();
        assert_eq!(room.unhealthy(), None);
    }

    #[test]
    fn environments_that_are_in_use_are_left_alone_until_a_task_needs_the_room() {
        let worker = tempfile::tempdir().unwrap();
        let (folder, name) = (worker.path().join("environments/0"), "0".repeat(32));
        let environment = folder.join(&name);
        std::fs::create_dir_all(&environment).unwrap();
        let lock = std::fs::File::create(folder.join(format!("{name}.lock"))).unwrap();
        lock.lock_shared().unwrap();
        let room =
            DiskRoom::new(worker.path(), Watermarks { min_free_bytes: 0, evict_below_bytes: u64::MAX });
        room.look();
        lock.unlock().unwrap();
        room.look();
        assert!(environment.exists(), "it was looked at a moment ago");
        room.look_again();
        assert!(!environment.exists());
        // Where something goes, all that may go is looked at.
        std::fs::create_dir(&environment).unwrap();
        room.look();
        assert!(!environment.exists());
    }

    #[test]
    fn what_fills_the_disk_is_named_largest_first() {
        let worker = tempfile::tempdir().unwrap();
        for (name, kib) in [("cache", 8), ("kept", 64)] {
            std::fs::create_dir(worker.path().join(name)).unwrap();
            std::fs::write(worker.path().join(name).join("file"), vec![1; kib << 10]).unwrap();
        }
        let room = DiskRoom::new(worker.path(), Watermarks::default());
        let text = room.described();
        let (_, there) = text.split_once("; there: ").unwrap();
        assert_eq!(there, "kept 64 KiB, cache 8 KiB", "{text}");
    }
}
