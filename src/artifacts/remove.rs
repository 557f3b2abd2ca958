//! Removes what programs left behind, whatever they left: any depth, folders without permissions, names of any
//! kind. Never follows a link, never enters a mount, never leaves the folder it was given. What cannot be removed
//! does not keep the rest from going.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// A folder deeper than this is moved up before it is emptied, so that no depth needs more open files.
const DEEPEST: usize = 64;
/// Looks at a folder that somebody fills while it is emptied.
const LOOKS: u32 = 4;

/// What could not be removed; everything else is gone.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove {}{}", path.display(), others(.more))]
pub struct RemoveError {
    /// The first of them.
    pub path: PathBuf,
    /// How many more there are beside it and the folders that hold them.
    pub more: u64,
    /// Why the first is still there.
    #[source]
    pub source: io::Error,
}

fn others(more: &u64) -> String {
    if *more == 0 { String::new() } else { format!(" and {more} more") }
}

/// Removes a file, or a folder with all beneath it. What is not there counts as removed.
pub fn remove_tree(path: &Path) -> Result<(), RemoveError> {
    let failed = |source: io::Error| RemoveError { path: path.to_owned(), more: 0, source };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let name = CString::new(name.as_bytes()).map_err(|nul| failed(nul.into()))?;
    let parent = match super::open_folder(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        parent => parent.map_err(failed)?,
    };
    let mut removal = Removal { start: path, moved: 0, failure: None };
    removal.remove(parent.as_fd(), &name);
    removal.failure.map_or(Ok(()), Err)
}

/// The same for a name in an open folder: whatever that folder is called by now.
pub fn remove_in(folder: BorrowedFd<'_>, name: &str) -> Result<(), RemoveError> {
    let start = Path::new(name);
    let name = CString::new(name).map_err(|nul| RemoveError {
        path: start.to_owned(),
        more: 0,
        source: nul.into(),
    })?;
    let mut removal = Removal { start, moved: 0, failure: None };
    removal.remove(folder, &name);
    removal.failure.map_or(Ok(()), Err)
}

/// Removes everything in an open folder, and not the folder.
pub fn empty_folder(folder: BorrowedFd<'_>) -> Result<(), RemoveError> {
    let unlisted = |errno: Errno| RemoveError { path: PathBuf::from("."), more: 0, source: errno.into() };
    let mut failure = None;
    for name in names(folder).map_err(unlisted)? {
        let start = Path::new(OsStr::from_bytes(name.0.to_bytes()));
        let mut removal = Removal { start, moved: 0, failure: failure.take() };
        removal.remove(folder, &name.0);
        failure = removal.failure;
    }
    failure.map_or(Ok(()), Err)
}

struct Removal<'a> {
    start: &'a Path,
    /// Numbers what was moved up.
    moved: u64,
    failure: Option<RemoveError>,
}

/// A folder that is being emptied.
struct Level {
    folder: OwnedFd,
    name: CString,
    /// Folders in it, still to be emptied.
    folders: Vec<CString>,
    looks: u32,
    /// Something in it stays.
    stuck: bool,
}

impl Removal<'_> {
    fn remove(&mut self, parent: BorrowedFd<'_>, name: &CStr) {
        let top = match enter(parent, name) {
            Ok(Entered::Folder(folder)) => folder,
            Ok(Entered::Gone) => return,
            Err(errno) => return self.failed(&[], name, errno),
        };
        let mut levels = vec![self.level(top, name.to_owned(), &[])];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.folders.pop() else {
                self.leave(parent, &mut levels);
                continue;
            };
            let folder = match enter(level.folder.as_fd(), &name) {
                Ok(Entered::Folder(folder)) => folder,
                Ok(Entered::Gone) => continue,
                Err(errno) => {
                    level.stuck = true;
                    self.failed(&levels, &name, errno);
                    continue;
                }
            };
            if levels.len() >= DEEPEST && self.move_up(&mut levels, &name) {
                continue;
            }
            let level = self.level(folder, name, &levels);
            levels.push(level);
        }
    }

    /// Removes the files of a folder and names its folders.
    fn level(&mut self, folder: OwnedFd, name: CString, above: &[Level]) -> Level {
        let mut level = Level { folder, name, folders: Vec::new(), looks: 1, stuck: false };
        self.look(&mut level, above);
        level
    }

    fn look(&mut self, level: &mut Level, above: &[Level]) {
        let names = match names(level.folder.as_fd()) {
            Ok(names) => names,
            Err(errno) => {
                level.stuck = true;
                return self.failed(above, &level.name, errno);
            }
        };
        for (name, kind) in names {
            if kind == FileType::Directory {
                level.folders.push(name);
                continue;
            }
            match unlinkat(&level.folder, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // Its kind was not known, or it became a folder.
                Err(Errno::ISDIR) => level.folders.push(name),
                // On some systems that is what a folder gives.
                Err(Errno::PERM) if is_folder(level.folder.as_fd(), &name) => level.folders.push(name),
                Err(errno) => {
                    level.stuck = true;
                    self.failed_in(above, level, &name, errno);
                }
            }
        }
    }

    /// The last level is empty, as far as it can be: removes it.
    fn leave(&mut self, parent: BorrowedFd<'_>, levels: &mut Vec<Level>) {
        let Some(mut level) = levels.pop() else { return };
        let above = levels.last().map_or(parent, |above| above.folder.as_fd());
        match unlinkat(above, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) if !level.stuck && level.looks < LOOKS => {
                level.looks += 1;
                self.look(&mut level, levels);
                levels.push(level);
            }
            Err(errno) => {
                // What stays in it was named already.
                if !level.stuck {
                    self.failed(levels, &level.name, errno);
                }
                if let Some(above) = levels.last_mut() {
                    above.stuck = true;
                }
            }
        }
    }

    /// Moves a folder to the top, to be emptied there; whether it was moved.
    fn move_up(&mut self, levels: &mut [Level], name: &CStr) -> bool {
        let (Some((first, _)), Some(last)) = (levels.split_first(), levels.last()) else { return false };
        self.moved += 1;
        let Ok(to) = CString::new(format!(".gpulayer-removing-{}-{}", std::process::id(), self.moved)) else {
            return false;
        };
        let moved = renameat(&last.folder, name, &first.folder, &to).is_ok();
        if moved && let Some(first) = levels.first_mut() {
            first.folders.push(to);
        }
        moved
    }

    fn failed(&mut self, above: &[Level], name: &CStr, errno: Errno) {
        self.note(above.iter().map(|level| &*level.name).chain([name]), errno);
    }

    fn failed_in(&mut self, above: &[Level], level: &Level, name: &CStr, errno: Errno) {
        self.note(above.iter().map(|level| &*level.name).chain([&*level.name, name]), errno);
    }

    /// `names` begin with that of the start itself.
    fn note<'n>(&mut self, names: impl Iterator<Item = &'n CStr>, errno: Errno) {
        if let Some(failure) = &mut self.failure {
            failure.more += 1;
            return;
        }
        let mut path = self.start.to_owned();
        path.extend(names.skip(1).map(|name| OsStr::from_bytes(name.to_bytes())));
        self.failure = Some(RemoveError { path, more: 0, source: errno.into() });
    }
}

