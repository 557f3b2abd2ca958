//! Warm caches: a worker that had a job with the same source or inputs is taken before one that is equal in all else,
//! and before no other.

use std::sync::Arc;

use gpulayer::contract::ids::WorkerId;
use gpulayer::contract::spec::GpuCount;
use gpulayer::domain::placement::{Input, Luggage, Placer, Policy, QueuedJob, Shape};
use proptest::prelude::*;

use crate::gpus::{gpu, request, with_gpus};
use crate::placement::{UNBOUNDED, free, job, machine, place, placed, shape, tell, up, worker};

const SOURCE: Luggage = Luggage { source: 7, inputs: 0, environment: 0 };
const BOTH: Luggage = Luggage { source: 7, inputs: 9, environment: 0 };

fn workers(cores: &[u32]) -> Placer {
    let mut placer = Placer::new(Policy { reservations: 0, ..Policy::default() });
    for (number, cores) in (1..).zip(cores) {
        up(&mut placer, number, 1, machine(cores * 1000, 8));
    }
    placer
}

fn bringing(number: u128, luggage: Luggage, shape: &Arc<Shape>) -> QueuedJob {
    QueuedJob { luggage, ..job(number, 0, i64::try_from(number).unwrap(), shape) }
}

fn goes_to(placer: &mut Placer, job: QueuedJob) -> u128 {
    let number = job.job_id.as_u128();
    tell(placer, Input::Queued(job));
    let placed = placed(&place(placer, UNBOUNDED));
    assert_eq!((placed.len(), placed[0].0), (1, number));
    placed[0].1
}

/// A job with this luggage ran there, and is over.
fn ran(placer: &mut Placer, on: u128, number: u128, luggage: Luggage) {
    let mut shape = (*shape(1000, None)).clone();
    shape.resources.worker = Some(format!("w{on}"));
    assert_eq!(goes_to(placer, bringing(number, luggage, &Arc::new(shape))), on);
    free(placer, on, number);
}

#[test]
fn of_equal_workers_the_one_that_had_it_is_taken_and_the_one_that_had_more_of_it_first() {
    let mut placer = workers(&[4, 4, 4]);
    let one = shape(1000, None);
    ran(&mut placer, 2, 1, SOURCE);
    assert_eq!(goes_to(&mut placer, bringing(11, SOURCE, &one)), 2);
    free(&mut placer, 2, 11);
    assert_eq!(
        goes_to(&mut placer, bringing(12, Luggage { source: 8, inputs: 0, environment: 0 }, &one)),
        1,
        "another source"
    );
    free(&mut placer, 1, 12);
    ran(&mut placer, 3, 2, BOTH);
    assert_eq!(goes_to(&mut placer, bringing(13, BOTH, &one)), 3);
    free(&mut placer, 3, 13);
    // What it had is known after a restart of its own, and forgotten when it leaves for good.
    up(&mut placer, 3, 2, machine(4000, 8));
    assert_eq!(goes_to(&mut placer, bringing(14, BOTH, &one)), 3);
    free(&mut placer, 3, 14);
    tell(&mut placer, Input::WorkerLeft { worker_id: worker(3) });
    up(&mut placer, 3, 3, machine(4000, 8));
    assert_eq!(goes_to(&mut placer, bringing(15, Luggage { source: 0, inputs: 9, environment: 0 }, &one)), 1);
}

#[test]
fn the_fuller_worker_and_the_avoided_one_are_what_they_were() {
    let mut placer = workers(&[2, 4]);
    let one = shape(1000, None);
    ran(&mut placer, 2, 1, SOURCE);
    assert_eq!(goes_to(&mut placer, bringing(11, SOURCE, &one)), 1, "large holes stay whole");
    let mut placer = workers(&[4, 4]);
    ran(&mut placer, 2, 1, SOURCE);
    let elsewhere = QueuedJob { avoid: Some(worker(2)), ..bringing(11, SOURCE, &one) };
    assert_eq!(goes_to(&mut placer, elsewhere), 1);
}

#[test]
fn jobs_of_one_lane_go_each_where_its_own_files_are() {
    let mut placer = workers(&[4, 4, 4, 4]);
    let other = Luggage { source: 8, inputs: 0, environment: 0 };
    ran(&mut placer, 3, 1, SOURCE);
    ran(&mut placer, 4, 2, other);
    let half = shape(2000, None);
    for (number, luggage) in (11..).zip([other, SOURCE, other, SOURCE, SOURCE]) {
        tell(&mut placer, Input::Queued(bringing(number, luggage, &half)));
    }
    assert_eq!(placer.queue().lanes(), 1, "they are alike to the scheduler");
    let pass = place(&mut placer, UNBOUNDED);
    // A begun worker is filled before another is begun, as without luggage.
    assert_eq!(placed(&pass), [(11, 4), (12, 4), (13, 1), (14, 1), (15, 3)]);
}

#[test]
fn the_nodes_of_a_gang_are_the_warm_ones_among_equals() {
    let mut placer = workers(&[4, 4, 4, 4]);
    ran(&mut placer, 3, 1, SOURCE);
    ran(&mut placer, 4, 2, SOURCE);
    let mut pair = (*shape(1000, None)).clone();
    pair.nodes = Some(2);
    tell(&mut placer, Input::Queued(bringing(11, SOURCE, &Arc::new(pair))));
    let pass = place(&mut placer, UNBOUNDED);
    let seats: Vec<WorkerId> = pass.placements[0].seats.iter().map(|seat| seat.worker_id).collect();
    assert_eq!(seats, [worker(3), worker(4)]);
}

#[test]
fn gpus_that_are_close_together_come_before_files_that_are_there() {
    let mut placer = workers(&[]);
    let gpus =
        |islands: &[&[u32]]| with_gpus((0..2).map(|index| gpu(index, "NVIDIA X", 40)).collect(), islands);
    up(&mut placer, 1, 1, gpus(&[&[0, 1]]));
    up(&mut placer, 2, 1, gpus(&[]));
    ran(&mut placer, 2, 1, SOURCE);
    let mut two = (*shape(1000, None)).clone();
    two.resources.gpus = Some(Box::new(request(GpuCount::Count(2))));
    assert_eq!(goes_to(&mut placer, bringing(11, SOURCE, &Arc::new(two))), 1);
}

proptest! {
    /// Whatever was where: what a job brings along decides only between workers that are equal for it.
    #[test]
    fn luggage_decides_between_equals_alone(
        cores in prop::collection::vec(1u32..4, 1..8),
        ran_on in prop::collection::vec((any::<prop::sample::Index>(), 1u32..4, 0u32..3), 0..20),
        asks in 1u32..4,
        luggage in (0u32..4, 0u32..3),
    ) {
        let mut placer = workers(&cores);
        for (number, (on, source, inputs)) in (1..).zip(&ran_on) {
            let on = on.index(cores.len()) as u128 + 1;
            ran(&mut placer, on, number, Luggage { source: *source, inputs: *inputs, environment: 0 });
        }
        let wants = shape(asks * 1000, None);
        let (cold, warm) = (Luggage::default(), Luggage { source: luggage.0, inputs: luggage.1, environment: 0 });
        let [cold, warm] = [cold, warm].map(|luggage| {
            let mut placer = placer.clone();
            tell(&mut placer, Input::Queued(bringing(100, luggage, &wants)));
            placed(&place(&mut placer, UNBOUNDED)).first().map(|(_, on)| cores[*on as usize - 1])
        });
        prop_assert_eq!(cold, warm);
    }
}
