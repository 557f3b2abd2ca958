//! What the generator of a function yields, brought to the server while it runs, batch by batch; the next one is read when
//! the one before it is on disk there. The program is never slowed for it: what was not brought yet lies in its folder.
//!
//! | name in the folder | meaning |
//! |---|---|
//! | `yielded` | the values in order, each behind eight bytes (little-endian): its length, of one that lies apart with the highest bit set |
//! | `yielded.N` | the value with this number, when it is long; removed once it was brought |
//!
//! How far they were brought stands in the task's own folder, so that another start of the worker goes on from there. If
//! that is older than it should be, what comes twice is known to the server by its number.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{AtFlags, unlinkat};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::Surroundings;
use super::collecting::{RoomPatience, publish, readable_by_task};
use super::folder::{FUNCTION, TaskFolder, relative};
use super::reporting::report_one;
use crate::artifacts::{open_beneath, open_folder_beneath};
use crate::contract::error_code::ErrorCode;
use crate::contract::function::MOST_INLINE_BYTES;
use crate::contract::ids::{Epoch, TaskId};
use crate::contract::protocol::{Assignment, Report, ReportItem, ReportResult};
use crate::contract::spec::Serializer;
use crate::contract::yielded::Yielded;

/// How often it is looked for more.
const LOOK: Duration = Duration::from_millis(50);
/// A batch ends behind the value that fills it.
const BATCH_BYTES: usize = 64 * 1024;
const BATCH_VALUES: usize = 512;
const YIELDED_FILE: &str = "yielded";
const HEAD_BYTES: u64 = 8;
const LIES_APART: u64 = 1 << 63;

/// One task's values, and how far they were brought.
pub(super) struct Yields {
    task_id: TaskId,
    epoch: Epoch,
    serializer: Serializer,
    folder: TaskFolder,
    /// The size of the file when all in it had been brought.
    brought_bytes: u64,
}

/// Why no more of them are brought.
enum Unbrought {
    /// The server takes no more of this task, or the session is over.
    Refused,
    /// They cannot be read, or sent, for now.
    Failed(String),
}

/// How far the values were brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    /// Number of the last one.
    n: u64,
    /// Where the next one begins in the file.
    offset: u64,
}

/// Some values, as they lie there.
#[derive(Debug, PartialEq, Eq)]
struct Batch {
    values: Vec<Piece>,
    after: Mark,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    InLine(Vec<u8>),
    Apart { n: u64, size_bytes: u64 },
}

impl Yields {
    /// Of a task, if it is a function.
    pub(super) fn of(assignment: &Assignment, folder: &TaskFolder) -> Option<Self> {
        let serializer = assignment.spec.workload.function()?.serializer;
        let Assignment { task_id, epoch, .. } = *assignment;
        Some(Self { task_id, epoch, serializer, folder: folder.clone(), brought_bytes: 0 })
    }

    /// Whether there is something that was not looked at yet. Most functions yield nothing: that costs one look.
    fn has_news(&self) -> bool {
        let found = std::fs::symlink_metadata(self.folder.function().join(YIELDED_FILE));
        found.is_ok_and(|found| found.len() > self.brought_bytes)
    }

    /// Brings all that is there. `at_last`: what cannot be brought now never will, and is told as lost.
    async fn bring(&mut self, around: &Arc<Surroundings>, at_last: bool) -> Result<(), Unbrought> {
        let room = RoomPatience::default();
        loop {
            let (folder, host) = (self.folder.clone(), Arc::clone(around));
            let read = tokio::task::spawn_blocking(move || next_batch(&host, &folder)).await;
            let read = read.unwrap_or_else(|gone| Err(io::Error::other(gone)));
            let (from, batch) = read.map_err(|error| Unbrought::Failed(error.to_string()))?;
            let Some(Batch { values, after }) = batch else {
                self.brought_bytes = from.offset;
                return Ok(());
            };
            let mut coded = Vec::with_capacity(values.len());
            let mut apart = Vec::new();
            for piece in values {
                match piece {
                    Piece::InLine(bytes) => coded.push(in_line(bytes, self.serializer)),
                    Piece::Apart { n, size_bytes } => {
                        match self.publish(around, n, &room).await {
                            Ok(value) => coded.push(value),
                            Err(why) if at_last => {
                                tracing::warn!(task_id = %self.task_id, n, why, "a yielded value is lost");
                                coded.push(Yielded::lost(size_bytes));
                            }
                            Err(why) => return Err(Unbrought::Failed(why)),
                        }
                        apart.push(n);
                    }
                }
            }
            self.report(around, from.n + 1, coded).await?;
            let folder = self.folder.clone();
            let noted = tokio::task::spawn_blocking(move || note(&folder, after, &apart)).await;
            if let Ok(Err(error)) = noted {
                // Else the same would be sent for ever.
                return Err(Unbrought::Failed(error.to_string()));
            }
        }
    }

