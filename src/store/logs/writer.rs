//! The thread that writes `logs.db`: everything that has queued up in one transaction, then the answers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use diesel::prelude::*;
use diesel::{delete, replace_into};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{oneshot, watch};

use super::chunk;
use super::cursor::{Chunk, Cursor, SHORT_BYTES};
use super::schema::chunks;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::log::LogRecord;
use crate::store::checkpoint::Checkpointer;
use crate::store::connection::{self, Role};
use crate::store::error::StoreError;
use crate::store::forms::signed;
use crate::store::space::Ballast;

/// Jobs whose logs' ends are kept in memory, before the least used are forgotten (and read again when they go on).
/// Each holds up to 16 KiB of lines.
const KEPT_CURSORS: usize = 512;
/// Between two tries of a commit that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const PAGE_BYTES: u64 = 4096;
/// Held back on the log's volume, so that the last lines of what runs fit when it is full: a task does not end before
/// they are stored.
const BALLAST_BYTES: u64 = 16 << 20;
/// The ballast is taken again when so much is left beside it.
const BALLAST_BESIDE_BYTES: u64 = 256 << 20;

/// What the writer is asked for.
pub enum Order {
    /// Store these records.
    Append {
        job_id: JobId,
        task_id: TaskId,
        missing_from_n: Option<u64>,
        first_n: u64,
        records: Vec<LogRecord>,
        reply: oneshot::Sender<u64>,
    },
    /// Forget this job's log.
    Purge { job_id: JobId, reply: oneshot::Sender<()> },
}

impl Order {
    /// Whether records wait that nobody waits for any more.
    fn is_abandoned(&self) -> bool {
        matches!(self, Order::Append { reply, .. } if reply.is_closed())
    }
}

/// What callers and the writer share.
#[derive(Default)]
pub struct Shared {
    pub queue: Mutex<Queue>,
    pub changed: Condvar,
    pub watched: Mutex<HashMap<JobId, watch::Sender<u64>>>,
}

impl Shared {
    /// Someone listens to a job from now on. Jobs that nobody listens to any more go in passing.
    pub fn listen(&self, job_id: JobId) -> watch::Receiver<u64> {
        let mut watched = self.watched.lock();
        if watched.len() == watched.capacity() {
            watched.retain(|_, sender| !sender.is_closed());
        }
        watched.entry(job_id).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }
}

/// Orders that wait.
#[derive(Default)]
pub struct Queue {
    pub orders: Vec<Order>,
    pub closed: bool,
}

/// Lives on its thread.
pub struct LogWriter {
    shared: Arc<Shared>,
    path: PathBuf,
    connection: SqliteConnection,
    checkpointer: Checkpointer,
    ballast: Ballast,
    ballast_is_gone: bool,
    cursors: HashMap<JobId, Kept>,
    round: u64,
}

struct Kept {
    round: u64,
    cursor: Cursor,
}

impl LogWriter {
    pub fn open(shared: Arc<Shared>, path: PathBuf) -> Result<Self, StoreError> {
        let connection = connection::open(&path, Role::Writer)?;
        let checkpointer = Checkpointer::start(&path)?;
        // Beside the file itself, which may be a link to another volume.
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let ballast = Ballast::named(real.parent().unwrap_or(Path::new(".")), "ballast-logs", BALLAST_BYTES);
        ballast.look(BALLAST_BESIDE_BYTES)?;
        Ok(Self {
            shared,
            path,
            connection,
            checkpointer,
            ballast,
            ballast_is_gone: false,
            cursors: HashMap::new(),
            round: 0,
        })
    }

    /// Runs until the queue is closed and empty.
    pub fn run(mut self) {
        while let Some(orders) = self.next_orders() {
            let mut orders = orders;
            let numbers = loop {
                match self.commit(&orders) {
                    Ok(numbers) => break numbers,
                    Err(error) => {
                        let full = matches!(error, StoreError::Full { .. }) || self.ballast.folder_is_full();
                        if full && self.ballast.release() {
                            self.ballast_is_gone = true;
                            tracing::warn!("the log's disk is full: released its ballast");
                        }
                        let error = &error as &dyn std::error::Error;
                        tracing::error!(error, "log lines wait: a commit failed");
                    }
                }
                if !self.wait_to_retry() {
                    return;
                }
                // Whoever stopped waiting asks again: without this, repeats would fill the memory of a server whose
                // disk is full.
                orders.retain(|order| !order.is_abandoned());
                self.shared.queue.lock().orders.retain(|order| !order.is_abandoned());
            };
            if self.ballast_is_gone && self.ballast.look(BALLAST_BESIDE_BYTES).is_ok_and(|level| !level.full)
            {
                self.ballast_is_gone = false;
            }
            self.tell_watchers();
            for (order, next_n) in orders.into_iter().zip(numbers) {
                // An asker that has gone asks again.
                match order {
                    Order::Append { reply, .. } => drop(reply.send(next_n)),
                    Order::Purge { reply, .. } => drop(reply.send(())),
                }
            }
            self.forget_least_used();
        }
    }

