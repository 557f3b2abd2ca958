//! GPUs: which sets are given, held against trying every set, and the words of what is missing.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpulayer::contract::gpu::{Gpu, GpuStanding, GpuVendor};
use gpulayer::contract::spec::{GpuCount, GpuRequest, MemoryKind, Resources};
use gpulayer::contract::worker::Capabilities;
use gpulayer::domain::placement::{Input, Placer, Policy, Shape, Verdict, queue_reason, verdict};
use proptest::prelude::*;

use crate::placement::{GIB, UNBOUNDED, free, job, machine, place, tell, up, worker};

pub fn gpu(index: u32, model: &str, gib: u64) -> Gpu {
    Gpu {
        uuid: format!("GPU-{index}"),
        vendor: GpuVendor::Nvidia,
        index,
        model: model.to_owned(),
        memory_bytes: gib * GIB,
        memory_kind: MemoryKind::Dedicated,
        compute_capability: Some("9.0".parse().unwrap()),
        pci_address: None,
        numa_node: None,
        links: Vec::new(),
        slice: None,
        driver: None,
        standing: GpuStanding::Ready,
    }
}

/// A machine with these GPUs; those of one list in `islands` are linked.
pub fn with_gpus(mut gpus: Vec<Gpu>, islands: &[&[u32]]) -> Capabilities {
    for island in islands {
        for gpu in gpus.iter_mut().filter(|gpu| island.contains(&gpu.index)) {
            let others = island.iter().filter(|other| **other != gpu.index);
            gpu.links = others.map(|other| format!("GPU-{other}")).collect();
        }
    }
    Capabilities { gpus, ..machine(64_000, 512) }
}

fn eight(islands: &[&[u32]]) -> Capabilities {
    with_gpus((0..8).map(|index| gpu(index, "NVIDIA H100 80GB HBM3", 80)).collect(), islands)
}

pub fn request(count: GpuCount) -> GpuRequest {
    GpuRequest::of(count)
}

fn wanting(request: GpuRequest) -> Arc<Shape> {
    let resources = Resources { gpus: Some(Box::new(request)), ..Resources::default() };
    Arc::new(Shape { resources, ..Shape::default() })
}

fn gpus(count: u32) -> Arc<Shape> {
    wanting(request(GpuCount::Count(count)))
}

fn placer(machines: Vec<Capabilities>) -> Placer {
    let mut placer = Placer::new(Policy { reservations: 0, ..Policy::default() });
    for (number, capabilities) in (1..).zip(machines) {
        up(&mut placer, number, 1, capabilities);
    }
    placer
}

/// The GPUs that these jobs are given, in order; `None` = it waits.
fn given(placer: &mut Placer, shapes: &[Arc<Shape>]) -> Vec<Option<Vec<u32>>> {
    for (number, shape) in (1..).zip(shapes) {
        tell(placer, Input::Queued(job(number, 0, i64::try_from(number).unwrap(), shape)));
    }
    let pass = place(placer, UNBOUNDED);
    let index = |uuid: &Arc<str>| uuid.trim_start_matches("GPU-").parse().unwrap();
    (1..=shapes.len() as u128)
        .map(|number| {
            let placed = pass.placements.iter().find(|placed| placed.job.job_id.as_u128() == number)?;
            Some(placed.seats[0].gpus.iter().map(index).collect())
        })
        .collect()
}

#[test]
fn two_and_two_and_four_fill_a_machine_along_its_links() {
    let pairs: &[&[u32]] = &[&[0, 1], &[2, 3], &[4, 5], &[6, 7]];
    let mut by_pairs = placer(vec![eight(pairs)]);
    let sets = given(&mut by_pairs, &[gpus(2), gpus(2), gpus(4), gpus(1)]);
    assert_eq!(sets, [Some(vec![0, 1]), Some(vec![2, 3]), Some(vec![4, 5, 6, 7]), None]);
    // One alone breaks up no pair if another pair is broken already.
    let mut alone = placer(vec![eight(pairs)]);
    let sets = given(&mut alone, &[gpus(1), gpus(1), gpus(2)]);
    assert_eq!(sets, [Some(vec![0]), Some(vec![1]), Some(vec![2, 3])]);
    // No island is large enough: the first ones all the same.
    assert_eq!(given(&mut placer(vec![eight(pairs)]), &[gpus(3)]), [Some(vec![0, 1, 2])]);
    assert_eq!(given(&mut placer(vec![eight(pairs)]), &[gpus(4)]), [Some(vec![0, 1, 2, 3])]);
    // The smaller island that is large enough, so that the larger stays whole.
    let mut uneven = placer(vec![eight(&[&[0, 1, 2, 3, 4], &[5, 6, 7]])]);
    assert_eq!(given(&mut uneven, &[gpus(3), gpus(5)]), [Some(vec![5, 6, 7]), Some(vec![0, 1, 2, 3, 4])]);
}

