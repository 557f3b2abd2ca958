//! Finds what a task left in its workspace: the files its outputs declare, and those it made besides. One walk,
//! no link followed, nothing read: the bytes are opened one by one when they are stored.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use globset::{GlobBuilder, GlobMatcher};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::beneath::{Mounts, RelativePath, RelativePathError, join, open_regular};
use super::links::{LinkEnd, follow};
use super::listing::{Entry, list};
use super::snapshot::Snapshot;
use crate::contract::artifact::{Digest, OutputFile, UndeclaredFile};
use crate::contract::problem::Warning;
use crate::contract::spec::Output;

/// Undeclared files and warnings beyond these numbers are counted, not listed.
const MAX_UNDECLARED: usize = 1000;
const MAX_WARNINGS: usize = 100;
/// No system makes a file of a longer path.
const LONGEST_PATH_BYTES: usize = 4000;

/// What a workspace yields at a task's end.
#[derive(Debug, Default)]
pub struct Collected {
    /// Files and links that outputs declare, by path; one entry for each output that declares it.
    pub files: Vec<CollectedFile>,
    /// Names of outputs that are not optional and are not there.
    pub missing: Vec<String>,
    /// New or changed regular files that no output declares, by path; at most 1,000 of them.
    pub undeclared: Vec<UndeclaredFile>,
    /// How many there are in all.
    pub undeclared_count: u64,
    /// Their size in bytes, all together.
    pub undeclared_bytes: u64,
    /// What could not be collected, by name and reason.
    pub warnings: Vec<Warning>,
}

/// One declared file or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedFile {
    /// The output's name.
    pub name: String,
    /// Relative to the workspace.
    pub path: String,
    /// Size in bytes when it was found; 0 for links.
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Bytes or a link.
    pub content: CollectedContent,
    mounts: Mounts,
}

/// What there is to store of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectedContent {
    /// Bytes: open them with [`CollectedFile::open`].
    Regular,
    /// A link inside the workspace, by its target.
    Link {
        /// As the program wrote it.
        target: String,
    },
}

impl CollectedFile {
    /// Opens its bytes, without following links.
    pub fn open(&self, workspace: BorrowedFd<'_>) -> io::Result<File> {
        let path = RelativePath::new(&self.path)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        open_regular(workspace, &path, self.mounts)
    }

    /// As the job lists it. `stored` is the digest and length of what was stored; `None` for links.
    pub fn listed(&self, stored: Option<(Digest, u64)>) -> OutputFile {
        let link_target = match &self.content {
            CollectedContent::Regular => None,
            CollectedContent::Link { target } => Some(target.clone()),
        };
        OutputFile {
            name: self.name.clone(),
            path: self.path.clone(),
            artifact: stored.map(|(digest, _)| digest),
            link_target,
            size_bytes: stored.map_or(0, |(_, size_bytes)| size_bytes),
            mode: self.mode,
        }
    }
}

/// Why nothing can be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The workspace itself cannot be listed.
    #[error("cannot list the workspace")]
    Workspace {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// An output's path leaves the workspace.
    #[error("output `{output}` leaves the workspace")]
    Leaves {
        /// Its name.
        output: String,
        /// In what way.
        #[source]
        source: RelativePathError,
    },
    /// An output's glob cannot be read.
    #[error("output `{output}` is no valid glob")]
    Glob {
        /// Its name.
        output: String,
        /// What is wrong with it.
        #[source]
        source: globset::Error,
    },
}

/// Finds everything beneath `workspace` that `outputs` declare, and what is new or changed since `before`. An
/// output is a path or a glob (`*` stays within a folder, `**` does not); a folder stands for all beneath it.
/// What is mounted in the workspace is left out.
pub fn collect(
    workspace: BorrowedFd<'_>,
    outputs: &[Output],
    before: &Snapshot,
) -> Result<Collected, CollectError> {
    walk(workspace, outputs, before, Mounts::Refused)
}

/// As [`collect`], in a person's own folder: other volumes may be mounted in it.
pub fn collect_in_real_folder(folder: BorrowedFd<'_>, outputs: &[Output]) -> Result<Collected, CollectError> {
    walk(folder, outputs, &Snapshot::default(), Mounts::Crossed)
}

