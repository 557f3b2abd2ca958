//! The table of what last words mean (`rules.toml`), read once, and how a rule is asked.

use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::Exit;
use super::traceback::Traceback;
use crate::contract::end::{Certainty, EndReason, Owner};

/// Lines a `line` rule looks at when it does not say.
const WITHIN: usize = 3;

/// The table as it stands in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    noise: Vec<Pattern>,
    wrappers: Vec<Pattern>,
    continuations: Vec<Pattern>,
    handled: Vec<Pattern>,
    aftermath: Vec<Pattern>,
    complaints: Vec<Pattern>,
    quoting: Vec<Pattern>,
    #[serde(rename = "rule")]
    rules: Vec<Rule>,
}

/// One rule; the file says what each field means.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) id: String,
    exception: Option<Pattern>,
    message: Option<Pattern>,
    line: Option<Pattern>,
    within: Option<usize>,
    #[serde(default)]
    exit_codes: Vec<i32>,
    #[serde(default)]
    signals: Vec<String>,
    pub(super) reason: EndReason,
    pub(super) certainty: Certainty,
    detail: String,
    advice: String,
}

#[derive(Debug)]
struct Pattern(Regex);

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Regex::new(&text).map(Self).map_err(D::Error::custom)
    }
}

/// A faulty table would know nothing; that it is read is tested.
static TABLE: LazyLock<Table> = LazyLock::new(|| read().unwrap_or_default());

fn read() -> Result<Table, toml::de::Error> {
    toml::from_str(include_str!("rules.toml"))
}

/// What a rule concluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conclusion {
    pub(super) reason: EndReason,
    pub(super) certainty: Certainty,
    pub(super) detail: String,
    pub(super) advice: String,
    pub(super) rule: &'static str,
    /// Of a `line` rule: how far from the last line it was, 0 = the last.
    pub(super) back: usize,
    /// Whether nothing more was said after it, save what such a failure brings with it.
    pub(super) is_last: bool,
}

/// How the program ended, as far as rules ask.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Status<'a> {
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<&'a str>,
}

impl<'a> Status<'a> {
    /// That of an exit; none when nothing was executed.
    pub(super) fn of(exit: &'a Exit) -> Self {
        match exit {
            Exit::Signalled { signal } => Self { exit_code: None, signal: Some(signal) },
            Exit::Exited { code } => Self { exit_code: Some(*code), signal: None },
            Exit::NotFound { .. } | Exit::NotPrepared { .. } => Self::default(),
        }
    }
}

/// Whether a line says nothing about the cause.
pub(super) fn is_noise(line: &str) -> bool {
    TABLE.noise.iter().any(|pattern| pattern.0.is_match(line))
}

/// Whether a launcher wrote it below the real error.
pub(super) fn is_wrapper(line: &str) -> bool {
    TABLE.wrappers.iter().any(|pattern| pattern.0.is_match(line))
}

/// Whether it belongs to the message of the exception above it.
pub(super) fn goes_on(line: &str) -> bool {
    TABLE.continuations.iter().any(|pattern| pattern.0.is_match(line))
}

/// Whether the program said that it got over it, or that it only tells of it.
pub(super) fn is_handled(line: &str) -> bool {
    TABLE.handled.iter().any(|pattern| pattern.0.is_match(line))
}

/// Whether such a line only follows from the failure above it.
pub(super) fn is_aftermath(line: &str) -> bool {
    TABLE.aftermath.iter().any(|pattern| pattern.0.is_match(line))
}

/// Whether a line says that something failed, without which it would show that the program went on.
fn is_complaint(line: &str) -> bool {
    TABLE.complaints.iter().any(|pattern| pattern.0.is_match(line))
}

/// What the exception that ended a program means.
pub(super) fn of_exception(traceback: &Traceback, status: Status<'_>) -> Option<Conclusion> {
    let quotes = TABLE.quoting.iter().any(|pattern| pattern.0.is_match(&traceback.class));
    TABLE.rules.iter().find_map(|rule| {
        let exception = rule.exception.as_ref()?;
        let fits = rule.holds_for(status)
            && exception.0.is_match(&traceback.class)
            && (!quotes || exception.0.as_str().contains(traceback.short_class()));
        match &rule.message {
            _ if !fits => None,
            None => Some(rule.conclude(None, &traceback.message, 0)),
            Some(message) => {
                let found = message.0.captures(&traceback.message)?;
                Some(rule.conclude(Some(&found), &traceback.message, 0))
            }
        }
    })
}

