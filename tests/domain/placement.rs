//! Placement: random queues and pools against what must hold of every pass, and the words of its explanations.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::quantity::{Cpus, Timestamp};
use gpulayer::contract::spec::{Resources, Target};
use gpulayer::contract::worker::{Capabilities, WorkerKind};
use gpulayer::domain::placement::{
    Amount, Grant, Holding, Input, Luggage, NotHeld, Pass, Place, Placer, Policy, Pool, Queue, QueuedJob,
    Shape, Verdict, explain, never_fits, queue_reason, verdict,
};
use proptest::prelude::*;

pub const GIB: u64 = 1 << 30;
pub const UNBOUNDED: u32 = u32::MAX;
const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

pub fn machine(cpu_millis: u32, memory_gib: u64) -> Capabilities {
    Capabilities {
        version: "0.1.0".to_owned(),
        hostname: "host".to_owned(),
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: Cpus::from_millis(cpu_millis),
        memory_bytes: memory_gib * GIB,
        labels: BTreeMap::new(),
        gpus: Vec::new(),
        secrets: Vec::new(),
        spec_secret_refs: false,
        limits: Default::default(),
        pythons: Vec::new(),
        interpreters: Vec::new(),
        advertise_address: None,
    }
}

pub fn worker(number: u128) -> WorkerId {
    WorkerId::from_u128(number)
}

pub fn shape(cpu_millis: u32, memory_gib: Option<u64>) -> Arc<Shape> {
    let resources = Resources {
        cpus: Cpus::from_millis(cpu_millis),
        memory_bytes: memory_gib.map(|gib| gib * GIB),
        ..Resources::default()
    };
    Arc::new(Shape { resources, ..Shape::default() })
}

/// A pool of machines `(millis, GiB)`, numbered from 1.
pub fn pool_of(machines: &[(u32, u64)]) -> Pool {
    let mut pool = Pool::new();
    for (number, (cpu_millis, memory_gib)) in (1..).zip(machines) {
        let name = format!("w{number}");
        pool.worker_up(worker(number), &name, WorkerKind::Remote, 7, &machine(*cpu_millis, *memory_gib));
    }
    pool
}

pub fn job(number: u128, priority: i32, age: i64, shape: &Arc<Shape>) -> QueuedJob {
    QueuedJob {
        job_id: JobId::from_u128(number),
        epoch: 3,
        priority,
        submitted_at: Timestamp::from_micros(age),
        shape: shape.clone(),
        project: "default".into(),
        avoid: None,
        luggage: Luggage::default(),
    }
}

pub fn queue_of(jobs: &[QueuedJob]) -> Queue {
    let mut queue = Queue::new();
    for job in jobs {
        queue.insert(job.clone());
    }
    queue
}

/// A placer that reserves nothing: what fits goes first.
fn placer_of(jobs: &[QueuedJob], machines: &[(u32, u64)]) -> Placer {
    let mut placer = Placer::new(Policy { reservations: 0, ..Policy::default() });
    for (number, (cpu_millis, memory_gib)) in (1..).zip(machines) {
        up(&mut placer, number, 7, machine(*cpu_millis, *memory_gib));
    }
    for job in jobs {
        tell(&mut placer, Input::Queued(job.clone()));
    }
    placer
}

pub fn tell(placer: &mut Placer, input: Input) {
    assert_eq!(placer.apply(input).unwrap(), Pass::default());
}

pub fn up(placer: &mut Placer, number: u128, incarnation: u64, capabilities: Capabilities) {
    let name = format!("w{number}");
    let (worker_id, kind, capabilities) = (worker(number), WorkerKind::Remote, Box::new(capabilities));
    tell(placer, Input::WorkerUp { worker_id, name, kind, incarnation, capabilities });
}

pub fn place(placer: &mut Placer, budget_checks: u32) -> Pass {
    placer.apply(Input::Pass { now: NOW, budget_checks }).unwrap()
}

