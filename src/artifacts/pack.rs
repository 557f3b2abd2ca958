//! A folder as one tar, for whoever wants it again as it was: files, folders, links that stay inside, and when each was
//! changed, to the nanosecond (the `mtime` record of pax). Not a bundle: nothing is left out by rules, and the same files
//! need not have the same digest.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, readlinkat};
use tar::{Builder, EntryType, Header};

use super::beneath::{Mounts, RelativePath, join, open_regular};
use super::links::{LinkEnd, follow, stays_inside};
use super::listing::{Entry, FileStat, list};
use super::place::FromStart;
use super::unpack::{UnpackError, unpack_as_packed};

/// The record that says when an entry was changed.
pub(super) const CHANGED_RECORD: &str = "mtime";
/// The record with a link's target, of whatever length.
const TARGET_RECORD: &str = "linkpath";
/// No system makes a file of a longer path.
const LONGEST_PATH_BYTES: usize = 4000;

/// What became of a folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// How many things are in it, the folder itself not counted.
    pub entries: u64,
    /// What could not be packed, by name and reason.
    pub left_out: Vec<String>,
}

/// Writes what `name` in `folder` is, a folder with all beneath it or one file; each file that was opened goes through
/// `admit`. Blocks; constant memory for the bytes. A file that shrinks or vanishes meanwhile is an error, of one that
/// grows only its first bytes are there.
pub fn pack(
    folder: BorrowedFd<'_>,
    name: &str,
    admit: impl Fn(File) -> io::Result<File>,
    to: &File,
) -> io::Result<Packed> {
    let tar = Builder::new(BufWriter::with_capacity(256 * 1024, to));
    let mut packing = Packing { root: folder, top: name, admit, tar, packed: Packed::default() };
    packing.run()?;
    packing.tar.into_inner()?.flush()?;
    Ok(packing.packed)
}

/// Makes beneath `folder` what [`pack`] has packed.
pub fn unpack_packed(packed: &File, folder: BorrowedFd<'_>) -> Result<(), UnpackError> {
    let tar = BufReader::with_capacity(64 * 1024, FromStart { file: packed, at: 0 });
    unpack_as_packed(tar, folder).map(drop)
}

struct Packing<'a, A> {
    root: BorrowedFd<'a>,
    top: &'a str,
    admit: A,
    tar: Builder<BufWriter<&'a File>>,
    packed: Packed,
}