fn walk(
    workspace: BorrowedFd<'_>,
    outputs: &[Output],
    before: &Snapshot,
    mounts: Mounts,
) -> Result<Collected, CollectError> {
    let patterns = outputs.iter().map(Pattern::new).collect::<Result<Vec<_>, _>>()?;
    let found = vec![false; patterns.len()];
    let mut walk = Walk {
        workspace,
        mounts,
        patterns,
        before,
        found,
        links: Vec::new(),
        suppressed: 0,
        collected: Collected::default(),
    };
    walk.run()?;
    Ok(walk.finish())
}

/// One output, ready to match.
struct Pattern<'a> {
    output: &'a Output,
    path: RelativePath,
    glob: Option<GlobMatcher>,
}

impl<'a> Pattern<'a> {
    fn new(output: &'a Output) -> Result<Self, CollectError> {
        let name = || output.shown_name().to_owned();
        let path = RelativePath::new(&output.path)
            .map_err(|source| CollectError::Leaves { output: name(), source })?;
        let glob = path
            .as_str()
            .contains(['*', '?', '[', '{'])
            .then(|| GlobBuilder::new(path.as_str()).literal_separator(true).backslash_escape(true).build());
        let glob = glob.transpose().map_err(|source| CollectError::Glob { output: name(), source })?;
        Ok(Self { output, path, glob: glob.map(|glob| glob.compile_matcher()) })
    }

    /// A file may really be called `a[1].txt`, so the text itself counts before its meaning as a glob.
    fn matches(&self, path: &str) -> bool {
        self.path.as_str() == path || self.glob.as_ref().is_some_and(|glob| glob.is_match(path))
    }
}

