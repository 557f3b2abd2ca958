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

/// The end of a log, once its program is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogEnd {
    /// Number of the last record in the spool; 0 = none.
    pub last_n: u64,
    /// Records behind it that found no room, of which the spool says nothing.
    pub lost_records: u64,
}

impl LogEnd {
    /// What was lost gets one record in the log, to say so.
    fn through_n(self) -> u64 {
        self.last_n + u64::from(self.lost_records > 0)
    }
}

/// What to do next about a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogStep {
    /// Nothing, or an answer is awaited.
    Wait,
    /// Send what the spool holds from here on.
    Upload { first_n: u64, through_n: u64, end: Option<LogEnd> },
    /// The program is over and the server has every record.
    Drained,
}

/// One batch is on its way at a time; records count from 1.
#[derive(Debug, Clone)]
pub(super) struct LogCursor {
    next_n: u64,
    available_n: u64,
    uploading: bool,
    /// What is next could not be read; it is tried again when there is more.
    stalled: bool,
    end: Option<LogEnd>,
}

impl Default for LogCursor {
    fn default() -> Self {
        Self { next_n: 1, available_n: 0, uploading: false, stalled: false, end: None }
    }
}

impl LogCursor {
    /// The spool grew.
    pub(super) fn logged(&mut self, through_n: u64) -> LogStep {
        if through_n > self.available_n {
            self.available_n = through_n;
            self.stalled = false;
        }
        self.step()
    }

    /// The program is over.
    pub(super) fn closed(&mut self, end: LogEnd) -> LogStep {
        self.available_n = self.available_n.max(end.through_n());
        self.end = Some(end);
        self.step()
    }

    /// What is next cannot be read so far.
    pub(super) fn stalled(&mut self) -> LogStep {
        self.uploading = false;
        self.stalled = true;
        self.step()
    }

    /// Number of the last record of the program, as far as is known.
    pub(super) fn last_n(&self) -> u64 {
        self.end.map_or(self.available_n, |end| end.last_n)
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
        if self.uploading || (self.stalled && self.end.is_none()) {
            LogStep::Wait
        } else if self.next_n <= self.available_n {
            self.uploading = true;
            LogStep::Upload { first_n: self.next_n, through_n: self.available_n, end: self.end }
        } else if self.end.is_some() {
            LogStep::Drained
        } else {
            LogStep::Wait
        }
    }
}
