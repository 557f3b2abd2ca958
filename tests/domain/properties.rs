//! What the scheduler promises, over random clusters and histories: docs/SCHEDULING.md says which test holds which
//! promise. Placing without overcommitment, GPUs by uuid, whole gangs, quotas and kept reservations are checked by the
//! world itself, at every step of every test that uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpulayer::contract::explain::Verdict;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::quantity::Seconds;
use gpulayer::domain::placement::{Budget, Input, Pass, Placer, Policy, ProjectPolicy, QueuedJob};
use proptest::prelude::*;

use crate::explanations::followed;
use crate::placement::{UNBOUNDED, free, job, machine, place, placed, shape, tell, up, worker};
use crate::world::{MACHINES, Step, Wish, World, at, policies, project, steps, wishes};

fn placed_in(pass: &Pass) -> BTreeSet<JobId> {
    pass.placements.iter().map(|placed| placed.job.job_id).collect()
}

proptest! {
    /// No machine and no GPU has two owners, gangs are whole, quotas are kept and no reservation is delayed, whatever
    /// happens (see the module); and when all is well again, every job runs that the machines could ever hold.
    #[test]
    fn nothing_is_given_twice_no_promise_is_broken_and_everybody_runs_in_the_end(
        policy in policies(),
        steps in steps(),
    ) {
        let mut world = World::with(policy, &MACHINES);
        steps.iter().for_each(|step| drop(world.step(step)));
        world.run_out();
        for (number, wish) in world.meant() {
            prop_assert_eq!(world.waits(number), !world.could_run(wish), "job {} {:?}", number, wish);
        }
    }

    /// The same inputs, the same passes, to the last field; and the same words about who waits.
    #[test]
    fn a_history_replays_bit_equal(policy in policies(), steps in steps()) {
        let run = || {
            let mut world = World::with(policy.clone(), &MACHINES);
            let passes: Vec<Pass> = steps.iter().map(|step| world.step(step)).collect();
            let now = at(world.second);
            let waiting = world.wishes.keys().map(|number| JobId::from_u128(*number));
            let words: Vec<_> = waiting.map(|job_id| world.placer.explain_job(job_id, now, &mut Budget::default())).collect();
            (passes, words)
        };
        prop_assert_eq!(run(), run());
    }

    /// Every job that waits has an answer of every worker, and the answers say why it waits. A change that is suggested
    /// lets it start when it is made.
    #[test]
    fn who_waits_is_told_why_by_every_worker_and_what_is_suggested_helps(
        policy in policies(),
        steps in steps(),
    ) {
        let mut world = World::with(policy, &MACHINES);
        steps.iter().for_each(|step| drop(world.step(step)));
        let now = at(world.second);
        let names: BTreeSet<String> = (1..=MACHINES.len()).map(|number| format!("w{number}")).collect();
        for (number, wish) in world.wishes.iter().filter(|(number, _)| world.waits(**number)) {
            let job_id = JobId::from_u128(*number);
            let explanation = world.placer.explain_job(job_id, now, &mut Budget::default()).unwrap();
            let answered: Vec<&String> = explanation.workers.iter().flat_map(|answer| &answer.workers).collect();
            prop_assert_eq!(answered.len(), names.len(), "one answer each");
            prop_assert!(answered.into_iter().all(|name| names.contains(name)));
            prop_assert!(explanation.workers.iter().all(|answer| !answer.reason.is_empty()));
            prop_assert!(
                explanation.verdict != Verdict::Fits || explanation.quota.is_some(),
                "job {} waits, and nobody says why: {}", number, explanation.summary
            );
            for suggestion in &explanation.suggestions {
                let mut tried = world.placer.clone();
                let job = tried.queue().job(job_id).unwrap();
                let shape = followed(&wish.shape(), suggestion);
                tell(&mut tried, Input::Queued(QueuedJob { shape, ..job }));
                let pass = tried.apply(Input::Pass { now, budget_checks: UNBOUNDED }).unwrap();
                prop_assert!(placed_in(&pass).contains(&job_id), "{:?}: {}", suggestion, explanation.summary);
            }
        }
    }

    /// The bound: where all tasks end within a limit, the first in the order starts within that limit, whatever its size
    /// and however many small ones there are.
    #[test]
    fn who_is_first_starts_within_the_longest_limit_under_a_stream_without_end(
        big in wishes(),
        small in prop::collection::vec((1u32..3, 0u32..2, 1u64..41), 8..24),
        reservations in 1u32..4,
    ) {
        const LIMIT: u64 = 40;
        let mut world = World::with(Policy { reservations, ..Policy::default() }, &MACHINES);
        let big = Wish { project: "one", priority: 0, limit: Some(LIMIT), ..big };
        prop_assume!(world.could_run(&big));
        let mut small = small.iter().cycle();
        let mut stream = |world: &mut World, count| {
            for (cores, gpus, runs) in small.by_ref().take(count) {
                world.submit(Wish { gpus: *gpus, ..Wish::new("one", *cores, *runs) });
            }
            world.pass();
        };
        stream(&mut world, 24);
        let number = world.submit(big);
        let (mut first_since, mut rounds) = (None, 0);
        while world.waits(number) {
            stream(&mut world, 4);
            if !(1..number).any(|older| world.waits(older)) && world.waits(number) {
                let since = *first_since.get_or_insert(world.second);
                prop_assert!(world.second < since + LIMIT, "first since {}, now is {}", since, world.second);
            }
            world.go_on();
            rounds += 1;
            prop_assert!(rounds < 500);
        }
    }

    /// One more worker, and never fewer jobs run: of one shape in one pass, whatever runs already and whatever worker it is.
    #[test]
    fn one_more_worker_never_places_fewer_of_one_shape(
        before in prop::collection::vec(wishes(), 0..12),
        wish in wishes(),
        count in 1usize..16,
        more in (1u32..9, 0u32..5),
        reservations in 0u32..3,
    ) {
        let run = |machines: &[(u32, u32)]| {
            let mut world = World::with(Policy { reservations, ..Policy::default() }, &MACHINES);
            for earlier in &before {
                if world.could_run(earlier) {
                    world.submit(earlier.clone());
                }
            }
            world.pass();
            // Only what runs counts: who waits would compete.
            let waiting: Vec<u128> = world.wishes.keys().copied().filter(|number| world.waits(*number)).collect();
            for number in waiting {
                tell(&mut world.placer, Input::Unqueued { job_id: JobId::from_u128(number) });
            }
            let ran = world.running.len();
            machines.iter().for_each(|machine| world.join(*machine));
            for _ in 0..count {
                world.submit(wish.clone());
            }
            world.pass();
            world.running.len() - ran
        };
        prop_assert!(run(&[more]) >= run(&[]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// What each project is given comes to what it is due, whatever its jobs look like. What is held counts as if it had
    /// been held for an hour, so it takes some hours.
    #[test]
    fn shares_converge_to_what_the_owner_said(
        shares in (1u32..5, 1u32..5),
        cores in (1u32..3, 1u32..3),
        runs in (200u64..900, 200u64..900),
    ) {
        const SETTLED: u64 = 6 * 3600;
        let mut policy = project(ProjectPolicy { share: shares.0, ..ProjectPolicy::default() });
        policy.projects.insert("speech".into(), ProjectPolicy { share: shares.1, ..ProjectPolicy::default() });
        let mut world = World::new(policy, &[8, 8]);
        let of = [("vision", cores.0, runs.0), ("speech", cores.1, runs.1)];
        let mut served: BTreeMap<&str, u64> = BTreeMap::new();
        while world.second < 3 * SETTLED {
            // As many wait as could ever be placed at once.
            for (project, cores, runs) in of {
                let waits = |(number, wish): &(&u128, &Wish)| wish.project == project && world.waits(**number);
                let waiting = world.wishes.iter().rev().take(100).filter(waits).count();
                for _ in waiting..16 {
                    world.submit(Wish::new(project, cores, runs));
                }
            }
            world.pass();
            let (before, running) = (world.second, world.running.clone());
            prop_assert!(world.go_on());
            for wish in running.keys().map(|number| &world.wishes[number]).filter(|_| before > SETTLED) {
                *served.entry(wish.project).or_default() += u64::from(wish.cores) * (world.second - before);
            }
        }
        let (vision, speech) = (served["vision"], served["speech"]);
        let (had, due) = (vision * 1000 / (vision + speech), u64::from(shares.0 * 1000 / (shares.0 + shares.1)));
        prop_assert!(had.abs_diff(due) <= 50, "{} of 1000, due are {}: {:?}", had, due, served);
    }
}

/// A gang that waits for workers which are reserved for others: those behind it would take them one by one, each as it
/// comes free, and it would never have all of them.
#[test]
fn single_workers_are_not_reserved_away_from_a_gang_that_waits_for_them() {
    // The last one is for small jobs alone, which overtake everybody.
    let mut world = World::new(Policy::default(), &[4, 4, 4, 1]);
    let whole = |runs| Wish::new("p", 4, runs);
    for runs in [10, 20, 30] {
        world.submit(whole(runs));
    }
    let small = || Wish::new("p", 1, 2);
    world.submit(whole(10));
    world.submit(small());
    world.pass();
    assert_eq!(world.placer.reservations().len(), 1);
    let gang = world.submit(Wish { nodes: 3, ..whole(10) });
    let mut rounds = 0;
    while world.waits(gang) {
        // Whole workers and small ones in plenty, all of them behind it.
        for runs in [10, 17, 25] {
            world.submit(whole(runs));
            world.submit(small());
        }
        world.pass();
        rounds += 1;
        assert!(world.go_on() && rounds < 100, "it still waits at {}", world.second);
    }
    assert_eq!(world.started[&gang], 30, "when the last has ended that ran before it came");
}

/// What nobody could take while its worker was drained may be taken, and so has to be reserved, when it is not.
#[test]
fn a_worker_that_takes_tasks_again_is_reserved_for_who_could_have_no_other() {
    let mut world = World::new(Policy::default(), &[4, 3]);
    for _ in 0..2 {
        world.submit(Wish::new("p", 2, 100));
    }
    world.pass();
    world.step(&Step::Drain(0));
    let big = world.submit(Wish::new("p", 4, 10));
    let small = world.submit(Wish::new("p", 1, 100));
    world.pass();
    assert!(
        world.running.contains_key(&small) && world.placer.reservations().is_empty(),
        "no worker could take it"
    );
    tell(&mut world.placer, Input::WorkerDraining { worker_id: worker(1), draining: false });
    let late = world.submit(Wish::new("p", 1, 500));
    world.pass();
    assert!(world.placer.reservations().of(JobId::from_u128(big)).is_some() && world.waits(late));
}

/// A job that finds its place elsewhere leaves what was reserved for it to those that came before it in this very pass.
#[test]
fn a_reservation_that_is_not_needed_is_open_at_once() {
    let mut placer = Placer::new(Policy { reservations: 1, ..Policy::default() });
    (1..=2).for_each(|number| up(&mut placer, number, 1, machine(4000, 8)));
    let queue = |placer: &mut Placer,
                 number: u128,
                 project: &str,
                 cores: u32,
                 on: Option<&str>,
                 bound: Option<u64>| {
        let mut asked = (*shape(cores * 1000, None)).clone();
        asked.resources.worker = on.map(str::to_owned);
        asked.bound_s = bound.map(Seconds::new);
        let queued = job(number, 0, i64::try_from(number).unwrap(), &Arc::new(asked));
        tell(placer, Input::Queued(QueuedJob { project: project.into(), ..queued }));
    };
    queue(&mut placer, 1, "vision", 2, Some("w1"), Some(100));
    queue(&mut placer, 2, "other", 4, Some("w2"), None);
    place(&mut placer, UNBOUNDED);
    queue(&mut placer, 3, "vision", 4, None, None);
    queue(&mut placer, 4, "other", 1, Some("w1"), Some(50));
    place(&mut placer, UNBOUNDED);
    assert_eq!(placer.reservations().on(worker(1)), Some(JobId::from_u128(3)));
    // Its project had nothing yet, so it comes first; but the worker is kept.
    queue(&mut placer, 5, "speech", 1, Some("w1"), None);
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), []);
    free(&mut placer, 2, 2);
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), [(3, 2), (5, 1)]);
}

