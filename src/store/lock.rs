//! The lock that keeps a second daemon off a state folder.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::error::StoreError;

/// A process that is born while its parent is killed holds what that one held until it begins its program.
const HEIRS_GO_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Held as long as anything may write to the state folder; the kernel drops it with the process.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Takes the lock and writes this process's id into it. Waits for nobody who is alive.
    pub fn take(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join("lock");
        let failed = |act| {
            let path = path.clone();
            move |source| StoreError::File { act, path, source }
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open"))?;
        match take_from_the_dead(&mut file) {
            Ok(()) => {}
            Err(NotTaken::Held { pid }) => return Err(StoreError::Locked { folder: folder.to_owned(), pid }),
            Err(NotTaken::Failed(source)) => return Err(failed("lock")(source)),
        }
        file.set_len(0).map_err(failed("write"))?;
        file.rewind().map_err(failed("write"))?;
        writeln!(file, "{}", std::process::id()).map_err(failed("write"))?;
        Ok(Self { _file: file })
    }
}

/// Why a lock cannot be had.
#[derive(Debug)]
pub enum NotTaken {
    /// A process holds it.
    Held {
        /// Which, if the file says so.
        pid: Option<u32>,
    },
    /// The system refused.
    Failed(std::io::Error),
}

/// Locks a file that names its holder. Whoever was born to a holder that is dead is waited for; nobody else is.
pub fn take_from_the_dead(file: &mut File) -> Result<(), NotTaken> {
    let until = Instant::now() + HEIRS_GO_WITHIN;
    loop {
        match flock(&*file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                file.rewind().map_err(NotTaken::Failed)?;
                let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                if pid.is_none_or(is_alive) || Instant::now() > until {
                    return Err(NotTaken::Held { pid });
                }
                // The kernel would wait without an end, and this wait has one: an heir that never begins is reported.
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(errno) => return Err(NotTaken::Failed(errno.into())),
        }
    }
}

/// Whether this process runs: one that ended and has not been waited for has no program any more.
fn is_alive(pid: u32) -> bool {
    match std::fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_heir_of_a_dead_holder_is_waited_for_and_a_holder_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let held = StateLock::take(folder.path()).unwrap();
        let refused = StateLock::take(folder.path()).unwrap_err();
        let own = std::process::id();
        assert!(matches!(refused, StoreError::Locked { pid: Some(pid), .. } if pid == own), "{refused}");
        // The kernel numbers no process above 2^22.
        std::fs::write(folder.path().join("lock"), "4194305\n").unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| StateLock::take(folder.path()));
            drop(held);
            assert!(next.join().unwrap().is_ok());
        });
    }
}
