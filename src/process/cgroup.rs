//! Control groups: what holds a task's whole tree to its limits, and finds it whatever it did.
//!
//! Linux has two versions, and many hosts both at once. A worker finds out at its start which hierarchy gives it
//! memory, CPU, process limits and `cgroup.kill`, makes one base folder in each, and tells every shim, which makes its
//! own group beneath ([`group::Group`]). Where nothing can be made, tasks run as before, under no limits, and the
//! worker says so ([`Groups::enforced`]).
//!
//! A base folder is named after the worker's folder, and a shim's after (pid, start time): nobody else's is ever
//! touched, nor one of a pid used again.

mod detect;
mod files;
mod group;
mod members;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::identity::{Identity, runs_since};
use crate::contract::worker::{EnforcedLimits, TreeKill};
use detect::{Hierarchies, hierarchies};
pub(super) use group::{Group, Plan, Readings};
use group::{Place, Version, kill, remove_base};
use members::{members, remove_tree};

/// Beneath a worker's folder: the base folders it ever made, one a line, for the next start to sweep.
pub(super) const RECORD: &str = "groups";
/// The leaf for the worker itself, where a group with limited children may hold no process.
const WORKER: &str = "worker";
/// Between looks at groups whose processes were killed.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A worker's control groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    plan: Plan,
    enforced: EnforcedLimits,
    /// Those of this start and of earlier ones.
    bases: Vec<PathBuf>,
}

impl Groups {
    /// Finds out what this process may use, and makes the base folders. Never fails: what cannot be had is not had.
    pub(super) fn open(worker_folder: &Path) -> Self {
        let cgroup = files::read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        let mountinfo = files::read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
        let found = hierarchies(&cgroup, &mountinfo);
        let name = base_name(worker_folder);
        let (plan, enforced) = probe(&found, &name, std::process::id());
        let bases = remember(&worker_folder.join(RECORD), &plan);
        Self { plan, enforced, bases }
    }

    /// What new shims are told; `None` = there is nothing for them to make.
    pub(super) fn plan(&self) -> Option<&Plan> {
        (!self.plan.bases().is_empty()).then_some(&self.plan)
    }

    /// Which limits are real here.
    pub(super) fn enforced(&self) -> EnforcedLimits {
        self.enforced
    }

    /// Kills everybody in the groups of a shim that is gone, and removes them. Returns how many there were; `Err`: who
    /// is left after that long. Blocks.
    pub(super) fn sweep(&self, shim: &Identity, patience: Duration) -> Result<usize, Vec<u32>> {
        let name = group_name(shim.pid, shim.start_ticks);
        // A shim that lives is somebody else's: whoever wrote it down had no right to.
        if is_of_live_shim(&name) { Ok(0) } else { self.sweep_named(&name, patience) }
    }

