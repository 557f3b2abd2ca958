//! From the bytes of a pipe to records: whole lines, and what has to be cut.

use crate::contract::log::Stream;

/// Longer lines are cut, so that memory and messages stay bounded.
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;

/// How a record ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    /// By a line end, or by the end of the stream.
    Line,
    /// The line was longer than [`MAX_LINE_BYTES`] and goes on in the next record of its stream.
    Cut,
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
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut emit: impl FnMut(Stream, Close, &[u8])) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.pending.is_empty() && line.len() <= MAX_LINE_BYTES {
                emit(self.stream, Close::Line, line);
            } else {
                self.extend(line, &mut emit);
                emit(self.stream, Close::Line, &self.pending);
                self.pending.clear();
            }
            bytes = rest;
        }
        self.extend(bytes, &mut emit);
    }

    /// The stream ended: what is left is a record too.
    pub(super) fn finish(&mut self, mut emit: impl FnMut(Stream, Close, &[u8])) {
        if !self.pending.is_empty() {
            emit(self.stream, Close::Line, &self.pending);
            self.pending.clear();
        }
    }

    /// Whether an unfinished line redraws itself with carriage returns, as progress bars do.
    pub(super) fn is_redrawing(&self) -> bool {
        self.pending.contains(&b'\r')
    }

    /// Makes a record of the states a redrawn line has been through, so that a follower sees it move; what was
    /// drawn since the last carriage return stays pending.
    pub(super) fn snapshot(&mut self, mut emit: impl FnMut(Stream, Close, &[u8])) {
        let Some(end) = self.pending.iter().rposition(|byte| *byte == b'\r') else { return };
        if self.pending[..end].iter().any(|byte| *byte != b'\r') {
            emit(self.stream, Close::Line, &self.pending[..end]);
        }
        self.pending.drain(..=end);
    }

    fn extend(&mut self, mut bytes: &[u8], emit: &mut impl FnMut(Stream, Close, &[u8])) {
        // Cut only when more is there: a line of exactly the limit is one whole record.
        while self.pending.len() + bytes.len() > MAX_LINE_BYTES {
            let (head, rest) = bytes.split_at(MAX_LINE_BYTES - self.pending.len());
            self.pending.extend_from_slice(head);
            let whole = self.pending.len() - cut_character_bytes(&self.pending);
            emit(self.stream, Close::Cut, &self.pending[..whole]);
            self.pending.drain(..whole);
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
        assert_eq!(seen[1], (Close::Line, "🚀!".as_bytes().to_vec()));
    }

    #[test]
    fn a_snapshot_keeps_what_is_being_drawn() {
        let mut lines = Lines::new(Stream::Stderr);
        let mut seen = Vec::new();
        lines.feed(b"\r10%\r20%\r3", |_, _, bytes| seen.push(bytes.to_vec()));
        assert!(lines.is_redrawing());
        lines.snapshot(|_, _, bytes| seen.push(bytes.to_vec()));
        lines.feed(b"0%\n", |_, _, bytes| seen.push(bytes.to_vec()));
        assert_eq!(seen, [b"\r10%\r20%".to_vec(), b"30%".to_vec()]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_however_the_pipe_is_cut(
            pieces in prop::collection::vec((0u8..4, 0usize..40_000), 0..8), seed in 1usize..70_000
        ) {
            let mut whole = Vec::new();
            for (kind, size) in pieces {
                let unit: &[u8] = [b"x".as_slice(), "é".as_bytes(), "🚀".as_bytes(), b"\xff"][kind as usize];
                whole.extend(unit.repeat(size / unit.len()));
                if size % 3 == 0 { whole.push(b'\n'); }
            }
            let parts: Vec<&[u8]> = whole.chunks(seed).collect();
            let mut joined = Vec::new();
            for (close, bytes) in records(&parts) {
                prop_assert!(bytes.len() <= MAX_LINE_BYTES);
                joined.extend(bytes);
                if close == Close::Line { joined.push(b'\n'); }
            }
            if !whole.is_empty() && !whole.ends_with(b"\n") { whole.push(b'\n'); }
            prop_assert_eq!(joined, whole);
        }
    }
}
