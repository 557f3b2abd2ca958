//! Takes secrets out of a stream of bytes, however it is cut: the value itself and the forms in which programs
//! write it (`forms`). What was there is replaced by `[secret NAME]`, which does not tell how long it was.
//!
//! One pass over the bytes, in time that does not depend on how many secrets there are. What is held back is at
//! most one byte less than the longest form, and only while it could be the beginning of one.

mod forms;
mod texts;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, BuildError, MatchError, MatchKind};

use super::secrets::SecretValue;

/// Why no redactor could be made: the secrets are too large.
#[derive(Debug, thiserror::Error)]
pub enum RedactionError {
    /// There is more to look for than can be indexed.
    #[error("the secrets are too large to be looked for")]
    TooLarge(#[from] BuildError),
    /// The search cannot begin.
    #[error("the search for secrets cannot begin")]
    Start(#[from] MatchError),
}

/// What is looked for; shared by the streams of a task.
struct Patterns {
    automaton: NFA,
    start: StateID,
    /// The mark for each pattern's secret, by pattern.
    marks: Vec<Arc<str>>,
    /// For each state that is inside a pattern, how many bytes behind could be the beginning of one.
    depths: HashMap<StateID, usize>,
    longest_bytes: usize,
}

impl Patterns {
    fn new(secrets: &[(&str, &SecretValue)]) -> Result<Self, RedactionError> {
        let mut marks = Vec::new();
        let mut patterns = Vec::new();
        for (name, value) in secrets {
            let mark: Arc<str> = format!("[secret {name}]").into();
            let forms = forms::forms(value);
            marks.extend(std::iter::repeat_n(mark, forms.len()));
            patterns.extend(forms);
        }
        let automaton = NFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(&patterns)?;
        let start = automaton.start_state(Anchored::No)?;
        let depths = depths(&automaton, start, &patterns);
        let longest_bytes = patterns.iter().map(Vec::len).max().unwrap_or_default();
        for pattern in &mut patterns {
            super::secrets::wipe(pattern);
        }
        Ok(Self { automaton, start, marks, depths, longest_bytes })
    }
}

/// A state is a beginning of a pattern, and its depth that beginning's length; a whole pattern that begins no other
/// counts as the longest shorter beginning it ends with.
fn depths(automaton: &NFA, start: StateID, patterns: &[Vec<u8>]) -> HashMap<StateID, usize> {
    let mut depths = HashMap::new();
    let mut whole = Vec::new();
    for pattern in patterns {
        let mut state = start;
        for (at, byte) in pattern.iter().enumerate() {
            state = automaton.next_state(Anchored::No, state, *byte);
            if at + 1 < pattern.len() {
                depths.insert(state, at + 1);
            }
        }
        whole.push((pattern, state));
    }
    // The shorter ones first: a longer one may end with them.
    whole.sort_by_key(|(pattern, _)| pattern.len());
    for (pattern, state) in whole {
        if !depths.contains_key(&state) {
            let rest = pattern.iter().skip(1);
            let suffix = rest.fold(start, |state, byte| automaton.next_state(Anchored::No, state, *byte));
            let depth = depths.get(&suffix).copied().unwrap_or_default();
            depths.insert(state, depth);
        }
    }
    depths
}

/// One stream on its way to the log.
pub struct Redactor {
    patterns: Arc<Patterns>,
    state: StateID,
    /// Read, and not yet given out.
    held: Vec<u8>,
    /// Parts of `held` that are to be replaced, apart from one another and in order.
    found: Vec<(Range<usize>, Arc<str>)>,
    /// So much at the beginning of `held` belongs to a mark that was given out already.
    marked: usize,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").field("held_bytes", &self.held.len()).finish_non_exhaustive()
    }
}

impl Drop for Redactor {
    fn drop(&mut self) {
        super::secrets::wipe(&mut self.held);
    }
}

impl Redactor {
    /// Looks for these secrets, each by its name.
    pub fn new(secrets: &[(&str, &SecretValue)]) -> Result<Self, RedactionError> {
        Ok(Self::over(Arc::new(Patterns::new(secrets)?)))
    }

    fn over(patterns: Arc<Patterns>) -> Self {
        Self { state: patterns.start, patterns, held: Vec::new(), found: Vec::new(), marked: 0 }
    }

    /// One that looks for the same in another stream.
    pub fn another(&self) -> Self {
        Self::over(Arc::clone(&self.patterns))
    }

    /// The most that can be held back between two feeds.
    pub fn longest_held_bytes(&self) -> usize {
        self.patterns.longest_bytes.saturating_sub(1)
    }

    /// Takes what was read and adds to `out` what is certain.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let patterns = Arc::clone(&self.patterns);
        let automaton = &patterns.automaton;
        let before = self.held.len();
        self.held.extend_from_slice(bytes);
        let mut state = self.state;
        for (at, byte) in bytes.iter().enumerate() {
            state = automaton.next_state(Anchored::No, state, *byte);
            if automaton.is_match(state) {
                self.note(before + at + 1, state, &patterns);
            }
        }
        self.state = state;
        let open = patterns.depths.get(&state).copied().unwrap_or_default();
        self.give_out(self.held.len() - open, out);
    }

    /// The stream has ended, or what was fed stands alone: adds the rest.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.state = self.patterns.start;
        self.give_out(self.held.len(), out);
        self.marked = 0;
    }

    /// A whole text at once.
    pub fn redact(&self, text: &str) -> String {
        let mut out = Vec::with_capacity(text.len());
        let mut stream = self.another();
        stream.feed(text.as_bytes(), &mut out);
        stream.finish(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// The same of bytes; `None` = there is nothing in them.
    pub fn cleaned(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(bytes.len());
        let mut stream = self.another();
        stream.feed(bytes, &mut out);
        stream.finish(&mut out);
        (out != bytes).then_some(out)
    }

    /// A form ends at `end`; the longest that does is what counts. Forms that overlap become one mark, that of the
    /// one that begins first.
    fn note(&mut self, end: usize, state: StateID, patterns: &Patterns) {
        let automaton = &patterns.automaton;
        let ending = (0..automaton.match_len(state)).map(|index| automaton.match_pattern(state, index));
        let Some(pattern) = ending.max_by_key(|pattern| automaton.pattern_len(*pattern)) else { return };
        let mut start = end.saturating_sub(automaton.pattern_len(pattern));
        let mut mark = patterns.marks.get(pattern.as_usize()).cloned();
        while let Some((range, earlier)) = self.found.pop_if(|(range, _)| range.end > start) {
            if range.start < start {
                (start, mark) = (range.start, Some(earlier));
            }
        }
        if start < self.marked {
            self.marked = end;
        } else if let Some(mark) = mark {
            self.found.push((start..end, mark));
        }
    }

    /// Gives out what is held before `until`; nothing that begins before it can still grow to the left.
    fn give_out(&mut self, until: usize, out: &mut Vec<u8>) {
        let mut from = self.marked.min(until);
        let mut marked = self.marked;
        let begun = self.found.iter().take_while(|(range, _)| range.start < until).count();
        for (range, mark) in self.found.drain(..begun) {
            out.extend_from_slice(&self.held[from..range.start]);
            out.extend_from_slice(mark.as_bytes());
            from = range.end.min(until);
            marked = range.end;
        }
        out.extend_from_slice(&self.held[from..until]);
        self.marked = marked.saturating_sub(until);
        for (range, _) in &mut self.found {
            *range = range.start - until..range.end - until;
        }
        self.held.drain(..until);
    }
}

#[cfg(test)]
mod tests;
