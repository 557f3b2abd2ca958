//! One pass over the heads of the queue. Half a pass is a valid answer: what was placed stands, and the next
//! call goes on, because a lane without room is remembered until some worker has grown.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::budget::for_touching;
use super::candidates::{Candidates, Ground, Seat};
use super::fit::Wants;
use super::gpus::GpuUuid;
use super::pool::{Again, Holding, Place};
use super::queue::{Blocked, LaneKey, Turn};
use super::reservations::{self, Applicant, Reservations};
use super::shares;
use super::{Grant, Placement, Placer, QueuedJob, Seated, Shape, preemption};
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::quantity::Timestamp;

/// A job that found a place: out of the queue, its amount taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The job as it waited, to queue it again if the proposal is refused.
    pub job: QueuedJob,
    /// Where: one worker, or one for each node of a gang.
    pub seats: Vec<Seated>,
}

impl Placed {
    /// What goes to the supervisor.
    pub fn proposal(&self) -> Placement {
        Placement { job_id: self.job.job_id, job_epoch: self.job.epoch, seats: self.seats.clone() }
    }

    /// The placement it becomes.
    pub fn place(&self) -> Place {
        Place { job_id: self.job.job_id, epoch: self.job.epoch + 1 }
    }
}

/// A task that has to go for a job of a higher priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// Whose.
    pub place: Place,
    /// The job that waits for what it holds.
    pub by: JobId,
}

/// What a pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pass {
    /// In the order they were decided.
    pub placements: Vec<Placed>,
    /// Those that have to go, once each.
    pub preemptions: Vec<Preemption>,
    /// How often a job was held against a worker.
    pub checks: u32,
    /// The budget ran out: call again.
    pub exhausted: bool,
}

/// The order of service: priority, then the project that had less, then age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    priority: Reverse<i32>,
    load: u128,
    turn: Turn,
    lane: u32,
}

/// Lists of candidates by shape and by the growth they begin at, shared by the lanes of a shape.
type Lists = HashMap<(*const Shape, Option<u64>), Candidates>;

/// Heads of lanes that found no room in this pass, in the order of service, until something is reserved for them.
#[derive(Debug, Default)]
struct PassedOver {
    waiting: VecDeque<(Turn, u32)>,
    /// The first of them waits for workers that were reserved for others when so many reservations had been dropped.
    held_up: Option<u64>,
}

/// Whether workers were reserved for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reserving {
    Made,
    /// It has some already, or no worker could ever take it.
    Needless,
    /// Those that could take it are reserved for others.
    HeldUp,
}

/// How much a pass may look at.
#[derive(Debug, Clone, Copy)]
struct Limit {
    checks: u32,
    /// Whether the next call need not get on: then nothing is looked at beyond the checks but what one step needs, and
    /// the order of the lanes counts as well.
    strict: bool,
}

impl Limit {
    const fn ends(self, checks: u32) -> bool {
        self.strict && checks >= self.checks
    }
}

/// Shapes that no worker could ever take are forgotten when there are so many.
const MOST_HOPELESS: usize = 4_096;

impl Placer {
    /// Places what can be placed now. Costs at most two checks per shape and worker, two per placement and a few for
    /// its luggage, besides the few reservations; `budget_checks` may be overrun by the scan of one shape, so that every call gets on.
    pub(super) fn pass(&mut self, now: Timestamp, budget_checks: u32) -> Pass {
        self.pass_within(now, Limit { checks: budget_checks, strict: false })
    }

    /// One that is only tried out, on a copy. It ends as soon as the checks are spent, and one step may overrun them, by
    /// eight scans of the workers at most.
    pub(super) fn tried_pass(&mut self, now: Timestamp, most_checks: u32) -> Pass {
        self.pass_within(now, Limit { checks: most_checks, strict: true })
    }

    fn pass_within(&mut self, now: Timestamp, limit: Limit) -> Pass {
        self.shares.advance(now);
        let mut pass = Pass::default();
        loop {
            let dropped = self.reservations.dropped();
            let took_back = self.round(now, limit, &mut pass);
            // What was reserved for a job that was placed, maybe elsewhere, is open to those that came before it; and what
            // was taken back may be all that somebody lacked.
            if pass.exhausted || (self.reservations.dropped() == dropped && !took_back) {
                return pass;
            }
        }
    }

