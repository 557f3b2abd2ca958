//! How a connection to one of the databases is opened: every kind with its pragmas.

use std::path::Path;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;

use super::error::{OpenCause, StoreError};

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The one that writes. Every commit is fsynced; checkpoints are left to the checkpointer, so that no commit
    /// pays for one. `journal_size_limit` gives back the disk after a burst.
    Writer,
    /// Reads only.
    Reader,
    /// Moves the WAL into the database.
    Checkpointer,
}

impl Role {
    fn pragmas(self) -> &'static str {
        match self {
            Role::Writer => {
                "PRAGMA busy_timeout = 10000;
                 PRAGMA journal_mode = WAL;
                 PRAGMA synchronous = FULL;
                 PRAGMA wal_autocheckpoint = 0;
                 PRAGMA journal_size_limit = 33554432;
                 PRAGMA temp_store = MEMORY;
                 PRAGMA cache_size = -8192;"
            }
            Role::Reader => {
                "PRAGMA busy_timeout = 10000;
                 PRAGMA query_only = ON;
                 PRAGMA temp_store = MEMORY;
                 PRAGMA cache_size = -2048;"
            }
            // The data must be on disk before the WAL may be overwritten, hence not OFF.
            Role::Checkpointer => {
                "PRAGMA busy_timeout = 10000;
                 PRAGMA synchronous = FULL;
                 PRAGMA wal_autocheckpoint = 0;
                 PRAGMA cache_size = -64;"
            }
        }
    }
}

/// Opens a connection.
pub fn open(path: &Path, role: Role) -> Result<SqliteConnection, StoreError> {
    let failed = |source: OpenCause| StoreError::Open { path: path.to_owned(), source };
    let mut connection =
        SqliteConnection::establish(&path.to_string_lossy()).map_err(|error| failed(error.into()))?;
    connection.batch_execute(role.pragmas()).map_err(|error| failed(error.into()))?;
    Ok(connection)
}

/// Runs a write transaction, and keeps the error that ended it: on a full disk SQLite rolls back by itself, and then
/// diesel's own rollback fails and would hide why.
pub fn transaction<T>(
    connection: &mut SqliteConnection,
    write: impl FnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut cause = None;
    let outcome = connection.immediate_transaction(|connection| {
        write(connection).map_err(|error| {
            cause = Some(error);
            diesel::result::Error::RollbackTransaction
        })
    });
    outcome.map_err(|error| cause.unwrap_or_else(|| StoreError::of_commit(error)))
}
