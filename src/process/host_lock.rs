//! Files that processes of a host lock against one another, in folders that everybody may write to. Only who shares
//! one, or takes it alone, is decided elsewhere (`gpu::locks`); a task's shim shares those of its GPUs.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};

/// A file may be removed between being opened and being locked (a cleaner of temporary folders), so many times.
const TRIES: u32 = 8;

/// How a file is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HowToLock {
    /// Nobody else may have it.
    Alone,
    /// Others may share it.
    Shared,
}

/// Opens the file, which is made when absent, and locks it until it is closed. Never waits: `WouldBlock` = somebody
/// else has it.
pub fn lock(path: &Path, how: HowToLock) -> io::Result<File> {
    for _ in 0..TRIES {
        let file = open(path)?;
        relock(&file, how)?;
        let ours = file.metadata()?;
        // Removed in between, it would lock nobody out.
        if fs::symlink_metadata(path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
        {
            return Ok(file);
        }
    }
    Err(ErrorKind::Interrupted.into())
}

/// Locks a file that is locked already in the other way. Not in one step: somebody may slip in between, which is
/// `WouldBlock` then, and the lock is gone.
pub fn relock(file: &File, how: HowToLock) -> io::Result<()> {
    let operation = match how {
        HowToLock::Alone => FlockOperation::NonBlockingLockExclusive,
        HowToLock::Shared => FlockOperation::NonBlockingLockShared,
    };
    Ok(flock(file, operation)?)
}

/// Opens for reading, which locks as well, and is all that another user's file allows in a sticky folder.
fn open(path: &Path) -> io::Result<File> {
    let no_link = OFlags::NOFOLLOW.bits().cast_signed();
    let existing = || OpenOptions::new().read(true).custom_flags(no_link).open(path);
    match existing() {
        Err(absent) if absent.kind() == ErrorKind::NotFound => {}
        opened => return opened,
    }
    match OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(path) {
        Err(there) if there.kind() == ErrorKind::AlreadyExists => existing(),
        Err(error) => Err(error),
        Ok(file) => {
            file.set_permissions(Permissions::from_mode(0o644))?;
            Ok(file)
        }
    }
}
