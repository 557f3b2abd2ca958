//! What is said at once of a job that no worker could ever take, or only one that no test covers; and of what a waiting
//! job waits for.

use std::sync::Arc;

use gpulayer::contract::explain::Verdict;
use gpulayer::contract::gpu::{GpuStanding, GpuVendor, Interpreter};
use gpulayer::contract::ids::JobId;
use gpulayer::contract::quantity::{Cpus, Seconds, Timestamp};
use gpulayer::contract::spec::{GpuCount, GpuRequest, Resources};
use gpulayer::domain::placement::{
    Budget, Holding, Input, Outlook, Placer, Policy, ProjectPolicy, QueuedJob, Shape, wish,
};

use crate::gpus::{gpu, request, with_gpus};
use crate::placement::{GIB, UNBOUNDED, job, machine, place_of, shape, tell, up, worker};

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
/// What an H100 of 80 GB says that it has.
const H100_BYTES: u64 = 85_520_809_984;

fn wanting(change: impl FnOnce(&mut GpuRequest)) -> Arc<Shape> {
    let mut asked = request(GpuCount::Count(1));
    change(&mut asked);
    let resources = Resources { gpus: Some(Box::new(asked)), ..Resources::default() };
    Arc::new(Shape { resources, ..Shape::default() })
}

fn site() -> Placer {
    let mut placer = Placer::new(Policy::default());
    let h100 = |index| {
        let mut gpu = gpu(index, "NVIDIA H100 80GB HBM3", 80);
        gpu.memory_bytes = H100_BYTES;
        gpu
    };
    up(&mut placer, 1, 1, with_gpus((0..8).map(h100).collect(), &[]));
    up(&mut placer, 2, 1, machine(4000, 8));
    placer
}

fn never(placer: &Placer, shape: &Arc<Shape>) -> (String, Option<String>) {
    let Outlook { never, untested } = placer.outlook("p", shape);
    assert_eq!(untested, None);
    let never = never.unwrap();
    (never.reason, never.change.map(|change| change.change))
}

#[test]
fn what_no_worker_could_ever_take_is_told_with_the_near_miss_and_a_change_that_can_be_typed() {
    let mut placer = site();
    let (reason, change) = never(&placer, &wanting(|gpus| gpus.memory_bytes = Some(80 * GIB)));
    assert_eq!(
        reason,
        "1 worker: needs 1 GPU with ≥ 80 GiB, has none · \
         1 worker: needs 1 GPU with ≥ 80 GiB, has 79.6 GiB (NVIDIA H100 80GB HBM3)"
    );
    assert_eq!(change.as_deref(), Some("GPUs with ≥ 79.6 GiB instead of 80 GiB"));
    let (_, change) = never(&placer, &wanting(|gpus| gpus.count = GpuCount::Count(16)));
    assert_eq!(change.as_deref(), Some("8 GPUs instead of 16"));
    let asked =
        wish(JobId::from_u128(9), 0, "p".into(), wanting(|gpus| gpus.count = GpuCount::Count(16)), NOW);
    let explained = placer.explain_wish(&asked, NOW, &mut Budget::default());
    assert_eq!(explained.remedy.unwrap().change, "8 GPUs instead of 16");
    // What is taken now is no limit to what could be had.
    tell(&mut placer, Input::Queued(job(1, 0, 1, &shape(60_000, None))));
    placer.apply(Input::Pass { now: NOW, budget_checks: UNBOUNDED }).unwrap();
    let (_, change) = never(&placer, &shape(65_000, None));
    assert_eq!(change.as_deref(), Some("64 CPUs instead of 65"));
    // Two things at once are no single change.
    let both = wanting(|gpus| {
        gpus.count = GpuCount::Count(9);
        gpus.models = vec!["B200".into()];
    });
    assert_eq!(never(&placer, &both).1, None);
}

