//! Extracts a tar beneath a workspace. Bundles come from people's machines and from other jobs, so nothing in
//! one is trusted: names that leave, links that lead out, writes through links, hard links, devices and
//! endless headers are refused, and the error names the entry. What was extracted before it stays.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT, futimens, symlinkat, unlinkat, utimensat};
use rustix::io::Errno;
use tar::EntryType;

use super::beneath::{RelativePath, RelativePathError, create_file, make_folders, split};
use super::links::{LinkEnd, follow, stays_inside};
use super::pack::{CHANGED_RECORD, nanoseconds_of};
use crate::contract::spec::InputMode;

/// Long names are all that headers are for; an endless one would end up in memory.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// How much a tar may grow to.
#[derive(Debug, Clone, Copy)]
pub struct UnpackLimits {
    /// Entries of any kind.
    pub max_entries: u64,
    /// Bytes of all files together.
    pub max_bytes: u64,
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self { max_entries: 1_000_000, max_bytes: 1 << 40 }
    }
}

/// What was extracted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Entries of any kind.
    pub entries: u64,
    /// Bytes of all files together.
    pub size_bytes: u64,
}

/// Why a tar cannot be extracted, or an input not placed.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// Its headers cannot be read.
    #[error("the archive cannot be read")]
    Archive {
        /// What the reader said.
        #[source]
        source: io::Error,
    },
    /// A name that does not stay beneath the workspace.
    #[error("entry `{entry}` leaves the workspace")]
    Leaves {
        /// Its name.
        entry: String,
        /// In what way.
        #[source]
        source: RelativePathError,
    },
    /// A name or target that is not UTF-8.
    #[error("entry `{entry}` has a name that is not UTF-8")]
    NotUtf8 {
        /// Its name, made readable.
        entry: String,
    },
    /// A link that leads out.
    #[error("link `{entry}` leads out of the workspace, to `{target}`")]
    LinkOutside {
        /// Its name.
        entry: String,
        /// Its target.
        target: String,
    },
    /// A link stands where the entry's folder should be.
    #[error("entry `{entry}` would be written through a link")]
    ThroughLink {
        /// Its name.
        entry: String,
    },
    /// A hard link, device, fifo or something stranger.
    #[error("entry `{entry}` is of a kind that is not accepted ({kind:?})")]
    Kind {
        /// Its name.
        entry: String,
        /// What it is.
        kind: EntryType,
    },
    /// More entries or bytes than allowed.
    #[error("at `{entry}` the archive exceeds {max_entries} entries or {max_bytes} bytes")]
    TooLarge {
        /// Where the limit was passed.
        entry: String,
        /// The limit on entries.
        max_entries: u64,
        /// The limit on bytes.
        max_bytes: u64,
    },
    /// The disk or the quota is used up.
    #[error("no space left for `{entry}`")]
    StorageFull {
        /// What could not be written.
        entry: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Any other trouble in the workspace.
    #[error("cannot write `{entry}`")]
    Io {
        /// What could not be written.
        entry: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl UnpackError {
    /// For `map_err`.
    pub(super) fn at<E: Into<io::Error>>(entry: &str) -> impl FnOnce(E) -> UnpackError {
        move |source| {
            let (entry, source) = (entry.to_owned(), source.into());
            if source.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
                return UnpackError::ThroughLink { entry };
            }
            match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    UnpackError::StorageFull { entry, source }
                }
                _ => UnpackError::Io { entry, source },
            }
        }
    }
}

/// Extracts `tar` into the folder `at` of `workspace`. With [`InputMode::Ro`] files become 0444 (0555 when
/// executable), else 0644 or 0755. Files that are there already are replaced.
pub fn unpack(
    tar: impl Read,
    workspace: BorrowedFd<'_>,
    at: &RelativePath,
    mode: InputMode,
    limits: UnpackLimits,
) -> Result<Unpacked, UnpackError> {
    let root = make_folders(workspace, at.as_str()).map_err(UnpackError::at(at.as_str()))?;
    let extraction = Extraction { root, mode, folder: None, links: Vec::new(), changed: None };
    extraction.extract(tar, limits)
}