    /// Every lane once, in the order of service; whether a placement of this pass was taken back.
    fn round(&mut self, now: Timestamp, limit: Limit, pass: &mut Pass) -> bool {
        let mut took_back = false;
        if limit.strict {
            pass.checks = pass.checks.saturating_add(for_touching(self.queue.lanes()));
        }
        let mut heads: BinaryHeap<Reverse<Key>> = BinaryHeap::with_capacity(self.queue.lanes());
        let all: Vec<_> = self.queue.heads().collect();
        heads.extend(all.into_iter().filter_map(|(turn, lane)| Some(Reverse(self.key(turn, lane)?))));
        let mut lists = Lists::new();
        let mut passed_over = PassedOver::default();
        while let Some(Reverse(key)) = heads.pop() {
            if limit.ends(pass.checks) {
                pass.exhausted = true;
                break;
            }
            let Some(fresh) = self.key(key.turn, key.lane) else { continue };
            if fresh.load > key.load {
                // The project was given something since this was ordered.
                heads.push(Reverse(fresh));
                continue;
            }
            let (turn, lane) = (key.turn, key.lane);
            let Some((lane_key, blocked)) = self.queue.standing(lane) else { continue };
            let lane_key = lane_key.clone();
            let growth = self.pool.growth();
            if let Some(blocked) = blocked.filter(|blocked| blocked.growth == growth) {
                passed_over.waiting.push_back((turn, lane));
                if blocked.turn != turn {
                    self.queue.block(lane, Blocked { growth, turn });
                    took_back |= self.preempt(turn, &lane_key, pass);
                }
                continue;
            }
            if pass.checks >= limit.checks {
                pass.exhausted = true;
                break;
            }
            if self.quota_lack(&lane_key.project, &lane_key.shape).is_some() {
                continue;
            }
            let since = blocked.map(|blocked| blocked.growth);
            let Some(seats) = self.seats(turn, &lane_key, since, now, &mut lists, &mut pass.checks) else {
                self.queue.block(lane, Blocked { growth, turn });
                passed_over.waiting.push_back((turn, lane));
                took_back |= self.preempt(turn, &lane_key, pass);
                continue;
            };
            // It goes before others: what those will need is reserved first.
            if self.reserve_for_overtaken(&mut passed_over, now, limit, &mut pass.checks) {
                heads.push(Reverse(key));
                continue;
            }
            if limit.ends(pass.checks) {
                pass.exhausted = true;
                break;
            }
            if let Some(placed) = self.seat(turn, &lane_key, seats, now) {
                pass.placements.push(placed);
            }
            if let Some(next) = self.queue.head(lane).and_then(|next| self.key(next, lane)) {
                heads.push(Reverse(next));
            }
        }
        took_back
    }

    fn key(&self, turn: Turn, lane: u32) -> Option<Key> {
        let project = &self.queue.standing(lane)?.0.project;
        let load = self.shares.load(project, self.policy.share(project));
        Some(Key { priority: turn.priority, load, turn, lane })
    }

    fn applicant(&self, turn: Turn, lane: &LaneKey, now: Timestamp) -> Applicant {
        Applicant {
            job_id: turn.job_id(),
            priority: turn.priority.0,
            amount: lane.shape.amount(),
            ends_by: self.ends_by(&lane.shape, now),
            avoid: self.queue.avoided(turn),
            luggage: self.queue.luggage(turn),
        }
    }

    /// When a task of this shape has ended at the latest that is placed now; `None` = nobody knows.
    pub(super) fn ends_by(&self, shape: &Shape, now: Timestamp) -> Option<Timestamp> {
        shape.bound_s.map(|bound| now.plus(self.policy.staging_s).plus(bound))
    }

