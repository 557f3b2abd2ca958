//! What a job waits for: on the worker that could take it the soonest, what is missing and which tasks hold it.

use std::collections::BTreeSet;

use super::fit::{Bytes, Cores, Wants};
use super::gpus::PoolGpu;
use super::pool::{Holding, Place};
use super::{Placer, Pool, PoolWorker, QueuedJob};
use crate::contract::explain::{Holder, WaitingFor};
use crate::contract::ids::WorkerId;
use crate::contract::quantity::Timestamp;

/// Holders that are named at most.
const NAMED: usize = 3;

/// Of two workers the one is better that is free sooner; what nobody knows comes last.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Prospect {
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
pub(super) fn waiting_for(job: &QueuedJob, placer: &Placer, now: Timestamp) -> Option<WaitingFor> {
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
    let mut prospects: Vec<Prospect> =
        pool.workers().filter(able).filter_map(|worker| prospect(&wants, worker, pool)).collect();
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
    // A gang is on several of them.
    let holders = prospects.into_iter().flat_map(|prospect| prospect.holders).collect();
    Some(told(what, &workers, &holders, pool, now))
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
    }
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

/// `None` when no end of tasks helps there, or none is needed.
fn prospect(wants: &Wants, worker: &PoolWorker, pool: &Pool) -> Option<Prospect> {
    let mut holdings: Vec<(Place, &Holding)> = pool.holdings_of(worker.id).collect();
    holdings.sort_by_key(|(place, holding)| (holding.ends_by.is_none(), holding.ends_by, *place));
    let holder_of = |gpu: &PoolGpu| {
        let holds = |(_, holding): &(Place, &Holding)| holding.grant.gpus.contains(&gpu.uuid);
        holdings.iter().position(holds)
    };
    let working = wants.working_gpus(worker);
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
    Some(Prospect { unknown: last.0, ends_by: last.1, worker_id: worker.id, what, holders })
}
