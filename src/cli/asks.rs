//! What a job asks for, in one line.

use super::shown::{binary, span};
use crate::contract::job::Job;
use crate::contract::spec::{GpuCount, GpuRequest, JobSpec};

/// `2 GPUs (A100, ≥ 40 GiB each), 4 CPUs, 16 GiB of memory, priority 10, timeout 5 min`; `None` = its spec cannot be read.
pub(super) fn in_one_line(job: &Job) -> Option<String> {
    let spec: JobSpec = serde_json::from_str(job.spec.get()).ok()?;
    let resources = &spec.resources;
    let mut parts: Vec<String> = resources.gpus.iter().map(|request| gpus(request)).collect();
    let cpus = resources.cpus;
    parts.push(if cpus.millis() <= 1000 { format!("{cpus} CPU") } else { format!("{cpus} CPUs") });
    parts.extend(resources.memory_bytes.map(|bytes| format!("{} of memory", binary(bytes))));
    if let Some(gang) = &spec.distributed {
        parts.push(if gang.nodes == 1 {
            "on 1 node".to_owned()
        } else {
            format!("on each of {} nodes", gang.nodes)
        });
    }
    parts.extend(resources.worker.as_ref().map(|worker| format!("worker {worker}")));
    parts.extend(resources.labels.iter().map(|(key, value)| format!("{key}={value}")));
    parts.extend((spec.priority != 0).then(|| format!("priority {}", spec.priority)));
    parts.extend(spec.timeout_s.map(|timeout| format!("timeout {}", span(timeout))));
    parts.extend(spec.queue_timeout_s.map(|timeout| format!("queue timeout {}", span(timeout))));
    if spec.retry.max_attempts > 1 {
        parts.push(format!("up to {} attempts", spec.retry.max_attempts));
    }
    let most = spec.array.as_ref().and_then(|array| array.max_running);
    parts.extend(most.map(|most| format!("at most {most} children at once")));
    Some(parts.join(", "))
}

fn gpus(request: &GpuRequest) -> String {
    let count = match request.count {
        GpuCount::Count(1) => "1 GPU".to_owned(),
        GpuCount::Count(count) => format!("{count} GPUs"),
        GpuCount::All => "all GPUs of a worker".to_owned(),
    };
    let models = (!request.models.is_empty()).then(|| request.models.join(" or "));
    let memory = request.memory_bytes.map(|bytes| format!("≥ {} each", binary(bytes)));
    let details: Vec<String> = models.into_iter().chain(memory).collect();
    if details.is_empty() { count } else { format!("{count} ({})", details.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_asked_for_stands_in_one_line() {
        let asked = |spec: serde_json::Value| {
            let mut whole = serde_json::json!({"workload": {"command": {"argv": ["true"]}}});
            whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            let job = serde_json::json!({
                "id": "job_01hf7yat00e2g0000000a7kq2b", "project": "default", "labels": {}, "submitted_by": "me",
                "state": "queued", "spec": whole, "attempt": 1, "submitted_at": "2026-01-01T00:00:00Z",
                "outputs": [], "undeclared": [], "warnings": [],
            });
            in_one_line(&serde_json::from_value(job).unwrap()).unwrap()
        };
        assert_eq!(asked(serde_json::json!({})), "1 CPU");
        let gang = serde_json::json!({
            "resources": {"cpus": 4, "memory_bytes": 16_u64 << 30,
                "gpus": {"count": 2, "models": ["A100"], "memory_bytes": 40_u64 << 30}},
            "distributed": {"nodes": 2, "launcher": "env"}, "priority": 10, "timeout_s": 300,
        });
        assert_eq!(
            asked(gang),
            "2 GPUs (A100, ≥ 40 GiB each), 4 CPUs, 16 GiB of memory, on each of 2 nodes, priority 10, timeout 5 min"
        );
        let array =
            serde_json::json!({"array": {"count": 8, "max_running": 3}, "retry": {"max_attempts": 2}});
        assert_eq!(asked(array), "1 CPU, up to 2 attempts, at most 3 children at once");
    }
}
