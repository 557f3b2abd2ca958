//! What can be said of a job when it is submitted: that no worker there is could ever take it, with the smallest change
//! after which one could; and that only such could take it as no test covers.

use std::sync::Arc;

use super::explain::{explain, line_of};
use super::fit::Wants;
use super::{Budget, Placer, Pool, PoolWorker, Shape};
use crate::contract::explain::Suggestion;
use crate::domain::support::{self, Shortfall};

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// Why no worker could ever take it; `None` = one could, or there is none to judge by.
    pub never: Option<Never>,
    /// What is said of the support of the best worker that could, when no test covers it.
    pub untested: Option<String>,
}

/// No worker could ever take a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Never {
    /// What each of them lacks, or what the project may not have, in one line.
    pub reason: String,
    /// The smallest change after which one could.
    pub change: Option<Suggestion>,
    /// So many were asked. Who knows of more cannot be sure.
    pub judged: usize,
    /// Whether it is the owner's limit that keeps it from all of them, whoever joins.
    pub by_quota: bool,
}

impl Placer {
    /// What can be said at once of a job of this shape. Costs a check of each worker at most.
    pub fn outlook(&self, project: &str, shape: &Arc<Shape>) -> Outlook {
        if let Some(lack) = self.beyond_quota(project, shape) {
            let change = self.remedy(project, shape, &mut Budget::default());
            let never = Never { reason: lack.to_string(), change, judged: usize::MAX, by_quota: true };
            return Outlook { never: Some(never), untested: None };
        }
        let wants = Wants::of(shape, &self.pool);
        let (mut able, mut judged, mut best) = (0, 0, None);
        for worker in self.pool.workers() {
            judged += 1;
            if surely_lacks(&wants, worker) {
                continue;
            }
            able += 1;
            best = nearer(best, shortfall(&wants, worker, &self.pool));
            if able >= shape.nodes() && best == Some(None) {
                return Outlook { never: None, untested: None };
            }
        }
        if able < shape.nodes() && judged > 0 {
            return Outlook { never: Some(self.never(project, shape, judged)), untested: None };
        }
        Outlook { never: None, untested: best.flatten().map(|best| best.to_string()) }
    }

    fn never(&self, project: &str, shape: &Arc<Shape>, judged: usize) -> Never {
        let reason = line_of(&explain(shape, &self.pool, |_| None), shape.nodes());
        let change = self.remedy(project, shape, &mut Budget::default());
        Never { reason, change, judged, by_quota: false }
    }
}

/// One that has not said what it has may have anything; so may interpreters, as long as they are looked at.
fn surely_lacks(wants: &Wants, worker: &PoolWorker) -> bool {
    worker.introduced() && wants.lacks_for_good(worker)
}

/// What is said of the support of the best worker that could ever take a shape, when no test covers it.
pub(super) fn untested(wants: &Wants, pool: &Pool) -> Option<String> {
    let able = pool.workers().filter(|worker| wants.lasting_lack(worker).is_none());
    let best = able.fold(None, |best, worker| nearer(best, shortfall(wants, worker, pool)));
    best.flatten().map(|best| best.to_string())
}

/// `None` = tested, or nobody knows.
fn shortfall(wants: &Wants, worker: &PoolWorker, pool: &Pool) -> Option<Shortfall> {
    if !worker.introduced() {
        return None;
    }
    support::shortfall(&worker.os, &worker.arch, wants.vendor_on(worker, pool))
}

/// Of what is known so far and another: the one that is better supported.
fn nearer(known: Option<Option<Shortfall>>, other: Option<Shortfall>) -> Option<Option<Shortfall>> {
    match known {
        None => Some(other),
        Some(None) => Some(None),
        Some(Some(known)) => Some(other.map(|other| if other.level > known.level { other } else { known })),
    }
}
