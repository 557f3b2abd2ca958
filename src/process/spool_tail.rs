//! The end of a spool, without reading what comes before. Records have no mark to find them by, but a place is the
//! beginning of one exactly when heads from there on lead to the end of the file, each with a kind and a time that can
//! be.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::plain_file::open_plain;
use super::spool::{HEAD_BYTES, Head};
use super::spool_reader::readable;
use super::{ProcessError, SPOOL_FILE};
use crate::contract::log::{LogRecord, Stream};

/// Bytes of the file that are looked at; some records of the greatest length.
const WINDOW_BYTES: u64 = 320 << 10;
/// Heads looked at, so that text made to look like heads cannot cost much; a real window takes one a byte at most.
const MOST_STEPS: u32 = 2_000_000;

/// The last records of a task's spool, oldest first: of either stream at most `most`. Empty when there is no spool.
pub fn spool_tail(task_folder: &Path, most: usize) -> Result<Vec<LogRecord>, ProcessError> {
    let path = task_folder.join(SPOOL_FILE);
    let window = match window(&path) {
        Ok(window) => window,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(ProcessError::File { operation: "read", path, source }),
    };
    let mut steps = MOST_STEPS;
    let begin = (0..window.len()).find(|begin| leads_to_the_end(&window, *begin, &mut steps));
    let begin = begin.unwrap_or(window.len());
    let mut records = Vec::new();
    let mut at = begin;
    while let Some((head, bytes)) = record(&window, at) {
        records.push((head, bytes));
        at += head.size_bytes() + bytes.len();
    }
    let (mut prints, mut errors) = (0, 0);
    let mut kept: Vec<LogRecord> = Vec::new();
    for (head, bytes) in records.into_iter().rev() {
        let count = match head.stream {
            Stream::Stdout => &mut prints,
            Stream::Stderr => &mut errors,
            Stream::System => continue,
        };
        *count += 1;
        if *count <= most {
            kept.push(readable(head, bytes));
        }
    }
    kept.reverse();
    Ok(kept)
}

fn window(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_plain(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(WINDOW_BYTES)))?;
    let mut window = Vec::with_capacity(length.min(WINDOW_BYTES) as usize);
    file.take(WINDOW_BYTES).read_to_end(&mut window)?;
    Ok(window)
}

/// Whether whole records lie from here to the end.
fn leads_to_the_end(window: &[u8], begin: usize, steps: &mut u32) -> bool {
    let mut at = begin;
    while at < window.len() {
        *steps = steps.saturating_sub(1);
        match record(window, at).filter(|_| *steps > 0) {
            Some((head, bytes)) => at += head.size_bytes() + bytes.len(),
            None => return false,
        }
    }
    true
}

fn record(window: &[u8], at: usize) -> Option<(Head, &[u8])> {
    let head = window.get(at..at + HEAD_BYTES)?;
    let head = Head::read(head.try_into().ok()?).filter(Head::has_a_time)?;
    let from = at + head.size_bytes();
    Some((head, window.get(from..from + head.length as usize)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spool(texts: impl Iterator<Item = (Stream, String)>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = Vec::new();
        for (stream, text) in texts {
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.push(u8::from(stream == Stream::Stderr));
            bytes.extend_from_slice(&1_700_000_000_000_000_i64.to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        std::fs::write(folder.path().join(SPOOL_FILE), bytes).unwrap();
        folder
    }

    fn texts(folder: &tempfile::TempDir, most: usize) -> Vec<String> {
        spool_tail(folder.path(), most).unwrap().into_iter().map(|record| record.text).collect()
    }

    #[test]
    fn the_end_of_a_long_spool_is_found_without_its_beginning() {
        let lines = (0..60_000).map(|index| (Stream::Stdout, format!("line {index} \0\u{1}\u{2}\u{3}")));
        let folder = spool(lines.chain([(Stream::Stderr, "the end".to_owned())]));
        let found = texts(&folder, 3);
        assert_eq!(found.len(), 4);
        assert!(found[2].starts_with("line 59999"), "{found:?}");
        assert_eq!(found[3], "the end");
    }

    #[test]
    fn a_short_an_empty_and_an_absent_spool_are_read_whole() {
        assert_eq!(texts(&spool([(Stream::Stderr, "x".to_owned())].into_iter()), 9), ["x"]);
        assert_eq!(texts(&spool(std::iter::empty()), 9), [""; 0]);
        assert_eq!(spool_tail(Path::new("/nonexistent"), 9).unwrap(), []);
    }

    #[test]
    fn a_flood_of_prints_does_not_push_the_errors_out() {
        let prints = || (0..500).map(|index| (Stream::Stdout, index.to_string()));
        let folder = spool(std::iter::once((Stream::Stderr, "why".to_owned())).chain(prints()));
        let found = texts(&folder, 10);
        assert_eq!((found.len(), found[0].as_str()), (11, "why"));
    }
}