    pub(super) fn ground(&self) -> Ground<'_> {
        Ground { pool: &self.pool, reservations: &self.reservations, warmth: &self.warmth }
    }

    fn seats(
        &self,
        turn: Turn,
        lane: &LaneKey,
        since: Option<u64>,
        now: Timestamp,
        lists: &mut Lists,
        checks: &mut u32,
    ) -> Option<Vec<Seat>> {
        let nodes = lane.shape.nodes();
        // One worker that grew is not enough for a gang, whose other nodes may be where nothing changed.
        let since = since.filter(|_| nodes == 1);
        let list = lists.entry((Arc::as_ptr(&lane.shape), since)).or_insert_with(|| {
            let wants = Wants::of(&lane.shape, &self.pool);
            match since {
                Some(growth) => Candidates::find(wants, self.pool.grown_since(growth), checks),
                None => Candidates::find(wants, self.pool.workers(), checks),
            }
        });
        let applicant = self.applicant(turn, lane, now);
        list.seats(nodes, &applicant, self.ground(), checks)
    }

    fn seat(&mut self, turn: Turn, lane: &LaneKey, seats: Vec<Seat>, now: Timestamp) -> Option<Placed> {
        let applicant = self.applicant(turn, lane, now);
        let job = self.queue.remove(turn.job_id())?;
        let place = Place { job_id: job.job_id, epoch: job.epoch + 1 };
        let mut seated = Vec::with_capacity(seats.len());
        for (worker_id, gpus) in seats {
            let incarnation = self.pool.worker(worker_id).map_or(0, |worker| worker.incarnation);
            let weight = self.take(worker_id, place, &job, gpus.clone(), applicant.ends_by);
            self.reservations.passed(worker_id, &applicant);
            self.warmth.note(worker_id, job.luggage);
            seated.push(Seated { worker_id, incarnation, gpus, weight });
        }
        self.drop_reservation(job.job_id);
        Some(Placed { job, seats: seated })
    }

    fn take(
        &mut self,
        worker_id: WorkerId,
        place: Place,
        job: &QueuedJob,
        gpus: Vec<GpuUuid>,
        ends_by: Option<Timestamp>,
    ) -> u64 {
        let grant = Grant { amount: job.shape.amount(), gpus };
        let weight = shares::weight(&grant, self.pool.capacity());
        self.shares.take(&job.project, &grant, weight);
        let again = self
            .policy
            .is_preemptible(&job.project)
            .then(|| Again { shape: job.shape.clone(), submitted_at: job.submitted_at });
        let holding =
            Holding { grant, project: job.project.clone(), priority: job.priority, weight, ends_by, again };
        // A seat was found, so it fits; what it is in the books as must not depend on that.
        self.pool.record_held(worker_id, place, holding);
        weight
    }

    /// Reserves for the jobs that are about to be overtaken, in their order, as long as reservations are left. Whether
    /// any was made.
    fn reserve_for_overtaken(
        &mut self,
        passed_over: &mut PassedOver,
        now: Timestamp,
        limit: Limit,
        checks: &mut u32,
    ) -> bool {
        let mut reserved = false;
        while self.reservations.len() < self.policy.reservations as usize
            && passed_over.held_up != Some(self.reservations.dropped())
            && !limit.ends(*checks)
            && let Some(&(turn, lane)) = passed_over.waiting.front()
        {
            match self.reserve_for(turn, lane, now, checks) {
                // Those behind it would take one by one what it needs at once.
                Reserving::HeldUp => passed_over.held_up = Some(self.reservations.dropped()),
                made => {
                    reserved |= made == Reserving::Made;
                    passed_over.waiting.pop_front();
                }
            }
        }
        reserved
    }

    fn reserve_for(&mut self, turn: Turn, lane: u32, now: Timestamp, checks: &mut u32) -> Reserving {
        let (job_id, arrivals) = (turn.job_id(), self.pool.arrivals());
        let Some((lane, _)) = self.queue.standing(lane) else { return Reserving::Needless };
        let shape = lane.shape.clone();
        if self.reservations.of(job_id).is_some() || self.hopeless.get(&shape) == Some(&arrivals) {
            return Reserving::Needless;
        }
        let wants = Wants::of(&shape, &self.pool);
        let mut among = |reservations: &Reservations| {
            *checks = checks.saturating_add(u32::try_from(self.pool.workers().count()).unwrap_or(u32::MAX));
            reservations::reserve(&wants, shape.nodes(), turn.priority.0, &self.pool, reservations, now)
        };
        if let Some(reservation) = among(&self.reservations) {
            self.reservations.make(job_id, reservation);
            return Reserving::Made;
        }
        if !self.reservations.is_empty() && among(&Reservations::default()).is_some() {
            return Reserving::HeldUp;
        }
        if self.hopeless.len() >= MOST_HOPELESS {
            self.hopeless.clear();
        }
        self.hopeless.insert(shape, arrivals);
        Reserving::Needless
    }

    /// Makes room for a job, if tasks yield to it; whether one of them was only placed in this pass. That one is not told to
    /// go: it waits on, as if it had not been placed.
    fn preempt(&mut self, turn: Turn, lane: &LaneKey, pass: &mut Pass) -> bool {
        let job_id = turn.job_id();
        if self.reservations.of(job_id).is_some() || !self.somebody_yields_to(turn.priority.0) {
            return false;
        }
        let wants = Wants::of(&lane.shape, &self.pool);
        let found = preemption::find(&wants, lane.shape.nodes(), turn.priority.0, self, &mut pass.checks);
        if let Some((reservation, victims)) = found {
            self.reservations.make(job_id, reservation);
            let mut took_back = false;
            for place in victims {
                if let Some(at) = pass.placements.iter().position(|placed| placed.place() == place) {
                    took_back |= self.take_back(pass.placements.remove(at)).is_ok();
                } else {
                    self.leaving.insert(place);
                    pass.preemptions.push(Preemption { place, by: job_id });
                }
            }
            return took_back;
        }
        false
    }
}