/// What the first placement of a job of this shape holds.
pub fn held_by(shape: &Shape) -> Holding {
    let grant = Grant { amount: shape.amount(), gpus: Vec::new() };
    Holding { grant, project: "default".into(), priority: 0, weight: 1, ends_by: None, again: None }
}

pub fn place_of(number: u128) -> Place {
    Place { job_id: JobId::from_u128(number), epoch: 4 }
}

pub fn free(placer: &mut Placer, on: u128, job: u128) {
    tell(placer, Input::Freed { worker_id: worker(on), place: place_of(job) });
}

pub fn placed(pass: &Pass) -> Vec<(u128, u128)> {
    let seat = |placed: &gpulayer::domain::placement::Placed| placed.seats[0].worker_id.as_u128();
    pass.placements.iter().map(|placed| (placed.job.job_id.as_u128(), seat(placed))).collect()
}

#[test]
fn priority_then_age_then_id() {
    let one = shape(1000, None);
    let jobs = [job(4, 0, 5, &one), job(3, 0, 5, &one), job(2, 0, 1, &one), job(1, 9, 9, &one)];
    let mut placer = placer_of(&jobs, &[(4000, 1)]);
    let pass = place(&mut placer, UNBOUNDED);
    assert_eq!(placed(&pass), [(1, 1), (2, 1), (3, 1), (4, 1)]);
    let proposal = pass.placements[0].proposal();
    assert_eq!((proposal.job_epoch, proposal.seats[0].incarnation), (3, 7));
    assert!(placer.queue().is_empty());
}

#[test]
fn a_shape_without_room_blocks_nobody_else() {
    let jobs = [job(1, 5, 0, &shape(8000, None)), job(2, 0, 0, &shape(1000, None))];
    let mut placer = placer_of(&jobs, &[(2000, 1)]);
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), [(2, 1)]);
    assert!(placer.queue().contains(JobId::from_u128(1)));
}

#[test]
fn the_fullest_worker_that_fits_then_the_smallest_id() {
    let jobs = [job(1, 0, 0, &shape(1000, Some(1)))];
    for (machines, best) in [
        (&[(4000, 8), (2000, 8), (2000, 8)][..], 2),
        (&[(2000, 8), (2000, 4)][..], 2),
        (&[(500, 8), (8000, 8)][..], 2),
    ] {
        let mut placer = placer_of(&jobs, machines);
        assert_eq!(placed(&place(&mut placer, UNBOUNDED)), [(1, best)], "{machines:?}");
    }
}

#[test]
fn an_avoided_worker_is_taken_only_when_no_other_would_do() {
    let mut retried = job(1, 0, 0, &shape(1000, None));
    retried.avoid = Some(worker(1));
    for (machines, best) in [(&[(1000, 1), (4000, 1)][..], 2), (&[(1000, 1), (500, 1)][..], 1)] {
        let mut placer = placer_of(std::slice::from_ref(&retried), machines);
        assert_eq!(placed(&place(&mut placer, UNBOUNDED)), [(1, best)], "{machines:?}");
    }
}

#[test]
fn a_blocked_shape_is_looked_at_again_when_a_worker_grows() {
    let one = shape(1000, None);
    let jobs: Vec<QueuedJob> = (1..=3).map(|number| job(number, 0, 0, &one)).collect();
    let mut placer = placer_of(&jobs, &[(1000, 1), (500, 1)]);
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), [(1, 1)]);
    let idle = place(&mut placer, UNBOUNDED);
    assert_eq!((idle.placements.len(), idle.checks), (0, 0), "nothing grew, so nothing is checked");
    free(&mut placer, 1, 1);
    let pass = place(&mut placer, UNBOUNDED);
    assert_eq!(placed(&pass), [(2, 1)]);
    assert!(pass.checks <= 3, "only the worker that grew is checked: {}", pass.checks);
    up(&mut placer, 3, 1, machine(1000, 1));
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), [(3, 3)]);
}