/// What an order cannot promise: with more workers the big one that is first may run where many small ones would.
#[test]
fn more_workers_may_mean_fewer_and_larger_jobs() {
    let run = |machines: &[u32]| {
        let mut world = World::new(Policy { reservations: 0, ..Policy::default() }, machines);
        world.submit(Wish { nodes: 2, ..Wish::new("p", 4, 10) });
        for _ in 0..4 {
            world.submit(Wish::new("p", 1, 10));
        }
        world.pass();
        world.running.keys().copied().collect::<Vec<_>>()
    };
    assert_eq!(run(&[4]), [2, 3, 4, 5]);
    assert_eq!(run(&[4, 4]), [1], "the gang was first");
}

/// Nothing but integers decides.
#[test]
fn placement_counts_in_integers() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/domain/placement");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() > 10);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let floats = ["f32", "f64"].map(|word| text.split(|c: char| !c.is_alphanumeric()).any(|w| w == word));
        assert_eq!(floats, [false, false], "{}", file.display());
    }
}

/// A reservation that is dropped lets those that waited look again, behind others that were placed meanwhile. What would have
/// to give way to them then was never placed.
#[test]
fn what_gives_way_in_the_pass_that_placed_it_waits_on() {
    let submit = |priority, cores, gpus, nodes, runs| {
        Step::Submit(Wish { project: "vision", priority, cores, gpus, nodes, runs, limit: None, source: 0 })
    };
    let yields = ProjectPolicy { share: 1, preemptible: true, ..ProjectPolicy::default() };
    let projects = BTreeMap::from([("vision".to_owned(), yields)]);
    let mut world = World::with(Policy { projects, reservations: 1, ..Policy::default() }, &MACHINES);
    let steps = [
        submit(0, 1, 1, 1, 1),
        submit(0, 4, 0, 1, 2),
        submit(0, 1, 1, 1, 3),
        Step::End,
        submit(-1, 2, 2, 3, 1),
        submit(-1, 2, 0, 2, 3),
        submit(0, 3, 0, 3, 1),
        Step::End,
        Step::Refuse { gone: false },
        Step::End,
    ];
    steps.iter().for_each(|step| drop(world.step(step)));
    world.run_out();
    assert_eq!(world.started.len(), 6, "each has its turn");
}

