//! What the workers have and what of it is taken. What a task took outlives its lease and even its worker's
//! connection: only the word that the task's tree is gone gives it back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::gpus::{self, GpuUuid, Kinds, PoolGpu};
use super::{Amount, Grant, Shape};
use crate::contract::gpu::Interpreter;
use crate::contract::ids::{Epoch, JobId, WorkerId};
use crate::contract::quantity::Timestamp;
use crate::contract::worker::{Capabilities, WorkerKind};

/// One placement of one job, whatever number of workers it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The job.
    pub job_id: JobId,
    /// The placement, counted from 1.
    pub epoch: Epoch,
}

/// What a task took on its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// How much.
    pub grant: Grant,
    /// Whose share it counts towards.
    pub project: Arc<str>,
    /// The priority it was placed with.
    pub priority: i32,
    /// How much of all machines that was when it was placed, see [`super::shares`].
    pub weight: u64,
    /// When it has ended at the latest; `None` = nobody knows.
    pub ends_by: Option<Timestamp>,
    /// How its job would wait again; kept of tasks that may be stopped for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Again>,
}

/// How a job waits again after its task was stopped for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Again {
    /// What it asks for.
    pub shape: Arc<Shape>,
    /// Its age decides when its turn comes.
    pub submitted_at: Timestamp,
}

/// One worker, as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolWorker {
    /// Its id.
    pub id: WorkerId,
    /// Its name; empty before its first word.
    pub name: String,
    /// How it reaches the server.
    pub kind: WorkerKind,
    /// This start of it.
    pub incarnation: u64,
    /// `linux`, `macos`.
    pub os: String,
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Names in its table of secrets.
    pub secrets: BTreeSet<String>,
    /// Whether jobs may name its variables and files as secrets.
    pub spec_secret_refs: bool,
    /// What its interpreters can import.
    pub interpreters: Vec<Interpreter>,
    /// Whether it offers some and has not said yet what they can import.
    #[serde(default)]
    pub probing: bool,
    /// What it offers in all, without the GPUs.
    pub total: Amount,
    /// Whether it takes tasks now.
    pub accepting: bool,
    /// Why it takes none although it is there, in its own words.
    pub unhealthy: Option<String>,
    /// Whether an operator empties it.
    pub draining: bool,
    /// It left for good, and only what it still holds keeps it here.
    left: bool,
    gpus: Vec<PoolGpu>,
    held: Amount,
    places: BTreeSet<Place>,
    grown_at: u64,
}

impl PoolWorker {
    /// What is not taken; zero where more is held than offered (it came back smaller).
    pub const fn free(&self) -> Amount {
        self.total.saturating_sub(self.held)
    }

    /// What is taken: live leases and stale ones.
    pub const fn held(&self) -> Amount {
        self.held
    }

    /// Its GPUs, in PCI order.
    pub fn gpus(&self) -> &[PoolGpu] {
        &self.gpus
    }

    /// Whether it has said what it is. One that only holds tasks from before a restart has no properties to judge.
    pub const fn introduced(&self) -> bool {
        !self.os.is_empty()
    }

    /// Whether it is there and takes tasks.
    pub const fn takes_tasks(&self) -> bool {
        self.accepting && !self.draining && self.unhealthy.is_none()
    }

    /// Tasks that hold something here.
    pub fn tasks(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }
}

/// What is given back is not on the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("worker {0} does not hold what is to be released")]
pub struct NotHeld(pub WorkerId);

/// All known workers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Pool {
    workers: BTreeMap<WorkerId, PoolWorker>,
    #[serde(with = "super::pairs")]
    holdings: BTreeMap<(WorkerId, Place), Holding>,
    kinds: Kinds,
    /// Counts every change that could make room for something; [`Pool::grown_since`] says where.
    growth: u64,
    grown: BTreeSet<(u64, WorkerId)>,
    capacity: Capacity,
    /// Counts how often a worker said what it has, or began to take tasks: what no worker could ever take may fit one of
    /// them now.
    arrivals: u64,
}

/// What all workers of a pool offer together, whether they are there or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Without the GPUs.
    pub amount: Amount,
    /// So many GPUs.
    pub gpus: u64,
}

impl Pool {
    /// Without workers.
    pub fn new() -> Self {
        Self::default()
    }

