//! Reservations: the place that a job will have which found none. A big job would never start if every small one that
//! fits went before it, so workers that could hold them are reserved for the first jobs of the queue that do not fit
//! now. Others are placed there (backfill) only if they end before the reserved job can start, or if they take what it
//! does not need.
//!
//! **The bound.** A reserved job starts at the latest when the tasks have ended that held its workers when they were
//! reserved, as long as these workers stay and no job of a higher priority comes. Reservations are made in the order of
//! service: where one waits for workers that are reserved for others, those behind it reserve nothing more.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::fit::Wants;
use super::gpus::{GpuUuid, PoolGpu};
use super::{Amount, Luggage, Pool, PoolWorker};
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::quantity::Timestamp;

/// What is reserved for one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its priority: only jobs above it may go before.
    pub priority: i32,
    /// When all of it is free at the latest; `None` = nobody knows.
    pub free_by: Option<Timestamp>,
    /// One for each worker.
    pub parts: Vec<ReservedPart>,
}

/// What is reserved on one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedPart {
    /// Which.
    pub worker_id: WorkerId,
    /// These GPUs.
    pub gpus: Vec<GpuUuid>,
    /// What others may hold there beyond `free_by`.
    spare: Amount,
}

impl ReservedPart {
    /// A part of a reservation; `spare` is what others may hold there for longer than the reserved job waits.
    pub(super) fn new(worker_id: WorkerId, gpus: Vec<GpuUuid>, spare: Amount) -> Self {
        Self { worker_id, gpus, spare }
    }
}

/// Somebody who would like a place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Applicant {
    pub(super) job_id: JobId,
    pub(super) priority: i32,
    pub(super) amount: Amount,
    pub(super) ends_by: Option<Timestamp>,
    /// A worker to keep away from if another would do.
    pub(super) avoid: Option<WorkerId>,
    pub(super) luggage: Luggage,
}

/// What an applicant may take of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way<'a> {
    /// What is free.
    Open,
    /// What is free without these GPUs.
    Besides(&'a [GpuUuid]),
    /// Nothing.
    Closed,
}

/// All reservations. A worker has one at most.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Reservations {
    by_job: BTreeMap<JobId, Reservation>,
    by_worker: BTreeMap<WorkerId, JobId>,
    /// Counts how often one was dropped: what could not be reserved may be free for it now.
    dropped: u64,
}

impl Reservations {
    /// How many.
    pub fn len(&self) -> usize {
        self.by_job.len()
    }

    /// Whether nothing is reserved.
    pub fn is_empty(&self) -> bool {
        self.by_job.is_empty()
    }

    /// What is reserved for a job.
    pub fn of(&self, job_id: JobId) -> Option<&Reservation> {
        self.by_job.get(&job_id)
    }

    /// Every reservation, by job.
    pub fn all(&self) -> impl Iterator<Item = (JobId, &Reservation)> {
        self.by_job.iter().map(|(job_id, reservation)| (*job_id, reservation))
    }

    /// For whom a worker is reserved.
    pub fn on(&self, worker_id: WorkerId) -> Option<JobId> {
        self.by_worker.get(&worker_id).copied()
    }

    fn part(&self, worker_id: WorkerId) -> Option<(JobId, &Reservation, &ReservedPart)> {
        let job_id = self.on(worker_id)?;
        let reservation = self.by_job.get(&job_id)?;
        Some((job_id, reservation, reservation.parts.iter().find(|part| part.worker_id == worker_id)?))
    }

    pub(super) fn way(&self, worker_id: WorkerId, applicant: &Applicant) -> Way<'_> {
        let Some((reserved_for, reservation, part)) = self.part(worker_id) else { return Way::Open };
        if reserved_for == applicant.job_id
            || applicant.priority > reservation.priority
            || is_over(applicant, reservation)
        {
            Way::Open
        } else if part.spare.holds(applicant.amount) {
            Way::Besides(&part.gpus)
        } else {
            Way::Closed
        }
    }

    /// An applicant took its place.
    pub(super) fn passed(&mut self, worker_id: WorkerId, applicant: &Applicant) {
        let Some(reserved_for) = self.on(worker_id) else { return };
        let Some(reservation) = self.by_job.get_mut(&reserved_for) else { return };
        if reserved_for == applicant.job_id || is_over(applicant, reservation) {
            return;
        }
        for part in reservation.parts.iter_mut().filter(|part| part.worker_id == worker_id) {
            part.spare = part.spare.saturating_sub(applicant.amount);
        }
    }

    pub(super) fn make(&mut self, job_id: JobId, reservation: Reservation) {
        for part in &reservation.parts {
            self.by_worker.insert(part.worker_id, job_id);
        }
        self.by_job.insert(job_id, reservation);
    }

    /// Stands for the newest drop.
    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Nothing is reserved for a job any more; the workers that are open again.
    pub(super) fn drop_of(&mut self, job_id: JobId) -> Vec<WorkerId> {
        let Some(reservation) = self.by_job.remove(&job_id) else { return Vec::new() };
        self.dropped += 1;
        let workers: Vec<WorkerId> = reservation.parts.into_iter().map(|part| part.worker_id).collect();
        for worker_id in &workers {
            self.by_worker.remove(worker_id);
        }
        workers
    }
}

