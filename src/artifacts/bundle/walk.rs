//! Walks a tree and judges every name in it: sent, or left out with a reason. Looks at names and times only;
//! opens no file but those with ignore rules.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, AtFlags, FileType, accessat, readlinkat};

use super::super::beneath::{Mounts, join, open_folder};
use super::super::links::{LinkEnd, follow, stays_inside};
use super::super::listing::{Entry, FileStat, Listing, list};
use super::ignores::Rules;
use super::{BundleError, LeftOut, LeftOutReason, Plan, PlanEntry, PlanKind, PlanOptions};

/// So many single files that a pattern left out deep in the tree are named.
const MOST_DEEP_FILES: usize = 256;
const VERSION_CONTROL: [&str; 4] = [".git", ".hg", ".svn", ".jj"];
const CACHES: [&str; 5] =
    ["__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints"];
/// What lies in it is a program's that ran here as if it were in a job: its checkpoint.
const OWN_STATE: &str = ".gpulayer";
/// Names looked at, all left-out folders together, before their sizes become lower bounds.
const MEASURE_BUDGET: usize = 4000;
/// How many of the largest files an error names.
const LARGEST_NAMED: usize = 5;

/// Decides what of the folder `root` is sent.
pub fn plan(root: &Path, options: &PlanOptions) -> Result<Plan, BundleError> {
    let taken_ns = now_ns();
    let root = root.canonicalize().map_err(BundleError::at("find", root))?;
    let folder = open_folder(&root).map_err(BundleError::at("open", &root))?;
    let mut walk = Walk {
        own_folders: own_folders(&root, &options.own_folders),
        root,
        folder,
        max_entries: options.max_entries,
        measure_budget: MEASURE_BUDGET,
        user: rustix::process::geteuid().as_raw(),
        entries: Vec::new(),
        left_out: Vec::new(),
        deep_files: 0,
    };
    walk.run()?;
    let Walk { root, folder, mut entries, mut left_out, .. } = walk;
    entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    // Whoever has room for a few names takes the first.
    left_out.sort_by(|a, b| (is_deep_file(a), &a.path).cmp(&(is_deep_file(b), &b.path)));
    check_size(&root, &entries, options.max_bytes)?;
    Ok(Plan { root, folder, entries, left_out, taken_ns })
}

/// On the clock that files' times are read against, in nanoseconds since 1970.
fn now_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |span| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}

fn own_folders(root: &Path, folders: &[PathBuf]) -> HashSet<String> {
    let inside = |folder: &PathBuf| {
        let folder = folder.canonicalize().ok()?;
        folder.strip_prefix(root).ok()?.to_str().map(str::to_owned)
    };
    folders.iter().filter_map(inside).filter(|path| !path.is_empty()).collect()
}

fn check_size(root: &Path, entries: &[PlanEntry], limit_bytes: u64) -> Result<(), BundleError> {
    let files = entries.iter().filter_map(|entry| match &entry.kind {
        PlanKind::File(stat) => Some((entry.path.as_str(), stat.size_bytes)),
        _ => None,
    });
    let size_bytes = files.clone().map(|(_, bytes)| bytes).fold(0, u64::saturating_add);
    if size_bytes <= limit_bytes {
        return Ok(());
    }
    let mut largest: Vec<(String, u64)> = files.map(|(path, bytes)| (path.to_owned(), bytes)).collect();
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    largest.truncate(LARGEST_NAMED);
    Err(BundleError::TooLarge { root: root.to_owned(), size_bytes, limit_bytes, largest })
}

struct Walk {
    root: PathBuf,
    folder: OwnedFd,
    own_folders: HashSet<String>,
    max_entries: usize,
    measure_budget: usize,
    user: u32,
    entries: Vec<PlanEntry>,
    left_out: Vec<LeftOut>,
    /// How many of them are single ignored files deep in the tree.
    deep_files: usize,
}

