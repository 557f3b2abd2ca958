//! What the function of a job raised, by the word of its runner. It is believed before the log: notes of the exception,
//! what the runner advises and what the interpreter complains of on its way out are lines below the traceback, and of a
//! long log the traceback may be missing.

use serde::Deserialize;

use super::last_words::{LastWords, of_traceback};
use super::launchers::is_launcher;
use super::rules::{self, Status};
use super::traceback::{Traceback, tracebacks};
use super::transcript::{LastLine, MOST_LINES, transcript};
use crate::contract::log::Stream;
use crate::contract::quantity::Timestamp;

/// The exit status of a runner whose function has raised.
const STATUS: i32 = 1;
/// Of a message no more is looked at.
const MOST_CHARACTERS: usize = 20_000;
/// Modules whose classes Python shows without them.
const UNNAMED: [&str; 2] = ["builtins", "__main__"];

/// An exception, as the runner writes it down (CONTRACT, Functions).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Raised {
    /// Its class, within its module.
    #[serde(rename = "type")]
    pub class: String,
    /// That module.
    pub module: String,
    /// What it says.
    pub message: String,
    /// As Python prints it, with the exceptions it came of.
    pub traceback: String,
    /// What to do about it.
    #[serde(default)]
    pub advice: Option<String>,
}

impl Raised {
    /// `None` = it is none: any program of the task's user may have written it.
    pub fn read(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// What the task's end is judged by. `of_log` stays where the exception only says that some child failed, whose own
    /// last words are there, and where the process did not end by it.
    pub(super) fn words(&self, of_log: LastWords, status: Status<'_>) -> LastWords {
        if status.exit_code != Some(STATUS) {
            return of_log;
        }
        let lines = transcript(&last_lines(&self.traceback));
        let found = tracebacks(&lines, &rules::goes_on).pop();
        let found = found.map_or_else(|| self.without_traceback(), |found| self.with_message(found));
        if is_launcher(&found) && (of_log.exception.is_some() || of_log.conclusion.is_some()) {
            return of_log;
        }
        let mut words = of_traceback(&lines, &found, status);
        if words.evidence.iter().all(|line| line.trim().is_empty()) {
            words.evidence = words.exception.clone().into_iter().collect();
        }
        if let (Some(conclusion), Some(advice)) = (&mut words.conclusion, &self.advice) {
            conclusion.advice.clone_from(advice);
        }
        words
    }

    /// All lines of the message, where the traceback shows this exception and not one that a group of them begins with.
    fn with_message(&self, found: Traceback) -> Traceback {
        let is_it = self.class.rsplit('.').next() == Some(found.short_class());
        if is_it { Traceback { message: self.start_of_message(), ..found } } else { found }
    }

    fn start_of_message(&self) -> String {
        self.message.chars().take(MOST_CHARACTERS).collect()
    }

    fn without_traceback(&self) -> Traceback {
        let class = match self.module.as_str() {
            module if UNNAMED.contains(&module) => self.class.clone(),
            module => format!("{module}.{}", self.class),
        };
        // No line of the traceback says it: the evidence is made of the exception itself.
        let nowhere = usize::MAX;
        Traceback {
            class,
            message: self.start_of_message(),
            line: nowhere,
            last: nowhere,
            frame: None,
            rank: None,
        }
    }
}

/// Those that a transcript takes: of a long text no others are copied.
fn last_lines(text: &str) -> Vec<LastLine> {
    let mut lines: Vec<LastLine> = text.lines().rev().take(MOST_LINES).map(line).collect();
    lines.reverse();
    lines
}

fn line(text: &str) -> LastLine {
    LastLine { stream: Stream::Stderr, time: Timestamp::default(), text: text.to_owned() }
}
