//! The last lines of a program, made comparable: colours and the labels of launchers taken off, so that a rule sees
//! what the program itself said.

use crate::contract::log::Stream;
use crate::contract::quantity::Timestamp;

/// Lines looked at; more are not worth their time.
pub(super) const MOST_LINES: usize = 400;
/// Characters of a line that are looked at.
const MOST_CHARACTERS: usize = 2_000;

/// One of a program's last lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastLine {
    /// Where it was written.
    pub stream: Stream,
    /// When it was read.
    pub time: Timestamp,
    /// Its text, redrawn parts folded.
    pub text: String,
}

/// A line as rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spoken {
    pub(super) stream: Stream,
    pub(super) time: Timestamp,
    /// Without colours and labels.
    pub(super) text: String,
    /// The rank in its label.
    pub(super) rank: Option<u32>,
}

/// A traceback header glued to a progress bar, which ends without a line end.
const HEADER: &str = "Traceback (most recent call last):";

/// The newest lines, oldest first.
pub(super) fn transcript(lines: &[LastLine]) -> Vec<Spoken> {
    let skip = lines.len().saturating_sub(MOST_LINES);
    let mut spoken = Vec::with_capacity(lines.len() - skip);
    for line in lines.iter().skip(skip).filter(|line| line.stream != Stream::System) {
        let plain = without_colours(&line.text);
        let (rank, text) = without_label(&plain);
        let at = |text: &str| Spoken { stream: line.stream, time: line.time, text: text.to_owned(), rank };
        match text.find(HEADER) {
            Some(begin) if text[..begin].contains("it/s") || text[..begin].contains("%|") => {
                spoken.push(at(&text[..begin]));
                spoken.push(at(&text[begin..]));
            }
            _ => spoken.push(at(text)),
        }
    }
    spoken
}

/// `[rank0]: `, `[default0]:` (torchrun), `[1,0]<stderr>:` (mpirun).
fn without_label(text: &str) -> (Option<u32>, &str) {
    let none = (None, text);
    let Some((label, rest)) = text.strip_prefix('[').and_then(|inner| inner.split_once(']')) else {
        return none;
    };
    let torchrun = label.strip_prefix("rank").or_else(|| label.strip_prefix("default"));
    let (rank, rest) = match (torchrun, label.split_once(',')) {
        (Some(rank), _) => (rank, rest),
        (None, Some((_, rank))) => {
            let named = rest.strip_prefix("<stderr>").or_else(|| rest.strip_prefix("<stdout>"));
            (rank, named.unwrap_or(rest))
        }
        (None, None) => return none,
    };
    match (rank.parse(), rest.strip_prefix(':')) {
        (Ok(rank), Some(said)) => (Some(rank), said.strip_prefix(' ').unwrap_or(said)),
        _ => none,
    }
}

/// Cut to what is looked at, control sequences gone.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len().min(MOST_CHARACTERS));
    let mut characters = text.chars().take(MOST_CHARACTERS).peekable();
    while let Some(character) = characters.next() {
        if character != '\x1b' {
            plain.push(character);
            continue;
        }
        if characters.next_if_eq(&'[').is_some() {
            while characters.next_if(|next| !('@'..='~').contains(next)).is_some() {}
            characters.next();
        }
    }
    plain.truncate(plain.trim_end().len());
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(texts: &[&str]) -> Vec<(Option<u32>, String)> {
        let line = |text: &&str| LastLine {
            stream: Stream::Stderr,
            time: Timestamp::default(),
            text: (*text).to_owned(),
        };
        let lines: Vec<LastLine> = texts.iter().map(line).collect();
        transcript(&lines).into_iter().map(|line| (line.rank, line.text)).collect()
    }

    #[test]
    fn colours_labels_and_progress_bars_come_off() {
        assert_eq!(said(&["\x1b[31mred\x1b[0m  "]), [(None, "red".into())]);
        assert_eq!(said(&["[rank3]: KeyError: 1"]), [(Some(3), "KeyError: 1".into())]);
        assert_eq!(said(&["[rank3]:   File \"x\""]), [(Some(3), "  File \"x\"".into())]);
        assert_eq!(said(&["[1,7]<stderr>:oops"]), [(Some(7), "oops".into())]);
        let glued = " 50%|#####     | 5/10 [00:01<00:01, 4.9it/s]Traceback (most recent call last):";
        assert_eq!(said(&[glued])[1].1, HEADER);
        assert_eq!(said(&["\x1b["]), [(None, String::new())]);
    }
}
