//! Explanations: every worker has an answer, and a change that is suggested is one that helps.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpulayer::contract::explain::{Explanation, ReservedFor, Suggestion, Verdict};
use gpulayer::contract::gpu::GpuStanding;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::quantity::{Cpus, Seconds, Timestamp};
use gpulayer::contract::spec::{GpuCount, GpuRequest, JobSpec, Resources, Target};
use gpulayer::domain::placement::{Budget, Input, Placer, Policy, ProjectPolicy, QueuedJob, Shape, wish};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::gpus::{gpu, request, with_gpus};
use crate::placement::{GIB, UNBOUNDED, job, machine, shape, tell, up, worker};

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn pass(placer: &mut Placer) -> Vec<JobId> {
    let pass = placer.apply(Input::Pass { now: NOW, budget_checks: UNBOUNDED }).unwrap();
    pass.placements.iter().map(|placed| placed.job.job_id).collect()
}

/// The shape with a suggestion followed, as a person would follow it in the spec.
pub fn followed(shape: &Shape, suggestion: &Suggestion) -> Arc<Shape> {
    let mut whole = serde_json::to_value(shape).unwrap();
    let pointer = match suggestion.pointer.as_str() {
        "/distributed/nodes" => "/nodes",
        pointer => pointer,
    };
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = whole.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    let field = field.replace("~1", "/").replace("~0", "~");
    match &suggestion.value {
        Value::Null => drop(parent.remove(&field)),
        value => drop(parent.insert(field, value.clone())),
    }
    Arc::new(serde_json::from_value(whole).unwrap())
}

fn said(explanation: &Explanation) -> Vec<&str> {
    explanation.suggestions.iter().map(|suggestion| suggestion.change.as_str()).collect()
}

#[test]
fn the_smallest_change_of_each_kind_is_suggested() {
    let mut placer = Placer::new(Policy::default());
    let gpus = (0..4).map(|index| gpu(index, "NVIDIA L4", 24)).collect();
    let mut with = with_gpus(gpus, &[]);
    with.labels.insert("zone".into(), "a".into());
    up(&mut placer, 1, 1, with);
    let ask = |change: fn(&mut Shape)| {
        let mut shape = Shape::default();
        change(&mut shape);
        wish(JobId::from_u128(1), 0, "p".into(), Arc::new(shape), NOW)
    };
    let with_gpus = |count, change: fn(&mut GpuRequest)| {
        let mut request = request(GpuCount::Count(count));
        change(&mut request);
        let resources = Resources { gpus: Some(Box::new(request)), ..Resources::default() };
        wish(JobId::from_u128(1), 0, "p".into(), Arc::new(Shape { resources, ..Shape::default() }), NOW)
    };
    for (job, changes) in [
        (ask(|shape| shape.resources.cpus = Cpus::from_millis(65_000)), vec!["64 CPUs instead of 65"]),
        (
            ask(|shape| shape.resources.memory_bytes = Some(600 * GIB)),
            vec!["512 GiB of memory instead of 600 GiB"],
        ),
        (with_gpus(8, |_| ()), vec!["4 GPUs instead of 8"]),
        (
            with_gpus(2, |request| request.memory_bytes = Some(40 * GIB)),
            vec!["GPUs with ≥ 24 GiB instead of 40 GiB"],
        ),
        (with_gpus(1, |request| request.models = vec!["H100".into()]), vec!["any model"]),
        (
            with_gpus(1, |request| request.min_compute_capability = Some("10.0".into())),
            vec!["compute capability ≥ 9.0 instead of 10.0"],
        ),
        (
            ask(|shape| drop(shape.resources.labels.insert("zone".into(), "b".into()))),
            vec!["without the label zone=b"],
        ),
        (ask(|shape| shape.target = Target::Local), vec!["any target"]),
        (ask(|shape| shape.nodes = Some(3)), vec!["1 node instead of 3"]),
        (ask(|_| ()), vec![]),
    ] {
        let explanation = placer.explain_wish(&job, NOW, &mut Budget::default());
        assert_eq!(said(&explanation), changes, "{}", explanation.summary);
        assert_eq!(explanation.verdict == Verdict::Fits, changes.is_empty());
    }
}

