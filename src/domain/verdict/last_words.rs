//! What a program's last lines say about its failure. Only how it ended counts: a traceback counts when nothing of
//! the program's own follows it, a line only near the end. What was handled on the way is not the cause.

use super::launchers::{RootCause, childs, is_launcher, root_cause};
use super::rules::{self, Conclusion, Status};
use super::traceback::{Traceback, tracebacks};
use super::transcript::{LastLine, Spoken, transcript};
use crate::contract::end::{Certainty, EndReason};
use crate::contract::log::Stream;

/// Lines of evidence.
const MOST_EVIDENCE: usize = 3;
/// Last lines that rules may ask for.
const MOST_LAST: usize = 24;
/// What a program writes so long after an exception shows that it went on, in microseconds.
const WENT_ON_MICROS: i64 = 500_000;

/// What the last lines say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LastWords {
    /// What a rule made of them.
    pub(super) conclusion: Option<Conclusion>,
    /// `KeyError: 'no such key'`: the exception that ended the program, whether or not a rule knows it.
    pub(super) exception: Option<String>,
    /// Up to three literal lines.
    pub(super) evidence: Vec<String>,
}

/// Reads the last lines, oldest first.
pub(super) fn last_words(lines: &[LastLine], status: Status<'_>) -> LastWords {
    let spoken = transcript(lines);
    let of =
        |stream| -> Vec<Spoken> { spoken.iter().filter(|line| line.stream == stream).cloned().collect() };
    let (errors, prints) = (of(Stream::Stderr), of(Stream::Stdout));
    let mut words = heard(&errors, &prints, status);
    let silent = errors.iter().all(|line| says_nothing(&line.text));
    if silent {
        // `2>&1 | tee`: the errors are among the prints. A line there is more often a mere report.
        words = heard(&prints, &[], status);
        if words.exception.is_none() {
            words.conclusion = words.conclusion.filter(|found| found.is_last);
            if let Some(conclusion) = &mut words.conclusion {
                conclusion.certainty = conclusion.certainty.min(Certainty::Possible);
            }
        }
    }
    words
}

fn says_nothing(text: &str) -> bool {
    rules::is_noise(text)
}

/// One stream; `others` is what the other one said meanwhile.
fn heard(lines: &[Spoken], others: &[Spoken], status: Status<'_>) -> LastWords {
    let found = tracebacks(lines, &rules::goes_on);
    let Some(last) = found.last() else {
        return by_lines(lines, 0, status);
    };
    if is_launcher(last) {
        return launched(lines, &found, last, status);
    }
    // Ranks fail one after another; the first to end the program is not told from here, so the last counts.
    let after = found.iter().map(|traceback| traceback.last).max().unwrap_or(last.last) + 1;
    let rest = lines.get(after..).unwrap_or(&[]);
    let wrapped = rest.iter().any(|line| rules::is_wrapper(&line.text));
    let silent_since = rest.iter().all(|line| says_nothing(&line.text) || rules::is_wrapper(&line.text));
    let ended_by_it = status.exit_code == Some(1) || (wrapped && status.exit_code.is_some());
    if silent_since && ended_by_it && !went_on(others, &lines[last.last], WENT_ON_MICROS) {
        let mut words = of_traceback(lines, last, status);
        if went_on(others, &lines[last.last], 0) {
            // It spoke once more: perhaps it had handled this, and ended by something else.
            if let Some(conclusion) = &mut words.conclusion {
                conclusion.certainty = conclusion.certainty.min(Certainty::Possible);
            }
        }
        words
    } else {
        let mut words = by_lines(lines, after, status);
        if words.conclusion.is_none() && silent_since {
            // Nothing followed, yet Python would not have ended so: shown, not believed.
            words.evidence = evidence_of(lines, last);
        }
        words
    }
}

/// Whether the other stream said something more than so long after it.
fn went_on(others: &[Spoken], raised: &Spoken, micros: i64) -> bool {
    let since = raised.time.micros();
    others.iter().any(|line| line.time.micros() - since > micros && !says_nothing(&line.text))
}

/// What an exception says that ended the program.
pub(super) fn of_traceback(lines: &[Spoken], traceback: &Traceback, status: Status<'_>) -> LastWords {
    LastWords {
        conclusion: rules::of_exception(traceback, status),
        exception: Some(headline(traceback)),
        evidence: evidence_of(lines, traceback),
    }
}

