//! The spool: a task's log records in one append-only file, numbered from 1.
//!
//! A record is 13 bytes of head and then the raw bytes of the line without its line end:
//! length of the bytes (`u32`), kind (`u8`), time in microseconds since 1970 (`i64`), all little-endian.
//! Kind: the low two bits are the stream (0 stdout, 1 stderr, 2 system). The next two say how the record was closed
//! (0 by a line end, 1 cut, 2 by the end of the stream, 3 by a carriage return), the two behind them what it is (0 its
//! place in the log, 1 the same behind the beginning of the overflow file, 2 a mark where lines were lost). With the
//! bit behind these set, 8 more bytes follow: the number of the record (`u64`). Every write begins with such a record,
//! the next ones count on from it, so that what was written after damage (the file is its program's to cut) can be
//! read. Carriage returns and invalid text stay as they were; the reader deals with them. Up to the first record behind
//! the beginning of the overflow file the bytes are exactly what the program wrote; from there on that file has them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::SPOOL_FILE;
use super::lines::Close;
use super::remark::remark;
use crate::contract::log::Stream;
use crate::contract::quantity::Timestamp;
use crate::domain::log_budget::counted_lines;

pub(super) const HEAD_BYTES: usize = 13;
const CLOSE_SHIFT: u8 = 2;
const MARK_SHIFT: u8 = 4;
const NUMBERED: u8 = 1 << 6;
const KIND_AT: usize = 4;
/// Of the number behind a head that has one.
pub(super) const NUMBER_BYTES: usize = 8;
/// No record is longer: lines are cut at 64 KiB.
const LONGEST_BYTES: u32 = 1 << 20;
/// Years a time may be from, in microseconds: 2001 to 2286. What is not a time hardly ever falls between.
const TIMES: std::ops::Range<i64> = 1_000_000_000_000_000..10_000_000_000_000_000;
/// What was gathered is written when it is this much.
const GATHERED_BYTES: usize = 256 << 10;
/// Of what is kept of a buffer that a long line made large.
const KEPT_BUFFER_BYTES: usize = 512 << 10;

/// What a record is apart from its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nothing special.
    None,
    /// It stands behind the beginning of the overflow file, which has its bytes.
    Overflowed,
    /// Lines were lost here.
    Lost,
}

/// The head of one record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Head {
    pub(super) length: u32,
    pub(super) stream: Stream,
    pub(super) close: Close,
    pub(super) mark: Mark,
    pub(super) time: Timestamp,
    /// Whether its number follows.
    pub(super) numbered: bool,
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        let stream = match self.stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
            Stream::System => 2,
        };
        let close = match self.close {
            Close::Line => 0,
            Close::Cut => 1,
            Close::Unended => 2,
            Close::Redrawn => 3,
        };
        let mark = match self.mark {
            Mark::None => 0,
            Mark::Overflowed => 1,
            Mark::Lost => 2,
        };
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        let numbered = if self.numbered { NUMBERED } else { 0 };
        bytes[KIND_AT] = stream | close << CLOSE_SHIFT | mark << MARK_SHIFT | numbered;
        bytes[5..].copy_from_slice(&self.time.micros().to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, d, kind, time @ ..] = bytes;
        Self {
            length: u32::from_le_bytes([a, b, c, d]),
            stream: match kind & 3 {
                0 => Stream::Stdout,
                1 => Stream::Stderr,
                _ => Stream::System,
            },
            close: match kind >> CLOSE_SHIFT & 3 {
                0 => Close::Line,
                1 => Close::Cut,
                2 => Close::Unended,
                _ => Close::Redrawn,
            },
            mark: match kind >> MARK_SHIFT & 3 {
                1 => Mark::Overflowed,
                2 => Mark::Lost,
                _ => Mark::None,
            },
            time: Timestamp::from_micros(i64::from_le_bytes(time)),
            numbered: kind & NUMBERED != 0,
        }
    }

    /// Reads a head, unless no shim ever wrote these bytes as one.
    pub(super) fn read(bytes: [u8; HEAD_BYTES]) -> Option<Self> {
        let kind = bytes[KIND_AT];
        let head = Self::decode(bytes);
        (kind & 3 != 3 && kind >> MARK_SHIFT & 3 != 3 && kind < NUMBERED << 1 && head.length <= LONGEST_BYTES)
            .then_some(head)
    }

    /// Whether its time is one: hardly ever so by chance.
    pub(super) fn has_a_time(&self) -> bool {
        TIMES.contains(&self.time.micros())
    }

    /// Bytes from its beginning to the text.
    pub(super) fn size_bytes(&self) -> usize {
        if self.numbered { HEAD_BYTES + NUMBER_BYTES } else { HEAD_BYTES }
    }
}

/// The shim's end: records are gathered, then appended with one write.
pub(super) struct Spool {
    path: PathBuf,
    file: Option<File>,
    gathered: Vec<u8>,
    gathered_records: u64,
    last_n: u64,
    /// Records that could not be written since the last that could.
    lost: u64,
    /// Why the first of them could not.
    lost_because: String,
}

impl Spool {
    pub(super) fn new(task_folder: &Path) -> Self {
        Self {
            path: task_folder.join(SPOOL_FILE),
            file: None,
            gathered: Vec::new(),
            gathered_records: 0,
            last_n: 0,
            lost: 0,
            lost_because: String::new(),
        }
    }

    /// Gathers a record of the program.
    pub(super) fn push(
        &mut self,
        time: Timestamp,
        (stream, close): (Stream, Close),
        mark: Mark,
        bytes: &[u8],
    ) {
        self.gather(time, (stream, close), mark, bytes);
        if self.gathered.len() >= GATHERED_BYTES {
            self.flush(time);
        }
    }

