//! What the record's thread does with what it is given.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use tracing::warn;

use super::RecordingOptions;
use super::segment::{OpenSegment, mark, number, segments};
use crate::clock;
use crate::domain::placement::Placer;
use crate::domain::placement::replay::{Entry, Header, RULES};

/// A segment is this part of all that may be kept, its start apart: the oldest that goes takes no more with it.
const PARTS: u64 = 8;
/// On-demand daemons that come and go make small ones.
const MOST_SEGMENTS: usize = 1_000;

/// See the module.
pub(super) struct Writer {
    options: RecordingOptions,
    open: Option<OpenSegment>,
    /// Segments that have ended, the oldest first, with their sizes.
    ended: VecDeque<(PathBuf, u64)>,
    next_number: u64,
    /// A segment whose last mark the disk did not take yet.
    unmarked: Option<(PathBuf, u64, String)>,
    start_wanted: bool,
    resting_since: Option<Instant>,
}

impl Writer {
    pub(super) fn new(options: RecordingOptions) -> Self {
        let paths = segments(&options.folder).unwrap_or_else(|error| {
            warn!(%error, folder = %options.folder.display(), "the record of scheduling cannot be listed");
            Vec::new()
        });
        let next_number = paths.last().and_then(|path| number(path)).map_or(1, |last| last + 1);
        let sized = |path: PathBuf| {
            let bytes = path.metadata().map_or(0, |metadata| metadata.len());
            (path, bytes)
        };
        Self {
            options,
            open: None,
            ended: paths.into_iter().map(sized).collect(),
            next_number,
            unmarked: None,
            start_wanted: false,
            resting_since: None,
        }
    }

    /// Takes one entry; without a segment it is lost, unless it starts one.
    pub(super) fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Start(placer) => self.begin(placer),
            entry => {
                let added = self.open.as_mut().map_or(Ok(()), |segment| segment.add(&entry));
                self.rest_after(added);
            }
        }
    }

    /// Writes what was taken, and drops what is too much.
    pub(super) fn flush(&mut self) {
        let flushed = self.open.as_mut().map_or(Ok(()), OpenSegment::flush);
        self.rest_after(flushed);
        self.drop_oldest();
        let Some(open) = &self.open else { return };
        if open.bytes() > self.options.max_bytes {
            self.cut("this segment alone is larger than `scheduling_record_max_bytes`");
            self.resting_since = Some(Instant::now());
        } else if open.bytes() > (self.options.max_bytes / PARTS).max(2 * open.start_bytes()) {
            self.start_wanted = true;
        }
    }

    /// Whether a new segment has to be started. Says so once.
    pub(super) fn wants_start(&mut self) -> bool {
        if self.resting_since.is_some_and(|since| since.elapsed() >= self.options.rest) {
            self.resting_since = None;
            self.start_wanted = true;
        }
        std::mem::take(&mut self.start_wanted)
    }

    /// Ends the segment because what comes next is missing.
    pub(super) fn cut(&mut self, why: &str) {
        if self.open.is_some() {
            self.end(&Entry::Cut { why: why.to_owned() });
        }
        self.start_wanted = true;
    }

    /// Ends the segment because the server stops.
    pub(super) fn close(&mut self) {
        self.end(&Entry::Closed);
    }

    fn begin(&mut self, placer: Box<Placer>) {
        self.end(&Entry::Closed);
        if let Some((path, bytes, why)) = self.unmarked.take() {
            let bytes = mark(&path, bytes, &Entry::Cut { why }).unwrap_or(bytes);
            self.ended.push_back((path, bytes));
        }
        let header =
            Header { rules: RULES, version: env!("CARGO_PKG_VERSION").to_owned(), began_at: clock::now() };
        let first = [Entry::Header(header), Entry::Start(placer)];
        let number = self.next_number;
        self.next_number += 1;
        match OpenSegment::create(&self.options.folder, number, &first) {
            Ok(segment) => self.open = Some(segment),
            Err(error) => self.rest(&error),
        }
    }

    fn end(&mut self, last: &Entry) {
        let Some(mut open) = self.open.take() else { return };
        match open.finish(last) {
            Ok(bytes) => self.ended.push_back((open.path().to_owned(), bytes)),
            Err(error) => self.give_up(&open, &error),
        }
    }

    fn rest_after(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome
            && let Some(open) = self.open.take()
        {
            self.give_up(&open, &error);
        }
    }

    fn give_up(&mut self, segment: &OpenSegment, error: &io::Error) {
        let (path, bytes, why) = (segment.path().to_owned(), segment.bytes(), error.to_string());
        match mark(&path, bytes, &Entry::Cut { why: why.clone() }) {
            Ok(bytes) => self.ended.push_back((path, bytes)),
            Err(_) => self.unmarked = Some((path, bytes, why)),
        }
        self.rest(error);
    }

    fn rest(&mut self, error: &io::Error) {
        warn!(
            %error,
            folder = %self.options.folder.display(),
            "what the scheduler is told cannot be recorded; it is tried again in a minute"
        );
        self.resting_since = Some(Instant::now());
    }

    fn drop_oldest(&mut self) {
        let open = self.open.as_ref().map_or(0, OpenSegment::bytes);
        let mut bytes = open + self.ended.iter().map(|(_, bytes)| bytes).sum::<u64>();
        while bytes > self.options.max_bytes || self.ended.len() >= MOST_SEGMENTS {
            let Some((path, size)) = self.ended.pop_front() else { return };
            bytes -= size;
            // One that somebody else removed is gone as well.
            let _ = std::fs::remove_file(path);
        }
    }
}