    fn sweep_named(&self, name: &str, patience: Duration) -> Result<usize, Vec<u32>> {
        let folders: Vec<PathBuf> = self.bases.iter().map(|base| base.join(name)).collect();
        let deadline = Instant::now() + patience;
        let mut killed: HashSet<u32> = HashSet::new();
        loop {
            let left: HashSet<u32> = folders.iter().flat_map(|folder| members(folder)).collect();
            if left.is_empty() {
                folders.iter().for_each(|folder| remove_tree(folder));
                return Ok(killed.len());
            }
            killed.extend(&left);
            for folder in folders.iter().filter(|folder| folder.exists()) {
                // Nobody forks from now on, and where the kernel can kill them all at once it does.
                let _ = files::write(&folder.join("pids.max"), 0);
                let _ = files::write(&folder.join("cgroup.kill"), 1);
            }
            kill(&folders, std::process::id());
            if Instant::now() >= deadline {
                let mut left: Vec<u32> = left.into_iter().collect();
                left.sort_unstable();
                return Err(left);
            }
            // Nothing tells that a group of version 1 has become empty.
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Removes what the groups of an ended shim left behind, unless somebody is in them.
    pub(super) fn remove_of(&self, pid: u32) {
        let prefix = group_name(pid, 0);
        let prefix = prefix.trim_end_matches('0');
        for (folder, name) in self.shim_groups() {
            if name.starts_with(prefix) && members(&folder).is_empty() {
                remove_tree(&folder);
            }
        }
    }

    /// Kills and removes the groups of shims that are gone; how many processes there were. What does not end stays
    /// and is named in the log of the next start. Blocks.
    pub(super) fn sweep_orphans(&self, patience: Duration) -> Result<usize, Vec<u32>> {
        let orphans: HashSet<String> =
            self.shim_groups().map(|(_, name)| name).filter(|name| !is_of_live_shim(name)).collect();
        let deadline = Instant::now() + patience;
        let (mut killed, mut left) = (0, Vec::new());
        for name in orphans {
            match self.sweep_named(&name, deadline.saturating_duration_since(Instant::now())) {
                Ok(count) => killed += count,
                Err(pids) => left.extend(pids),
            }
        }
        let present = self.plan.bases();
        let earlier = self.bases.iter().filter(|base| !present.contains(&base.as_path()));
        earlier.for_each(|base| remove_base(base));
        if left.is_empty() { Ok(killed) } else { Err(left) }
    }

    fn shim_groups(&self) -> impl Iterator<Item = (PathBuf, String)> + '_ {
        let entries = self.bases.iter().filter_map(|base| std::fs::read_dir(base).ok()).flatten().flatten();
        entries.filter_map(|entry| {
            let name = entry.file_name().to_str()?.to_owned();
            named_shim(&name)?;
            Some((entry.path(), name))
        })
    }

    /// Removes the base folders if nothing is in them any more.
    pub(super) fn close(&self) {
        for base in self.plan.bases() {
            let _ = std::fs::remove_dir(base.join(WORKER));
            remove_base(base);
        }
    }
}

/// The name of a shim's groups.
pub(super) fn group_name(pid: u32, start_ticks: u64) -> String {
    format!("shim-{pid}-{start_ticks}")
}

fn named_shim(name: &str) -> Option<(u32, u64)> {
    let (pid, ticks) = name.strip_prefix("shim-")?.split_once('-')?;
    Some((pid.parse().ok()?, ticks.parse().ok()?))
}

fn is_of_live_shim(name: &str) -> bool {
    named_shim(name).is_some_and(|(pid, ticks)| runs_since(pid, ticks))
}

/// Named after the worker's folder, so that two workers never share one.
fn base_name(worker_folder: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let folder = worker_folder.canonicalize().unwrap_or_else(|_| worker_folder.to_owned());
    let digest = Sha256::digest(folder.as_os_str().as_bytes());
    format!("gpulayer-{}", &hex::encode(digest)[..12])
}

/// Adds this start's base folders to the record, and drops those that are gone.
fn remember(record: &Path, plan: &Plan) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let text = std::fs::read(record).unwrap_or_default();
    let earlier = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let earlier = earlier.map(|line| PathBuf::from(std::ffi::OsStr::from_bytes(line)));
    let mut bases: Vec<PathBuf> = plan.bases().into_iter().map(Path::to_owned).collect();
    for base in earlier.filter(|base| is_base(base) && base.is_dir()) {
        if !bases.contains(&base) {
            bases.push(base);
        }
    }
    let lines: Vec<&[u8]> = bases.iter().map(|base| base.as_os_str().as_bytes()).collect();
    if lines.join(&b'\n') != text {
        // Without it, an orphan of this start is found only by a start in the same place.
        let _ = std::fs::write(record, lines.join(&b'\n'));
    }
    bases
}

