//! Why a shape is not placed: one reason per worker, grouped.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::fit::Wants;
use super::{Lack, Pool, Shape};
use crate::domain::spec::nearest;

/// How a shape stands to a worker, or to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Waiting does not help: the machine is not like that.
    Never,
    /// It would fit if less were taken.
    NotNow,
    /// It fits.
    Fits,
}

/// One reason and the workers it holds for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerReason {
    /// Whether waiting helps.
    pub verdict: Verdict,
    /// What is missing, for people.
    pub reason: String,
    /// Names of the workers, by id.
    pub workers: Vec<String>,
}

impl fmt::Display for WorkerReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.workers.len() {
            1 => write!(f, "1 worker: {}", self.reason),
            count => write!(f, "{count} workers: {}", self.reason),
        }
    }
}

/// Every worker's reason, grouped: what may still change first, then what never fits.
pub fn explain(shape: &Arc<Shape>, pool: &Pool) -> Vec<WorkerReason> {
    let wants = Wants::of(shape, pool);
    let mut groups: BTreeMap<Option<Lack<'_>>, Vec<String>> = BTreeMap::new();
    for worker in pool.workers() {
        let shown = if worker.name.is_empty() { worker.id.to_string() } else { worker.name.clone() };
        groups.entry(wants.lack_in_words(worker, pool)).or_default().push(shown);
    }
    let mut reasons: Vec<WorkerReason> = groups
        .into_iter()
        .map(|(lack, workers)| WorkerReason {
            verdict: verdict_of(lack.as_ref()),
            reason: match lack {
                None => "has room".to_owned(),
                Some(lack) => match near_miss(&lack, pool) {
                    Some(near) => format!("{lack} (nearest: {near})"),
                    None => lack.to_string(),
                },
            },
            workers,
        })
        .collect();
    reasons.sort_by_key(|reason| Reverse(reason.verdict));
    reasons
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

/// [`explain`] in one line, for `queue_reason`.
pub fn queue_reason(shape: &Arc<Shape>, pool: &Pool) -> String {
    let reasons = explain(shape, pool);
    if reasons.is_empty() {
        return "no worker is connected".to_owned();
    }
    let lines: Vec<String> = reasons.iter().map(WorkerReason::to_string).collect();
    lines.join(" · ")
}

/// Whether a [`queue_reason`] says that waiting does not help: no worker of the pool is like that.
pub fn never_fits(reason: &str) -> bool {
    const MAY_CHANGE: [&str; 4] = ["has room", "takes no tasks now", "(unhealthy)", " free of "];
    reason.split(" · ").all(|line| {
        let lack = line.split_once(": ").map(|(_, lack)| lack);
        lack.is_some_and(|lack| lack != "draining" && !MAY_CHANGE.iter().any(|words| lack.contains(words)))
    })
}

/// The best any worker can do. Without workers it is `NotNow`: one may join.
pub fn verdict(shape: &Arc<Shape>, pool: &Pool) -> Verdict {
    let wants = Wants::of(shape, pool);
    pool.workers().map(|worker| verdict_of(wants.lack(worker).as_ref())).max().unwrap_or(Verdict::NotNow)
}

fn verdict_of(lack: Option<&Lack<'_>>) -> Verdict {
    match lack {
        None => Verdict::Fits,
        Some(lack) if lack.forever() => Verdict::Never,
        Some(_) => Verdict::NotNow,
    }
}
