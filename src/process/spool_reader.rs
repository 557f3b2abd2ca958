//! The worker's end of a spool: records as readable text.
//!
//! A carriage return goes back to the start of the line, so of a redrawn line only what was drawn last is
//! kept: trailing carriage returns are dropped, then everything up to the last one left. (A shorter text drawn
//! over a longer one hides the rest of it too; a terminal would show it.) Bytes that are not UTF-8 become
//! `\xNN`, a zero byte becomes `\0`. Other control characters stay: colours are wanted, and who shows text on
//! a terminal must make the rest harmless.
//!
//! The file is its program's: cut, overwritten, removed. A record is taken only where its number says that it belongs,
//! and reading goes on behind damage at the next record that tells its number.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::lines::{Close, folded};
use super::plain_file::open_plain;
use super::spool::{HEAD_BYTES, Head, NUMBER_BYTES};
use super::{ProcessError, SPOOL_FILE};
use crate::contract::log::LogRecord;

/// Behind the text of a line that was cut at 64 KiB and goes on in the next record of its stream.
const CUT_MARK: &str = " […]";

/// Bytes that are looked through for a record at once.
const WINDOW_BYTES: usize = 256 << 10;
/// No log has so many: such a number was found by chance.
const MOST_RECORDS: u64 = 1 << 48;

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

    /// Looks through the whole file, as it is called now, for record `n` or the next behind it that can be read, and
    /// moves there: [`SpoolReader::next_n`] says which. `false` = none is there. Blocks for as long as it takes to read
    /// the file.
    pub fn recover(&mut self, n: u64) -> Result<bool, ProcessError> {
        *self = Self { path: std::mem::take(&mut self.path), ..Self::open(Path::new("")) };
        loop {
            while self.next_n < n && self.advance(|_, _| ())?.is_some() {}
            if self.next_n >= n && self.is_at_a_record()? {
                return Ok(true);
            }
            if !self.skip_damage()? {
                return Ok(false);
            }
        }
    }

    /// Number of the last record that can be read, whatever lies before it; 0 = none. Moves behind it.
    pub fn last_n(&mut self) -> Result<u64, ProcessError> {
        self.seek_after(u64::MAX)?;
        while self.skip_damage()? {
            while self.advance(|_, _| ())?.is_some() {}
        }
        Ok(self.next_n - 1)
    }

    fn is_at_a_record(&mut self) -> Result<bool, ProcessError> {
        let before = (self.offset_bytes, self.next_n);
        let there = self.advance(|_, _| ())?.is_some();
        (self.offset_bytes, self.next_n) = before;
        self.misplaced = true;
        Ok(there)
    }

    /// Moves on to the next record that tells its number; `false` = there is none, and nothing moved.
    pub(super) fn skip_damage(&mut self) -> Result<bool, ProcessError> {
        let found = self.find_numbered().map_err(|source| self.unreadable(source))?;
        if let Some((offset_bytes, n)) = found {
            (self.offset_bytes, self.next_n, self.misplaced) = (offset_bytes, n, true);
        }
        Ok(found.is_some())
    }

    /// Where the next such record begins, and its number. What was read before does not come again.
    fn find_numbered(&self) -> io::Result<Option<(u64, u64)>> {
        let Some(file) = &self.file else { return Ok(None) };
        let mut window = vec![0; WINDOW_BYTES];
        let mut from = self.offset_bytes;
        loop {
            let mut length = 0;
            while length < window.len() {
                match file.get_ref().read_at(&mut window[length..], from + length as u64) {
                    Ok(0) => break,
                    Ok(more) => length += more,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            let heads = window[..length].windows(HEAD_BYTES + NUMBER_BYTES).enumerate();
            let found = heads.filter_map(|(at, bytes)| Some((from + at as u64, number_in(bytes)?))).find(
                // The one that could not be read here is not read at the second try.
                |&(at, n)| n > self.next_n || (n == self.next_n && at > self.offset_bytes),
            );
            if found.is_some() || length < window.len() {
                return Ok(found);
            }
            from += (length - (HEAD_BYTES + NUMBER_BYTES - 1)) as u64;
        }
    }

    fn unreadable(&self, source: io::Error) -> ProcessError {
        ProcessError::File { operation: "read", path: self.path.clone(), source }
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
            Err(source) => Err(self.unreadable(source)),
        }
    }

    /// `None` also where the record that lies here is not the next one, or no record.
    fn try_advance<T>(&mut self, take: impl FnOnce(Head, &[u8]) -> T) -> io::Result<Option<T>> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match open_plain(&self.path) {
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
        let Some(head) = Head::read(head) else { return Ok(None) };
        if head.numbered {
            let mut n = [0; NUMBER_BYTES];
            file.read_exact(&mut n)?;
            if u64::from_le_bytes(n) != self.next_n {
                return Ok(None);
            }
        }
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
        self.offset_bytes += (head.size_bytes() + length) as u64;
        self.next_n += 1;
        Ok(Some(taken))
    }
}

