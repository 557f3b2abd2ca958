//! How much of what a task prints is stored line by line: a burst at once, then so much a second, so that a job that
//! prints for days keeps talking and one that floods costs a bounded disk.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Behind [`LogLimits::full_max_bytes`] the refill is divided by this: some 90 MB a day at the default.
const SLOWER: u64 = 16;

/// How much log a task may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogLimits {
    /// Stored at once before anything is elided.
    pub budget_bytes: u64,
    /// What comes back every second.
    pub refill_bytes_per_s: u64,
    /// Of the whole text that is kept as an artifact, and of the stored lines before they come more slowly.
    pub full_max_bytes: u64,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { budget_bytes: 16 << 20, refill_bytes_per_s: 16 << 10, full_max_bytes: 1 << 30 }
    }
}

/// A bucket of bytes. Time is what has passed since the task began.
#[derive(Debug, Clone)]
pub struct LogBudget {
    limits: LogLimits,
    available_bytes: u64,
    spent_bytes: u64,
    refilled_at: Duration,
}

impl LogBudget {
    /// Full.
    pub fn new(limits: LogLimits) -> Self {
        Self { limits, available_bytes: limits.budget_bytes, spent_bytes: 0, refilled_at: Duration::ZERO }
    }

    /// Takes so many bytes if they are there.
    pub fn take(&mut self, bytes: u64, at: Duration) -> bool {
        // Most tasks never come near the end of their burst: no clock arithmetic for them.
        if self.available_bytes < bytes {
            self.refill(at);
            if self.available_bytes < bytes {
                return false;
            }
        }
        self.spend(bytes);
        true
    }

    /// Takes so many bytes whether they are there or not: a mark, the last lines.
    pub fn spend(&mut self, bytes: u64) {
        self.available_bytes = self.available_bytes.saturating_sub(bytes);
        self.spent_bytes = self.spent_bytes.saturating_add(bytes);
    }

    /// What is there.
    pub fn available_bytes(&mut self, at: Duration) -> u64 {
        self.refill(at);
        self.available_bytes
    }

    fn refill(&mut self, at: Duration) {
        let slower = if self.spent_bytes < self.limits.full_max_bytes { 1 } else { SLOWER };
        let rate = u128::from(self.limits.refill_bytes_per_s / slower);
        let Some(passed) = at.checked_sub(self.refilled_at).filter(|_| rate > 0) else { return };
        let bytes = passed.as_micros() * rate / 1_000_000;
        // Only the time whose bytes were counted has been used up, however often this is asked.
        let micros = u64::try_from(bytes * 1_000_000 / rate).unwrap_or(u64::MAX);
        self.refilled_at += Duration::from_micros(micros);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.available_bytes = self.available_bytes.saturating_add(bytes).min(self.limits.budget_bytes);
    }
}

/// What stands in a log where lines were left out.
pub fn elision_mark(lines: u64, bytes: u64, kept: Kept) -> String {
    let kept = match kept {
        Kept::Whole => "the whole text is kept: gpulayer logs --full",
        Kept::UpToTheLimit => "the log artifact ends before or among them, at log_full_max_bytes",
        Kept::InPart => "they are missing from the log artifact too: the worker could not write it",
    };
    format!("… {}, {} elided here; {kept} …", counted_lines(lines), size(bytes))
}

/// What became of the text that was left out of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It is in the artifact.
    Whole,
    /// The artifact was full before.
    UpToTheLimit,
    /// The disk was full before.
    InPart,
}

/// `48,112 lines`, `1 line`.
pub fn counted_lines(lines: u64) -> String {
    if lines == 1 { "1 line".to_owned() } else { format!("{} lines", grouped(lines)) }
}

/// `48,112`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `9.1 MB`, in whole tenths.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let (mut tenths, mut unit) = (bytes / 100, 0);
    while tenths >= 10_000 && unit + 1 < UNITS.len() {
        tenths /= 1000;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: LogLimits = LogLimits { budget_bytes: 1000, refill_bytes_per_s: 100, full_max_bytes: 5000 };

    #[test]
    fn a_burst_then_a_trickle() {
        let mut budget = LogBudget::new(LIMITS);
        assert!(budget.take(1000, Duration::ZERO));
        assert!(!budget.take(1, Duration::ZERO));
        assert!(!budget.take(101, Duration::from_secs(1)));
        assert!(budget.take(100, Duration::from_secs(1)));
        assert_eq!(budget.available_bytes(Duration::from_secs(1000)), 1000, "never more than a burst");
    }

    #[test]
    fn a_mark_says_how_much_and_where_it_is() {
        assert_eq!(
            elision_mark(48_112, 9_143_000, Kept::Whole),
            "… 48,112 lines, 9.1 MB elided here; the whole text is kept: gpulayer logs --full …"
        );
        assert!(
            elision_mark(0, 999, Kept::UpToTheLimit).starts_with("… 0 lines, 999 B elided here; the log")
        );
        assert!(
            elision_mark(1_000_000, 2_000_000_000, Kept::InPart).starts_with("… 1,000,000 lines, 2.0 GB")
        );
    }

    #[test]
    fn behind_the_whole_size_it_trickles_more_slowly() {
        let mut budget = LogBudget::new(LIMITS);
        budget.spend(5000);
        assert_eq!(budget.available_bytes(Duration::from_secs(10)), 60);
    }

    proptest! {
        #[test]
        fn what_passes_is_bounded_however_often_it_is_asked(
            asks in prop::collection::vec((0u64..40, 0u64..50_000), 1..400)
        ) {
            let (mut budget, mut micros, mut passed) = (LogBudget::new(LIMITS), 0, 0);
            for (bytes, pause) in asks {
                micros += pause;
                if budget.take(bytes, Duration::from_micros(micros)) { passed += bytes; }
            }
            prop_assert!(passed <= 1000 + micros * 100 / 1_000_000);
        }
    }
}
