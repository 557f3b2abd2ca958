//! The worker's end of a spool: records as readable text.
//!
//! A carriage return goes back to the start of the line, so of a redrawn line only what was drawn last is
//! kept: trailing carriage returns are dropped, then everything up to the last one left. (A shorter text drawn
//! over a longer one hides the rest of it too; a terminal would show it.) Bytes that are not UTF-8 become
//! `\xNN`, a zero byte becomes `\0`. Other control characters stay: colours are wanted, and who shows text on
//! a terminal must make the rest harmless.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::lines::{Close, folded};
use super::spool::{HEAD_BYTES, Head};
use super::{ProcessError, SPOOL_FILE};
use crate::contract::log::LogRecord;

/// Behind the text of a line that was cut at 64 KiB and goes on in the next record of its stream.
const CUT_MARK: &str = " […]";

/// Records in a row.
#[derive(Debug, Clone, PartialEq)]
pub struct SpoolBatch {
    /// Number of the first.
    pub first_n: u64,
    /// Numbered from there.
    pub records: Vec<LogRecord>,
}

impl SpoolBatch {
    /// The number the next record will have.
    pub fn next_n(&self) -> u64 {
        self.first_n + self.records.len() as u64
    }
}

/// Reads a spool while the shim may still append to it.
#[derive(Debug)]
pub struct SpoolReader {
    path: PathBuf,
    file: Option<BufReader<File>>,
    /// Where record `next_n` begins.
    offset_bytes: u64,
    next_n: u64,
    /// The file is not read from there yet: after a half record, a step back, a seek.
    misplaced: bool,
}

impl SpoolReader {
    /// Before the first record. The file need not exist yet.
    pub fn open(task_folder: &Path) -> Self {
        Self { path: task_folder.join(SPOOL_FILE), file: None, offset_bytes: 0, next_n: 1, misplaced: false }
    }

    /// The number the next record will have.
    pub fn next_n(&self) -> u64 {
        self.next_n
    }

    /// Moves behind record `n`, or to the end if there are fewer; reading starts over from the front, so this
    /// is for adoption and not for every batch.
    pub fn seek_after(&mut self, n: u64) -> Result<(), ProcessError> {
        (self.offset_bytes, self.next_n, self.misplaced) = (0, 1, true);
        while self.next_n <= n && self.advance(|_, _| ())?.is_some() {}
        Ok(())
    }

    /// Up to `max_records`, and of more than one only as many as have at most `max_bytes` of text. None: there
    /// is no more, so far. A record half written counts as not there.
    pub fn read(&mut self, max_records: usize, max_bytes: usize) -> Result<SpoolBatch, ProcessError> {
        let mut batch = SpoolBatch { first_n: self.next_n, records: Vec::new() };
        let mut bytes = 0;
        while batch.records.len() < max_records {
            let before = (self.offset_bytes, self.next_n);
            let Some(record) = self.advance(readable)? else { break };
            bytes += record.text.len();
            if bytes > max_bytes && !batch.records.is_empty() {
                (self.offset_bytes, self.next_n) = before;
                self.misplaced = true;
                break;
            }
            batch.records.push(record);
        }
        Ok(batch)
    }

    /// Takes the next whole record.
    pub(super) fn advance<T>(
        &mut self,
        take: impl FnOnce(Head, &[u8]) -> T,
    ) -> Result<Option<T>, ProcessError> {
        match self.try_advance(take) {
            Ok(record) => Ok(record),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(source) => Err(ProcessError::File { operation: "read", path: self.path.clone(), source }),
        }
    }

