//! Who is served before a job, in the order that a pass has now: what each of them will hold counts for its project as
//! soon as it was served. Who cannot be placed at all holds up nobody.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::budget::{Budget, checks};
use super::fit::Wants;
use super::queue::{LaneKey, Turn};
use super::shares::{self, AT_ONCE};
use super::{Placer, QueuedJob, Shape, placer};
use crate::contract::explain::Favoured;
use crate::contract::ids::JobId;

/// Jobs that are served before another which are named.
const NAMED: usize = 3;
/// Longer queues are counted as they stand, as if nobody was served meanwhile.
const SERVED: u64 = 50_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// How many.
    pub(super) jobs: u64,
    /// The first of them.
    pub(super) first: Vec<JobId>,
    /// Whose jobs are served before older ones of the same priority.
    pub(super) favoured: Option<Favoured>,
}

/// One lane on its way through the order.
struct Line<'a> {
    project: &'a str,
    turns: Box<dyn Iterator<Item = Turn> + 'a>,
    /// What one job of it adds to the load of its project, before its share.
    weight: u128,
}

/// What a project had and has, and how much it is due.
struct Load {
    raw: u128,
    share: u128,
}

impl Load {
    fn now(&self) -> u128 {
        self.raw / self.share
    }
}

type Key = (Reverse<i32>, u128, Turn, usize);

/// Who is served before a job that waits; `None` when it costs more to find out who holds up nobody.
pub(super) fn ahead_of(job: &QueuedJob, placer: &Placer, budget: &mut Budget) -> Option<Ahead> {
    let mut could_ever: HashMap<*const Shape, bool> = HashMap::new();
    let (mut lines, mut loads) = (Vec::new(), HashMap::<&str, Load>::new());
    let mut heads: BinaryHeap<Reverse<Key>> = BinaryHeap::new();
    let own = LaneKey { project: job.project.clone(), shape: job.shape.clone() };
    let mut own_turn = None;
    for (_, lane) in placer.queue.heads() {
        let Some((key, _)) = placer.queue.standing(lane) else { continue };
        if budget.left() == 0 {
            return None;
        }
        if *key == own {
            own_turn = placer.queue.turns(lane).find(|turn| turn.job_id() == job.job_id);
        } else if !takes_its_turn(key, &own, placer, &mut could_ever, budget) {
            continue;
        }
        let load = loads.entry(&key.project).or_insert_with(|| Load {
            raw: placer.shares.load(&key.project, 1),
            share: placer.policy.share(&key.project).max(1).into(),
        });
        let mut turns = placer.queue.turns(lane);
        if let Some(first) = turns.next() {
            heads.push(Reverse((first.priority, load.now(), first, lines.len())));
        }
        let nodes = key.shape.nodes() as u128;
        let weight =
            shares::weight_of(key.shape.amount(), placer::gpus_of(&key.shape), placer.pool.capacity());
        let weight = nodes * u128::from(weight) * u128::from(AT_ONCE.millis());
        lines.push(Line { project: &key.project, turns: Box::new(turns), weight });
    }
    let mut ahead = Ahead::default();
    let Some(own_turn) = own_turn else { return Some(ahead) };
    while let Some(Reverse((priority, load, turn, index))) = heads.pop() {
        if turn == own_turn {
            break;
        }
        let line = &mut lines[index];
        let Some(of_project) = loads.get_mut(line.project) else { continue };
        if load < of_project.now() {
            // Another job of the project was served since.
            heads.push(Reverse((priority, of_project.now(), turn, index)));
            continue;
        }
        ahead.jobs += 1;
        if ahead.first.len() < NAMED {
            ahead.first.push(turn.job_id());
        }
        if ahead.favoured.is_none() && priority == own_turn.priority && turn > own_turn {
            ahead.favoured = Some(Favoured { project: Some(line.project.to_owned()) });
        }
        if ahead.jobs < SERVED {
            of_project.raw += line.weight;
        }
        if let Some(next) = line.turns.next() {
            heads.push(Reverse((next.priority, of_project.now(), next, index)));
        }
    }
    Some(ahead)
}

/// Whether jobs of a lane are placed when their turn comes, as far as room decides.
fn takes_its_turn(
    key: &LaneKey,
    own: &LaneKey,
    placer: &Placer,
    could_ever: &mut HashMap<*const Shape, bool>,
    budget: &mut Budget,
) -> bool {
    // Of one project the quota keeps both, or neither.
    if key.project != own.project && placer.quota_lack(&key.project, &key.shape).is_some() {
        return false;
    }
    placer.beyond_quota(&key.project, &key.shape).is_none()
        && *could_ever
            .entry(Arc::as_ptr(&key.shape))
            .or_insert_with(|| able_workers(&key.shape, placer, budget) >= key.shape.nodes())
}

/// Workers that could take a task of a shape some day, as many as it needs at most.
fn able_workers(shape: &Arc<Shape>, placer: &Placer, budget: &mut Budget) -> usize {
    let wants = Wants::of(shape, &placer.pool);
    let mut looked_at = 0;
    let workers = placer.pool.workers().inspect(|_| looked_at += 1);
    let able = workers.filter(|worker| !worker.introduced() || !wants.lacks_for_good(worker));
    let able = able.take(shape.nodes()).count();
    budget.spend(checks(looked_at));
    able
}
