//! What one question may cost: so many checks over all that it plays, however long the queue is.

use std::sync::Arc;

use gpulayer::contract::explain::Verdict;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::quantity::{Seconds, Timestamp};
use gpulayer::domain::placement::{Budget, Input, Placer, Policy, Shape, wish};

use crate::placement::{GIB, UNBOUNDED, job, machine, shape, tell, up};

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const CHECKS: u32 = 40_000;
const KINDS: u64 = 2_000;

/// A full machine, and a queue of as many kinds as jobs, `kind` of each.
fn queue_of(kind: impl Fn(u64) -> Shape) -> Placer {
    let mut placer = Placer::new(Policy { staging_s: Seconds::new(0), ..Policy::default() });
    up(&mut placer, 1, 1, machine(4000, 64));
    let mut long = (*shape(4000, None)).clone();
    long.bound_s = Some(Seconds::new(1000));
    tell(&mut placer, Input::Queued(job(1, 0, 0, &Arc::new(long))));
    assert_eq!(placer.apply(Input::Pass { now: NOW, budget_checks: UNBOUNDED }).unwrap().placements.len(), 1);
    for number in 2..KINDS {
        tell(
            &mut placer,
            Input::Queued(job(number.into(), 0, number.cast_signed(), &Arc::new(kind(number)))),
        );
    }
    placer
}

fn sized(cpu_millis: u32, memory_bytes: u64) -> Shape {
    let mut sized = (*shape(cpu_millis, None)).clone();
    sized.resources.memory_bytes = Some(memory_bytes);
    sized.bound_s = Some(Seconds::new(100));
    sized
}

#[test]
fn a_question_about_thousands_of_shapes_costs_what_it_may_and_no_more() {
    let fitting = queue_of(|number| sized(1000, GIB + number));
    let hopeless = queue_of(|number| sized(64_000, GIB + number));
    for (what, placer) in [("fitting", fitting), ("hopeless", hopeless)] {
        let supposed = placer.supposing(Some("w1"), 200, None).unwrap();
        for (of, placer) in [("alone", &placer), ("of many workers", &supposed)] {
            for asked in [sized(1000, GIB), sized(4000, 65 * GIB), sized(64_000, GIB)] {
                let asked = wish(JobId::from_u128(u128::MAX), 0, "default".into(), Arc::new(asked), NOW);
                let mut budget = Budget::of(CHECKS);
                placer.explain_wish(&asked, NOW, &mut budget);
                placer.shorter_limit(&asked, Seconds::new(10), NOW, &mut budget);
                assert!(budget.spent() <= CHECKS, "{what}, {of}: {} checks for {asked:?}", budget.spent());
            }
            let last = JobId::from_u128((KINDS - 1).into());
            let mut budget = Budget::of(CHECKS);
            placer.explain_job(last, NOW, &mut budget).unwrap();
            assert!(budget.spent() <= CHECKS, "{what}, {of}: {} checks", budget.spent());
        }
    }
}

#[test]
fn what_a_spent_budget_left_open_is_left_out_and_said() {
    let placer = queue_of(|number| sized(1000, GIB + number)).supposing(Some("w1"), 200, None).unwrap();
    let asked = wish(JobId::from_u128(u128::MAX), 0, "default".into(), Arc::new(sized(1000, GIB)), NOW);
    let cut_short = placer.explain_wish(&asked, NOW, &mut Budget::of(CHECKS));
    assert_eq!((cut_short.verdict, cut_short.starts_by), (Verdict::Fits, None));
    assert!(cut_short.summary.ends_with("not worked out whether others come first"), "{}", cut_short.summary);
    let whole = placer.explain_wish(&asked, NOW, &mut Budget::of(UNBOUNDED));
    assert!(whole.starts_by.is_some_and(|starts_by| starts_by > NOW), "the machines are taken by then");
    assert!(!whole.summary.contains("worked out"), "{}", whole.summary);
    // Every worker has its answer all the same.
    let answering = |of: &[gpulayer::contract::explain::WorkersAnswer]| -> usize {
        of.iter().map(|answer| answer.workers.len()).sum()
    };
    assert_eq!((answering(&cut_short.workers), answering(&whole.workers)), (201, 201));
}