#[test]
fn what_a_worker_held_before_a_restart_of_the_server_counts() {
    let one = shape(1000, None);
    let mut placer = placer_of(&[job(1, 0, 0, &one), job(2, 0, 0, &one)], &[]);
    tell(&mut placer, Input::Taken { worker_id: worker(1), place: place_of(8), holding: held_by(&one) });
    assert_eq!(verdict(&one, placer.pool()), Verdict::NotNow);
    assert!(place(&mut placer, UNBOUNDED).placements.is_empty());
    up(&mut placer, 1, 1, machine(2000, 1));
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), [(1, 1)]);
    tell(&mut placer, Input::WorkerDown { worker_id: worker(1) });
    free(&mut placer, 1, 8);
    assert!(place(&mut placer, UNBOUNDED).placements.is_empty(), "a worker that is down gets nothing");
}

#[test]
fn broken_books_are_errors() {
    let (mut pool, one) = (pool_of(&[(1000, 1)]), held_by(&shape(1000, None)));
    assert_eq!(pool.release(worker(1), place_of(1)), Err(NotHeld(worker(1))));
    pool.record_held(worker(1), place_of(1), one.clone());
    assert_eq!(pool.release(worker(9), place_of(1)), Err(NotHeld(worker(9))), "another has it");
    assert_eq!(pool.worker(worker(1)).unwrap().held(), one.grant.amount);
    assert_eq!(pool.release(worker(1), place_of(1)), Ok(one));
    assert_eq!(pool.worker(worker(1)).unwrap().tasks(), 0);
}

#[test]
fn says_why_per_worker_and_grouped() {
    let mut pool = Pool::new();
    assert_eq!(queue_reason(&shape(1000, None), &pool), "no worker is connected");
    for number in 1..=3 {
        let kind = if number == 1 { WorkerKind::Local } else { WorkerKind::Remote };
        pool.worker_up(worker(number), &format!("w{number}"), kind, 1, &machine(2000, 4));
    }
    assert_eq!(queue_reason(&shape(8000, None), &pool), "3 workers: needs 8 CPUs, has 2 in all");
    assert_eq!(verdict(&shape(8000, None), &pool), Verdict::Never);
    assert!(never_fits(&queue_reason(&shape(8000, None), &pool)));
    assert_eq!(
        queue_reason(&shape(1000, Some(6)), &pool),
        "3 workers: needs 6 GiB of memory, has 4 GiB in all"
    );
    for number in 1..=3 {
        pool.record_held(worker(1), place_of(number), held_by(&shape(500, Some(1))));
    }
    pool.worker_down(worker(2));
    pool.record_held(worker(3), place_of(4), held_by(&shape(2000, None)));
    assert_eq!(
        queue_reason(&shape(1000, None), &pool),
        "1 worker: takes no tasks now (offline) · 1 worker: needs 1 CPU, 0 free of 2 (held by 1 task) \
         · 1 worker: needs 1 CPU, 0.5 free of 2 (held by 3 tasks)"
    );
    assert_eq!(
        queue_reason(&shape(500, Some(2)), &pool).split(" · ").last(),
        Some("1 worker: needs 2 GiB of memory, 1 GiB free of 4 GiB (held by 3 tasks)")
    );
    assert_eq!(verdict(&shape(1000, None), &pool), Verdict::NotNow);
    assert_eq!(verdict(&shape(500, None), &pool), Verdict::Fits);
    for mixed in [shape(1000, None), shape(500, None), shape(500, Some(2))] {
        assert!(!never_fits(&queue_reason(&mixed, &pool)));
    }
    assert!(!never_fits(&queue_reason(&shape(1000, None), &Pool::new())));

    let with = |change: fn(&mut Shape)| {
        let mut shape = (*shape(1000, None)).clone();
        change(&mut shape);
        queue_reason(&Arc::new(shape), &pool_of(&[(2000, 4)]))
    };
    for (reason, expected) in [
        (with(|shape| shape.target = Target::Local), "is not the server's own host"),
        (with(|shape| shape.target = Target::Cloud), "is no provider's instance"),
        (with(|shape| shape.resources.os = Some("macos".to_owned())), "needs macos, runs linux"),
        (with(|shape| shape.resources.arch = Some("aarch64".to_owned())), "needs aarch64, is x86_64"),
        (with(|shape| shape.resources.worker = Some("big".to_owned())), "is not worker big"),
        (with(|shape| shape.resources.worker = Some("w1".to_owned())), "has room"),
        (with(|shape| shape.resources.worker = Some(worker(1).to_string())), "has room"),
        (
            with(|shape| {
                shape.resources.labels.insert("zone".to_owned(), "b".to_owned());
            }),
            "needs label zone=b, has no zone",
        ),
    ] {
        assert_eq!(reason, format!("1 worker: {expected}"));
    }
    // What was mistyped is recognised; what another worker has is not taken for a mistake.
    assert!(with(|shape| shape.resources.worker = Some("w11".to_owned())).ends_with("(nearest: w1)"));
    let mut pool = pool_of(&[(2000, 4)]);
    let mut zoned = machine(2000, 4);
    zoned.labels.insert("zone".to_owned(), "a".to_owned());
    pool.worker_up(worker(7), "far", WorkerKind::Remote, 1, &zoned);
    let mut near = (*shape(1000, None)).clone();
    near.resources.labels.insert("zoen".to_owned(), "a".to_owned());
    assert_eq!(
        queue_reason(&Arc::new(near.clone()), &pool),
        "2 workers: needs label zoen=a, has no zoen (nearest: zone)"
    );
    assert!(never_fits(&queue_reason(&Arc::new(near.clone()), &pool)));
    let mut zone = (*shape(1000, None)).clone();
    zone.resources.labels.insert("zone".to_owned(), "b".to_owned());
    assert!(!queue_reason(&Arc::new(zone), &pool).contains("nearest"));
    let reasons = explain(&shape(1000, None), &pool_of(&[(500, 1), (1000, 1)]), |_| None);
    assert_eq!(reasons[0].verdict, Verdict::Fits);
    assert_eq!(reasons[1].workers, ["w1"]);
}

