//! A few read connections of one database, opened when they are first needed.

use std::path::PathBuf;
use std::sync::Arc;

use diesel::prelude::*;
use parking_lot::Mutex;

use super::connection::{self, Role};
use super::error::StoreError;

/// Idle connections kept for the next reader; more than that at once are opened and closed again.
const KEPT: usize = 4;

/// Clones share the connections.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    idle: Mutex<Vec<SqliteConnection>>,
}

impl Pool {
    pub fn new(path: PathBuf) -> Self {
        Self { inner: Arc::new(Inner { path, idle: Mutex::new(Vec::new()) }) }
    }

    /// Runs a query on an idle connection, or on a new one. After a failure the connection is not used again.
    pub fn query<T>(
        &self,
        what: &'static str,
        query: impl FnOnce(&mut SqliteConnection) -> QueryResult<T>,
    ) -> Result<T, StoreError> {
        let idle = self.inner.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => connection::open(&self.inner.path, Role::Reader)?,
        };
        let answer = query(&mut connection).map_err(|source| StoreError::Read { what, source })?;
        let mut idle = self.inner.idle.lock();
        if idle.len() < KEPT {
            idle.push(connection);
        }
        Ok(answer)
    }
}
