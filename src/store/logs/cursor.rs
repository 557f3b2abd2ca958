//! Where the log of a job stands: what its next line and each task's next record are numbered, and the last chunk
//! while it is still short.
//!
//! A line every few milliseconds must not make a row each: while a job's last chunk is short, what follows is written
//! into the same row again. So a row holds at least 16 KiB of one task's records before the next begins, at the
//! price of writing a line's short surroundings again with it.

use std::collections::HashMap;

use super::chunk;
use crate::contract::ids::TaskId;
use crate::contract::log::LogRecord;

/// A chunk that has reached this is not written again.
pub const SHORT_BYTES: usize = 16 << 10;
/// A chunk that has reached this takes no further record of the same append: what one read has to unpack at least.
const LONGEST_BYTES: usize = 256 << 10;

/// Records of one task, gapless in both numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Whose.
    pub task_id: TaskId,
    /// Number of the first line in the job.
    pub first_seq: u64,
    /// Number of the last line in the job.
    pub last_seq: u64,
    /// Number of the first record of the task.
    pub first_n: u64,
    /// Number of the last record of the task.
    pub last_n: u64,
    /// The records, not packed.
    pub raw: Vec<u8>,
}

/// Where a job's log stands.
#[derive(Debug, Default)]
pub struct Cursor {
    /// Number of the last line; 0 = none.
    pub last_seq: u64,
    /// Number of each task's last record.
    pub last_n: HashMap<TaskId, u64>,
    /// The last chunk while it is short.
    pub short: Option<Chunk>,
    /// Chunks to write that are not `short` any more.
    pending: Vec<Chunk>,
    short_changed: bool,
}

impl Cursor {
    /// Takes the records it has not seen. Answers the number that the next one must have; if that is below `first_n`,
    /// some are missing in between and nothing was taken, unless all of those are given up (`missing_from_n`).
    pub fn append(
        &mut self,
        task_id: TaskId,
        missing_from_n: Option<u64>,
        first_n: u64,
        records: &[LogRecord],
    ) -> u64 {
        let last_n = self.last_n.entry(task_id).or_default();
        if first_n > *last_n + 1 {
            let given_up = missing_from_n.is_some_and(|from| from <= *last_n + 1);
            if !given_up || records.is_empty() {
                return *last_n + 1;
            }
            *last_n = first_n - 1;
            // A chunk has no gap in its numbers.
            self.close();
        }
        let last_n = self.last_n.entry(task_id).or_default();
        let next_n = *last_n + 1;
        let known = usize::try_from(next_n - first_n).unwrap_or(usize::MAX);
        let Some(fresh) = records.get(known..).filter(|fresh| !fresh.is_empty()) else {
            return next_n;
        };
        *last_n += fresh.len() as u64;
        let answer = *last_n + 1;
        for (n, record) in (next_n..).zip(fresh) {
            self.push(task_id, n, record);
        }
        if self.short.as_ref().is_some_and(|chunk| chunk.raw.len() >= SHORT_BYTES) {
            self.close();
        }
        answer
    }

    fn push(&mut self, task_id: TaskId, n: u64, record: &LogRecord) {
        let full = |chunk: &Chunk| chunk.task_id != task_id || chunk.raw.len() >= LONGEST_BYTES;
        if self.short.as_ref().is_some_and(full) {
            self.close();
        }
        self.last_seq += 1;
        let seq = self.last_seq;
        let chunk = self.short.get_or_insert_with(|| Chunk {
            task_id,
            first_seq: seq,
            last_seq: seq,
            first_n: n,
            last_n: n,
            raw: Vec::new(),
        });
        chunk.last_seq = seq;
        chunk.last_n = n;
        chunk::push(&mut chunk.raw, record);
        self.short_changed = true;
    }

    fn close(&mut self) {
        if let Some(chunk) = self.short.take()
            && std::mem::take(&mut self.short_changed)
        {
            self.pending.push(chunk);
        }
    }

    /// What has to be written since the last call, in order.
    pub fn take_pending(&mut self) -> Vec<Chunk> {
        let mut chunks = std::mem::take(&mut self.pending);
        if std::mem::take(&mut self.short_changed) {
            chunks.extend(self.short.clone());
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::log::Stream;
    use crate::contract::quantity::Timestamp;

    fn lines(count: usize, bytes: usize) -> Vec<LogRecord> {
        let text = "x".repeat(bytes);
        vec![LogRecord { time: Timestamp::default(), stream: Stream::Stdout, text }; count]
    }

    #[test]
    fn known_records_are_dropped_and_gaps_are_told() {
        let (mut cursor, task) = (Cursor::default(), TaskId::from_u128(1));
        assert_eq!(cursor.append(task, None, 1, &lines(3, 1)), 4);
        assert_eq!(cursor.append(task, None, 1, &lines(3, 1)), 4, "a repeat");
        assert_eq!(cursor.append(task, None, 3, &lines(3, 1)), 6, "an overlap");
        assert_eq!(cursor.append(task, None, 9, &lines(1, 1)), 6, "a gap");
        assert_eq!(cursor.append(task, None, 6, &[]), 6, "a question");
        assert_eq!(cursor.last_seq, 5);
    }

    #[test]
    fn what_is_given_up_is_passed_over_and_what_is_known_stays() {
        let (mut cursor, task) = (Cursor::default(), TaskId::from_u128(1));
        assert_eq!(cursor.append(task, None, 1, &lines(3, 1)), 4);
        assert_eq!(cursor.append(task, Some(5), 9, &lines(2, 1)), 4, "4 is not given up");
        assert_eq!(cursor.append(task, Some(4), 9, &[]), 4, "nothing stands for them");
        assert_eq!(cursor.append(task, Some(2), 9, &lines(2, 1)), 11);
        assert_eq!(cursor.append(task, Some(2), 9, &lines(2, 1)), 11, "a repeat");
        assert_eq!(cursor.append(task, Some(2), 5, &lines(2, 1)), 11, "known by now");
        assert_eq!(cursor.last_seq, 5);
        for chunk in cursor.take_pending() {
            assert_eq!(chunk.last_seq - chunk.first_seq, chunk.last_n - chunk.first_n);
        }
    }

    #[test]
    fn short_appends_share_a_row_until_it_is_long_enough() {
        let (mut cursor, task) = (Cursor::default(), TaskId::from_u128(1));
        let mut rows = std::collections::BTreeSet::new();
        for n in 1..=10_000 {
            cursor.append(task, None, n, &lines(1, 20));
            rows.extend(cursor.take_pending().iter().map(|chunk| chunk.first_seq));
        }
        assert!(rows.len() <= 10_000 * 33 / SHORT_BYTES + 1, "{} rows", rows.len());
    }

    #[test]
    fn chunks_hold_one_task_and_stay_readable_in_size() {
        let (mut cursor, a, b) = (Cursor::default(), TaskId::from_u128(1), TaskId::from_u128(2));
        cursor.append(a, None, 1, &lines(1, 10));
        cursor.append(b, None, 1, &lines(40, 60_000));
        cursor.append(a, None, 2, &lines(1, 10));
        let chunks = cursor.take_pending();
        let mut next = 1;
        for chunk in &chunks {
            assert_eq!(chunk.first_seq, next);
            assert_eq!(chunk.last_seq - chunk.first_seq, chunk.last_n - chunk.first_n);
            assert!(chunk.raw.len() < LONGEST_BYTES + 60_100);
            next = chunk.last_seq + 1;
        }
        assert_eq!(next, 43);
        assert!(cursor.take_pending().is_empty());
    }
}