/// A single file deep in the tree that a pattern left out.
fn is_deep_file(left: &LeftOut) -> bool {
    let ignored = matches!(left.reason, LeftOutReason::Ignored | LeftOutReason::OwnIgnored);
    ignored && left.path.contains('/') && !left.path.ends_with('/')
}

impl Walk {
    fn run(&mut self) -> Result<(), BundleError> {
        let mut folders: Vec<(String, Option<Rc<Rules>>)> = vec![(String::new(), None)];
        while let Some((path, above)) = folders.pop() {
            let listing = match list(self.folder.as_fd(), &path, Mounts::Crossed) {
                Ok(listing) => listing,
                Err(errno) if path.is_empty() => return Err(BundleError::at("list", &self.root)(errno)),
                Err(_) => {
                    self.leave_out(path, LeftOutReason::Unreadable);
                    continue;
                }
            };
            if !path.is_empty() {
                if is_virtual_environment(&listing) {
                    self.leave_out(path + "/", LeftOutReason::VirtualEnvironment);
                    continue;
                }
                self.entries.push(PlanEntry { path: path.clone(), kind: PlanKind::Folder });
            }
            let rules = self.rules(&path, &listing, above)?;
            for name in listing.unreadable_names {
                self.leave_out(join(&path, &name), LeftOutReason::NameNotUtf8);
            }
            for entry in listing.entries {
                let at = join(&path, &entry.name);
                match self.judge(&at, &entry, rules.as_deref(), listing.folder.as_fd())? {
                    Verdict::Descend => folders.push((at, rules.clone())),
                    Verdict::Send(kind) => self.entries.push(PlanEntry { path: at, kind }),
                    Verdict::LeaveOut(reason) => self.leave_out_entry(at, &entry, reason),
                }
            }
            if self.entries.len() > self.max_entries {
                return Err(BundleError::TooManyEntries { root: self.root.clone(), limit: self.max_entries });
            }
        }
        Ok(())
    }

    fn rules(
        &self,
        path: &str,
        listing: &Listing,
        above: Option<Rc<Rules>>,
    ) -> Result<Option<Rc<Rules>>, BundleError> {
        let files = listing.entries.iter().filter(|entry| entry.kind == FileType::RegularFile);
        let names = files.map(|entry| entry.name.as_str());
        Rules::within(self.folder.as_fd(), path, names, above)
            .map_err(|(path, error)| BundleError::at("read", &self.root.join(path))(error))
    }

    fn judge(
        &self,
        path: &str,
        entry: &Entry,
        rules: Option<&Rules>,
        folder: BorrowedFd<'_>,
    ) -> Result<Verdict, BundleError> {
        let name = entry.name.as_str();
        let is_folder = entry.kind == FileType::Directory;
        let leave_out = |reason| Ok(Verdict::LeaveOut(reason));
        if VERSION_CONTROL.contains(&name) {
            return leave_out(LeftOutReason::VersionControl);
        }
        if self.own_folders.contains(path) || (is_folder && name == OWN_STATE) {
            return leave_out(LeftOutReason::OwnState);
        }
        if is_folder && CACHES.contains(&name) {
            return leave_out(LeftOutReason::Cache);
        }
        if is_folder && name == ".venv" {
            return leave_out(LeftOutReason::VirtualEnvironment);
        }
        if let Some(reason) = rules.and_then(|rules| rules.ignore(path, is_folder)) {
            return leave_out(reason);
        }
        match entry.kind {
            FileType::Directory if entry.stat.mode & 0o500 != 0o500 => leave_out(LeftOutReason::Unreadable),
            FileType::Directory => Ok(Verdict::Descend),
            FileType::RegularFile if self.readable(&entry.stat, name, folder) => {
                Ok(Verdict::Send(PlanKind::File(entry.stat)))
            }
            FileType::RegularFile => leave_out(LeftOutReason::Unreadable),
            FileType::Symlink => self.judge_link(path, name, folder),
            FileType::Fifo => leave_out(LeftOutReason::Fifo),
            FileType::Socket => leave_out(LeftOutReason::Socket),
            _ => leave_out(LeftOutReason::Device),
        }
    }

