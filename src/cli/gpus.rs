//! GPUs as people read of them: how each stands, and each in a line.

use super::shown::size;
use crate::contract::gpu::{Gpu, GpuStanding};

/// How a GPU stands.
pub(super) fn standing(standing: &GpuStanding) -> String {
    match standing {
        GpuStanding::Ready => "ready".to_owned(),
        GpuStanding::BusyOutside { pids } => format!("busy_outside: used by {}", list(pids)),
        GpuStanding::Wedged { pids } => format!("wedged: memory of an ended task held by {}", list(pids)),
        GpuStanding::Unhealthy { why } => format!("unhealthy: {why}"),
    }
}

/// `0  NVIDIA H100 80GB HBM3, 85.5 GB, ready  GPU-…`.
pub(super) fn line(gpu: &Gpu) -> String {
    let Gpu { index, model, memory_bytes, uuid, .. } = gpu;
    format!("{index}  {model}, {}, {}  {uuid}", size(*memory_bytes), standing(&gpu.standing))
}

/// How many of a worker's GPUs can be had by tasks: `8`, `6 of 8`.
pub(super) fn count(gpus: &[Gpu]) -> String {
    let ready = gpus.iter().filter(|gpu| gpu.standing == GpuStanding::Ready).count();
    match (gpus.len(), ready) {
        (0, _) => String::new(),
        (all, ready) if all == ready => all.to_string(),
        (all, ready) => format!("{ready} of {all}"),
    }
}

fn list(pids: &[u32]) -> String {
    let word = if pids.len() == 1 { "pid" } else { "pids" };
    format!("{word} {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_one_line_and_what_cannot_be_had_is_counted_out() {
        let gpu: Gpu = serde_json::from_value(serde_json::json!({
            "uuid": "GPU-1", "vendor": "nvidia", "index": 3, "model": "NVIDIA L4", "memory_bytes": 24_000_000_000_u64,
        }))
        .unwrap();
        let wedged = Gpu { standing: GpuStanding::Wedged { pids: vec![7, 8] }, ..gpu.clone() };
        assert_eq!(line(&gpu), "3  NVIDIA L4, 24.0 GB, ready  GPU-1");
        assert_eq!(
            line(&wedged),
            "3  NVIDIA L4, 24.0 GB, wedged: memory of an ended task held by pids 7, 8  GPU-1"
        );
        assert_eq!(
            (count(&[]), count(&[gpu.clone()]), count(&[gpu, wedged])),
            ("".into(), "1".into(), "1 of 2".into())
        );
    }
}
