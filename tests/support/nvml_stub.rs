//! A stand-in for NVIDIA's library, built from `nvml_stub/stub.c` by the C compiler, and what it is to say. Each has
//! GPUs of its own names, because their locks are the whole host's.
#![allow(dead_code)]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One GPU, as the stub describes it.
#[derive(Debug, Clone, Default)]
pub struct StubGpu {
    pub uuid: String,
    pub name: String,
    pub memory_bytes: u64,
    pub bus: u32,
    pub links: Vec<u32>,
    pub pids: Vec<u32>,
    /// Further words: `lost=1`, `hang=1`, `pages=1`, `xid=79`.
    pub more: String,
    /// Slices by name, with their pids; one or more: MIG is on.
    pub slices: Vec<(String, Vec<u32>)>,
}

/// The library, in a folder of its own.
pub struct NvmlStub {
    folder: tempfile::TempDir,
}

impl NvmlStub {
    /// With the driver missing, until it is told otherwise.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/nvml_stub/stub.c");
        let stub = Self { folder };
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", "-o"])
            .arg(stub.library())
            .arg(source)
            .arg("-ldl")
            .output()
            .expect("a C compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        stub.says("driver=missing\n");
        stub
    }

    /// With as many GPUs, two by two on NVLink, all of them well.
    pub fn with_pairs(count: u32) -> (Self, Vec<StubGpu>) {
        let stub = Self::new();
        let gpus = pairs(count);
        stub.has(&gpus);
        (stub, gpus)
    }

    pub fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// From the next look on.
    pub fn has(&self, gpus: &[StubGpu]) {
        self.says(&described(gpus));
    }

    /// Beside the GPUs, such as `hang=1`.
    pub fn has_and(&self, gpus: &[StubGpu], more: &str) {
        self.says(&format!("{}{more}\n", described(gpus)));
    }

    /// Word for word.
    pub fn says(&self, text: &str) {
        let unfinished = self.folder.path().join("unfinished");
        std::fs::write(&unfinished, text).unwrap();
        std::fs::rename(unfinished, self.folder.path().join("libnvidia-ml.so.1.gpus")).unwrap();
    }
}

/// As many GPUs, two by two on NVLink.
pub fn pairs(count: u32) -> Vec<StubGpu> {
    let gpu = |number: u32| StubGpu {
        uuid: format!("GPU-{}", uuid::Uuid::now_v7()),
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_bytes: 85_520_809_984,
        bus: 0x1b + number,
        links: vec![number ^ 1],
        ..StubGpu::default()
    };
    (0..count).map(gpu).collect()
}

fn described(gpus: &[StubGpu]) -> String {
    let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut text = "driver=570.124.06\n".to_owned();
    for (number, gpu) in gpus.iter().enumerate() {
        let StubGpu { uuid, name, memory_bytes, bus, links, pids, more, slices } = gpu;
        let (links, pids) = (list(links), list(pids));
        let mig = u32::from(!slices.is_empty());
        writeln!(
            text,
            "gpu; uuid={uuid}; name={name}; memory={memory_bytes}; bus={bus:x}; links={links}; pids={pids}; mig={mig}; {more}"
        )
        .unwrap();
        for (at, (profile, pids)) in slices.iter().enumerate() {
            let pids = list(pids);
            let share = memory_bytes / 2;
            writeln!(
                text,
                "mig; of={number}; uuid=MIG-{at}-{uuid}; name={name} MIG {profile}; memory={share}; pids={pids}"
            )
            .unwrap();
        }
    }
    text
}
