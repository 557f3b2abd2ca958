//! One pass over the heads of the queue. Half a pass is a valid answer: what was placed stands, and the next
//! call goes on, because a shape without room is remembered until some worker has grown.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::fit::lack;
use super::{Amount, Placement, Pool, PoolWorker, Queue, QueuedJob, Shape};
use crate::contract::ids::WorkerId;

/// A job that found a place: out of the queue, its amount reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The job as it waited, to queue it again if the proposal is refused.
    pub job: QueuedJob,
    /// Where.
    pub worker_id: WorkerId,
    /// The worker's incarnation the decision was made on.
    pub incarnation: u64,
}

impl Placed {
    /// What goes to the supervisor.
    pub fn proposal(&self) -> Placement {
        Placement {
            job_id: self.job.job_id,
            job_epoch: self.job.epoch,
            worker_id: self.worker_id,
            incarnation: self.incarnation,
        }
    }
}

/// What a pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pass {
    /// In the order they were decided.
    pub placements: Vec<Placed>,
    /// How often a shape was held against a worker.
    pub checks: u32,
    /// The budget ran out: call again.
    pub exhausted: bool,
}

/// Which of two workers is better for a shape; the smallest wins. The order of the fields is the policy:
/// fill the fullest worker that still fits, so that large holes stay whole, and the id decides what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    left: Amount,
    id: WorkerId,
}

/// Workers with room for one shape, best last. Room only shrinks during a pass, so a worker that no longer fits
/// never comes back, and the best one, having less left after each task, stays the best until it is full.
struct Candidates(Vec<Score>);

impl Candidates {
    fn find<'a>(shape: &Shape, workers: impl Iterator<Item = &'a PoolWorker>, checks: &mut u32) -> Self {
        let amount = shape.amount();
        let mut scores: Vec<Score> = workers
            .inspect(|_| *checks = checks.saturating_add(1))
            .filter(|worker| lack(shape, worker).is_none())
            .map(|worker| Score { left: worker.free().saturating_sub(amount), id: worker.id })
            .collect();
        scores.sort_unstable_by_key(|score| Reverse(*score));
        Self(scores)
    }

    /// The best worker with room, another than `avoid` if there is one.
    fn best(
        &mut self,
        amount: Amount,
        avoid: Option<WorkerId>,
        pool: &Pool,
        checks: &mut u32,
    ) -> Option<WorkerId> {
        let mut fits = |id: WorkerId| {
            *checks = checks.saturating_add(1);
            pool.worker(id).is_some_and(|worker| worker.free().holds(amount))
        };
        while let Some(best) = self.0.last().copied() {
            if !fits(best.id) {
                self.0.pop();
                continue;
            }
            if avoid != Some(best.id) {
                return Some(best.id);
            }
            while let Some(second) = self.0.len().checked_sub(2) {
                if fits(self.0[second].id) {
                    return Some(self.0[second].id);
                }
                self.0.remove(second);
            }
            return Some(best.id);
        }
        None
    }
}

/// Places what can be placed now: highest priority first, then oldest, then by id. A shape without room is
/// skipped and blocks nobody else. Costs at most two checks per shape and worker, and two per placement;
/// `budget_checks` may be overrun by the scan of one shape, so that every call gets on.
pub fn place(queue: &mut Queue, pool: &mut Pool, budget_checks: u32) -> Pass {
    let mut pass = Pass::default();
    let mut heads: BinaryHeap<_> = queue.heads().map(Reverse).collect();
    let mut candidates: HashMap<u32, Candidates> = HashMap::new();
    while let Some(Reverse((turn, group))) = heads.pop() {
        let Some((shape, blocked_at)) = queue.standing(group) else { continue };
        if blocked_at == Some(pool.growth()) {
            continue;
        }
        if pass.checks >= budget_checks {
            pass.exhausted = true;
            break;
        }
        let amount = shape.amount();
        let candidates = candidates.entry(group).or_insert_with(|| match blocked_at {
            Some(growth) => Candidates::find(shape, pool.grown_since(growth), &mut pass.checks),
            None => Candidates::find(shape, pool.workers(), &mut pass.checks),
        });
        let Some(worker_id) = candidates.best(amount, queue.avoided(turn), pool, &mut pass.checks) else {
            queue.block(group, pool.growth());
            continue;
        };
        if pool.reserve(worker_id, amount).is_err() {
            continue;
        }
        let incarnation = pool.worker(worker_id).map_or(0, |worker| worker.incarnation);
        if let Some(job) = queue.remove(turn.job_id()) {
            pass.placements.push(Placed { job, worker_id, incarnation });
        }
        if let Some(next) = queue.head(group) {
            heads.push(Reverse((next, group)));
        }
    }
    pass
}
