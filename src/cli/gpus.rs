//! GPUs as people read of them: how each stands, and each in a line.

use std::collections::BTreeSet;

use super::shown::{binary, tail};
use crate::contract::gpu::{Gpu, GpuStanding};
use crate::contract::ids::JobId;

/// How a GPU stands.
pub(super) fn standing(standing: &GpuStanding) -> String {
    match standing {
        GpuStanding::Ready => "ready".to_owned(),
        GpuStanding::BusyOutside { pids } => format!("busy_outside: used by {}", list(pids)),
        GpuStanding::Wedged { pids } => format!("wedged: memory of an ended task held by {}", list(pids)),
        GpuStanding::Unhealthy { why } => format!("unhealthy: {why}"),
    }
}

/// `0  NVIDIA H100 80GB HBM3, 79.6 GiB, ready  GPU-…`; `holder`: whose task has it.
pub(super) fn line(gpu: &Gpu, holder: Option<JobId>) -> String {
    let Gpu { index, model, memory_bytes, uuid, .. } = gpu;
    let now = match (holder, &gpu.standing) {
        (Some(job), GpuStanding::Ready) => format!("job …{}", tail(job)),
        (Some(job), other) => format!("job …{}, {}", tail(job), standing(other)),
        (None, standing) => self::standing(standing),
    };
    format!("{index}  {model}, {}, {now}  {uuid}", binary(*memory_bytes))
}

/// How many of a worker's GPUs a task could have now, of all: `6/8`. `held`: those that tasks have; `None` = that cannot be
/// seen.
pub(super) fn count(gpus: &[Gpu], held: Option<&BTreeSet<String>>) -> String {
    match (gpus.len(), held) {
        (0, _) => String::new(),
        (all, None) => all.to_string(),
        (all, Some(held)) => {
            let free = |gpu: &&Gpu| gpu.standing == GpuStanding::Ready && !held.contains(&gpu.uuid);
            format!("{}/{all}", gpus.iter().filter(free).count())
        }
    }
}

/// `pids 7, 8`.
pub(super) fn list(pids: &[u32]) -> String {
    let word = if pids.len() == 1 { "pid" } else { "pids" };
    format!("{word} {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_one_line_and_what_cannot_be_had_is_counted_out() {
        let gpu: Gpu = serde_json::from_value(serde_json::json!({
            "uuid": "GPU-1", "vendor": "nvidia", "index": 3, "model": "NVIDIA L4", "memory_bytes": 24_u64 << 30,
        }))
        .unwrap();
        let wedged = Gpu { standing: GpuStanding::Wedged { pids: vec![7, 8] }, ..gpu.clone() };
        assert_eq!(line(&gpu, None), "3  NVIDIA L4, 24 GiB, ready  GPU-1");
        let job = "job_01hf7yat00e2g0000000a7kq2b".parse().unwrap();
        assert_eq!(line(&gpu, Some(job)), "3  NVIDIA L4, 24 GiB, job …a7kq2b  GPU-1");
        assert_eq!(
            line(&wedged, None),
            "3  NVIDIA L4, 24 GiB, wedged: memory of an ended task held by pids 7, 8  GPU-1"
        );
        let held = BTreeSet::from([gpu.uuid.clone()]);
        let two = [Gpu { uuid: "GPU-2".into(), ..gpu.clone() }, wedged];
        assert_eq!(
            (
                count(&[], Some(&held)),
                count(std::slice::from_ref(&gpu), Some(&held)),
                count(&two, Some(&held))
            ),
            ("".into(), "0/1".into(), "1/2".into())
        );
        assert_eq!(count(&two, None), "2", "what is free is not known");
    }
}