/// Few shapes and small machines, so that they often collide.
fn shapes() -> impl Strategy<Value = Arc<Shape>> {
    (1u32..=8, prop::option::of(1u64..=4)).prop_map(|(halves, gib)| shape(halves * 500, gib))
}

fn jobs(most: usize) -> impl Strategy<Value = Vec<QueuedJob>> {
    let kinds = prop::collection::vec(shapes(), 1..5);
    let wishes = prop::collection::vec((any::<prop::sample::Index>(), 0i32..3, 0i64..5, 0u128..6), 0..most);
    (kinds, wishes).prop_map(|(kinds, wishes)| {
        let numbered = (1..).zip(wishes);
        numbered
            .map(|(number, (kind, priority, age, avoid))| QueuedJob {
                avoid: (avoid > 0).then(|| worker(avoid)),
                ..job(number, priority, age, kind.get(&kinds))
            })
            .collect()
    })
}

fn machines() -> impl Strategy<Value = Vec<(u32, u64)>> {
    prop::collection::vec(((0u32..=16).prop_map(|halves| halves * 500), 1u64..=8), 0..5)
}

fn turn(job: &QueuedJob) -> (i32, Timestamp, JobId) {
    (-job.priority, job.submitted_at, job.job_id)
}

/// The same decision in the plainest way, for one worker: every job in order, if it fits in what is left.
fn plain_first_come(jobs: &[QueuedJob], mut free: Amount) -> Vec<JobId> {
    let mut sorted: Vec<&QueuedJob> = jobs.iter().collect();
    sorted.sort_by_key(|job| turn(job));
    let mut placed = Vec::new();
    for job in sorted {
        if let Some(left) = free.checked_sub(job.shape.amount()) {
            free = left;
            placed.push(job.job_id);
        }
    }
    placed
}