    async fn publish(&self, around: &Surroundings, n: u64, room: &RoomPatience) -> Result<Yielded, String> {
        let path = format!("{FUNCTION}/{YIELDED_FILE}.{n}");
        let sent = publish(around, path.as_ref(), || open(around, &self.folder, &path), room).await?;
        Ok(Yielded { text: None, artifact: Some(sent.digest), size_bytes: sent.size_bytes })
    }

    /// Returns when the server has them on disk.
    async fn report(
        &self,
        around: &Surroundings,
        first_n: u64,
        values: Vec<Yielded>,
    ) -> Result<(), Unbrought> {
        let report = Report::Yielded { first_n, values };
        let item = ReportItem { task_id: self.task_id, epoch: self.epoch, report };
        let channel = Arc::clone(&around.options.channel);
        // What its answer orders comes with the next heartbeat too.
        match report_one(&*channel, &item, None).await {
            Ok(answer) => match answer.results.first() {
                Some(ReportResult::Ok { .. }) => Ok(()),
                Some(ReportResult::Refused { code: ErrorCode::StaleEpoch | ErrorCode::TaskEnded }) | None => {
                    Err(Unbrought::Refused)
                }
                Some(ReportResult::Refused { code }) => {
                    Err(Unbrought::Failed(format!("the server refused them: {}", code.word())))
                }
            },
            Err(end) => {
                let _ = around.options.session_over.send(end);
                Err(Unbrought::Refused)
            }
        }
    }
}

/// Brings what comes, as long as this is waited for.
pub(super) async fn while_it_runs(around: &Arc<Surroundings>, yields: Option<Yields>) -> Infallible {
    let Some(mut yields) = yields else { return std::future::pending().await };
    let mut looks = interval_at(Instant::now() + LOOK, LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if !yields.has_news() {
            continue;
        }
        match yields.bring(around, false).await {
            Ok(()) => {}
            Err(Unbrought::Refused) => return std::future::pending().await,
            Err(Unbrought::Failed(why)) => {
                tracing::debug!(task_id = %yields.task_id, why, "yielded values are brought later");
            }
        }
    }
}

/// Brings what is left of an ended task; says why not, if something is left behind. Ends early once
/// `hurried` is over.
pub(super) async fn rest(
    around: &Arc<Surroundings>,
    yields: Option<Yields>,
    hurried: impl Future<Output = ()>,
) -> Result<(), String> {
    let Some(mut yields) = yields else { return Ok(()) };
    yields.brought_bytes = mark_of(&yields.folder).offset;
    if !yields.has_news() {
        return Ok(());
    }
    let brought = tokio::select! {
        brought = yields.bring(around, true) => brought,
        () = hurried => Err(Unbrought::Failed("the task was ordered to stop at once before that".to_owned())),
    };
    match brought {
        // A server that refuses them has given the task up.
        Ok(()) | Err(Unbrought::Refused) => Ok(()),
        Err(Unbrought::Failed(why)) => Err(why),
    }
}

/// What is short is coded in line; a program that writes what is no JSON into its own folder has lost it.
fn in_line(bytes: Vec<u8>, serializer: Serializer) -> Yielded {
    let size_bytes = bytes.len() as u64;
    let text = match serializer {
        Serializer::Json => {
            let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok();
            String::from_utf8(bytes).ok().filter(|_| is_json)
        }
        Serializer::Cloudpickle => Some(STANDARD.encode(bytes)),
    };
    Yielded { text, artifact: None, size_bytes }
}

fn open(around: &Surroundings, folder: &TaskFolder, path: &str) -> io::Result<File> {
    let file = open_beneath(folder.open()?.as_fd(), &relative(path)?)?;
    readable_by_task(around, file)
}

/// What follows what was brought, and how far that was.
fn next_batch(around: &Surroundings, folder: &TaskFolder) -> io::Result<(Mark, Option<Batch>)> {
    let mark = mark_of(folder);
    let mut file = open(around, folder, &format!("{FUNCTION}/{YIELDED_FILE}"))?;
    let size_bytes = file.metadata()?.size();
    Ok((mark, read_batch(&mut file, size_bytes, mark)?))
}

/// How far they were brought, by whichever start of the worker.
fn mark_of(folder: &TaskFolder) -> Mark {
    folder.yielded_mark().and_then(|text| Mark::read(&text)).unwrap_or_default()
}

/// The whole values behind the mark. What is not whole yet, and never will be if its program is gone, is left.
fn read_batch(file: &mut (impl Read + Seek), size_bytes: u64, mark: Mark) -> io::Result<Option<Batch>> {
    let mut batch = Batch { values: Vec::new(), after: mark };
    let mut bytes = 0;
    file.seek(SeekFrom::Start(mark.offset))?;
    while bytes < BATCH_BYTES && batch.values.len() < BATCH_VALUES {
        let Mark { n, offset } = batch.after;
        if size_bytes.saturating_sub(offset) < HEAD_BYTES {
            break;
        }
        let mut head = [0; HEAD_BYTES as usize];
        file.read_exact(&mut head)?;
        let (head, begin) = (u64::from_le_bytes(head), offset + HEAD_BYTES);
        let length = head & !LIES_APART;
        if head & LIES_APART != 0 {
            // What takes long to send keeps nothing before it waiting.
            if batch.values.is_empty() {
                batch.values.push(Piece::Apart { n: n + 1, size_bytes: length });
                batch.after = Mark { n: n + 1, offset: begin };
            }
            break;
        }
        // No value is nothing. A file with a hole would be values without an end.
        if length == 0 || length > MOST_INLINE_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file of its values is damaged"));
        }
        if size_bytes - begin < length {
            break;
        }
        let mut value = vec![0; length as usize];
        file.read_exact(&mut value)?;
        bytes += value.len();
        batch.values.push(Piece::InLine(value));
        batch.after = Mark { n: n + 1, offset: begin + length };
    }
    Ok((!batch.values.is_empty()).then_some(batch))
}

