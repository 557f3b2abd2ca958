//! Hosts with eight GPUs, as workers tell them.

use gpulayer::contract::gpu::{Gpu, GpuStanding, GpuVendor};
use gpulayer::contract::ids::WorkerId;
use gpulayer::contract::quantity::Cpus;
use gpulayer::contract::spec::{GpuCount, GpuRequest, MemoryKind};
use gpulayer::contract::worker::{Capabilities, WorkerKind};
use gpulayer::domain::placement::Input;

pub const GIB: u64 = 1 << 30;
pub const GPUS: u32 = 8;

/// A host says what it has: 64 cores, 512 GiB, eight GPUs that are all linked, on two memory nodes.
pub fn host_up(number: u32, model: &str, gpu_gib: u64) -> Input {
    let gpu = |index: u32| Gpu {
        uuid: format!("GPU-{number:06}-{index}"),
        vendor: GpuVendor::Nvidia,
        index,
        model: model.to_owned(),
        memory_bytes: gpu_gib * GIB,
        memory_kind: MemoryKind::Dedicated,
        compute_capability: None,
        pci_address: None,
        numa_node: Some(index / 4),
        links: (0..GPUS)
            .filter(|peer| *peer != index)
            .map(|peer| format!("GPU-{number:06}-{peer}"))
            .collect(),
        slice: None,
        driver: None,
        standing: GpuStanding::Ready,
    };
    Input::WorkerUp {
        worker_id: WorkerId::from_u128(number.into()),
        name: format!("w{number}"),
        kind: WorkerKind::Remote,
        incarnation: 1,
        capabilities: Box::new(Capabilities {
            version: "0".into(),
            hostname: format!("w{number}"),
            os: "linux".into(),
            arch: "x86_64".into(),
            cpus: Cpus::from_millis(64_000),
            memory_bytes: 512 * GIB,
            labels: Default::default(),
            gpus: (0..GPUS).map(gpu).collect(),
            secrets: Vec::new(),
            spec_secret_refs: false,
            limits: Default::default(),
            pythons: Vec::new(),
            interpreters: Vec::new(),
            advertise_address: None,
        }),
    }
}

/// So many GPUs of any kind; `None` for none.
pub fn gpus(count: u32) -> Option<Box<GpuRequest>> {
    (count > 0).then(|| {
        Box::new(GpuRequest {
            count: GpuCount::Count(count),
            vendor: None,
            memory_bytes: None,
            memory_kind: None,
            models: Vec::new(),
            min_compute_capability: None,
            share: None,
        })
    })
}
