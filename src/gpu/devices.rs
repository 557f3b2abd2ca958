//! The GPUs of a worker: how each stands, who has it, and its lock. A task gets its GPUs after a fresh look and with
//! their locks, and they go to the next one only when a look has seen that nothing of the last is left on them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::GpuOptions;
use super::error::GrantError;
use super::inventory::Inventory;
use super::locks::{Lock, LockError, Locks};
use super::nvidia::Glance;
use super::remembered::Remembered;
use super::watch::{Ask, Look, Watch};
use crate::contract::gpu::{Gpu, GpuStanding, GpuVendor};
use crate::contract::ids::TaskId;
use crate::domain::gpus::{self, Keeper, User, Whose};
use crate::domain::offered_gpus::OfferedGpus;

/// A driver gives memory back within a second or two of a program's end.
const CLEAN_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at whether it did.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Tells whose a process is.
pub type WhoseProcess = Box<dyn Fn(u32) -> Whose + Send + Sync>;

/// See the module; clones share.
#[derive(Clone)]
pub struct Devices {
    shared: Arc<Shared>,
    asks: mpsc::Sender<Ask>,
    begun: watch::Receiver<bool>,
}

/// What the watching thread and the worker have in common.
pub(super) struct Shared {
    state: Mutex<State>,
    locks: Locks,
    whose: WhoseProcess,
    begun: watch::Sender<bool>,
    choice: OfferedGpus,
}

#[derive(Default)]
struct State {
    inventory: Inventory,
    /// Those that are offered, by uuid.
    offered: BTreeSet<String>,
    devices: BTreeMap<String, Device>,
}

/// One device that can be granted.
#[derive(Debug, Default)]
struct Device {
    keeper: Keeper,
    /// Who used it when it was last seen.
    users: Vec<User>,
    /// As it was last seen; `None` = it was not, or cannot be.
    seen: Option<Glance>,
    standing: GpuStanding,
    lock: Option<Lock>,
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices").finish_non_exhaustive()
    }
}

impl Devices {
    /// Begins to look; what there is comes with [`Devices::inventory`]. `folder`: where the last inventory is kept.
    /// `whose` may block a little and is asked of processes on GPUs only.
    pub fn start(
        options: GpuOptions,
        folder: Option<&Path>,
        locks: Locks,
        whose: WhoseProcess,
        first_within: Duration,
    ) -> io::Result<Self> {
        let (asks, asked) = mpsc::channel();
        let (begun, beginning) = watch::channel(false);
        let choice = options.offered.clone();
        let shared = Arc::new(Shared { state: Mutex::default(), locks, whose, begun, choice });
        let watch = Watch {
            options,
            remembered: Remembered::in_folder(folder),
            shared: Arc::downgrade(&shared),
            asks: asked,
            first_within,
        };
        watch.start()?;
        Ok(Self { shared, asks, begun: beginning })
    }

    /// None, and none will come.
    pub fn none() -> Self {
        let (asks, _) = mpsc::channel();
        let (begun, beginning) = watch::channel(true);
        let whose: WhoseProcess = Box::new(|_| Whose::Outsider);
        let (locks, choice) = (Locks::in_folders(&[]), OfferedGpus::All);
        let shared = Shared { state: Mutex::default(), locks, whose, begun, choice };
        Self { shared: Arc::new(shared), asks, begun: beginning }
    }

    /// All GPUs that are offered, as they stand, once the first look is over.
    pub async fn inventory(&self) -> Vec<Gpu> {
        let mut begun = self.begun.clone();
        // The sender lives with `self`.
        let _ = begun.wait_for(|begun| *begun).await;
        self.gpus()
    }

    /// What stood in the way of knowing more, in sentences, once the first look is over.
    pub fn faults(&self) -> Vec<String> {
        self.shared.state.lock().inventory.faults.clone()
    }

    fn gpus(&self) -> Vec<Gpu> {
        let state = self.shared.state.lock();
        let standing = |gpu: &Gpu| state.devices.get(&gpu.uuid).map(|device| device.standing.clone());
        let listed = state.inventory.gpus.iter().filter(|gpu| state.offered.contains(&gpu.uuid));
        listed.map(|gpu| Gpu { standing: standing(gpu).unwrap_or_default(), ..gpu.clone() }).collect()
    }

    /// How each of them stands, by uuid.
    pub fn standings(&self) -> BTreeMap<String, GpuStanding> {
        let state = self.shared.state.lock();
        let offered = state.devices.iter().filter(|(uuid, _)| state.offered.contains(*uuid));
        offered.map(|(uuid, device)| (uuid.clone(), device.standing.clone())).collect()
    }

