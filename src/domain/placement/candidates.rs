//! The workers with room for one shape, best last, as far as a pass has not filled them yet.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::fit::Wants;
use super::gpus::GpuUuid;
use super::reservations::{Applicant, Reservations, Way};
use super::{Amount, Pool, PoolWorker};
use crate::contract::ids::WorkerId;

/// The label that says where a machine stands: the nodes of a gang are best in one zone.
const ZONE: &str = "zone";

/// Which of two workers is better for a shape; the smallest wins. The order of the fields is the policy: machines
/// with GPUs are kept for whom needs them, the fullest worker that still fits is filled, so that large holes stay
/// whole, and the id decides what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// GPUs that are left idle there, or left without cores.
    gpus_left: usize,
    left: Amount,
    id: WorkerId,
}

impl Score {
    fn of(wants: &Wants, worker: &PoolWorker) -> Self {
        let gpus_left = worker.gpus().iter().filter(|gpu| gpu.free()).count();
        Self {
            gpus_left: gpus_left.saturating_sub(wants.gpu_count(worker)),
            left: worker.free().saturating_sub(wants.amount),
            id: worker.id,
        }
    }
}

/// A worker for a task, with the GPUs to give.
pub(super) type Seat = (WorkerId, Vec<GpuUuid>);

/// See the module. Room only shrinks during a pass, so a worker that no longer fits never comes back, and the best
/// one, having less left after each task, stays the best until it is full.
#[derive(Debug)]
pub(super) struct Candidates {
    pub(super) wants: Wants,
    scores: Vec<Score>,
}

impl Candidates {
    pub(super) fn find<'a>(
        wants: Wants,
        workers: impl Iterator<Item = &'a PoolWorker>,
        checks: &mut u32,
    ) -> Self {
        let mut scores: Vec<Score> = workers
            .inspect(|_| *checks = checks.saturating_add(1))
            .filter(|worker| wants.lack(worker).is_none())
            .map(|worker| Score::of(&wants, worker))
            .collect();
        scores.sort_unstable_by_key(|score| Reverse(*score));
        Self { wants, scores }
    }

    /// Seats for one applicant on so many workers, each on another; on others than `avoid` if there are enough.
    pub(super) fn seats(
        &mut self,
        nodes: usize,
        avoid: Option<WorkerId>,
        applicant: &Applicant,
        pool: &Pool,
        reservations: &Reservations,
        checks: &mut u32,
    ) -> Option<Vec<Seat>> {
        let mut found: Vec<(&PoolWorker, Vec<GpuUuid>)> = Vec::with_capacity(nodes);
        let mut last_resort = None;
        let mut index = self.scores.len();
        // For a gang all of them are looked at, to find a zone that has enough.
        while index > 0 && (nodes > 1 || found.len() < nodes) {
            index -= 1;
            *checks = checks.saturating_add(1);
            let Some(worker) = pool.worker(self.scores[index].id) else { continue };
            if !worker.free().holds(self.wants.amount) || self.wants.gpus_of(worker, |_| false).is_none() {
                self.scores.remove(index);
                continue;
            }
            let gpus = match reservations.way(worker.id, applicant) {
                Way::Open => self.wants.gpus_of(worker, |_| false),
                Way::Besides(reserved) => self.wants.gpus_of(worker, |gpu| reserved.contains(&gpu.uuid)),
                Way::Closed => None,
            };
            let Some(gpus) = gpus else { continue };
            let seat = (worker, gpus.into_iter().map(|gpu| gpu.uuid.clone()).collect());
            if avoid == Some(worker.id) {
                last_resort = Some(seat);
            } else {
                found.push(seat);
            }
        }
        found.extend(last_resort.filter(|_| found.len() < nodes));
        let chosen = if nodes > 1 { in_one_zone(found, nodes) } else { found };
        (chosen.len() == nodes).then(|| chosen.into_iter().map(|(worker, gpus)| (worker.id, gpus)).collect())
    }
}

/// The best `nodes` of the smallest zone that has so many; of all when none has.
fn in_one_zone(found: Vec<(&PoolWorker, Vec<GpuUuid>)>, nodes: usize) -> Vec<(&PoolWorker, Vec<GpuUuid>)> {
    let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
    for zone in found.iter().filter_map(|(worker, _)| worker.labels.get(ZONE)) {
        *zones.entry(zone).or_default() += 1;
    }
    let fitting = zones
        .into_iter()
        .filter(|(_, workers)| *workers >= nodes)
        .min_by_key(|(zone, workers)| (*workers, *zone));
    let zone = fitting.map(|(zone, _)| zone.to_owned());
    let within = |worker: &PoolWorker| zone.as_ref().is_none_or(|zone| worker.labels.get(ZONE) == Some(zone));
    found.into_iter().filter(|(worker, _)| within(worker)).take(nodes).collect()
}
