//! Traces of jobs in simulated time: the bound on a wait, and what the documents say of ours beside what others do.
//! The figures in docs/PERFORMANCE.md are of a larger trace of the same kind (`scripts/bench scheduler`).

use std::collections::{BTreeMap, BTreeSet};

use crate::simulated::figures::{Figures, figures};
use crate::simulated::hosts::GPUS;
use crate::simulated::ours::{Ours, START_S, number_of};
use crate::simulated::rivals::{Rival, Rule};
use crate::simulated::trace::{Cluster, Profile, TraceJob, trace};
use crate::simulated::{Decisions, Scheduler, play};

/// As many as by default.
const RESERVATIONS: u32 = 8;
const CLUSTER: Cluster = Cluster { hosts: 6, gpus_per_host: GPUS };

/// Ours, with what it promises held against what it does.
struct Watched<'a> {
    ours: Ours,
    trace: &'a [TraceJob],
    /// Who waits, the first in the order first.
    waiting: BTreeSet<usize>,
    /// Since when the first is the first.
    first_since: Option<(usize, u64)>,
    promised: BTreeMap<usize, u64>,
    longest_first_s: u64,
    kept: usize,
}

impl Scheduler for Watched<'_> {
    fn queued(&mut self, number: usize, job: &TraceJob, now_s: u64) {
        self.waiting.insert(number);
        self.ours.queued(number, job, now_s);
    }

    fn freed(&mut self, number: usize) {
        self.ours.freed(number);
    }

    fn pass(&mut self, now_s: u64) -> Decisions {
        let decisions = self.ours.pass(now_s);
        for (number, _) in &decisions.starts {
            self.waiting.remove(number);
            if let Some(promise) = self.promised.remove(number) {
                assert!(now_s <= promise, "{number} started at {now_s} and was promised {promise}");
                self.kept += 1;
            }
        }
        for (job_id, reservation) in self.ours.placer.reservations().all() {
            let free_by = reservation.free_by.expect("every end is known");
            let second = free_by.micros() as u64 / 1_000_000 - START_S;
            self.promised.entry(number_of(job_id)).or_insert(second);
        }
        if let Some(first) = self.waiting.first().copied() {
            let since =
                self.first_since.filter(|(number, _)| *number == first).map_or(now_s, |(_, since)| since);
            self.first_since = Some((first, since));
            self.longest_first_s = self.longest_first_s.max(now_s - since);
            let longest = self.trace.iter().filter_map(|job| job.limit_s).max().unwrap();
            assert!(now_s - since < longest, "{first} is the first since {since}, now is {now_s}");
        }
        decisions
    }
}

#[test]
fn under_a_long_stream_every_promise_is_kept_and_the_first_never_waits_longer_than_a_task_may_take() {
    for seed in [1, 2] {
        let profile = Profile { jobs: 1_200, seed, load_percent: 110, plain: true };
        let trace = trace(profile, CLUSTER);
        let mut watched = Watched {
            ours: Ours::new(CLUSTER, false, RESERVATIONS),
            trace: &trace,
            waiting: BTreeSet::new(),
            first_since: None,
            promised: BTreeMap::new(),
            longest_first_s: 0,
            kept: 0,
        };
        play(CLUSTER, &trace, &mut watched);
        assert!(watched.kept > 20, "only {} promises were made", watched.kept);
        assert!(watched.longest_first_s > 0);
    }
}

fn of<'a>(figures: &'a Figures, kind: &str) -> &'a crate::simulated::figures::Waits {
    figures.waits.iter().find(|waits| waits.of == kind).unwrap()
}

#[test]
fn who_gains_and_who_pays_is_as_the_documents_say() {
    let trace = trace(Profile { jobs: 1_500, seed: 7, load_percent: 90, plain: false }, CLUSTER);
    let played = |name, scheduler: &mut dyn Scheduler| {
        figures(name, CLUSTER, &trace, &play(CLUSTER, &trace, scheduler))
    };
    let fifo = played("FIFO", &mut Rival::new(CLUSTER, Rule::Fifo));
    let strict = played("strict", &mut Rival::new(CLUSTER, Rule::StrictPriority));
    let greedy = played("greedy", &mut Rival::new(CLUSTER, Rule::GreedyBackfill));
    let ours = played("ours", &mut Ours::new(CLUSTER, true, RESERVATIONS));
    for other in [&fifo, &strict] {
        assert!(ours.useful_permille > other.useful_permille && ours.done > other.done);
        assert!(10 * of(&ours, "1 GPU").p90_s < 2 * of(other, "1 GPU").p90_s, "{ours:#?}\n{other:#?}");
    }
    for kind in ["gangs of 4 x 8", "small project"] {
        assert!(of(&ours, kind).p90_s < of(&greedy, kind).p90_s, "{kind}: {ours:#?}\n{greedy:#?}");
    }
    assert!(of(&ours, "urgent (priority 10)").p90_s < 1800);
    // The price: what is kept for the large is idle meanwhile, and what is stopped runs twice.
    assert!(ours.useful_permille < greedy.useful_permille && ours.lost_gpu_h > 0);
    assert!(of(&ours, "spare (priority -10)").p90_s > of(&greedy, "spare (priority -10)").p90_s);
}

/// The same trace goes the same way, to the second, on every machine.
#[test]
fn a_trace_is_the_same_wherever_it_is_played() {
    let profile = Profile { jobs: 300, seed: 7, load_percent: 100, plain: false };
    let first = trace(profile, CLUSTER);
    let sum: u64 = first.iter().map(|job| job.arrives_s ^ job.runs_s ^ job.all_gpus()).sum();
    let again = trace(profile, CLUSTER);
    assert_eq!(sum, again.iter().map(|job| job.arrives_s ^ job.runs_s ^ job.all_gpus()).sum::<u64>());
    let fates = |trace: &[TraceJob]| -> Vec<(u64, u64)> {
        let fates = play(CLUSTER, trace, &mut Ours::new(CLUSTER, true, RESERVATIONS));
        fates.iter().map(|fate| (fate.started_s, fate.ended_s)).collect()
    };
    assert_eq!(fates(&first), fates(&again));
}