    /// A worker takes tasks (again), with what it has now. What it holds stays taken.
    pub fn worker_up(
        &mut self,
        id: WorkerId,
        name: &str,
        kind: WorkerKind,
        incarnation: u64,
        capabilities: &Capabilities,
    ) {
        let holdings = self.holdings_of(id);
        let held: BTreeSet<GpuUuid> =
            holdings.flat_map(|(_, held)| held.grant.gpus.iter().cloned()).collect();
        let gpus = gpus::taken_in(&capabilities.gpus, |uuid| held.contains(uuid), &mut self.kinds);
        let worker = self.entry(id);
        worker.name = name.to_owned();
        worker.kind = kind;
        worker.incarnation = incarnation;
        worker.os.clone_from(&capabilities.os);
        worker.arch.clone_from(&capabilities.arch);
        worker.labels.clone_from(&capabilities.labels);
        worker.secrets = capabilities.secrets.iter().cloned().collect();
        worker.spec_secret_refs = capabilities.spec_secret_refs;
        worker.interpreters.clone_from(&capabilities.interpreters);
        worker.probing = !capabilities.pythons.is_empty() && capabilities.interpreters.is_empty();
        let (amount_before, gpus_before) = (worker.total, worker.gpus.len() as u64);
        worker.gpus = gpus;
        worker.total =
            Amount { cpu_millis: capabilities.cpus.millis().into(), memory_bytes: capabilities.memory_bytes };
        worker.accepting = true;
        worker.left = false;
        let (amount, gpus) = (worker.total, worker.gpus.len() as u64);
        self.capacity.amount = self.capacity.amount.saturating_sub(amount_before).saturating_add(amount);
        self.capacity.gpus = self.capacity.gpus.saturating_sub(gpus_before).saturating_add(gpus);
        self.note_arrival(id);
    }