    /// What a task's program is told of these GPUs, which are its own.
    pub fn variables(&self, granted: &[String]) -> Vec<(&'static str, String)> {
        let state = self.shared.state.lock();
        let all = &state.inventory.gpus;
        let own: Vec<Gpu> =
            granted.iter().filter_map(|uuid| all.iter().find(|gpu| gpu.uuid == *uuid)).cloned().collect();
        let broken = |gpu: &Gpu| {
            gpu.vendor == GpuVendor::Nvidia
                && state
                    .devices
                    .get(&gpu.uuid)
                    .is_some_and(|device| matches!(device.standing, GpuStanding::Unhealthy { .. }))
        };
        let unsure = state.inventory.unsure || all.iter().any(broken);
        gpus::variables(&own, all, unsure)
    }

    /// The files of these GPUs' locks, for whoever is to share them.
    pub fn lock_paths(&self, granted: &[String]) -> Vec<PathBuf> {
        granted.iter().flat_map(|uuid| self.shared.locks.paths(uuid)).collect()
    }

    /// Gives a task its GPUs: after a fresh look, all or none. Otherwise the reason for which the task is declined.
    pub async fn grant(&self, task_id: TaskId, wanted: &[String]) -> Result<(), GrantError> {
        if wanted.is_empty() {
            return Ok(());
        }
        self.look().await.map_err(|why| GrantError::Unseen { why })?;
        let mut state = self.shared.state.lock();
        for uuid in wanted {
            state.may_grant(uuid)?;
        }
        let mut locks = Vec::new();
        for uuid in wanted {
            locks.push(self.shared.locks.take(uuid).map_err(|error| self.shared.not_locked(uuid, error))?);
        }
        for (uuid, lock) in wanted.iter().zip(locks) {
            state.give(uuid, task_id, Some(lock));
        }
        Ok(())
    }

    /// Takes note of a task of an earlier start, which has these GPUs. `launched`: its shim may hold their locks;
    /// otherwise they are taken anew. Whether it has them all.
    pub fn adopt(&self, task_id: TaskId, granted: &[String], launched: bool) -> bool {
        let locks = &self.shared.locks;
        let mut has_all = true;
        for uuid in granted {
            let lock = if launched { locks.join(uuid) } else { locks.take(uuid) };
            if let Err(error) = &lock {
                has_all = false;
                tracing::warn!(%task_id, uuid, error = error as &dyn std::error::Error, "a GPU's lock is gone");
            }
            self.shared.state.lock().give(uuid, task_id, lock.ok());
        }
        has_all
    }

    /// Whether the task has all of these, with their locks.
    pub fn has(&self, task_id: TaskId, granted: &[String]) -> bool {
        let state = self.shared.state.lock();
        granted.iter().all(|uuid| {
            let device = state.devices.get(uuid);
            device.is_some_and(|device| device.keeper == Keeper::Task(task_id) && device.lock.is_some())
        })
    }

