//! Who goes first when not all can: fair share, quotas, reservations with backfill, preemption. In a small world with a
//! clock of its own, over random jobs, with what must hold checked at every step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::quantity::{Cpus, Seconds, Timestamp};
use gpulayer::contract::spec::Resources;
use gpulayer::domain::placement::{Input, Pass, Placer, Policy, ProjectPolicy, QueuedJob, Shape};
use proptest::prelude::*;

use crate::placement::{UNBOUNDED, machine, tell, up, worker};

const START: i64 = 1_700_000_000;
/// Staging takes no time here, so that the end of a job is known to the second.
const STAGING: Seconds = Seconds::new(0);

fn at(second: u64) -> Timestamp {
    Timestamp::from_micros((START + i64::try_from(second).unwrap()) * 1_000_000)
}

/// What a test says of a job.
#[derive(Debug, Clone)]
struct Wish {
    project: &'static str,
    priority: i32,
    cores: u32,
    nodes: u32,
    /// How long it runs, in seconds; the time limit is as long.
    runs: u64,
    /// Whether the limit is stated.
    stated: bool,
}

impl Wish {
    fn new(project: &'static str, cores: u32, runs: u64) -> Self {
        Self { project, priority: 0, cores, nodes: 1, runs, stated: true }
    }

    fn queued(&self, number: u128, second: u64) -> QueuedJob {
        let resources = Resources { cpus: Cpus::from_millis(self.cores * 1000), ..Resources::default() };
        let shape = Shape {
            resources,
            bound_s: self.stated.then_some(Seconds::new(self.runs)),
            nodes: (self.nodes > 1).then_some(self.nodes),
            ..Shape::default()
        };
        QueuedJob {
            job_id: JobId::from_u128(number),
            epoch: 0,
            priority: self.priority,
            submitted_at: at(second),
            shape: Arc::new(shape),
            project: self.project.into(),
            avoid: None,
        }
    }
}

#[derive(Debug, Clone)]
struct Running {
    seats: Vec<WorkerId>,
    ends: u64,
}

/// Machines, a placer, and a clock.
struct World {
    placer: Placer,
    policy: Policy,
    second: u64,
    wishes: BTreeMap<u128, Wish>,
    epochs: BTreeMap<u128, u32>,
    running: BTreeMap<u128, Running>,
    started: BTreeMap<u128, u64>,
    preempted: Vec<u128>,
}

impl World {
    fn new(policy: Policy, machines: &[u32]) -> Self {
        let policy = Policy { staging_s: STAGING, ..policy };
        let mut placer = Placer::new(policy.clone());
        for (number, cores) in (1..).zip(machines) {
            up(&mut placer, number, 1, machine(cores * 1000, 64));
        }
        Self {
            placer,
            policy,
            second: 0,
            wishes: BTreeMap::new(),
            epochs: BTreeMap::new(),
            running: BTreeMap::new(),
            started: BTreeMap::new(),
            preempted: Vec::new(),
        }
    }

    fn submit(&mut self, wish: Wish) -> u128 {
        let number = self.wishes.len() as u128 + 1;
        tell(&mut self.placer, Input::Queued(wish.queued(number, self.second)));
        self.wishes.insert(number, wish);
        number
    }

    /// One pass, and what follows from it.
    fn pass(&mut self) -> Pass {
        let now = at(self.second);
        let pass = self.placer.apply(Input::Pass { now, budget_checks: UNBOUNDED }).unwrap();
        for placed in &pass.placements {
            let number = placed.job.job_id.as_u128();
            let wish = &self.wishes[&number];
            assert_eq!(placed.seats.len(), wish.nodes as usize, "a gang is placed whole");
            let seats: Vec<WorkerId> = placed.seats.iter().map(|seat| seat.worker_id).collect();
            assert_eq!(
                seats.iter().collect::<BTreeSet<_>>().len(),
                seats.len(),
                "each node on its own worker"
            );
            tell(&mut self.placer, Input::Accepted { job_id: placed.job.job_id });
            self.epochs.insert(number, placed.place().epoch);
            self.started.insert(number, self.second);
            self.running.insert(number, Running { seats, ends: self.second + wish.runs });
        }
        for preemption in &pass.preemptions {
            self.preempted.push(preemption.place.job_id.as_u128());
        }
        self.check();
        pass
    }

    fn end(&mut self, number: u128) {
        let Running { seats, .. } = self.running.remove(&number).unwrap();
        let place = gpulayer::domain::placement::Place {
            job_id: JobId::from_u128(number),
            epoch: self.epochs[&number],
        };
        for worker_id in seats {
            tell(&mut self.placer, Input::Freed { worker_id, place });
        }
    }

    /// Goes on to the next end of a task, and passes again. `false` = nothing runs.
    fn go_on(&mut self) -> bool {
        let Some(next) = self.running.values().map(|running| running.ends).min() else { return false };
        self.second = next;
        let over: Vec<u128> = self
            .running
            .iter()
            .filter(|(_, running)| running.ends == next)
            .map(|(number, _)| *number)
            .collect();
        over.into_iter().for_each(|number| self.end(number));
        self.pass();
        true
    }

    /// What was told to go has gone, and waits again. Whether anything had.
    fn requeue_preempted(&mut self) -> bool {
        let gone = std::mem::take(&mut self.preempted).into_iter();
        let gone: Vec<u128> = gone.filter(|number| self.running.contains_key(number)).collect();
        for number in &gone {
            self.end(*number);
            let again = self.wishes[number].queued(*number, self.second);
            tell(&mut self.placer, Input::Queued(QueuedJob { epoch: self.epochs[number], ..again }));
        }
        !gone.is_empty()
    }