/// A line of the record is believed only if it looks like what this module makes.
fn is_base(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix("gpulayer-"));
    path.is_absolute()
        && number
            .is_some_and(|number| number.len() == 12 && number.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Tries what is there.
fn probe(found: &Hierarchies, name: &str, me: u32) -> (Plan, EnforcedLimits) {
    let v1 = |controller: &str, wanted: &str| {
        let base = found.v1.get(controller)?.join(name);
        std::fs::create_dir_all(&base).ok()?;
        base.join(wanted).exists().then_some(Place { base, version: Version::V1 })
    };
    let mut plan = Plan {
        memory: v1("memory", "memory.limit_in_bytes"),
        cpu: v1("cpu", "cpu.cfs_quota_us"),
        pids: v1("pids", "pids.max"),
        unified: None,
    };
    if let Some(own) = &found.v2 {
        probe_v2(own, name, me, &mut plan);
    }
    if let Some(place) = &plan.cpu {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        // Together the tasks weigh as much as one program per core would.
        let _ = match place.version {
            Version::V1 => files::write(&place.base.join("cpu.shares"), (1024 * cores).min(262_144)),
            Version::V2 => files::write(&place.base.join("cpu.weight"), (100 * cores).min(10_000)),
        };
    }
    let tree_kill = match &plan.unified {
        Some(place) if place.base.join("cgroup.kill").exists() => TreeKill::Cgroup,
        _ if !plan.bases().is_empty() => TreeKill::Group,
        _ => TreeKill::Walk,
    };
    let enforced = EnforcedLimits {
        memory: plan.memory.is_some(),
        cpu: plan.cpu.is_some(),
        pids: plan.pids.is_some(),
        tree_kill,
    };
    (plan, enforced)
}

/// Version 2: alone, or beside version 1, whose controllers it then lacks.
fn probe_v2(own: &Path, name: &str, me: u32, plan: &mut Plan) {
    let home = v2_home(own, name);
    let base = home.join(name);
    if std::fs::create_dir_all(&base).is_err() {
        return;
    }
    let place = Place { base: base.clone(), version: Version::V2 };
    let offered = files::read(&home.join("cgroup.controllers")).unwrap_or_default();
    let wants = |controller: &str, have: &Option<Place>| {
        have.is_none() && offered.split_whitespace().any(|one| one == controller)
    };
    let wanted: Vec<&str> = [("memory", &plan.memory), ("cpu", &plan.cpu), ("pids", &plan.pids)]
        .into_iter()
        .filter(|(controller, have)| wants(controller, have))
        .map(|(controller, _)| controller)
        .collect();
    if !wanted.is_empty() && !is_of_systemd(&home, own) && may_hand_down(&home, &base, me) {
        for folder in [&home, &base] {
            for controller in &wanted {
                // One that is refused is not listed afterwards.
                let _ = files::write(&folder.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
    }
    let given = files::read(&base.join("cgroup.subtree_control")).unwrap_or_default();
    if !given.trim().is_empty() {
        // Holds the base while no shim is there: made again, it would hand nothing down.
        let _ = std::fs::create_dir_all(base.join(WORKER));
    }
    for controller in given.split_whitespace() {
        let slot = match controller {
            "memory" => &mut plan.memory,
            "cpu" => &mut plan.cpu,
            "pids" => &mut plan.pids,
            _ => continue,
        };
        slot.get_or_insert_with(|| place.clone());
    }
    plan.unified = Some(place);
}

/// The group that is ours to divide: our own, or the one above when we are in a leaf made for us (by an earlier probe,
/// or by systemd's `DelegateSubgroup=worker`).
fn v2_home(own: &Path, name: &str) -> PathBuf {
    let above = |path: &Path| path.parent().unwrap_or(path).to_owned();
    let home = if own.file_name().is_some_and(|last| last == WORKER) { above(own) } else { own.to_owned() };
    if home.file_name().is_some_and(|last| last == name) { above(&home) } else { home }
}

/// A group that systemd made and that we are in ourselves. Divided, it could not be started again while a shim lives:
/// systemd puts the new process into the group itself, unless `DelegateSubgroup` says otherwise.
fn is_of_systemd(home: &Path, own: &Path) -> bool {
    let kind = home.extension().and_then(|kind| kind.to_str());
    home == own && matches!(kind, Some("service" | "scope" | "slice"))
}

/// A group may hand controllers down only while no process is in itself. If we are the only one there, we move into a
/// leaf; if anybody else is, it is not ours to divide. The root is exempt.
fn may_hand_down(home: &Path, base: &Path, me: u32) -> bool {
    let is_root = !home.join("cgroup.type").exists();
    let inside = files::read(&home.join("cgroup.procs")).unwrap_or_default();
    let mut inside = inside.lines().peekable();
    if is_root || inside.peek().is_none() {
        return true;
    }
    let me = me.to_string();
    if inside.any(|pid| pid != me) {
        return false;
    }
    let leaf = base.join(WORKER);
    let moved = std::fs::create_dir_all(&leaf).and_then(|()| files::write(&leaf.join("cgroup.procs"), &me));
    moved.is_ok()
}

#[cfg(test)]
mod tests;
