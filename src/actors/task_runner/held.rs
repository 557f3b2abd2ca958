//! What a worker holds right now, where the heartbeat's thread can see it without asking anybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::contract::ids::{Epoch, TaskId};
use crate::contract::protocol::{Free, Held};
use crate::contract::quantity::Cpus;
use crate::contract::spec::Resources;
use crate::contract::worker::{Capabilities, Phase};

/// The tasks a worker holds; clones share them. Written by the task runner alone.
#[derive(Debug, Clone, Default)]
pub struct HeldTasks {
    tasks: Arc<Mutex<BTreeMap<TaskId, Entry>>>,
}

#[derive(Debug)]
struct Entry {
    epoch: Epoch,
    phase: Option<Phase>,
    stopping: bool,
    cpus: Cpus,
    memory_bytes: u64,
}

impl HeldTasks {
    /// Every task with its placement and phase.
    pub fn list(&self) -> Vec<Held> {
        let tasks = self.tasks.lock();
        tasks.iter().map(|(task_id, entry)| entry.held(*task_id)).collect()
    }

    /// The same without started tasks whose stop was ordered: an acquire that lists those is answered at once with
    /// the same order, again and again until they have ended.
    pub fn list_for_acquire(&self) -> Vec<Held> {
        let tasks = self.tasks.lock();
        let listed = tasks.iter().filter(|(_, entry)| entry.phase.is_none() || !entry.stopping);
        listed.map(|(task_id, entry)| entry.held(*task_id)).collect()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.tasks.lock().is_empty()
    }

    /// What these tasks leave of a machine.
    pub fn free(&self, of: &Capabilities) -> Free {
        let tasks = self.tasks.lock();
        let cpu_millis = tasks.values().map(|held| held.cpus.millis()).fold(0, u32::saturating_add);
        let memory_bytes = tasks.values().map(|held| held.memory_bytes).fold(0, u64::saturating_add);
        Free {
            cpus: Cpus::from_millis(of.cpus.millis().saturating_sub(cpu_millis)),
            memory_bytes: of.memory_bytes.saturating_sub(memory_bytes),
        }
    }

    pub(super) fn insert(&self, task_id: TaskId, epoch: Epoch, phase: Option<Phase>, resources: &Resources) {
        let memory_bytes = resources.memory_bytes.unwrap_or(0);
        let entry = Entry { epoch, phase, stopping: false, cpus: resources.cpus, memory_bytes };
        self.tasks.lock().insert(task_id, entry);
    }

    pub(super) fn moved(&self, task_id: TaskId, phase: Option<Phase>) {
        if let Some(held) = self.tasks.lock().get_mut(&task_id) {
            held.phase = phase;
        }
    }

    pub(super) fn stopping(&self, task_id: TaskId) {
        if let Some(held) = self.tasks.lock().get_mut(&task_id) {
            held.stopping = true;
        }
    }

    pub(super) fn remove(&self, task_id: TaskId) {
        self.tasks.lock().remove(&task_id);
    }
}

impl Entry {
    fn held(&self, task_id: TaskId) -> Held {
        Held { task_id, epoch: self.epoch, phase: self.phase }
    }
}
