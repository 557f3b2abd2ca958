//! Apple's GPUs by `system_profiler -json` and `sysctl`. The reading is tested with outputs in their form; on a Mac it
//! was never run.

use std::time::Duration;

use serde::Deserialize;

use super::error::GpuError;
use crate::contract::gpu::{Gpu, GpuStanding, GpuVendor};
use crate::contract::spec::MemoryKind;
use crate::process::asked::{Asked, printed_by};

const WHAT: &str = "system_profiler";

#[derive(Deserialize)]
struct Profile {
    #[serde(rename = "SPDisplaysDataType", default)]
    displays: Vec<Display>,
}

#[derive(Deserialize)]
struct Display {
    #[serde(default)]
    sppci_model: Option<String>,
    #[serde(rename = "_name", default)]
    name: Option<String>,
    #[serde(default)]
    spdisplays_vendor: Option<String>,
    #[serde(default)]
    sppci_cores: Option<String>,
}

/// Asks both. Blocks, for twice that long at most. Only on macOS does this find anything.
pub(super) fn look(within: Duration) -> Result<Vec<Gpu>, GpuError> {
    let ask = |program: &str, arguments: &[&str]| {
        let asked = Asked {
            program: program.into(),
            name: None,
            arguments: arguments.iter().map(Into::into).collect(),
            environment: vec![("PATH".into(), "/usr/sbin:/usr/bin:/bin".into())],
            run_as: None,
        };
        printed_by(&asked, within).map_err(|source| GpuError::Asked { what: WHAT, source })
    };
    let profile = ask("/usr/sbin/system_profiler", &["-json", "SPDisplaysDataType"])?;
    let memory = ask("/usr/sbin/sysctl", &["-n", "hw.memsize"])?;
    read(&profile.output, &String::from_utf8_lossy(&memory.output))
}

/// What the two print. The GPU of Apple's chips has no memory of its own: the machine's is its.
pub fn read(profile: &[u8], memsize: &str) -> Result<Vec<Gpu>, GpuError> {
    let garbled = |source| GpuError::Garbled { what: WHAT, source };
    let profile: Profile = serde_json::from_slice(profile).map_err(garbled)?;
    let memory_bytes = memsize.trim().parse().unwrap_or(0);
    let own = profile.displays.iter().filter(|display| is_apple(display));
    Ok((0..)
        .zip(own)
        .map(|(index, display)| {
            let model = display.sppci_model.as_ref().or(display.name.as_ref());
            let model = model.map_or("Apple GPU", String::as_str);
            Gpu {
                // There is one in a chip, and a worker asks for it within its own machine only.
                uuid: format!("APPLE-{index}"),
                vendor: GpuVendor::Apple,
                index,
                model: match &display.sppci_cores {
                    Some(cores) => format!("{model} ({cores} cores)"),
                    None => model.to_owned(),
                },
                memory_bytes,
                memory_kind: MemoryKind::Unified,
                compute_capability: None,
                pci_address: None,
                numa_node: None,
                links: Vec::new(),
                slice: None,
                driver: None,
                standing: GpuStanding::Ready,
            }
        })
        .collect())
}

fn is_apple(display: &Display) -> bool {
    let says = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains("Apple"));
    says(&display.spdisplays_vendor) || says(&display.sppci_model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chips_gpu_has_the_machines_memory() {
        let profile = br#"{"SPDisplaysDataType": [{"_name": "Apple M1 Pro", "spdisplays_mtlgpufamilysupport":
            "spdisplays_metal3", "spdisplays_vendor": "sppci_vendor_Apple", "sppci_bus": "spdisplays_builtin",
            "sppci_cores": "16", "sppci_device_type": "spdisplays_gpu", "sppci_model": "Apple M1 Pro"}]}"#;
        let gpus = read(profile, "17179869184\n").unwrap();
        assert_eq!(gpus.len(), 1);
        assert_eq!((gpus[0].model.as_str(), gpus[0].memory_bytes), ("Apple M1 Pro (16 cores)", 16 << 30));
        assert_eq!((gpus[0].vendor, gpus[0].memory_kind), (GpuVendor::Apple, MemoryKind::Unified));
    }

    #[test]
    fn a_mac_with_another_gpu_has_none_of_apples() {
        let intel = br#"{"SPDisplaysDataType": [{"_name": "Intel Iris Plus Graphics", "sppci_model":
            "Intel Iris Plus Graphics", "spdisplays_vendor": "Intel", "spdisplays_vram_shared": "1536 MB"}]}"#;
        assert_eq!(read(intel, "1").unwrap(), []);
        assert!(read(b"", "1").is_err());
    }
}
