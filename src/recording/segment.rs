//! The files of the record.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zstd::stream::Encoder;

use crate::domain::placement::replay::Entry;

/// The folder under `$GPULAYER_STATE`.
pub const FOLDER: &str = "scheduling";

const PREFIX: &str = "segment-";
const SUFFIX: &str = ".ndjson.zst";
/// Level 1: the writer shares the cores with the work.
const LEVEL: i32 = 1;
/// 256 KiB: what a line repeats stands a few lines before, and an idle daemon stays small.
const WINDOW_LOG: u32 = 18;
/// Ends a frame that was cut where it was flushed: a last block, raw and empty (RFC 8878, 3.1.1.2).
const LAST_BLOCK: [u8; 3] = [1, 0, 0];

/// All segments of a folder, the oldest first; none when there is no folder.
pub fn segments(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let path = entry.path();
        found.extend(number(&path).map(|number| (number, path)));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Where a segment stands among the others.
pub(super) fn number(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    digits.parse::<u32>().ok().map(u64::from)
}

/// A segment that is being written.
pub(super) struct OpenSegment {
    path: PathBuf,
    file: File,
    /// Writes to memory, so that a disk that takes half of it leaves nothing behind.
    encoder: Encoder<'static, Vec<u8>>,
    line: Vec<u8>,
    /// The size of the file.
    bytes: u64,
    /// So much of that is the start.
    start_bytes: u64,
}

impl OpenSegment {
    /// A new file with these entries.
    pub(super) fn create(folder: &Path, number: u64, first: &[Entry]) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(format!("{PREFIX}{number:06}{SUFFIX}"));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let begun = Self::begin(path.clone(), file, first);
        if begun.is_err() {
            // Of no use without its start, and it may be what fills the disk.
            let _ = std::fs::remove_file(&path);
        }
        begun
    }

    fn begin(path: PathBuf, file: File, first: &[Entry]) -> io::Result<Self> {
        let mut encoder = Encoder::new(Vec::new(), LEVEL)?;
        encoder.window_log(WINDOW_LOG)?;
        let mut segment = Self { path, file, encoder, line: Vec::new(), bytes: 0, start_bytes: 0 };
        for entry in first {
            segment.add(entry)?;
        }
        segment.flush()?;
        segment.start_bytes = segment.bytes;
        Ok(segment)
    }

    /// Adds an entry to what is flushed next.
    pub(super) fn add(&mut self, entry: &Entry) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, entry)?;
        self.line.push(b'\n');
        self.encoder.write_all(&self.line)
    }

    /// Writes what was added.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.encoder.flush()?;
        let compressed = std::mem::take(self.encoder.get_mut());
        self.write(&compressed)
    }

    fn write(&mut self, compressed: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(compressed) {
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += compressed.len() as u64;
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its size on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn start_bytes(&self) -> u64 {
        self.start_bytes
    }

    /// Ends it with a last entry. Answers its size.
    pub(super) fn finish(&mut self, last: &Entry) -> io::Result<u64> {
        self.add(last)?;
        self.encoder.do_finish()?;
        let compressed = std::mem::take(self.encoder.get_mut());
        self.write(&compressed)?;
        Ok(self.bytes)
    }
}

/// Ends a segment that was cut where it was flushed last, with a mark in a frame of its own. Answers its size.
pub(super) fn mark(path: &Path, bytes: u64, last: &Entry) -> io::Result<u64> {
    let mut line = serde_json::to_vec(last)?;
    line.push(b'\n');
    let mut end = LAST_BLOCK.to_vec();
    end.extend(zstd::bulk::compress(&line, LEVEL)?);
    let mut file = OpenOptions::new().append(true).open(path)?;
    if let Err(error) = file.write_all(&end) {
        let _ = file.set_len(bytes);
        return Err(error);
    }
    Ok(bytes + end.len() as u64)
}
