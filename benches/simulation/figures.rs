//! What a played trace comes to.

use serde::Serialize;

use super::Fate;
use super::trace::{Cluster, TraceJob};

/// Waits of jobs of one kind, in seconds: all the time from arrival to end that was not the run which counts.
#[derive(Debug, Clone, Serialize)]
pub struct Waits {
    pub of: &'static str,
    pub jobs: usize,
    pub p50_s: u64,
    pub p90_s: u64,
    pub max_s: u64,
}

/// See the module.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    pub policy: &'static str,
    /// GPU time spent on runs that came to their end, of all that there was while jobs arrived, in thousandths.
    pub useful_permille: u64,
    /// Jobs that had ended when the last one arrived.
    pub done: usize,
    /// GPU hours of attempts that were stopped for others.
    pub lost_gpu_h: u64,
    /// From the last arrival until the last job has ended, in seconds.
    pub rest_s: u64,
    pub waits: Vec<Waits>,
}

type Kind = (&'static str, fn(&TraceJob) -> bool);

// Those of a low priority stand apart: they wait for whom they yield to, whatever their size.

const KINDS: [Kind; 9] = [
    ("1 GPU", |job| job.all_gpus() == 1 && job.priority >= 0),
    ("2 GPUs", |job| job.all_gpus() == 2 && job.priority >= 0),
    ("4 GPUs", |job| job.all_gpus() == 4 && job.priority >= 0),
    ("8 GPUs", |job| job.all_gpus() == 8 && job.priority >= 0),
    ("gangs of 2 x 8", |job| job.nodes == 2 && job.priority >= 0),
    ("gangs of 4 x 8", |job| job.nodes == 4 && job.priority >= 0),
    ("urgent (priority 10)", |job| job.priority > 0),
    ("small project", |job| job.project == "robots"),
    ("spare (priority -10)", |job| job.priority < 0),
];

/// Counts what happened.
pub fn figures(policy: &'static str, cluster: Cluster, trace: &[TraceJob], fates: &[Fate]) -> Figures {
    let (begin_s, end_s) =
        (trace.first().map_or(0, |job| job.arrives_s), trace.last().map_or(0, |job| job.arrives_s));
    let of = || trace.iter().zip(fates);
    let useful: u64 =
        of().map(|(job, fate)| fate.ended_s.min(end_s).saturating_sub(fate.started_s) * job.all_gpus()).sum();
    let waits = KINDS.iter().filter_map(|(name, is)| {
        let mut waits: Vec<u64> = of()
            .filter(|(job, _)| is(job))
            .map(|(job, fate)| fate.ended_s - job.arrives_s - job.runs_s)
            .collect();
        waits.sort_unstable();
        let at = |percent: usize| waits.get(waits.len() * percent / 100).copied();
        Some(Waits { of: name, jobs: waits.len(), p50_s: at(50)?, p90_s: at(90)?, max_s: *waits.last()? })
    });
    Figures {
        policy,
        useful_permille: useful * 1000 / (cluster.gpus() * (end_s - begin_s)).max(1),
        done: fates.iter().filter(|fate| fate.ended_s <= end_s).count(),
        lost_gpu_h: fates.iter().map(|fate| fate.lost_gpu_s).sum::<u64>() / 3600,
        rest_s: fates.iter().map(|fate| fate.ended_s).max().unwrap_or(0).saturating_sub(end_s),
        waits: waits.collect(),
    }
}
