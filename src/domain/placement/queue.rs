//! Who waits for a place: by shape, and within a shape by priority, age and id. Measured: 120 to
//! 200 bytes a job, by how full the index by id is.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::Shape;
use crate::contract::ids::{Epoch, JobId, WorkerId};
use crate::contract::quantity::Timestamp;

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// A worker to keep away from if another would do.
    pub avoid: Option<WorkerId>,
}

/// The order of service; the id, kept as bytes because a 128-bit integer would pad every entry, breaks ties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    priority: Reverse<i32>,
    submitted_at: Timestamp,
    job_id: [u8; 16],
}

#[derive(Debug, Clone)]
struct Group {
    shape: Arc<Shape>,
    turns: BTreeSet<Turn>,
    /// The pool's growth at which no worker had room for this shape.
    blocked_at: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    group: u32,
    priority: i32,
    epoch: Epoch,
    submitted_at: Timestamp,
}

/// All waiting jobs. It remembers which shapes found no room, so it belongs to one [`super::Pool`] for life.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    groups: Vec<Option<Group>>,
    vacant: Vec<u32>,
    by_shape: HashMap<Arc<Shape>, u32>,
    places: HashMap<[u8; 16], Place>,
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

    /// What a waiting job asks for.
    pub fn shape(&self, job_id: JobId) -> Option<&Arc<Shape>> {
        let place = self.places.get(&job_id.to_bytes())?;
        Some(&self.group(place.group)?.shape)
    }

    /// How many shapes wait.
    pub fn shapes(&self) -> usize {
        self.by_shape.len()
    }

    /// Adds a job; one that waits already is replaced.
    pub fn insert(&mut self, job: QueuedJob) {
        self.remove(job.job_id);
        let id = job.job_id.to_bytes();
        let group = self.group_of(job.shape);
        let turn = Turn { priority: Reverse(job.priority), submitted_at: job.submitted_at, job_id: id };
        if let Some(Some(entry)) = self.groups.get_mut(group as usize) {
            entry.turns.insert(turn);
        }
        let place = Place { group, priority: job.priority, epoch: job.epoch, submitted_at: job.submitted_at };
        self.places.insert(id, place);
        if let Some(worker) = job.avoid {
            self.avoid.insert(id, worker);
        }
    }

    /// Takes a job out; `None` when it does not wait.
    pub fn remove(&mut self, job_id: JobId) -> Option<QueuedJob> {
        let id = job_id.to_bytes();
        let place = self.places.remove(&id)?;
        let avoid = self.avoid.remove(&id);
        let slot = self.groups.get_mut(place.group as usize)?;
        let group = slot.as_mut()?;
        let turn = Turn { priority: Reverse(place.priority), submitted_at: place.submitted_at, job_id: id };
        group.turns.remove(&turn);
        let shape = group.shape.clone();
        if group.turns.is_empty() {
            *slot = None;
            self.vacant.push(place.group);
            self.by_shape.remove(&shape);
        }
        let Place { priority, epoch, submitted_at, .. } = place;
        Some(QueuedJob { job_id, epoch, priority, submitted_at, shape, avoid })
    }

    /// The first turn of every shape, with its group.
    pub(super) fn heads(&self) -> impl Iterator<Item = (Turn, u32)> {
        self.by_shape.values().filter_map(|group| Some((self.head(*group)?, *group)))
    }

    /// The first turn of one group.
    pub(super) fn head(&self, group: u32) -> Option<Turn> {
        self.group(group)?.turns.first().copied()
    }

    /// A group's shape, and the growth at which it was found blocked.
    pub(super) fn standing(&self, group: u32) -> Option<(&Arc<Shape>, Option<u64>)> {
        self.group(group).map(|group| (&group.shape, group.blocked_at))
    }

    /// The worker the first job of this turn keeps away from.
    pub(super) fn avoided(&self, turn: Turn) -> Option<WorkerId> {
        self.avoid.get(&turn.job_id).copied()
    }

    /// Remembers that no worker had room for this shape at `growth`.
    pub(super) fn block(&mut self, group: u32, growth: u64) {
        if let Some(Some(group)) = self.groups.get_mut(group as usize) {
            group.blocked_at = Some(growth);
        }
    }

    fn group(&self, group: u32) -> Option<&Group> {
        self.groups.get(group as usize)?.as_ref()
    }

    fn group_of(&mut self, shape: Arc<Shape>) -> u32 {
        if let Some(group) = self.by_shape.get(&shape) {
            return *group;
        }
        let group = Group { shape: shape.clone(), turns: BTreeSet::new(), blocked_at: None };
        let index = if let Some(index) = self.vacant.pop() {
            self.groups[index as usize] = Some(group);
            index
        } else {
            self.groups.push(Some(group));
            (self.groups.len() - 1) as u32
        };
        self.by_shape.insert(shape, index);
        index
    }
}

impl Turn {
    /// Whose turn it is.
    pub(super) fn job_id(self) -> JobId {
        JobId::from_u128(u128::from_be_bytes(self.job_id))
    }
}
