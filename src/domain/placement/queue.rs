//! Who waits for a place: in lanes of jobs that are alike to the scheduler, and within a lane by priority, age and id.
//! Measured: 120 to 200 bytes a job, by how full the index by id is.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Luggage, Shape};
use crate::contract::ids::{Epoch, JobId, WorkerId};
use crate::contract::quantity::Timestamp;

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedJob {
    /// The job.
    pub job_id: JobId,
    /// Its epoch now.
    pub epoch: Epoch,
    /// Higher goes first.
    pub priority: i32,
    /// Earlier goes first.
    pub submitted_at: Timestamp,
    /// What it asks for.
    pub shape: Arc<Shape>,
    /// Whose share it counts towards.
    pub project: Arc<str>,
    /// A worker to keep away from if another would do.
    pub avoid: Option<WorkerId>,
    /// What it brings along that a worker may have already.
    #[serde(default, skip_serializing_if = "Luggage::is_empty")]
    pub luggage: Luggage,
}

/// The order of service; the id, kept as bytes because a 128-bit integer would pad every entry, breaks ties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) priority: Reverse<i32>,
    pub(super) submitted_at: Timestamp,
    job_id: [u8; 16],
}

/// What jobs of one lane have in common: which of them comes first is all that tells them apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LaneKey {
    pub(super) project: Arc<str>,
    pub(super) shape: Arc<Shape>,
}

#[derive(Debug, Clone)]
struct Lane {
    key: LaneKey,
    turns: BTreeSet<Turn>,
    /// That no worker had room for them.
    blocked: Option<Blocked>,
}

/// When a lane was found without room: until the pool grows there is none for any job of it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Blocked {
    /// The pool's growth then.
    pub(super) growth: u64,
    /// Who was first then: another, of a higher priority, may do what this one may not.
    pub(super) turn: Turn,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    lane: u32,
    priority: i32,
    epoch: Epoch,
    submitted_at: Timestamp,
    luggage: Luggage,
}

/// All waiting jobs. It remembers which lanes found no room, so it belongs to one [`super::Pool`] for life.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "QueueForm", into = "QueueForm")]
pub struct Queue {
    lanes: Vec<Option<Lane>>,
    vacant: Vec<u32>,
    by_key: HashMap<LaneKey, u32>,
    /// Each shape once, with the number of its lanes: a pass tells shapes apart by where they are in memory, and what it
    /// costs must not depend on who made them.
    shapes: HashMap<Arc<Shape>, u32>,
    places: HashMap<[u8; 16], Waiting>,
    /// Rare (retries only), so kept apart from the places.
    avoid: HashMap<[u8; 16], WorkerId>,
}

impl Queue {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether this job waits.
    pub fn contains(&self, job_id: JobId) -> bool {
        self.places.contains_key(&job_id.to_bytes())
    }

    /// A waiting job.
    pub fn job(&self, job_id: JobId) -> Option<QueuedJob> {
        let id = job_id.to_bytes();
        let Waiting { lane, priority, epoch, submitted_at, luggage } = *self.places.get(&id)?;
        let LaneKey { project, shape } = self.lane(lane)?.key.clone();
        let avoid = self.avoid.get(&id).copied();
        Some(QueuedJob { job_id, epoch, priority, submitted_at, shape, project, avoid, luggage })
    }

    /// What a waiting job asks for.
    pub fn shape(&self, job_id: JobId) -> Option<&Arc<Shape>> {
        let waiting = self.places.get(&job_id.to_bytes())?;
        Some(&self.lane(waiting.lane)?.key.shape)
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> usize {
        self.by_key.len()
    }

    /// Adds a job; one that waits already is replaced.
    pub fn insert(&mut self, job: QueuedJob) {
        self.remove(job.job_id);
        let id = job.job_id.to_bytes();
        let lane = self.lane_of(LaneKey { project: job.project, shape: job.shape });
        let turn = Turn { priority: Reverse(job.priority), submitted_at: job.submitted_at, job_id: id };
        if let Some(Some(entry)) = self.lanes.get_mut(lane as usize) {
            entry.turns.insert(turn);
        }
        let QueuedJob { priority, epoch, submitted_at, luggage, .. } = job;
        let waiting = Waiting { lane, priority, epoch, submitted_at, luggage };
        self.places.insert(id, waiting);
        if let Some(worker) = job.avoid {
            self.avoid.insert(id, worker);
        }
    }

    /// Takes a job out; `None` when it does not wait.
    pub fn remove(&mut self, job_id: JobId) -> Option<QueuedJob> {
        let job = self.job(job_id)?;
        let id = job_id.to_bytes();
        let waiting = self.places.remove(&id)?;
        self.avoid.remove(&id);
        let slot = self.lanes.get_mut(waiting.lane as usize)?;
        let lane = slot.as_mut()?;
        let turn =
            Turn { priority: Reverse(waiting.priority), submitted_at: waiting.submitted_at, job_id: id };
        lane.turns.remove(&turn);
        if lane.turns.is_empty() {
            let shape = lane.key.shape.clone();
            self.by_key.remove(&lane.key);
            *slot = None;
            self.vacant.push(waiting.lane);
            self.forget_shape(&shape);
        }
        Some(job)
    }

    /// The turns of one lane, in their order.
    pub(super) fn turns(&self, lane: u32) -> impl Iterator<Item = Turn> + '_ {
        self.lane(lane).into_iter().flat_map(|lane| lane.turns.iter().copied())
    }