    fn try_advance<T>(&mut self, take: impl FnOnce(Head, &[u8]) -> T) -> io::Result<Option<T>> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match File::open(&self.path) {
                Ok(file) => self.file.insert(BufReader::with_capacity(128 << 10, file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        if std::mem::replace(&mut self.misplaced, true) {
            file.seek(SeekFrom::Start(self.offset_bytes))?;
        }
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head)?;
        let head = Head::decode(head);
        let length = head.length as usize;
        let taken = if file.buffer().len() >= length {
            let taken = take(head, &file.buffer()[..length]);
            file.consume(length);
            taken
        } else {
            let mut bytes = Vec::with_capacity(length.min(1 << 20));
            file.by_ref().take(u64::from(head.length)).read_to_end(&mut bytes)?;
            if bytes.len() < length {
                return Ok(None);
            }
            take(head, &bytes)
        };
        self.misplaced = false;
        self.offset_bytes += (HEAD_BYTES + length) as u64;
        self.next_n += 1;
        Ok(Some(taken))
    }
}

pub(super) fn readable(head: Head, bytes: &[u8]) -> LogRecord {
    let mut text = readable_text(folded(bytes));
    if head.close == Close::Cut {
        text.push_str(CUT_MARK);
    }
    LogRecord { time: head.time, stream: head.stream, text }
}

fn readable_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let mut parts = chunk.valid().split('\0');
        text.push_str(parts.next().unwrap_or(""));
        for part in parts {
            text.push_str("\\0");
            text.push_str(part);
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::spool::Mark;
    use super::*;
    use crate::contract::log::Stream;
    use crate::contract::quantity::Timestamp;

    fn record(text: &[u8]) -> Vec<u8> {
        let time = Timestamp::from_micros(1);
        let (stream, close, mark) = (Stream::Stdout, Close::Line, Mark::None);
        let head = Head { length: text.len() as u32, stream, close, mark, time };
        [head.encode().as_slice(), text].concat()
    }

    #[test]
    fn text_is_readable_and_redrawn_lines_are_folded() {
        for (raw, text) in [
            (b"plain".as_slice(), "plain"),
            (b"dos\r", "dos"),
            (b"\r10%\r20%", "20%"),
            (b"10%\r20%\r\r", "20%"),
            (b"\r", ""),
            (b"\xff\xfe bad \xc3\x28", "\\xFF\\xFE bad \\xC3("),
            (b"nul\0inside", "nul\\0inside"),
            ("ünï🚀".as_bytes(), "ünï🚀"),
        ] {
            assert_eq!(readable_text(folded(raw)), text);
        }
    }

    #[test]
    fn a_half_written_record_is_read_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = SpoolReader::open(folder.path());
        assert_eq!(reader.read(10, 1000).unwrap().records, []);
        let mut file = File::create(folder.path().join(SPOOL_FILE)).unwrap();
        file.write_all(&record(b"one")).unwrap();
        let two = record(b"two");
        let mut texts = Vec::new();
        for byte in &two {
            file.write_all(&[*byte]).unwrap();
            texts.extend(reader.read(10, 1000).unwrap().records.into_iter().map(|record| record.text));
            assert_eq!(texts.len(), if reader.next_n() == 3 { 2 } else { 1 });
        }
        assert_eq!(texts, ["one", "two"]);
    }

    #[test]
    fn batches_keep_their_limits_and_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let whole: Vec<u8> = (0..10).flat_map(|index| record(format!("line {index}").as_bytes())).collect();
        std::fs::write(folder.path().join(SPOOL_FILE), whole).unwrap();
        let mut reader = SpoolReader::open(folder.path());
        let batch = reader.read(3, 1000).unwrap();
        assert_eq!((batch.first_n, batch.next_n()), (1, 4));
        let batch = reader.read(100, 13).unwrap();
        assert_eq!((batch.first_n, batch.next_n()), (4, 6));
        assert_eq!(reader.read(100, 1).unwrap().next_n(), 7);
        reader.seek_after(9).unwrap();
        let batch = reader.read(100, 1000).unwrap();
        assert_eq!((batch.first_n, batch.records.len()), (10, 1));
        assert_eq!(batch.records[0].text, "line 9");
    }
}
