//! Arrays on the command line: which children `--array` means, what a parent's counts say, and the logs of all
//! children, one after the other.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::contact::{Contact, Perseverance};
use super::error::CliError;
use super::follow::{LogPrinter, each_line};
use super::next_step::NextStep;
use super::shown::tail;
use super::spec_building::given_text;
use crate::client::Call;
use crate::client::endpoint::encoded;
use crate::contract::array::ArrayProgress;
use crate::contract::ids::JobId;
use crate::contract::job::{Job, Page};

/// Children of one page of a list.
const PAGE: usize = 500;

/// `--array`: `N`, `FIRST-LAST`, a list `a,b,c` or `@FILE` with one item a line; each may end with `%MOST`.
pub(super) fn parsed(text: &str) -> Result<Map<String, Value>, CliError> {
    let fault = || CliError::Flag {
        flag: "--array",
        given: text.to_owned(),
        expected: "a count, FIRST-LAST, a list of items a,b,c or @FILE with one item a line; and %N for at most N at once",
    };
    // An item may have a `%` in it: only what ends in a number is a limit.
    let (what, most) = match text.rsplit_once('%') {
        Some((what, most)) if !most.is_empty() && most.bytes().all(|byte| byte.is_ascii_digit()) => {
            (what, Some(most.parse::<u64>().map_err(|_| fault())?))
        }
        _ => (text, None),
    };
    if most == Some(0) {
        return Err(CliError::Flag {
            flag: "--array",
            given: text.to_owned(),
            expected: "a %N of at least 1, the most children that run at once (without it all may)",
        });
    }
    let mut array = Map::new();
    let number = |part: &str| part.parse::<u64>().ok();
    let range = what.split_once('-').and_then(|(first, last)| Some((number(first)?, number(last)?)));
    if let Some(path) = what.strip_prefix('@') {
        let text = given_text("--array", Path::new(path))?;
        let items: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        array.insert("items".to_owned(), json!(items));
    } else if what.contains(',') {
        array.insert("items".to_owned(), what.split(',').map(str::trim).collect::<Vec<_>>().into());
    } else if let Some((first, last)) = range {
        let count = last.checked_sub(first).and_then(|span| span.checked_add(1)).ok_or_else(fault)?;
        array.insert("start".to_owned(), first.into());
        array.insert("count".to_owned(), count.into());
    } else {
        array.insert("count".to_owned(), number(what).ok_or_else(fault)?.into());
    }
    array.extend(most.map(|most| ("max_running".to_owned(), most.into())));
    Ok(array)
}

/// Where the children of an array are; `None` = the job is none.
pub(super) fn progress(job: &Job) -> Option<ArrayProgress> {
    serde_json::from_value(job.progress.clone()?).ok()
}

/// The counts of an array in one phrase.
pub(super) fn counts(progress: &ArrayProgress) -> String {
    told("children ended", progress)
}

/// The same behind the word `children`.
pub(super) fn counts_of_children(progress: &ArrayProgress) -> String {
    told("ended", progress)
}

fn told(ended: &str, progress: &ArrayProgress) -> String {
    let mut parts = vec![format!("{} of {} {ended}", progress.ended(), progress.total)];
    for (count, word) in [
        (progress.running, "running"),
        (progress.failed, "failed"),
        (progress.timed_out, "timed out"),
        (progress.cancelled, "cancelled"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    parts.join(", ")
}

/// What to type about an array, in the place of its log.
pub(super) fn next_steps(job: &Job, progress: &ArrayProgress, next: &NextStep) -> Vec<String> {
    let id = tail(job.id);
    let mut steps = vec![next.command(&format!("ps --parent {id}"))];
    if job.state.ended() && progress.succeeded < progress.total {
        steps.push(next.command(&format!("retry --failed {id}")));
    }
    steps
}

/// Prints the logs of all children, each from its beginning to its end, in the order of their indices.
pub(super) async fn logs_to_end(
    contact: &Contact<'_>,
    parent: JobId,
    printer: &mut LogPrinter,
) -> Result<(), CliError> {
    for child in children(contact, parent).await? {
        let index = child.array_index.unwrap_or_default();
        let mut after = 0;
        each_line(contact, child.id, &mut after, &mut |line, drained| {
            printer.line_of(Some(index), line)?;
            if drained { printer.flush() } else { Ok(()) }
        })
        .await?;
        printer.flush()?;
    }
    Ok(())
}

/// The children of an array, the first first.
async fn children(contact: &Contact<'_>, parent: JobId) -> Result<Vec<Job>, CliError> {
    let mut children: Vec<Job> = Vec::new();
    let mut cursor = String::new();
    let mut tries = Perseverance::of(contact);
    loop {
        let call = Call::get(format!("/v1/jobs?parent={parent}&limit={PAGE}{cursor}"));
        match tries.ask(&call).await.and_then(|answer| answer.json::<Page<Job>>()) {
            Ok(page) => {
                tries.progressed();
                children.extend(page.items);
                match page.next_cursor {
                    Some(next) => cursor = format!("&cursor={}", encoded(&next)),
                    None => break,
                }
            }
            Err(failed) => {
                if !tries.pause_after(&failed).await {
                    return Err(failed.into());
                }
            }
        }
    }
    children.reverse();
    Ok(children)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_say_an_array_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("items");
        std::fs::write(&file, "a b\n\nc\n").unwrap();
        let file = format!("@{}%3", file.display());
        for (text, expected) in [
            ("10", json!({"count": 10})),
            ("0-999%16", json!({"start": 0, "count": 1000, "max_running": 16})),
            ("a,b,c", json!({"items": ["a", "b", "c"]})),
            ("50%,60%", json!({"items": ["50%", "60%"]})),
            ("a,b%2", json!({"items": ["a", "b"], "max_running": 2})),
            (file.as_str(), json!({"items": ["a b", "c"], "max_running": 3})),
        ] {
            assert_eq!(Value::Object(parsed(text).unwrap()), expected, "{text}");
        }
        for text in ["", "x", "5-3", "1-x", "%3", "@/nowhere/items"] {
            assert!(parsed(text).is_err(), "{text}");
        }
        let none = parsed("4%0").unwrap_err().to_string();
        assert!(none.starts_with("--array 4%0: expected a %N of at least 1"), "{none}");
    }

    #[test]
    fn counts_say_what_matters() {
        let mut progress = ArrayProgress::queued(10);
        assert_eq!(counts(&progress), "0 of 10 children ended");
        (progress.succeeded, progress.failed, progress.running) = (4, 1, 2);
        assert_eq!(counts(&progress), "5 of 10 children ended, 2 running, 1 failed");
    }
}