enum Entered {
    Folder(OwnedFd),
    /// It was a file and is removed, or was not there.
    Gone,
}

/// Opens a folder to empty it, with the permissions that takes; removes anything else of that name.
fn enter(parent: BorrowedFd<'_>, name: &CStr) -> Result<Entered, Errno> {
    match open_within(parent, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(folder) => {
            let stat = rustix::fs::fstat(&folder)?;
            if stat.st_mode & 0o700 != 0o700 {
                rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o700))?;
            }
            Ok(Entered::Folder(folder))
        }
        Err(Errno::NOENT) => Ok(Entered::Gone),
        Err(Errno::NOTDIR | Errno::LOOP) => match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(Entered::Gone),
            Err(errno) => Err(errno),
        },
        Err(Errno::ACCESS) => {
            open_up(parent, name)?;
            open_within(parent, name, OFlags::RDONLY | OFlags::DIRECTORY).map(Entered::Folder)
        }
        Err(errno) => Err(errno),
    }
}

/// Gives a folder that cannot be read to its owner. By what is open, never by name: that may be a link by now.
fn open_up(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    #[cfg(target_os = "linux")]
    {
        let folder = open_within(parent, name, OFlags::PATH | OFlags::DIRECTORY)?;
        rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), Mode::from_raw_mode(0o700))
    }
    #[cfg(not(target_os = "linux"))]
    rustix::fs::chmodat(parent, name, Mode::from_raw_mode(0o700), AtFlags::SYMLINK_NOFOLLOW)
}

/// Opens a name in a folder, no link and no mount.
fn open_within(parent: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{ResolveFlags, openat2};
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        match openat2(parent, name, flags, Mode::empty(), resolve) {
            Err(Errno::NOSYS | Errno::PERM) => {}
            // As an open by name says it.
            Err(Errno::XDEV) => return Err(Errno::BUSY),
            other => return other,
        }
    }
    let opened = openat(parent, name, flags, Mode::empty())?;
    if rustix::fs::fstat(&opened)?.st_dev != rustix::fs::fstat(parent)?.st_dev {
        return Err(Errno::BUSY);
    }
    Ok(opened)
}

fn names(folder: BorrowedFd<'_>) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut names = Vec::new();
    for found in Dir::read_from(folder)? {
        let found = found?;
        if !matches!(found.file_name().to_bytes(), b"." | b"..") {
            names.push((found.file_name().to_owned(), found.file_type()));
        }
    }
    Ok(names)
}

fn is_folder(folder: BorrowedFd<'_>, name: &CStr) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn everything_goes_but_nothing_that_links_point_to() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("mine"), "x").unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("closed/deep")).unwrap();
        fs::write(tree.join("closed/deep/file"), "x").unwrap();
        fs::write(tree.join(OsStr::from_bytes(b"\xff\nname")), "x").unwrap();
        symlink(elsewhere.path(), tree.join("away")).unwrap();
        symlink("/", tree.join("closed/root")).unwrap();
        fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(elsewhere.path().join("mine").exists());
        remove_tree(&tree).unwrap();
        symlink(elsewhere.path(), &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(elsewhere.path().join("mine").exists() && fs::symlink_metadata(&tree).is_err());
    }

    #[test]
    fn no_depth_is_too_deep_and_no_path_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        // Far more levels than files may be open, and far longer than any path the system takes.
        let mut at = super::super::open_folder(&tree).unwrap();
        for level in 0..1500 {
            let name = format!("{level:0>40}");
            rustix::fs::mkdirat(&at, name.as_str(), Mode::from_raw_mode(0o755)).unwrap();
            rustix::fs::mkdirat(&at, "beside", Mode::from_raw_mode(0o755)).unwrap();
            at = openat(&at, name.as_str(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
