//! What a task prints, on its way to the spool: lines, their budget, and what happens beyond it.
//!
//! Within the budget every record goes to the spool with exactly its bytes. The first that does not fit begins a
//! flood: from then on all bytes go to the overflow file, only the newest lines are kept in memory, and now and
//! then, and at the end, a mark and as many of them as the budget allows go to the spool. A flood is over when
//! nothing had to be left out for a while. The spool up to there and the overflow file are together what the program
//! wrote.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::lines::{Close, Lines, folded, is_shown_otherwise};
use super::overflow::Overflow;
use super::spool::{HEAD_BYTES, Mark, Spool};
use super::tail::{TAIL_BYTES, Tail};
use crate::contract::log::Stream;
use crate::contract::quantity::Timestamp;
use crate::domain::log_budget::{Kept, LogBudget, LogLimits, elision_mark};
use crate::domain::task_run::WholeLog;

/// Between snapshots of a line that redraws itself; grows up to the second, so that a day of progress bar stays
/// a few thousand lines.
const SNAPSHOT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Between looks at a flood; grows up to the second.
const GLIMPSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// What a mark costs at most.
const MARK_COST_BYTES: u64 = 192;

/// A moment, on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) time: Timestamp,
    pub(super) at: Instant,
}

/// A timer that fires more and more rarely.
struct Rarer {
    limits: (Duration, Duration),
    every: Duration,
    due: Option<Instant>,
}

impl Rarer {
    fn new(limits: (Duration, Duration)) -> Self {
        Self { limits, every: limits.0, due: None }
    }

    fn arm(&mut self, at: Instant) {
        if self.due.is_none() {
            self.due = Some(at + self.every);
        }
    }

    fn fires(&mut self, at: Instant) -> bool {
        let fires = self.due.is_some_and(|due| at >= due);
        if fires {
            self.due = None;
            self.every = (self.every * 5 / 4).min(self.limits.1);
        }
        fires
    }

    fn reset(&mut self) {
        (self.due, self.every) = (None, self.limits.0);
    }
}

/// Both streams of one task.
pub(super) struct Recorder {
    lines: [Lines; 2],
    keeper: Keeper,
    snapshot: Rarer,
}

/// Where records go.
struct Keeper {
    task_folder: PathBuf,
    limits: LogLimits,
    began: Instant,
    spool: Spool,
    budget: LogBudget,
    /// Of all records before the first that was left out.
    whole_bytes: u64,
    /// Whether a stored line says less than its bytes.
    differs: bool,
    /// From the first record that was left out on.
    overflow: Option<Overflow>,
    flood: bool,
    /// One for each stream: what floods the one must not hide the last words of the other.
    tails: [Tail; 2],
    glimpse: Rarer,
}

impl Recorder {
    pub(super) fn new(task_folder: &Path, limits: LogLimits) -> Self {
        Self {
            lines: [Lines::new(Stream::Stdout), Lines::new(Stream::Stderr)],
            keeper: Keeper {
                task_folder: task_folder.to_owned(),
                limits,
                began: Instant::now(),
                spool: Spool::new(task_folder),
                budget: LogBudget::new(limits),
                whole_bytes: 0,
                differs: false,
                overflow: None,
                flood: false,
                tails: Default::default(),
                glimpse: Rarer::new(GLIMPSE),
            },
            snapshot: Rarer::new(SNAPSHOT),
        }
    }

    /// Number of the newest record that can be read from the spool.
    pub(super) fn last_n(&self) -> u64 {
        self.keeper.spool.last_n()
    }

    /// Takes what was read from a pipe: 0 is standard output, 1 standard error.
    pub(super) fn take(&mut self, index: usize, bytes: &[u8], now: Moment) {
        let Some(lines) = self.lines.get_mut(index) else { return };
        let keeper = &mut self.keeper;
        if keeper.flood {
            lines.feed_together(bytes, |stream, close, piece| {
                keeper.leave_out(stream, close, piece, now.time)
            });
        } else {
            lines.feed(bytes, |stream, close, line| keeper.record(stream, close, line, now));
        }
    }

    /// A pipe has come to its end.
    pub(super) fn close(&mut self, index: usize, now: Moment) {
        let Some(lines) = self.lines.get_mut(index) else { return };
        lines.finish(|stream, close, line| self.keeper.record(stream, close, line, now));
    }

