//! The control groups of one shim: the same name in every hierarchy that has one.
//!
//! The shim sits in them itself while its tasks are short, so that a child is born inside and no task pays for a
//! move. A task that goes on for longer gets them for itself: the shim steps out, and from then on limits, kills for
//! want of memory and `cgroup.kill` touch only the task.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::files;
use super::members::{is_member, members, remove_tree};
use crate::process::remark::remark;
use crate::process::tree::signal_if;
use crate::process::{CpuThrottling, Limits};

/// Where shims go that leave their task alone in its group.
pub(super) const OUTSIDE: &str = "outside";
/// The kernel gives CPU time out once per so long.
const CPU_PERIOD_US: u64 = 100_000;
/// More than a shim needs. A group that holds more of earlier tasks (their page cache) is emptied before its peak is
/// to be that of one task.
const LEFT_OVER_BYTES: u64 = 8 << 20;

/// Which dialect a folder speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::process) enum Version {
    V1,
    V2,
}

/// Where groups are made for one purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::process) struct Place {
    /// The folder beneath which each shim makes its own.
    pub(in crate::process) base: PathBuf,
    pub(in crate::process) version: Version,
}

/// All that a worker found it can use; a new shim is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::process) struct Plan {
    #[serde(default)]
    pub(in crate::process) memory: Option<Place>,
    #[serde(default)]
    pub(in crate::process) cpu: Option<Place>,
    #[serde(default)]
    pub(in crate::process) pids: Option<Place>,
    /// Version 2, whether or not it limits anything: for `cgroup.kill`, and lists of members that are never stale.
    #[serde(default)]
    pub(in crate::process) unified: Option<Place>,
}

impl Plan {
    /// Every base folder once.
    pub(in crate::process) fn bases(&self) -> Vec<&Path> {
        let mut bases: Vec<&Path> = Vec::new();
        // Version 2 first: its list of members is the better one.
        for place in [&self.unified, &self.memory, &self.cpu, &self.pids].into_iter().flatten() {
            if !bases.contains(&place.base.as_path()) {
                bases.push(&place.base);
            }
        }
        bases
    }
}

/// What a group says of the task that was just in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::process) struct Readings {
    pub(in crate::process) memory_limit_bytes: Option<u64>,
    pub(in crate::process) memory_peak_bytes: Option<u64>,
    pub(in crate::process) oom_kills: Option<u64>,
    pub(in crate::process) cpu_throttling: Option<CpuThrottling>,
}

/// One shim's groups.
pub(in crate::process) struct Group {
    plan: Plan,
    name: String,
    /// Ours, one in each hierarchy.
    folders: Vec<PathBuf>,
    me: u32,
    inside: bool,
    in_force: Limits,
    oom: Option<OomCount>,
    /// Kept open for `memory.peak`, which a write resets for this descriptor alone.
    peak: Option<File>,
    cpu_before: Option<(u64, u64)>,
    pids_now: Option<File>,
    memory_now: Option<File>,
    /// Whether a task was in it already.
    used: bool,
}

/// Kills for want of memory, counted from the group's beginning.
struct OomCount {
    file: File,
    seen: u64,
    /// Becomes readable at such a kill: an event descriptor in version 1.
    event: Option<OwnedFd>,
    version: Version,
}

