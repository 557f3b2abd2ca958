//! Which files are known to hold the bytes of their digest: a disk may have lost some of them since.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use parking_lot::Mutex;

use super::copy::digest_of;
use crate::contract::artifact::Digest;

/// So many are remembered; those beyond are looked at again.
const MOST_KNOWN: usize = 1 << 16;

/// How a file stands: size in bytes, time of the last change in nanoseconds, inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(u64, i128, u64);

impl Stamp {
    fn of(stat: &Metadata) -> Self {
        let changed = i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec());
        Self(stat.len(), changed, stat.ino())
    }
}

/// What was read to its end, and how it stood then.
#[derive(Debug, Default)]
pub struct Whole {
    known: Mutex<HashMap<Digest, Stamp>>,
}

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It stands as it did when its bytes were read.
    Whole,
    /// It changed since.
    Changed,
    /// Its bytes were not read.
    Unread,
}

impl Whole {
    /// Without a look into the file.
    pub fn known(&self, digest: Digest, stat: &Metadata) -> Known {
        match self.known.lock().get(&digest) {
            Some(stamp) if *stamp == Stamp::of(stat) => Known::Whole,
            Some(_) => Known::Changed,
            None => Known::Unread,
        }
    }

    /// Reads the file, unless it is known; whether it holds the bytes. Its position is anywhere then.
    pub fn verify(&self, digest: Digest, file: &File) -> io::Result<bool> {
        let stat = file.metadata()?;
        if self.known(digest, &stat) == Known::Whole {
            return Ok(true);
        }
        let is_whole = digest_of(file)? == digest;
        if is_whole {
            self.remember(digest, &stat);
        } else {
            self.forget(digest);
        }
        Ok(is_whole)
    }

    /// Its bytes are known, as it stands now.
    pub fn remember(&self, digest: Digest, stat: &Metadata) {
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(digest, Stamp::of(stat));
    }

    /// Nothing is known of it any more.
    pub fn forget(&self, digest: Digest) {
        self.known.lock().remove(&digest);
    }
}