    /// Gathers a record of GPUlayer's own.
    pub(super) fn say(&mut self, time: Timestamp, mark: Mark, text: &str) {
        self.gather(time, (Stream::System, Close::Line), mark, text.as_bytes());
    }

    fn gather(&mut self, time: Timestamp, (stream, close): (Stream, Close), mark: Mark, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        // What is gathered is written at once; its number is filled in then.
        let numbered = self.gathered.is_empty();
        self.gathered.extend_from_slice(&Head { length, stream, close, mark, time, numbered }.encode());
        if numbered {
            self.gathered.extend_from_slice(&[0; NUMBER_BYTES]);
        }
        self.gathered.extend_from_slice(bytes);
        self.gathered_records += 1;
    }

    /// Number of the last record that is in the file.
    pub(super) fn last_n(&self) -> u64 {
        self.last_n
    }

    /// Whether records were lost since the last that found room.
    pub(super) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// How many, and why.
    pub(super) fn lost(&self) -> (u64, &str) {
        (self.lost, &self.lost_because)
    }

    /// Appends what was gathered. On a full disk the records are dropped and counted, and the next ones that
    /// find room begin with a mark that says how many: a task never fails or slows for its log.
    pub(super) fn flush(&mut self, now: Timestamp) {
        if self.gathered.is_empty() {
            return;
        }
        let mut records = std::mem::take(&mut self.gathered);
        let mut count = std::mem::take(&mut self.gathered_records);
        let lost = self.lost;
        fill_in(&mut records, self.last_n + 1 + u64::from(lost > 0));
        if lost > 0 {
            self.say(now, Mark::Lost, &lost_mark(lost, &self.lost_because));
            fill_in(&mut self.gathered, self.last_n + 1);
            self.gathered.extend_from_slice(&records);
            std::mem::swap(&mut records, &mut self.gathered);
            self.gathered_records = 0;
            count += 1;
        }
        match self.append(&records) {
            Ok(()) => {
                self.last_n += count;
                self.lost = 0;
            }
            Err(error) => {
                if lost == 0 {
                    self.lost_because = because(&error);
                    remark(format_args!("the log cannot be written, lines are dropped: {error}"));
                }
                self.lost += count - u64::from(lost > 0);
            }
        }
        records.clear();
        // The buffer is used again; one long line must not make it stay large.
        records.shrink_to(KEPT_BUFFER_BYTES);
        self.gathered = records;
    }

    /// The last try: records that found no room are at least counted in a mark.
    pub(super) fn finish(&mut self, now: Timestamp) {
        self.flush(now);
        if self.lost > 0 {
            // The mark of `flush` comes before a record; at the end there is none left but this.
            let lost = std::mem::take(&mut self.lost);
            self.say(now, Mark::Lost, &lost_mark(lost, &self.lost_because));
            self.flush(now);
            if self.lost > 0 {
                self.lost = lost;
            }
        }
    }

    fn append(&mut self, records: &[u8]) -> io::Result<()> {
        let create = || OpenOptions::new().append(true).create_new(true).mode(0o600).open(&self.path);
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(create()?),
        };
        let mut before = file.metadata()?;
        // Its program removed it: nobody could read what is written there. Where no other can be made, a worker that
        // has it open still reads it.
        if before.nlink() == 0
            && let Ok(another) = create()
        {
            before = another.metadata()?;
            *file = another;
        }
        file.write_all(records).or_else(|error| {
            // Half a record would shift all that follow.
            file.set_len(before.len())?;
            Err(error)
        })
    }
}

/// Puts the number into a first record that has room for one.
fn fill_in(records: &mut [u8], n: u64) {
    if let Some(place) = records.get_mut(HEAD_BYTES..HEAD_BYTES + NUMBER_BYTES) {
        place.copy_from_slice(&n.to_le_bytes());
    }
}

fn lost_mark(lines: u64, because: &str) -> String {
    format!("{} missing here: {because}", counted_lines(lines))
}

/// Why a file of a task could not be written, for its user.
fn because(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "the worker's disk was full".to_owned(),
        io::ErrorKind::NotFound => "the task's folder on the worker was gone".to_owned(),
        _ => format!("the worker could not write them: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_called_full_only_when_it_was() {
        assert_eq!(because(&io::Error::from_raw_os_error(28)), "the worker's disk was full");
        assert_eq!(because(&io::Error::from_raw_os_error(122)), "the worker's disk was full");
        assert_eq!(because(&io::Error::from_raw_os_error(2)), "the task's folder on the worker was gone");
        assert!(because(&io::Error::from_raw_os_error(5)).starts_with("the worker could not write them: "));
    }

    #[test]
    fn heads_survive_the_file() {
        for stream in [Stream::Stdout, Stream::Stderr, Stream::System] {
            for close in [Close::Line, Close::Cut, Close::Unended, Close::Redrawn] {
                for mark in [Mark::None, Mark::Overflowed, Mark::Lost] {
                    let time = Timestamp::from_micros(-7);
                    for numbered in [false, true] {
                        let head = Head { length: 65_536, stream, close, mark, time, numbered };
                        assert_eq!(Head::read(head.encode()), Some(head));
                    }
                }
            }
        }
    }

    #[test]
    fn what_no_shim_wrote_is_no_head() {
        let time = Timestamp::from_micros(1_700_000_000_000_000);
        let (stream, close, mark) = (Stream::Stdout, Close::Line, Mark::None);
        let bytes = Head { length: 1, stream, close, mark, time, numbered: false }.encode();
        for (at, value) in [(KIND_AT, 3), (KIND_AT, 3 << MARK_SHIFT), (KIND_AT, 1 << 7), (3, 1)] {
            let mut damaged = bytes;
            damaged[at] = value;
            assert_eq!(Head::read(damaged), None, "{at} {value}");
        }
    }
}
