//! `resources detect`: what this machine has, as its worker would see it. Starts no daemon and changes nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::Context;
use super::args::DetectArgs;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::screen::{print, print_json, table};
use super::shown::{binary, size};
use crate::contract::gpu::{Gpu, GpuStanding, Interpreter};
use crate::contract::spec::MemoryKind;
use crate::contract::worker::{Capabilities, EnforcedLimits, TreeKill};
use crate::domain::gpus::{Whose, groups};
use crate::domain::support::{Support, support};
use crate::frameworks::{self, Look};
use crate::gpu::locks::Locks;
use crate::gpu::{Devices, GpuOptions, Nvml};
use crate::process::{ShimPool, is_of_a_task};
use crate::worker::machine;

const GPUS_WITHIN: Duration = Duration::from_secs(30);

/// All that was found.
#[derive(Debug, Serialize)]
struct Found {
    hostname: String,
    os: String,
    kernel: String,
    arch: String,
    cpu_model: Option<String>,
    cpus: f64,
    memory_bytes: u64,
    numa_nodes: usize,
    disk: Option<Disk>,
    gpus: Vec<Gpu>,
    /// Those that a worker here would offer (`worker_gpus`), by uuid.
    offered: BTreeSet<String>,
    faults: Vec<String>,
    interpreters: Vec<Interpreter>,
    limits: EnforcedLimits,
    support: Vec<&'static Support>,
}

#[derive(Debug, Serialize)]
struct Disk {
    path: String,
    total_bytes: u64,
    free_bytes: u64,
}

/// `gpulayer resources detect`.
pub(super) async fn detect(context: &Context, args: &DetectArgs) -> Result<ExitStatus, CliError> {
    let nvml = Nvml::of_setting(context.settings.nvml.as_deref());
    let (gpus, faults) = found_gpus(GpuOptions { nvml, ..GpuOptions::default() }).await;
    let offered = context.settings.worker_gpus.of(&gpus);
    let mut pythons: Vec<String> = args.pythons.iter().map(|path| path.display().to_string()).collect();
    if pythons.is_empty() {
        pythons.extend(frameworks::on_path());
    }
    let wanted = Look { pythons, gpus: gpus.clone(), ..Look::default() };
    let looked = tokio::task::spawn_blocking(move || frameworks::look(&wanted));
    let offers: Capabilities = machine::capabilities(None, None, Default::default(), limits());
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut vendors: Vec<_> = gpus.iter().map(|gpu| Some(gpu.vendor)).collect();
    vendors.dedup();
    let rows = std::iter::once(None).chain(vendors);
    let found = Found {
        support: rows.filter_map(|vendor| support(&offers.os, &offers.arch, vendor)).collect(),
        hostname: offers.hostname,
        os: offers.os,
        kernel,
        arch: offers.arch,
        cpu_model: cpu_model(),
        cpus: f64::from(offers.cpus.millis()) / 1000.0,
        memory_bytes: offers.memory_bytes,
        numa_nodes: numa_nodes(),
        disk: disk(&context.settings.places.state),
        gpus,
        offered,
        faults,
        interpreters: looked.await.unwrap_or_default(),
        limits: offers.limits,
    };
    if context.json {
        print_json(&found)?;
    } else {
        page(&found)?;
    }
    Ok(ExitStatus::SUCCESS)
}

/// With who uses them: all are outsiders here.
async fn found_gpus(options: GpuOptions) -> (Vec<Gpu>, Vec<String>) {
    let whose = Box::new(|_| Whose::Outsider);
    match Devices::start(options, None, Locks::of_host(), whose, GPUS_WITHIN) {
        Ok(devices) => (devices.inventory().await, devices.faults()),
        Err(error) => (Vec::new(), vec![format!("GPUs cannot be looked for: {error}")]),
    }
}

/// What shims of this user could hold tasks to, tried out in a folder that is removed again.
fn limits() -> EnforcedLimits {
    let folder = std::env::temp_dir().join(format!("gpulayer-detect-{}", std::process::id()));
    let enforced = ShimPool::new(&folder, 0).map(|shims| shims.enforced()).unwrap_or_default();
    drop(std::fs::remove_dir_all(&folder));
    enforced
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim().to_owned())
}

fn numa_nodes() -> usize {
    let listed = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    listed.filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count().max(1)
}

fn disk(state: &Path) -> Option<Disk> {
    let (folder, room) =
        state.ancestors().find_map(|folder| Some((folder, rustix::fs::statvfs(folder).ok()?)))?;
    Some(Disk {
        path: folder.display().to_string(),
        total_bytes: room.f_blocks.saturating_mul(room.f_frsize),
        free_bytes: room.f_bavail.saturating_mul(room.f_frsize),
    })
}

