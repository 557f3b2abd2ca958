//! What can be wrong with the configuration.

use std::io;
use std::path::{Path, PathBuf};

/// A setting or folder that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Neither `HOME` nor `GPULAYER_HOME` names a folder.
    #[error(
        "neither HOME nor GPULAYER_HOME is set: set GPULAYER_HOME to a folder for configuration and credentials"
    )]
    NoHome,
    /// A folder cannot be looked at or made.
    #[error("cannot {operation} {path}", path = .path.display())]
    Folder {
        /// `read`, `make`.
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The state folder in the shared temporary folder belongs to somebody else.
    #[error(
        "{path} is not a folder that only this user can enter (owner {owner}, mode {mode:03o}): remove it, or set GPULAYER_STATE",
        path = .path.display()
    )]
    NotMine {
        /// Which.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// No socket path under it would fit.
    #[error(
        "GPULAYER_STATE={path} is too long: socket paths under it would have {bytes} bytes, and the system allows {limit}",
        path = .path.display()
    )]
    TooLong {
        /// As given.
        path: PathBuf,
        /// Length of the longest socket path.
        bytes: usize,
        /// What the system allows.
        limit: usize,
    },
    /// The configuration file cannot be read.
    #[error("cannot read {path}", path = .path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of ours cannot be written.
    #[error("cannot write {path}", path = .path.display())]
    Unwritable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The configuration file is not TOML. The line itself is not shown: it may hold a secret.
    #[error("{path}:{line}:{column}: {why}", path = .path.display())]
    NotToml {
        /// Which.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// What is wrong there.
        why: String,
    },
    /// An entry of the `[secrets]` table that is none.
    #[error("{path}: `{key}` in [secrets] is not {expected}", path = .path.display())]
    BadSecret {
        /// Which file.
        path: PathBuf,
        /// Which entry; `secrets` = the table itself.
        key: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// An entry of the `[projects]` table that is none.
    #[error("{path}: `{key}` is not {expected}", path = .path.display())]
    BadProject {
        /// Which file.
        path: PathBuf,
        /// Which entry.
        key: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A key that means nothing.
    #[error("{path}: there is no setting `{key}`{hint}", path = .path.display())]
    UnknownKey {
        /// Which file.
        path: PathBuf,
        /// As written.
        key: String,
        /// `; did you mean …?`, or nothing.
        hint: String,
    },
    /// A value of the wrong kind or outside its range.
    #[error("{origin}: `{key}` is `{given}`, but {expected} is expected")]
    BadValue {
        /// The file or the variable.
        origin: String,
        /// Which setting.
        key: &'static str,
        /// As written.
        given: String,
        /// What is allowed.
        expected: &'static str,
    },
}

impl ConfigError {
    /// Where this text stops being TOML.
    pub(super) fn not_toml(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let before = String::from_utf8_lossy(&text.as_bytes()[..at]);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        Self::NotToml { path: path.to_owned(), line, column, why: error.message().to_owned() }
    }
}
