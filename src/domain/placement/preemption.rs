//! Preemption: which tasks have to go so that a job of a higher priority finds its place. Only tasks of projects whose
//! owner allowed it, and only for a higher priority than theirs; as few as will do, the lowest priority and the newest
//! job first.

use std::cmp::Reverse;

use super::fit::Wants;
use super::gpus::GpuUuid;
use super::pool::{Holding, Place};
use super::reservations::{Reservation, ReservedPart};
use super::{Amount, Placer, PoolWorker};
use crate::contract::ids::WorkerId;

/// What it takes to make room on one worker; the smallest is the best.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sacrifice {
    highest_priority: Option<i32>,
    tasks: usize,
    worker: WorkerId,
    victims: Vec<Place>,
    gpus: Vec<GpuUuid>,
    spare: Amount,
}

/// Whom to stop for a job of these wants on `nodes` workers, and what is reserved for it meanwhile; `None` = that makes no
/// room.
pub(super) fn find(
    wants: &Wants,
    nodes: usize,
    priority: i32,
    placer: &Placer,
    checks: &mut u32,
) -> Option<(Reservation, Vec<Place>)> {
    let mut found: Vec<Sacrifice> = placer
        .pool
        .workers()
        .inspect(|_| *checks = checks.saturating_add(1))
        .filter(|worker| {
            worker.introduced() && worker.takes_tasks() && placer.reservations.on(worker.id).is_none()
        })
        .filter(|worker| wants.lasting_lack(worker).is_none())
        .filter_map(|worker| sacrifice(wants, worker, priority, placer))
        .collect();
    found.sort_unstable();
    if found.len() < nodes {
        return None;
    }
    found.truncate(nodes);
    let mut victims = Vec::new();
    let mut parts = Vec::with_capacity(nodes);
    for sacrifice in found {
        victims.extend(sacrifice.victims);
        parts.push(ReservedPart::new(sacrifice.worker, sacrifice.gpus, sacrifice.spare));
    }
    victims.sort_unstable();
    victims.dedup();
    // When the last of them has gone is theirs to say: they have their grace.
    Some((Reservation { priority, free_by: None, parts }, victims))
}

fn sacrifice(wants: &Wants, worker: &PoolWorker, priority: i32, placer: &Placer) -> Option<Sacrifice> {
    let yields = |place: Place, holding: &Holding| {
        holding.priority < priority
            && placer.policy.is_preemptible(&holding.project)
            && !placer.leaving.contains(&place)
    };
    let mut yielding: Vec<(Place, &Holding)> =
        placer.pool.holdings_of(worker.id).filter(|(place, holding)| yields(*place, holding)).collect();
    yielding.sort_by_key(|(place, holding)| (holding.priority, Reverse(*place)));
    let count = wants.gpu_count(worker);
    let working = wants.working_gpus(worker);
    let mut open: Vec<GpuUuid> =
        working.iter().filter(|gpu| gpu.free()).map(|gpu| gpu.uuid.clone()).collect();
    let (mut free, mut victims, mut highest_priority) = (worker.free(), Vec::new(), None);
    for (place, holding) in yielding {
        if free.holds(wants.amount) && open.len() >= count {
            break;
        }
        let frees: Vec<GpuUuid> = working
            .iter()
            .filter(|gpu| holding.grant.gpus.contains(&gpu.uuid))
            .map(|gpu| gpu.uuid.clone())
            .collect();
        // One that holds nothing of what is short stays.
        if free.holds(wants.amount) && frees.is_empty() {
            continue;
        }
        free = free.saturating_add(holding.grant.amount);
        open.extend(frees);
        highest_priority = Some(holding.priority);
        victims.push(place);
    }
    if !free.holds(wants.amount) || open.len() < count {
        return None;
    }
    open.truncate(count);
    let spare = free.saturating_sub(wants.amount);
    Some(Sacrifice { highest_priority, tasks: victims.len(), worker: worker.id, victims, gpus: open, spare })
}
