//! Which paths `.gitignore` and `.gpulayerignore` leave out. Only files within the tree count, never the user's
//! or the system's, so that the digest is the same on every machine. Any `.gpulayerignore` outranks every
//! `.gitignore`; among equals the deepest rules first.

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::super::beneath::{RelativePath, join, open_beneath};
use super::LeftOutReason;

/// The rules of one folder and, behind them, of those above it.
#[derive(Debug)]
pub(super) struct Rules {
    folder: String,
    own: Option<Gitignore>,
    git: Option<Gitignore>,
    above: Option<Rc<Rules>>,
}

const OWN: &str = ".gpulayerignore";
const GIT: &str = ".gitignore";

impl Rules {
    /// Adds the rules of `folder`, which contains these names of regular files, to those above it.
    pub(super) fn within<'a>(
        root: BorrowedFd<'_>,
        folder: &str,
        files: impl Iterator<Item = &'a str> + Clone,
        above: Option<Rc<Rules>>,
    ) -> Result<Option<Rc<Rules>>, (String, io::Error)> {
        let rules = |name: &str| -> Result<Option<Gitignore>, (String, io::Error)> {
            if !files.clone().any(|file| file == name) {
                return Ok(None);
            }
            let path = join(folder, name);
            read(root, &path).map(Some).map_err(|error| (path, error))
        };
        let (own, git) = (rules(OWN)?, rules(GIT)?);
        if own.is_none() && git.is_none() {
            return Ok(above);
        }
        Ok(Some(Rc::new(Self { folder: folder.to_owned(), own, git, above })))
    }

    /// Whether `path`, in this folder or beneath it, stays behind, and by whose word.
    pub(super) fn ignore(&self, path: &str, is_folder: bool) -> Option<LeftOutReason> {
        match self.first(path, is_folder, |rules| rules.own.as_ref()) {
            Some(ignored) => ignored.then_some(LeftOutReason::OwnIgnored),
            None => {
                let ignored = self.first(path, is_folder, |rules| rules.git.as_ref()).unwrap_or(false);
                ignored.then_some(LeftOutReason::Ignored)
            }
        }
    }

    fn first(
        &self,
        path: &str,
        is_folder: bool,
        choose: impl Fn(&Rules) -> Option<&Gitignore>,
    ) -> Option<bool> {
        let mut level = Some(self);
        while let Some(rules) = level {
            let relative = path[rules.folder.len()..].trim_start_matches('/');
            match choose(rules).map_or(Match::None, |chosen| chosen.matched(relative, is_folder)) {
                Match::None => level = rules.above.as_deref(),
                Match::Ignore(_) => return Some(true),
                Match::Whitelist(_) => return Some(false),
            }
        }
        None
    }
}

/// Lines that are no valid pattern match nothing, as in git.
fn read(root: BorrowedFd<'_>, path: &str) -> io::Result<Gitignore> {
    let relative =
        RelativePath::new(path).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let mut bytes = Vec::new();
    open_beneath(root, &relative)?.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut builder = GitignoreBuilder::new("");
    for line in text.trim_start_matches('\u{feff}').lines() {
        if let Err(error) = builder.add_line(None, line) {
            tracing::debug!(path, line, %error, "an ignore rule cannot be read");
        }
    }
    builder.build().map_err(io::Error::other)
}
