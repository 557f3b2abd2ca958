//! The newest lines of a flood, of each stream: what is kept of a task's words while they come faster than its budget.

use std::collections::VecDeque;
use std::ops::Range;

use memchr::{memchr, memchr_iter};

use super::lines::{Close, Lines, folded};
use super::spool::HEAD_BYTES;
use crate::contract::log::Stream;
use crate::contract::quantity::Timestamp;

/// How much of a flood is kept to be shown.
pub(super) const TAIL_BYTES: usize = 64 << 10;
/// Pieces of one stream are joined while they come this close together and stay this short.
const JOINED: (i64, usize) = (50_000, 8 << 10);

/// Whole lines of one stream, in a row.
struct Piece {
    time: Timestamp,
    stream: Stream,
    /// Of its last record.
    close: Close,
    bytes: Vec<u8>,
}

/// A ring of one stream's lines.
#[derive(Default)]
pub(super) struct Tail {
    pieces: VecDeque<Piece>,
    held_bytes: usize,
    lines: u64,
    bytes: u64,
}

/// One line as it will be stored.
pub(super) struct Line {
    pub(super) time: Timestamp,
    pub(super) stream: Stream,
    pub(super) close: Close,
    /// As it is seen: of a redrawn line what was drawn last.
    pub(super) shown: Vec<u8>,
    raw_bytes: u64,
}

/// What comes out of a flood when it is looked at: how much is left out, then its newest lines.
pub(super) struct Newest {
    pub(super) left_out_lines: u64,
    pub(super) left_out_bytes: u64,
    pub(super) lines: Vec<Line>,
    /// What the lines cost in the spool.
    pub(super) cost_bytes: u64,
}

impl Newest {
    /// Puts another stream's lines among these, by their time.
    pub(super) fn join(&mut self, other: Newest) {
        self.left_out_lines += other.left_out_lines;
        self.left_out_bytes += other.left_out_bytes;
        self.cost_bytes += other.cost_bytes;
        self.lines.extend(other.lines);
        self.lines.sort_by_key(|line| line.time);
    }
}

impl Tail {
    /// Takes whole lines with their line ends, or a part of a line.
    pub(super) fn push(&mut self, time: Timestamp, stream: Stream, close: Close, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.lines += memchr_iter(b'\n', bytes).count() as u64 + u64::from(close == Close::Unended);
        let mut kept = bytes;
        if bytes.len() > TAIL_BYTES {
            self.pieces.clear();
            self.held_bytes = 0;
            kept = newest(bytes, TAIL_BYTES);
        }
        self.held_bytes += kept.len();
        match self.pieces.back_mut() {
            Some(last)
                if last.stream == stream
                    && last.close == Close::Line
                    && last.bytes.len() + kept.len() <= JOINED.1
                    && time.micros() - last.time.micros() < JOINED.0 =>
            {
                last.bytes.extend_from_slice(kept);
                last.close = close;
            }
            _ => {
                let mut piece = Piece { time, stream, close, bytes: self.spare() };
                piece.bytes.extend_from_slice(kept);
                self.pieces.push_back(piece);
            }
        }
        self.shed();
    }

    /// The buffer of a piece that has to go anyway: a flood allocates nothing.
    fn spare(&mut self) -> Vec<u8> {
        let first = self.pieces.front().map_or(0, |piece| piece.bytes.len());
        if first == 0 || self.held_bytes < TAIL_BYTES + first {
            return Vec::new();
        }
        let mut bytes = self.pieces.pop_front().map_or_else(Vec::new, |piece| piece.bytes);
        self.held_bytes -= bytes.len();
        bytes.clear();
        bytes
    }

    fn shed(&mut self) {
        while self.pieces.len() > 1 {
            let first = self.pieces.front().map_or(0, |piece| piece.bytes.len());
            if self.held_bytes < TAIL_BYTES + first {
                return;
            }
            self.held_bytes -= first;
            self.pieces.pop_front();
        }
    }