    /// What must hold at every moment.
    fn check(&self) {
        for worker in self.placer.pool().workers() {
            let held: u64 = self
                .running
                .iter()
                .filter(|(_, running)| running.seats.contains(&worker.id))
                .map(|(number, _)| u64::from(self.wishes[number].cores) * 1000)
                .sum();
            assert_eq!(worker.held().cpu_millis, held, "the books say what runs");
            assert!(held <= worker.total.cpu_millis, "no worker has more than it has");
        }
        for (project, policy) in &self.policy.projects {
            let used = self.placer.shares().usage(project).cpu_millis;
            assert!(policy.max_cpu_millis.is_none_or(|most| used <= most), "{project} has {used}");
        }
    }

    fn waits(&self, number: u128) -> bool {
        self.placer.queue().contains(JobId::from_u128(number))
    }
}

fn project(policy: ProjectPolicy) -> Policy {
    let projects = [("vision".to_owned(), policy)].into();
    Policy { projects, ..Policy::default() }
}

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
fn shares_converge_to_what_the_owner_said() {
    let policy = project(ProjectPolicy { share: 3, ..ProjectPolicy::default() });
    let mut world = World::new(policy, &[8, 8]);
    for _ in 0..600 {
        world.submit(Wish::new("vision", 1, 60));
        world.submit(Wish::new("speech", 1, 60));
    }
    world.pass();
    let mut served: BTreeMap<&str, u64> = BTreeMap::new();
    for _ in 0..30 {
        for number in world.running.keys() {
            *served.entry(world.wishes[number].project).or_default() += 60;
        }
        assert!(world.go_on());
    }
    let (vision, speech) = (served["vision"], served["speech"]);
    assert!((27..=33).contains(&(vision * 10 / speech)), "{vision} s to {speech} s");
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
    assert_eq!(lack.to_string(), "project vision has all the CPUs that it may (2)");
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
    let unstated = world.submit(Wish { stated: false, ..Wish::new("a", 1, 5) });
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

fn wishes() -> impl Strategy<Value = Vec<(u64, Wish)>> {
    let wish = (
        prop::sample::select(vec!["vision", "speech", "other"]),
        -1i32..2,
        1u32..5,
        prop::sample::select(vec![1u32, 1, 1, 2]),
        1u64..40,
        prop::bool::weighted(0.7),
    );
    let wish = wish.prop_map(|(project, priority, cores, nodes, runs, stated)| Wish {
        project,
        priority,
        cores,
        nodes,
        runs,
        stated,
    });
    prop::collection::vec((0u64..3, wish), 1..40)
}

fn policies() -> impl Strategy<Value = Policy> {
    (0u32..4, prop::option::of(2u64..6), any::<bool>()).prop_map(|(reservations, most, preemptible)| {
        let policy = ProjectPolicy {
            max_cpu_millis: most.map(|cores| cores * 1000),
            preemptible,
            ..ProjectPolicy::default()
        };
        Policy { reservations, ..project(policy) }
    })
}

proptest! {
    /// Every job that some machines could hold runs in the end; gangs whole, quotas kept, books right (checked at
    /// every step); and a reserved job starts when it was promised, unless somebody of a higher priority came.
    #[test]
    fn nobody_starves_and_no_promise_is_broken(policy in policies(), wishes in wishes()) {
        let mut world = World::new(policy.clone(), &[4, 4, 2]);
        let mut promised: BTreeMap<u128, u64> = BTreeMap::new();
        let note = |world: &World, promised: &mut BTreeMap<u128, u64>| {
            for (job_id, reservation) in world.placer.reservations().all() {
                if let Some(free_by) = reservation.free_by {
                    let second = u64::try_from(free_by.micros() / 1_000_000 - START).unwrap();
                    promised.entry(job_id.as_u128()).or_insert(second);
                }
            }
        };
        for (rounds, wish) in wishes {
            world.submit(wish);
            world.pass();
            note(&world, &mut promised);
            for _ in 0..rounds {
                world.go_on();
                note(&world, &mut promised);
            }
            world.requeue_preempted();
            world.pass();
        }
        let mut rounds = 0;
        while world.go_on() {
            if world.requeue_preempted() {
                world.pass();
            }
            rounds += 1;
            prop_assert!(rounds < 2_000, "it comes to an end");
        }
        for (number, wish) in &world.wishes {
            let most = policy.projects["vision"].max_cpu_millis.filter(|_| wish.project == "vision");
            let fits_quota = most.is_none_or(|most| u64::from(wish.cores * wish.nodes) * 1000 <= most);
            prop_assert_eq!(world.waits(*number), !fits_quota, "job {} {:?}", number, wish);
        }
        if !policy.projects["vision"].preemptible {
            for (number, promise) in promised {
                let higher = world.wishes.values().any(|other| other.priority > world.wishes[&number].priority);
                let capped = world.wishes[&number].project == "vision" && policy.projects["vision"].max_cpu_millis.is_some();
                if let Some(started) = world.started.get(&number).filter(|_| !higher && !capped) {
                    prop_assert!(*started <= promise, "job {} started at {}, promised {}", number, started, promise);
                }
            }
        }
    }

    /// The same inputs, the same passes, to the last field.
    #[test]
    fn a_history_replays_bit_equal(policy in policies(), wishes in wishes()) {
        let run = || {
            let mut world = World::new(policy.clone(), &[4, 4, 2]);
            let mut passes = Vec::new();
            for (rounds, wish) in &wishes {
                world.submit(wish.clone());
                passes.push(world.pass());
                for _ in 0..*rounds {
                    world.go_on();
                }
            }
            passes
        };
        prop_assert_eq!(run(), run());
    }
}