fn page(found: &Found) -> Result<(), CliError> {
    print(&format!("machine   {}, {} {}, {}", found.hostname, found.os, found.kernel, found.arch))?;
    let model = found.cpu_model.as_deref().map(|model| format!(" ({model})")).unwrap_or_default();
    print(&format!("cpus      {}{model}", found.cpus))?;
    let nodes =
        if found.numa_nodes == 1 { String::new() } else { format!(", {} NUMA nodes", found.numa_nodes) };
    print(&format!("memory    {}{nodes}", size(found.memory_bytes)))?;
    if let Some(disk) = &found.disk {
        let (free, total) = (size(disk.free_bytes), size(disk.total_bytes));
        print(&format!("disk      {free} of {total} free on {}", disk.path))?;
    }
    print(&format!("limits    {}", limits_in_words(found.limits)))?;
    print(&format!("gpus      {}", gpus_in_words(&found.gpus)))?;
    for fault in &found.faults {
        print(&format!("          {fault}"))?;
    }
    if found.offered.len() < found.gpus.len() {
        let (offered, all) = (found.offered.len(), found.gpus.len());
        print(&format!("          {offered} of {all} are offered (`worker_gpus`)"))?;
    }
    if !found.gpus.is_empty() {
        print("")?;
        let rows: Vec<Vec<String>> =
            found.gpus.iter().map(|gpu| gpu_row(gpu, found.offered.contains(&gpu.uuid))).collect();
        table(&["GPU", "MODEL", "MEMORY", "COMPUTE", "PCI", "NUMA", "NOW"], &rows)?;
    }
    print("")?;
    let rows: Vec<Vec<String>> = found.interpreters.iter().flat_map(interpreter_rows).collect();
    if rows.is_empty() {
        print("no Python interpreter (name one with --python)")?;
    } else {
        table(&["PYTHON", "VERSION", "FRAMEWORK", "VERSION", "COMPUTES ON"], &rows)?;
    }
    print("")?;
    let rows: Vec<Vec<String>> = found
        .support
        .iter()
        .map(|row| vec![row.what.to_owned(), row.level.word().to_owned(), row.because.to_owned()])
        .collect();
    table(&["SUPPORT", "LEVEL", "BECAUSE"], &rows)
}

fn limits_in_words(limits: EnforcedLimits) -> String {
    let EnforcedLimits { memory, cpu, pids, tree_kill } = limits;
    let real = [("memory", memory), ("CPU", cpu), ("processes", pids)];
    let list = |wanted: bool| {
        let names: Vec<&str> = real.iter().filter(|(_, is)| *is == wanted).map(|(name, _)| *name).collect();
        names.join(", ")
    };
    let kill = match tree_kill {
        TreeKill::Walk => "trees are killed by descent",
        TreeKill::Group => "trees are killed by their control group",
        TreeKill::Cgroup => "trees are killed by the kernel, at once",
    };
    match (list(true), list(false)) {
        (all, none) if none.is_empty() => format!("{all} are real; {kill}"),
        (none, all) if none.is_empty() => format!("none of {all} can be enforced here; {kill}"),
        (some, others) => format!("{some} real; {others} cannot be enforced here; {kill}"),
    }
}

fn gpus_in_words(gpus: &[Gpu]) -> String {
    if gpus.is_empty() {
        return "none".to_owned();
    }
    let driver = gpus.iter().find_map(|gpu| gpu.driver.as_deref());
    let driver = driver.map(|driver| format!(", driver {driver}")).unwrap_or_default();
    let links = match groups(gpus).as_slice() {
        [] => String::new(),
        [all] if all.len() == gpus.len() => ", all of them linked (NVLink or alike)".to_owned(),
        some => {
            let words = |group: &Vec<u32>| group.iter().map(u32::to_string).collect::<Vec<_>>().join("-");
            format!(", linked (NVLink or alike): {}", some.iter().map(words).collect::<Vec<_>>().join(", "))
        }
    };
    format!("{}{driver}{links}", gpus.len())
}

fn gpu_row(gpu: &Gpu, offered: bool) -> Vec<String> {
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let unified = if gpu.memory_kind == MemoryKind::Unified { " unified" } else { "" };
    let mut now = match &gpu.standing {
        // A daemon of this host has its own word for them.
        GpuStanding::BusyOutside { pids } if pids.iter().all(|pid| is_of_a_task(*pid)) => {
            format!("held by a task of this host's worker ({})", super::gpus::list(pids))
        }
        standing => super::gpus::standing(standing),
    };
    if !offered {
        now.push_str(", not offered");
    }
    vec![
        gpu.index.to_string(),
        gpu.model.clone(),
        format!("{}{unified}", binary(gpu.memory_bytes)),
        or_nothing(gpu.compute_capability.map(|capability| capability.to_string())),
        or_nothing(gpu.pci_address.clone()),
        or_nothing(gpu.numa_node.map(|node| node.to_string())),
        now,
    ]
}

fn interpreter_rows(interpreter: &Interpreter) -> Vec<Vec<String>> {
    let Interpreter { path, version, frameworks, fault } = interpreter;
    let version = version.clone().unwrap_or_else(|| "-".to_owned());
    let row = |name: &str, framework: &str, on: String| {
        vec![path.clone(), version.clone(), name.to_owned(), framework.to_owned(), on]
    };
    match fault {
        Some(fault) => vec![row("-", "-", fault.clone())],
        None if frameworks.is_empty() => vec![row("none", "-", "-".to_owned())],
        None => frameworks
            .iter()
            .map(|(name, framework)| {
                let on = framework.fault.clone().unwrap_or_else(|| framework.backends.join(", "));
                row(name, &framework.version, on)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_in_one_line() {
        let all = EnforcedLimits { memory: true, cpu: true, pids: true, tree_kill: TreeKill::Cgroup };
        assert_eq!(
            limits_in_words(all),
            "memory, CPU, processes are real; trees are killed by the kernel, at once"
        );
        assert_eq!(
            limits_in_words(EnforcedLimits { memory: true, ..EnforcedLimits::default() }),
            "memory real; CPU, processes cannot be enforced here; trees are killed by descent"
        );
    }
}