    /// Takes everything out: as many of the newest lines as cost at most `budget_bytes`, and the count of the rest.
    pub(super) fn take(&mut self, budget_bytes: u64) -> Newest {
        let mut lines = Vec::new();
        for piece in self.pieces.drain(..) {
            split(&piece, &mut lines);
        }
        let (mut cost_bytes, mut fit) = (0, 0);
        for line in lines.iter().rev() {
            let cost = cost_bytes + (HEAD_BYTES + line.shown.len()) as u64;
            if cost > budget_bytes {
                break;
            }
            (cost_bytes, fit) = (cost, fit + 1);
        }
        lines.drain(..lines.len() - fit);
        let shown_bytes: u64 = lines.iter().map(|line| line.raw_bytes).sum();
        let shown_lines = lines.iter().filter(|line| line.close.ends_line()).count() as u64;
        let newest = Newest {
            left_out_lines: self.lines.saturating_sub(shown_lines),
            left_out_bytes: self.bytes.saturating_sub(shown_bytes),
            lines,
            cost_bytes,
        };
        (self.held_bytes, self.lines, self.bytes) = (0, 0, 0);
        newest
    }
}

/// The last bytes, from the beginning of a line if there is one.
fn newest(bytes: &[u8], most: usize) -> &[u8] {
    let Range { start, end } = bytes.len() - most..bytes.len();
    // One byte earlier: a line may begin exactly there.
    match memchr(b'\n', &bytes[start - 1..end - 1]) {
        Some(before) => &bytes[start + before..],
        None => &bytes[start..],
    }
}

fn split(piece: &Piece, into: &mut Vec<Line>) {
    let mut emit = |stream, close: Close, bytes: &[u8]| {
        into.push(Line {
            time: piece.time,
            stream,
            close,
            shown: folded(bytes).to_vec(),
            raw_bytes: (bytes.len() + close.bytes().len()) as u64,
        });
    };
    let mut lines = Lines::new(piece.stream);
    lines.feed(&piece.bytes, &mut emit);
    lines.finish(|stream, _, bytes| {
        let bytes =
            if piece.close == Close::Redrawn { bytes.strip_suffix(b"\r").unwrap_or(bytes) } else { bytes };
        emit(stream, piece.close, bytes);
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: Timestamp = Timestamp::from_micros(7);

    #[test]
    fn the_newest_lines_fit_and_the_rest_is_counted() {
        let mut tail = Tail::default();
        for n in 0..100 {
            tail.push(AT, Stream::Stdout, Close::Line, format!("line {n:02}\n").as_bytes());
        }
        let newest = tail.take(3 * (13 + 7));
        let texts: Vec<&[u8]> = newest.lines.iter().map(|line| line.shown.as_slice()).collect();
        assert_eq!(texts, [b"line 97", b"line 98", b"line 99"]);
        assert_eq!((newest.left_out_lines, newest.left_out_bytes), (97, 97 * 8));
        let empty = tail.take(u64::MAX);
        assert_eq!((empty.lines.len(), empty.left_out_bytes), (0, 0));
    }

    #[test]
    fn a_large_piece_keeps_whole_lines() {
        let mut tail = Tail::default();
        let flood = b"0123456789\n".repeat(20_000);
        tail.push(AT, Stream::Stdout, Close::Line, &flood);
        let newest = tail.take(u64::MAX);
        assert_eq!(newest.lines.len(), TAIL_BYTES / 11);
        assert!(newest.lines.iter().all(|line| line.shown == b"0123456789"));
        assert_eq!(newest.left_out_lines, 20_000 - newest.lines.len() as u64);
    }

    proptest! {
        #[test]
        fn nothing_goes_uncounted_and_memory_is_bounded(
            pieces in prop::collection::vec((any::<bool>(), 0u8..4, 0usize..30_000), 1..60), budget in 0u64..200_000
        ) {
            let (mut tail, mut total, mut ends) = (Tail::default(), 0, 0);
            for (first, kind, size) in pieces {
                let stream = if first { Stream::Stdout } else { Stream::Stderr };
                let (close, bytes) = match kind {
                    0 => (Close::Cut, b"x".repeat(size + 1)),
                    1 => (Close::Redrawn, [b"\rbar".repeat(size / 4 + 1), b"\r".to_vec()].concat()),
                    _ => (Close::Line, b"some line\n".repeat(size / 10 + 1)),
                };
                total += bytes.len() as u64;
                ends += memchr_iter(b'\n', &bytes).count() as u64;
                tail.push(AT, stream, close, &bytes);
                prop_assert!(tail.held_bytes < 2 * TAIL_BYTES);
                prop_assert_eq!(tail.held_bytes, tail.pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>());
            }
            let newest = tail.take(budget);
            let lines = newest.lines.iter().filter(|line| line.close == Close::Line).count() as u64;
            prop_assert_eq!(newest.left_out_lines + lines, ends);
            let shown: u64 = newest.lines.iter().map(|line| line.raw_bytes).sum();
            prop_assert_eq!(newest.left_out_bytes + shown, total);
        }
    }
}