struct Walk<'a> {
    workspace: BorrowedFd<'a>,
    mounts: Mounts,
    patterns: Vec<Pattern<'a>>,
    before: &'a Snapshot,
    found: Vec<bool>,
    /// Collected links: the output's index, the path, and where it leads.
    links: Vec<(usize, String, String)>,
    suppressed: u64,
    collected: Collected,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<(), CollectError> {
        let everything = self.matching("", &[]);
        self.mark(&everything);
        let mut folders = vec![(String::new(), everything)];
        while let Some((folder, inherited)) = folders.pop() {
            let listing = match list(self.workspace, &folder, self.mounts) {
                Ok(listing) => listing,
                Err(errno) if folder.is_empty() => {
                    return Err(CollectError::Workspace { source: errno.into() });
                }
                Err(Errno::XDEV) => {
                    self.warn(&inherited, &folder, "another volume is mounted there");
                    continue;
                }
                Err(errno) => {
                    self.warn(&inherited, &folder, &format!("the folder cannot be listed: {errno}"));
                    continue;
                }
            };
            for name in listing.unreadable_names {
                self.warn(&inherited, &join(&folder, &name), "its name is not UTF-8");
            }
            for entry in listing.entries {
                let path = join(&folder, &entry.name);
                let matching = self.matching(&path, &inherited);
                match entry.kind {
                    FileType::Directory => {
                        self.mark(&matching);
                        if !matching.is_empty() || entry.name != "__pycache__" {
                            folders.push((path, matching));
                        }
                    }
                    FileType::RegularFile => self.regular(path, &entry, &matching),
                    FileType::Symlink => {
                        self.link(path, &entry, &matching, listing.folder.as_fd());
                    }
                    kind => self.refuse_special(&path, kind, &matching),
                }
            }
        }
        Ok(())
    }

    /// Outputs that declare `path`, given those that declare its folder.
    fn matching(&self, path: &str, inherited: &[usize]) -> Vec<usize> {
        let declares = |&index: &usize| inherited.contains(&index) || self.patterns[index].matches(path);
        (0..self.patterns.len()).filter(declares).collect()
    }

    fn mark(&mut self, matching: &[usize]) {
        for &index in matching {
            self.found[index] = true;
        }
    }

    fn add(&mut self, path: &str, entry: &Entry, matching: &[usize], content: &CollectedContent) {
        self.mark(matching);
        for &index in matching {
            let size_bytes = if *content == CollectedContent::Regular { entry.stat.size_bytes } else { 0 };
            self.collected.files.push(CollectedFile {
                name: self.patterns[index].output.shown_name().to_owned(),
                path: path.to_owned(),
                size_bytes,
                mode: entry.stat.mode,
                content: content.clone(),
                mounts: self.mounts,
            });
        }
    }

    fn regular(&mut self, path: String, entry: &Entry, matching: &[usize]) {
        if !matching.is_empty() && path.len() > LONGEST_PATH_BYTES {
            self.mark(matching);
            self.warn(matching, &path, "no computer could make a file with so long a path");
        } else if !matching.is_empty() {
            self.add(&path, entry, matching, &CollectedContent::Regular);
        } else if !self.before.knows(&path, entry) {
            let size_bytes = entry.stat.size_bytes;
            self.collected.undeclared_count += 1;
            self.collected.undeclared_bytes = self.collected.undeclared_bytes.saturating_add(size_bytes);
            if self.collected.undeclared.len() < MAX_UNDECLARED {
                self.collected.undeclared.push(UndeclaredFile { path, size_bytes });
            }
        }
    }

    fn link(&mut self, path: String, entry: &Entry, matching: &[usize], folder: BorrowedFd<'_>) {
        if matching.is_empty() {
            return;
        }
        let target = rustix::fs::readlinkat(folder, entry.name.as_str(), Vec::new());
        let target = target.ok().and_then(|target| target.into_string().ok());
        match (follow(self.workspace, &path), target) {
            (Ok(LinkEnd::Inside(end)), Some(target)) => {
                self.links.extend(matching.first().map(|&index| (index, path.clone(), end)));
                self.add(&path, entry, matching, &CollectedContent::Link { target });
            }
            (Ok(LinkEnd::Loop), _) => self.warn(matching, &path, "the link leads in a circle"),
            (Ok(_), _) => self.warn(matching, &path, "the link leads out of the workspace"),
            (Err(errno), _) => self.warn(matching, &path, &format!("the link cannot be read: {errno}")),
        }
    }

    fn refuse_special(&mut self, path: &str, kind: FileType, matching: &[usize]) {
        let what = match kind {
            FileType::Fifo => "a fifo cannot be collected",
            FileType::Socket => "a socket cannot be collected",
            _ => "a device cannot be collected",
        };
        self.warn(matching, path, what);
    }

    /// Concerns nobody unless an output declares it.
    fn warn(&mut self, matching: &[usize], path: &str, why: &str) {
        if let Some(&index) = matching.first() {
            self.push_warning(index, format!("`{path}` was not collected: {why}"));
        }
    }

    fn push_warning(&mut self, index: usize, detail: String) {
        if self.collected.warnings.len() < MAX_WARNINGS {
            self.collected.warnings.push(Warning { pointer: format!("/outputs/{index}"), detail });
        } else {
            self.suppressed += 1;
        }
    }

    fn finish(mut self) -> Collected {
        self.collected.files.sort_by(|a, b| (&a.path, &a.name).cmp(&(&b.path, &b.name)));
        self.collected.undeclared.sort_by(|a, b| a.path.cmp(&b.path));
        self.warn_of_bare_links();
        self.list_missing();
        if self.suppressed > 0 {
            let detail = format!("{} more warnings like these", self.suppressed);
            self.collected.warnings.push(Warning { pointer: "/outputs".to_owned(), detail });
        }
        self.collected
    }

    /// A link without what it leads to is of no use to whoever fetches it.
    fn warn_of_bare_links(&mut self) {
        for (index, path, end) in std::mem::take(&mut self.links) {
            let files = &self.collected.files;
            let beneath = format!("{end}/");
            let at = files.partition_point(|file| file.path.as_str() < end.as_str());
            let below = files.partition_point(|file| file.path.as_str() < beneath.as_str());
            let covered = end.is_empty()
                || files.get(at).is_some_and(|file| file.path == end)
                || files.get(below).is_some_and(|file| file.path.starts_with(&beneath));
            if !covered {
                let detail = format!("`{path}` is a link to `{end}`, which no output declares");
                self.push_warning(index, detail);
            }
        }
    }

    fn list_missing(&mut self) {
        for index in 0..self.patterns.len() {
            let Pattern { output, path, .. } = &self.patterns[index];
            if self.found[index] || output.optional {
                continue;
            }
            self.collected.missing.push(output.shown_name().to_owned());
            if let Ok(LinkEnd::Inside(end)) = follow(self.workspace, path.as_str())
                && end != path.as_str()
            {
                let detail = format!("`{}` lies behind a link: declare `{end}`", path.as_str());
                self.push_warning(index, detail);
            }
        }
    }
}