#[test]
fn a_waiting_job_learns_its_place_what_is_reserved_and_when_it_starts_at_the_latest() {
    let mut placer = Placer::new(Policy { staging_s: Seconds::new(0), ..Policy::default() });
    up(&mut placer, 1, 1, machine(4000, 8));
    let limited = |number, cores: u32, seconds: u64, priority| {
        let mut limited = (*shape(cores * 1000, None)).clone();
        limited.bound_s = Some(Seconds::new(seconds));
        job(number, priority, i64::try_from(number).unwrap(), &Arc::new(limited))
    };
    tell(&mut placer, Input::Queued(limited(1, 2, 100, 0)));
    assert_eq!(pass(&mut placer).len(), 1);
    tell(&mut placer, Input::Queued(limited(2, 4, 10, 0)));
    tell(&mut placer, Input::Queued(limited(3, 2, 50, 0)));
    tell(&mut placer, Input::Queued(limited(4, 2, 500, 0)));
    assert_eq!(pass(&mut placer), [JobId::from_u128(3)]);
    let big = placer.explain_job(JobId::from_u128(2), NOW, &mut Budget::default()).unwrap();
    let reservation = big.reservation.unwrap();
    assert_eq!(
        (reservation.workers, reservation.free_by),
        (vec!["w1".to_owned()], Some(NOW.plus(Seconds::new(100))))
    );
    assert_eq!((big.ahead, big.starts_by), (Some(0), Some(NOW.plus(Seconds::new(100)))));
    assert!(big.suggestions.is_empty(), "nothing is free now, so no change helps");
    let behind = placer.explain_job(JobId::from_u128(4), NOW, &mut Budget::default()).unwrap();
    assert_eq!((behind.ahead, behind.starts_by), (Some(1), Some(NOW.plus(Seconds::new(110)))));
    // When the third is gone there is room, which is kept.
    tell(&mut placer, Input::Freed { worker_id: worker(1), place: crate::placement::place_of(3) });
    assert_eq!(pass(&mut placer), []);
    let behind = placer.explain_job(JobId::from_u128(4), NOW, &mut Budget::default()).unwrap();
    assert_eq!(behind.verdict, Verdict::NotNow);
    assert_eq!(behind.workers[0].reason, "has room, reserved for another job");
    let for_big = ReservedFor { job: Some(JobId::from_u128(2)), until: Some(NOW.plus(Seconds::new(100))) };
    assert_eq!(behind.workers[0].reserved_for, Some(for_big));
    let why = placer.reason_of(JobId::from_u128(4), NOW).unwrap();
    assert_eq!((why.line, why.reserved_for), (behind.summary, Some(JobId::from_u128(2))));
    assert_eq!(placer.explain_job(JobId::from_u128(1), NOW, &mut Budget::default()), None, "it runs");
}

/// Four cores, of which a job holds two for two hours at most; another, that needs all of them, waits. Staging takes the
/// minute that it is said to.
fn half_reserved() -> Placer {
    let mut placer = Placer::new(Policy::default());
    up(&mut placer, 1, 1, machine(4000, 8));
    for (number, cores, hours) in [(1, 2, 2), (2, 4, 12)] {
        let bound_s = Some(Seconds::new(hours * 3600));
        let shape = Arc::new(Shape { bound_s, ..(*shape(cores * 1000, None)).clone() });
        tell(&mut placer, Input::Queued(job(number, 0, i64::try_from(number).unwrap(), &shape)));
    }
    assert_eq!(pass(&mut placer), [JobId::from_u128(1)]);
    placer
}

fn with_timeout(seconds: Option<u64>) -> (QueuedJob, Seconds) {
    let mut spec = JobSpec::command(["true"]);
    (spec.resources.cpus, spec.timeout_s) = (Cpus::from_millis(2000), seconds.map(Seconds::new));
    spec.grace_s = Seconds::new(40);
    (wish(JobId::from_u128(9), 0, "default".into(), Arc::new(Shape::of(&spec)), NOW), spec.grace_s)
}

#[test]
fn what_is_said_of_a_spec_with_a_limit_is_what_a_pass_would_do_with_it() {
    let placer = half_reserved();
    for (timeout, starts) in [(Some(3600), true), (Some(6000), true), (Some(7300), false), (None, false)] {
        let (job, _) = with_timeout(timeout);
        let mut tried = placer.clone();
        tell(&mut tried, Input::Queued(job.clone()));
        assert_eq!(pass(&mut tried) == [job.job_id], starts);
        let explanation = placer.explain_wish(&job, NOW, &mut Budget::default());
        assert_eq!(explanation.verdict == Verdict::Fits, starts, "{timeout:?}: {}", explanation.summary);
        assert_eq!(explanation.workers[0].reserved_for.is_none(), starts, "{timeout:?}");
    }
}