proptest! {
    #[test]
    fn one_worker_is_filled_as_the_plainest_loop_would(
        jobs in jobs(40),
        cpu_millis in (0u32..=16).prop_map(|n| n * 500),
        gib in 1u64..=8,
    ) {
        let mut placer = placer_of(&jobs, &[(cpu_millis, gib)]);
        let pass = place(&mut placer, UNBOUNDED);
        let free = Amount { cpu_millis: cpu_millis.into(), memory_bytes: gib * GIB };
        let ids: Vec<JobId> = pass.placements.iter().map(|placed| placed.job.job_id).collect();
        prop_assert_eq!(ids, plain_first_come(&jobs, free));
    }

    #[test]
    fn a_pass_never_overcommits_keeps_the_order_of_each_shape_and_leaves_no_room_unused(
        jobs in jobs(40),
        machines in machines(),
    ) {
        let mut placer = placer_of(&jobs, &machines);
        let before = placer.pool().clone();
        let pass = place(&mut placer, UNBOUNDED);
        prop_assert!(!pass.exhausted);
        prop_assert_eq!(placer.queue().len() + pass.placements.len(), jobs.len());

        let mut held: BTreeMap<WorkerId, Amount> = BTreeMap::new();
        for placed in &pass.placements {
            let sum = held.entry(placed.seats[0].worker_id).or_default();
            *sum = sum.saturating_add(placed.job.shape.amount());
        }
        for worker in placer.pool().workers() {
            let sum = held.get(&worker.id).copied().unwrap_or_default();
            prop_assert_eq!(worker.held(), sum);
            prop_assert!(worker.total.holds(sum));
        }
        for waiting in jobs.iter().filter(|job| placer.queue().contains(job.job_id)) {
            prop_assert_ne!(verdict(&waiting.shape, placer.pool()), Verdict::Fits);
            let overtaken = pass.placements.iter().any(|placed| {
                placed.job.shape == waiting.shape && turn(&placed.job) > turn(waiting)
            });
            prop_assert!(!overtaken, "a later job of the same shape went first");
        }
        let (shapes, workers) = (placer.queue().lanes() + pass.placements.len(), before.workers().count());
        prop_assert!(pass.checks as usize <= 2 * shapes * workers + 2 * pass.placements.len());
    }

    #[test]
    fn the_same_state_gives_the_same_pass_and_a_small_budget_only_takes_longer(
        jobs in jobs(30),
        machines in machines(),
        budget in 1u32..20,
    ) {
        let mut placer = placer_of(&jobs, &machines);
        let whole = place(&mut placer, UNBOUNDED);

        let backwards: Vec<QueuedJob> = jobs.iter().rev().cloned().collect();
        let mut placer = placer_of(&backwards, &machines);
        prop_assert_eq!(&place(&mut placer, UNBOUNDED), &whole, "the order of arrival plays no part");

        let mut placer = placer_of(&jobs, &machines);
        let mut passes = 0;
        while place(&mut placer, budget).exhausted {
            passes += 1;
            prop_assert!(passes <= 200, "every call gets on");
        }
        for waiting in jobs.iter().filter(|job| placer.queue().contains(job.job_id)) {
            prop_assert_ne!(verdict(&waiting.shape, placer.pool()), Verdict::Fits);
        }
    }

    #[test]
    fn what_is_inserted_comes_out_and_nothing_else(
        jobs in jobs(30),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let mut queue = queue_of(&jobs);
        let mut waiting: BTreeMap<JobId, QueuedJob> =
            jobs.iter().map(|job| (job.job_id, job.clone())).collect();
        for pick in order {
            if jobs.is_empty() {
                break;
            }
            let job = pick.get(&jobs);
            match waiting.remove(&job.job_id) {
                Some(expected) => prop_assert_eq!(queue.remove(job.job_id), Some(expected)),
                None => {
                    prop_assert_eq!(queue.remove(job.job_id), None);
                    queue.insert(job.clone());
                    waiting.insert(job.job_id, job.clone());
                }
            }
            prop_assert_eq!(queue.len(), waiting.len());
        }
        let shapes: std::collections::HashSet<&Arc<Shape>> = waiting.values().map(|job| &job.shape).collect();
        prop_assert_eq!(queue.lanes(), shapes.len());
    }
}

