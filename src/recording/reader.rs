//! Reads a segment back, also while it is being written.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use zstd::stream::read::Decoder;

use crate::contract::quantity::Timestamp;
use crate::domain::placement::replay::{Entry, Header, RULES};

/// Why a segment cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file.
    #[error("cannot read {path}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ends before it begins: nothing of it had reached the disk.
    #[error("{path} holds nothing yet", path = .path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// A line is not what is written there.
    #[error("line {line} of {path} is damaged", path = .path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The start is missing.
    #[error("{path} has no start", path = .path.display())]
    NoStart {
        /// Which.
        path: PathBuf,
    },
}

/// The entries of a segment behind its header, one after the other.
pub struct Reader {
    path: PathBuf,
    header: Header,
    lines: BufReader<Decoder<'static, BufReader<File>>>,
    line: u64,
    text: Vec<u8>,
}

impl Reader {
    /// Opens one and reads its header.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let unreadable = |source| RecordError::File { path: path.to_owned(), source };
        // Whatever else lies there, such as a pipe, might never end.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(unreadable(std::io::Error::new(std::io::ErrorKind::InvalidInput, "no regular file")));
        }
        let decoder = File::open(path).and_then(Decoder::new).map_err(unreadable)?;
        let mut reader = Self {
            path: path.to_owned(),
            header: Header { rules: RULES, version: String::new(), began_at: Timestamp::default() },
            lines: BufReader::new(decoder),
            line: 0,
            text: Vec::new(),
        };
        match reader.entry()? {
            Some(Entry::Header(header)) => Ok(Self { header, ..reader }),
            Some(_) => Err(RecordError::NoStart { path: path.to_owned() }),
            None => Err(RecordError::Empty { path: path.to_owned() }),
        }
    }

    /// Who wrote it.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What to say when the second entry is not the start.
    pub fn no_start(&self) -> RecordError {
        RecordError::NoStart { path: self.path.clone() }
    }

    /// The next entry; `None` at the end, be it torn.
    pub fn entry(&mut self) -> Result<Option<Entry>, RecordError> {
        self.text.clear();
        match self.lines.read_until(b'\n', &mut self.text) {
            Ok(_) if self.text.last() == Some(&b'\n') => {}
            Ok(_) => return Ok(None),
            // The frame goes on where the file ends: it is being written, or its writer was killed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(source) => return Err(RecordError::File { path: self.path.clone(), source }),
        }
        self.line += 1;
        serde_json::from_slice(&self.text).map(Some).map_err(|source| RecordError::Line {
            path: self.path.clone(),
            line: self.line,
            source,
        })
    }
}