#[test]
fn a_shorter_limit_is_suggested_where_it_lets_a_job_slip_in_before_another() {
    let mut placer = half_reserved();
    for timeout in [None, Some(24 * 3600)] {
        let (job, grace) = with_timeout(timeout);
        let suggestion = placer.shorter_limit(&job, grace, NOW, &mut Budget::default()).unwrap();
        let limit = suggestion.value.as_u64().unwrap();
        assert_eq!((suggestion.pointer.as_str(), limit % 60), ("/timeout_s", 0));
        assert!((5400..7200).contains(&limit), "{limit}: most of the two hours");
        assert!(suggestion.change.starts_with("--timeout 1h") && suggestion.change.ends_with(" or less"));
        for (seconds, starts) in [(limit, true), (60, true), (7200, false)] {
            let mut tried = placer.clone();
            let (job, _) = with_timeout(Some(seconds));
            tell(&mut tried, Input::Queued(job.clone()));
            assert_eq!(pass(&mut tried) == [job.job_id], starts, "{seconds}");
        }
    }
    let (short, grace) = with_timeout(Some(600));
    assert_eq!(placer.shorter_limit(&short, grace, NOW, &mut Budget::default()), None, "it starts as it is");
    let (large, _) = with_timeout(None);
    let large = QueuedJob { shape: shape(3000, None), ..large };
    assert_eq!(
        placer.shorter_limit(&large, grace, NOW, &mut Budget::default()),
        None,
        "there is no room, whatever it says"
    );
    // One that runs without a limit: nobody knows when the reserved job can start, and nobody is let in before it.
    tell(&mut placer, Input::Freed { worker_id: worker(1), place: crate::placement::place_of(1) });
    tell(&mut placer, Input::Unqueued { job_id: JobId::from_u128(2) });
    let two = shape(2000, None);
    tell(&mut placer, Input::Queued(job(3, 0, 3, &two)));
    assert_eq!(pass(&mut placer), [JobId::from_u128(3)]);
    tell(&mut placer, Input::Queued(job(4, 0, 4, &shape(4000, None))));
    let (job, grace) = with_timeout(None);
    assert_eq!(placer.shorter_limit(&job, grace, NOW, &mut Budget::default()), None);
}

#[test]
fn a_quota_is_the_first_reason_and_more_workers_can_be_supposed() {
    let projects =
        [("vision".to_owned(), ProjectPolicy { max_gpus: Some(1), ..ProjectPolicy::default() })].into();
    let mut placer = Placer::new(Policy { projects, ..Policy::default() });
    up(&mut placer, 1, 1, with_gpus(vec![gpu(0, "NVIDIA L4", 24)], &[]));
    let resources = Resources { gpus: Some(Box::new(request(GpuCount::Count(1)))), ..Resources::default() };
    let one = Arc::new(Shape { resources, ..Shape::default() });
    tell(&mut placer, Input::Queued(QueuedJob { project: "vision".into(), ..job(1, 0, 1, &one) }));
    assert_eq!(pass(&mut placer).len(), 1);
    let next = wish(JobId::from_u128(2), 0, "vision".into(), one.clone(), NOW);
    let explanation = placer.explain_wish(&next, NOW, &mut Budget::default());
    assert_eq!(explanation.quota.as_deref(), Some("project vision may have 1 GPU, holds 1, needs 1"));
    assert_eq!(explanation.quota_held_by.len(), 1, "and who has it");
    assert_eq!(explanation.quota_held_by[0].job, Some(JobId::from_u128(1)));
    assert!(
        explanation.summary.starts_with("project vision may have 1 GPU, holds"),
        "{}",
        explanation.summary
    );
    let other = wish(JobId::from_u128(2), 0, "speech".into(), one, NOW);
    let of_other = placer.explain_wish(&other, NOW, &mut Budget::default());
    assert_eq!((of_other.verdict, of_other.quota_held_by.len()), (Verdict::NotNow, 0));
    // As if the job that runs were gone.
    let without = placer.supposing(None, 1, Some(JobId::from_u128(1))).unwrap();
    for asked in [&next, &other] {
        let explained = without.explain_wish(asked, NOW, &mut Budget::default());
        assert_eq!((explained.verdict, explained.quota), (Verdict::Fits, None));
    }
    let more =
        placer.supposing(Some("w1"), 2, None).unwrap().explain_wish(&other, NOW, &mut Budget::default());
    assert_eq!(more.verdict, Verdict::Fits);
    assert!(placer.supposing(Some("w9"), 1, None).is_none());
    assert!(
        more.workers.iter().any(|answer| answer.workers == ["w1+2", "w1+1"] || answer.workers.len() == 2)
    );
}