impl Group {
    /// Makes them and moves this process in. `None`: no hierarchy took it. One that does not is left out.
    pub(in crate::process) fn make(mut plan: Plan, name: String) -> Option<Group> {
        let mut folders = Vec::new();
        let mut refused = Vec::new();
        for base in plan.bases() {
            let folder = base.join(&name);
            let made = std::fs::create_dir_all(&folder);
            match made.and_then(|()| files::write(&folder.join("cgroup.procs"), 0)) {
                Ok(()) => folders.push(folder),
                Err(_) => {
                    let _ = std::fs::remove_dir(&folder);
                    refused.push(base.to_owned());
                }
            }
        }
        for place in [&mut plan.memory, &mut plan.cpu, &mut plan.pids, &mut plan.unified] {
            place.take_if(|place| refused.contains(&place.base));
        }
        if folders.is_empty() {
            return None;
        }
        let memory = plan.memory.as_ref().map(|place| (place.base.join(&name), place.version));
        let memory_now = memory.as_ref().and_then(|(folder, version)| {
            File::open(folder.join(match version {
                Version::V1 => "memory.usage_in_bytes",
                Version::V2 => "memory.current",
            }))
            .ok()
        });
        let oom = memory.and_then(|(folder, version)| OomCount::open(&folder, version));
        let pids_now =
            plan.pids.as_ref().and_then(|place| File::open(place.base.join(&name).join("pids.current")).ok());
        Some(Group {
            plan,
            name,
            folders,
            me: std::process::id(),
            inside: true,
            in_force: Limits::default(),
            oom,
            peak: None,
            cpu_before: None,
            pids_now,
            memory_now,
            used: false,
        })
    }

    fn folder(&self, place: &Option<Place>) -> Option<(PathBuf, Version)> {
        place.as_ref().map(|place| (place.base.join(&self.name), place.version))
    }

    /// Puts limits in force before a task starts, and begins to count. Writes only what differs from the task before.
    pub(in crate::process) fn hold(&mut self, limits: &Limits) {
        let now = self.in_force;
        if limits.memory_bytes != now.memory_bytes
            && let Some((folder, version)) = self.folder(&self.plan.memory)
        {
            self.in_force.memory_bytes =
                in_force("memory", limits.memory_bytes, |limit| limit_memory(&folder, version, limit));
        }
        if limits.cpu_millis != now.cpu_millis
            && let Some((folder, version)) = self.folder(&self.plan.cpu)
        {
            self.in_force.cpu_millis =
                in_force("CPU", limits.cpu_millis, |limit| limit_cpu(&folder, version, limit));
        }
        if limits.pids != now.pids
            && let Some((folder, _)) = self.folder(&self.plan.pids)
        {
            self.in_force.pids = in_force("process", limits.pids, |limit| limit_pids(&folder, limit));
        }
        if self.in_force.memory_bytes.is_some() {
            self.begin_peak();
        }
        self.cpu_before = if self.inside { None } else { self.cpu_periods() };
        self.used = true;
    }

    fn begin_peak(&mut self) {
        self.peak = None;
        let Some((folder, version)) = self.folder(&self.plan.memory) else { return };
        match version {
            Version::V1 => {
                let path = folder.join("memory.max_usage_in_bytes");
                if files::write(&path, 0).is_ok() {
                    self.peak = File::open(path).ok();
                }
            }
            Version::V2 => {
                let file = File::options().read(true).write(true).open(folder.join("memory.peak"));
                // Before Linux 6.12 it cannot be reset: then only the first task's is its own.
                let file = file.or_else(|_| File::open(folder.join("memory.peak"))).ok();
                let reset =
                    file.as_ref().is_some_and(|mut file| io::Write::write_all(&mut file, b"reset\n").is_ok());
                self.peak = file.filter(|_| reset || !self.used);
            }
        }
    }

    /// Leaves the task alone in its groups. `Err`: it stays as it was, which only makes the limits less exact.
    pub(in crate::process) fn step_out(&mut self) -> io::Result<()> {
        self.move_to(|base| base.join(OUTSIDE))?;
        self.inside = false;
        self.cpu_before = self.cpu_periods();
        Ok(())
    }

    /// Whether this host lets it.
    pub(in crate::process) fn limits_memory(&self) -> bool {
        self.plan.memory.is_some()
    }

    /// Whether memory of its last task still counts for it that cannot be dropped, such as files in a `tmpfs`: that
    /// would count for the next task too.
    pub(in crate::process) fn is_charged(&self) -> bool {
        let charged = self.charged_bytes();
        charged > LEFT_OVER_BYTES && {
            self.drop_charges(charged);
            self.charged_bytes() > LEFT_OVER_BYTES
        }
    }