/// As [`unpack`], of what [`super::pack`] has made: to be written to, and with the times that it was changed at.
pub(super) fn unpack_as_packed(tar: impl Read, folder: BorrowedFd<'_>) -> Result<Unpacked, UnpackError> {
    let root = make_folders(folder, "").map_err(UnpackError::at(""))?;
    let changed = Some(Vec::new());
    let extraction = Extraction { root, mode: InputMode::Rw, folder: None, links: Vec::new(), changed };
    extraction.extract(tar, UnpackLimits::default())
}

fn readable(bytes: &[u8]) -> Result<String, UnpackError> {
    String::from_utf8(bytes.to_vec())
        .map_err(|_| UnpackError::NotUtf8 { entry: String::from_utf8_lossy(bytes).into_owned() })
}

struct Extraction {
    root: OwnedFd,
    mode: InputMode,
    /// The folder of the last entry, open: sorted archives stay in one for a while.
    folder: Option<(String, OwnedFd)>,
    links: Vec<(String, String)>,
    /// When the folders were changed, in nanoseconds, if entries keep that: set last of all, as whatever is made in a
    /// folder changes it.
    changed: Option<Vec<(String, i64)>>,
}

impl Extraction {
    fn extract(mut self, tar: impl Read, limits: UnpackLimits) -> Result<Unpacked, UnpackError> {
        let header_budget = Rc::new(Cell::new(MAX_HEADER_BYTES));
        let mut archive =
            tar::Archive::new(Budgeted { tar, budget: Rc::clone(&header_budget), begun: false });
        let mut unpacked = Unpacked::default();
        let mut entries = archive.entries().map_err(|source| UnpackError::Archive { source })?;
        loop {
            header_budget.set(MAX_HEADER_BYTES);
            let Some(entry) = entries.next() else { break };
            let mut entry = entry.map_err(|source| UnpackError::Archive { source })?;
            header_budget.set(u64::MAX);
            if entry.header().entry_type() == EntryType::XGlobalHeader {
                io::copy(&mut entry, &mut io::sink()).map_err(|source| UnpackError::Archive { source })?;
                continue;
            }
            let name = readable(&entry.path_bytes())?;
            unpacked.entries += 1;
            unpacked.size_bytes = unpacked.size_bytes.saturating_add(entry.size());
            if unpacked.entries > limits.max_entries || unpacked.size_bytes > limits.max_bytes {
                let UnpackLimits { max_entries, max_bytes } = limits;
                return Err(UnpackError::TooLarge { entry: name, max_entries, max_bytes });
            }
            self.add(&name, &mut entry)?;
            if self.changed.is_some()
                && let Some(changed_ns) = changed_at(&mut entry)
            {
                self.set_changed(&name, entry.header().entry_type(), changed_ns)?;
            }
        }
        self.check_links()?;
        for (path, changed_ns) in self.changed.take().unwrap_or_default() {
            let folder = make_folders(self.root.as_fd(), &path).map_err(UnpackError::at(&path))?;
            futimens(&folder, &changed(changed_ns)).map_err(UnpackError::at(&path))?;
        }
        Ok(unpacked)
    }

    fn set_changed(&mut self, name: &str, kind: EntryType, changed_ns: i64) -> Result<(), UnpackError> {
        let path = RelativePath::new(name)
            .map_err(|source| UnpackError::Leaves { entry: name.to_owned(), source })?;
        match &mut self.changed {
            Some(folders) if kind == EntryType::Directory => {
                folders.push((path.as_str().to_owned(), changed_ns));
                return Ok(());
            }
            _ => {}
        }
        let (folder, last) = split(path.as_str());
        let folder = self.open_folder(folder).map_err(UnpackError::at(name))?;
        utimensat(folder, last, &changed(changed_ns), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(UnpackError::at(name))
    }

    fn add<R: Read>(&mut self, name: &str, entry: &mut tar::Entry<'_, R>) -> Result<(), UnpackError> {
        let path = RelativePath::new(name)
            .map_err(|source| UnpackError::Leaves { entry: name.to_owned(), source })?;
        let kind = entry.header().entry_type();
        let (folder, last) = split(path.as_str());
        match kind {
            EntryType::Directory => {
                self.open_folder(path.as_str()).map_err(UnpackError::at(name))?;
                Ok(())
            }
            EntryType::Regular | EntryType::Continuous if !last.is_empty() => {
                let executable = entry.header().mode().unwrap_or(0o644) & 0o100 != 0;
                let mode = file_mode(self.mode, executable);
                let folder = self.open_folder(folder).map_err(UnpackError::at(name))?;
                let mut file = create_file(folder, last, mode).map_err(UnpackError::at(name))?;
                copy_entry(entry, &mut file, name)
            }
            EntryType::Symlink if !last.is_empty() => {
                let target = readable(&entry.link_name_bytes().unwrap_or_default())?;
                if !stays_inside(path.as_str(), &target) {
                    return Err(UnpackError::LinkOutside { entry: name.to_owned(), target });
                }
                let folder = self.open_folder(folder).map_err(UnpackError::at(name))?;
                make_link(folder, last, &target).map_err(UnpackError::at(name))?;
                self.links.push((path.as_str().to_owned(), target));
                Ok(())
            }
            kind => Err(UnpackError::Kind { entry: name.to_owned(), kind }),
        }
    }

    fn open_folder(&mut self, path: &str) -> rustix::io::Result<BorrowedFd<'_>> {
        let known = self.folder.take().filter(|(open, _)| open == path);
        let folder = match known {
            Some(known) => known,
            None => (path.to_owned(), make_folders(self.root.as_fd(), path)?),
        };
        Ok(self.folder.insert(folder).1.as_fd())
    }