#[test]
fn a_gang_that_is_supposed_gone_gives_back_all_its_places() {
    let mut placer = Placer::new(Policy::default());
    (1..3).for_each(|number| up(&mut placer, number, 1, machine(4000, 8)));
    let whole = Arc::new(Shape { nodes: Some(2), ..(*shape(4000, None)).clone() });
    tell(&mut placer, Input::Queued(job(1, 0, 1, &whole)));
    assert_eq!(pass(&mut placer).len(), 1);
    let next = wish(JobId::from_u128(2), 0, "p".into(), whole, NOW);
    let waits = placer.explain_wish(&next, NOW, &mut Budget::default());
    assert_eq!((waits.verdict, waits.nodes), (Verdict::NotNow, Some(2)));
    let waiting_for = waits.waiting_for.unwrap();
    assert_eq!((waiting_for.what.as_str(), waiting_for.worker.as_str()), ("room on 2 workers", "w1, w2"));
    assert_eq!(waiting_for.held_by.len(), 1, "one job, whatever number of workers it is on");
    let without = placer.supposing(None, 1, Some(JobId::from_u128(1))).unwrap();
    assert_eq!(without.explain_wish(&next, NOW, &mut Budget::default()).verdict, Verdict::Fits);
}

#[test]
fn the_first_jobs_that_are_served_before_are_named() {
    let mut placer = Placer::new(Policy { reservations: 0, ..Policy::default() });
    up(&mut placer, 1, 1, machine(4000, 8));
    for (number, cores, priority) in [(1, 4, 9), (2, 4, 0), (3, 3, 5), (4, 4, 0), (5, 2, 0), (6, 4, 0)] {
        let shape = shape(cores * 1000, None);
        tell(&mut placer, Input::Queued(job(number, priority, i64::try_from(number).unwrap(), &shape)));
    }
    assert_eq!(pass(&mut placer).len(), 1);
    let last = placer.explain_job(JobId::from_u128(6), NOW, &mut Budget::default()).unwrap();
    assert_eq!((last.ahead, last.served_before), (Some(4), [3, 2, 4].map(JobId::from_u128).to_vec()));
    let first = placer.explain_job(JobId::from_u128(3), NOW, &mut Budget::default()).unwrap();
    assert_eq!((first.ahead, first.served_before), (Some(0), Vec::new()));
}

#[test]
fn who_can_never_be_placed_or_may_not_be_now_is_served_before_nobody() {
    let projects =
        [("vision".to_owned(), ProjectPolicy { max_cpu_millis: Some(4000), ..ProjectPolicy::default() })]
            .into();
    let mut placer = Placer::new(Policy { reservations: 0, projects, ..Policy::default() });
    up(&mut placer, 1, 1, machine(4000, 8));
    let of = |project: &str, number, cores: u32, priority| QueuedJob {
        project: project.into(),
        ..job(number, priority, i64::try_from(number).unwrap(), &shape(cores * 1000, None))
    };
    tell(&mut placer, Input::Queued(of("vision", 1, 4, 9)));
    assert_eq!(pass(&mut placer).len(), 1);
    // The second is impossible, the third beyond what its project may have now; the fourth waits like everybody.
    for job in
        [of("p", 2, 9, 5), of("vision", 3, 1, 5), of("p", 4, 2, 5), of("p", 5, 1, 0), of("vision", 6, 2, 0)]
    {
        tell(&mut placer, Input::Queued(job));
    }
    assert_eq!(pass(&mut placer), []);
    let ahead = |number| {
        let explanation = placer.explain_job(JobId::from_u128(number), NOW, &mut Budget::default()).unwrap();
        (explanation.ahead.unwrap(), explanation.served_before, explanation.favoured)
    };
    assert_eq!(ahead(5), (1, vec![JobId::from_u128(4)], None));
    let of_its_own = ahead(6);
    assert!(
        of_its_own.1.contains(&JobId::from_u128(3)),
        "their project keeps both, in their order: {of_its_own:?}"
    );
    assert_eq!(ahead(2), (0, Vec::new(), None), "it is still told its own place");
}

