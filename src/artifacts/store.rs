//! The content-addressed store: `sha256/ab/abcdef…` holds whole, verified, read-only files; `partial/` holds
//! what is on its way in. A file's modification time is its pin: for 24 h after it, nothing removes the file.
//! The caller holds the state folder's lock, so no other process writes here.
//!
//! A disk may lose bytes all the same. A file that does not stand as it did when its bytes were read last, is read again:
//! before a task on this machine gets it, and before anybody is told that it is here and need not be sent. What lies here
//! since before this start is read by the former, and if it is small also by the latter. A damaged one goes to `partial/`
//! for a day; whoever sends it anew heals it.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use rustix::io::Errno;

use super::error::ArtifactError;
use super::upload::{Parked, UploadKey, upload_named};
use super::whole::{Known, Whole};
use crate::contract::artifact::Digest;

/// How long a PUT or a `missing` keeps a digest from removal, and how long an unfinished upload lives.
pub(super) const PIN: Duration = Duration::from_secs(24 * 3600);

/// What is longer is not read before somebody is told that it is here, unless it changed.
const QUICKLY_READ_BYTES: u64 = 64 << 20;

/// What the store accepts.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest artifact in bytes.
    pub max_artifact_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_artifact_bytes: 1 << 40 }
    }
}

/// A handle on the store; clones share one.
#[derive(Debug, Clone)]
pub struct ArtifactStore {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) folder: PathBuf,
    pub(super) limits: Limits,
    pub(super) uploads: Mutex<Uploads>,
    /// Read by whoever pins or adds, written by whoever removes: a digest that was just promised to be here
    /// must not vanish between the look at its age and the removal.
    pub(super) removal: RwLock<()>,
    whole: Whole,
    pub(super) next_import: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Uploads {
    /// Those with a live [`super::Upload`].
    pub(super) live: HashSet<UploadKey>,
    /// Hashes of interrupted uploads, so that the next part need not read what is there already.
    pub(super) parked: HashMap<UploadKey, Parked>,
}

impl ArtifactStore {
    /// Opens the store in `folder`, making it when absent, and clears what imports a crash left half done.
    pub fn open(folder: &Path, limits: Limits) -> Result<Self, ArtifactError> {
        for part in ["sha256", "partial"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(ArtifactError::at("create", &path))?;
        }
        sync_folder(folder)?;
        let shared = Shared {
            folder: folder.to_owned(),
            limits,
            uploads: Mutex::default(),
            removal: RwLock::new(()),
            whole: Whole::default(),
            next_import: AtomicU64::new(0),
        };
        let store = Self { shared: Arc::new(shared) };
        store.remove_partials(|name, _| name.starts_with("import-"))?;
        Ok(store)
    }

    /// What it accepts.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Opens an artifact for reading, with its length in bytes.
    pub fn open_read(&self, digest: Digest) -> Result<Option<(File, u64)>, ArtifactError> {
        let path = self.path_of(digest);
        let Some(file) = present(File::open(&path)).map_err(ArtifactError::at("open", &path))? else {
            return Ok(None);
        };
        let size_bytes = file.metadata().map_err(ArtifactError::at("look at", &path))?.len();
        Ok(Some((file, size_bytes)))
    }

    /// The same of one that holds the bytes of its digest, which are read for that if need be. A damaged one is taken away.
    pub fn open_whole(&self, digest: Digest) -> Result<Option<(File, u64)>, ArtifactError> {
        let Some(found) = self.open_read(digest)? else { return Ok(None) };
        let path = self.path_of(digest);
        let is_whole =
            self.shared.whole.verify(digest, &found.0).map_err(ArtifactError::at("read", &path))?;
        if !is_whole {
            self.take_away(digest, &found.0).map_err(ArtifactError::at("take away", &path))?;
            return Err(ArtifactError::Damaged { digest });
        }
        Ok(Some(found))
    }

    fn take_away(&self, digest: Digest, damaged: &File) -> io::Result<()> {
        let path = self.path_of(digest);
        let _removing = self.shared.removal.write();
        // Somebody may have sent it again meanwhile.
        let inode = damaged.metadata()?.ino();
        if present(fs::metadata(&path))?.is_some_and(|there| there.ino() == inode) {
            let aside = self.partial_path(&format!("damaged-{}", digest.hex()));
            fs::rename(&path, &aside)?;
            tracing::error!(%digest, kept = %aside.display(), "an artifact is damaged; whoever has it may send it again");
        }
        Ok(())
    }

    /// Length in bytes of an artifact, if it is here.
    pub fn size_bytes(&self, digest: Digest) -> Result<Option<u64>, ArtifactError> {
        let path = self.path_of(digest);
        let found = present(fs::metadata(&path)).map_err(ArtifactError::at("look at", &path))?;
        Ok(found.map(|metadata| metadata.len()))
    }

    /// Whether an artifact is here. Does not pin it.
    pub fn contains(&self, digest: Digest) -> Result<bool, ArtifactError> {
        Ok(self.size_bytes(digest)?.is_some())
    }

