//! On a machine with a GPU of NVIDIA: that what is said of it is so. Anywhere else each test says that it skips.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::process::Command;
use std::time::Duration;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::gpu::{Gpu, GpuStanding, GpuVendor};
use gpulayer::gpu::GpuOptions;
use gpulayer::gpu::inventory::look;

#[path = "../worker/server.rs"]
#[allow(dead_code)]
mod server;

use server::{Server, shell, stop};

/// The GPUs, or none and a plain word about it.
fn gpus() -> Vec<Gpu> {
    let options =
        GpuOptions { binary: Some(env!("CARGO_BIN_EXE_gpulayer-worker").into()), ..GpuOptions::default() };
    let found = look(&options, Duration::from_secs(60));
    let gpus: Vec<Gpu> = found.gpus.into_iter().filter(|gpu| gpu.vendor == GpuVendor::Nvidia).collect();
    if gpus.is_empty() {
        eprintln!(
            "SKIPPED: no GPU of NVIDIA answers on this machine; nothing was tested. {:?}",
            found.faults
        );
    }
    gpus
}

/// What `nvidia-smi` says of one field of each GPU.
fn smi(field: &str) -> Option<Vec<String>> {
    let query = format!("--query-gpu={field}");
    let said = Command::new("nvidia-smi").args([&query, "--format=csv,noheader,nounits"]).output().ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    said.status.success().then(|| text.lines().map(|line| line.trim().to_owned()).collect())
}

#[test]
fn the_inventory_agrees_with_nvidia_smi() {
    let gpus = gpus();
    if gpus.is_empty() || gpus.iter().any(|gpu| gpu.slice.is_some()) {
        return;
    }
    let Some(uuids) = smi("uuid") else {
        eprintln!("SKIPPED: there is no nvidia-smi to compare with");
        return;
    };
    assert_eq!(gpus.iter().map(|gpu| gpu.uuid.clone()).collect::<Vec<_>>(), uuids);
    assert_eq!(gpus.iter().map(|gpu| gpu.model.clone()).collect::<Vec<_>>(), smi("name").unwrap());
    for (gpu, mebibytes) in gpus.iter().zip(smi("memory.total").unwrap()) {
        let said: u64 = mebibytes.parse().unwrap();
        assert!((gpu.memory_bytes >> 20).abs_diff(said) <= said / 50, "{gpu:?}, nvidia-smi: {said} MiB");
        assert!(gpu.compute_capability.is_some() && gpu.driver.is_some() && gpu.pci_address.is_some());
    }
}

#[test]
fn a_task_sees_the_gpus_it_was_given_and_leaves_them_ready() {
    let Some(gpu) = gpus().into_iter().rfind(|gpu| gpu.standing == GpuStanding::Ready) else { return };
    let server = Server::new();
    let worker = server.start_worker();
    // Where torch can be had it counts, and takes memory; else the variables have to do.
    let script = "echo $CUDA_VISIBLE_DEVICES $GPULAYER_GPU_UUIDS; python3 - <<'END' || true\n\
                  try:\n    import torch\nexcept ImportError:\n    print('no torch')\nelse:\n\
                  \x20   x = torch.ones(1 << 20, device='cuda')\n    print('sees', torch.cuda.device_count(), float(x.sum()))\nEND";
    let task_id = server.offer_on(shell(script), vec![gpu.uuid.clone()]);
    let finish = server.finish_of(task_id);
    assert_eq!(finish.end.reason, EndReason::Completed, "{:?}", finish.end);
    assert_eq!(finish.warnings, []);
    let lines = server.lines_of(task_id);
    let shown = if gpu.slice.is_some() { gpu.uuid.clone() } else { gpu.index.to_string() };
    assert_eq!(lines[0], format!("{shown} {}", gpu.uuid));
    match lines.iter().find(|line| line.starts_with("sees")) {
        Some(line) => assert_eq!(line, "sees 1 1048576.0"),
        None => eprintln!("SKIPPED in part: python3 has no torch here, so no program has used the GPU"),
    }
    // It went back at once: the next task may have it.
    let again = server.offer_on(shell("true"), vec![gpu.uuid]);
    assert_eq!(server.finish_of(again).end.reason, EndReason::Completed);
    stop(worker);
}
