//! Opening and making things beneath a workspace without ever following a link: a task that plants links can
//! not make the worker read or write outside. `openat2` does it in one call; where it is missing (macOS, old
//! kernels, some sandboxes) the path is walked part by part with `O_NOFOLLOW`, which refuses the same.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// A path that stays below where it starts: UTF-8, `/` between parts, no `..`, not absolute. Empty = the
/// start itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePath(String);

/// Why a path is not one of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RelativePathError {
    /// Begins with `/`.
    #[error("it is absolute")]
    Absolute,
    /// Has a `..` part.
    #[error("it contains `..`")]
    Parent,
    /// Has a NUL byte.
    #[error("it contains a NUL byte")]
    Nul,
}

impl RelativePath {
    /// Reads a path; drops `.` parts and doubled or trailing slashes.
    pub fn new(text: &str) -> Result<Self, RelativePathError> {
        if text.starts_with('/') {
            return Err(RelativePathError::Absolute);
        }
        if text.contains('\0') {
            return Err(RelativePathError::Nul);
        }
        let mut path = String::with_capacity(text.len());
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => return Err(RelativePathError::Parent),
                part => path = join(&path, part),
            }
        }
        Ok(Self(path))
    }

    /// The path, without a leading or trailing slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `folder/name`, where an empty folder is the start itself.
pub(super) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// The folder part and the last part; the folder part is empty at the top.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Opens a folder, such as a workspace, as the start for everything else here.
pub fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a folder beneath another, as what it is called: a link on the way or in its place, and anything mounted there,
/// is refused (`InvalidInput`).
pub fn open_folder_beneath(root: BorrowedFd<'_>, path: &RelativePath) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    open_at(root, path.as_str(), flags, Mode::empty(), Mounts::Refused).map_err(refusal)
}

/// Which folder this is, whatever it is called, as long as its volume stays mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FolderId {
    device: u64,
    inode: u64,
}

impl FolderId {
    /// That of an open folder.
    #[allow(clippy::unnecessary_cast, reason = "these are other types elsewhere")]
    pub fn of(folder: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = rustix::fs::fstat(folder)?;
        Ok(Self { device: stat.st_dev as u64, inode: stat.st_ino as u64 })
    }
}

/// What a path may lead through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mounts {
    /// A workspace is of one piece: whatever is mounted in it is not the task's to give.
    Refused,
    /// A person's own folder may hold other volumes.
    Crossed,
}

/// Opens a regular file beneath `workspace` for reading. Links and mounts anywhere on the way, and anything that is
/// not a regular file, are refused (`InvalidInput`), without waiting on a fifo.
pub fn open_beneath(workspace: BorrowedFd<'_>, path: &RelativePath) -> io::Result<File> {
    open_regular(workspace, path, Mounts::Refused)
}

/// As [`open_beneath`], where mounts may be crossed.
pub(super) fn open_regular(
    workspace: BorrowedFd<'_>,
    path: &RelativePath,
    mounts: Mounts,
) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = open_at(workspace, path.as_str(), flags, Mode::empty(), mounts).map_err(refusal)?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

fn refusal(errno: Errno) -> io::Error {
    let why = match errno {
        Errno::LOOP => "a link stands in the way",
        Errno::XDEV => "it lies on another volume, mounted there",
        errno => return errno.into(),
    };
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// The system takes no longer paths; what lies deeper is opened piece by piece.
const LONGEST_BYTES: usize = 4000;

/// Opens `path` beneath `root`; `ELOOP` when a part of it is a link, `EXDEV` when it leads into a mount that is not
/// to be crossed.
pub(super) fn open_at(
    root: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    mode: Mode,
    mounts: Mounts,
) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    let mut path = if path.is_empty() { "." } else { path };
    let mut above: Option<OwnedFd> = None;
    while path.len() > LONGEST_BYTES {
        let mut end = LONGEST_BYTES;
        while !path.is_char_boundary(end) {
            end -= 1;
        }
        let Some(slash) = path[..end].rfind('/') else { break };
        let from = above.as_ref().map_or(root, |folder| folder.as_fd());
        let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        above = Some(open_once(from, &path[..slash], folder, Mode::empty(), mounts)?);
        path = &path[slash + 1..];
    }
    open_once(above.as_ref().map_or(root, |folder| folder.as_fd()), path, flags, mode, mounts)
}