#[test]
fn an_unhealthy_worker_gets_nothing_says_why_and_takes_jobs_again_by_itself() {
    let one = shape(1000, None);
    let mut placer = placer_of(&[job(1, 0, 0, &one)], &[(1000, 1)]);
    let why = "disk full on /srv, 120 MiB free, needs 512 MiB";
    tell(&mut placer, Input::WorkerHealth { worker_id: worker(1), unhealthy: Some(why.to_owned()) });
    assert!(placed(&place(&mut placer, UNBOUNDED)).is_empty());
    let reason = queue_reason(&one, placer.pool());
    assert_eq!(reason, format!("1 worker: {why} (unhealthy)"));
    assert!(!never_fits(&reason));
    assert_eq!(verdict(&one, placer.pool()), Verdict::NotNow);
    // What it can never do is said first: waiting would not help.
    assert_eq!(queue_reason(&shape(2000, None), placer.pool()), "1 worker: needs 2 CPUs, has 1 in all");
    tell(&mut placer, Input::WorkerHealth { worker_id: worker(1), unhealthy: None });
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), [(1, 1)]);
    tell(&mut placer, Input::WorkerHealth { worker_id: worker(9), unhealthy: Some(why.to_owned()) });
    assert!(placer.pool().worker(worker(9)).is_none(), "one that never was up is not there");
}

#[test]
fn a_worker_without_the_secret_is_left_out_until_it_has_it() {
    let mut pool = Pool::new();
    for number in 1..=2 {
        pool.worker_up(worker(number), "w", WorkerKind::Remote, 1, &machine(1000, 1));
    }
    let one = (*shape(1000, None)).clone();
    let wanting = Arc::new(Shape { secrets: ["HF_TOKEN".to_owned()].into(), ..one.clone() });
    let reaching = Arc::new(Shape { spec_secret_refs: true, ..one });
    let reason = queue_reason(&wanting, &pool);
    assert!(reason.starts_with("2 workers: needs secret HF_TOKEN"), "{reason}");
    assert_eq!(verdict(&wanting, &pool), Verdict::Never);
    assert!(queue_reason(&reaching, &pool).contains("allow_spec_secret_refs"));
    pool.worker_secrets(worker(2), vec!["HF_TOKEN".to_owned()]);
    assert_eq!(verdict(&wanting, &pool), Verdict::Fits);
}

#[test]
fn a_draining_worker_gets_nothing_says_so_and_one_that_was_never_up_stays_drained() {
    let wants = shape(1000, None);
    let mut placer = placer_of(&[job(1, 0, 0, &wants)], &[(1000, 1)]);
    let drain = |placer: &mut Placer, number, draining| {
        tell(placer, Input::WorkerDraining { worker_id: worker(number), draining });
    };
    drain(&mut placer, 1, true);
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), []);
    assert_eq!(queue_reason(&wants, placer.pool()), "1 worker: draining");
    assert!(!never_fits(&queue_reason(&wants, placer.pool())), "it may be resumed");
    // Its coming back from a restart of its own does not end the drain.
    up(&mut placer, 1, 8, machine(1000, 1));
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), []);
    drain(&mut placer, 1, false);
    assert_eq!(placed(&place(&mut placer, UNBOUNDED)), [(1, 1)]);
    drain(&mut placer, 2, true);
    up(&mut placer, 2, 1, machine(1000, 1));
    assert_eq!(
        verdict(&wants, placer.pool()),
        Verdict::NotNow,
        "one is full, the other was told before it was up"
    );
}

#[test]
fn a_worker_that_left_is_named_no_more_and_forgotten_when_nothing_is_held_there() {
    let wants = shape(1000, None);
    let mut pool = pool_of(&[(2000, 1), (2000, 1)]);
    pool.record_held(worker(1), place_of(1), held_by(&wants));
    pool.worker_left(worker(1));
    pool.worker_left(worker(2));
    assert_eq!(queue_reason(&wants, &pool), "no worker is connected");
    assert!(pool.worker(worker(1)).is_some(), "what it holds is still on the books");
    pool.release(worker(1), place_of(1)).unwrap();
    assert_eq!((pool.worker(worker(1)), pool.worker(worker(2))), (None, None));
}
