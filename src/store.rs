//! What survives a crash: the main database, the log database, and the lock on the folder they are in.
//!
//! [`Writer`] is the one connection that changes `gpulayer.db`; the journal drives it. [`Reads`] answers questions on
//! connections of its own and sees only what is committed. [`LogStore`] keeps log lines in `logs.db` with a writer of
//! its own, so that floods of lines never stand before a job's transition.

mod arrays;
mod checkpoint;
mod connection;
mod error;
mod explanations;
mod forms;
pub mod lock;
pub mod logs;
mod migrations;
mod pool;
mod reads;
mod rows;
mod schema;
pub mod space;
mod usage;
mod words;
mod writer;
mod yielded;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use error::{OpenCause, StoreError};
pub use logs::LogStore;
pub use reads::{ArrayRow, FeedScope, JobFilter, LabelFilter, LiveRow, Reads, TaskFinish};
pub use rows::PREEMPTED;
pub use writer::{CommitPort, KEYS_KEPT, Writer};

use checkpoint::Checkpointer;
use connection::Role;
use lock::StateLock;
use pool::Pool;
use space::Ballast;

/// The schema this build reads and writes: its newest migration's number.
pub fn schema_version() -> Result<String, StoreError> {
    migrations::newest_known()
}

/// The term of the only daemon that can lead on SQLite.
pub const ONLY_TERM: u64 = 1;

/// An open state folder. Holds its lock until it and everything made from it is dropped.
pub struct Store {
    folder: PathBuf,
    lock: Arc<StateLock>,
    ballast: Arc<Ballast>,
    reads: Reads,
}

impl Store {
    /// Makes the folder (0700), takes its lock and brings both databases to this build's schema.
    pub fn open(state_folder: &Path) -> Result<Self, StoreError> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state_folder).map_err(|source| {
            StoreError::File { act: "create the folder", path: state_folder.to_owned(), source }
        })?;
        let ballast = Arc::new(Ballast::new(state_folder, space::DEFAULT_BALLAST_BYTES));
        let lock = Arc::new(StateLock::take(state_folder)?);
        if ballast.give_way() {
            tracing::warn!(folder = %state_folder.display(), "the disk is full: released the ballast to start");
        }
        let main = state_folder.join("gpulayer.db");
        let logs = state_folder.join("logs.db");
        // The newer schema is refused for either before anything is written to the other.
        let mut main_connection = connection::open(&main, Role::Writer)?;
        let mut logs_connection = connection::open(&logs, Role::Writer)?;
        migrations::refuse_newer(&mut main_connection, &main, &migrations::MAIN)?;
        migrations::refuse_newer(&mut logs_connection, &logs, &migrations::LOGS)?;
        migrations::run(&mut main_connection, &main, migrations::MAIN)?;
        migrations::run(&mut logs_connection, &logs, migrations::LOGS)?;
        Ok(Self { folder: state_folder.to_owned(), lock, ballast, reads: Reads::new(Pool::new(main)) })
    }

    /// The connection that writes. Make one and give it to the journal.
    pub fn writer(&self) -> Result<Writer, StoreError> {
        let path = self.folder.join("gpulayer.db");
        let connection = connection::open(&path, Role::Writer)?;
        let checkpointer = Checkpointer::start(&path)?;
        Ok(Writer::new(path, connection, checkpointer, Arc::clone(&self.ballast), Arc::clone(&self.lock)))
    }

    /// Reads of what is committed, on connections of their own.
    pub fn reader(&self) -> Reads {
        self.reads.clone()
    }

    /// Starts the log writer. Make one.
    pub fn logs(&self) -> Result<LogStore, StoreError> {
        LogStore::start(self.folder.join("logs.db"), Arc::clone(&self.lock))
    }

    /// The ballast, to look at the room on the disk.
    pub fn ballast(&self) -> Arc<Ballast> {
        Arc::clone(&self.ballast)
    }
}
