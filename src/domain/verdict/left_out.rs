//! A file that the program missed, and that stayed behind when its source was sent.

use super::rules::is_handled;
use crate::contract::end::{End, EndReason};
use crate::contract::job::{LeftOutOfSource, MOST_LEFT_OUT};
use crate::contract::problem::Warning;

/// Where a submission's warnings about left-out files point.
pub const POINTER: &str = "/source";

/// Longer names are not remembered.
const MOST_BYTES: usize = 1_024;

/// Completes an end that came of something that was left out of the source: what to try is then known. A folder that
/// has the name of a missing module need not be that module, so what was advised before stands, too.
pub fn explain(end: &mut End, warnings: &[Warning]) {
    let said = decided_by(end);
    let left_out = || {
        let ours = warnings.iter().filter(|warning| warning.pointer == POINTER);
        ours.filter_map(|warning| read(&warning.detail))
    };
    let missed = left_out().find(|(_, path)| said.iter().any(|line| misses(line, path)));
    let module = || left_out().find(|(_, path)| said.iter().any(|line| imports(line, path)));
    let advice = match (missed, &end.advice) {
        (Some((by, path)), _) => format!("{by} left {path} out: --input {path} or --here"),
        (None, before) => match (module(), before) {
            (None, _) => return,
            (Some((by, path)), Some(before)) if path.ends_with('/') => {
                format!(
                    "{by} left {path} out; if it is that module: --input {path} or --here; else: {before}"
                )
            }
            (Some((by, path)), _) => format!("{by} left {path} out: --input {path} or --here"),
        },
    };
    end.advice = Some(advice);
}

/// What decided the end, of all that it shows: the sentence; below a frame of a traceback the exception, not the source
/// line; where no rule decided, the last line, unless it tells of something handled.
fn decided_by(end: &End) -> Vec<&str> {
    if end.reason == EndReason::MissingOutput {
        return Vec::new();
    }
    let mut said: Vec<&str> = end.detail.iter().map(String::as_str).collect();
    let is_indented = |line: &str| line.starts_with(char::is_whitespace);
    let by_rule = end.basis.as_ref().is_some_and(|basis| basis.contains("(rule "));
    if end.evidence.iter().any(|line| line.trim_start().starts_with("File \"")) {
        said.extend(end.evidence.iter().map(String::as_str).filter(|line| !is_indented(line)));
    } else if !by_rule {
        said.extend(end.evidence.last().map(String::as_str).filter(|line| !is_handled(line)));
    }
    said
}

/// The warnings about what a submission left out: `.gitignore left data/ out`. The client's word is taken as it is,
/// only not without end.
pub fn warnings(left_out: &[LeftOutOfSource]) -> Vec<Warning> {
    let fits =
        |left: &&LeftOutOfSource| left.by.len() + left.path.len() <= MOST_BYTES && !left.path.is_empty();
    let named = left_out.iter().filter(fits).take(MOST_LEFT_OUT);
    named
        .map(|left| Warning {
            pointer: POINTER.to_owned(),
            detail: format!("{} left {} out", left.by, left.path),
        })
        .collect()
}

fn read(detail: &str) -> Option<(&str, &str)> {
    detail.strip_suffix(" out")?.split_once(" left ")
}

/// Whether a line speaks of `path` (a folder ends with `/`) as of something that is not there.
fn misses(line: &str, path: &str) -> bool {
    const ABSENT: [&str; 6] =
        ["No such file", "not found", "cannot open", "can't open", "is not there", "does not exist"];
    let bare = path.trim_end_matches('/');
    missing_module(line).is_none()
        && ABSENT.iter().any(|words| line.contains(words))
        && line.match_indices(bare).any(|(at, _)| {
            is_beneath_the_workspace(&line[begin_of_path(line, at)..at])
                && ends_there(&line[at + bare.len()..], path.ends_with('/'))
        })
}

/// Where the path begins that goes on at `at`: behind the quotation mark that opens it, else behind a space or colon.
fn begin_of_path(line: &str, at: usize) -> usize {
    let before = &line[..at];
    let opens = |mark: usize| !before[..mark].chars().next_back().is_some_and(char::is_alphanumeric);
    match before.rfind(['\'', '"', '`', '\u{2018}']) {
        Some(mark) if opens(mark) => mark + before[mark..].chars().next().map_or(1, char::len_utf8),
        _ => before
            .rfind(|each: char| each.is_whitespace() || ":=(,".contains(each))
            .map_or(0, |mark| mark + 1),
    }
}

/// Whether a path that begins so goes on from the root of what was sent. `…/tasks/TASK/workspace/` is how workers lay
/// it out; any other absolute path, or a folder below, is somewhere else.
fn is_beneath_the_workspace(prefix: &str) -> bool {
    let own = || {
        let (_, task) = prefix.strip_suffix("/workspace/")?.rsplit_once("/tasks/")?;
        Some(!task.is_empty() && !task.contains('/'))
    };
    prefix.is_empty() || prefix == "./" || own() == Some(true)
}

/// Whether a name ends where `behind` begins: `data/x`, `data'`, `data.` at the end of a sentence; not `data2`,
/// `data.csv`.
fn ends_there(behind: &str, is_folder: bool) -> bool {
    let mut next = behind.chars();
    match next.next() {
        None => true,
        Some('/') => is_folder,
        Some('.') => next.next().is_none_or(char::is_whitespace),
        Some(each) => !each.is_alphanumeric() && each != '_' && each != '-',
    }
}