impl<A: Fn(File) -> io::Result<File>> Packing<'_, A> {
    fn run(&mut self) -> io::Result<()> {
        // The folder that it lies in may be large, and is nobody's affair here.
        let Some(top) = Entry::of(self.root, self.top)? else { return Ok(()) };
        match top.kind {
            FileType::Directory => {}
            _ => return self.add(self.top.to_owned(), &top, self.root).map(drop),
        }
        self.append(&Head::folder(self.top, &top), io::empty())?;
        let mut folders = vec![self.top.to_owned()];
        while let Some(folder) = folders.pop() {
            let mut listing = match list(self.root, &folder, Mounts::Crossed) {
                Ok(listing) => listing,
                Err(errno) if folder == self.top => return Err(errno.into()),
                Err(errno) => {
                    self.leave_out(&folder, &format!("the folder cannot be listed: {errno}"));
                    continue;
                }
            };
            for name in listing.unreadable_names {
                self.leave_out(&join(&folder, &name), "its name is not UTF-8");
            }
            listing.entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            let mut beneath = Vec::new();
            for entry in listing.entries {
                let path = join(&folder, &entry.name);
                if self.add(path.clone(), &entry, listing.folder.as_fd())? {
                    beneath.push(path);
                }
            }
            folders.extend(beneath.into_iter().rev());
        }
        Ok(())
    }

    /// Whether it is a folder, whose turn comes.
    fn add(&mut self, path: String, entry: &Entry, folder: BorrowedFd<'_>) -> io::Result<bool> {
        if path.len() > LONGEST_PATH_BYTES {
            self.leave_out(&path, "no computer could make a file with so long a path");
            return Ok(false);
        }
        match entry.kind {
            FileType::Directory => {
                self.packed.entries += 1;
                self.append(&Head::folder(&path, entry), io::empty())?;
                return Ok(true);
            }
            FileType::RegularFile => self.file(&path)?,
            FileType::Symlink => self.link(&path, entry, folder)?,
            FileType::Fifo => self.leave_out(&path, "it is a fifo"),
            FileType::Socket => self.leave_out(&path, "it is a socket"),
            _ => self.leave_out(&path, "it is a device"),
        }
        Ok(false)
    }

    fn file(&mut self, path: &str) -> io::Result<()> {
        let beneath = RelativePath::new(path).map_err(io::Error::other)?;
        let file = (self.admit)(open_regular(self.root, &beneath, Mounts::Crossed)?)?;
        let stat = FileStat::of_file(&file)?;
        let head = Head {
            path,
            kind: EntryType::Regular,
            mode: if stat.mode & 0o100 != 0 { 0o755 } else { 0o644 },
            size_bytes: stat.size_bytes,
            changed_ns: stat.modified_ns,
            target: None,
        };
        self.packed.entries += 1;
        self.append(&head, Exact { file, left: stat.size_bytes })
    }

    /// Both as it stands and as it is followed it must stay inside, or whoever unpacks it would refuse it.
    fn link(&mut self, path: &str, entry: &Entry, folder: BorrowedFd<'_>) -> io::Result<()> {
        let read = readlinkat(folder, entry.name.as_str(), Vec::new());
        let followed = read.and_then(|target| Ok((target, follow(self.root, path)?)));
        let (target, end) = match followed {
            Ok(followed) => followed,
            Err(errno) => {
                self.leave_out(path, &format!("the link cannot be read: {errno}"));
                return Ok(());
            }
        };
        let shown = target.to_string_lossy();
        match end {
            LinkEnd::Inside(end) if self.holds(&end) && stays_inside(path, &shown) => {
                let head = Head {
                    path,
                    kind: EntryType::Symlink,
                    mode: 0o777,
                    size_bytes: 0,
                    changed_ns: entry.stat.modified_ns,
                    target: Some(&shown),
                };
                self.packed.entries += 1;
                self.append(&head, io::empty())?;
            }
            LinkEnd::Loop => self.leave_out(path, "the link leads in a circle"),
            _ => self.leave_out(path, &format!("the link leads out of it, to `{shown}`")),
        }
        Ok(())
    }

    fn holds(&self, path: &str) -> bool {
        path.strip_prefix(self.top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn leave_out(&mut self, path: &str, why: &str) {
        self.packed.left_out.push(format!("`{path}`: {why}"));
    }

    fn append(&mut self, head: &Head<'_>, bytes: impl Read) -> io::Result<()> {
        let changed = nanoseconds_text(head.changed_ns);
        let target = head.target.map(|target| (TARGET_RECORD, target.as_bytes()));
        let records = [(CHANGED_RECORD, changed.as_bytes())].into_iter().chain(target);
        self.tar.append_pax_extensions(records)?;
        let mut header = Header::new_gnu();
        header.set_entry_type(head.kind);
        header.set_size(head.size_bytes);
        header.set_mode(head.mode);
        header.set_mtime(u64::try_from(head.changed_ns / 1_000_000_000).unwrap_or(0));
        self.tar.append_data(&mut header, head.path, bytes)
    }
}

/// What is said of an entry before its bytes.
struct Head<'a> {
    path: &'a str,
    kind: EntryType,
    mode: u32,
    size_bytes: u64,
    changed_ns: i64,
    target: Option<&'a str>,
}

impl<'a> Head<'a> {
    fn folder(path: &'a str, entry: &Entry) -> Self {
        let changed_ns = entry.stat.modified_ns;
        Self { path, kind: EntryType::Directory, mode: 0o755, size_bytes: 0, changed_ns, target: None }
    }
}

/// As a record has it: seconds, with a fraction.
fn nanoseconds_text(nanoseconds: i64) -> String {
    let (sign, size) = (if nanoseconds < 0 { "-" } else { "" }, nanoseconds.unsigned_abs());
    format!("{sign}{}.{:09}", size / 1_000_000_000, size % 1_000_000_000)
}

/// `None` = it is none, or of no time that a file can have.
pub(super) fn nanoseconds_of(text: &str) -> Option<i64> {
    let (sign, size) = text.strip_prefix('-').map_or((1, text), |size| (-1, size));
    let (seconds, fraction) = size.split_once('.').unwrap_or((size, ""));
    if !fraction.bytes().chain(seconds.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanoseconds: i64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let seconds: i64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)?.checked_mul(sign)
}

/// As many bytes as the header says, or an error.
struct Exact {
    file: File,
    left: u64,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read(&mut buffer[..most])?;
        if count == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    use super::super::beneath::open_folder;

    /// What lies there: its kind, when it was changed and where it leads.
    fn found(at: &Path) -> (fs::FileType, i64, i64, Option<std::path::PathBuf>) {
        let stat = fs::symlink_metadata(at).unwrap();
        (stat.file_type(), stat.mtime(), stat.mtime_nsec(), fs::read_link(at).ok())
    }

    fn packed(folder: &Path, name: &str) -> (File, Packed) {
        let tar = tempfile::tempfile().unwrap();
        let packed = pack(open_folder(folder).unwrap().as_fd(), name, Ok, &tar).unwrap();
        (tar, packed)
    }