/// A reserved job has no promise against a higher priority. One that would have to give way at once does not start at all,
/// and what was reserved for it goes to whom it gives way to.
#[test]
fn what_would_give_way_at_once_leaves_its_reservation_to_the_higher_priority() {
    let yields = ProjectPolicy { preemptible: true, ..ProjectPolicy::default() };
    let mut world = World::new(Policy { reservations: 1, ..project(yields) }, &[4, 4]);
    let victim = world.submit(Wish::new("vision", 4, 100));
    world.submit(Wish::new("speech", 3, 10));
    world.pass();
    let reserved = world.submit(Wish::new("vision", 4, 1));
    // It would overtake.
    world.submit(Wish::new("vision", 1, 100));
    world.pass();
    assert!(world.placer.reservations().of(JobId::from_u128(reserved)).unwrap().free_by.is_some());
    let urgent = world.submit(Wish { priority: 1, nodes: 2, ..Wish::new("other", 4, 1) });
    world.pass();
    assert!(world.go_on(), "and it is no broken promise");
    assert_eq!(
        (&world.preempted[..], world.waits(reserved), world.waits(urgent)),
        (&[victim][..], true, true)
    );
    assert!(world.requeue_preempted());
    world.pass();
    world.run_out();
    assert_eq!((world.started[&urgent], world.waits(reserved)), (10, false), "and each has its turn");
}
