//! NVIDIA's GPUs by NVML. Runs in the probe alone: any of these calls may hang or bring its process down.

use std::ffi::OsStr;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::{Device, Nvml as Library};
use serde::{Deserialize, Serialize};

use crate::contract::gpu::{ComputeCapability, Gpu, GpuSlice, GpuStanding, GpuVendor};
use crate::contract::spec::MemoryKind;

/// What a system has for a program to load; the name without a number comes with development packages only.
pub(super) const SYSTEM_LIBRARY: &str = "libnvidia-ml.so.1";
/// No GPU has more.
const MOST_LINKS: u32 = 18;
/// Errors of programs, which leave their GPU as it was: an illegal address, a preemptive clean-up, a reset channel, a
/// video or a program that was stopped. All other Xids mean the device.
const XIDS_OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// All devices, and what could not be told of others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) gpus: Vec<Gpu>,
    pub(super) faults: Vec<String>,
}

/// One device at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Glance {
    /// The driver's number for it, or for what it is a slice of.
    pub(super) number: u32,
    pub(super) uuid: String,
    pub(super) model: String,
    /// Why it does not work, if so.
    pub(super) fault: Option<String>,
    /// Processes with a compute context there, by increasing pid. A screen's are none.
    pub(super) pids: Vec<u32>,
}

/// The driver, and what it said of its devices' errors.
pub(super) struct Driver<'nvml> {
    nvml: &'nvml Library,
    /// Says which device is turned to next, for whoever has to find out which one hung.
    turn_to: fn(u32),
    errors: Vec<(String, EventSet<'nvml>)>,
    /// Devices with an error that only a reset heals.
    broken: Vec<(String, String)>,
}

/// Loads the library and begins.
pub(super) fn open(library: &OsStr) -> Result<Library, NvmlError> {
    Library::builder().lib_path(library).init()
}

impl<'nvml> Driver<'nvml> {
    /// Registers for errors of devices from now on, where that is to be had.
    pub(super) fn new(nvml: &'nvml Library, skip: &[u32], turn_to: fn(u32)) -> Self {
        let mut driver = Self { nvml, turn_to, errors: Vec::new(), broken: Vec::new() };
        for (_, device) in driver.devices(skip).unwrap_or_default() {
            let (Ok(device), Ok(set)) = (device, nvml.create_event_set()) else { continue };
            if let (Ok(uuid), Ok(set)) =
                (device.uuid(), device.register_events(EventTypes::CRITICAL_XID_ERROR, set))
            {
                driver.errors.push((uuid, set));
            }
        }
        driver
    }

    #[expect(clippy::type_complexity, reason = "each device, or why there is none")]
    fn devices(&self, skip: &[u32]) -> Result<Vec<(u32, Result<Device<'nvml>, NvmlError>)>, NvmlError> {
        let numbers = (0..self.nvml.device_count()?).filter(|number| !skip.contains(number));
        let open = |number| {
            (self.turn_to)(number);
            (number, self.nvml.device_by_index(number))
        };
        Ok(numbers.map(open).collect())
    }

    /// All of them, whole GPUs in PCI order; one that is cut into slices stands for its slices only.
    pub(super) fn inventory(&self, skip: &[u32]) -> Result<Found, NvmlError> {
        let version = self.nvml.sys_driver_version().ok();
        let mut found = Found::default();
        let mut whole = Vec::new();
        for (number, device) in self.devices(skip)? {
            (self.turn_to)(number);
            let read = device.and_then(|device| Ok((describe(&device, version.as_deref())?, device)));
            match read {
                Ok(read) => whole.push(read),
                Err(error) => found.faults.push(format!("GPU {number}: {}", words(&error))),
            }
        }
        whole.sort_by(|(a, _), (b, _)| a.pci_address.cmp(&b.pci_address));
        for (index, (gpu, _)) in (0..).zip(&mut whole) {
            gpu.index = index;
        }
        let links: Vec<Vec<String>> = whole.iter().map(|(_, device)| peers(device, &whole)).collect();
        for ((mut gpu, device), links) in whole.into_iter().zip(links) {
            gpu.links = links;
            match slices(&gpu, &device) {
                Ok(None) => found.gpus.push(gpu),
                Ok(Some(slices)) => found.gpus.extend(slices),
                Err(error) => found.faults.push(format!("GPU {}: {}", gpu.index, words(&error))),
            }
        }
        Ok(found)
    }

