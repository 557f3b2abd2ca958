//! One lock per GPU for the whole host, so that two daemons, of whatever users, never give out the same one.
//!
//! A lock is a file named after the GPU, and held by `flock` for as long as it is open, so no crash leaves one behind.
//! Whoever gives the GPU out takes it alone first (nobody else has it), and then shares it: the task's shim joins in and
//! keeps it for the life of the task's tree, whatever becomes of the worker.
//!
//! All users must meet at one place, and which folders can be written differs. So the lock is taken in each of
//! [`PLACES`] that can be used: any two daemons have one in common. Their files are everybody's to read, which is
//! enough to lock them; that a stranger holds one for no reason can be seen, and the GPU is then `busy_outside`.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::process::host_lock::{HowToLock, lock, relock};

/// Where locks lie. The first is nobody's to clean, the second everybody's to write.
pub const PLACES: [&str; 2] = ["/run/lock/gpulayer", "/tmp/gpulayer-locks"];

/// The folders that are used.
#[derive(Debug, Clone)]
pub struct Locks {
    folders: Vec<PathBuf>,
}

/// One GPU's lock, held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    held: Vec<(PathBuf, File)>,
}

/// Why a lock cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it.
    #[error("{} is locked by somebody else", path.display())]
    Held {
        /// Its file.
        path: PathBuf,
    },
    /// It cannot be opened or locked.
    #[error("{} cannot be locked", path.display())]
    File {
        /// Its file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There is no folder for locks.
    #[error("none of {} can be used for locks", PLACES.join(", "))]
    NoPlace,
}

impl Locks {
    /// In each of these folders that is there or can be made, and used.
    pub fn in_folders(places: &[PathBuf]) -> Self {
        Self { folders: places.iter().filter(|place| prepare(place)).cloned().collect() }
    }

    /// Where the host's daemons meet.
    pub fn of_host() -> Self {
        Self::in_folders(&PLACES.map(PathBuf::from))
    }

    /// The files of a GPU's lock: whoever wants to share it opens these.
    pub fn paths(&self, uuid: &str) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.join(file_name(uuid))).collect()
    }

    /// Takes the lock of a GPU that nobody has.
    pub fn take(&self, uuid: &str) -> Result<Lock, LockError> {
        let lock = self.hold(uuid, HowToLock::Alone)?;
        // Not in one step: somebody may slip in between, which is then an error here, and theirs alone.
        for (path, file) in &lock.held {
            relock(file, HowToLock::Shared).map_err(|error| refused(error, path))?;
        }
        Ok(lock)
    }

    /// Shares the lock of a GPU that a task of ours has.
    pub fn join(&self, uuid: &str) -> Result<Lock, LockError> {
        self.hold(uuid, HowToLock::Shared)
    }

    fn hold(&self, uuid: &str, how: HowToLock) -> Result<Lock, LockError> {
        let paths = self.paths(uuid);
        if paths.is_empty() {
            return Err(LockError::NoPlace);
        }
        let held = paths.into_iter().map(|path| Ok((path.clone(), hold_file(&path, how)?)));
        Ok(Lock { held: held.collect::<Result<_, LockError>>()? })
    }

    /// The process that has a GPU's lock, as far as the kernel tells; 0 = one that cannot be seen from here. Takes
    /// nothing, so it disturbs nobody.
    pub fn holder(&self, uuid: &str) -> Option<u32> {
        let files: Vec<(u64, u64)> = self
            .paths(uuid)
            .iter()
            .filter_map(|path| fs::metadata(path).ok())
            .map(|file| (file.dev(), file.ino()))
            .collect();
        if files.is_empty() {
            return None;
        }
        let listed = fs::read_to_string("/proc/locks").unwrap_or_default();
        listed.lines().filter_map(holder_of).find(|(_, file)| files.contains(file)).map(|(pid, _)| pid)
    }
}

