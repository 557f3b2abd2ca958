//! Moves the WAL into the database off the commit path.
//!
//! A thread with its own connection checkpoints after so many pages were written, or when the writer has been quiet
//! for a moment, and lets the writer go on meanwhile. Only when a long burst never lets a checkpoint catch up does it
//! shut the gate for the last few pages, so that the WAL starts over instead of growing without bound.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use diesel::prelude::*;
use diesel::sql_types::Integer;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::connection::{self, Role};
use super::error::StoreError;

/// Pages written before a checkpoint is due: 16 MiB.
const DUE_PAGES: u64 = 4096;
/// Pages in the WAL before it must start over: 64 MiB.
const LONGEST_WAL_PAGES: i32 = 16_384;
/// How long the writer must be quiet before what it left is checkpointed.
const QUIET: Duration = Duration::from_secs(1);

const THREAD: &str = "checkpointer";

/// The writer's side. Dropping it ends the thread.
pub struct Checkpointer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    gate: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pages: u64,
    asleep: bool,
    closed: bool,
}

#[derive(QueryableByName)]
struct Progress {
    #[diesel(sql_type = Integer)]
    log: i32,
    #[diesel(sql_type = Integer)]
    checkpointed: i32,
}

impl Checkpointer {
    /// Starts the thread for the database at `path`.
    pub fn start(path: &Path) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name(THREAD.into())
            .spawn({
                let (shared, path) = (Arc::clone(&shared), path.to_owned());
                move || checkpoint_until_closed(&shared, &path)
            })
            .map_err(|source| StoreError::Thread { name: THREAD, source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Held by the writer during a transaction; shut while the WAL starts over.
    pub fn gate(&self) -> MutexGuard<'_, ()> {
        self.shared.gate.lock()
    }

    /// The writer added about so many pages.
    pub fn wrote(&self, pages: u64) {
        let mut state = self.shared.state.lock();
        state.pages += pages;
        // A sleeper is woken once, to begin to count the quiet; after that only when a checkpoint is due.
        let wake = std::mem::take(&mut state.asleep) || state.pages >= DUE_PAGES;
        drop(state);
        if wake {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic aborts the process (profile), so there is no outcome to look at.
            let _ = thread.join();
        }
    }
}

fn checkpoint_until_closed(shared: &Shared, path: &Path) {
    let mut connection = None;
    while wait_until_due(shared) {
        let outcome = match &mut connection {
            Some(open) => checkpoint(open, shared),
            None => match connection::open(path, Role::Checkpointer) {
                Ok(open) => checkpoint(connection.insert(open), shared),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = outcome {
            // Nothing is lost: the WAL keeps what the database does not have yet, and the next one tries again.
            tracing::warn!(error = &error as &dyn std::error::Error, path = %path.display(), "no checkpoint");
            connection = None;
        }
    }
}

/// Waits for enough pages, or for some pages and then quiet. `false` = closed.
fn wait_until_due(shared: &Shared) -> bool {
    let mut state = shared.state.lock();
    loop {
        if state.closed {
            return false;
        }
        if state.pages >= DUE_PAGES {
            break;
        }
        if state.pages == 0 {
            state.asleep = true;
            shared.changed.wait(&mut state);
            continue;
        }
        let before = state.pages;
        if shared.changed.wait_for(&mut state, QUIET).timed_out() && state.pages == before {
            break;
        }
    }
    state.pages = 0;
    true
}

fn checkpoint(connection: &mut SqliteConnection, shared: &Shared) -> Result<(), StoreError> {
    let progress = pragma(connection, "PRAGMA wal_checkpoint(PASSIVE)")?;
    tracing::debug!(log = progress.log, checkpointed = progress.checkpointed, "checkpoint");
    if progress.log > LONGEST_WAL_PAGES {
        let _shut = shared.gate.lock();
        pragma(connection, "PRAGMA wal_checkpoint(RESTART)")?;
    }
    Ok(())
}

fn pragma(connection: &mut SqliteConnection, sql: &'static str) -> Result<Progress, StoreError> {
    diesel::sql_query(sql)
        .get_result(connection)
        .map_err(|source| StoreError::Read { what: "the progress of a checkpoint", source })
}
