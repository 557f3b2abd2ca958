//! What a workspace held before the program ran, so that afterwards what it made can be told from what it got.
//! Serialises, so that a worker that restarts in between still knows.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, statat};
use serde::{Deserialize, Serialize};

use super::beneath::{join, open_at};

/// Every regular file with what changes when it is written to. Free for an empty workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    files: HashMap<String, Stamp>,
}

/// Size in bytes, modification time in nanoseconds, inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp(u64, i64, u64);

impl Snapshot {
    /// Looks at every file beneath `workspace`. Folders that cannot be read are passed over: what lies in them
    /// counts as new.
    pub fn take(workspace: BorrowedFd<'_>) -> std::io::Result<Self> {
        let mut files = HashMap::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let listing = match list(workspace, &folder) {
                Ok(listing) => listing,
                Err(errno) if folder.is_empty() => return Err(errno.into()),
                Err(_) => continue,
            };
            for entry in listing.entries {
                match entry.kind {
                    FileType::Directory => folders.push(join(&folder, &entry.name)),
                    FileType::RegularFile => {
                        files.insert(join(&folder, &entry.name), entry.stamp);
                    }
                    _ => {}
                }
            }
        }
        Ok(Self { files })
    }

    /// Whether there was nothing.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(super) fn knows(&self, path: &str, stamp: Stamp) -> bool {
        self.files.get(path) == Some(&stamp)
    }
}

/// One name in a folder.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: FileType,
    pub(super) size_bytes: u64,
    pub(super) mode: u32,
    pub(super) stamp: Stamp,
}

/// A folder's content.
pub(super) struct Listing {
    pub(super) folder: OwnedFd,
    pub(super) entries: Vec<Entry>,
    /// Names that are not UTF-8, made readable.
    pub(super) unreadable_names: Vec<String>,
}

/// Lists a folder beneath `root` without following links.
pub(super) fn list(root: BorrowedFd<'_>, path: &str) -> rustix::io::Result<Listing> {
    let folder = open_at(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    let mut listing = Listing { entries: Vec::new(), unreadable_names: Vec::new(), folder };
    for found in Dir::read_from(&listing.folder)? {
        let found = found?;
        let Ok(name) = found.file_name().to_str() else {
            listing.unreadable_names.push(found.file_name().to_string_lossy().into_owned());
            continue;
        };
        if name == "." || name == ".." {
            continue;
        }
        let stat = match statat(listing.folder.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Gone since it was listed.
            Err(rustix::io::Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        listing.entries.push(Entry {
            name: name.to_owned(),
            kind: FileType::from_raw_mode(stat.st_mode),
            size_bytes,
            mode: permissions(stat.st_mode),
            stamp: Stamp(
                size_bytes,
                nanoseconds(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
                stat.st_ino,
            ),
        });
    }
    Ok(listing)
}

pub(super) fn nanoseconds(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The bits that `chmod` sets.
#[allow(clippy::useless_conversion, reason = "16 bits wide on macOS")]
fn permissions(mode: rustix::fs::RawMode) -> u32 {
    u32::from(mode) & 0o7777
}
