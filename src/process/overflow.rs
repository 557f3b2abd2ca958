//! The overflow file: from the first line that is left out of the spool on, all the bytes a program wrote, compressed
//! as they come. It takes up to so many bytes, then a mark, and then counts only.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use zstd::stream::write::Encoder;

use super::OVERFLOW_FILE;
use super::remark::remark;
use crate::domain::log_budget::Kept;

/// Level 1: it shares the machine with the program whose words these are.
pub(super) const ZSTD_LEVEL: i32 = 1;
/// What stands at the end of a text that was longer than the limit.
const FULL_MARK: &str = "\n[gpulayer: the text goes on; log_full_max_bytes was reached here]\n";

/// The shim's end.
pub(super) struct Overflow {
    state: State,
    left_bytes: u64,
}

enum State {
    Open(Box<Encoder<'static, File>>),
    /// The limit was reached; the frame is whole.
    Full,
    /// The disk was full, or worse; the frame ends somewhere.
    Broken,
}

impl Overflow {
    /// Begins the file; a failure is remarked on, and what the file should hold is only counted.
    pub(super) fn begin(task_folder: &Path, left_bytes: u64) -> Self {
        let begun = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(task_folder.join(OVERFLOW_FILE))
            .and_then(|file| Encoder::new(file, ZSTD_LEVEL));
        let state = begun.map_or_else(broken, |encoder| State::Open(Box::new(encoder)));
        Self { state, left_bytes }
    }

    /// Takes bytes of the program.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let State::Open(encoder) = &mut self.state else { return };
        let room = usize::try_from(self.left_bytes).unwrap_or(usize::MAX);
        let written = if bytes.len() <= room {
            self.left_bytes -= bytes.len() as u64;
            encoder.write_all(bytes)
        } else {
            encoder.write_all(&bytes[..room]).and_then(|()| encoder.write_all(FULL_MARK.as_bytes()))
        };
        match written {
            Ok(()) if bytes.len() <= room => {}
            Ok(()) => self.state = encoder.do_finish().map_or_else(broken, |()| State::Full),
            Err(error) => self.state = broken(error),
        }
    }

    /// What becomes of what is written now.
    pub(super) fn kept(&self) -> Kept {
        match self.state {
            State::Open(_) => Kept::Whole,
            State::Full => Kept::UpToTheLimit,
            State::Broken => Kept::InPart,
        }
    }

    /// Completes the file; whether it is whole up to where it should end.
    pub(super) fn finish(&mut self) -> bool {
        if let State::Open(encoder) = &mut self.state {
            self.state = encoder.do_finish().map_or_else(broken, |()| State::Full);
        }
        matches!(self.state, State::Full)
    }
}

fn broken(error: io::Error) -> State {
    remark(format_args!("the text of a log that is too long for its lines cannot be kept: {error}"));
    State::Broken
}