    /// A chain of links can lead out although each target's text stays inside.
    fn check_links(&self) -> Result<(), UnpackError> {
        for (path, target) in &self.links {
            let end = follow(self.root.as_fd(), path).map_err(UnpackError::at(path))?;
            if end == LinkEnd::Outside {
                let (folder, last) = split(path);
                let folder = make_folders(self.root.as_fd(), folder).map_err(UnpackError::at(path))?;
                unlinkat(&folder, last, AtFlags::empty()).map_err(UnpackError::at(path))?;
                if self.changed.is_some() {
                    // It led by way of one that was left out: no reason to lose the rest.
                    continue;
                }
                return Err(UnpackError::LinkOutside { entry: path.clone(), target: target.clone() });
            }
        }
        Ok(())
    }
}

/// What the record of an entry says.
fn changed_at<R: Read>(entry: &mut tar::Entry<'_, R>) -> Option<i64> {
    let records = entry.pax_extensions().ok().flatten()?;
    let found = records.flatten().find(|record| record.key_bytes() == CHANGED_RECORD.as_bytes())?;
    nanoseconds_of(found.value().ok()?)
}

fn changed(at_ns: i64) -> Timestamps {
    let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let (seconds, nanoseconds) = (at_ns.div_euclid(1_000_000_000), at_ns.rem_euclid(1_000_000_000));
    Timestamps { last_access: omitted, last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds } }
}

/// Permission bits of a placed file.
pub(super) fn file_mode(mode: InputMode, executable: bool) -> u32 {
    match (mode, executable) {
        (InputMode::Ro, false) => 0o444,
        (InputMode::Ro, true) => 0o555,
        (InputMode::Rw, false) => 0o644,
        (InputMode::Rw, true) => 0o755,
    }
}

fn make_link(folder: BorrowedFd<'_>, name: &str, target: &str) -> rustix::io::Result<()> {
    match symlinkat(target, folder, name) {
        Err(Errno::EXIST) => {
            unlinkat(folder, name, AtFlags::empty())?;
            symlinkat(target, folder, name)
        }
        other => other,
    }
}

fn copy_entry(entry: &mut impl Read, file: &mut File, name: &str) -> Result<(), UnpackError> {
    let mut buffer = [0; 64 * 1024];
    loop {
        let count = match entry.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(UnpackError::Archive { source }),
        };
        file.write_all(&buffer[..count]).map_err(UnpackError::at(name))?;
    }
}

/// Fails once more is read than the budget allows.
struct Budgeted<R> {
    tar: R,
    budget: Rc<Cell<u64>>,
    /// Whether a byte was read.
    begun: bool,
}

impl<R: Read> Read for Budgeted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.get();
        if left == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a header is longer than 1 MiB"));
        }
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.tar.read(&mut buffer[..want])?;
        // Even an empty archive has its end mark. Taken for one, nothing at all would pass for an empty folder.
        if count == 0 && !self.begun && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is empty"));
        }
        self.begun = true;
        self.budget.set(left - count as u64);
        Ok(count)
    }
}