    /// The first turn of every lane, with its lane.
    pub(super) fn heads(&self) -> impl Iterator<Item = (Turn, u32)> {
        self.by_key.values().filter_map(|lane| Some((self.head(*lane)?, *lane)))
    }

    /// The first turn of one lane.
    pub(super) fn head(&self, lane: u32) -> Option<Turn> {
        self.lane(lane)?.turns.first().copied()
    }

    /// How many wait in one lane.
    pub(super) fn lane_len(&self, lane: u32) -> usize {
        self.lane(lane).map_or(0, |lane| lane.turns.len())
    }

    /// What the jobs of a lane have in common, and when it was found blocked.
    pub(super) fn standing(&self, lane: u32) -> Option<(&LaneKey, Option<Blocked>)> {
        self.lane(lane).map(|lane| (&lane.key, lane.blocked))
    }

    /// The worker the job of this turn keeps away from.
    pub(super) fn avoided(&self, turn: Turn) -> Option<WorkerId> {
        self.avoid.get(&turn.job_id).copied()
    }

    /// What the job of this turn brings along.
    pub(super) fn luggage(&self, turn: Turn) -> Luggage {
        self.places.get(&turn.job_id).map_or_else(Luggage::default, |waiting| waiting.luggage)
    }

    /// Remembers that no worker had room for this lane.
    pub(super) fn block(&mut self, lane: u32, blocked: Blocked) {
        if let Some(Some(lane)) = self.lanes.get_mut(lane as usize) {
            lane.blocked = Some(blocked);
        }
    }

    fn lane(&self, lane: u32) -> Option<&Lane> {
        self.lanes.get(lane as usize)?.as_ref()
    }

    fn lane_of(&mut self, key: LaneKey) -> u32 {
        if let Some(lane) = self.by_key.get(&key) {
            return *lane;
        }
        let key = LaneKey { shape: self.only(key.shape), ..key };
        let lane = Lane { key: key.clone(), turns: BTreeSet::new(), blocked: None };
        let index = if let Some(index) = self.vacant.pop() {
            self.lanes[index as usize] = Some(lane);
            index
        } else {
            self.lanes.push(Some(lane));
            (self.lanes.len() - 1) as u32
        };
        self.by_key.insert(key, index);
        index
    }

    /// The one form of a shape, for a lane more.
    fn only(&mut self, shape: Arc<Shape>) -> Arc<Shape> {
        let shape = self.shapes.get_key_value(&shape).map_or(shape, |(known, _)| known.clone());
        *self.shapes.entry(shape.clone()).or_default() += 1;
        shape
    }

    fn forget_shape(&mut self, shape: &Arc<Shape>) {
        if let Some(lanes) = self.shapes.get_mut(shape) {
            *lanes -= 1;
            if *lanes == 0 {
                self.shapes.remove(shape);
            }
        }
    }
}

impl Turn {
    /// Whose turn it is.
    pub(super) fn job_id(self) -> JobId {
        JobId::from_u128(u128::from_be_bytes(self.job_id))
    }
}

/// The stored form: lanes at their numbers, because a pass breaks ties by them.
#[derive(Clone, Serialize, Deserialize)]
struct QueueForm {
    lanes: Vec<Option<LaneForm>>,
    vacant: Vec<u32>,
}

#[derive(Clone, Serialize, Deserialize)]
struct LaneForm {
    project: Arc<str>,
    shape: Arc<Shape>,
    blocked: Option<Blocked>,
    jobs: Vec<JobForm>,
}

#[derive(Clone, Serialize, Deserialize)]
struct JobForm {
    job_id: JobId,
    epoch: Epoch,
    priority: i32,
    submitted_at: Timestamp,
    avoid: Option<WorkerId>,
    luggage: Luggage,
}

impl From<Queue> for QueueForm {
    fn from(queue: Queue) -> Self {
        let form = |lane: &Lane| {
            let jobs = lane.turns.iter().map(|turn| JobForm {
                job_id: turn.job_id(),
                epoch: queue.places.get(&turn.job_id).map_or(0, |waiting| waiting.epoch),
                priority: turn.priority.0,
                submitted_at: turn.submitted_at,
                avoid: queue.avoided(*turn),
                luggage: queue.luggage(*turn),
            });
            LaneForm {
                project: lane.key.project.clone(),
                shape: lane.key.shape.clone(),
                blocked: lane.blocked,
                jobs: jobs.collect(),
            }
        };
        Self {
            lanes: queue.lanes.iter().map(|lane| lane.as_ref().map(form)).collect(),
            vacant: queue.vacant.clone(),
        }
    }
}

impl From<QueueForm> for Queue {
    fn from(form: QueueForm) -> Self {
        let mut queue = Self { vacant: form.vacant, ..Self::default() };
        for (number, lane) in (0..).zip(form.lanes) {
            let Some(LaneForm { project, shape, blocked, jobs }) = lane else {
                queue.lanes.push(None);
                continue;
            };
            let key = LaneKey { project, shape: queue.only(shape) };
            queue.by_key.insert(key.clone(), number);
            let mut turns = BTreeSet::new();
            for JobForm { job_id, epoch, priority, submitted_at, avoid, luggage } in jobs {
                let id = job_id.to_bytes();
                turns.insert(Turn { priority: Reverse(priority), submitted_at, job_id: id });
                queue.places.insert(id, Waiting { lane: number, priority, epoch, submitted_at, luggage });
                queue.avoid.extend(avoid.map(|worker| (id, worker)));
            }
            queue.lanes.push(Some(Lane { key, turns, blocked }));
        }
        queue
    }
}