#[test]
fn what_may_change_is_not_impossible() {
    let mut placer = Placer::new(Policy::default());
    let one = wanting(|_| ());
    assert_eq!(placer.outlook("p", &one).never, None, "a worker may join");
    let mut ill = gpu(0, "NVIDIA L4", 24);
    ill.standing = GpuStanding::Unhealthy { why: "it is lost".into() };
    up(&mut placer, 1, 1, with_gpus(vec![ill], &[]));
    assert_eq!(placer.outlook("p", &one).never, None, "it may be mended");
    tell(&mut placer, Input::WorkerDown { worker_id: worker(1) });
    assert_eq!(placer.outlook("p", &one).never, None, "it may come back");
    assert!(placer.outlook("p", &wanting(|gpus| gpus.count = GpuCount::Count(2))).never.is_some());
    // Interpreters are looked at after a worker has joined, so none at all may mean: not yet.
    let mut torch = (*shape(1000, None)).clone();
    torch.resources.frameworks.insert("torch".into(), ">=2.3".into());
    let torch = Arc::new(torch);
    let reason = |placer: &Placer| placer.outlook("p", &torch).never.unwrap().reason;
    assert_eq!(
        reason(&placer),
        "1 worker: needs torch>=2.3, offers no interpreter (`join --python PATH` there offers one)"
    );
    let mut looked = machine(4000, 8);
    looked.pythons = vec!["/bin/python3".into()];
    up(&mut placer, 1, 1, looked.clone());
    assert_eq!(placer.outlook("p", &torch).never, None);
    let asked = wish(JobId::from_u128(9), 0, "p".into(), torch.clone(), NOW);
    let explained = placer.explain_wish(&asked, NOW, &mut Budget::default());
    assert_eq!(explained.verdict, Verdict::NotNow);
    assert_eq!(explained.workers[0].reason, "needs torch>=2.3, its interpreters are being looked at");
    looked.interpreters = vec![Interpreter {
        path: "/bin/python3".into(),
        version: None,
        frameworks: Default::default(),
        fault: None,
    }];
    up(&mut placer, 1, 1, looked);
    assert_eq!(
        reason(&placer),
        "1 worker: needs torch>=2.3, no interpreter it offers has torch (`join --python PATH` there offers another)"
    );
    // One of which only the tasks are known since a restart may be anything.
    tell(
        &mut placer,
        Input::Taken {
            worker_id: worker(9),
            place: place_of(1),
            holding: Holding {
                grant: Default::default(),
                project: "p".into(),
                priority: 0,
                weight: 0,
                ends_by: None,
                again: None,
            },
        },
    );
    assert_eq!(placer.outlook("p", &wanting(|gpus| gpus.count = GpuCount::Count(2))).never, None);
}

#[test]
fn more_than_all_that_a_project_may_have_is_impossible() {
    let limits = ProjectPolicy { max_gpus: Some(2), max_cpu_millis: Some(8000), ..ProjectPolicy::default() };
    let mut placer =
        Placer::new(Policy { projects: [("small".to_owned(), limits)].into(), ..Policy::default() });
    up(&mut placer, 1, 1, with_gpus((0..4).map(|index| gpu(index, "NVIDIA L4", 24)).collect(), &[]));
    let asked = wanting(|gpus| gpus.count = GpuCount::Count(3));
    assert_eq!(placer.outlook("large", &asked).never, None);
    let told = |shape| {
        let never = placer.outlook("small", shape).never.unwrap();
        assert!(never.by_quota);
        (never.reason, never.change.map(|change| change.change))
    };
    let change = Some("2 GPUs instead of 3".to_owned());
    assert_eq!(told(&asked), ("project small may have 2 GPUs at most, needs 3".to_owned(), change.clone()));
    assert_eq!(told(&shape(9000, None)).0, "project small may have 8 CPUs at most, needs 9");
    let explained = placer.explain_wish(
        &wish(JobId::from_u128(1), 0, "small".into(), asked, NOW),
        NOW,
        &mut Budget::default(),
    );
    assert_eq!(explained.verdict, Verdict::Never);
    assert_eq!(explained.quota.unwrap(), "project small may have 2 GPUs at most, needs 3");
    assert_eq!(explained.remedy.map(|change| change.change), change);
    // What it holds is told apart from what it may have.
    tell(&mut placer, Input::Queued(QueuedJob { project: "small".into(), ..job(1, 0, 1, &wanting(|_| ())) }));
    placer.apply(Input::Pass { now: NOW, budget_checks: UNBOUNDED }).unwrap();
    let two =
        wish(JobId::from_u128(2), 0, "small".into(), wanting(|gpus| gpus.count = GpuCount::Count(2)), NOW);
    let explained = placer.explain_wish(&two, NOW, &mut Budget::default());
    assert_eq!(explained.quota.unwrap(), "project small may have 2 GPUs, holds 1, needs 2");
    assert_eq!(explained.suggestions[0].change, "1 GPU instead of 2");
}

