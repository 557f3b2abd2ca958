//! What a job waits for: on the worker that could take it the soonest, what is missing and which tasks hold it. Room that
//! comes free for another is no promise: then the other is named, whose turn is first.

use std::collections::BTreeSet;

use super::fit::{Cores, Wants};
use super::gpus::{GpuUuid, PoolGpu};
use super::pool::{Holding, Place};
use super::reservations::{Applicant, Way};
use super::sizes::Bytes;
use super::{Placer, Pool, PoolWorker, QueuedJob, QuotaLack};
use crate::contract::explain::{Holder, ReservedFor, WaitingFor};
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::quantity::Timestamp;

/// Holders that are named at most.
const NAMED: usize = 3;

/// Of two workers the one is better that is free sooner; what nobody knows comes last.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Prospect {
    /// Nobody knows either what comes after whose turn is first.
    reserved_for: Option<JobId>,
    unknown: bool,
    ends_by: Option<Timestamp>,
    /// Tasks that have to end, those that end the soonest first.
    holders: Vec<(bool, Option<Timestamp>, Place)>,
    worker_id: WorkerId,
    what: String,
}

/// Tasks that have to end, those that end the soonest first; those whose end nobody knows come last.
type Holders = BTreeSet<(bool, Option<Timestamp>, Place)>;

/// See the module; `None` when it is not tasks that it waits for.
pub(super) fn waiting_for(
    job: &QueuedJob,
    applicant: &Applicant,
    placer: &Placer,
    now: Timestamp,
) -> Option<WaitingFor> {
    let pool = &placer.pool;
    let wants = Wants::of(&job.shape, pool);
    let able = |worker: &&PoolWorker| {
        worker.introduced() && worker.takes_tasks() && wants.lasting_lack(worker).is_none()
    };
    // Where there is room already the job waits for something else.
    let ready = pool.workers().filter(|worker| wants.lack(worker).is_none()).count();
    let missing = job.shape.nodes().checked_sub(ready).filter(|missing| *missing > 0)?;
    if let Some((holders, workers)) = leaving_for(job, &wants, placer) {
        let what = match holders.len() {
            1 => "1 task to leave".to_owned(),
            tasks => format!("{tasks} tasks to leave"),
        };
        return Some(WaitingFor { preempted: true, ..told(what, &workers, &holders, pool, now) });
    }
    let turn = Turn { applicant, placer, now };
    let mut prospects: Vec<Prospect> =
        pool.workers().filter(able).filter_map(|worker| turn.prospect(&wants, worker)).collect();
    prospects.sort_unstable();
    if prospects.len() < missing {
        return None;
    }
    prospects.truncate(missing);
    let workers: Vec<WorkerId> = prospects.iter().map(|prospect| prospect.worker_id).collect();
    let what = match prospects.as_slice() {
        [one] => one.what.clone(),
        several => format!("room on {} workers", several.len()),
    };
    let reserved_for = prospects.iter().find_map(|prospect| prospect.reserved_for);
    // A gang is on several of them.
    let holders = prospects.into_iter().flat_map(|prospect| prospect.holders).collect();
    let told = told(what, &workers, &holders, pool, now);
    Some(match reserved_for {
        None => told,
        Some(first) => WaitingFor {
            up_to_s: None,
            reserved_for: Some(ReservedFor {
                job: Some(first),
                until: placer.reservations.of(first).and_then(|reservation| reservation.free_by),
            }),
            ..told
        },
    })
}

fn told(what: String, workers: &[WorkerId], holders: &Holders, pool: &Pool, now: Timestamp) -> WaitingFor {
    let left = |ends_by: Option<Timestamp>| ends_by.map(|ends_by| ends_by.since(now));
    let held_by = holders.iter().take(NAMED).map(|(_, ends_by, place)| Holder {
        job: Some(place.job_id),
        submitted_by: None,
        up_to_s: left(*ends_by),
    });
    let names = workers.iter().filter_map(|id| pool.worker(*id)).map(super::explain::shown);
    WaitingFor {
        what,
        worker: names.collect::<Vec<_>>().join(", "),
        held_by: held_by.collect(),
        more: holders.len().saturating_sub(NAMED) as u64,
        up_to_s: holders.last().and_then(|(_, ends_by, _)| left(*ends_by)),
        preempted: false,
        reserved_for: None,
    }
}

/// Who holds what keeps a project from having more; none when nothing does, or no end would help.
pub(super) fn quota_holders(job: &QueuedJob, placer: &Placer, now: Timestamp) -> Vec<Holder> {
    let lack = placer.quota_lack(&job.project, &job.shape).filter(|lack| !lack.forever());
    let Some(lack) = lack else { return Vec::new() };
    let of_gpus = matches!(lack, QuotaLack::Gpus { .. });
    let holders: Holders = placer
        .pool
        .all_holdings()
        .filter(|(_, held)| held.project == job.project && !(of_gpus && held.grant.gpus.is_empty()))
        .map(|(place, held)| (held.ends_by.is_none(), held.ends_by, place))
        .collect();
    let first = holders.into_iter().take(NAMED);
    first
        .map(|(_, ends_by, place)| Holder {
            job: Some(place.job_id),
            submitted_by: None,
            up_to_s: ends_by.map(|ends_by| ends_by.since(now)),
        })
        .collect()
}