/// What follows the words that name a missing Python module.
fn missing_module(line: &str) -> Option<&str> {
    let named = line.split_once("No module named ").or_else(|| line.split_once("Python module `"));
    named.map(|(_, rest)| rest)
}

/// Whether a line misses the Python module that `path` would be, or lie in.
fn imports(line: &str, path: &str) -> bool {
    let Some(rest) = missing_module(line) else { return false };
    let rest = rest.trim_start_matches(['\'', '"', '`']);
    let end = rest.find(|each: char| !each.is_alphanumeric() && !"_.".contains(each)).unwrap_or(rest.len());
    let module = rest[..end].trim_end_matches('.').replace('.', "/");
    let path = path.strip_prefix("src/").unwrap_or(path);
    match path.strip_suffix('/') {
        Some(folder) => {
            module == folder || module.strip_prefix(folder).is_some_and(|in_it| in_it.starts_with('/'))
        }
        None => path.strip_suffix(".py").is_some_and(|file| module == file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_named_only_when_it_was_missed() {
        let warning = |detail: &str| Warning { pointer: POINTER.into(), detail: detail.into() };
        let warnings = [warning(".gitignore left data/ out"), warning(".gitignore left secret.py out")];
        let advised = |line: &str| {
            let mut end = End::of(EndReason::ExitNonzero, None);
            end.evidence.push(line.to_owned());
            explain(&mut end, &warnings);
            end.advice
        };
        let data = Some(".gitignore left data/ out: --input data/ or --here".to_owned());
        let missing = "FileNotFoundError: [Errno 2] No such file or directory: ";
        assert_eq!(advised(&format!("{missing}'data/train.csv'")), data);
        assert_eq!(advised(&format!("{missing}'/var/x/tasks/task_1/workspace/data/train.csv'")), data);
        assert_eq!(advised("cat: ./data/x: No such file or directory"), data);
        assert_eq!(advised("ls: data: No such file or directory"), data);
        assert_eq!(advised(&format!("{missing}'mydata/train.csv'")), None);
        assert_eq!(advised(&format!("{missing}'data2/train.csv'")), None);
        assert_eq!(advised("reading data/train.csv"), None);
        let module = advised("ModuleNotFoundError: No module named 'secret'");
        assert_eq!(module.unwrap(), ".gitignore left secret.py out: --input secret.py or --here");
        assert_eq!(advised("ModuleNotFoundError: No module named 'secrets'"), None);
        assert_eq!(advised(&format!("{missing}'/mnt/shared/data/x.bin'")), None, "another place");
        assert_eq!(advised(&format!("{missing}'/mnt/my data/x.bin'")), None);
        assert_eq!(advised("cat: /mnt/workspace/data/x: No such file or directory"), None);
        assert_eq!(advised("cat: other/data/x: No such file or directory"), None);
        assert_eq!(advised("cat: data.csv: No such file or directory"), None);
        assert_eq!(advised("cat: ../data/x: No such file or directory"), None);
        assert_eq!(advised("warning: data/cache not found, starting without"), None, "handled");
    }

    fn ended(detail: &str, evidence: &[&str]) -> End {
        let evidence = evidence.iter().map(|line| (*line).to_owned()).collect();
        End { evidence, ..End::of(EndReason::ExitNonzero, detail.to_owned()) }
    }

    fn advised(mut end: End, left_out: &str) -> Option<String> {
        let detail = format!(".gitignore left {left_out} out");
        explain(&mut end, &[Warning { pointer: POINTER.into(), detail }]);
        end.advice
    }

    #[test]
    fn only_what_decided_the_end_is_asked() {
        let frame = "  File \"/w/a.py\", line 3, in <module>";
        let quoted = "    raise ValueError(x)  # \"cache data/: not found, so no cache\"";
        let end = || ended("exited with status 1: ValueError: x", &[frame, quoted, "ValueError: x"]);
        assert_eq!(advised(end(), "data/"), None, "a source line is not what happened");
        let probed = ["local.yaml: not found", "error: loss is nan"];
        assert_eq!(advised(ended("exited with status 1", &probed), "local.yaml"), None, "it went on");
        let by_rule = End {
            basis: Some("the program's last words (rule java-heap)".into()),
            ..ended("the Java heap was used up", &["local.yaml: not found"])
        };
        assert_eq!(advised(by_rule, "local.yaml"), None);
        let output = "the declared output `data/m` is not there".to_owned();
        assert_eq!(advised(End::of(EndReason::MissingOutput, output), "data/"), None, "it is no input");
    }

    #[test]
    fn a_folder_that_is_called_like_a_module_need_not_be_it() {
        let import = |module: &str| End {
            advice: Some("install it".into()),
            ..ended(
                "",
                &["  File \"a.py\", line 1", &format!("ModuleNotFoundError: No module named '{module}'")],
            )
        };
        let both = advised(import("wandb"), "wandb/").unwrap();
        assert_eq!(
            both,
            ".gitignore left wandb/ out; if it is that module: --input wandb/ or --here; else: install it"
        );
        assert!(
            advised(import("lib.net"), "lib/net.py").unwrap().starts_with(".gitignore left lib/net.py out: ")
        );
        assert!(advised(import("lib.net"), "src/lib/").unwrap().contains("--input src/lib/"));
        assert_eq!(advised(import("wandb"), "runs/wandb/").as_deref(), Some("install it"));
    }
}
