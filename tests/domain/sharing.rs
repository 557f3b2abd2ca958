//! Who goes first when not all can: fair share, quotas, reservations with backfill, preemption, by example. The same at
//! random stands in `properties`.

use std::collections::BTreeSet;

use gpulayer::contract::ids::JobId;
use gpulayer::domain::placement::{Input, Placer, Policy, ProjectPolicy};

use crate::placement::{UNBOUNDED, machine, tell, up, worker};
use crate::world::{Wish, World, at, project};

#[test]
fn a_project_that_has_something_waits_behind_one_that_has_nothing() {
    let mut world = World::new(Policy::default(), &[4]);
    for _ in 0..6 {
        world.submit(Wish::new("speech", 1, 100));
    }
    for _ in 0..2 {
        world.submit(Wish::new("vision", 1, 100));
    }
    world.pass();
    let running: Vec<u128> = world.running.keys().copied().collect();
    assert_eq!(running, [1, 2, 7, 8], "two each, though six of the first came before");
}

#[test]
fn a_quota_is_never_exceeded_and_holds_up_nobody_else() {
    let policy = project(ProjectPolicy { max_cpu_millis: Some(2_000), ..ProjectPolicy::default() });
    let mut world = World::new(policy, &[4]);
    let capped: Vec<u128> = (0..4).map(|_| world.submit(Wish::new("vision", 1, 10))).collect();
    let other = world.submit(Wish::new("speech", 2, 10));
    world.pass();
    assert_eq!(world.running.len(), 3);
    assert!(!world.waits(other) && world.waits(capped[2]));
    let shape = world.placer.queue().shape(JobId::from_u128(capped[2])).unwrap().clone();
    let lack = world.placer.quota_lack("vision", &shape).unwrap();
    assert_eq!(lack.to_string(), "project vision may have 2 CPUs, holds 2, needs 1");
    world.go_on();
    assert!(!world.waits(capped[3]));
}

#[test]
fn a_big_job_has_its_place_reserved_and_small_ones_go_before_only_if_they_end_in_time() {
    let mut world = World::new(Policy::default(), &[4]);
    world.submit(Wish::new("a", 2, 100));
    world.pass();
    let big = world.submit(Wish { priority: 1, ..Wish::new("a", 4, 10) });
    let short = world.submit(Wish::new("a", 2, 50));
    let long = world.submit(Wish::new("a", 2, 200));
    let unstated = world.submit(Wish { limit: None, ..Wish::new("a", 1, 5) });
    world.pass();
    assert!(world.running.contains_key(&short) && world.waits(long) && world.waits(unstated));
    let reservation = world.placer.reservations().of(JobId::from_u128(big)).unwrap();
    assert_eq!(reservation.free_by, Some(at(100)));
    while world.waits(big) {
        assert!(world.go_on());
    }
    assert_eq!(world.started[&big], 100, "not a second later than was promised");
}

#[test]
fn what_the_reserved_job_does_not_need_is_open_to_all() {
    let mut world = World::new(Policy::default(), &[8]);
    world.submit(Wish::new("a", 4, 100));
    world.pass();
    let big = world.submit(Wish { priority: 1, ..Wish::new("a", 6, 10) });
    let beside = world.submit(Wish::new("a", 2, 1000));
    let too_much = world.submit(Wish::new("a", 2, 1000));
    world.pass();
    assert!(world.running.contains_key(&beside) && world.waits(too_much));
    world.go_on();
    assert_eq!(world.started.get(&big), Some(&100));
}