    #[test]
    fn a_folder_comes_back_with_times_links_and_empty_folders() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| from.path().join("kept").join(name);
        fs::create_dir_all(at("empty/deeper")).unwrap();
        let long = "d".repeat(120);
        fs::create_dir(at(&long)).unwrap();
        // Names have another order than times.
        for (nanoseconds, name) in [(1, "step_9"), (2, "step_10"), (3, "step_11")] {
            fs::write(at(name), name).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, nanoseconds);
            File::open(at(name)).unwrap().set_modified(time).unwrap();
        }
        fs::set_permissions(at("step_10"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(at(&long).join("file"), "x").unwrap();
        symlink("step_11", at("last")).unwrap();
        symlink(format!("../{long}/nothing"), at("empty/dangling")).unwrap();
        symlink(".", at("itself")).unwrap();
        let old = std::time::UNIX_EPOCH - std::time::Duration::new(5, 5);
        for folder in [at("empty/deeper"), at("empty"), at("")] {
            File::open(folder).unwrap().set_modified(old).unwrap();
        }
        let (tar, done) = packed(from.path(), "kept");
        assert_eq!(done, Packed { entries: 10, left_out: Vec::new() });
        unpack_packed(&tar, open_folder(to.path()).unwrap().as_fd()).unwrap();
        for name in [
            "",
            "empty",
            "empty/deeper",
            "empty/dangling",
            "step_9",
            "step_10",
            "step_11",
            "last",
            "itself",
            &long,
        ] {
            assert_eq!(found(&to.path().join("kept").join(name)), found(&at(name)), "{name}");
        }
        let back = to.path().join("kept");
        assert_eq!(fs::read(back.join("last")).unwrap(), b"step_11");
        assert_eq!(fs::read(back.join(&long).join("file")).unwrap(), b"x");
        assert_eq!(fs::metadata(back.join("step_10")).unwrap().mode() & 0o777, 0o755);
    }

    #[test]
    fn what_cannot_travel_is_named() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| from.path().join("kept").join(name);
        fs::create_dir_all(at("folder")).unwrap();
        fs::write(at("file"), "x").unwrap();
        fs::write(from.path().join("beside"), "x").unwrap();
        symlink("/etc/hostname", at("absolute")).unwrap();
        symlink("../../beside", at("folder/beside")).unwrap();
        symlink("circle", at("circle")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        let (tar, done) = packed(from.path(), "kept");
        assert_eq!(
            (done.entries, done.left_out),
            (
                2,
                vec![
                    "`kept/absolute`: the link leads out of it, to `/etc/hostname`".to_owned(),
                    "`kept/circle`: the link leads in a circle".to_owned(),
                    "`kept/fifo`: it is a fifo".to_owned(),
                    "`kept/folder/beside`: the link leads out of it, to `../../beside`".to_owned(),
                ]
            )
        );
        unpack_packed(&tar, open_folder(to.path()).unwrap().as_fd()).unwrap();
        assert_eq!(fs::read(to.path().join("kept/file")).unwrap(), b"x");
        // Whoever wrote a file in place of the folder has it again, and a link is no folder.
        fs::remove_dir_all(at("")).unwrap();
        fs::write(from.path().join("kept"), "one file").unwrap();
        let (tar, done) = packed(from.path(), "kept");
        assert_eq!(done, Packed { entries: 1, left_out: Vec::new() });
        fs::remove_dir_all(to.path().join("kept")).unwrap();
        unpack_packed(&tar, open_folder(to.path()).unwrap().as_fd()).unwrap();
        assert_eq!(fs::read(to.path().join("kept")).unwrap(), b"one file");
        symlink("/etc", from.path().join("link")).unwrap();
        assert_eq!(packed(from.path(), "link").1.left_out.len(), 1);
        assert_eq!(packed(from.path(), "absent").1, Packed::default());
    }

    /// Both are kept, and one leads by way of another that is not: without it, the first leads out.
    #[test]
    fn a_link_that_leads_out_without_another_one_is_no_reason_to_lose_the_rest() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| from.path().join("kept").join(name);
        fs::create_dir_all(at("q/w")).unwrap();
        fs::create_dir_all(from.path().join("other/deep/deeper")).unwrap();
        fs::write(at("file"), "x").unwrap();
        symlink("../other/deep/deeper", at("b")).unwrap();
        symlink("../../b/.", at("q/w/k")).unwrap();
        symlink("k/../../../kept", at("q/w/a")).unwrap();
        let (tar, done) = packed(from.path(), "kept");
        assert!(done.left_out.iter().all(|what| !what.contains("q/w/a")), "{done:?}");
        unpack_packed(&tar, open_folder(to.path()).unwrap().as_fd()).unwrap();
        assert_eq!(fs::read(to.path().join("kept/file")).unwrap(), b"x");
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for nanoseconds in [0, 1, 999_999_999, 1_700_000_000_123_456_789, -1, -1_500_000_000] {
            assert_eq!(nanoseconds_of(&nanoseconds_text(nanoseconds)), Some(nanoseconds));
        }
        assert_eq!(nanoseconds_of("12"), Some(12_000_000_000));
        assert_eq!(nanoseconds_of("12.5"), Some(12_500_000_000));
        assert_eq!(nanoseconds_of("1.0000000019"), Some(1_000_000_001));
        for none in ["", "-", "x", "1.x", "1.-5", "--1", "99999999999999999999"] {
            assert_eq!(nanoseconds_of(none), None, "{none}");
        }
    }
}
