//! What can go wrong in the store: one enum that names the operation and the thing.

use std::path::PathBuf;

/// A failure of the store. `#[source]` carries the cause; the message does not repeat it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or folder of the state folder cannot be used.
    #[error("cannot {act} `{}`", path.display())]
    File {
        /// What was tried, such as `create`.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Another daemon owns the state folder.
    #[error("`{}` is in use by another daemon{}", folder.display(), holder(.pid))]
    Locked {
        /// The state folder.
        folder: PathBuf,
        /// The holder's process id, if its lock file names one.
        pid: Option<u32>,
    },
    /// A database cannot be opened or configured.
    #[error("cannot open the database `{}`", path.display())]
    Open {
        /// The database file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: OpenCause,
    },
    /// A migration failed; it was rolled back whole.
    #[error("cannot bring the database `{}` to this version's schema", path.display())]
    Migrate {
        /// The database file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database was written by a newer version of GPUlayer.
    #[error(
        "the database `{}` has schema {found}, newer than this version's {known}: use the version that wrote it",
        path.display()
    )]
    NewerSchema {
        /// The database file.
        path: PathBuf,
        /// The newest schema in it.
        found: String,
        /// The newest schema this build knows.
        known: String,
    },
    /// A thread cannot be started.
    #[error("cannot start the thread `{name}`")]
    Thread {
        /// Its name.
        name: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A transaction failed and was rolled back.
    #[error("cannot commit to the database")]
    Commit {
        /// Why not.
        #[source]
        source: diesel::result::Error,
    },
    /// The disk is full even after the ballast was released.
    #[error("cannot commit to the database: the disk is full")]
    Full {
        /// What SQLite said.
        #[source]
        source: diesel::result::Error,
    },
    /// Another daemon leads now.
    #[error("term {held} is over: the database is at term {current}")]
    TermOver {
        /// The term the write came with.
        held: u64,
        /// The term in the database.
        current: u64,
    },
    /// A query failed.
    #[error("cannot read {what}")]
    Read {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        #[source]
        source: diesel::result::Error,
    },
    /// A stored value cannot be understood.
    #[error("the stored {what} cannot be understood")]
    Corrupt {
        /// Table and column, such as `job_standings.state`.
        what: &'static str,
    },
}

/// Why a database cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenCause {
    /// The file cannot be opened as a database.
    #[error(transparent)]
    Connect(#[from] diesel::ConnectionError),
    /// It cannot be configured.
    #[error(transparent)]
    Configure(#[from] diesel::result::Error),
}

fn holder(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

/// SQLite's words for SQLITE_FULL, the one code diesel passes on as text only.
const FULL_MESSAGE: &str = "database or disk is full";

impl StoreError {
    /// Sorts a failed transaction by whether freeing space may help.
    pub(super) fn of_commit(source: diesel::result::Error) -> Self {
        if source.to_string().contains(FULL_MESSAGE) {
            Self::Full { source }
        } else {
            Self::Commit { source }
        }
    }
}

/// Lets diesel's closures fail with both its own errors and ours.
impl From<diesel::result::Error> for StoreError {
    fn from(source: diesel::result::Error) -> Self {
        Self::of_commit(source)
    }
}