    /// Writes what was taken.
    pub(super) fn flush(&mut self, now: Moment) {
        self.keeper.spool.flush(now.time);
        if !self.lines.iter().any(Lines::is_redrawing) {
            self.snapshot.reset();
        } else {
            self.snapshot.arm(now.at);
        }
    }

    /// The next moment at which [`Recorder::on_time`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.snapshot.due, self.keeper.glimpse.due].into_iter().flatten().min()
    }

    /// Does what is due.
    pub(super) fn on_time(&mut self, now: Moment) {
        if self.snapshot.fires(now.at) {
            for lines in &mut self.lines {
                lines.snapshot(|stream, close, line| self.keeper.record(stream, close, line, now));
            }
        }
        if self.keeper.glimpse.fires(now.at) {
            self.keeper.look_at_flood(now);
        }
        self.flush(now);
    }

    /// Completes the files, and says what they are.
    pub(super) fn finish(&mut self, now: Moment) -> WholeLog {
        for index in 0..self.lines.len() {
            self.close(index, now);
        }
        let keeper = &mut self.keeper;
        if keeper.flood {
            keeper.show_newest(TAIL_BYTES as u64 * 4, now);
        }
        let lost = keeper.spool.has_lost();
        keeper.spool.finish(now.time);
        let whole = keeper.overflow.as_mut().map(Overflow::finish);
        match whole {
            Some(false) => WholeLog::Broken,
            Some(true) => WholeLog::Kept,
            None if keeper.differs || lost => WholeLog::Kept,
            None => WholeLog::InLines,
        }
    }
}

impl Recorder {
    /// Records at the end that could not be written, nor could the mark that counts them; and why.
    pub(super) fn lost_records(&self) -> (u64, &str) {
        self.keeper.spool.lost()
    }
}

impl Keeper {
    fn record(&mut self, stream: Stream, close: Close, bytes: &[u8], now: Moment) {
        if self.flood {
            return self.leave_out_one(stream, close, bytes, now.time);
        }
        let shown = if self.overflow.is_some() { folded(bytes) } else { bytes };
        let cost = (HEAD_BYTES + shown.len()) as u64;
        if !self.budget.take(cost, now.at.saturating_duration_since(self.began)) {
            self.flood = true;
            let left = self.limits.full_max_bytes.saturating_sub(self.whole_bytes);
            self.overflow.get_or_insert_with(|| Overflow::begin(&self.task_folder, left));
            self.glimpse.arm(now.at);
            return self.leave_out_one(stream, close, bytes, now.time);
        }
        match &mut self.overflow {
            Some(overflow) => {
                overflow.write(bytes);
                overflow.write(close.bytes());
            }
            None => {
                self.whole_bytes += (bytes.len() + close.bytes().len()) as u64;
                self.differs = self.differs || is_shown_otherwise(close, bytes);
            }
        }
        let mark = if self.overflow.is_some() { Mark::Overflowed } else { Mark::None };
        self.spool.push(now.time, (stream, close), mark, shown);
    }

    fn leave_out_one(&mut self, stream: Stream, close: Close, bytes: &[u8], time: Timestamp) {
        self.leave_out(stream, close, &[bytes, close.bytes()].concat(), time);
    }

    /// Takes whole lines with their line ends, or a part of a line.
    fn leave_out(&mut self, stream: Stream, close: Close, piece: &[u8], time: Timestamp) {
        if let Some(overflow) = &mut self.overflow {
            overflow.write(piece);
        }
        let [stdout, stderr] = &mut self.tails;
        let tail = if stream == Stream::Stderr { stderr } else { stdout };
        tail.push(time, stream, close, piece);
    }

    fn look_at_flood(&mut self, now: Moment) {
        let at = now.at.saturating_duration_since(self.began);
        let available = self.budget.available_bytes(at);
        if available > MARK_COST_BYTES {
            self.flood = self.show_newest(available - MARK_COST_BYTES, now);
        }
        if self.flood { self.glimpse.arm(now.at) } else { self.glimpse.reset() }
    }