#[test]
fn who_is_served_before_is_counted_as_shares_change_with_each_of_them() {
    let mut placer = Placer::new(Policy { reservations: 0, ..Policy::default() });
    up(&mut placer, 1, 1, machine(4000, 8));
    let of = |project: &str, number| QueuedJob {
        project: project.into(),
        ..job(number, 0, i64::try_from(number).unwrap(), &shape(4000, None))
    };
    // `beta` has had a job's worth already; each of its jobs weighs as much as one of `alpha`.
    tell(&mut placer, Input::Queued(of("beta", 1)));
    assert_eq!(pass(&mut placer).len(), 1);
    (2..4).for_each(|number| tell(&mut placer, Input::Queued(of("beta", number))));
    (11..16).for_each(|number| tell(&mut placer, Input::Queued(of("alpha", number))));
    assert_eq!(pass(&mut placer), []);
    let ahead = |number| {
        let explanation = placer.explain_job(JobId::from_u128(number), NOW, &mut Budget::default()).unwrap();
        let favoured = explanation.favoured.map(|favoured| favoured.project.unwrap());
        let first: Vec<u128> = explanation.served_before.iter().map(|job_id| job_id.as_u128()).collect();
        (explanation.ahead.unwrap(), first, favoured)
    };
    // Not all five of `alpha`: after the first both have had the same, and the older one goes.
    assert_eq!(ahead(2), (1, vec![11], Some("alpha".to_owned())));
    assert_eq!(ahead(3), (3, vec![11, 2, 12], Some("alpha".to_owned())));
    assert_eq!(ahead(12), (2, vec![11, 2], None), "nobody newer goes before it");
    // The order that was told is the order in which they are served.
    let mut served = Vec::new();
    let mut running = 1;
    for second in 1..6 {
        tell(&mut placer, Input::Freed { worker_id: worker(1), place: crate::placement::place_of(running) });
        let now = NOW.plus(Seconds::from_millis(second));
        let pass = placer.apply(Input::Pass { now, budget_checks: UNBOUNDED }).unwrap();
        running = pass.placements[0].job.job_id.as_u128();
        served.push(running);
    }
    assert_eq!(served.len(), 5);
}

/// Four cores: a task of `spare` has them, and goes for a job of a higher priority, which runs for 50 s at most.
fn preempted(limit: Option<u64>) -> Placer {
    let projects =
        [("spare".to_owned(), ProjectPolicy { preemptible: true, ..ProjectPolicy::default() })].into();
    let mut placer = Placer::new(Policy { projects, staging_s: Seconds::new(0), ..Policy::default() });
    up(&mut placer, 1, 1, machine(4000, 8));
    let of = |project: &str, number, priority, limit: Option<u64>| {
        let shape = Shape { bound_s: limit.map(Seconds::new), ..(*shape(4000, None)).clone() };
        let job = job(number, priority, i64::try_from(number).unwrap(), &Arc::new(shape));
        QueuedJob { project: project.into(), ..job }
    };
    tell(&mut placer, Input::Queued(of("spare", 1, 0, limit)));
    assert_eq!(pass(&mut placer).len(), 1);
    tell(&mut placer, Input::Queued(of("vision", 2, 9, Some(48))));
    let pass = placer.apply(Input::Pass { now: NOW, budget_checks: UNBOUNDED }).unwrap();
    assert_eq!(pass.preemptions.len(), 1);
    let place = pass.preemptions[0].place;
    tell(&mut placer, Input::Bounded { worker_id: worker(1), place, ends_by: NOW.plus(Seconds::new(20)) });
    tell(&mut placer, Input::Queued(of("vision", 3, 0, Some(8))));
    placer
}

