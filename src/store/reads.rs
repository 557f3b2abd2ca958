//! Reads of the main database on connections of their own: blocking calls that see what is committed.

mod history;
mod jobs;
mod restart;

use std::path::PathBuf;
use std::sync::Arc;

use diesel::prelude::*;
use parking_lot::Mutex;

use super::connection::{self, Role};
use super::error::StoreError;

pub use history::TaskFinish;
pub use jobs::{JobFilter, LabelFilter};
pub use restart::LiveRow;

/// Idle connections kept for the next reader; more than that at once are opened and closed again.
const KEPT_CONNECTIONS: usize = 4;

/// Answers questions about what is committed. Cheap to clone; every call blocks on the disk, so call it where
/// blocking is allowed.
#[derive(Clone)]
pub struct Reads {
    pool: Arc<Pool>,
}

struct Pool {
    path: PathBuf,
    idle: Mutex<Vec<SqliteConnection>>,
}

impl Reads {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { pool: Arc::new(Pool { path, idle: Mutex::new(Vec::new()) }) }
    }

    /// Runs a query on an idle connection, or on a new one. After a failure the connection is not used again.
    fn query<T>(
        &self,
        what: &'static str,
        query: impl FnOnce(&mut SqliteConnection) -> QueryResult<T>,
    ) -> Result<T, StoreError> {
        let idle = self.pool.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => connection::open(&self.pool.path, Role::Reader)?,
        };
        let answer = query(&mut connection).map_err(|source| StoreError::Read { what, source })?;
        let mut idle = self.pool.idle.lock();
        if idle.len() < KEPT_CONNECTIONS {
            idle.push(connection);
        }
        Ok(answer)
    }
}
