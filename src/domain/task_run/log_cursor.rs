//! How far the log of a task is on the server, and when the next batch goes.

use serde::{Deserialize, Serialize};

/// Where all that a task wrote is, byte for byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WholeLog {
    /// In the stored lines.
    #[default]
    InLines,
    /// In the shim's files, from which it can be put together; the stored lines say less.
    Kept,
    /// In part in the shim's files: the disk was full, or the shim was lost.
    Broken,
}

/// What to do next about a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogStep {
    /// Nothing, or an answer is awaited.
    Wait,
    /// Send what the spool holds from here on.
    Upload { first_n: u64, through_n: u64 },
    /// The program is over and the server has every record.
    Drained,
}

/// One batch is on its way at a time; records count from 1.
#[derive(Debug, Clone)]
pub(super) struct LogCursor {
    next_n: u64,
    available_n: u64,
    uploading: bool,
    closed: bool,
}

impl Default for LogCursor {
    fn default() -> Self {
        Self { next_n: 1, available_n: 0, uploading: false, closed: false }
    }
}

impl LogCursor {
    /// The spool grew.
    pub(super) fn logged(&mut self, through_n: u64) -> LogStep {
        self.available_n = self.available_n.max(through_n);
        self.step()
    }

    /// The program is over; `last_n` is its last record (0 = it wrote none).
    pub(super) fn closed(&mut self, last_n: u64) -> LogStep {
        self.available_n = self.available_n.max(last_n);
        self.closed = true;
        self.step()
    }

    /// The server has everything before `next_n`; after a restart that may be far
    /// ahead of what was sent, and after a gap behind it.
    pub(super) fn acknowledged(&mut self, next_n: u64) -> LogStep {
        self.uploading = false;
        self.next_n = next_n;
        self.step()
    }

    /// The server takes no more.
    pub(super) fn refused(&mut self) -> LogStep {
        self.uploading = false;
        self.next_n = u64::MAX;
        self.step()
    }

    fn step(&mut self) -> LogStep {
        if self.uploading {
            LogStep::Wait
        } else if self.next_n <= self.available_n {
            self.uploading = true;
            LogStep::Upload { first_n: self.next_n, through_n: self.available_n }
        } else if self.closed {
            LogStep::Drained
        } else {
            LogStep::Wait
        }
    }
}