#[test]
fn who_was_preempted_comes_before_others_again_and_its_room_is_promised_to_nobody_else() {
    for (limit, starts_by) in [(Some(96), Some(20 + 48 + 96)), (None, None)] {
        let placer = preempted(limit);
        let first = placer.explain_job(JobId::from_u128(2), NOW, &mut Budget::default()).unwrap();
        assert_eq!(first.starts_by, Some(NOW.plus(Seconds::new(20))));
        assert!(first.waiting_for.unwrap().preempted);
        let third = placer.explain_job(JobId::from_u128(3), NOW, &mut Budget::default()).unwrap();
        assert_eq!(third.starts_by, starts_by.map(|seconds| NOW.plus(Seconds::new(seconds))), "{limit:?}");
        let waiting_for = third.waiting_for.unwrap();
        assert_eq!((waiting_for.what.as_str(), waiting_for.held_by.len()), ("4 CPUs", 0));
        assert_eq!((waiting_for.up_to_s, waiting_for.preempted), (None, false));
        assert_eq!(waiting_for.reserved_for.unwrap().job, Some(JobId::from_u128(2)));
    }
}

#[test]
fn room_that_comes_free_for_another_is_no_promise() {
    let mut placer = Placer::new(Policy { staging_s: Seconds::new(0), ..Policy::default() });
    up(&mut placer, 1, 1, machine(4000, 8));
    let of = |number, cores: u32, limit: Option<u64>| {
        let shape = Shape { bound_s: limit.map(Seconds::new), ..(*shape(cores * 1000, None)).clone() };
        job(number, 0, i64::try_from(number).unwrap(), &Arc::new(shape))
    };
    // Nobody knows when the third can start, as the second has no limit; so nobody comes after it in a known time.
    for job in [of(1, 2, Some(96)), of(2, 2, None), of(3, 4, None), of(4, 1, None)] {
        tell(&mut placer, Input::Queued(job));
    }
    assert_eq!(pass(&mut placer).len(), 2);
    tell(&mut placer, Input::Queued(of(5, 9, None)));
    // Somebody is about to overtake it.
    up(&mut placer, 2, 1, machine(1000, 8));
    assert_eq!(pass(&mut placer), [JobId::from_u128(4)]);
    tell(&mut placer, Input::Queued(of(6, 2, Some(32))));
    assert_eq!(pass(&mut placer), []);
    let behind =
        placer.explain_job(JobId::from_u128(6), NOW, &mut Budget::default()).unwrap().waiting_for.unwrap();
    assert_eq!((behind.held_by[0].job, behind.up_to_s), (Some(JobId::from_u128(1)), None));
    assert_eq!(behind.reserved_for, Some(ReservedFor { job: Some(JobId::from_u128(3)), until: None }));
}

#[test]
fn the_last_word_about_an_impossible_job_has_the_change_that_would_do_also_when_all_is_taken() {
    let mut placer = Placer::new(Policy::default());
    up(&mut placer, 1, 1, machine(4000, 8));
    tell(&mut placer, Input::Queued(job(1, 0, 1, &shape(4000, None))));
    assert_eq!(pass(&mut placer).len(), 1);
    let gone = job(2, 0, 2, &shape(9000, None));
    let standing = placer.with_advice(placer.last_standing(&gone, None, NOW), &gone, NOW);
    assert_eq!((standing.verdict, standing.suggestions.len()), (Verdict::Never, 0));
    assert_eq!(standing.remedy.unwrap().change, "4 CPUs instead of 9");
    let waits = job(3, 0, 3, &shape(2000, None));
    let standing = placer.with_advice(placer.last_standing(&waits, None, NOW), &waits, NOW);
    assert_eq!((standing.verdict, standing.remedy), (Verdict::NotNow, None));
}

#[test]
fn all_that_a_worker_lacks_for_good_is_said() {
    let mut placer = Placer::new(Policy::default());
    up(&mut placer, 1, 1, with_gpus((0..8).map(|index| gpu(index, "NVIDIA L4", 24)).collect(), &[]));
    let ask = |change: fn(&mut Shape)| {
        let resources =
            Resources { gpus: Some(Box::new(request(GpuCount::Count(9)))), ..Resources::default() };
        let mut shape = Shape { resources, ..Shape::default() };
        shape.resources.cpus = Cpus::from_millis(65_000);
        shape.resources.memory_bytes = Some(600 * GIB);
        change(&mut shape);
        let job = wish(JobId::from_u128(1), 0, "p".into(), Arc::new(shape), NOW);
        placer.explain_wish(&job, NOW, &mut Budget::default()).workers[0].reason.clone()
    };
    assert_eq!(
        ask(|_| ()),
        "needs 9 GPUs, has 8 in all; needs 65 CPUs, has 64 in all; needs 600 GiB of memory, has 512 GiB in all"
    );
    // Three are enough, and one that was not meant has only that to say.
    let with_label = ask(|shape| drop(shape.resources.labels.insert("zone".into(), "a".into())));
    assert_eq!(
        with_label,
        "needs label zone=a, has no zone; needs 9 GPUs, has 8 in all; needs 65 CPUs, has 64 in all"
    );
    assert_eq!(ask(|shape| shape.target = Target::Local), "is not the server's own host");
}

