//! The end of a task whose Python environment was not built: its program never ran.

use super::last_words::LastWords;
use super::rules::Status;
use super::transcript::LastLine;
use super::{ExitFacts, MOST_CHARACTERS, MOST_EVIDENCE, Scene, cut, disks, kernel, memory};
use crate::contract::end::{Certainty, End, EndReason};
use crate::domain::python::{CLOSING, TOO_LONG};

/// What tools write when a disk is full.
const NO_ROOM: [&str; 3] = ["No space left on device", "os error 28", "Disk quota exceeded"];
/// Lines before the last that may belong to the error.
const MOST_LOOKED_AT: usize = 40;

/// What a sentence of a build's last lines asks for.
const ADVICE: [(&str, &str); 9] = [
    (
        TOO_LONG,
        "submit it once more, what was downloaded is kept; the worker's `environment_timeout_s` gives it more time",
    ),
    (
        "`uv` was not found",
        "install uv on the worker (`pip install uv`, or as its documentation says) where PATH leads, or name it with the worker's setting `uv` (GPULAYER_UV)",
    ),
    (
        "no Python interpreter at",
        "name one that this worker has, or a version such as `3.11`, which uv finds or downloads",
    ),
    (
        "no `python3` in PATH",
        "install Python on the worker, or name a version such as `3.11`, which uv downloads",
    ),
    (
        "cannot be read from the job's folder",
        "it has to be in the source: make it (`uv lock`), see what .gitignore and .gpulayerignore leave out, or name its folder by `--source` if none was sent",
    ),
    (
        "No solution found",
        "no set of versions fits all requirements on this worker's Python and platform; `uv pip compile` shows the same at home",
    ),
    (
        "Failed to build",
        "a package has no wheel for this Python and platform, and could not be built; choose a version that has one, or install what its build needs on the worker",
    ),
    ("lock file", "run `uv lock` and send the new lock file"),
    (
        "ailed to fetch",
        "the worker could not reach the package index: look at its network and proxy, or set UV_INDEX_URL with `env`",
    ),
];

/// That end.
pub(super) fn not_built(facts: &ExitFacts) -> End {
    let nothing_seen = Scene::default();
    let scene = facts.scene.as_deref().unwrap_or(&nothing_seen);
    let status = Status::of(&facts.exit);
    let kernel = kernel::words(&scene.kernel, &scene.pids, &scene.group);
    let said = lines(&scene.lines);
    let evidence = said.iter().rev().take(MOST_EVIDENCE).rev().map(|line| (*line).to_owned()).collect();
    let words = LastWords { evidence, ..LastWords::default() };
    if let Some(end) = memory::oom_killed(facts, status, &kernel, &words) {
        let detail = end.detail.unwrap_or_default();
        return End { detail: Some(format!("while its Python environment was built: {detail}")), ..end };
    }
    let closing = scene.lines.iter().rev().find_map(|line| line.text.strip_prefix(CLOSING));
    let closing = match (closing, status.signal, status.exit_code) {
        (Some(closing), ..) => closing.to_owned(),
        (None, Some(signal), _) => format!("its build was ended by {signal}"),
        (None, None, code) => format!("its build exited with status {}", code.unwrap_or(1)),
    };
    let because = if closing.starts_with(TOO_LONG) { last_of(&said) } else { error_of(&said) };
    let detail = match &because {
        Some(because) => format!("{closing}: {because}"),
        None => closing.clone(),
    };
    let full = scene.full.first().filter(|_| disks(scene).next().is_some()).cloned();
    let told = said
        .iter()
        .copied()
        .chain([closing.as_str()])
        .any(|line| NO_ROOM.iter().any(|words| line.contains(words)));
    if full.is_some() || told {
        let volume = full.unwrap_or_else(|| "a disk of the worker".to_owned());
        return End {
            certainty: Some(Certainty::Certain),
            basis: Some("the build's last words, and what is free on the worker".to_owned()),
            advice: Some(
                "make room on the worker; environments that nobody uses are removed by themselves".to_owned(),
            ),
            evidence: words.evidence,
            ..End::of(
                EndReason::DiskFull,
                format!("{volume} was full while the Python environment was built: {detail}"),
            )
        };
    }
    let text = |needle: &str| detail.contains(needle) || said.iter().any(|line| line.contains(needle));
    let advice = ADVICE.iter().find(|(needle, _)| text(needle)).map(|(_, advice)| *advice);
    End {
        certainty: Some(Certainty::Certain),
        basis: Some("its build ended before the program was started".to_owned()),
        advice: Some(advice.unwrap_or("`gpulayer logs` has all that the build printed").to_owned()),
        evidence: words.evidence,
        ..End::of(EndReason::EnvironmentFailed, detail)
    }
}

