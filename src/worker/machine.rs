//! What a worker knows of its machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::contract::quantity::Cpus;
use crate::contract::worker::{Capabilities, EnforcedLimits};
use crate::process::meminfo_bytes;

/// Identifies this boot; a process of an earlier one cannot be alive.
pub(super) fn boot_id() -> io::Result<String> {
    if cfg!(target_os = "linux") {
        return Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned());
    }
    // Without a name for the boot every task is looked for, which is slower but never wrong.
    Ok("unknown".to_owned())
}

/// Identifies the machine: the system's own id, or one made once and kept in the worker's folder.
pub(super) fn machine_id(folder: &Path) -> io::Result<String> {
    if let Some(id) = first_line(Path::new("/etc/machine-id")) {
        return Ok(id);
    }
    let own = folder.join("machine-id");
    if let Some(id) = first_line(&own) {
        return Ok(id);
    }
    let id = hex::encode(rand::random::<[u8; 16]>());
    fs::write(&own, &id)?;
    Ok(id)
}

/// What it offers. `cpus` and `memory_bytes` override what was found.
pub fn capabilities(
    cpus: Option<Cpus>,
    memory_bytes: Option<u64>,
    labels: BTreeMap<String, String>,
    limits: EnforcedLimits,
) -> Capabilities {
    Capabilities {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        cpus: cpus.unwrap_or_else(found_cpus),
        memory_bytes: memory_bytes.unwrap_or_else(found_memory_bytes),
        labels,
        gpus: Vec::new(),
        secrets: Vec::new(),
        spec_secret_refs: false,
        limits,
        pythons: Vec::new(),
        interpreters: Vec::new(),
        advertise_address: None,
    }
}

/// Those this process may use: affinity and cgroup quota count.
fn found_cpus() -> Cpus {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    Cpus::from_millis(u32::try_from(cores * 1000).unwrap_or(u32::MAX))
}

/// The machine's, or the limit of this process' cgroup when that is less.
fn found_memory_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_bytes(&text, "MemTotal:"));
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = limits.iter().find_map(|path| first_line(Path::new(path))?.parse::<u64>().ok());
    machine.unwrap_or(u64::MAX).min(limit.unwrap_or(u64::MAX))
}

/// Leaves the other half of the kernel's process numbers to everybody else.
pub(super) fn task_pids_max() -> u64 {
    const MOST: u64 = 32_768;
    let kernel = first_line(Path::new("/proc/sys/kernel/pid_max")).and_then(|text| text.parse::<u64>().ok());
    kernel.map_or(MOST, |kernel| (kernel / 2).clamp(64, MOST))
}

fn first_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_one_id() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(machine_id(folder.path()).unwrap(), machine_id(folder.path()).unwrap());
    }

    #[test]
    fn overrides_win_over_what_was_found() {
        let found = capabilities(None, None, BTreeMap::new(), EnforcedLimits::default());
        assert!(found.cpus >= Cpus::ONE && found.memory_bytes > 0 && !found.hostname.is_empty());
        let told =
            capabilities(Some(Cpus::from_millis(250)), Some(1), BTreeMap::new(), EnforcedLimits::default());
        assert_eq!((told.cpus, told.memory_bytes), (Cpus::from_millis(250), 1));
    }
}