#[test]
fn what_no_test_covers_still_runs_and_says_so() {
    let mut placer = Placer::new(Policy::default());
    let mut amd = gpu(0, "AMD Instinct MI300X", 192);
    amd.vendor = GpuVendor::Amd;
    up(&mut placer, 1, 1, with_gpus(vec![amd], &[]));
    let one = wanting(|_| ());
    let Outlook { never, untested } = placer.outlook("p", &one);
    assert_eq!(never, None);
    let untested = untested.unwrap();
    assert!(untested.contains("GPUs of AMD with ROCm: support is `implemented` only"), "{untested}");
    assert!(!untested.contains("hardware_validated"));
    let explained = placer.explain_wish(
        &wish(JobId::from_u128(1), 0, "p".into(), one.clone(), NOW),
        NOW,
        &mut Budget::default(),
    );
    assert_eq!((explained.untested, explained.verdict), (Some(untested), Verdict::Fits));
    assert_eq!(placer.outlook("p", &shape(1000, None)).untested, None, "its CPUs are like any other's");
    tell(&mut placer, Input::Queued(job(1, 0, 1, &one)));
    assert_eq!(placer.apply(Input::Pass { now: NOW, budget_checks: UNBOUNDED }).unwrap().placements.len(), 1);
    // One that tests do cover is enough.
    up(&mut placer, 2, 1, with_gpus(vec![gpu(1, "NVIDIA L4", 24)], &[]));
    assert_eq!(placer.outlook("p", &one).untested, None);
}

#[test]
fn a_waiting_job_is_told_what_it_waits_for_and_who_has_it() {
    let mut placer = site();
    let timed = |number: u128, gpus: u32, seconds: Option<u64>| {
        let mut asked = (*wanting(|asked| asked.count = GpuCount::Count(gpus))).clone();
        asked.bound_s = seconds.map(Seconds::new);
        asked.resources.cpus = Cpus::from_millis(1000);
        job(number, 0, i64::try_from(number).unwrap(), &Arc::new(asked))
    };
    for (number, gpus, seconds) in [(1, 2, Some(500)), (2, 4, None), (3, 2, Some(100))] {
        tell(&mut placer, Input::Queued(timed(number, gpus, seconds)));
    }
    let placed = placer.apply(Input::Pass { now: NOW, budget_checks: UNBOUNDED }).unwrap();
    assert_eq!(placed.placements.len(), 3);
    let ask = |count: u32| {
        let asked = wanting(|asked| asked.count = GpuCount::Count(count));
        placer
            .explain_wish(&wish(JobId::from_u128(9), 0, "p".into(), asked, NOW), NOW, &mut Budget::default())
            .waiting_for
            .unwrap()
    };
    let one = ask(1);
    assert_eq!((one.what.as_str(), one.worker.as_str(), one.more), ("1 GPU", "w1", 0));
    assert_eq!(one.held_by.iter().map(|holder| holder.job).collect::<Vec<_>>(), [Some(JobId::from_u128(3))]);
    let staging = Policy::default().staging_s;
    let seconds = one.up_to_s.unwrap().millis() - staging.millis();
    assert!((100_000..120_000).contains(&seconds), "{seconds}");
    let four = ask(4);
    assert_eq!((four.what.as_str(), four.held_by.len()), ("4 GPUs", 2));
    assert!(four.up_to_s.unwrap() > one.up_to_s.unwrap());
    let all = ask(8);
    assert_eq!((all.what.as_str(), all.held_by.len(), all.up_to_s), ("8 GPUs", 3, None), "one has no end");

    // Where there is room, and where no end of a task helps, it is something else that it waits for.
    let nothing = |shape| {
        let explained = placer.explain_wish(
            &wish(JobId::from_u128(9), 0, "p".into(), shape, NOW),
            NOW,
            &mut Budget::default(),
        );
        assert_eq!(explained.waiting_for, None);
    };
    nothing(shape(1000, None));
    nothing(wanting(|asked| asked.count = GpuCount::Count(9)));
    let cpus = placer
        .explain_wish(
            &wish(JobId::from_u128(9), 0, "p".into(), shape(63_000, None), NOW),
            NOW,
            &mut Budget::default(),
        )
        .waiting_for
        .unwrap();
    assert_eq!((cpus.what.as_str(), cpus.held_by.len()), ("2 CPUs", 2), "two of the three give enough back");
}

