//! What a workspace held before the program ran, so that afterwards what it made can be told from what it got.
//! Serialises, so that a worker that restarts in between still knows.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::beneath::{Mounts, join};
use super::listing::{Entry, list};

/// Every regular file with what changes when it is written to. Free for an empty workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    files: HashMap<String, Stamp>,
}

/// Size in bytes, modification time in nanoseconds, inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp(u64, i64, u64);

impl Stamp {
    fn of(entry: &Entry) -> Self {
        Self(entry.stat.size_bytes, entry.stat.modified_ns, entry.stat.inode)
    }
}

impl Snapshot {
    /// Looks at every file beneath `workspace`. Folders that cannot be read are passed over: what lies in them
    /// counts as new.
    pub fn take(workspace: BorrowedFd<'_>) -> std::io::Result<Self> {
        let mut files = HashMap::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let listing = match list(workspace, &folder, Mounts::Refused) {
                Ok(listing) => listing,
                Err(errno) if folder.is_empty() => return Err(errno.into()),
                Err(_) => continue,
            };
            for entry in listing.entries {
                match entry.kind {
                    FileType::Directory => folders.push(join(&folder, &entry.name)),
                    FileType::RegularFile => {
                        files.insert(join(&folder, &entry.name), Stamp::of(&entry));
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

    /// Whether the file at `path` was there before and is as it was.
    pub(super) fn knows(&self, path: &str, entry: &Entry) -> bool {
        self.files.get(path) == Some(&Stamp::of(entry))
    }
}
