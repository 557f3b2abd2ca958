//! A file that the program missed, and that stayed behind when its source was sent.

use crate::contract::end::End;
use crate::contract::job::{LeftOutOfSource, MOST_LEFT_OUT};
use crate::contract::problem::Warning;

/// Where a submission's warnings about left-out files point.
pub const POINTER: &str = "/source";

/// Longer names are not remembered.
const MOST_BYTES: usize = 1_024;

/// Completes an end whose evidence names something that was left out of the source: what to try is then known.
pub fn explain(end: &mut End, warnings: &[Warning]) {
    let said: Vec<&str> = end.evidence.iter().chain(&end.detail).map(String::as_str).collect();
    let missed = warnings
        .iter()
        .filter(|warning| warning.pointer == POINTER)
        .filter_map(|warning| read(&warning.detail))
        .find(|(_, path)| said.iter().any(|line| names(line, path)));
    if let Some((by, path)) = missed {
        end.advice = Some(format!("{by} left {path} out: --input {path} or --here"));
    }
}

/// The warnings about what a submission left out: `.gitignore left data/ out`. The client's word is taken as it is, only
/// not without end.
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
fn names(line: &str, path: &str) -> bool {
    const ABSENT: [&str; 7] = [
        "No such file",
        "not found",
        "No module named",
        "cannot open",
        "can't open",
        "is not there",
        "does not exist",
    ];
    if !ABSENT.iter().any(|words| line.contains(words)) {
        return false;
    }
    let bare = path.trim_end_matches('/');
    let is_part = |each: char| each.is_alphanumeric() || "_-.".contains(each);
    let module = bare.rsplit('/').next().unwrap_or(bare).trim_end_matches(".py");
    let paths = line.match_indices(bare).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let behind = line[at + bare.len()..].chars().next();
        // `./data`, `/workspace/data`, `'data/x'`, but not `mydata` and not `data2`.
        !before.is_some_and(is_part) && !behind.is_some_and(|each| is_part(each) && each != '.')
            || (before == Some('.') && line[..at].ends_with("./"))
    });
    let modules = line.split_once("No module named ").is_some_and(|(_, name)| {
        name.trim_matches(['\'', '"', '`']).split(['.', '\'', '`']).next() == Some(module)
    });
    paths || modules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::end::EndReason;

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
        assert_eq!(advised(&format!("{missing}'/var/x/workspace/data/train.csv'")), data);
        assert_eq!(advised("cat: ./data/x: No such file or directory"), data);
        assert_eq!(advised("ls: data: No such file or directory"), data);
        assert_eq!(advised(&format!("{missing}'mydata/train.csv'")), None);
        assert_eq!(advised(&format!("{missing}'data2/train.csv'")), None);
        assert_eq!(advised("reading data/train.csv"), None);
        let module = advised("ModuleNotFoundError: No module named 'secret'");
        assert_eq!(module.unwrap(), ".gitignore left secret.py out: --input secret.py or --here");
        assert_eq!(advised("ModuleNotFoundError: No module named 'secrets'"), None);
    }
}
