//! Who builds an environment, who uses it, and who removes it: locks on files beside it. They end with whoever holds
//! them, however that ends. Their files belong to the tasks' user, so that nothing about them is trusted.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};

/// A file may be removed between being opened and being locked, so many times.
const TRIES: u32 = 64;

/// A lock, held until it is dropped.
#[derive(Debug)]
pub(super) struct Held(pub(super) File);

impl Held {
    /// Notes that what it stands for is used now. Nobody is the worse for it when that cannot be.
    pub(super) fn touch(&self) {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        let _ = rustix::fs::futimens(&self.0, &times);
    }

    /// Removes its file, which is the one at this path. Only with the lock held alone. Whoever has opened that file and
    /// waits for it makes a new one.
    pub(super) fn remove(self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}

/// Locks it and waits for that as long as it takes; `waits` is called once when it has to. The file is made when absent.
pub(super) fn wait_for(path: &Path, alone: bool, mut waits: impl FnMut()) -> io::Result<Held> {
    let (at_once, patiently) = match alone {
        true => (FlockOperation::NonBlockingLockExclusive, FlockOperation::LockExclusive),
        false => (FlockOperation::NonBlockingLockShared, FlockOperation::LockShared),
    };
    for _ in 0..TRIES {
        let file = open(path, true)?;
        match flock(&file, at_once) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                waits();
                flock(&file, patiently)?;
            }
            locked => locked?,
        }
        if is_still(&file, path)? {
            return Ok(Held(file));
        }
    }
    Err(ErrorKind::Interrupted.into())
}

/// Locks it for this process alone, when nobody has it: `Ok(None)` = somebody does. One that is absent is made, and
/// given to this owner, who could not open it otherwise; one that was there stays whose it is, whatever it is.
pub(super) fn if_free(path: &Path, owner: (u32, u32)) -> io::Result<Option<Held>> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made {
        Ok(file) if file.metadata()?.uid() != owner.0 => {
            std::os::unix::fs::fchown(&file, Some(owner.0), Some(owner.1))?;
        }
        Err(there) if there.kind() != ErrorKind::AlreadyExists => return Err(there),
        _ => {}
    }
    if_there_and_free(path)
}

/// Locks it for this process alone: `Ok(None)` = somebody has it, or it is not there.
pub(super) fn if_there_and_free(path: &Path) -> io::Result<Option<Held>> {
    let file = match open(path, false) {
        Err(absent) if absent.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    Ok(is_still(&file, path)?.then_some(Held(file)))
}

/// Never follows a link, never waits for whoever writes to a fifo.
fn open(path: &Path, make: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags);
    let opened = match options.open(path) {
        Err(absent) if make && absent.kind() == ErrorKind::NotFound => {
            options.write(true).create(true).truncate(false).mode(0o600).open(path)
        }
        opened => opened,
    };
    let file = opened?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(ErrorKind::InvalidInput.into()) }
}

/// Removed in between, it would lock nobody out.
fn is_still(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(absent) if absent.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_a_lock_keeps_others_from_having_it_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let nobody = || panic!("nothing to wait for");
        let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (one, two) = (wait_for(&path, false, nobody).unwrap(), wait_for(&path, false, nobody).unwrap());
        assert!(if_free(&path, me).unwrap().is_none());
        drop((one, two));
        let alone = if_free(&path, me).unwrap().unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut waited = 0;
                let held = wait_for(&path, false, || waited += 1).unwrap();
                (waited, held.0.metadata().unwrap().ino())
            }
        });
        // Whoever removes it while others wait leaves them with the next one.
        std::fs::remove_file(&path).unwrap();
        drop(alone);
        let (waited, inode) = waiting.join().unwrap();
        assert!(waited <= 1);
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
    }

    #[test]
    fn links_and_fifos_are_no_locks() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, 0o600.into(), 0).unwrap();
        for name in ["link", "fifo"] {
            assert!(if_free(&at(name), (0, 0)).is_err(), "{name}");
        }
    }
}