/// These were brought: it is written down, and the room of those that lay apart is free again.
fn note(folder: &TaskFolder, mark: Mark, apart: &[u64]) -> io::Result<()> {
    folder.note_yielded_mark(&mark.written())?;
    if let Some(function) = (!apart.is_empty())
        .then(|| open_folder_beneath(folder.open()?.as_fd(), &relative(FUNCTION)?))
        .transpose()?
    {
        for n in apart {
            let _ = unlinkat(&function, format!("{YIELDED_FILE}.{n}"), AtFlags::empty());
        }
    }
    Ok(())
}

impl Mark {
    fn written(self) -> String {
        format!("{} {}", self.n, self.offset)
    }

    fn read(text: &str) -> Option<Self> {
        let (n, offset) = text.split_once(' ')?;
        Some(Self { n: n.parse().ok()?, offset: offset.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn framed(values: &[&[u8]]) -> Vec<u8> {
        values.iter().flat_map(|value| [&(value.len() as u64).to_le_bytes()[..], value].concat()).collect()
    }

    fn read(bytes: &[u8], mark: Mark) -> Option<Batch> {
        read_batch(&mut Cursor::new(bytes), bytes.len() as u64, mark).unwrap()
    }

    #[test]
    fn whole_values_are_read_and_a_half_one_waits() {
        let whole = framed(&[b"one", b"2", b"three"]);
        let batch = read(&whole, Mark::default()).unwrap();
        let values = [&b"one"[..], b"2", b"three"].map(|value| Piece::InLine(value.to_vec()));
        assert_eq!(batch, Batch { values: values.into(), after: Mark { n: 3, offset: whole.len() as u64 } });
        assert_eq!(read(&whole, batch.after), None);
        for cut in 0..whole.len() {
            let seen = read(&whole[..cut], Mark::default());
            let count = seen.as_ref().map_or(0, |batch| batch.values.len());
            assert_eq!(count, [11, 20, 33].iter().filter(|end| **end <= cut).count(), "cut at {cut}");
            let rest = read(&whole, seen.map_or(Mark::default(), |batch| batch.after)).unwrap();
            assert_eq!((rest.values.len(), rest.after), (3 - count, batch.after), "cut at {cut}");
        }
    }

    #[test]
    fn a_long_one_is_a_batch_of_its_own_and_a_batch_has_bounds() {
        let apart = (70_000 | LIES_APART).to_le_bytes();
        let bytes = [&framed(&[b"a"])[..], &apart, &framed(&[b"c"])].concat();
        let mut mark = Mark::default();
        let mut seen = Vec::new();
        while let Some(batch) = read(&bytes, mark) {
            seen.push(batch.values);
            mark = batch.after;
        }
        let long = Piece::Apart { n: 2, size_bytes: 70_000 };
        assert_eq!(seen, [[Piece::InLine(b"a".into())], [long], [Piece::InLine(b"c".into())]].map(Vec::from));
        let full = [0; MOST_INLINE_BYTES];
        let many = framed(&[&full[..]; 20]);
        assert_eq!(read(&many, Mark::default()).unwrap().values.len(), BATCH_BYTES / MOST_INLINE_BYTES);
        let small = framed(&[&b"x"[..]; BATCH_VALUES + 1]);
        assert_eq!(read(&small, Mark::default()).unwrap().values.len(), BATCH_VALUES);
    }

    #[test]
    fn what_a_program_may_write_there_does_no_harm() {
        let huge = (!LIES_APART).to_le_bytes();
        for head in [huge, [0; 8]] {
            assert!(read_batch(&mut Cursor::new(&head), 8, Mark::default()).is_err());
        }
        let beyond = Mark { n: 3, offset: u64::MAX };
        assert_eq!(read(&framed(&[b"cut short"]), beyond), None);
        assert_eq!(in_line(b"{half".to_vec(), Serializer::Json), Yielded::lost(5));
        assert_eq!(in_line(b"[1]".to_vec(), Serializer::Json).text.as_deref(), Some("[1]"));
        assert_eq!(in_line(b"\0".to_vec(), Serializer::Cloudpickle).text.as_deref(), Some("AA=="));
    }

    #[test]
    fn a_mark_comes_back_as_it_was_written() {
        let mark = Mark { n: 7, offset: 1 << 40 };
        assert_eq!(Mark::read(&mark.written()), Some(mark));
        assert_eq!(Mark::read("7"), None);
    }
}
