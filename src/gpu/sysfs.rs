//! What the kernel shows of PCI devices: which vendors are there, and which memory node each device is near to.

use std::path::Path;

use crate::contract::gpu::Gpu;

/// PCI's number for NVIDIA.
pub const NVIDIA: u32 = 0x10de;
/// PCI's number for AMD.
pub const AMD: u32 = 0x1002;

/// How many display and compute devices of a vendor are on the bus, whether or not a driver has them.
pub fn devices_of(sysfs: &Path, vendor: u32) -> usize {
    let listed = std::fs::read_dir(sysfs.join("bus/pci/devices")).into_iter().flatten().flatten();
    listed
        .filter(|device| {
            let number = |name: &str| read_number(&device.path().join(name));
            // 03: display controllers, those without a plug included; 12: processing accelerators.
            number("vendor") == Some(vendor)
                && number("class").is_some_and(|class| matches!(class >> 16, 0x03 | 0x12))
        })
        .count()
}

/// Whether there may be NVIDIA GPUs: on the bus, or behind Windows' kernel.
pub(super) fn may_have_nvidia(sysfs: &Path) -> bool {
    devices_of(sysfs, NVIDIA) > 0 || Path::new("/dev/dxg").exists()
}

/// Fills in the memory nodes.
pub(super) fn place(gpus: &mut [Gpu], sysfs: &Path) {
    for gpu in gpus {
        let Some(address) = &gpu.pci_address else { continue };
        let node = std::fs::read_to_string(
            sysfs.join("bus/pci/devices").join(kernel_address(address)).join("numa_node"),
        );
        // -1: the machine has one, or does not tell.
        gpu.numa_node = node.ok().and_then(|node| node.trim().parse().ok());
    }
}

/// NVML writes eight digits of domain in capitals, the kernel four: `00000000:1B:00.0` → `0000:1b:00.0`.
fn kernel_address(address: &str) -> String {
    let address = address.to_ascii_lowercase();
    match address.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => address,
    }
}

fn read_number(path: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(path).ok()?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        assert_eq!(kernel_address("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(kernel_address("00010000:0A:00.0"), "00010000:0a:00.0");
        assert_eq!(kernel_address("0000:03:00.0"), "0000:03:00.0");
    }

    #[test]
    fn only_what_computes_or_displays_is_a_gpu() {
        let sysfs = tempfile::tempdir().unwrap();
        let device = |name: &str, vendor: &str, class: &str| {
            let folder = sysfs.path().join("bus/pci/devices").join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("vendor"), vendor).unwrap();
            std::fs::write(folder.join("class"), class).unwrap();
        };
        device("0000:1b:00.0", "0x10de\n", "0x030200\n");
        device("0000:1b:00.1", "0x10de\n", "0x040300\n");
        device("0000:03:00.0", "0x1002\n", "0x120000\n");
        assert_eq!((devices_of(sysfs.path(), NVIDIA), devices_of(sysfs.path(), AMD)), (1, 1));
        assert_eq!(devices_of(Path::new("/nowhere"), NVIDIA), 0);
    }
}
