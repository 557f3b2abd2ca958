//! Who owns what was staged: a task that runs as another user than its worker has to be able to change it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Gid, Uid, chownat};

use super::beneath::{Mounts, join};
use super::listing::list;

/// Gives all beneath `folder` to a user, links themselves included; the folder itself stays whose it is. Only while
/// nobody else can enter the folder: whoever could might put a hard link in the way.
pub fn give_contents(folder: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let mut folders = vec![String::new()];
    while let Some(path) = folders.pop() {
        let listing = list(folder, &path, Mounts::Refused)?;
        for entry in listing.entries {
            let name = entry.name.as_str();
            chownat(listing.folder.as_fd(), name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            if entry.kind == FileType::Directory {
                folders.push(join(&path, name));
            }
        }
    }
    Ok(())
}
