//! What there is.

use std::time::{Duration, Instant};

use gpulayer::contract::gpu::{ComputeCapability, Gpu, GpuStanding, GpuVendor};
use gpulayer::gpu::inventory::{Inventory, look};
use gpulayer::gpu::{GpuOptions, Nvml};

use crate::nvml_stub::{NvmlStub, pairs};

fn options(stub: &NvmlStub) -> GpuOptions {
    GpuOptions {
        nvml: Nvml::Library(stub.library()),
        binary: Some(env!("CARGO_BIN_EXE_gpulayer-worker").into()),
        ..GpuOptions::default()
    }
}

fn seen(stub: &NvmlStub) -> Inventory {
    look(&options(stub), Duration::from_secs(30))
}

#[test]
fn eight_gpus_come_in_pci_order_with_all_that_is_known_of_them() {
    let (stub, mut gpus) = NvmlStub::with_pairs(8);
    let found = seen(&stub);
    assert_eq!(found.faults, [""; 0]);
    let uuids: Vec<&str> = found.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    assert_eq!(uuids, gpus.iter().map(|gpu| gpu.uuid.as_str()).collect::<Vec<_>>());
    let Gpu { vendor, index, model, memory_bytes, compute_capability, pci_address, links, driver, .. } =
        &found.gpus[3];
    assert_eq!((*vendor, *index, model.as_str()), (GpuVendor::Nvidia, 3, "NVIDIA H100 80GB HBM3"));
    assert_eq!((*memory_bytes, driver.as_deref()), (85_520_809_984, Some("570.124.06")));
    assert_eq!(*compute_capability, Some(ComputeCapability { major: 9, minor: 0 }));
    assert_eq!(pci_address.as_deref(), Some("00000000:1E:00.0"));
    assert_eq!(*links, [gpus[2].uuid.clone()]);
    assert!(found.gpus.iter().all(|gpu| gpu.standing == GpuStanding::Ready));

    // CUDA counts by place on the bus, whatever the driver's order is.
    gpus.reverse();
    stub.has(&gpus);
    let found = seen(&stub);
    assert_eq!(found.gpus[0].pci_address.as_deref(), Some("00000000:1B:00.0"));
    assert_eq!((found.gpus[0].index, found.gpus[7].index), (0, 7));
}

#[test]
fn slices_stand_in_the_place_of_their_gpu() {
    let stub = NvmlStub::new();
    let mut gpus = pairs(2);
    gpus[1].slices = vec![("3g.40gb".into(), vec![]), ("4g.40gb".into(), vec![])];
    stub.has(&gpus);
    let found = seen(&stub);
    let slices: Vec<&Gpu> = found.gpus.iter().filter(|gpu| gpu.slice.is_some()).collect();
    assert_eq!((found.gpus.len(), slices.len()), (3, 2));
    let slice = slices[0].slice.as_ref().unwrap();
    assert_eq!((slice.of.as_str(), slice.profile.as_str()), (gpus[1].uuid.as_str(), "3g.40gb"));
    assert!(slices[0].uuid.starts_with("MIG-") && slices[0].index == 1);
    assert_eq!(slices[0].memory_bytes, gpus[1].memory_bytes / 2);
}

#[test]
fn a_driver_that_is_not_there_is_a_fault_in_words() {
    let stub = NvmlStub::new();
    let found = seen(&stub);
    assert_eq!(found.gpus, []);
    assert!(found.faults[0].contains("the NVIDIA driver is not loaded"), "{:?}", found.faults);

    let nowhere = GpuOptions { nvml: Nvml::Library("/nowhere/libnvidia-ml.so.1".into()), ..options(&stub) };
    let found = look(&nowhere, Duration::from_secs(30));
    assert!(found.faults[0].contains("libnvidia-ml is not there"), "{:?}", found.faults);

    let off = GpuOptions { nvml: Nvml::Off, ..options(&stub) };
    assert_eq!(look(&off, Duration::from_secs(30)).faults, [""; 0]);
}

#[test]
fn one_lost_gpu_and_one_that_hangs_cost_only_themselves() {
    let (stub, mut gpus) = NvmlStub::with_pairs(4);
    gpus[1].more = "lost=1".into();
    gpus[2].more = "hang=1".into();
    stub.has(&gpus);
    let found = look(&options(&stub), Duration::from_millis(1500));
    let uuids: Vec<&str> = found.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    assert_eq!(uuids, [gpus[0].uuid.as_str(), gpus[3].uuid.as_str()]);
    assert!(found.faults[0].starts_with("GPU 1: it is lost"), "{:?}", found.faults);
    assert!(found.faults[1].starts_with("GPU 2: it does not answer"), "{:?}", found.faults);
    assert!(found.unsure);
}

#[test]
fn a_driver_that_hangs_or_crashes_does_so_in_the_probe() {
    let (stub, gpus) = NvmlStub::with_pairs(2);
    stub.has_and(&gpus, "hang=1");
    let begun = Instant::now();
    let found = look(&options(&stub), Duration::from_millis(500));
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert!(found.faults[0].contains("no answer within 0.5 s"), "{:?}", found.faults);
    stub.has_and(&gpus, "crash=1");
    let found = seen(&stub);
    assert!(found.faults[0].contains("was killed by SIGSEGV"), "{:?}", found.faults);
}