/// The tasks that were told to go where this job has its reservation, with its workers; `None` when there are none, or
/// when it takes more than that.
fn leaving_for(job: &QueuedJob, wants: &Wants, placer: &Placer) -> Option<(Holders, Vec<WorkerId>)> {
    let reservation = placer.reservations.of(job.job_id)?;
    let (mut holders, mut workers) = (Holders::new(), Vec::new());
    for part in &reservation.parts {
        let worker = placer.pool.worker(part.worker_id)?;
        let leaving: Vec<(Place, &Holding)> =
            placer.pool.holdings_of(worker.id).filter(|(place, _)| placer.leaving.contains(place)).collect();
        let free = leaving
            .iter()
            .fold(worker.free(), |free, (_, holding)| free.saturating_add(holding.grant.amount));
        let opens = |gpu: &&&PoolGpu| {
            !gpu.held || leaving.iter().any(|(_, holding)| holding.grant.gpus.contains(&gpu.uuid))
        };
        let gpus = wants.working_gpus(worker);
        if !free.holds(wants.amount) || gpus.iter().filter(opens).count() < wants.gpu_count(worker) {
            return None;
        }
        if !leaving.is_empty() {
            workers.push(worker.id);
        }
        holders.extend(leaving.iter().map(|(place, held)| (held.ends_by.is_none(), held.ends_by, *place)));
    }
    (!holders.is_empty()).then_some((holders, workers))
}

/// Whose turn is it where room comes free.
struct Turn<'a> {
    applicant: &'a Applicant,
    placer: &'a Placer,
    now: Timestamp,
}

impl Turn<'_> {
    /// `None` when no end of tasks helps there, or none is needed.
    fn prospect(&self, wants: &Wants, worker: &PoolWorker) -> Option<Prospect> {
        let pool = &self.placer.pool;
        let leaving = |place: &Place| self.placer.leaving.contains(place);
        let all = prospect(wants, worker, pool, &[], |_| true)?;
        // By then it would end later, too.
        let ends_by = self.applicant.ends_by.zip(all.ends_by.filter(|_| !all.unknown));
        let ends_by = ends_by.map(|(ends_by, free_by)| ends_by.plus(free_by.since(self.now)));
        let way = self.placer.reservations.way(worker.id, &Applicant { ends_by, ..*self.applicant });
        let besides = match way {
            Way::Open => return Some(all),
            // What is told to leave there makes room for whom it was reserved.
            Way::Besides(reserved) => prospect(wants, worker, pool, reserved, |place| !leaving(place)),
            Way::Closed => None,
        };
        besides.or_else(|| {
            let reserved_for = self.placer.reservations.on(worker.id);
            let holders = all.holders.into_iter().filter(|(_, _, place)| !leaving(place)).collect();
            Some(Prospect { reserved_for, holders, ..all })
        })
    }
}

/// What has to end there so that there is room besides the `closed` GPUs, of the tasks whose end `counts`; `None` when
/// none helps, or none is needed.
fn prospect(
    wants: &Wants,
    worker: &PoolWorker,
    pool: &Pool,
    closed: &[GpuUuid],
    counts: impl Fn(&Place) -> bool,
) -> Option<Prospect> {
    let mut holdings: Vec<(Place, &Holding)> =
        pool.holdings_of(worker.id).filter(|(place, _)| counts(place)).collect();
    holdings.sort_by_key(|(place, holding)| (holding.ends_by.is_none(), holding.ends_by, *place));
    let holder_of = |gpu: &PoolGpu| {
        let holds = |(_, holding): &(Place, &Holding)| holding.grant.gpus.contains(&gpu.uuid);
        holdings.iter().position(holds)
    };
    let mut working = wants.working_gpus(worker);
    working.retain(|gpu| !closed.contains(&gpu.uuid));
    let count = wants.gpu_count(worker);
    let missing_gpus = count.saturating_sub(working.iter().filter(|gpu| !gpu.held).count());
    let mut held: Vec<usize> = working.iter().filter_map(|gpu| holder_of(gpu)).collect();
    if held.len() < missing_gpus {
        return None;
    }
    held.sort_unstable();
    let mut ending: BTreeSet<usize> = held.into_iter().take(missing_gpus).collect();
    let free_now = worker.free();
    let what = match missing_gpus {
        0 if wants.amount.cpu_millis > free_now.cpu_millis => {
            Cores(wants.amount.cpu_millis - free_now.cpu_millis).to_string()
        }
        0 => format!("{} of memory", Bytes(wants.amount.memory_bytes.saturating_sub(free_now.memory_bytes))),
        1 => "1 GPU".to_owned(),
        count => format!("{count} GPUs"),
    };
    let given_back = |free, index: &usize| holdings[*index].1.grant.amount.saturating_add(free);
    let mut free = ending.iter().fold(free_now, given_back);
    for index in 0..holdings.len() {
        if free.holds(wants.amount) {
            break;
        }
        if ending.insert(index) {
            free = given_back(free, &index);
        }
    }
    if ending.is_empty() || !free.holds(wants.amount) {
        return None;
    }
    let holders: Vec<_> = ending
        .into_iter()
        .map(|index| (holdings[index].1.ends_by.is_none(), holdings[index].1.ends_by, holdings[index].0))
        .collect();
    let last = holders.last()?;
    let (unknown, ends_by) = (last.0, last.1);
    Some(Prospect { reserved_for: None, unknown, ends_by, holders, worker_id: worker.id, what })
}
