//! Why a shape is not placed: one reason per worker, grouped.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::fit::Wants;
use super::{Lack, Pool, PoolWorker, Shape};
pub use crate::contract::explain::Verdict;
use crate::contract::explain::{ReservedFor, WorkersAnswer};
use crate::domain::spec::nearest;

/// The reason of a job that waits where there is no worker at all.
pub const NO_WORKER: &str = "no worker is connected";

/// Of a worker with room. Which job it is for is for those to know who may see that.
pub const RESERVED: &str = "has room, reserved for another job";

/// What one worker lacks for good that is said at most.
const LACKS: usize = 3;

/// Every worker's answer, grouped: what may still change first, then what never fits. `kept` says of a worker with
/// room for whom it is kept, when that is not this job.
pub fn explain(
    shape: &Arc<Shape>,
    pool: &Pool,
    kept: impl Fn(&PoolWorker) -> Option<ReservedFor>,
) -> Vec<WorkersAnswer> {
    let wants = Wants::of(shape, pool);
    let mut groups: BTreeMap<(Vec<Lack<'_>>, Option<ReservedFor>), Vec<String>> = BTreeMap::new();
    for worker in pool.workers() {
        let lacks = wants.lacks_in_words(worker, pool);
        let kept = if lacks.is_empty() { kept(worker) } else { None };
        groups.entry((lacks, kept)).or_default().push(shown(worker));
    }
    let said = |lack: &Lack<'_>| match near_miss(lack, pool) {
        Some(near) => format!("{lack} (nearest: {near})"),
        None => lack.to_string(),
    };
    let mut reasons: Vec<WorkersAnswer> = groups
        .into_iter()
        .map(|((lacks, kept), workers)| WorkersAnswer {
            verdict: match &kept {
                Some(_) => Verdict::NotNow,
                None => verdict_of(&lacks),
            },
            reason: match &kept {
                _ if !lacks.is_empty() => lacks.iter().take(LACKS).map(said).collect::<Vec<_>>().join("; "),
                Some(_) => RESERVED.to_owned(),
                None => "has room".to_owned(),
            },
            reserved_for: kept,
            workers,
        })
        .collect();
    reasons.sort_by_key(|reason| Reverse(reason.verdict));
    reasons
}

/// A worker's name, or its id before its first word.
pub(super) fn shown(worker: &PoolWorker) -> String {
    if worker.name.is_empty() { worker.id.to_string() } else { worker.name.clone() }
}

/// Of a worker's name or a label that nobody has: what there is that it may have been meant for.
fn near_miss<'a>(lack: &Lack<'_>, pool: &'a Pool) -> Option<&'a str> {
    fn unless_known<'a>(wanted: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
        if known.clone().any(|known| known == wanted) { None } else { nearest(wanted, known) }
    }
    let workers = pool.workers().collect::<Vec<_>>();
    match *lack {
        Lack::Worker { wanted } => unless_known(wanted, workers.iter().map(|worker| worker.name.as_str())),
        Lack::Label { key, .. } => {
            unless_known(key, workers.iter().flat_map(|worker| worker.labels.keys().map(String::as_str)))
        }
        _ => None,
    }
}

/// [`explain`] in one line, for `queue_reason`, where nothing is kept for others.
pub fn queue_reason(shape: &Arc<Shape>, pool: &Pool) -> String {
    line_of(&explain(shape, pool, |_| None), shape.nodes())
}

/// The answers in one line.
pub(super) fn line_of(answers: &[WorkersAnswer], nodes: usize) -> String {
    if answers.is_empty() {
        return NO_WORKER.to_owned();
    }
    // Workers that are kept for different jobs have different answers in the same words.
    let mut said: Vec<(usize, &str)> = Vec::with_capacity(answers.len());
    for answer in answers {
        match said.last_mut() {
            Some((count, reason)) if *reason == answer.reason => *count += answer.workers.len(),
            _ => said.push((answer.workers.len(), &answer.reason)),
        }
    }
    let in_one_line = |(count, reason): (usize, &str)| match count {
        1 => format!("1 worker: {reason}"),
        count => format!("{count} workers: {reason}"),
    };
    let lines: Vec<String> = said.into_iter().map(in_one_line).collect();
    let at_once = if nodes > 1 { format!("needs {nodes} workers at once · ") } else { String::new() };
    at_once + &lines.join(" · ")
}

/// Whether a [`queue_reason`] says that waiting does not help: no worker of the pool is like that.
pub fn never_fits(reason: &str) -> bool {
    const MAY_CHANGE: [&str; 5] =
        ["has room", "takes no tasks now", "(unhealthy)", " free of ", "are being looked at"];
    reason.split(" · ").all(|line| {
        let lack = line.split_once(": ").map(|(_, lack)| lack);
        lack.is_some_and(|lack| lack != "draining" && !MAY_CHANGE.iter().any(|words| lack.contains(words)))
    })
}

/// The best the workers can do: so many of them at once as the shape has nodes. Without workers it is `NotNow`: one may
/// join.
pub fn verdict(shape: &Arc<Shape>, pool: &Pool) -> Verdict {
    verdict_among(&explain(shape, pool, |_| None), shape.nodes())
}

/// The same from the workers' answers.
pub(super) fn verdict_among(answers: &[WorkersAnswer], nodes: usize) -> Verdict {
    let saying = |least: Verdict| -> usize {
        answers.iter().filter(|answer| answer.verdict >= least).map(|answer| answer.workers.len()).sum()
    };
    if answers.is_empty() {
        Verdict::NotNow
    } else if saying(Verdict::Fits) >= nodes {
        Verdict::Fits
    } else if saying(Verdict::NotNow) >= nodes {
        Verdict::NotNow
    } else {
        Verdict::Never
    }
}

fn verdict_of(lacks: &[Lack<'_>]) -> Verdict {
    match lacks {
        [] => Verdict::Fits,
        lacks if lacks.iter().any(Lack::forever) => Verdict::Never,
        _ => Verdict::NotNow,
    }
}
