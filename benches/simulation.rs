//! A cluster in simulated time: jobs of a trace arrive, a scheduler starts them, they end. Integers and a seed decide
//! everything, so that the same trace goes the same way on every machine. Used by the benchmark and, on a smaller
//! trace, by the tests.

#[path = "simulation/figures.rs"]
pub mod figures;
#[path = "simulation/hosts.rs"]
pub mod hosts;
#[path = "simulation/ours.rs"]
pub mod ours;
#[path = "simulation/rivals.rs"]
pub mod rivals;
#[path = "simulation/trace.rs"]
pub mod trace;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use trace::{Cluster, TraceJob};

/// Seconds from the word that a task has to go until it is gone.
const GRACE_S: u64 = 30;

/// Who decides what starts where.
pub trait Scheduler {
    /// A job waits, by its number in the trace.
    fn queued(&mut self, number: usize, job: &TraceJob, now_s: u64);
    /// A job that was started has ended or is gone.
    fn freed(&mut self, number: usize);
    /// What starts now, and who has to go.
    fn pass(&mut self, now_s: u64) -> Decisions;
}

/// What a scheduler decided.
#[derive(Debug, Default)]
pub struct Decisions {
    /// Jobs, with a host for each node.
    pub starts: Vec<(usize, Vec<usize>)>,
    /// Jobs that have to go: they run once more from the beginning.
    pub stops: Vec<usize>,
}

/// How one job fared.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fate {
    /// When the attempt started that got to its end.
    pub started_s: u64,
    /// When it ended.
    pub ended_s: u64,
    /// What its stopped attempts had done, in GPU seconds.
    pub lost_gpu_s: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Gone { number: usize, attempt: u32 },
    Ends { number: usize, attempt: u32 },
    Arrives { number: usize },
}

struct Run {
    started_s: u64,
    hosts: Vec<usize>,
}

/// Plays a trace to the end of its last job.
///
/// # Panics
///
/// When the scheduler gives a GPU twice, splits a gang, or leaves a job behind: its figures would mean nothing.
pub fn play(cluster: Cluster, trace: &[TraceJob], scheduler: &mut dyn Scheduler) -> Vec<Fate> {
    let mut fates = vec![Fate::default(); trace.len()];
    let mut attempts = vec![0_u32; trace.len()];
    let mut runs: Vec<Option<Run>> = trace.iter().map(|_| None).collect();
    let mut free = vec![cluster.gpus_per_host; cluster.hosts];
    let arrivals = trace.iter().enumerate();
    let mut events: BinaryHeap<Reverse<(u64, Event)>> =
        arrivals.map(|(number, job)| Reverse((job.arrives_s, Event::Arrives { number }))).collect();
    while let Some(&Reverse((now_s, _))) = events.peek() {
        while let Some(&Reverse((_, event))) = events.peek().filter(|next| next.0.0 == now_s) {
            events.pop();
            let (number, attempt) = match event {
                Event::Arrives { number } => {
                    scheduler.queued(number, &trace[number], now_s);
                    continue;
                }
                Event::Ends { number, attempt } | Event::Gone { number, attempt } => (number, attempt),
            };
            // It ended before it was gone, or the other way round.
            let Some(run) = runs[number].take_if(|_| attempts[number] == attempt) else { continue };
            let job = &trace[number];
            run.hosts.iter().for_each(|host| free[*host] += job.gpus);
            scheduler.freed(number);
            if let Event::Gone { .. } = event {
                fates[number].lost_gpu_s += (now_s - run.started_s) * job.all_gpus();
                scheduler.queued(number, job, now_s);
            } else {
                (fates[number].started_s, fates[number].ended_s) = (run.started_s, now_s);
            }
        }
        let Decisions { starts, stops } = scheduler.pass(now_s);
        for (number, hosts) in starts {
            let job = &trace[number];
            assert!(hosts.len() == job.nodes && runs[number].is_none(), "a gang is placed whole, and once");
            for host in &hosts {
                assert!(free[*host] >= job.gpus, "no host has more GPUs than it has");
                free[*host] -= job.gpus;
            }
            attempts[number] += 1;
            runs[number] = Some(Run { started_s: now_s, hosts });
            let end = Event::Ends { number, attempt: attempts[number] };
            events.push(Reverse((now_s + job.runs_s, end)));
        }
        for number in stops {
            let gone = Event::Gone { number, attempt: attempts[number] };
            events.push(Reverse((now_s + GRACE_S, gone)));
        }
    }
    assert!(fates.iter().all(|fate| fate.ended_s > 0), "every job ran");
    fates
}