    /// A worker takes no tasks for now; what it holds stays taken. One that never was up has nothing to take back.
    pub fn worker_down(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.accepting = false;
        }
    }

    /// A worker says why it takes no tasks, or that it does (`None`). One that never was up has nothing to say.
    pub fn worker_health(&mut self, id: WorkerId, unhealthy: Option<String>) {
        if let Some(worker) = self.workers.get_mut(&id) {
            let well = unhealthy.is_none();
            worker.unhealthy = unhealthy;
            if well {
                self.note_arrival(id);
            }
        }
    }

    /// A worker's table of secrets was written.
    pub fn worker_secrets(&mut self, id: WorkerId, names: Vec<String>) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.secrets = names.into_iter().collect();
            self.note_arrival(id);
        }
    }

    /// An operator empties a worker, or lets it take tasks again. One that is not up yet is remembered as draining.
    pub fn worker_draining(&mut self, id: WorkerId, draining: bool) {
        self.entry(id).draining = draining;
        if !draining {
            self.note_arrival(id);
        }
    }

    /// A worker left for good: it is forgotten as soon as it holds nothing.
    pub fn worker_left(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.accepting = false;
            worker.left = true;
        }
        self.forget_left(id);
    }

    fn forget_left(&mut self, id: WorkerId) {
        if self.workers.get(&id).is_some_and(|worker| worker.left && worker.places.is_empty())
            && let Some(worker) = self.workers.remove(&id)
        {
            self.grown.remove(&(worker.grown_at, id));
            self.capacity.amount = self.capacity.amount.saturating_sub(worker.total);
            self.capacity.gpus = self.capacity.gpus.saturating_sub(worker.gpus.len() as u64);
        }
    }

    /// Records what a task holds, new or from before a restart of the server, on a worker that may not have spoken yet. It
    /// is a fact, not a wish, so it may exceed what the worker offers.
    pub fn record_held(&mut self, id: WorkerId, place: Place, holding: Holding) {
        let worker = self.entry(id);
        worker.held = worker.held.saturating_add(holding.grant.amount);
        worker.places.insert(place);
        for gpu in worker.gpus.iter_mut().filter(|gpu| holding.grant.gpus.contains(&gpu.uuid)) {
            gpu.held = true;
        }
        self.holdings.insert((id, place), holding);
    }

    /// Gives back what a task took.
    pub fn release(&mut self, id: WorkerId, place: Place) -> Result<Holding, NotHeld> {
        let holding = self.holdings.remove(&(id, place)).ok_or(NotHeld(id))?;
        let worker = self.entry(id);
        worker.held = worker.held.saturating_sub(holding.grant.amount);
        worker.places.remove(&place);
        for gpu in worker.gpus.iter_mut().filter(|gpu| holding.grant.gpus.contains(&gpu.uuid)) {
            gpu.held = false;
        }
        self.note_growth(id);
        self.forget_left(id);
        Ok(holding)
    }

    /// A task is known to have ended by then.
    pub fn bound(&mut self, id: WorkerId, place: Place, ends_by: Timestamp) {
        if let Some(holding) = self.holdings.get_mut(&(id, place)) {
            holding.ends_by = Some(ends_by);
        }
    }

    /// One worker.
    pub fn worker(&self, id: WorkerId) -> Option<&PoolWorker> {
        self.workers.get(&id)
    }

    /// All workers that may take tasks some day, by id.
    pub fn workers(&self) -> impl Iterator<Item = &PoolWorker> {
        self.workers.values().filter(|worker| !worker.left)
    }

    /// What tasks hold on a worker.
    pub fn holdings_of(&self, id: WorkerId) -> impl Iterator<Item = (Place, &Holding)> {
        let first = Place { job_id: JobId::from_u128(0), epoch: 0 };
        let last = Place { job_id: JobId::from_u128(u128::MAX), epoch: Epoch::MAX };
        self.holdings.range((id, first)..=(id, last)).map(|((_, place), holding)| (*place, holding))
    }

    /// What all tasks hold.
    pub(super) fn all_holdings(&self) -> impl Iterator<Item = (Place, &Holding)> {
        self.holdings.iter().map(|((_, place), holding)| (*place, holding))
    }

    /// What a task holds on a worker.
    pub(super) fn holding(&self, id: WorkerId, place: Place) -> Option<&Holding> {
        self.holdings.get(&(id, place))
    }

    /// All that a job holds.
    pub(super) fn places_of(&self, job_id: JobId) -> Vec<(WorkerId, Place)> {
        self.holdings.keys().filter(|(_, place)| place.job_id == job_id).copied().collect()
    }

    /// When the first of those tasks ends whose end is known.
    pub(super) fn next_end(&self) -> Option<Timestamp> {
        self.holdings.values().filter_map(|holding| holding.ends_by).min()
    }

    /// The tasks that have ended by then.
    pub(super) fn ending_by(&self, now: Timestamp) -> Vec<(WorkerId, Place)> {
        let over = |holding: &Holding| holding.ends_by.is_some_and(|ends_by| ends_by <= now);
        self.holdings.iter().filter(|(_, holding)| over(holding)).map(|(key, _)| *key).collect()
    }

    /// More idle workers like one that is there, under ids that no other has.
    pub(super) fn multiply(&mut self, like: WorkerId, more: u32) {
        let Some(model) = self.workers.get(&like).cloned() else { return };
        for number in 1..=more {
            let id = WorkerId::from_u128(u128::MAX - u128::from(number));
            let mut worker = PoolWorker {
                id,
                name: format!("{}+{number}", model.name),
                held: Amount::default(),
                ..model.clone()
            };
            worker.places.clear();
            worker.gpus.iter_mut().for_each(|gpu| gpu.held = false);
            (worker.accepting, worker.draining, worker.unhealthy, worker.left) = (true, false, None, false);
            self.workers.insert(id, worker);
            self.note_growth(id);
        }
    }

    /// What all workers offer together.
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    pub(super) const fn arrivals(&self) -> u64 {
        self.arrivals
    }

    pub(super) const fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// Stands for the newest change that could make room.
    pub(super) const fn growth(&self) -> u64 {
        self.growth
    }

    /// Workers that may have more room than they had at `growth`.
    pub(super) fn grown_since(&self, growth: u64) -> impl Iterator<Item = &PoolWorker> {
        self.grown
            .range((growth.saturating_add(1), WorkerId::from_u128(0))..)
            .filter_map(|(_, id)| self.workers.get(id))
    }

    fn entry(&mut self, id: WorkerId) -> &mut PoolWorker {
        self.workers.entry(id).or_insert_with(|| PoolWorker {
            id,
            name: String::new(),
            kind: WorkerKind::Remote,
            incarnation: 0,
            os: String::new(),
            arch: String::new(),
            labels: BTreeMap::new(),
            secrets: BTreeSet::new(),
            spec_secret_refs: false,
            interpreters: Vec::new(),
            probing: false,
            total: Amount::default(),
            accepting: false,
            unhealthy: None,
            draining: false,
            left: false,
            gpus: Vec::new(),
            held: Amount::default(),
            places: BTreeSet::new(),
            grown_at: 0,
        })
    }

    /// Something may fit there now that fitted nowhere before.
    fn note_arrival(&mut self, id: WorkerId) {
        self.arrivals += 1;
        self.note_growth(id);
    }

    /// Something there may fit now that did not before.
    pub(super) fn note_growth(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&id) {
            self.growth += 1;
            self.grown.remove(&(worker.grown_at, id));
            worker.grown_at = self.growth;
            self.grown.insert((self.growth, id));
        }
    }
}