/// The number in what looks like the head of a numbered record.
fn number_in(bytes: &[u8]) -> Option<u64> {
    let (head, n) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let head = Head::read(*head).filter(|head| head.numbered && head.has_a_time())?;
    let n = u64::from_le_bytes(n.try_into().ok()?);
    (head.numbered && n < MOST_RECORDS).then_some(n)
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
        let head = Head { length: text.len() as u32, stream, close, mark, time, numbered: false };
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

    fn numbered(n: u64) -> Vec<u8> {
        let time = Timestamp::from_micros(1_700_000_000_000_000);
        let text = format!("line {n}");
        let (stream, close, mark) = (Stream::Stdout, Close::Line, Mark::None);
        let head = Head { length: text.len() as u32, stream, close, mark, time, numbered: true };
        [head.encode().as_slice(), &n.to_le_bytes(), text.as_bytes()].concat()
    }

    fn spool_of(records: impl Iterator<Item = u64>) -> Vec<u8> {
        records.flat_map(numbered).collect()
    }

    fn next(reader: &mut SpoolReader) -> (u64, String) {
        let batch = reader.read(1, 1000).unwrap();
        (batch.first_n, batch.records[0].text.clone())
    }

    #[test]
    fn reading_goes_on_behind_damage_with_the_right_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SPOOL_FILE);
        let whole = spool_of(1..=40);
        let mut noise = 7u8;
        let mut random = |byte: &mut u8| {
            noise = noise.wrapping_mul(181).wrapping_add(103);
            *byte = noise;
        };
        let damages: [(&str, Vec<u8>, u64); 4] = [
            (
                "its front",
                {
                    let mut bytes = whole.clone();
                    bytes[..30].iter_mut().for_each(&mut random);
                    bytes
                },
                3,
            ),
            ("cut, and written on", [&whole[..37], &spool_of(21..=40)].concat(), 21),
            ("emptied, and written on", spool_of(21..=40), 21),
            (
                "its middle",
                {
                    let mut bytes = whole.clone();
                    bytes[300..500].fill(0xff);
                    bytes
                },
                20,
            ),
        ];
        for (what, bytes, first_after) in damages {
            std::fs::write(&path, bytes).unwrap();
            let mut reader = SpoolReader::open(folder.path());
            assert_eq!(reader.last_n().unwrap(), 40, "{what}");
            assert!(reader.recover(30).unwrap(), "{what}");
            assert_eq!(next(&mut reader), (30, "line 30".to_owned()), "{what}");
            // From the first that is damaged on.
            let mut reader = SpoolReader::open(folder.path());
            let read = reader.read(100, 10_000).unwrap();
            let said = |n: u64| format!("line {n}");
            let whole =
                (1..read.next_n()).map(said).zip(&read.records).filter(|(text, read)| *text == read.text);
            assert!(read.records.len() - whole.count() <= 1, "{what}: {read:?}");
            assert!(reader.recover(read.next_n()).unwrap(), "{what}");
            assert_eq!(reader.next_n(), first_after, "{what}");
            assert!(!reader.recover(41).unwrap(), "{what}");
        }
        std::fs::write(&path, [0xff; 1000]).unwrap();
        assert!(!SpoolReader::open(folder.path()).recover(1).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(!SpoolReader::open(folder.path()).recover(1).unwrap());
    }

    #[test]
    fn damage_longer_than_a_window_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let garbage = vec![0xfe; WINDOW_BYTES * 2 + 77];
        let bytes = [numbered(1), garbage, numbered(9), numbered(10)].concat();
        std::fs::write(folder.path().join(SPOOL_FILE), bytes).unwrap();
        let mut reader = SpoolReader::open(folder.path());
        assert!(reader.recover(2).unwrap());
        assert_eq!(next(&mut reader), (9, "line 9".to_owned()));
        assert_eq!(next(&mut reader), (10, "line 10".to_owned()));
    }
}
