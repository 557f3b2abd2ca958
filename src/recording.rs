//! What the scheduler was told and what it answered, on disk: segments under `$GPULAYER_STATE/scheduling`, each of which
//! can be replayed alone. Written by a thread of its own that nobody waits for: what it cannot keep up with, or the disk
//! does not take, ends the segment with a mark, and the record goes on in the next.
//!
//! A segment is a stream of zstd, one [`Entry`] in JSON a line. It is flushed ten times a second at most, so `kill -9`
//! costs the last tenth, and its last line may be torn.

mod reader;
mod segment;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub use self::reader::{Reader, RecordError};
pub use self::segment::{FOLDER, segments};
use self::writer::Writer;
use crate::domain::placement::replay::Entry;

/// What waits to be written at most: some seconds of a burst, a few MiB.
const MOST_ENTRIES: usize = 32_768;
/// So many are written at once even if the time is not up.
const BATCH: usize = 4_096;
/// How long entries gather before they are written.
const GATHER: Duration = Duration::from_millis(100);
/// After a fault of the disk the record rests this long.
pub const REST: Duration = Duration::from_secs(60);

const THREAD: &str = "scheduling-record";

/// Where the record is kept and how much of it.
#[derive(Debug, Clone)]
pub struct RecordingOptions {
    /// The folder; made when it is not there.
    pub folder: PathBuf,
    /// Of all segments together; the oldest go first.
    pub max_bytes: u64,
    /// How long it rests after a fault of the disk, see [`REST`].
    pub rest: Duration,
}

/// Takes entries and never blocks; clones write to one record.
#[derive(Debug, Clone)]
pub struct Recorder {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    /// A segment has to begin: what the placer is now is wanted.
    start_wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    entries: Vec<Entry>,
    /// Entries were dropped: nothing more is taken until a new segment starts.
    overrun: bool,
    closed: bool,
}

impl Recorder {
    /// Starts the writer.
    pub fn start(options: RecordingOptions) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { start_wanted: AtomicBool::new(true), ..Shared::default() });
        let thread = std::thread::Builder::new().name(THREAD.into()).spawn({
            let shared = Arc::clone(&shared);
            move || write_until_closed(&shared, Writer::new(options))
        })?;
        Ok(Self { inner: Arc::new(Inner { shared, thread: Mutex::new(Some(thread)) }) })
    }

    /// Whether the next entry has to be [`Entry::Start`].
    pub fn wants_start(&self) -> bool {
        self.inner.shared.start_wanted.load(Ordering::Relaxed)
    }

    /// Adds an entry.
    pub fn note(&self, entry: Entry) {
        let shared = &self.inner.shared;
        let mut queue = shared.queue.lock();
        if matches!(entry, Entry::Start(_)) {
            shared.start_wanted.store(false, Ordering::Relaxed);
            queue.overrun = false;
        } else if queue.overrun {
            return;
        }
        if queue.entries.len() >= MOST_ENTRIES {
            queue.overrun = true;
            return;
        }
        queue.entries.push(entry);
        let waiting = queue.entries.len();
        drop(queue);
        if waiting == 1 || waiting == BATCH {
            shared.arrived.notify_one();
        }
    }

    /// Writes what is left, ends the segment and the thread. What is noted afterwards is lost.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Inner {
    fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.arrived.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // A thread that has panicked took the process with it.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

/// What was gathered, and whether something is missing after it; `None` when the record is closed.
fn gather(shared: &Shared) -> Option<(Vec<Entry>, bool)> {
    let mut queue = shared.queue.lock();
    while queue.entries.is_empty() && !queue.closed {
        shared.arrived.wait(&mut queue);
    }
    if !queue.closed && queue.entries.len() < BATCH {
        shared.arrived.wait_for(&mut queue, GATHER);
    }
    let entries = std::mem::take(&mut queue.entries);
    (!entries.is_empty()).then_some((entries, queue.overrun))
}

fn write_until_closed(shared: &Shared, mut writer: Writer) {
    while let Some((entries, overrun)) = gather(shared) {
        for entry in entries {
            writer.take(entry);
        }
        writer.flush();
        if overrun {
            writer.cut("the scheduler was told more than could be written");
        }
        if writer.wants_start() {
            shared.start_wanted.store(true, Ordering::Relaxed);
        }
    }
    writer.close();
}