/// What the last lines of a program mean that ended without an exception of Python; `last` is newest first. A line that
/// tells of something handled is passed over. One after which more was said decides less, or nothing.
pub(super) fn of_lines(last: &[&str], status: Status<'_>) -> Option<Conclusion> {
    let mut lines = Vec::with_capacity(last.len());
    let (mut depth, mut follow) = (0, Follow::Aftermath);
    for line in last {
        lines.push((depth, follow));
        if !is_aftermath(line) {
            depth += 1;
            let more =
                if is_complaint(line) && !is_handled(line) { Follow::Complaints } else { Follow::More };
            follow = follow.max(more);
        }
    }
    TABLE.rules.iter().filter(|rule| rule.holds_for(status)).find_map(|rule| {
        let pattern = rule.line.as_ref()?;
        let asked = last.iter().zip(&lines).enumerate();
        let near = asked.take_while(|(_, (_, (depth, _)))| *depth < rule.within.unwrap_or(WITHIN));
        near.filter(|(_, (line, _))| !is_handled(line)).find_map(|(back, (line, (_, follow)))| {
            let found = pattern.0.captures(line)?;
            let most = rule.certainty_when(*follow)?;
            let conclusion = rule.conclude(Some(&found), line, back);
            Some(Conclusion {
                certainty: conclusion.certainty.min(most),
                is_last: *follow == Follow::Aftermath,
                ..conclusion
            })
        })
    })
}

/// What was said after a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Follow {
    /// Nothing but what follows from it.
    Aftermath,
    /// That something failed: this, or something else.
    Complaints,
    /// Anything else: the program went on.
    More,
}

impl Rule {
    fn holds_for(&self, status: Status<'_>) -> bool {
        let by_code = self.exit_codes.is_empty()
            || status.exit_code.is_some_and(|code| self.exit_codes.contains(&code));
        let by_signal = self.signals.is_empty()
            || status.signal.is_some_and(|signal| self.signals.iter().any(|asked| asked == signal))
            // A shell's word for a child that a signal ended; 134 is SIGABRT, the only one rules ask for.
            || status.exit_code == Some(134);
        by_code && by_signal
    }

    /// How sure one of its lines can make, given what was said after it. A reason that is not the program's own (and so
    /// asks for a retry elsewhere) needs the last word; a status that fits stands in for it.
    fn certainty_when(&self, follow: Follow) -> Option<Certainty> {
        let status_fits = !self.exit_codes.is_empty() || !self.signals.is_empty();
        match follow {
            Follow::Aftermath => Some(Certainty::Likely),
            _ if status_fits => Some(Certainty::Possible),
            Follow::Complaints if self.reason.owner() == Owner::User => Some(Certainty::Possible),
            Follow::Complaints | Follow::More => None,
        }
    }

    fn conclude(&'static self, found: Option<&Captures<'_>>, said: &str, back: usize) -> Conclusion {
        let fill = |template: &str| filled(template, found, said);
        Conclusion {
            reason: self.reason,
            certainty: self.certainty,
            detail: fill(&self.detail),
            advice: fill(&self.advice),
            rule: &self.id,
            back,
            is_last: true,
        }
    }
}

/// A template with its `{name}`s replaced. What was not captured is what was said.
fn filled(template: &str, found: Option<&Captures<'_>>, said: &str) -> String {
    let first_line = said.trim_start().lines().next().unwrap_or("").trim_end();
    let mut text = String::with_capacity(template.len() + 64);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) = after.split_once('}').unwrap_or((after, ""));
        text.push_str(before);
        let captured = found.and_then(|found| found.name(name)).map(|capture| capture.as_str());
        text.push_str(captured.unwrap_or(first_line));
        rest = behind;
    }
    text.push_str(rest);
    // Nothing was said behind the colon: `MemoryError` mostly comes without a message.
    let length = text.trim_end().trim_end_matches(':').len();
    text.truncate(length);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_with_nothing_behind_it_is_left_out() {
        assert_eq!(filled("Python got no memory: {message}", None, ""), "Python got no memory");
        assert_eq!(filled("Python got no memory: {message}", None, "x"), "Python got no memory: x");
    }

    #[test]
    fn the_table_can_be_read_and_every_rule_asks_for_something() {
        let table = read().unwrap();
        let mut ids: Vec<&str> = table.rules.iter().map(|rule| rule.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), table.rules.len(), "ids are unique");
        for rule in &table.rules {
            assert!(rule.exception.is_some() != rule.line.is_some(), "{}", rule.id);
            assert!(rule.message.is_none() || rule.exception.is_some(), "{}", rule.id);
            assert!(rule.certainty != Certainty::Certain, "{}: text proves nothing", rule.id);
            for template in [&rule.detail, &rule.advice] {
                for part in template.split('{').skip(1) {
                    let name = part.split('}').next().unwrap();
                    let pattern = rule.message.as_ref().or(rule.line.as_ref());
                    let captures = pattern.is_some_and(|p| p.0.capture_names().flatten().any(|n| n == name));
                    assert!(name == "message" || captures, "{}: {{{name}}}", rule.id);
                }
            }
        }
    }
}