/// Cores, GiB, the memory of each GPU and whether it can be used, and whether there is a label.
type Machine = (u32, u64, Vec<(u64, bool)>, bool);

fn machines() -> impl Strategy<Value = Vec<Machine>> {
    let gpus =
        prop::collection::vec((prop::sample::select(vec![24u64, 80]), prop::bool::weighted(0.8)), 0..4);
    prop::collection::vec((1u32..6, 1u64..6, gpus, any::<bool>()), 1..4)
}

fn shapes() -> impl Strategy<Value = Arc<Shape>> {
    let gpus = prop::option::of((1u32..5, prop::option::of(prop::sample::select(vec![24u64, 40, 80, 120]))));
    (1u32..8, prop::option::of(1u64..8), gpus, any::<bool>(), 1u32..4, prop::option::of(1u64..50)).prop_map(
        |(cores, gib, gpus, labelled, nodes, bound)| {
            let mut shape = (*shape(cores * 1000, gib)).clone();
            shape.resources.gpus = gpus.map(|(count, gib)| {
                Box::new(GpuRequest {
                    memory_bytes: gib.map(|gib| gib * GIB),
                    ..request(GpuCount::Count(count))
                })
            });
            if labelled {
                shape.resources.labels.insert("a/b".into(), "c".into());
            }
            shape.nodes = (nodes > 1).then_some(nodes);
            shape.bound_s = bound.map(Seconds::new);
            Arc::new(shape)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_worker_answers_and_what_is_suggested_helps(
        machines in machines(),
        shapes in prop::collection::vec(shapes(), 1..12),
        reservations in 0u32..3,
    ) {
        let mut placer = Placer::new(Policy { reservations, ..Policy::default() });
        for (number, (cores, gib, gpus, labelled)) in (1..).zip(&machines) {
            let listed = (0..).zip(gpus).map(|(index, (gib, ready))| {
                let mut gpu = gpu(index, "NVIDIA X", *gib);
                if !ready {
                    gpu.standing = GpuStanding::Wedged { pids: vec![1] };
                }
                gpu
            });
            let mut capabilities = with_gpus(listed.collect(), &[]);
            (capabilities.cpus, capabilities.memory_bytes) = (Cpus::from_millis(cores * 1000), gib * GIB);
            if *labelled {
                capabilities.labels.insert("a/b".into(), "c".into());
            }
            up(&mut placer, number, 1, capabilities);
        }
        for (number, shape) in (1..).zip(&shapes) {
            tell(&mut placer, Input::Queued(job(number, 0, i64::try_from(number).unwrap(), shape)));
        }
        pass(&mut placer);
        for (number, shape) in (1..).zip(&shapes) {
            let Some(explanation) = placer.explain_job(JobId::from_u128(number), NOW, &mut Budget::default()) else { continue };
            let answered: BTreeSet<&String> = explanation.workers.iter().flat_map(|answer| &answer.workers).collect();
            prop_assert_eq!(answered.len(), machines.len(), "every worker has an answer");
            prop_assert!(!explanation.summary.is_empty());
            for suggestion in &explanation.suggestions {
                let mut tried = placer.clone();
                let changed = followed(shape, suggestion);
                tell(&mut tried, Input::Queued(job(number, 0, i64::try_from(number).unwrap(), &changed)));
                let placed = pass(&mut tried);
                prop_assert!(placed.contains(&JobId::from_u128(number)), "{:?}: {}", suggestion, explanation.summary);
            }
        }
    }
}

#[test]
fn a_suggestion_is_a_change_of_the_spec() {
    let mut asked = (*shape(1000, None)).clone();
    asked.resources.labels.insert("a/b".into(), "c".into());
    let suggestion =
        Suggestion { change: String::new(), pointer: "/resources/labels/a~1b".into(), value: json!(null) };
    assert!(followed(&asked, &suggestion).resources.labels.is_empty());
}
