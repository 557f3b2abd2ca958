//! Log lines in a database of their own with a writer of their own, as compressed chunks.
//!
//! Owns the numbering of a job's lines (`seq` from 1), drops what it has seen (`n` per task), and acknowledges a
//! record only when it is on disk. A failed commit acknowledges nothing and is tried again: a job never fails for
//! its log.

mod chunk;
mod cursor;
mod reads;
mod schema;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use tokio::sync::{oneshot, watch};

use super::error::StoreError;
use super::lock::StateLock;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::log::{LogLine, LogRecord, Stream};
use reads::LogReads;
use writer::{LogWriter, Order, Shared, raise};

const THREAD: &str = "log-writer";

/// Keeps log lines; clones share one writer. Dropping the last clone writes what is queued and ends the thread.
#[derive(Clone)]
pub struct LogStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    reads: LogReads,
    thread: Option<JoinHandle<()>>,
    taken_bytes: AtomicU64,
    _lock: Arc<StateLock>,
}

/// Which lines of a job to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogQuery {
    /// The job.
    pub job_id: JobId,
    /// Lines numbered above this.
    pub after: u64,
    /// At most so many.
    pub limit: usize,
    /// Only of this task.
    pub task_id: Option<TaskId>,
    /// Only through this pipe.
    pub stream: Option<Stream>,
}

/// Lines that were asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogPage {
    /// In their order. May be fewer than `limit` although more follow: one call reads a bounded amount.
    pub items: Vec<LogLine>,
    /// Everything up to here was looked at: pass as `after` for what follows. While it is below
    /// [`LogStore::last_seq`] there is more to read.
    pub next_after: u64,
}

impl LogStore {
    pub(super) fn start(path: PathBuf, lock: Arc<StateLock>) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let writer = LogWriter::open(Arc::clone(&shared), path.clone())?;
        let thread = std::thread::Builder::new()
            .name(THREAD.into())
            .spawn(move || writer.run())
            .map_err(|source| StoreError::Thread { name: THREAD, source })?;
        let reads = LogReads::new(path);
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                reads,
                thread: Some(thread),
                taken_bytes: AtomicU64::new(0),
                _lock: lock,
            }),
        })
    }

    /// Stores the records `first_n`, `first_n + 1`, … of a task. Answered once they are on disk with the number the
    /// next record must have: below `first_n` there was a gap and nothing was stored. A dropped answer means
    /// that the store is closing and nothing is known. Never blocks; whoever sends much awaits each answer.
    pub fn append(
        &self,
        job_id: JobId,
        task_id: TaskId,
        first_n: u64,
        records: Vec<LogRecord>,
    ) -> oneshot::Receiver<u64> {
        self.append_behind_gap(job_id, task_id, None, first_n, records)
    }

    /// The same where the records from `missing_from_n` up to `first_n` are given up, as far as they are not stored.
    pub fn append_behind_gap(
        &self,
        job_id: JobId,
        task_id: TaskId,
        missing_from_n: Option<u64>,
        first_n: u64,
        records: Vec<LogRecord>,
    ) -> oneshot::Receiver<u64> {
        let bytes: usize = records.iter().map(|record| record.text.len()).sum();
        self.inner.taken_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        self.order(Order::Append { job_id, task_id, missing_from_n, first_n, records, reply });
        answer
    }

    /// Bytes of text that were given to it since it was opened, repeats included.
    pub fn taken_bytes(&self) -> u64 {
        self.inner.taken_bytes.load(Ordering::Relaxed)
    }

    /// Reads lines that are on disk. Blocks.
    pub fn read(&self, query: &LogQuery) -> Result<LogPage, StoreError> {
        self.inner.reads.read(query)
    }

    /// The number of a job's last line on disk; 0 = none. Blocks.
    pub fn last_seq(&self, job_id: JobId) -> Result<u64, StoreError> {
        self.inner.reads.last_seq(job_id)
    }

    /// The next job that has lines, in the order of ids; for who looks at them all. Blocks.
    pub fn next_job(&self, after: Option<JobId>) -> Result<Option<JobId>, StoreError> {
        self.inner.reads.next_job(after)
    }

    /// Follows the number of a job's last line on disk. Blocks once, to look where it stands.
    pub fn watch(&self, job_id: JobId) -> Result<watch::Receiver<u64>, StoreError> {
        // Listen before looking: a line that becomes durable in between is told, not lost.
        let receiver = self.inner.shared.listen(job_id);
        let seq = self.last_seq(job_id)?;
        if let Some(sender) = self.inner.shared.watched.lock().get(&job_id) {
            sender.send_if_modified(|last| raise(last, seq));
        }
        Ok(receiver)
    }

    /// Removes a job's lines; answered when they are gone from disk.
    pub fn purge(&self, job_id: JobId) -> oneshot::Receiver<()> {
        let (reply, answer) = oneshot::channel();
        self.order(Order::Purge { job_id, reply });
        answer
    }

    fn order(&self, order: Order) {
        self.inner.shared.queue.lock().orders.push(order);
        self.inner.shared.changed.notify_one();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic aborts the process (profile), so there is no outcome to look at.
            let _ = thread.join();
        }
    }
}
