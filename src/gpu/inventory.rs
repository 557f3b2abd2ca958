//! What GPUs the machine has, of all vendors, and what stood in the way of knowing more.

use std::time::Duration;

use serde::Serialize;

use super::error::GpuError;
use super::probe::Probe;
use super::remembered::Remembered;
use super::{GpuOptions, Nvml, amd, apple, sysfs};
use crate::contract::gpu::{Gpu, GpuVendor};
use crate::domain::causes::said;

/// The machine's GPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Inventory {
    /// In PCI order, vendor by vendor.
    pub gpus: Vec<Gpu>,
    /// In sentences: what is there and cannot be told of, and why.
    pub faults: Vec<String>,
    /// Whether a GPU of NVIDIA may be missing in the list or does not work, so that indices cannot be trusted.
    #[serde(skip)]
    pub unsure: bool,
}

/// Looks once. Blocks, for about that long at most for each vendor that the machine has something of.
pub fn look(options: &GpuOptions, within: Duration) -> Inventory {
    let mut probe = Probe::new(options);
    gather(options, &mut probe, &Remembered::in_folder(None), within)
}

/// Whether there is anything to ask NVIDIA's driver for.
pub(super) fn asks_nvidia(options: &GpuOptions) -> bool {
    match options.nvml {
        Nvml::System => sysfs::may_have_nvidia(&options.sysfs),
        Nvml::Library(_) => true,
        Nvml::Off => false,
    }
}

/// The same with a probe that stays, and a memory.
pub(super) fn gather(
    options: &GpuOptions,
    probe: &mut Probe,
    remembered: &Remembered,
    within: Duration,
) -> Inventory {
    let mut found = Inventory::default();
    if asks_nvidia(options) {
        nvidia(options, probe, remembered, within, &mut found);
    }
    let note = |found: &mut Inventory, listed: Result<Vec<Gpu>, GpuError>| match listed {
        Ok(gpus) => found.gpus.extend(gpus),
        Err(error) => found.faults.push(said(&error)),
    };
    if amd::has_compute(&options.sysfs) {
        note(&mut found, amd::look(options, within));
    }
    if cfg!(target_os = "macos") {
        note(&mut found, apple::look(within));
    }
    sysfs::place(&mut found.gpus, &options.sysfs);
    if found.faults.is_empty() {
        remembered.keep(&found.gpus);
    }
    found
}

fn nvidia(
    options: &GpuOptions,
    probe: &mut Probe,
    remembered: &Remembered,
    within: Duration,
    found: &mut Inventory,
) {
    match probe.inventory(within) {
        Ok(listed) => {
            found.unsure = !listed.faults.is_empty();
            found.gpus = listed.gpus;
            if found.unsure {
                let why = listed.faults.join("; ");
                let missing = remembered.broken(&why).into_iter();
                let missing: Vec<Gpu> =
                    missing.filter(|gpu| found.gpus.iter().all(|there| there.uuid != gpu.uuid)).collect();
                found.gpus.extend(missing);
                found
                    .gpus
                    .sort_by(|a, b| a.pci_address.cmp(&b.pci_address).then_with(|| a.uuid.cmp(&b.uuid)));
            }
            found.faults.extend(listed.faults);
        }
        Err(error) => {
            let why = said(&error);
            let on_bus = sysfs::devices_of(&options.sysfs, sysfs::NVIDIA);
            found.unsure = true;
            found.gpus = remembered.broken(&why);
            found.faults.push(match on_bus {
                0 => why,
                1 => format!("1 device of NVIDIA is on the PCI bus, but {why}"),
                count => format!("{count} devices of NVIDIA are on the PCI bus, but {why}"),
            });
        }
    }
    found.gpus.retain(|gpu| gpu.vendor == GpuVendor::Nvidia);
}