    /// Puts the newest lines into the spool, with a mark before them if any were left out; whether they were.
    fn show_newest(&mut self, budget_bytes: u64, now: Moment) -> bool {
        let [stdout, stderr] = &mut self.tails;
        let of_stderr = stderr.take(budget_bytes / 2);
        let mut newest = stdout.take(budget_bytes - of_stderr.cost_bytes);
        newest.join(of_stderr);
        let left_out = newest.left_out_bytes > 0;
        if left_out {
            let kept = self.overflow.as_ref().map_or(Kept::InPart, Overflow::kept);
            let mark = elision_mark(newest.left_out_lines, newest.left_out_bytes, kept);
            self.budget.spend((HEAD_BYTES + mark.len()) as u64);
            self.spool.say(now.time, Mark::Overflowed, &mark);
        }
        for line in &newest.lines {
            self.budget.spend((HEAD_BYTES + line.shown.len()) as u64);
            self.spool.push(line.time, (line.stream, line.close), Mark::Overflowed, &line.shown);
        }
        left_out
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::super::{SpoolReader, write_whole_log};
    use super::*;

    fn moment(began: Instant, millis: u64) -> Moment {
        let time = Timestamp::from_micros(millis as i64 * 1000);
        Moment { time, at: began + Duration::from_millis(millis) }
    }

    fn texts(folder: &Path) -> Vec<(Stream, String)> {
        let records = SpoolReader::open(folder).read(usize::MAX, usize::MAX).unwrap().records;
        records.into_iter().map(|record| (record.stream, record.text)).collect()
    }

    fn whole(folder: &Path, whole_log: WholeLog) -> Option<Vec<u8>> {
        let file = write_whole_log(folder, whole_log).unwrap()?;
        let mut text = Vec::new();
        zstd::stream::read::Decoder::new(file).unwrap().read_to_end(&mut text).unwrap();
        Some(text)
    }

    fn number_before(mark: &str, word: &str) -> u64 {
        let words: Vec<&str> = mark.split(' ').collect();
        let at = words.iter().position(|one| one.starts_with(word)).unwrap();
        words[at - 1].replace(',', "").parse().unwrap()
    }

    #[test]
    fn what_the_lines_say_in_full_is_not_kept_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(folder.path(), LogLimits::default());
        let now = moment(Instant::now(), 0);
        recorder.take(0, "one\ntwø\nno end".as_bytes(), now);
        assert_eq!(recorder.finish(now), WholeLog::InLines);
        assert_eq!(texts(folder.path()).len(), 3);
        assert_eq!(whole(folder.path(), WholeLog::Broken), None, "nor after a lost shim");
    }