fn launched(lines: &[Spoken], found: &[Traceback], launcher: &Traceback, status: Status<'_>) -> LastWords {
    let root = root_cause(lines, launcher);
    let before = &found[..found.len() - 1];
    let peer = |traceback: &Traceback| {
        rules::of_exception(traceback, status).is_some_and(|found| found.reason == EndReason::NcclError)
    };
    match (childs(before, &root, &peer), root) {
        // A child that a signal ended had no time for a traceback: an older one is not the cause.
        (_, RootCause { rank, exit_code: Some(code) }) if code < 0 => {
            let rank = rank.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"));
            let detail = format!("{rank} was ended by signal {} ({} says)", -code, launcher.short_class());
            LastWords {
                conclusion: Some(Conclusion {
                    reason: EndReason::ExitNonzero,
                    certainty: Certainty::Likely,
                    detail,
                    advice: "signal 9 is often the kernel for lack of memory, 7 a full /dev/shm, 11 a fault in compiled code; the rank's own last lines say more".to_owned(),
                    rule: "launcher-signal",
                    back: 0,
                    is_last: true,
                }),
                exception: None,
                evidence: lines.iter().skip(launcher.line).map(|line| line.text.trim().to_owned())
                    .filter(|line| line.starts_with("rank ") || line.starts_with("exitcode") || line.starts_with("traceback"))
                    .take(MOST_EVIDENCE).collect(),
            }
        }
        (Some(child), root) => {
            let mut words = of_traceback(lines, child, Status { exit_code: Some(1), signal: None });
            let rank = child.rank.or(root.rank);
            if let (Some(conclusion), Some(rank)) = (&mut words.conclusion, rank) {
                conclusion.detail = format!("rank {rank}: {}", conclusion.detail);
            }
            words
        }
        (None, _) => of_traceback(lines, launcher, status),
    }
}

/// The last lines from `begin` on that say something.
fn by_lines(lines: &[Spoken], begin: usize, status: Status<'_>) -> LastWords {
    let said: Vec<&str> = lines
        .iter()
        .skip(begin)
        .rev()
        .map(|line| line.text.as_str())
        .filter(|text| !says_nothing(text) && !rules::is_wrapper(text))
        .take(MOST_LAST)
        .collect();
    let conclusion = rules::of_lines(&said, status);
    // The line that decided, and what follows it.
    let from = conclusion.as_ref().map_or(MOST_EVIDENCE - 1, |found| found.back);
    let mut evidence: Vec<String> = said.iter().take(from + 1).rev().map(|text| (*text).to_owned()).collect();
    evidence.truncate(MOST_EVIDENCE);
    LastWords { conclusion, exception: None, evidence }
}

/// Where it was raised, the source line there, and what was raised.
fn evidence_of(lines: &[Spoken], traceback: &Traceback) -> Vec<String> {
    let text = |place: usize| lines.get(place).map(|line| line.text.trim_end().to_owned());
    let mut evidence = Vec::with_capacity(MOST_EVIDENCE);
    if let Some(frame) = traceback.frame {
        evidence.extend(text(frame));
        let is_source = |line: &String| {
            line.trim_start_matches([' ', '|']).len() + 4 <= line.len() && !line.contains("File \"")
        };
        evidence.extend(text(frame + 1).filter(is_source));
    }
    let raised = text(traceback.line).unwrap_or_default();
    let empty = raised.trim_end().ends_with(':') || !raised.contains(':');
    evidence.push(raised);
    if let Some(more) =
        traceback.message.lines().map(str::trim).find(|line| !line.is_empty()).filter(|_| empty)
    {
        evidence.truncate(MOST_EVIDENCE - 1);
        evidence.push(more.to_owned());
    }
    evidence.iter().map(|line| line.trim_start_matches(['|', '+']).to_owned()).collect()
}

fn headline(traceback: &Traceback) -> String {
    match traceback.message.lines().map(str::trim).find(|line| !line.is_empty()) {
        Some(message) => format!("{}: {message}", traceback.short_class()),
        None => traceback.short_class().to_owned(),
    }
}
