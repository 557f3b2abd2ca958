//! The pipelined group commit between the actors and the store.
//!
//! Owns the queue of what was decided and is not on disk yet, and the one thread that writes it. Whoever decides
//! appends and goes on; the thread takes everything that has queued up meanwhile into one transaction and then
//! says how far the disk has come. A failed commit ends the journal: nothing is acknowledged after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::domain::change::Change;
use crate::store::{CommitPort, StoreError};

/// Numbers the batches in the order they were appended; 0 = nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Seq(pub u64);

const THREAD: &str = "store-writer";

/// Takes changes and never blocks; clones share one queue. Dropping the last clone writes what is queued and
/// ends the thread.
#[derive(Debug, Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    durable: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    changes: Vec<Change>,
    newest: u64,
    closed: bool,
}

impl Journal {
    /// Starts the writer thread. `on_durable` is called on it after each commit with the newest number that is on
    /// disk; `on_failure` once, with the error that ended it.
    pub fn start(
        port: impl CommitPort + 'static,
        term: u64,
        on_durable: impl FnMut(Seq) + Send + 'static,
        on_failure: impl FnOnce(StoreError) + Send + 'static,
    ) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name(THREAD.into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    if let Err(error) = write_until_closed(&shared, port, term, on_durable) {
                        tracing::error!(error = &error as &dyn std::error::Error, "a commit failed");
                        on_failure(error);
                    }
                }
            })
            .map_err(|source| StoreError::Thread { name: THREAD, source })?;
        Ok(Self { inner: Arc::new(Inner { shared, thread: Some(thread) }) })
    }

    /// Queues changes that belong together: they become durable in one transaction. Answers their number. An empty
    /// batch queues nothing and answers the newest number: what a decision that changed nothing has to wait for.
    pub fn append(&self, changes: Vec<Change>) -> Seq {
        let shared = &self.inner.shared;
        let mut queue = shared.queue.lock();
        if changes.is_empty() {
            return Seq(queue.newest);
        }
        queue.newest += 1;
        if queue.changes.is_empty() {
            queue.changes = changes;
        } else {
            queue.changes.extend(changes);
        }
        let seq = Seq(queue.newest);
        drop(queue);
        shared.arrived.notify_one();
        seq
    }

    /// The number appended last.
    pub fn newest(&self) -> Seq {
        Seq(self.inner.shared.queue.lock().newest)
    }

    /// Everything up to this number is on disk.
    pub fn durable(&self) -> Seq {
        Seq(self.inner.shared.durable.load(Ordering::Acquire))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.arrived.notify_one();
        // The last clone may die with `on_durable` on the writer thread itself, which must not wait for itself.
        if let Some(thread) =
            self.thread.take_if(|thread| thread.thread().id() != std::thread::current().id())
        {
            // A panic aborts the process (profile), so there is no outcome to look at.
            let _ = thread.join();
        }
    }
}

fn write_until_closed(
    shared: &Shared,
    mut port: impl CommitPort,
    term: u64,
    mut on_durable: impl FnMut(Seq),
) -> Result<(), StoreError> {
    let mut before = 0;
    let mut crowded = false;
    loop {
        if crowded {
            // Others have work and may have no core to do it on: what they append now goes with this commit.
            std::thread::yield_now();
        }
        let (changes, through) = {
            let mut queue = shared.queue.lock();
            while queue.changes.is_empty() {
                if queue.closed {
                    return Ok(());
                }
                shared.arrived.wait(&mut queue);
            }
            (std::mem::take(&mut queue.changes), queue.newest)
        };
        port.apply(&changes, term)?;
        crowded = through - before > 1;
        before = through;
        shared.durable.store(through, Ordering::Release);
        on_durable(Seq(through));
    }
}