    fn charged_bytes(&self) -> u64 {
        let text = self.memory_now.as_ref().and_then(|file| files::reread(file, &mut [0; 4096]));
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Drops what the kernel can fetch again, such as page cache.
    fn drop_charges(&self, bytes: u64) {
        let Some((folder, version)) = self.folder(&self.plan.memory) else { return };
        let _ = match version {
            Version::V1 => files::write(&folder.join("memory.force_empty"), 0),
            Version::V2 => files::write(&folder.join("memory.reclaim"), bytes),
        };
    }

    /// Whether the task has the groups for itself.
    pub(in crate::process) fn is_outside(&self) -> bool {
        !self.inside
    }

    fn move_to(&self, place: impl Fn(&Path) -> PathBuf) -> io::Result<()> {
        for base in self.plan.bases() {
            let folder = place(base);
            std::fs::create_dir_all(&folder)?;
            files::write(&folder.join("cgroup.procs"), 0)?;
        }
        Ok(())
    }

    /// What to watch for kills for want of memory.
    pub(in crate::process) fn oom_event(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let oom = self.oom.as_ref()?;
        match oom.version {
            Version::V1 => Some((oom.event.as_ref()?.as_fd(), PollFlags::IN)),
            Version::V2 => Some((oom.file.as_fd(), PollFlags::PRI)),
        }
    }

    /// Whether the task has run out of memory since the last look. Quiets [`Group::oom_event`].
    pub(in crate::process) fn ran_out_of_memory(&self) -> bool {
        self.oom.as_ref().is_some_and(|oom| match &oom.event {
            // It comes before the kill is counted.
            Some(event) => rustix::io::read(event, &mut [0; 8]).is_ok(),
            None => oom.count().is_some_and(|count| count > oom.seen),
        })
    }

    /// What became of the task that was in it. The counters go on from here.
    pub(in crate::process) fn readings(&mut self) -> Readings {
        let oom_kills = self.oom.as_mut().and_then(|oom| {
            let count = oom.count()?;
            let kills = count.saturating_sub(oom.seen);
            oom.seen = count;
            if kills > 0
                && let Some(event) = &oom.event
            {
                // Not to be taken for one of the next task's.
                let _ = rustix::io::read(event, &mut [0; 8]);
            }
            Some(kills)
        });
        let memory_peak_bytes = self
            .peak
            .take()
            .and_then(|file| files::reread(&file, &mut [0; 4096]))
            .and_then(|text| text.trim().parse().ok());
        let cpu_throttling = self.in_force.cpu_millis.and_then(|cpu_millis| {
            let ((periods, throttled), (before, throttled_before)) = (self.cpu_periods()?, self.cpu_before?);
            let throttled_periods = throttled.saturating_sub(throttled_before);
            Some(CpuThrottling { cpu_millis, periods: periods.saturating_sub(before), throttled_periods })
        });
        let memory_limit_bytes = self.in_force.memory_bytes;
        Readings { memory_limit_bytes, memory_peak_bytes, oom_kills, cpu_throttling }
    }

    /// Periods so far, and throttled ones.
    fn cpu_periods(&self) -> Option<(u64, u64)> {
        let (folder, _) = self.folder(&self.plan.cpu)?;
        let text = files::read(&folder.join("cpu.stat"))?;
        Some((files::counter(&text, "nr_periods")?, files::counter(&text, "nr_throttled")?))
    }

    /// Whether nobody is in it but this process.
    pub(in crate::process) fn is_clear(&self) -> bool {
        let expected = u64::from(self.inside);
        let now = self.pids_now.as_ref().and_then(|file| files::reread(file, &mut [0; 4096]));
        if now.and_then(|text| text.trim().parse::<u64>().ok()) == Some(expected) {
            return true;
        }
        self.others().is_empty()
    }

    /// Who is in it beside this process, in any hierarchy and in any group made beneath it.
    pub(in crate::process) fn others(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.folders.iter().flat_map(|folder| members(folder)).collect();
        pids.retain(|pid| *pid != self.me);
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Sends SIGKILL to everybody in it but this process, and lets nobody fork meanwhile. Ended ones stay until
    /// they are reaped. The limit on processes is put back by the next [`Group::hold`].
    pub(in crate::process) fn kill_others(&mut self) {
        if let Some((folder, _)) = self.folder(&self.plan.pids)
            && files::write(&folder.join("pids.max"), 0).is_ok()
        {
            self.in_force.pids = Some(0);
        }
        if !self.inside
            && let Some((folder, _)) = self.folder(&self.plan.unified)
        {
            // Absent before Linux 5.14.
            let _ = files::write(&folder.join("cgroup.kill"), 1);
        }
        // The other hierarchies hold the same processes, unless one was moved by hand.
        kill(&self.folders, self.me);
    }

    /// Leaves and removes them, and what is above if this was the last shim there.
    pub(in crate::process) fn leave(self) {
        let _ = self.move_to(|base| match base.parent() {
            // In version 2 a group with controllers for others holds no process itself.
            Some(parent) if !base.join("cgroup.subtree_control").exists() || is_without_controllers(base) => {
                parent.to_owned()
            }
            _ => base.join(OUTSIDE),
        });
        for base in self.plan.bases() {
            remove_tree(&base.join(&self.name));
            remove_base(base);
        }
    }
}

fn is_without_controllers(base: &Path) -> bool {
    files::read(&base.join("cgroup.subtree_control")).is_none_or(|text| text.trim().is_empty())
}

/// Removes a base folder with nobody left in it; otherwise it stays.
pub(super) fn remove_base(base: &Path) {
    let _ = std::fs::remove_dir(base.join(OUTSIDE));
    let _ = std::fs::remove_dir(base);
}

/// Kills everybody in these groups but one. One pass: who comes again finds fewer.
pub(super) fn kill(folders: &[PathBuf], but: u32) {
    for folder in folders {
        for pid in members(folder).into_iter().filter(|pid| *pid != but) {
            signal_if(pid, Signal::KILL, |pid| is_member(pid, folder));
        }
    }
}

/// Puts a limit in force; if that cannot be, takes the one before away. Returns what is in force now.
fn in_force<T: Copy>(what: &str, limit: Option<T>, set: impl Fn(Option<T>) -> io::Result<()>) -> Option<T> {
    match set(limit) {
        Ok(()) => limit,
        Err(error) => {
            remark(format_args!("a {what} limit is not in force: {error}"));
            let _ = set(None);
            None
        }
    }
}

fn limit_pids(folder: &Path, limit: Option<u64>) -> io::Result<()> {
    files::write(&folder.join("pids.max"), limit.map_or("max".to_owned(), |most| most.to_string()))
}

fn limit_memory(folder: &Path, version: Version, limit: Option<u64>) -> io::Result<()> {
    let path = |name: &str| folder.join(name);
    match (version, limit) {
        (Version::V1, Some(bytes)) => {
            let swap = path("memory.memsw.limit_in_bytes");
            // The one with swap may never be the smaller: raising goes the other way round.
            let first = files::write(&path("memory.limit_in_bytes"), bytes);
            if swap.exists() {
                files::write(&swap, bytes)?;
            }
            first.or_else(|_| files::write(&path("memory.limit_in_bytes"), bytes))
        }
        (Version::V1, None) => {
            // Absent without swap accounting.
            let _ = files::write(&path("memory.memsw.limit_in_bytes"), -1);
            files::write(&path("memory.limit_in_bytes"), -1)
        }
        (Version::V2, limit) => {
            // Absent without swap.
            let _ = files::write(&path("memory.swap.max"), if limit.is_some() { "0" } else { "max" });
            files::write(&path("memory.max"), limit.map_or("max".to_owned(), |bytes| bytes.to_string()))
        }
    }
}

fn limit_cpu(folder: &Path, version: Version, limit: Option<u32>) -> io::Result<()> {
    // The kernel takes no quota below a millisecond.
    let quota = limit.map(|millis| (u64::from(millis) * CPU_PERIOD_US / 1000).max(1000));
    let millis = u64::from(limit.unwrap_or(1000));
    match version {
        Version::V1 => {
            // The share counts while the machine is full; a task without it is no worse off than a plain process.
            let _ = files::write(&folder.join("cpu.shares"), (millis * 1024 / 1000).clamp(2, 262_144));
            let quota = quota.map_or("-1".to_owned(), |quota| quota.to_string());
            files::write(&folder.join("cpu.cfs_period_us"), CPU_PERIOD_US)?;
            files::write(&folder.join("cpu.cfs_quota_us"), quota)
        }
        Version::V2 => {
            let _ = files::write(&folder.join("cpu.weight"), (millis / 10).clamp(1, 10_000));
            let quota = quota.map_or("max".to_owned(), |quota| quota.to_string());
            files::write(&folder.join("cpu.max"), format!("{quota} {CPU_PERIOD_US}"))
        }
    }
}

impl OomCount {
    fn open(folder: &Path, version: Version) -> Option<Self> {
        let name = match version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let file = File::open(folder.join(name)).ok()?;
        let event = match version {
            Version::V1 => announced(&file, folder).ok(),
            Version::V2 => None,
        };
        let mut count = Self { file, seen: 0, event, version };
        count.seen = count.count()?;
        Some(count)
    }

    fn count(&self) -> Option<u64> {
        files::counter(&files::reread(&self.file, &mut [0; 4096])?, "oom_kill")
    }
}

/// A descriptor that becomes readable when a group of version 1 runs out of memory.
fn announced(oom_control: &File, folder: &Path) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let order = format!("{} {}", event.as_raw_fd(), oom_control.as_raw_fd());
    files::write(&folder.join("cgroup.event_control"), order)?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        folder
    }

