//! What the workers have and what of it is reserved. A reservation outlives its lease and even its worker's
//! connection: only the word that the task's tree is gone gives it back.

use std::collections::{BTreeMap, BTreeSet};

use super::Amount;
use crate::contract::ids::WorkerId;
use crate::contract::worker::{Capabilities, WorkerKind};

/// One worker, as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// What it offers in all.
    pub total: Amount,
    /// Whether it takes tasks now.
    pub accepting: bool,
    /// Why it takes none although it is there, in its own words.
    pub unhealthy: Option<String>,
    /// Whether an operator empties it.
    pub draining: bool,
    /// It left for good, and only what it still holds keeps it here.
    left: bool,
    held: Amount,
    tasks: u32,
    grown_at: u64,
}

impl PoolWorker {
    /// What is not reserved; zero where more is held than offered (it came back smaller).
    pub const fn free(&self) -> Amount {
        self.total.saturating_sub(self.held)
    }

    /// What is reserved: live leases and stale ones.
    pub const fn held(&self) -> Amount {
        self.held
    }

    /// Whether it has said what it is. One that only holds tasks from before a restart has no properties to judge.
    pub const fn introduced(&self) -> bool {
        !self.os.is_empty()
    }

    /// Tasks behind the reservations.
    pub const fn tasks(&self) -> u32 {
        self.tasks
    }
}

/// A broken invariant of the bookkeeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No such worker.
    #[error("worker {0} is not in the pool")]
    UnknownWorker(WorkerId),
    /// A new reservation does not fit in what is free.
    #[error("worker {0} has less free than is to be reserved")]
    Overcommitted(WorkerId),
    /// More is given back than is held.
    #[error("worker {0} holds less than is to be released")]
    NotHeld(WorkerId),
}

/// All known workers.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    workers: BTreeMap<WorkerId, PoolWorker>,
    /// Counts every change that could make room for something; [`Pool::grown_since`] says where.
    growth: u64,
    grown: BTreeSet<(u64, WorkerId)>,
}

impl Pool {
    /// Without workers.
    pub fn new() -> Self {
        Self::default()
    }

    /// A worker takes tasks (again), with what it has now. What it holds stays reserved.
    pub fn worker_up(
        &mut self,
        id: WorkerId,
        name: &str,
        kind: WorkerKind,
        incarnation: u64,
        capabilities: &Capabilities,
    ) {
        let worker = self.entry(id);
        worker.name = name.to_owned();
        worker.kind = kind;
        worker.incarnation = incarnation;
        worker.os.clone_from(&capabilities.os);
        worker.arch.clone_from(&capabilities.arch);
        worker.labels.clone_from(&capabilities.labels);
        worker.secrets = capabilities.secrets.iter().cloned().collect();
        worker.spec_secret_refs = capabilities.spec_secret_refs;
        worker.total =
            Amount { cpu_millis: capabilities.cpus.millis().into(), memory_bytes: capabilities.memory_bytes };
        worker.accepting = true;
        worker.left = false;
        self.note_growth(id);
    }

    /// A worker takes no tasks for now; what it holds stays reserved.
    pub fn worker_down(&mut self, id: WorkerId) -> Result<(), PoolError> {
        self.workers.get_mut(&id).ok_or(PoolError::UnknownWorker(id))?.accepting = false;
        Ok(())
    }

    /// A worker says why it takes no tasks, or that it does (`None`). One that never was up has nothing to say.
    pub fn worker_health(&mut self, id: WorkerId, unhealthy: Option<String>) {
        if let Some(worker) = self.workers.get_mut(&id) {
            let well = unhealthy.is_none();
            worker.unhealthy = unhealthy;
            if well {
                self.note_growth(id);
            }
        }
    }

    /// A worker's table of secrets was written.
    pub fn worker_secrets(&mut self, id: WorkerId, names: Vec<String>) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.secrets = names.into_iter().collect();
            self.note_growth(id);
        }
    }

    /// An operator empties a worker, or lets it take tasks again. One that is not up yet is remembered as draining.
    pub fn worker_draining(&mut self, id: WorkerId, draining: bool) {
        self.entry(id).draining = draining;
        if !draining {
            self.note_growth(id);
        }
    }

    /// A worker left for good: it is forgotten as soon as nothing is reserved on it.
    pub fn worker_left(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.accepting = false;
            worker.left = true;
        }
        self.forget_left(id);
    }

    fn forget_left(&mut self, id: WorkerId) {
        if self.workers.get(&id).is_some_and(|worker| worker.left && worker.tasks == 0) {
            // Just looked up, so it is there.
            let _ = self.remove_worker(id);
        }
    }

    /// Forgets a worker and everything reserved on it.
    pub fn remove_worker(&mut self, id: WorkerId) -> Result<(), PoolError> {
        let worker = self.workers.remove(&id).ok_or(PoolError::UnknownWorker(id))?;
        self.grown.remove(&(worker.grown_at, id));
        Ok(())
    }

    /// Reserves for a new task; refused when it does not fit.
    pub fn reserve(&mut self, id: WorkerId, amount: Amount) -> Result<(), PoolError> {
        let worker = self.workers.get_mut(&id).ok_or(PoolError::UnknownWorker(id))?;
        if !worker.free().holds(amount) {
            return Err(PoolError::Overcommitted(id));
        }
        worker.held = worker.held.saturating_add(amount);
        worker.tasks = worker.tasks.saturating_add(1);
        Ok(())
    }

    /// Records what a task holds already (after a restart of the server), on a worker that may not have spoken
    /// yet. It is a fact, not a wish, so it may exceed what the worker offers.
    pub fn record_held(&mut self, id: WorkerId, amount: Amount) {
        let worker = self.entry(id);
        worker.held = worker.held.saturating_add(amount);
        worker.tasks = worker.tasks.saturating_add(1);
    }

    /// Gives one task's reservation back.
    pub fn release(&mut self, id: WorkerId, amount: Amount) -> Result<(), PoolError> {
        let worker = self.workers.get_mut(&id).ok_or(PoolError::UnknownWorker(id))?;
        let (Some(held), Some(tasks)) = (worker.held.checked_sub(amount), worker.tasks.checked_sub(1)) else {
            return Err(PoolError::NotHeld(id));
        };
        worker.held = held;
        worker.tasks = tasks;
        self.note_growth(id);
        self.forget_left(id);
        Ok(())
    }

    /// One worker.
    pub fn worker(&self, id: WorkerId) -> Option<&PoolWorker> {
        self.workers.get(&id)
    }

    /// All workers that may take tasks some day, by id.
    pub fn workers(&self) -> impl Iterator<Item = &PoolWorker> {
        self.workers.values().filter(|worker| !worker.left)
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
            total: Amount::default(),
            accepting: false,
            unhealthy: None,
            draining: false,
            left: false,
            held: Amount::default(),
            tasks: 0,
            grown_at: 0,
        })
    }

    fn note_growth(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&id) {
            self.growth += 1;
            self.grown.remove(&(worker.grown_at, id));
            worker.grown_at = self.growth;
            self.grown.insert((self.growth, id));
        }
    }
}
