//! The workers with room for one shape, best last, as far as a pass has not filled them yet.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::fit::Wants;
use super::gpus::{self, GpuUuid, PoolGpu};
use super::reservations::{Applicant, Reservations, Way};
use super::warmth::Warmth;
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

    /// What workers have in common between which warmth may decide.
    const fn without_id(&self) -> (usize, Amount) {
        (self.gpus_left, self.left)
    }
}

/// A worker for a task, with the GPUs to give.
pub(super) type Seat = (WorkerId, Vec<GpuUuid>);

/// What seats are looked for on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ground<'a> {
    pub(super) pool: &'a Pool,
    pub(super) reservations: &'a Reservations,
    pub(super) warmth: &'a Warmth,
}

/// A seat that is open to the applicant.
#[derive(Debug)]
struct Found<'a> {
    score: Score,
    worker: &'a PoolWorker,
    gpus: Vec<&'a PoolGpu>,
}

impl Found<'_> {
    fn seat(self) -> Seat {
        (self.worker.id, self.gpus.into_iter().map(|gpu| gpu.uuid.clone()).collect())
    }
}

/// See the module. Room only shrinks during a pass, so a worker that no longer fits never comes back, and the best
/// one, having less left after each task, stays the best until it is full.
#[derive(Debug)]
pub(super) struct Candidates {
    pub(super) wants: Wants,
    /// A worker that was taken before its turn stands here twice.
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

    /// Seats for one applicant on so many workers, each on another; on others than it avoids if there are enough.
    pub(super) fn seats(
        &mut self,
        nodes: usize,
        applicant: &Applicant,
        ground: Ground<'_>,
        checks: &mut u32,
    ) -> Option<Vec<Seat>> {
        if nodes > 1 {
            let found = self.open(nodes, applicant, ground, checks);
            let chosen = in_one_zone(warm_first(found, applicant, ground.warmth), nodes);
            return (chosen.len() == nodes).then(|| chosen.into_iter().map(Found::seat).collect());
        }
        let best = self.open(1, applicant, ground, checks).pop()?;
        match self.warmer(&best, applicant, ground, checks) {
            Some(warmer) => {
                // What it has left is the least now: the next of this shape goes there as well.
                self.scores.push(warmer.score);
                Some(vec![warmer.seat()])
            }
            None => Some(vec![best.seat()]),
        }
    }

    /// The best one that is open, or for a gang all of them, to find a zone that has enough; what is full is dropped on
    /// the way.
    fn open<'a>(
        &mut self,
        nodes: usize,
        applicant: &Applicant,
        ground: Ground<'a>,
        checks: &mut u32,
    ) -> Vec<Found<'a>> {
        let (mut found, mut last_resort) = (Vec::new(), None);
        let mut index = self.scores.len();
        while index > 0 && (nodes > 1 || found.is_empty()) {
            index -= 1;
            *checks = checks.saturating_add(1);
            let score = self.scores[index];
            let Some(worker) = ground.pool.worker(score.id) else { continue };
            if !worker.free().holds(self.wants.amount) || self.wants.gpus_of(worker, |_| false).is_none() {
                self.scores.remove(index);
                continue;
            }
            let Some(gpus) = self.gpus_for(worker, applicant, ground.reservations) else { continue };
            let seat = Found { score, worker, gpus };
            if applicant.avoid == Some(worker.id) {
                last_resort = Some(seat);
            } else {
                found.push(seat);
            }
        }
        found.extend(last_resort.filter(|_| found.len() < nodes));
        found
    }

    /// The GPUs an applicant would be given on a worker; `None` = it is closed to it.
    fn gpus_for<'a>(
        &self,
        worker: &'a PoolWorker,
        applicant: &Applicant,
        reservations: &Reservations,
    ) -> Option<Vec<&'a PoolGpu>> {
        match reservations.way(worker.id, applicant) {
            Way::Open => self.wants.gpus_of(worker, |_| false),
            Way::Besides(reserved) => self.wants.gpus_of(worker, |gpu| reserved.contains(&gpu.uuid)),
            Way::Closed => None,
        }
    }

    /// One as good as `best` now, its GPUs as close together, that has more of what the applicant brings.
    fn warmer<'a>(
        &self,
        best: &Found<'a>,
        applicant: &Applicant,
        ground: Ground<'a>,
        checks: &mut u32,
    ) -> Option<Found<'a>> {
        let luggage = applicant.luggage;
        let tied = Score::of(&self.wants, best.worker).without_id();
        let mut degree = ground.warmth.degree(best.worker.id, luggage);
        let mut warmest = None;
        for worker in ground.warmth.holders(luggage).filter_map(|id| ground.pool.worker(id)) {
            *checks = checks.saturating_add(1);
            let score = Score::of(&self.wants, worker);
            let warmth = ground.warmth.degree(worker.id, luggage);
            if warmth <= degree
                || score.without_id() != tied
                || applicant.avoid == Some(worker.id)
                || self.wants.lack(worker).is_some()
            {
                continue;
            }
            let gpus = self.gpus_for(worker, applicant, ground.reservations);
            if let Some(gpus) = gpus.filter(|gpus| gpus::spread(gpus) <= gpus::spread(&best.gpus)) {
                degree = warmth;
                warmest = Some(Found { score, worker, gpus });
            }
        }
        warmest
    }
}

/// Among equals those first that have more of what the applicant brings.
fn warm_first<'a>(mut found: Vec<Found<'a>>, applicant: &Applicant, warmth: &Warmth) -> Vec<Found<'a>> {
    if !applicant.luggage.is_empty() {
        let degree = |found: &Found<'_>| Reverse(warmth.degree(found.worker.id, applicant.luggage));
        let avoided = |found: &Found<'_>| applicant.avoid == Some(found.worker.id);
        found.sort_by_cached_key(|one| (avoided(one), one.score.without_id(), degree(one), one.score.id));
    }
    found
}

/// The best `nodes` of the smallest zone that has so many; of all when none has.
fn in_one_zone(found: Vec<Found<'_>>, nodes: usize) -> Vec<Found<'_>> {
    let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
    for zone in found.iter().filter_map(|one| one.worker.labels.get(ZONE)) {
        *zones.entry(zone).or_default() += 1;
    }
    let fitting = zones
        .into_iter()
        .filter(|(_, workers)| *workers >= nodes)
        .min_by_key(|(zone, workers)| (*workers, *zone));
    let zone = fitting.map(|(zone, _)| zone.to_owned());
    let within = |one: &Found<'_>| zone.as_ref().is_none_or(|zone| one.worker.labels.get(ZONE) == Some(zone));
    found.into_iter().filter(within).take(nodes).collect()
}
