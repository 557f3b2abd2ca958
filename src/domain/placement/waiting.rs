//! What a job waits for: on the worker that could take it the soonest, what is missing and which tasks hold it.

use std::collections::BTreeSet;

use super::fit::{Bytes, Cores, Wants};
use super::gpus::PoolGpu;
use super::pool::{Holding, Place};
use super::{Pool, PoolWorker, QueuedJob};
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

/// See the module; `None` when it is not tasks that it waits for, or when it needs several workers at once.
pub(super) fn waiting_for(job: &QueuedJob, pool: &Pool, now: Timestamp) -> Option<WaitingFor> {
    if job.shape.nodes() > 1 {
        return None;
    }
    let wants = Wants::of(&job.shape, pool);
    let able = |worker: &&PoolWorker| {
        worker.introduced() && worker.takes_tasks() && wants.lasting_lack(worker).is_none()
    };
    // Where there is room already the job waits for something else.
    if pool.workers().any(|worker| wants.lack(worker).is_none()) {
        return None;
    }
    let best = pool.workers().filter(able).filter_map(|worker| prospect(&wants, worker, pool)).min()?;
    let left = |ends_by: Option<Timestamp>| ends_by.map(|ends_by| ends_by.since(now));
    let named = best.holders.iter().take(NAMED);
    Some(WaitingFor {
        what: best.what,
        worker: pool.worker(best.worker_id).map_or_else(String::new, super::explain::shown),
        held_by: named
            .map(|(_, ends_by, place)| Holder {
                job: Some(place.job_id),
                submitted_by: None,
                up_to_s: left(*ends_by),
            })
            .collect(),
        more: best.holders.len().saturating_sub(NAMED) as u64,
        up_to_s: left(best.ends_by.filter(|_| !best.unknown)),
    })
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