#[test]
fn without_links_memory_nodes_count() {
    let mut capabilities = eight(&[]);
    for gpu in &mut capabilities.gpus {
        gpu.numa_node = Some(gpu.index % 2);
    }
    // No links at all: each is an island of its own, so nodes cannot be told apart by them.
    for gpu in &mut capabilities.gpus {
        gpu.links = (0..8).filter(|other| *other != gpu.index).map(|other| format!("GPU-{other}")).collect();
    }
    let mut placer = placer(vec![capabilities]);
    assert_eq!(given(&mut placer, &[gpus(4)]), [Some(vec![0, 2, 4, 6])]);
}

#[test]
fn the_least_that_will_do_is_given() {
    let mixed = || {
        let mut gpus = vec![gpu(0, "NVIDIA H100 80GB HBM3", 80), gpu(1, "NVIDIA H100 80GB HBM3", 80)];
        gpus.extend([gpu(2, "NVIDIA L4", 24), gpu(3, "NVIDIA L4", 24)]);
        with_gpus(gpus, &[])
    };
    let large = wanting(GpuRequest { memory_bytes: Some(40 * GIB), ..request(GpuCount::Count(1)) });
    let by_name = wanting(GpuRequest { models: vec!["h100".into()], ..request(GpuCount::Count(1)) });
    let sets = given(&mut placer(vec![mixed()]), &[gpus(1), large, by_name, gpus(1)]);
    assert_eq!(sets, [Some(vec![2]), Some(vec![0]), Some(vec![1]), Some(vec![3])]);
    // Jobs without GPUs keep away from machines that have some.
    let mut both = placer(vec![eight(&[]), machine(64_000, 512)]);
    tell(&mut both, Input::Queued(job(1, 0, 0, &Arc::new(Shape::default()))));
    assert_eq!(place(&mut both, UNBOUNDED).placements[0].seats[0].worker_id, worker(2));
}

#[test]
fn all_means_every_one_of_a_worker() {
    let all = wanting(request(GpuCount::All));
    let mut busy = placer(vec![eight(&[]), eight(&[])]);
    let sets = given(&mut busy, &[gpus(1), all.clone(), all.clone()]);
    assert_eq!((sets[0].as_ref().unwrap().len(), sets[1].as_ref().unwrap().len(), &sets[2]), (1, 8, &None));
    let none = placer(vec![machine(1000, 1)]);
    assert_eq!(queue_reason(&all, none.pool()), "1 worker: needs all GPUs, has none");
}

#[test]
fn what_is_missing_is_said_with_the_near_miss() {
    let ask = |count, change: fn(&mut GpuRequest)| {
        let mut request = request(GpuCount::Count(count));
        change(&mut request);
        wanting(request)
    };
    let mut h100 = gpu(0, "NVIDIA H100 80GB HBM3", 80);
    h100.memory_bytes = 85_520_809_984;
    let placer = placer(vec![with_gpus(vec![h100], &[])]);
    for (shape, words) in [
        (ask(2, |_| ()), "needs 2 GPUs, has 1 in all"),
        (
            ask(1, |request| request.memory_bytes = Some(80 * GIB)),
            "needs 1 GPU with ≥ 80 GiB, has 79.6 GiB (NVIDIA H100 80GB HBM3)",
        ),
        (
            ask(1, |request| request.models = vec!["A100".into(), "H200".into()]),
            "needs 1 A100 or H200 GPU, has NVIDIA H100 80GB HBM3",
        ),
        (ask(1, |request| request.vendor = Some("amd".into())), "needs 1 amd GPU, has nvidia ones"),
        (
            ask(1, |request| request.min_compute_capability = Some("10.0".into())),
            "needs 1 GPU with compute capability ≥ 10.0, has NVIDIA H100 80GB HBM3 with 9.0",
        ),
        (
            ask(1, |request| request.memory_kind = Some(MemoryKind::Unified)),
            "needs 1 GPU with unified memory, has NVIDIA H100 80GB HBM3 with dedicated memory",
        ),
    ] {
        assert_eq!(queue_reason(&shape, placer.pool()), format!("1 worker: {words}"));
        assert_eq!(verdict(&shape, placer.pool()), Verdict::Never);
    }
}

