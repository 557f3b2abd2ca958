//! From the bytes of a pipe to records: whole lines, and what has to be cut. Nothing of the bytes is lost: what was
//! read is the records' bytes, each with what closed it.

use memchr::{memchr, memchr_iter, memchr2, memrchr};

use crate::contract::log::Stream;

/// Longer lines are cut, so that memory and messages stay bounded.
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;

/// How a record ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    /// By a line end.
    Line,
    /// The line was longer than [`MAX_LINE_BYTES`] and goes on in the next record of its stream.
    Cut,
    /// By a carriage return of a line that redraws itself, which goes on in the next record of its stream.
    Redrawn,
    /// By the end of the stream, without a line end.
    Unended,
}

impl Close {
    /// The byte of the stream that it stands for.
    pub(super) const fn bytes(self) -> &'static [u8] {
        match self {
            Close::Line => b"\n",
            Close::Redrawn => b"\r",
            Close::Cut | Close::Unended => b"",
        }
    }

    /// Whether the line is over, as far as whoever counts lines is concerned.
    pub(super) const fn ends_line(self) -> bool {
        matches!(self, Close::Line | Close::Unended)
    }
}

/// Whether a record as it is shown says less than its bytes. A line end that is missing at the very end does not
/// count.
pub(super) fn is_shown_otherwise(close: Close, bytes: &[u8]) -> bool {
    matches!(close, Close::Cut | Close::Redrawn)
        || memchr2(b'\r', 0, bytes).is_some()
        || std::str::from_utf8(bytes).is_err()
}

/// What is seen of a line that was redrawn with carriage returns: what was drawn last.
pub(super) fn folded(bytes: &[u8]) -> &[u8] {
    if memchr(b'\r', bytes).is_none() {
        return bytes;
    }
    let end = bytes.iter().rposition(|byte| *byte != b'\r').map_or(0, |last| last + 1);
    let start = memrchr(b'\r', &bytes[..end]).map_or(0, |last| last + 1);
    &bytes[start..end]
}

/// Puts one stream's lines together.
pub(super) struct Lines {
    pub(super) stream: Stream,
    pending: Vec<u8>,
}

impl Lines {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, pending: Vec::new() }
    }

    /// Takes what was read and hands every record it completes to `emit`.
    pub(super) fn feed(&mut self, bytes: &[u8], mut emit: impl FnMut(Stream, Close, &[u8])) {
        let mut begin = 0;
        for end in memchr_iter(b'\n', bytes) {
            let line = &bytes[begin..end];
            if self.pending.is_empty() && line.len() <= MAX_LINE_BYTES {
                emit(self.stream, Close::Line, line);
            } else {
                self.extend(line, &mut emit);
                emit(self.stream, Close::Line, &self.pending);
                self.pending.clear();
            }
            begin = end + 1;
        }
        self.extend(&bytes[begin..], &mut emit);
    }

    /// The same for who needs no single lines: whole lines come together, with their line ends, as one piece.
    pub(super) fn feed_together(&mut self, mut bytes: &[u8], mut emit: impl FnMut(Stream, Close, &[u8])) {
        if let Some(first) = memchr(b'\n', bytes).filter(|_| !self.pending.is_empty()) {
            let (line, rest) = bytes.split_at(first + 1);
            self.pending.extend_from_slice(line);
            emit(self.stream, Close::Line, &self.pending);
            self.pending.clear();
            bytes = rest;
        }
        if let Some(last) = memrchr(b'\n', bytes) {
            let (lines, rest) = bytes.split_at(last + 1);
            emit(self.stream, Close::Line, lines);
            bytes = rest;
        }
        self.extend(bytes, &mut |stream, close, piece: &[u8]| match close {
            Close::Redrawn => emit(stream, close, &[piece, b"\r"].concat()),
            _ => emit(stream, close, piece),
        });
    }

    /// The stream ended: what is left is a record too.
    pub(super) fn finish(&mut self, mut emit: impl FnMut(Stream, Close, &[u8])) {
        if !self.pending.is_empty() {
            emit(self.stream, Close::Unended, &self.pending);
            self.pending = Vec::new();
        }
    }

    /// Whether an unfinished line redraws itself with carriage returns, as progress bars do.
    pub(super) fn is_redrawing(&self) -> bool {
        self.redrawn_end().is_some()
    }

    /// Makes a record of the states a redrawn line has been through, so that a follower sees it move; what was
    /// drawn since the last carriage return stays pending.
    pub(super) fn snapshot(&mut self, mut emit: impl FnMut(Stream, Close, &[u8])) {
        let Some(end) = self.redrawn_end() else { return };
        emit(self.stream, Close::Redrawn, &self.pending[..end]);
        self.pending.drain(..=end);
    }

    /// Where the last carriage return stands, if anything was drawn before it.
    fn redrawn_end(&self) -> Option<usize> {
        let end = memrchr(b'\r', &self.pending)?;
        self.pending[..end].iter().any(|byte| *byte != b'\r').then_some(end)
    }

    fn extend(&mut self, mut bytes: &[u8], emit: &mut impl FnMut(Stream, Close, &[u8])) {
        // Cut only when more is there: a line of exactly the limit is one whole record.
        while self.pending.len() + bytes.len() > MAX_LINE_BYTES {
            let (head, rest) = bytes.split_at(MAX_LINE_BYTES - self.pending.len());
            self.pending.extend_from_slice(head);
            match self.redrawn_end() {
                Some(end) => {
                    emit(self.stream, Close::Redrawn, &self.pending[..end]);
                    self.pending.drain(..=end);
                }
                None => {
                    let whole = self.pending.len() - cut_character_bytes(&self.pending);
                    emit(self.stream, Close::Cut, &self.pending[..whole]);
                    self.pending.drain(..whole);
                }
            }
            bytes = rest;
        }
        self.pending.extend_from_slice(bytes);
    }
}

