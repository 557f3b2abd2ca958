//! The spool: a task's log records in one append-only file, numbered from 1 by their place.
//!
//! A record is 13 bytes of head and then the raw bytes of the line without its line end:
//! length of the bytes (`u32`), kind (`u8`), time in microseconds since 1970 (`i64`), all little-endian.
//! Kind: the low two bits are the stream (0 stdout, 1 stderr, 2 system); bit 2 says that the line was cut here.
//! Carriage returns and invalid text stay as they were; the reader deals with them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::SPOOL_FILE;
use super::lines::Close;
use super::remark::remark;
use crate::contract::log::Stream;
use crate::contract::quantity::Timestamp;

pub(super) const HEAD_BYTES: usize = 13;
const CUT: u8 = 1 << 2;

/// The head of one record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Head {
    pub(super) length: u32,
    pub(super) stream: Stream,
    pub(super) close: Close,
    pub(super) time: Timestamp,
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        let stream = match self.stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
            Stream::System => 2,
        };
        let cut = if self.close == Close::Cut { CUT } else { 0 };
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4] = stream | cut;
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
            close: if kind & CUT == 0 { Close::Line } else { Close::Cut },
            time: Timestamp::from_micros(i64::from_le_bytes(time)),
        }
    }
}

/// The shim's end: records are gathered, then appended with one write.
#[derive(Default)]
pub(super) struct Spool {
    file: Option<File>,
    /// Of the file, always at the end of a whole record.
    length_bytes: u64,
    gathered: Vec<u8>,
    gathered_records: u64,
    last_n: u64,
    /// Records that found no room on the disk since the last that did.
    lost: u64,
}

impl Spool {
    /// Gathers a record.
    pub(super) fn push(&mut self, time: Timestamp, stream: Stream, close: Close, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.gathered.extend_from_slice(&Head { length, stream, close, time }.encode());
        self.gathered.extend_from_slice(bytes);
        self.gathered_records += 1;
    }

    /// Number of the last record that is in the file.
    pub(super) fn last_n(&self) -> u64 {
        self.last_n
    }

    /// Appends what was gathered. On a full disk the records are dropped and counted, and the next ones that
    /// find room begin with a remark that says how many: a task never fails or slows for its log.
    pub(super) fn flush(&mut self, task_folder: &Path, now: Timestamp) {
        if self.gathered.is_empty() {
            return;
        }
        let (mut records, lost) = (std::mem::take(&mut self.gathered), self.lost);
        let mut count = self.gathered_records;
        self.gathered_records = 0;
        if lost > 0 {
            let remark = format!("{lost} lines are missing here: the worker's disk was full");
            self.push(now, Stream::System, Close::Line, remark.as_bytes());
            self.gathered.extend_from_slice(&records);
            std::mem::swap(&mut records, &mut self.gathered);
            self.gathered_records = 0;
            count += 1;
        }
        match self.append(task_folder, &records) {
            Ok(()) => {
                self.last_n += count;
                self.lost = 0;
            }
            Err(error) => {
                if self.lost == 0 {
                    remark(format_args!("the log cannot be written, lines are dropped: {error}"));
                }
                self.lost += count - u64::from(lost > 0);
            }
        }
        records.clear();
        // The buffer is used again; one long line must not make it stay large.
        records.shrink_to(256 << 10);
        self.gathered = records;
    }

    fn append(&mut self, task_folder: &Path, records: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                options.append(true).create_new(true).mode(0o600);
                self.file.insert(options.open(task_folder.join(SPOOL_FILE))?)
            }
        };
        match file.write_all(records) {
            Ok(()) => {
                self.length_bytes += records.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a record would shift all that follow.
                file.set_len(self.length_bytes)?;
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_the_file() {
        for stream in [Stream::Stdout, Stream::Stderr, Stream::System] {
            for close in [Close::Line, Close::Cut] {
                let head = Head { length: 65_536, stream, close, time: Timestamp::from_micros(-7) };
                assert_eq!(Head::decode(head.encode()), head);
            }
        }
    }
}