#[test]
fn while_tasks_leave_for_a_job_it_is_those_that_it_waits_for() {
    let spare = ProjectPolicy { preemptible: true, ..ProjectPolicy::default() };
    let mut placer =
        Placer::new(Policy { projects: [("spare".to_owned(), spare)].into(), ..Policy::default() });
    up(&mut placer, 1, 1, with_gpus((0..8).map(|index| gpu(index, "NVIDIA L4", 24)).collect(), &[]));
    let held = |number: u128, project: &str, gpus: u32, seconds: u64| {
        let mut asked = (*wanting(|asked| asked.count = GpuCount::Count(gpus))).clone();
        asked.bound_s = Some(Seconds::new(seconds));
        let job = job(number, 0, i64::try_from(number).unwrap(), &Arc::new(asked));
        Input::Queued(QueuedJob { project: project.into(), ..job })
    };
    // The one that ends the soonest is not one that leaves.
    for input in [held(1, "vision", 4, 60), held(2, "spare", 2, 1200), held(3, "spare", 2, 1200)] {
        tell(&mut placer, input);
    }
    let pass =
        |placer: &mut Placer| placer.apply(Input::Pass { now: NOW, budget_checks: UNBOUNDED }).unwrap();
    assert_eq!(pass(&mut placer).placements.len(), 3);
    let four = wanting(|asked| asked.count = GpuCount::Count(4));
    tell(&mut placer, Input::Queued(QueuedJob { project: "vision".into(), ..job(4, 5, 4, &four) }));
    assert_eq!(pass(&mut placer).preemptions.len(), 2);
    // They are stopped, with their grace.
    for number in [2, 3] {
        let ends_by = NOW.plus(Seconds::new(20));
        tell(&mut placer, Input::Bounded { worker_id: worker(1), place: place_of(number), ends_by });
    }
    let explained = placer.explain_job(JobId::from_u128(4), NOW, &mut Budget::default()).unwrap();
    let waiting_for = explained.waiting_for.unwrap();
    assert_eq!((waiting_for.what.as_str(), waiting_for.preempted), ("2 tasks to leave", true));
    let holders: Vec<_> = waiting_for.held_by.iter().filter_map(|holder| holder.job).collect();
    assert_eq!(holders, [2, 3].map(JobId::from_u128));
    assert_eq!(waiting_for.up_to_s, Some(Seconds::new(20)));
    assert_eq!(explained.starts_by, Some(NOW.plus(Seconds::new(20))));
    // Then it is what is left of them.
    tell(&mut placer, Input::Freed { worker_id: worker(1), place: place_of(2) });
    let waiting_for =
        placer.explain_job(JobId::from_u128(4), NOW, &mut Budget::default()).unwrap().waiting_for.unwrap();
    assert_eq!(waiting_for.what, "1 task to leave");
}