    /// Carries out all orders in one transaction; answers each with the number its task's next record must have.
    fn commit(&mut self, orders: &[Order]) -> Result<Vec<u64>, StoreError> {
        self.round += 1;
        let Self { connection, cursors, checkpointer, round, .. } = self;
        let _gate = checkpointer.gate();
        let mut bytes = 0;
        let numbers = connection::transaction(connection, |connection| {
            let mut numbers = Vec::with_capacity(orders.len());
            for order in orders {
                numbers.push(match order {
                    Order::Append { job_id, task_id, missing_from_n, first_n, records, .. } => {
                        let kept = match cursors.entry(*job_id) {
                            Entry::Occupied(kept) => kept.into_mut(),
                            Entry::Vacant(place) => {
                                place.insert(Kept { round: 0, cursor: load_cursor(connection, *job_id)? })
                            }
                        };
                        kept.round = *round;
                        kept.cursor.append(*task_id, *missing_from_n, *first_n, records)
                    }
                    Order::Purge { job_id, .. } => {
                        cursors.remove(job_id);
                        delete(chunks::table.filter(chunks::job_id.eq(job_id.to_bytes())))
                            .execute(connection)?;
                        0
                    }
                });
            }
            for (job_id, kept) in cursors.iter_mut().filter(|(_, kept)| kept.round == *round) {
                for chunk in kept.cursor.take_pending() {
                    bytes += write_chunk(connection, *job_id, &chunk)?;
                }
            }
            Ok(numbers)
        })?;
        checkpointer.wrote(bytes as u64 / PAGE_BYTES + 1);
        Ok(numbers)
    }

    fn tell_watchers(&self) {
        let mut watched = self.shared.watched.lock();
        for (job_id, kept) in self.cursors.iter().filter(|(_, kept)| kept.round == self.round) {
            if let Some(sender) = watched.get(job_id) {
                if sender.is_closed() {
                    watched.remove(job_id);
                } else {
                    sender.send_if_modified(|seq| raise(seq, kept.cursor.last_seq));
                }
            }
        }
    }

    fn forget_least_used(&mut self) {
        if self.cursors.len() <= KEPT_CURSORS {
            return;
        }
        let mut rounds: Vec<u64> = self.cursors.values().map(|kept| kept.round).collect();
        let (_, median, _) = rounds.select_nth_unstable(KEPT_CURSORS / 2);
        let median = *median;
        self.cursors.retain(|_, kept| kept.round > median);
    }

    fn next_orders(&self) -> Option<Vec<Order>> {
        let mut queue = self.shared.queue.lock();
        while queue.orders.is_empty() {
            if queue.closed {
                return None;
            }
            self.shared.changed.wait(&mut queue);
        }
        Some(std::mem::take(&mut queue.orders))
    }

    /// `false` = the store closes meanwhile; what is not on disk stays unacknowledged.
    fn wait_to_retry(&mut self) -> bool {
        // What the failed try counted is not on disk, and the connection may be in any state.
        self.cursors.clear();
        let mut queue = self.shared.queue.lock();
        if !queue.closed {
            let deadline = std::time::Instant::now() + RETRY_AFTER;
            while !queue.closed && !self.shared.changed.wait_until(&mut queue, deadline).timed_out() {}
        }
        let open = !queue.closed;
        drop(queue);
        if open && let Ok(connection) = connection::open(&self.path, Role::Writer) {
            self.connection = connection;
        }
        open
    }
}

/// Raises `seq` to `to`; `false` = it is as high already.
pub fn raise(seq: &mut u64, to: u64) -> bool {
    let higher = to > *seq;
    if higher {
        *seq = to;
    }
    higher
}

