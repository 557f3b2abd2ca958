//! The lock that keeps a second daemon off a state folder.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::error::StoreError;

/// Held as long as anything may write to the state folder; the kernel drops it with the process.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Takes the lock without waiting and writes this process's id into it.
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
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(StoreError::Locked { folder: folder.to_owned(), pid });
            }
            Err(errno) => return Err(failed("lock")(errno.into())),
        }
        file.set_len(0).map_err(failed("write"))?;
        file.rewind().map_err(failed("write"))?;
        writeln!(file, "{}", std::process::id()).map_err(failed("write"))?;
        Ok(Self { _file: file })
    }
}
