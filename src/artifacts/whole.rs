//! Which files are known to hold the bytes of their digest: a disk may have lost some of them since.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

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
    /// Who reads what.
    reading: Mutex<HashMap<Digest, Arc<Mutex<()>>>>,
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
    /// Without a look into the file; `look` is how it stands now.
    pub fn known<E>(&self, digest: Digest, look: impl FnOnce() -> Result<Metadata, E>) -> Result<Known, E> {
        // Held over the look: a change by `restamp` and what is known of it are one.
        let known = self.known.lock();
        let stamp = Stamp::of(&look()?);
        Ok(match known.get(&digest) {
            Some(whole) if *whole == stamp => Known::Whole,
            Some(_) => Known::Changed,
            None => Known::Unread,
        })
    }

    /// Reads the file, unless it is known; whether it holds the bytes. Its position is anywhere then. Of several who want to
    /// know it at once one reads.
    pub fn verify(&self, digest: Digest, file: &File) -> io::Result<bool> {
        let turn = Arc::clone(self.reading.lock().entry(digest).or_default());
        let reading = turn.lock();
        let is_whole = self.read(digest, file);
        drop(reading);
        let mut readers = self.reading.lock();
        // This one, and that of the map.
        if Arc::strong_count(&turn) == 2 {
            readers.remove(&digest);
        }
        is_whole
    }

    fn read(&self, digest: Digest, file: &File) -> io::Result<bool> {
        if self.known(digest, || file.metadata())? == Known::Whole {
            return Ok(true);
        }
        let before = file.metadata()?;
        let is_whole = digest_of(file)? == digest;
        if is_whole {
            self.remember(digest, &before);
        } else {
            self.forget(digest);
        }
        Ok(is_whole)
    }

    /// Its bytes are known, as it stands now.
    pub fn remember(&self, digest: Digest, stat: &Metadata) {
        Self::insert(&mut self.known.lock(), digest, stat);
    }

    /// Changes only how a file stands: what is known of its bytes is known as before.
    pub fn restamp<E>(
        &self,
        digest: Digest,
        change: impl FnOnce() -> Result<(), E>,
        look: impl Fn() -> io::Result<Metadata>,
    ) -> Result<(), E> {
        let mut known = self.known.lock();
        let was = look().is_ok_and(|stat| known.get(&digest) == Some(&Stamp::of(&stat)));
        change()?;
        if was && let Ok(stat) = look() {
            Self::insert(&mut known, digest, &stat);
        }
        Ok(())
    }

    /// Nothing is known of it any more.
    pub fn forget(&self, digest: Digest) {
        self.known.lock().remove(&digest);
    }

    fn insert(known: &mut HashMap<Digest, Stamp>, digest: Digest, stat: &Metadata) {
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(digest, Stamp::of(stat));
    }
}