    fn text(folder: &tempfile::TempDir, name: &str) -> String {
        files::read(&folder.path().join(name)).unwrap()
    }

    #[test]
    fn version_2_gets_memory_without_swap() {
        let folder = folder_with(&["memory.max", "memory.swap.max"]);
        limit_memory(folder.path(), Version::V2, Some(268_435_456)).unwrap();
        assert_eq!(
            (text(&folder, "memory.max"), text(&folder, "memory.swap.max")),
            ("268435456".into(), "0".into())
        );
        let other = folder_with(&["memory.max"]);
        limit_memory(other.path(), Version::V2, None).unwrap();
        assert_eq!(text(&other, "memory.max"), "max");
        assert!(limit_memory(folder_with(&[]).path(), Version::V2, Some(1)).is_err());
    }

    #[test]
    fn the_same_cpu_limit_in_both_dialects() {
        let old = folder_with(&["cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"]);
        limit_cpu(old.path(), Version::V1, Some(1500)).unwrap();
        assert_eq!(
            (text(&old, "cpu.cfs_quota_us"), text(&old, "cpu.shares")),
            ("150000".into(), "1536".into())
        );
        let new = folder_with(&["cpu.weight", "cpu.max"]);
        limit_cpu(new.path(), Version::V2, Some(1500)).unwrap();
        assert_eq!((text(&new, "cpu.max"), text(&new, "cpu.weight")), ("150000 100000".into(), "150".into()));
        let none = folder_with(&["cpu.weight", "cpu.max"]);
        limit_cpu(none.path(), Version::V2, None).unwrap();
        assert_eq!(text(&none, "cpu.max"), "max 100000");
        // The kernel refuses less than a millisecond.
        let least = folder_with(&["cpu.weight", "cpu.max"]);
        limit_cpu(least.path(), Version::V2, Some(1)).unwrap();
        assert_eq!(text(&least, "cpu.max"), "1000 100000");
    }
}
