//! Why there is no environment, in one sentence: the last line of a build that failed.

use std::io;
use std::path::{Path, PathBuf};

use crate::domain::causes::said;
use crate::process::foreground::EndedBadly;

/// Why.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The worker asked for something that this build cannot read, or cannot be answered.
    #[error("the order for it cannot be read")]
    Order(#[source] io::Error),
    /// What it asks for is not JSON as expected.
    #[error("the order for it cannot be understood")]
    Garbled(#[source] serde_json::Error),
    /// A file of the job.
    #[error("`{name}` cannot be read from the job's folder")]
    Missing {
        /// Below it.
        name: String,
        #[source]
        source: io::Error,
    },
    /// No interpreter where one was named.
    #[error("there is no Python interpreter at {}", path.display())]
    NoInterpreter { path: PathBuf },
    /// None was named, and none is found.
    #[error("no `python3` in PATH ({path}): name one with `python.interpreter`")]
    NoPython { path: String },
    /// An interpreter that does not answer.
    #[error("{} is no usable Python interpreter: {why}", path.display())]
    BadInterpreter { path: PathBuf, why: String },
    /// No `uv`.
    #[error("`uv` was not found ({searched})")]
    NoUv { searched: String },
    /// `uv` is there and cannot be started.
    #[error("{} cannot be started", path.display())]
    Start {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// `uv` did not do it.
    #[error("`{shown}` {how}")]
    Step {
        shown: &'static str,
        how: String,
        /// The end of what it said.
        said: String,
    },
    /// It did not do it for another task, a moment ago.
    #[error("{sentence} for another task, {ago_s} s ago (`uv` is asked again after {for_s} s)")]
    Refused { sentence: String, ago_s: u64, for_s: u64 },
    /// A file of the cache.
    #[error("cannot {operation} {}", path.display())]
    File {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Failure {
    pub(super) fn step(shown: &'static str, EndedBadly { how, said }: EndedBadly) -> Self {
        Self::Step { shown, how, said }
    }

    pub(super) fn file(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { operation, path, source }
    }

    /// With its causes.
    pub(super) fn sentence(&self) -> String {
        said(self).replace('\n', " ")
    }
}