/// `1: FLOCK  ADVISORY  WRITE 1234 fe:01:262145 0 EOF`: who, and which file by device and number.
fn holder_of(line: &str) -> Option<(u32, (u64, u64))> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (kind, pid, file) = (words.next()?, words.nth(2)?, words.next()?);
    // Whoever waits is marked with an arrow before the kind.
    if kind != "FLOCK" {
        return None;
    }
    let mut parts = file.split(':');
    let mut hex = || u32::from_str_radix(parts.next()?, 16).ok();
    let device = rustix::fs::makedev(hex()?, hex()?);
    Some((pid.parse().unwrap_or(0), (device, parts.next()?.parse().ok()?)))
}

/// As a file name: uuids are letters, digits and `-`, but what a driver says is not trusted with a path.
fn file_name(uuid: &str) -> String {
    uuid.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).take(128).collect()
}

fn prepare(folder: &Path) -> bool {
    if DirBuilder::new().mode(0o777).create(folder).is_ok() {
        // Past the umask. Everybody may lock; nobody may remove another's file.
        return fs::set_permissions(folder, Permissions::from_mode(0o1777)).is_ok();
    }
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir())
}

fn hold_file(path: &Path, how: HowToLock) -> Result<File, LockError> {
    lock(path, how).map_err(|error| refused(error, path))
}

fn refused(source: io::Error, path: &Path) -> LockError {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::WouldBlock => LockError::Held { path },
        _ => LockError::File { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_places() -> (tempfile::TempDir, Vec<PathBuf>) {
        let home = tempfile::tempdir().unwrap();
        let places = vec![home.path().join("a"), home.path().join("b")];
        (home, places)
    }

    #[test]
    fn a_gpu_is_locked_once_and_its_holder_can_be_told() {
        let (_home, places) = two_places();
        let (mine, theirs) = (Locks::in_folders(&places), Locks::in_folders(&places));
        assert_eq!(mine.holder("GPU-1"), None);
        let lock = mine.take("GPU-1").unwrap();
        assert!(matches!(theirs.take("GPU-1"), Err(LockError::Held { .. })));
        assert_eq!(theirs.holder("GPU-1"), Some(std::process::id()));
        assert!(theirs.take("GPU-2").is_ok());
        drop(lock);
        assert_eq!(theirs.holder("GPU-1"), None);
        assert!(theirs.take("GPU-1").is_ok());
    }

    #[test]
    fn a_shared_lock_outlives_whoever_took_it() {
        let (_home, places) = two_places();
        let locks = Locks::in_folders(&places);
        let worker = locks.take("GPU-1").unwrap();
        let shim = locks.join("GPU-1").unwrap();
        drop(worker);
        assert!(matches!(locks.take("GPU-1"), Err(LockError::Held { .. })));
        let restarted = locks.join("GPU-1").unwrap();
        drop(shim);
        assert!(matches!(locks.take("GPU-1"), Err(LockError::Held { .. })));
        drop(restarted);
        assert!(locks.take("GPU-1").is_ok());
    }

    #[test]
    fn daemons_with_one_place_in_common_meet() {
        let (_home, places) = two_places();
        let (root, user) = (Locks::in_folders(&places), Locks::in_folders(&places[1..]));
        let lock = root.take("GPU-1").unwrap();
        assert!(user.take("GPU-1").is_err());
        drop(lock);
        let _lock = user.take("GPU-1").unwrap();
        assert!(root.take("GPU-1").is_err());
    }

    #[test]
    fn the_folder_is_everybodys_and_names_stay_in_it() {
        let (_home, places) = two_places();
        let locks = Locks::in_folders(&places);
        assert_eq!(fs::metadata(&places[0]).unwrap().mode() & 0o7777, 0o1777);
        assert_eq!(locks.paths("../../etc/x")[0], places[0].join("______etc_x"));
        assert!(matches!(Locks::in_folders(&[]).take("GPU-1"), Err(LockError::NoPlace)));
    }

    #[test]
    fn a_waiting_line_is_no_holder() {
        assert_eq!(
            holder_of("1: FLOCK  ADVISORY  WRITE 1234 fe:01:262145 0 EOF"),
            Some((1234, (rustix::fs::makedev(0xfe, 1), 262_145)))
        );
        assert_eq!(holder_of("1: -> FLOCK  ADVISORY  WRITE 1235 fe:01:262145 0 EOF"), None);
        assert_eq!(holder_of("2: POSIX  ADVISORY  WRITE 7 00:2a:9 0 EOF"), None);
    }
}
