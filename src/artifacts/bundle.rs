//! Source bundles: a folder as one deterministic tar, so that the same tree has the same digest anywhere. Three
//! steps: [`plan`] walks and judges, [`digest`] hashes unless the stat cache knows the answer, [`write`] streams
//! the bytes; where somebody writes to the tree meanwhile, [`snapshot`] does the latter two at once. Owns the rules of what travels; never follows a link.

mod archive;
mod ignores;
mod source_root;
mod stat_cache;
mod walk;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::listing::FileStat;
use crate::contract::artifact::Digest;

pub use source_root::{SourceRoot, source_root};
pub use walk::plan;

/// What a bundle may be, and what it must not take along.
#[derive(Debug, Clone)]
pub struct PlanOptions {
    /// Largest size of all files together, in bytes.
    pub max_bytes: u64,
    /// Most files, folders and links.
    pub max_entries: usize,
    /// GPUlayer's own folders (home, state), left out when they lie in the tree.
    pub own_folders: Vec<PathBuf>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { max_bytes: 256 << 20, max_entries: 200_000, own_folders: Vec::new() }
    }
}

/// What will be sent, and what will not. Holds names and times, no bytes.
#[derive(Debug)]
pub struct Plan {
    root: PathBuf,
    folder: OwnedFd,
    /// By name, in byte order.
    entries: Vec<PlanEntry>,
    left_out: Vec<LeftOut>,
    /// Wall clock before the first look at the tree, in nanoseconds.
    taken_ns: i64,
}

#[derive(Debug)]
struct PlanEntry {
    path: String,
    kind: PlanKind,
}

#[derive(Debug)]
enum PlanKind {
    Folder,
    File(FileStat),
    Link { target: String },
}

/// Something in the tree that does not travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Relative to the root, with `/` behind a folder; names that are not UTF-8 made readable.
    pub path: String,
    /// Why.
    pub reason: LeftOutReason,
    /// Its size in bytes, all beneath it included; not measured for what is never sent.
    pub size_bytes: u64,
    /// Whether the measuring stopped early, so that the size is a lower bound.
    pub at_least: bool,
}

/// Why something stays behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeftOutReason {
    /// A `.gitignore` says so.
    #[error("ignored")]
    Ignored,
    /// A `.gpulayerignore` says so.
    #[error("ignored")]
    OwnIgnored,
    /// `.git` and its like.
    #[error("version control")]
    VersionControl,
    /// A Python environment.
    #[error("a virtual environment")]
    VirtualEnvironment,
    /// `__pycache__` and its like.
    #[error("a cache")]
    Cache,
    /// GPUlayer's home or state.
    #[error("GPUlayer's own state")]
    OwnState,
    /// A link that leads out of the tree, or an absolute one.
    #[error("the link leads out of the tree")]
    LinkOutside,
    /// A link that leads in a circle.
    #[error("the link leads in a circle")]
    LinkLoop,
    /// A socket.
    #[error("a socket")]
    Socket,
    /// A fifo.
    #[error("a fifo")]
    Fifo,
    /// A device.
    #[error("a device")]
    Device,
    /// No permission.
    #[error("not readable")]
    Unreadable,
    /// The name could not be written in a bundle.
    #[error("the name is not UTF-8")]
    NameNotUtf8,
}

impl LeftOutReason {
    /// Who left it out, for a sentence about something that is missed.
    pub const fn by(self) -> &'static str {
        match self {
            LeftOutReason::Ignored => ".gitignore",
            LeftOutReason::OwnIgnored => ".gpulayerignore",
            _ => "the bundle",
        }
    }

    /// Whether it could not travel (worth a warning), rather than was not meant to.
    pub const fn cannot_travel(self) -> bool {
        use LeftOutReason::{Cache, Ignored, OwnIgnored, OwnState, VersionControl, VirtualEnvironment};
        !matches!(self, Ignored | OwnIgnored | VersionControl | VirtualEnvironment | Cache | OwnState)
    }
}

/// A bundle that was hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// Of the tar.
    pub digest: Digest,
    /// Length of the tar in bytes.
    pub size_bytes: u64,
    /// Regular files in it.
    pub file_count: u64,
    /// What stayed behind.
    pub left_out: Vec<LeftOut>,
}

