//! Where things lie in the folder of one user's environments.
//!
//! | name | meaning |
//! |---|---|
//! | `<key>/` | an environment; `gpulayer-complete.json` in it is the last file of its build |
//! | `<key>.build` | alone by who builds it, until it is complete: the others that want it wait for this one |
//! | `<key>.lock` | shared by who uses it, alone by who changes or removes it; its time of change is the last use |
//! | `answers/<key>.json` | which environment a question led to |
//! | `refusals/<key>.json` | what `uv` said when it refused to make one, for a minute |
//! | `uv-cache/`, `uv-cache.lock` | what `uv` downloaded and built; shared by builds, alone by who removes it |
//! | `pythons/` | interpreters that `uv` downloaded |

use std::fs;
use std::path::{Path, PathBuf};

use crate::domain::python::Key;

/// The note of a complete environment.
pub(super) const MARKER: &str = "gpulayer-complete.json";
/// What `uv` keeps.
pub(super) const UV_CACHE: &str = "uv-cache";
pub(super) const ANSWERS: &str = "answers";
pub(super) const REFUSALS: &str = "refusals";
/// End the names of locks.
pub(super) const LOCK: &str = ".lock";
pub(super) const BUILD: &str = ".build";
/// Ends the names of what is on its way out.
pub(super) const GOING: &str = ".going";

/// The folder of one user's environments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout(pub(super) PathBuf);

impl Layout {
    pub(super) fn environment(&self, key: &Key) -> PathBuf {
        self.0.join(key.as_str())
    }

    pub(super) fn marker(&self, key: &Key) -> PathBuf {
        self.environment(key).join(MARKER)
    }

    /// Of an environment, or of the cache.
    pub(super) fn lock(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}{LOCK}"))
    }

    /// What is held by who builds one.
    pub(super) fn build_lock(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}{BUILD}"))
    }

    pub(super) fn answer(&self, question: &Key) -> PathBuf {
        self.answers().join(format!("{question}.json"))
    }

    pub(super) fn answers(&self) -> PathBuf {
        self.0.join(ANSWERS)
    }

    pub(super) fn refusal(&self, key: &Key) -> PathBuf {
        self.refusals().join(format!("{key}.json"))
    }

    pub(super) fn refusals(&self) -> PathBuf {
        self.0.join(REFUSALS)
    }

    pub(super) fn uv_cache(&self) -> PathBuf {
        self.0.join(UV_CACHE)
    }

    pub(super) fn pythons(&self) -> PathBuf {
        self.0.join("pythons")
    }

    /// Where one lies while it is removed.
    pub(super) fn going(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}{GOING}"))
    }

    /// What lies in the folder itself.
    pub(super) fn names(&self) -> Vec<String> {
        names(&self.0)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

/// Whether something with this name can go: an environment, or what `uv` keeps.
pub(super) fn is_removable(name: &str) -> bool {
    name == UV_CACHE || Key::try_from(name.to_owned()).is_ok()
}

pub(super) fn names(folder: &Path) -> Vec<String> {
    let listing = fs::read_dir(folder).into_iter().flatten().flatten();
    listing.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