    /// How every device does. Devices that cannot even say who they are, are left out.
    pub(super) fn glance(&mut self, skip: &[u32]) -> Result<Vec<Glance>, NvmlError> {
        self.hear_errors();
        let mut seen = Vec::new();
        for (number, device) in self.devices(skip)? {
            (self.turn_to)(number);
            let Ok(device) = device else { continue };
            let Ok(uuid) = device.uuid() else { continue };
            let fault = self.broken.iter().find(|(broken, _)| *broken == uuid).map(|(_, why)| why.clone());
            let whole = at_a_glance(&device, number, uuid, fault);
            match slice_handles(&device) {
                // Without an answer the whole is told, whose fault is then seen.
                Ok(None) | Err(_) => seen.push(whole),
                Ok(Some(slices)) => {
                    for slice in slices {
                        let Ok(uuid) = slice.uuid() else { continue };
                        seen.push(at_a_glance(&slice, number, uuid, whole.fault.clone()));
                    }
                }
            }
        }
        Ok(seen)
    }

    fn hear_errors(&mut self) {
        for (uuid, set) in &self.errors {
            while let Ok(event) = set.wait(0) {
                let Some(XidError::Value(xid)) = event.event_data else { continue };
                if !XIDS_OF_PROGRAMS.contains(&xid) && self.broken.iter().all(|(broken, _)| broken != uuid) {
                    self.broken.push((uuid.clone(), format!("the driver reports Xid {xid}")));
                }
            }
        }
    }
}

fn describe(device: &Device<'_>, driver: Option<&str>) -> Result<Gpu, NvmlError> {
    let capability = device.cuda_compute_capability().ok();
    Ok(Gpu {
        uuid: device.uuid()?,
        vendor: GpuVendor::Nvidia,
        index: 0,
        model: device.name()?,
        memory_bytes: device.memory_info()?.total,
        memory_kind: MemoryKind::Dedicated,
        compute_capability: capability.and_then(|found| {
            let part = |number: i32| u16::try_from(number).ok();
            Some(ComputeCapability { major: part(found.major)?, minor: part(found.minor)? })
        }),
        pci_address: Some(device.pci_info()?.bus_id),
        numa_node: None,
        links: Vec::new(),
        slice: None,
        driver: driver.map(str::to_owned),
        standing: health(device).map_or(GpuStanding::Ready, |why| GpuStanding::Unhealthy { why }),
    })
}

/// Over NVLink, by a bridge or a switch. By the driver's word on pairs, and where it has none by the links' far ends.
fn peers(device: &Device<'_>, all: &[(Gpu, Device<'_>)]) -> Vec<String> {
    let own = device.uuid().unwrap_or_default();
    let others = || all.iter().filter(|(gpu, _)| gpu.uuid != own);
    let paired: Result<Vec<(&Gpu, P2pStatus)>, NvmlError> = others()
        .map(|(gpu, other)| Ok((gpu, device.p2p_status(other, P2pCapabilitiesIndex::NvLink)?)))
        .collect();
    match paired {
        Ok(pairs) => {
            let linked = pairs.into_iter().filter(|(_, status)| *status == P2pStatus::Ok);
            linked.map(|(gpu, _)| gpu.uuid.clone()).collect()
        }
        Err(_) => {
            let links = (0..MOST_LINKS).map(|number| device.link_wrapper_for(number));
            let ends = links.filter(|link| matches!(link.is_active(), Ok(true)));
            let ends: Vec<String> =
                ends.filter_map(|link| Some(link.remote_pci_info().ok()?.bus_id)).collect();
            let linked =
                others().filter(|(gpu, _)| gpu.pci_address.as_ref().is_some_and(|at| ends.contains(at)));
            linked.map(|(gpu, _)| gpu.uuid.clone()).collect()
        }
    }
}