    /// The owner's bit counts for root too, so that the digest does not depend on who asks.
    fn readable(&self, stat: &FileStat, name: &str, folder: BorrowedFd<'_>) -> bool {
        stat.mode & 0o400 != 0
            && (stat.owner == self.user || accessat(folder, name, Access::READ_OK, AtFlags::EACCESS).is_ok())
    }

    fn judge_link(&self, path: &str, name: &str, folder: BorrowedFd<'_>) -> Result<Verdict, BundleError> {
        let at = |errno| BundleError::at("read the link", &self.root.join(path))(errno);
        let target = readlinkat(folder, name, Vec::new()).map_err(at)?;
        let end = follow(self.folder.as_fd(), path).map_err(at)?;
        Ok(match (end, target.into_string()) {
            (LinkEnd::Loop, _) => Verdict::LeaveOut(LeftOutReason::LinkLoop),
            // Both: the text is what the receiver checks first.
            (LinkEnd::Inside(_), Ok(target)) if stays_inside(path, &target) => {
                Verdict::Send(PlanKind::Link { target })
            }
            _ => Verdict::LeaveOut(LeftOutReason::LinkOutside),
        })
    }

    fn leave_out(&mut self, path: String, reason: LeftOutReason) {
        self.left_out.push(LeftOut { path, reason, size_bytes: 0, at_least: false });
    }

    /// Names what a person should know of: not every cache deep in the tree, nor thousands of ignored files.
    fn leave_out_entry(&mut self, path: String, entry: &Entry, reason: LeftOutReason) {
        let is_folder = entry.kind == FileType::Directory;
        let deep = path.contains('/');
        let worth_naming = match reason {
            LeftOutReason::Ignored | LeftOutReason::OwnIgnored if !is_folder && deep => {
                self.deep_files += 1;
                self.deep_files <= MOST_DEEP_FILES
            }
            LeftOutReason::Cache => !deep,
            _ => true,
        };
        if !worth_naming {
            return;
        }
        let (size_bytes, at_least) = match (reason, entry.kind) {
            (LeftOutReason::Ignored | LeftOutReason::OwnIgnored, FileType::Directory) => self.measure(&path),
            (_, FileType::RegularFile) => (entry.stat.size_bytes, false),
            _ => (0, false),
        };
        let path = if is_folder { path + "/" } else { path };
        self.left_out.push(LeftOut { path, reason, size_bytes, at_least });
    }

    /// Bytes beneath a folder, and whether the budget ran out before the end.
    fn measure(&mut self, path: &str) -> (u64, bool) {
        let mut size_bytes: u64 = 0;
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            if self.measure_budget == 0 {
                return (size_bytes, true);
            }
            let Ok(listing) = list(self.folder.as_fd(), &folder, Mounts::Crossed) else { continue };
            self.measure_budget = self.measure_budget.saturating_sub(listing.entries.len().max(1));
            for entry in listing.entries {
                match entry.kind {
                    FileType::Directory => folders.push(join(&folder, &entry.name)),
                    FileType::RegularFile => size_bytes = size_bytes.saturating_add(entry.stat.size_bytes),
                    _ => {}
                }
            }
        }
        (size_bytes, false)
    }
}

enum Verdict {
    Descend,
    Send(PlanKind),
    LeaveOut(LeftOutReason),
}

fn is_virtual_environment(listing: &Listing) -> bool {
    listing.entries.iter().any(|entry| match entry.name.as_str() {
        "pyvenv.cfg" => entry.kind == FileType::RegularFile,
        "conda-meta" => entry.kind == FileType::Directory,
        _ => false,
    })
}