    /// Takes a task's GPUs back after its tree is gone, and waits until nothing of it is left on them, for some seconds
    /// at most: what is still there then stays `wedged`, and is returned with the processes that hold it. Again: nothing.
    pub async fn take_back(&self, task_id: TaskId) -> Vec<(String, GpuStanding)> {
        if !self.shared.state.lock().leave(task_id) {
            return Vec::new();
        }
        let deadline = Instant::now() + CLEAN_WITHIN;
        loop {
            let blind = self.look().await.is_err();
            let left = self.shared.state.lock().left_by(task_id);
            // A driver that is blind is not waited for; its GPUs do not work until it sees again.
            if left.is_empty() || blind || Instant::now() >= deadline {
                return left;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Looks now.
    async fn look(&self) -> Result<(), String> {
        let (ask, answer) = oneshot::channel();
        let gone = || Err("nobody looks at them any more".to_owned());
        if self.asks.send(ask).is_err() {
            return gone();
        }
        answer.await.unwrap_or_else(|_| gone())
    }
}

impl Shared {
    /// The first look is over.
    pub(super) fn begin(&self, found: Inventory, look: Option<Look>) {
        {
            let mut state = self.state.lock();
            for gpu in &found.gpus {
                state.devices.entry(gpu.uuid.clone()).or_default().standing = gpu.standing.clone();
            }
            for word in self.choice.absent_from(&found.gpus) {
                tracing::warn!("GPU {word} is to be offered (`worker_gpus`, --gpus) and is not there");
            }
            state.offered = self.choice.of(&found.gpus);
            state.inventory = found;
        }
        if let Some(look) = look {
            self.saw(look);
        }
        self.begun.send_replace(true);
    }

    /// Takes in what was seen.
    pub(super) fn saw(&self, look: Look) {
        // Asked before the state is locked: these may block.
        let users: BTreeMap<&String, Vec<User>> = match &look {
            Look::Blind(_) => BTreeMap::new(),
            Look::Seen(seen) => seen.iter().map(|(uuid, glance)| (uuid, self.users(glance))).collect(),
        };
        let mut state = self.state.lock();
        let State { inventory, devices, .. } = &mut *state;
        for gpu in inventory.gpus.iter().filter(|gpu| gpu.vendor == GpuVendor::Nvidia) {
            let Some(device) = devices.get_mut(&gpu.uuid) else { continue };
            let before = device.standing.clone();
            match &look {
                Look::Blind(why) => device.standing = GpuStanding::Unhealthy { why: why.clone() },
                Look::Seen(seen) => {
                    let locked = || self.locks.holder(&gpu.uuid);
                    device.see(seen.get(&gpu.uuid), users.get(&gpu.uuid).map(Vec::as_slice), locked);
                }
            }
            if device.standing != before {
                tracing::info!(uuid = gpu.uuid, "GPU {} {}", gpu.index, super::error::said(&device.standing));
            }
        }
    }

    fn users(&self, glance: &Glance) -> Vec<User> {
        let users = glance.pids.iter().map(|pid| User { pid: *pid, whose: (self.whose)(*pid) });
        users.filter(|user| user.whose != Whose::Ourselves).collect()
    }

    fn not_locked(&self, uuid: &str, error: LockError) -> GrantError {
        let uuid = uuid.to_owned();
        match error {
            LockError::Held { .. } => {
                let pid = self.locks.holder(&uuid).filter(|pid| *pid != 0);
                GrantError::Locked { uuid, pid }
            }
            LockError::File { path, source } => GrantError::Lock { uuid, path, source },
            LockError::NoPlace => GrantError::Unseen { why: error.to_string() },
        }
    }
}

impl Device {
    /// A look came by; `None` = the driver does not list it any more.
    fn see(&mut self, seen: Option<&Glance>, users: Option<&[User]>, locked: impl FnOnce() -> Option<u32>) {
        self.seen = seen.cloned();
        let (Some(seen), Some(users)) = (seen, users) else {
            let why = "its driver does not list it any more".to_owned();
            self.standing = GpuStanding::Unhealthy { why };
            return;
        };
        users.clone_into(&mut self.users);
        if let Some(why) = &seen.fault {
            self.standing = GpuStanding::Unhealthy { why: why.clone() };
            return;
        }
        self.keeper = std::mem::take(&mut self.keeper).after(users);
        self.standing = gpus::standing(&self.keeper, users);
        if self.keeper == Keeper::Nobody {
            self.lock = None;
            if self.standing == GpuStanding::Ready
                && let Some(pid) = locked()
            {
                // Given out elsewhere, to a program that has not reached for it yet.
                self.standing = GpuStanding::BusyOutside { pids: vec![pid] };
            }
        }
    }
}

impl State {
    fn may_grant(&self, uuid: &str) -> Result<(), GrantError> {
        let name = || uuid.to_owned();
        let gpu = self.inventory.gpus.iter().find(|gpu| gpu.uuid == uuid);
        let (Some(gpu), Some(device)) = (gpu, self.devices.get(uuid)) else {
            return Err(GrantError::Absent { uuid: name() });
        };
        if !self.offered.contains(uuid) {
            return Err(GrantError::NotOffered { uuid: name() });
        }
        let seen = device.seen.as_ref().filter(|seen| seen.fault.is_none());
        if let Some(now) = seen.map(|seen| &seen.model).filter(|model| **model != gpu.model) {
            return Err(GrantError::Changed { uuid: name(), told: gpu.model.clone(), now: now.clone() });
        }
        match (&device.keeper, &device.standing) {
            (Keeper::Task(task_id), _) => Err(GrantError::Taken { uuid: name(), task_id: *task_id }),
            (Keeper::Nobody, GpuStanding::Ready) => Ok(()),
            (_, standing) => Err(GrantError::NotReady { uuid: name(), standing: standing.clone() }),
        }
    }

    fn give(&mut self, uuid: &str, task_id: TaskId, lock: Option<Lock>) {
        let device = self.devices.entry(uuid.to_owned()).or_default();
        device.keeper = Keeper::Task(task_id);
        device.lock = lock;
    }

    /// Whether it had any.
    fn leave(&mut self, task_id: TaskId) -> bool {
        let mut had_any = false;
        for device in self.devices.values_mut().filter(|device| device.keeper == Keeper::Task(task_id)) {
            had_any = true;
            device.keeper = Keeper::left(task_id, &device.users);
            if device.seen.is_none() && !matches!(device.standing, GpuStanding::Unhealthy { .. }) {
                // Of a vendor whose processes nobody can tell.
                device.keeper = Keeper::Nobody;
                device.lock = None;
            }
        }
        had_any
    }

    fn left_by(&self, task_id: TaskId) -> Vec<(String, GpuStanding)> {
        let of_it = |device: &Device| matches!(&device.keeper, Keeper::Left { task_id: left, .. } if *left == task_id);
        let left = self.devices.iter().filter(|(_, device)| of_it(device));
        left.map(|(uuid, device)| (uuid.clone(), device.standing.clone())).collect()
    }
}