/// What the build's tools said last, without this program's own lines.
fn lines(all: &[LastLine]) -> Vec<&str> {
    let said = all.iter().map(|line| line.text.as_str().trim_end());
    let said: Vec<&str> = said.filter(|line| !line.is_empty() && !line.starts_with("gpulayer: ")).collect();
    said[said.len().saturating_sub(MOST_LOOKED_AT)..].to_vec()
}

/// What was said last, of a build that was at it.
fn last_of(said: &[&str]) -> Option<String> {
    let last = said.last().map(|line| format!("last it said `{}`", cut(line.trim(), MOST_CHARACTERS)));
    Some(last.unwrap_or_else(|| "it had said nothing".to_owned()))
}

/// The last error as one sentence: `error:` and its causes as `uv` writes them, in its newer and older form.
fn error_of(said: &[&str]) -> Option<String> {
    let begins =
        |line: &str| line.starts_with("error: ") || line.starts_with("× ") || line.starts_with("  × ");
    let at = said.iter().rposition(|line| begins(line))?;
    let first = said[at].trim_start().trim_start_matches("error: ").trim_start_matches("× ");
    let mut sentence = first.trim_end_matches(':').to_owned();
    for line in said[at + 1..].iter().take_while(|line| line.starts_with([' ', '│', '╰', '├'])) {
        let text = line.trim_start_matches([' ', '│', '╰', '├', '─', '▶']);
        let text = text.strip_prefix("cause: ").or_else(|| text.strip_prefix("Caused by: ")).unwrap_or(text);
        if !text.is_empty() {
            sentence.push_str(if line.contains("cause: ") || line.contains('▶') { ": " } else { " " });
            sentence.push_str(text);
        }
    }
    Some(cut(&sentence, MOST_CHARACTERS * 2))
}

#[cfg(test)]
mod tests {
    use super::super::Exit;
    use super::*;
    use crate::contract::log::Stream;
    use crate::contract::quantity::{Seconds, Timestamp};
    use crate::contract::spec::JobSpec;
    use crate::domain::verdict::{MemoryFacts, StopSent, verdict};

    fn facts(exit: Exit, lines: &str) -> ExitFacts {
        let line = |text: &str| LastLine {
            stream: Stream::Stderr,
            time: Timestamp::from_micros(1_700_000_000_000_000),
            text: text.to_owned(),
        };
        let scene = Scene { lines: lines.lines().map(line).collect(), ..Scene::default() };
        ExitFacts {
            in_prelude: true,
            duration: Some(Seconds::new(1)),
            scene: Some(Box::new(scene)),
            ..ExitFacts::of(exit)
        }
    }

    fn end(facts: &ExitFacts) -> End {
        verdict(facts, &JobSpec::command(["true"]), &[])
    }

    const UNSOLVED: &str = "Using Python 3.11.2 environment at: /e
error: No solution found when resolving dependencies
  cause: Because nosuch was not found in the package registry and you require nosuch==3, we can conclude that your requirements are unsatisfiable.
gpulayer: no Python environment: `uv pip install` exited with status 1";