#[test]
fn what_cannot_be_used_now_is_told_apart_and_comes_back() {
    let mut placer = placer(vec![eight(&[])]);
    given(&mut placer, &[gpus(3)]);
    let mut troubled = eight(&[]);
    troubled.gpus[3].standing = GpuStanding::BusyOutside { pids: vec![7] };
    troubled.gpus[4].standing = GpuStanding::Wedged { pids: vec![8] };
    troubled.gpus[5].standing = GpuStanding::Unhealthy { why: "fell off the bus".into() };
    up(&mut placer, 1, 1, troubled.clone());
    assert_eq!(
        queue_reason(&gpus(4), placer.pool()),
        "1 worker: needs 4 GPUs, 2 free of 8 (3 held by tasks, 1 used by programs outside, 1 not let go of by an \
         ended task, 1 unhealthy)"
    );
    assert_eq!(verdict(&gpus(4), placer.pool()), Verdict::NotNow);
    tell(&mut placer, Input::Queued(job(9, 0, 9, &gpus(4))));
    assert!(place(&mut placer, UNBOUNDED).placements.is_empty());
    troubled.gpus[4].standing = GpuStanding::Ready;
    troubled.gpus[5].standing = GpuStanding::Ready;
    up(&mut placer, 1, 1, troubled);
    assert_eq!(place(&mut placer, UNBOUNDED).placements[0].seats[0].gpus.len(), 4);
}

#[test]
fn what_a_task_holds_stays_held_when_its_worker_comes_back() {
    let mut placer = placer(vec![eight(&[])]);
    given(&mut placer, &[gpus(8)]);
    up(&mut placer, 1, 2, eight(&[]));
    tell(&mut placer, Input::Queued(job(9, 0, 9, &gpus(1))));
    assert!(place(&mut placer, UNBOUNDED).placements.is_empty());
    free(&mut placer, 1, 1);
    assert_eq!(place(&mut placer, UNBOUNDED).placements.len(), 1);
}

/// Small machines whose GPUs differ in memory, some of them not ready.
fn machines() -> impl Strategy<Value = Vec<Vec<(u64, bool)>>> {
    prop::collection::vec(
        prop::collection::vec((prop::sample::select(vec![24, 40, 80]), prop::bool::weighted(0.8)), 0..6),
        1..4,
    )
}

/// Jobs: how many GPUs, with how much memory.
fn wishes() -> impl Strategy<Value = Vec<(u32, Option<u64>)>> {
    prop::collection::vec((1u32..5, prop::option::of(prop::sample::select(vec![20, 40, 80]))), 0..12)
}

proptest! {
    /// Against trying every set: a job waits only if no machine has enough GPUs that suit and are free, and no GPU is
    /// given twice, or given to whom it does not suit.
    #[test]
    fn a_set_is_found_whenever_there_is_one(machines in machines(), wishes in wishes()) {
        let capabilities = |gpus: &Vec<(u64, bool)>| {
            let listed = (0..).zip(gpus).map(|(index, (gib, ready))| {
                let standing = if *ready { GpuStanding::Ready } else { GpuStanding::BusyOutside { pids: vec![1] } };
                Gpu { standing, ..gpu(index, "NVIDIA X", *gib) }
            });
            with_gpus(listed.collect(), &[&[0, 1], &[2, 3]])
        };
        let mut placer = placer(machines.iter().map(capabilities).collect());
        let shapes: Vec<Arc<Shape>> = wishes
            .iter()
            .map(|(count, gib)| {
                wanting(GpuRequest {
                    memory_bytes: gib.map(|gib| gib * GIB),
                    ..request(GpuCount::Count(*count))
                })
            })
            .collect();
        for (number, shape) in (1..).zip(&shapes) {
            tell(&mut placer, Input::Queued(job(number, 0, i64::try_from(number).unwrap(), shape)));
        }
        let pass = place(&mut placer, UNBOUNDED);
        let suits = |gib: Option<u64>, has: u64| gib.is_none_or(|wanted| has >= wanted);
        let mut taken: BTreeSet<(u128, u32)> = BTreeSet::new();
        for placed in &pass.placements {
            let (count, gib) = wishes[placed.job.job_id.as_u128() as usize - 1];
            let seat = &placed.seats[0];
            prop_assert_eq!(seat.gpus.len(), count as usize);
            for uuid in &seat.gpus {
                let index: u32 = uuid.trim_start_matches("GPU-").parse().unwrap();
                let (has, ready) = machines[seat.worker_id.as_u128() as usize - 1][index as usize];
                prop_assert!(ready && suits(gib, has));
                prop_assert!(taken.insert((seat.worker_id.as_u128(), index)), "given twice");
            }
        }
        for (number, (count, gib)) in (1..).zip(&wishes) {
            if pass.placements.iter().any(|placed| placed.job.job_id.as_u128() == number) {
                continue;
            }
            for (machine, gpus) in (1..).zip(&machines) {
                let left = (0..).zip(gpus).filter(|(index, (has, ready))| {
                    *ready && suits(*gib, *has) && !taken.contains(&(machine, *index))
                });
                prop_assert!(left.count() < *count as usize, "job {} would fit on {}", number, machine);
            }
        }
    }
}