    /// Those of `digests` that are not here, in their order; the others are pinned for 24 h.
    pub fn missing(&self, digests: &[Digest]) -> Result<Vec<Digest>, ArtifactError> {
        let mut missing = Vec::new();
        for &digest in digests {
            if !self.touch(digest)? {
                missing.push(digest);
            }
        }
        Ok(missing)
    }

    /// Pins an artifact for 24 h from now; `false` when it is not here, or was found to be damaged.
    pub fn touch(&self, digest: Digest) -> Result<bool, ArtifactError> {
        let path = self.path_of(digest);
        let Some(stat) = present(fs::metadata(&path)).map_err(ArtifactError::at("look at", &path))? else {
            return Ok(false);
        };
        let known = self.shared.whole.known(digest, || fs::metadata(&path));
        let known = present(known).map_err(ArtifactError::at("look at", &path))?;
        let is_read =
            known == Some(Known::Changed) || known == Some(Known::Unread) && stat.len() <= QUICKLY_READ_BYTES;
        match is_read.then(|| self.open_whole(digest)).transpose() {
            Err(ArtifactError::Damaged { .. }) | Ok(Some(None)) => return Ok(false),
            read => drop(read?),
        }
        let _adding = self.shared.removal.read();
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let pin = || utimensat(CWD, &path, &times, AtFlags::empty());
        match self.shared.whole.restamp(digest, pin, || fs::metadata(&path)) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(ArtifactError::at("pin", &path)(errno)),
        }
    }

    /// Removes an artifact unless it was pinned within the last 24 h; whether it was removed.
    pub fn remove_if_unpinned(&self, digest: Digest) -> Result<bool, ArtifactError> {
        let _removing = self.shared.removal.write();
        let path = self.path_of(digest);
        let Some(metadata) = present(fs::metadata(&path)).map_err(ArtifactError::at("look at", &path))?
        else {
            return Ok(false);
        };
        if !older_than_pin(metadata.modified().map_err(ArtifactError::at("look at", &path))?) {
            return Ok(false);
        }
        fs::remove_file(&path).map_err(ArtifactError::at("remove", &path))?;
        self.shared.whole.forget(digest);
        Ok(true)
    }

    /// Removes unfinished uploads that nobody touched for 24 h; how many.
    pub fn sweep_partials(&self) -> Result<usize, ArtifactError> {
        let live = self.shared.uploads.lock().live.clone();
        self.remove_partials(|name, modified| {
            let busy = upload_named(name).is_some_and(|upload| live.contains(&upload));
            !busy && older_than_pin(modified)
        })
    }

    fn remove_partials(&self, unwanted: impl Fn(&str, SystemTime) -> bool) -> Result<usize, ArtifactError> {
        let folder = self.shared.folder.join("partial");
        let mut removed = 0;
        for entry in fs::read_dir(&folder).map_err(ArtifactError::at("list", &folder))? {
            let entry = entry.map_err(ArtifactError::at("list", &folder))?;
            let path = entry.path();
            let Some(metadata) = present(entry.metadata()).map_err(ArtifactError::at("look at", &path))?
            else {
                continue;
            };
            let modified = metadata.modified().map_err(ArtifactError::at("look at", &path))?;
            if unwanted(&entry.file_name().to_string_lossy(), modified) {
                present(fs::remove_file(&path)).map_err(ArtifactError::at("remove", &path))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    pub(super) fn path_of(&self, digest: Digest) -> PathBuf {
        let hex = digest.hex();
        let mut path = self.shared.folder.join("sha256");
        path.push(&hex[..2]);
        path.push(hex);
        path
    }

    pub(super) fn partial_path(&self, name: &str) -> PathBuf {
        self.shared.folder.join("partial").join(name)
    }

    /// Gives a complete, verified temporary file its final name. Durable when this returns.
    pub(super) fn publish(&self, file: &File, temporary: &Path, digest: Digest) -> Result<(), ArtifactError> {
        rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(0o444))
            .map_err(ArtifactError::at("protect", temporary))?;
        file.sync_all().map_err(ArtifactError::at("sync", temporary))?;
        let path = self.path_of(digest);
        let _adding = self.shared.removal.read();
        if let Some(folder) = path.parent() {
            match fs::create_dir(folder) {
                Ok(()) => sync_folder(&self.shared.folder.join("sha256"))?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(ArtifactError::at("create", folder)(error)),
            }
            fs::rename(temporary, &path).map_err(ArtifactError::at("rename", temporary))?;
            sync_folder(folder)?;
        }
        let stat = file.metadata().map_err(ArtifactError::at("look at", &path))?;
        self.shared.whole.remember(digest, &stat);
        Ok(())
    }
}

/// A clock set back makes things look younger, which only keeps them longer.
fn older_than_pin(modified: SystemTime) -> bool {
    SystemTime::now().duration_since(modified).is_ok_and(|age| age >= PIN)
}

/// `None` for what does not exist.
pub(super) fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn sync_folder(folder: &Path) -> Result<(), ArtifactError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(ArtifactError::at("sync", folder))
}