#[test]
fn a_reservation_binds_nobody_of_a_higher_priority_and_goes_with_its_worker() {
    let mut world = World::new(Policy::default(), &[4]);
    world.submit(Wish::new("a", 2, 100));
    world.pass();
    let big = world.submit(Wish::new("a", 4, 10));
    world.submit(Wish::new("a", 2, 50));
    world.pass();
    assert_eq!(world.placer.reservations().on(worker(1)), Some(JobId::from_u128(big)));
    tell(&mut world.placer, Input::WorkerDown { worker_id: worker(1) });
    assert!(world.placer.reservations().is_empty());
    up(&mut world.placer, 1, 2, machine(4000, 64));
    world.end(2 + 1);
    let urgent = world.submit(Wish { priority: 9, ..Wish::new("c", 2, 500) });
    world.pass();
    assert!(world.running.contains_key(&urgent));
    // A job that is cancelled lets go of what was reserved for it.
    tell(&mut world.placer, Input::Unqueued { job_id: JobId::from_u128(big) });
    assert!(world.placer.reservations().is_empty());
}

#[test]
fn a_gang_starts_whole_and_on_time_under_a_stream_of_small_jobs() {
    let mut world = World::new(Policy::default(), &[4, 4, 4, 4]);
    for _ in 0..16 {
        world.submit(Wish::new("small", 1, 30));
    }
    world.pass();
    let gang = world.submit(Wish { nodes: 3, ..Wish::new("big", 4, 60) });
    let mut rounds = 0;
    while world.waits(gang) {
        // More keeps coming than ever fits.
        for _ in 0..8 {
            world.submit(Wish::new("small", 1, 20 + rounds % 3 * 15));
        }
        rounds += 1;
        assert!(world.go_on() && rounds < 100);
    }
    assert!(world.started[&gang] <= 60, "it waited until {}", world.started[&gang]);
}

#[test]
fn the_nodes_of_a_gang_are_in_one_zone_where_one_has_room() {
    let mut placer = Placer::new(Policy::default());
    for (number, zone) in [(1, "a"), (2, "b"), (3, "b"), (4, "a"), (5, "a")] {
        let mut capabilities = machine(4000, 64);
        capabilities.labels.insert("zone".into(), zone.into());
        up(&mut placer, number, 1, capabilities);
    }
    let wish = Wish { nodes: 2, ..Wish::new("p", 4, 10) };
    tell(&mut placer, Input::Queued(wish.queued(1, 0)));
    let pass = placer.apply(Input::Pass { now: at(0), budget_checks: UNBOUNDED }).unwrap();
    let seats: BTreeSet<u128> =
        pass.placements[0].seats.iter().map(|seat| seat.worker_id.as_u128()).collect();
    assert_eq!(seats, [2, 3].into(), "the smaller zone that is large enough");
}

#[test]
fn only_what_yields_goes_for_a_higher_priority_and_as_little_of_it_as_will_do() {
    let policy = project(ProjectPolicy { preemptible: true, ..ProjectPolicy::default() });
    let mut world = World::new(policy, &[4]);
    let stays = world.submit(Wish { priority: 0, ..Wish::new("firm", 1, 1000) });
    let low = world.submit(Wish { priority: -5, ..Wish::new("vision", 1, 1000) });
    let newer = world.submit(Wish { priority: -1, ..Wish::new("vision", 2, 1000) });
    world.pass();
    assert_eq!(world.running.len(), 3);
    let equal = world.submit(Wish { priority: -5, ..Wish::new("firm", 1, 10) });
    world.pass();
    assert!(world.preempted.is_empty(), "not for the same priority");
    let urgent = world.submit(Wish { priority: 5, ..Wish::new("firm", 1, 10) });
    let pass = world.pass();
    assert_eq!(world.preempted, [low]);
    assert_eq!(pass.preemptions[0].by, JobId::from_u128(urgent));
    world.pass();
    assert_eq!(world.preempted, [low], "it is told once");
    world.end(low);
    world.pass();
    assert!(world.running.contains_key(&urgent) && world.waits(equal), "who waited longer did not slip in");
    let huge = world.submit(Wish { priority: 5, ..Wish::new("firm", 4, 10) });
    world.pass();
    assert!(world.waits(huge) && world.preempted == [low], "all that yields would not be enough");
    assert!(world.running.contains_key(&stays) && world.running.contains_key(&newer));
}