/// Why a folder cannot be bundled.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The files together are too large.
    #[error(
        "the source in {} has {}, more than the {} allowed; {}",
        root.display(), megabytes(*size_bytes), megabytes(*limit_bytes), listed(largest)
    )]
    TooLarge {
        /// The folder.
        root: PathBuf,
        /// All files together.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
        /// The largest files with their sizes, largest first.
        largest: Vec<(String, u64)>,
    },
    /// There are too many files.
    #[error("{} holds more than {limit} files", root.display())]
    TooManyEntries {
        /// The folder.
        root: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// Somebody wrote to a file while it was read; try again.
    #[error("{} changed while it was read; where a program writes to it all the time, name it in .gpulayerignore", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// A verb.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The receiver of the bytes failed.
    #[error("cannot send the bundle of {}", root.display())]
    Write {
        /// The folder.
        root: PathBuf,
        /// What the receiver said.
        #[source]
        source: io::Error,
    },
}

impl BundleError {
    fn at<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> BundleError {
        move |source| BundleError::Io { operation, path: path.to_owned(), source: source.into() }
    }
}

/// What is worth naming when a bundle is too large.
const LARGE_BYTES: u64 = 1_000_000;

fn listed(files: &[(String, u64)]) -> String {
    let large = files.iter().filter(|(_, bytes)| *bytes >= LARGE_BYTES);
    let shown: Vec<_> = large.map(|(path, bytes)| format!("{path} ({})", megabytes(*bytes))).collect();
    if shown.is_empty() {
        return "it has many small files".to_owned();
    }
    format!("its largest files: {}", shown.join(", "))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

impl Plan {
    /// The folder, all links in its own path resolved.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Regular files that will be sent.
    pub fn file_count(&self) -> u64 {
        self.entries.iter().filter(|entry| matches!(entry.kind, PlanKind::File(_))).count() as u64
    }

    /// Names of all entries, in their order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.path.as_str())
    }

    /// What stays behind.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Length of the tar in bytes.
    pub fn size_bytes(&self) -> u64 {
        archive::size_bytes(&self.entries)
    }

    /// Whether a file was written to a moment before the tree was looked at, and so may be written to again.
    pub fn is_restless(&self) -> bool {
        !stat_cache::is_still(self)
    }
}

/// The bundle's digest. With a cache folder, a tree whose names, sizes and times are those of last time is not
/// read again. Trouble with the cache costs time, nothing else.
pub fn digest(plan: &Plan, cache_folder: Option<&Path>) -> Result<Bundle, BundleError> {
    let cache = cache_folder.map(|folder| stat_cache::StatCache::new(folder, plan));
    if let Some(digest) = cache.as_ref().and_then(stat_cache::StatCache::lookup) {
        return Ok(bundle(plan, digest));
    }
    let digest = write(plan, io::sink())?;
    if let Some(cache) = cache {
        cache.store(digest);
    }
    Ok(bundle(plan, digest))
}

/// Streams the tar; its digest. A file that is not as it was planned is reported as `Changed`, and the bytes
/// sent so far are worthless.
pub fn write(plan: &Plan, to: impl Write) -> Result<Digest, BundleError> {
    archive::write(plan, to)
}

/// Reads the tree once, into `spool`, which is empty: each file as it is by now, and those that are gone not at all. One
/// that is written to all the while is as long as it was when it was opened, which is right for a log that grows.
pub fn snapshot(plan: &Plan, spool: &mut File) -> Result<Bundle, BundleError> {
    let snapshot = archive::snapshot(plan, spool)?;
    let left_out = plan.left_out.clone();
    Ok(Bundle {
        digest: snapshot.digest,
        size_bytes: snapshot.size_bytes,
        file_count: snapshot.file_count,
        left_out,
    })
}

fn bundle(plan: &Plan, digest: Digest) -> Bundle {
    Bundle {
        digest,
        size_bytes: plan.size_bytes(),
        file_count: plan.file_count(),
        left_out: plan.left_out.clone(),
    }
}