/// How many bytes at the end begin a UTF-8 character that goes on behind it: 0 to 3.
fn cut_character_bytes(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let needed = match bytes[bytes.len() - back] {
            0x80..=0xBF => continue,
            0xC0..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF7 => 4,
            _ => return 0,
        };
        return if needed > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records(parts: &[&[u8]]) -> Vec<(Close, Vec<u8>)> {
        let mut lines = Lines::new(Stream::Stdout);
        let mut seen = Vec::new();
        for part in parts {
            lines.feed(part, |_, close, bytes| seen.push((close, bytes.to_vec())));
        }
        lines.finish(|_, close, bytes| seen.push((close, bytes.to_vec())));
        seen
    }

    #[test]
    fn a_line_of_the_limit_is_whole_and_one_byte_more_is_cut() {
        let limit = vec![b'a'; MAX_LINE_BYTES];
        let ended = [limit.as_slice(), b"\n"].concat();
        assert_eq!(records(&[&ended]), [(Close::Line, limit.clone())]);
        let longer = [limit.as_slice(), b"b\n"].concat();
        assert_eq!(records(&[&longer]), [(Close::Cut, limit), (Close::Line, b"b".to_vec())]);
    }

    #[test]
    fn a_cut_never_falls_into_a_character() {
        let text = format!("{}🚀!", "a".repeat(MAX_LINE_BYTES - 2));
        let seen = records(&[text.as_bytes()]);
        assert_eq!(seen[0], (Close::Cut, vec![b'a'; MAX_LINE_BYTES - 2]));
        assert_eq!(seen[1], (Close::Unended, "🚀!".as_bytes().to_vec()));
    }

    #[test]
    fn a_snapshot_keeps_what_is_being_drawn() {
        let mut lines = Lines::new(Stream::Stderr);
        let mut seen = Vec::new();
        lines.feed(b"\r", |_, _, _| panic!("nothing is whole"));
        assert!(!lines.is_redrawing(), "nothing was drawn yet");
        lines.feed(b"10%\r20%\r3", |_, close, bytes| seen.push((close, bytes.to_vec())));
        assert!(lines.is_redrawing());
        lines.snapshot(|_, close, bytes| seen.push((close, bytes.to_vec())));
        lines.feed(b"0%\n", |_, close, bytes| seen.push((close, bytes.to_vec())));
        assert_eq!(seen, [(Close::Redrawn, b"\r10%\r20%".to_vec()), (Close::Line, b"30%".to_vec())]);
    }

    #[test]
    fn a_long_line_that_redraws_itself_is_cut_between_two_drawings() {
        let bar = b"\r0123456789".repeat(MAX_LINE_BYTES / 10);
        let seen = records(&[&bar]);
        assert!(seen.iter().all(|(close, _)| *close != Close::Cut), "{}", seen.len());
        assert!(seen.iter().all(|(_, bytes)| folded(bytes) == b"0123456789"));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_however_the_pipe_is_cut(
            pieces in prop::collection::vec((0u8..5, 0usize..40_000), 0..8), seed in 1usize..70_000, modes: u64
        ) {
            let mut whole = Vec::new();
            for (kind, size) in pieces {
                let unit: &[u8] = [b"x".as_slice(), "é".as_bytes(), "🚀".as_bytes(), b"\xff", b"\rxy"][kind as usize];
                whole.extend(unit.repeat(size / unit.len()));
                if size % 3 == 0 { whole.push(b'\n'); }
            }
            let mut lines = Lines::new(Stream::Stdout);
            let joined = std::cell::RefCell::new(Vec::new());
            let single = |_: Stream, close: Close, bytes: &[u8]| {
                assert!(bytes.len() <= MAX_LINE_BYTES);
                joined.borrow_mut().extend([bytes, close.bytes()].concat());
            };
            for (index, part) in whole.chunks(seed).enumerate() {
                match modes >> (index * 2 % 64) & 3 {
                    0 => lines.feed_together(part, |_, _, bytes| joined.borrow_mut().extend(bytes)),
                    1 => { lines.feed(part, single); lines.snapshot(single); }
                    _ => lines.feed(part, single),
                }
            }
            lines.finish(single);
            prop_assert!(joined.into_inner() == whole);
        }
    }
}
