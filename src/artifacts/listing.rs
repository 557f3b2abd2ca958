//! Lists one folder beneath a root, without following links.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, statat};
use rustix::io::Errno;

use super::beneath::{Mounts, open_at};

/// One name in a folder.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: FileType,
    pub(super) stat: FileStat,
}

impl Entry {
    /// What has this name in a folder; `None` = nothing.
    pub(super) fn of(folder: BorrowedFd<'_>, name: &str) -> rustix::io::Result<Option<Self>> {
        match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Self {
                name: name.to_owned(),
                kind: FileType::from_raw_mode(stat.st_mode),
                stat: FileStat::of(&stat),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// What tells one state of a file from another, and who may read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStat {
    pub(super) size_bytes: u64,
    pub(super) modified_ns: i64,
    pub(super) changed_ns: i64,
    pub(super) inode: u64,
    /// The bits that `chmod` sets.
    pub(super) mode: u32,
    pub(super) owner: u32,
}

/// A folder's content.
pub(super) struct Listing {
    pub(super) folder: OwnedFd,
    pub(super) entries: Vec<Entry>,
    /// Names that are not UTF-8, made readable.
    pub(super) unreadable_names: Vec<String>,
}

/// Lists a folder beneath `root`.
pub(super) fn list(root: BorrowedFd<'_>, path: &str, mounts: Mounts) -> rustix::io::Result<Listing> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let folder = open_at(root, path, flags, Mode::empty(), mounts)?;
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
        // It may have gone since it was listed.
        let entry = Entry::of(listing.folder.as_fd(), name)?;
        listing.entries.extend(entry);
    }
    Ok(listing)
}

impl FileStat {
    #[allow(clippy::unnecessary_cast, reason = "these are other types elsewhere")]
    fn of(stat: &Stat) -> Self {
        Self {
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified_ns: nanoseconds(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed_ns: nanoseconds(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
            inode: stat.st_ino,
            mode: permissions(stat.st_mode),
            owner: stat.st_uid,
        }
    }

    /// Of an open file.
    pub(super) fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::of(&fstat(file)?))
    }
}

fn nanoseconds(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[allow(clippy::useless_conversion, reason = "16 bits wide on macOS")]
fn permissions(mode: rustix::fs::RawMode) -> u32 {
    u32::from(mode) & 0o7777
}