/// The slices of a GPU; `None` = it is not cut.
fn slice_handles<'nvml>(device: &Device<'nvml>) -> Result<Option<Vec<Device<'nvml>>>, NvmlError> {
    match device.mig_mode() {
        Ok(mode) if mode.current == 1 => {}
        Ok(_) | Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::InvalidArg) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    // Places without a slice in them are errors.
    Ok(Some(
        (0..device.mig_device_count()?)
            .filter_map(|number| device.mig_device_by_index(number).ok())
            .collect(),
    ))
}

fn slices(whole: &Gpu, device: &Device<'_>) -> Result<Option<Vec<Gpu>>, NvmlError> {
    let Some(handles) = slice_handles(device)? else { return Ok(None) };
    let read = |slice: &Device<'_>| {
        let model = slice.name()?;
        Ok(Gpu {
            uuid: slice.uuid()?,
            memory_bytes: slice.memory_info()?.total,
            links: Vec::new(),
            slice: Some(GpuSlice { of: whole.uuid.clone(), profile: profile(&model).to_owned() }),
            model,
            ..whole.clone()
        })
    };
    handles.iter().map(read).collect::<Result<_, NvmlError>>().map(Some)
}

/// `NVIDIA A100-SXM4-40GB MIG 3g.20gb` → `3g.20gb`.
fn profile(model: &str) -> &str {
    model.rsplit_once("MIG ").map_or(model, |(_, profile)| profile)
}

fn at_a_glance(device: &Device<'_>, number: u32, uuid: String, known_fault: Option<String>) -> Glance {
    let model = device.name();
    let pids = processes(device);
    let fault = known_fault
        .or_else(|| health(device))
        .or_else(|| Some(words(model.as_ref().err().or(pids.as_ref().err())?)));
    Glance { number, uuid, model: model.unwrap_or_default(), fault, pids: pids.unwrap_or_default() }
}

fn processes(device: &Device<'_>) -> Result<Vec<u32>, NvmlError> {
    let listed = match device.running_compute_processes() {
        Err(NvmlError::FailedToLoadSymbol(_)) => device.running_compute_processes_v2(),
        listed => listed,
    };
    let mut pids: Vec<u32> = match listed {
        Ok(processes) => processes.into_iter().map(|process| process.pid).collect(),
        // Nobody can tell there (Windows' driver model, rights of a container).
        Err(NvmlError::NotSupported | NvmlError::NoPermission) => Vec::new(),
        Err(error) => return Err(error),
    };
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// What NVML tells of a device's health without waiting.
fn health(device: &Device<'_>) -> Option<String> {
    match device.memory_info() {
        Ok(_) | Err(NvmlError::NotSupported | NvmlError::NoPermission) => {}
        Err(error) => return Some(words(&error)),
    }
    match device.are_pages_pending_retired() {
        Ok(true) => Some("pages of its memory failed; it wants a reset".to_owned()),
        _ => None,
    }
}

/// The driver's errors in words that tell people what to do.
pub(super) fn words(error: &NvmlError) -> String {
    match error {
        NvmlError::GpuLost => "it is lost: it fell off the bus, or its driver gave it up".to_owned(),
        NvmlError::ResetRequired => "it wants a reset (`nvidia-smi --gpu-reset`)".to_owned(),
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".to_owned(),
        NvmlError::LibRmVersionMismatch => {
            "library and kernel module of the NVIDIA driver have different versions; the machine wants a reboot"
                .to_owned()
        }
        NvmlError::LibloadingError(_) => "NVIDIA's library libnvidia-ml is not there or cannot be loaded".to_owned(),
        NvmlError::FailedToLoadSymbol(_) => {
            "the NVIDIA driver is too old; 510 and newer are supported".to_owned()
        }
        other => format!("NVML says: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_called_by_its_profile() {
        assert_eq!(profile("NVIDIA A100-SXM4-40GB MIG 3g.20gb"), "3g.20gb");
        assert_eq!(profile("odd"), "odd");
    }
}