fn write_chunk(connection: &mut SqliteConnection, job_id: JobId, chunk: &Chunk) -> QueryResult<usize> {
    let payload = chunk::pack(&chunk.raw);
    replace_into(chunks::table)
        .values((
            chunks::job_id.eq(job_id.to_bytes()),
            chunks::first_seq.eq(signed(chunk.first_seq)),
            chunks::last_seq.eq(signed(chunk.last_seq)),
            chunks::task_id.eq(chunk.task_id.to_bytes()),
            chunks::first_n.eq(signed(chunk.first_n)),
            chunks::last_n.eq(signed(chunk.last_n)),
            chunks::payload.eq(&payload),
        ))
        .execute(connection)?;
    Ok(payload.len())
}

/// Finds where a job's log stands on disk.
fn load_cursor(connection: &mut SqliteConnection, job_id: JobId) -> Result<Cursor, StoreError> {
    type LastChunk = (i64, i64, Vec<u8>, i64, i64, Vec<u8>);
    let of_job = || chunks::table.filter(chunks::job_id.eq(job_id.to_bytes()));
    let last: Option<LastChunk> = of_job()
        .order(chunks::first_seq.desc())
        .select((
            chunks::first_seq,
            chunks::last_seq,
            chunks::task_id,
            chunks::first_n,
            chunks::last_n,
            chunks::payload,
        ))
        .first(connection)
        .optional()?;
    let Some((first_seq, last_seq, task_id, first_n, last_n, payload)) = last else {
        return Ok(Cursor::default());
    };
    let read_task =
        |bytes: &[u8]| TaskId::from_bytes(bytes).ok_or(StoreError::Corrupt { what: "chunks.task_id" });
    let rows: Vec<(Vec<u8>, Option<i64>)> = of_job()
        .group_by(chunks::task_id)
        .select((chunks::task_id, diesel::dsl::max(chunks::last_n)))
        .load(connection)?;
    let mut cursor = Cursor::default();
    cursor.last_seq = last_seq as u64;
    for (task_id, last_n) in rows {
        cursor.last_n.insert(read_task(&task_id)?, last_n.unwrap_or(0) as u64);
    }
    // A damaged payload is the reader's to report; here it is just not written again.
    if let Ok(raw) = chunk::unpack(&payload)
        && raw.len() < SHORT_BYTES
    {
        cursor.short = Some(Chunk {
            task_id: read_task(&task_id)?,
            first_seq: first_seq as u64,
            last_seq: last_seq as u64,
            first_n: first_n as u64,
            last_n: last_n as u64,
            raw,
        });
    }
    Ok(cursor)
}

#[cfg(test)]
mod tests {
    use diesel::connection::SimpleConnection;

    use super::*;
    use crate::contract::log::Stream;
    use crate::contract::quantity::Timestamp;
    use crate::store::Store;

    #[test]
    fn a_failed_commit_acknowledges_nothing_and_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let _store = Store::open(folder.path()).unwrap();
        let shared = Arc::new(Shared::default());
        let mut writer = LogWriter::open(Arc::clone(&shared), folder.path().join("logs.db")).unwrap();
        // Stands for a full disk: this connection may not add a page.
        writer.connection.batch_execute("PRAGMA max_page_count = 1").unwrap();
        let (reply, mut answer) = oneshot::channel();
        let (job_id, task_id) = (JobId::from_u128(1), TaskId::from_u128(1));
        // Noise, so that compressed it still needs a new page.
        let mut noise = 1u32;
        let text = std::iter::repeat_with(|| {
            noise ^= noise << 13;
            noise ^= noise >> 17;
            noise ^= noise << 5;
            char::from(b'!' + (noise % 64) as u8)
        });
        let text = text.take(20_000).collect();
        let records = vec![LogRecord { time: Timestamp::default(), stream: Stream::Stdout, text }];
        let orders = [Order::Append { job_id, task_id, missing_from_n: None, first_n: 1, records, reply }];
        assert!(writer.commit(&orders).is_err());
        assert!(answer.try_recv().is_err());
        shared.queue.lock().orders.extend(orders);
        let thread = std::thread::spawn(move || writer.run());
        assert_eq!(answer.blocking_recv().unwrap(), 2, "counted once, although the first tries failed");
        shared.queue.lock().closed = true;
        shared.changed.notify_one();
        thread.join().unwrap();
    }
}