fn open_once(
    root: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    mode: Mode,
    mounts: Mounts,
) -> rustix::io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{ResolveFlags, openat2};
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        if mounts == Mounts::Refused {
            resolve |= ResolveFlags::NO_XDEV;
        }
        match openat2(root, path, flags, mode, resolve) {
            Err(Errno::NOSYS | Errno::PERM) => {}
            other => return other,
        }
    }
    open_by_parts(root, path, flags, mode, mounts)
}

/// Without `openat2`. A mount of the same volume (a bind mount) cannot be told from a folder here.
fn open_by_parts(
    root: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    mode: Mode,
    mounts: Mounts,
) -> rustix::io::Result<OwnedFd> {
    let (folders, last) = split(path);
    let on_the_way = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at: Option<OwnedFd> = None;
    for part in folders.split('/').filter(|part| !part.is_empty()) {
        let from = at.as_ref().map_or(root, |fd| fd.as_fd());
        // With O_DIRECTORY a link gives ENOTDIR: say the same as openat2 does.
        let next = openat(from, part, on_the_way, Mode::empty()).map_err(|errno| match errno {
            Errno::NOTDIR if is_link(from, part) => Errno::LOOP,
            other => other,
        })?;
        at = Some(next);
    }
    let from = at.as_ref().map_or(root, |fd| fd.as_fd());
    let opened = openat(from, last, flags | OFlags::NOFOLLOW, mode).map_err(|errno| match errno {
        Errno::NOTDIR if is_link(from, last) => Errno::LOOP,
        other => other,
    })?;
    if mounts == Mounts::Refused && rustix::fs::fstat(&opened)?.st_dev != rustix::fs::fstat(root)?.st_dev {
        return Err(Errno::XDEV);
    }
    Ok(opened)
}

fn is_link(folder: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Opens a folder beneath `root`, making it and those above it when absent.
pub(super) fn make_folders(root: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match open_at(root, path, flags, Mode::empty(), Mounts::Crossed) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let mut made = 0;
    loop {
        // The next prefix that ends at a slash, or the whole path.
        made = path[made..].find('/').map_or(path.len(), |length| made + length);
        let (above, name) = split(&path[..made]);
        let folder = open_at(root, above, flags, Mode::empty(), Mounts::Crossed)?;
        match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        if made == path.len() {
            return open_at(root, path, flags, Mode::empty(), Mounts::Crossed);
        }
        made += 1;
    }
}

/// Creates a new file `name` in `folder`, in place of whatever file or link had that name.
pub(super) fn create_file(folder: BorrowedFd<'_>, name: &str, mode: u32) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = || openat(folder, name, flags, Mode::from_raw_mode(mode)).map(File::from);
    match create() {
        Err(Errno::EXIST) => {
            unlinkat(folder, name, AtFlags::empty())?;
            create()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_or_refused() {
        assert_eq!(RelativePath::new("./out//a/.").unwrap().as_str(), "out/a");
        assert_eq!(RelativePath::new(".").unwrap().as_str(), "");
        assert_eq!(RelativePath::new("-dash/new\nline").unwrap().as_str(), "-dash/new\nline");
        assert_eq!(RelativePath::new("/etc"), Err(RelativePathError::Absolute));
        assert_eq!(RelativePath::new("a/../b"), Err(RelativePathError::Parent));
        assert_eq!(RelativePath::new("a\0b"), Err(RelativePathError::Nul));
    }

    #[test]
    fn the_walk_by_parts_refuses_what_openat2_refuses() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("real/deep")).unwrap();
        std::fs::write(folder.path().join("real/deep/file"), "x").unwrap();
        std::os::unix::fs::symlink("real", folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink("file", folder.path().join("real/deep/last")).unwrap();
        let root = open_folder(folder.path()).unwrap();
        for path in ["real/deep/file", "link/deep/file", "real/deep/last", "real/none"] {
            let one = open_at(
                root.as_fd(),
                path,
                OFlags::RDONLY | OFlags::NOFOLLOW,
                Mode::empty(),
                Mounts::Refused,
            );
            let other = open_by_parts(
                root.as_fd(),
                path,
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
                Mounts::Refused,
            );
            assert_eq!(one.map(drop), other.map(drop), "{path}");
        }
    }

    #[test]
    fn folders_are_made_but_not_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("away")).unwrap();
        let root = open_folder(folder.path()).unwrap();
        make_folders(root.as_fd(), "a/b/c").unwrap();
        make_folders(root.as_fd(), "a/b/c").unwrap();
        assert!(folder.path().join("a/b/c").is_dir());
        assert_eq!(make_folders(root.as_fd(), "away/b").unwrap_err(), Errno::LOOP);
        assert!(!elsewhere.path().join("b").exists());
    }
}