fn is_over(applicant: &Applicant, reservation: &Reservation) -> bool {
    matches!((applicant.ends_by, reservation.free_by), (Some(ends_by), Some(free_by)) if ends_by <= free_by)
}

/// When a worker could take a task of these wants at the latest, and what it would be given. Order: the soonest, and
/// what nobody knows last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Prospect {
    unknown: bool,
    free_by: Option<Timestamp>,
    /// Tasks that have to end first.
    tasks: usize,
    worker_id: WorkerId,
    gpus: Vec<GpuUuid>,
    spare: Amount,
}

/// The reservation of a job of these wants on `nodes` workers, of those that are not reserved; `None` = too few could ever take it.
/// Looks at every worker once.
pub(super) fn reserve(
    wants: &Wants,
    nodes: usize,
    priority: i32,
    pool: &Pool,
    reservations: &Reservations,
    now: Timestamp,
) -> Option<Reservation> {
    let mut prospects: Vec<Prospect> = pool
        .workers()
        .filter(|worker| worker.introduced() && worker.takes_tasks() && reservations.on(worker.id).is_none())
        .filter(|worker| wants.lasting_lack(worker).is_none())
        .filter_map(|worker| prospect(wants, worker, pool, now))
        .collect();
    prospects.sort_unstable();
    if prospects.len() < nodes {
        return None;
    }
    prospects.truncate(nodes);
    let free_by = match prospects.iter().any(|prospect| prospect.unknown) {
        true => None,
        false => prospects.iter().filter_map(|prospect| prospect.free_by).max(),
    };
    let part = |prospect: Prospect| ReservedPart::new(prospect.worker_id, prospect.gpus, prospect.spare);
    Some(Reservation { priority, free_by, parts: prospects.into_iter().map(part).collect() })
}

fn prospect(wants: &Wants, worker: &PoolWorker, pool: &Pool, now: Timestamp) -> Option<Prospect> {
    // Soonest first; what nobody knows the end of comes last.
    let mut holdings: Vec<_> = pool.holdings_of(worker.id).map(|(_, holding)| holding).collect();
    holdings.sort_by_key(|holding| (holding.ends_by.is_none(), holding.ends_by));
    let ends_of = |gpu: &PoolGpu| {
        let holder = holdings.iter().find(|holding| holding.grant.gpus.contains(&gpu.uuid));
        holder.map_or((false, Some(now)), |holding| (holding.ends_by.is_none(), holding.ends_by))
    };
    let mut gpus = wants.working_gpus(worker);
    gpus.sort_by_key(|gpu| ends_of(gpu));
    let count = wants.gpu_count(worker);
    if gpus.len() < count {
        return None;
    }
    gpus.truncate(count);
    let mut latest = gpus.iter().map(|gpu| ends_of(gpu)).max().unwrap_or((false, Some(now)));
    let (mut free, mut tasks) = (worker.free(), 0);
    for holding in &holdings {
        if free.holds(wants.amount) {
            break;
        }
        free = free.saturating_add(holding.grant.amount);
        tasks += 1;
        latest = latest.max((holding.ends_by.is_none(), holding.ends_by));
    }
    if !free.holds(wants.amount) {
        return None;
    }
    let (unknown, free_by) = latest;
    // Where nobody knows when, all that runs now is waited for.
    let stays = holdings
        .iter()
        .filter(|holding| !unknown && (holding.ends_by.is_none() || holding.ends_by > free_by));
    let late = stays.fold(Amount::default(), |sum, holding| sum.saturating_add(holding.grant.amount));
    let spare = worker.total.saturating_sub(late).saturating_sub(wants.amount);
    let gpus = gpus.into_iter().map(|gpu| gpu.uuid.clone()).collect();
    Some(Prospect { unknown, free_by, tasks, worker_id: worker.id, gpus, spare })
}