    #[test]
    fn a_talker_after_a_flood_is_heard_again_and_all_of_it_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let limits = LogLimits { budget_bytes: 2000, refill_bytes_per_s: 1000, ..LogLimits::default() };
        let mut recorder = Recorder::new(folder.path(), limits);
        let began = Instant::now();
        let flood = b"flood\n".repeat(5000);
        recorder.take(0, &flood, moment(began, 0));
        for second in 1..60 {
            recorder.on_time(moment(began, second * 1000));
        }
        recorder.take(1, b"calm\r\n", moment(began, 60_500));
        recorder.flush(moment(began, 60_500));
        assert_eq!(texts(folder.path()).last(), Some(&(Stream::Stderr, "calm".to_owned())));
        assert_eq!(recorder.finish(moment(began, 61_000)), WholeLog::Kept);
        let marks = texts(folder.path()).into_iter().filter(|(stream, _)| *stream == Stream::System).count();
        assert_eq!(marks, 1);
        assert_eq!(whole(folder.path(), WholeLog::Kept).unwrap(), [flood.as_slice(), b"calm\r\n"].concat());
    }

    #[test]
    fn a_flood_of_one_stream_does_not_hide_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder =
            Recorder::new(folder.path(), LogLimits { budget_bytes: 500, ..LogLimits::default() });
        let began = Instant::now();
        recorder.take(0, &b"flood\n".repeat(50_000), moment(began, 0));
        recorder.take(1, b"Traceback: why\n", moment(began, 1));
        recorder.take(0, &[b"flood\n".repeat(50_000).as_slice(), b"LAST\n"].concat(), moment(began, 2));
        recorder.finish(moment(began, 3));
        let texts = texts(folder.path());
        assert_eq!(texts.last().unwrap(), &(Stream::Stdout, "LAST".to_owned()));
        assert!(texts.contains(&(Stream::Stderr, "Traceback: why".to_owned())));
    }

    #[test]
    fn the_whole_text_ends_at_its_limit_and_the_marks_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let limits = LogLimits { budget_bytes: 500, refill_bytes_per_s: 0, full_max_bytes: 1000 };
        let mut recorder = Recorder::new(folder.path(), limits);
        let now = moment(Instant::now(), 0);
        recorder.take(0, &b"0123456789\n".repeat(200_000), now);
        recorder.take(0, b"LAST\n", now);
        assert_eq!(recorder.finish(now), WholeLog::Kept);
        let texts = texts(folder.path());
        assert_eq!(texts.last().unwrap().1, "LAST");
        assert!(texts.iter().any(|(_, text)| text.contains("log_full_max_bytes")));
        let whole = String::from_utf8(whole(folder.path(), WholeLog::Kept).unwrap()).unwrap();
        assert!(whole.starts_with(&"0123456789\n".repeat(90)) && whole.len() < 1100, "{}", whole.len());
        assert!(whole.ends_with("log_full_max_bytes was reached here]\n"));
    }

    #[test]
    fn a_log_that_cannot_be_written_says_so_later_and_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(&folder.path().join("absent"), LogLimits::default());
        let now = moment(Instant::now(), 0);
        recorder.take(0, &b"some line\n".repeat(3_000_000), now);
        std::fs::create_dir(folder.path().join("absent")).unwrap();
        recorder.take(0, b"LAST\n", now);
        assert_eq!(recorder.finish(now), WholeLog::Broken);
        let texts = texts(&folder.path().join("absent"));
        assert!(
            texts[0].1.ends_with("lines missing here: the task's folder on the worker was gone"),
            "{}",
            texts[0].1
        );
        assert_eq!(texts.last().unwrap().1, "LAST");
    }

    #[test]
    fn a_frame_that_was_cut_off_is_salvaged() {
        let folder = tempfile::tempdir().unwrap();
        let limits = LogLimits { budget_bytes: 100, ..LogLimits::default() };
        let mut recorder = Recorder::new(folder.path(), limits);
        let now = moment(Instant::now(), 0);
        let mut noise = 1u32;
        let line = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            format!("{noise:x}\n")
        };
        let text: String = std::iter::repeat_with(line).take(100_000).collect();
        recorder.take(0, text.as_bytes(), now);
        recorder.flush(now);
        drop(recorder);
        let whole = String::from_utf8(whole(folder.path(), WholeLog::Broken).unwrap()).unwrap();
        let kept = whole.strip_suffix("\n[gpulayer: the rest of the text is lost]\n").unwrap();
        assert!(text.starts_with(kept));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        #[test]
        fn the_files_hold_every_byte_and_the_marks_count_every_line(
            pieces in prop::collection::vec((0u8..6, 1usize..9000), 0..14),
            chunk in 1usize..5000, budget in 0u64..60_000, refill in 0u64..5000, pause in 0u64..900,
        ) {
            let mut input = Vec::new();
            for (kind, size) in pieces {
                let unit: &[u8] = [
                    b"line\n".as_slice(), "ünïcødé 🚀\n".as_bytes(), b"\xff\0\xfe\n", b"\r10%\r20%", b"y", b"\n"
                ][kind as usize];
                input.extend(unit.repeat(size / unit.len() + 1));
            }
            let folder = tempfile::tempdir().unwrap();
            let limits = LogLimits { budget_bytes: budget, refill_bytes_per_s: refill, full_max_bytes: 1 << 30 };
            let mut recorder = Recorder::new(folder.path(), limits);
            let (began, mut millis) = (Instant::now(), 0);
            for chunk in input.chunks(chunk) {
                millis += pause;
                let now = moment(began, millis);
                recorder.take(0, chunk, now);
                recorder.flush(now);
                if recorder.deadline().is_some_and(|due| due <= now.at) { recorder.on_time(now); }
            }
            let kept = recorder.finish(moment(began, millis));
            let texts = texts(folder.path());
            prop_assert_eq!(texts.len() as u64, recorder.last_n());
            let marks: Vec<&str> =
                texts.iter().filter(|(stream, _)| *stream == Stream::System).map(|(_, text)| text.as_str()).collect();
            match whole(folder.path(), kept) {
                Some(text) => prop_assert!(text == input),
                None => {
                    let mut lines: Vec<u8> = texts.iter().flat_map(|(_, text)| [text.as_bytes(), b"\n"].concat()).collect();
                    if !input.ends_with(b"\n") { lines.pop(); }
                    prop_assert!(lines == input);
                }
            }
            if !input.contains(&b'\r') && !input.contains(&b'y') {
                let elided: u64 = marks.iter().map(|mark| number_before(mark, "line")).sum();
                let ends = input.split_inclusive(|byte| *byte == b'\n').count() as u64;
                prop_assert_eq!(elided + (texts.len() - marks.len()) as u64, ends);
            }
        }
    }
}