    #[test]
    fn the_tools_own_error_is_the_sentence() {
        let end = end(&facts(Exit::Exited { code: 1 }, UNSOLVED));
        assert_eq!((end.reason, end.exit_code, end.duration_s), (EndReason::EnvironmentFailed, None, None));
        let detail = end.detail.unwrap();
        let begins = "`uv pip install` exited with status 1: No solution found when resolving dependencies: Because nosuch";
        assert!(detail.starts_with(begins), "{detail}");
        assert!(end.advice.unwrap().contains("no set of versions fits"));
        assert_eq!(end.evidence.len(), 3);
        assert!(end.evidence[1].starts_with("error: No solution"), "{:?}", end.evidence);
        let older = "  × No solution found when resolving dependencies:\n  ╰─▶ Because nosuch was not found and you\n      require nosuch, no.\ngpulayer: no Python environment: `uv pip install` exited with status 1";
        let detail = self::end(&facts(Exit::Exited { code: 1 }, older)).detail.unwrap();
        assert!(
            detail.ends_with("No solution found when resolving dependencies: Because nosuch was not found and you require nosuch, no."),
            "{detail}"
        );
    }

    #[test]
    fn what_is_missing_on_the_worker_is_said_with_what_to_do() {
        let no_uv = "gpulayer: no Python environment: `uv` was not found (looked in PATH (/bin))";
        let end = end(&facts(Exit::Exited { code: 1 }, no_uv));
        assert_eq!(end.reason, EndReason::EnvironmentFailed);
        assert!(end.advice.unwrap().contains("pip install uv"));
        assert_eq!(end.detail.unwrap(), "`uv` was not found (looked in PATH (/bin))");
    }

    #[test]
    fn a_build_that_was_killed_or_had_no_room_is_not_the_requirements_fault() {
        let killed = end(&facts(Exit::Signalled { signal: "SIGKILL".into() }, ""));
        assert_eq!(killed.reason, EndReason::EnvironmentFailed);
        assert_eq!(
            (killed.signal, killed.detail.unwrap().as_str()),
            (None, "its build was ended by SIGKILL")
        );

        let full = "error: Failed to install: torch\n  cause: No space left on device (os error 28)\ngpulayer: no Python environment: `uv pip install` exited with status 2";
        assert_eq!(end(&facts(Exit::Exited { code: 1 }, full)).reason, EndReason::DiskFull);

        let mut starved = facts(Exit::Exited { code: 1 }, UNSOLVED);
        starved.memory =
            MemoryFacts { oom_kills: Some(1), limit_bytes: Some(1 << 28), oom_killed_after: None };
        let starved = end(&starved);
        assert_eq!(starved.reason, EndReason::OomKilled);
        assert!(starved.detail.unwrap().starts_with("while its Python environment was built: "));
    }

    #[test]
    fn a_build_that_took_too_long_says_its_limit_and_what_it_was_at() {
        let closing = "gpulayer: no Python environment: the build was not done after 3600 s (the worker's `environment_timeout_s`)";
        let lines = format!("error: an old one\nResolved 3 packages in 2ms\n   Building torch==2\n{closing}");
        let late = end(&facts(Exit::Exited { code: 1 }, &lines));
        assert_eq!(late.reason, EndReason::EnvironmentFailed);
        assert_eq!(
            late.detail.as_deref(),
            Some(
                "the build was not done after 3600 s (the worker's `environment_timeout_s`): last it said `Building torch==2`"
            )
        );
        assert!(late.advice.unwrap().contains("what was downloaded is kept"));
        let silent = end(&facts(Exit::Exited { code: 1 }, closing)).detail.unwrap();
        assert!(silent.ends_with(": it had said nothing"), "{silent}");
    }

    #[test]
    fn a_stop_is_a_stop() {
        let mut stopped = facts(Exit::Signalled { signal: "SIGTERM".into() }, "");
        stopped.stop = Some(StopSent::Order);
        let end = end(&stopped);
        assert_eq!((end.reason, end.exit_code, end.duration_s), (EndReason::Cancelled, None, None));
    }
}
