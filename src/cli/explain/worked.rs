//! The worked examples of docs/SCHEDULING.md: small worlds are built, and what `gpulayer explain` says of them is what the
//! page has between its markers. `UPDATE=1` writes the page instead.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::super::shown::{moment, tail};
use super::page;
use crate::contract::explain::Explanation;
use crate::contract::gpu::{Gpu, GpuStanding, GpuVendor};
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::quantity::{Cpus, Seconds, Timestamp};
use crate::contract::spec::{GpuCount, GpuRequest, MemoryKind, Resources};
use crate::contract::worker::{Capabilities, WorkerKind};
use crate::domain::placement::{
    Budget, Input, Luggage, Pass, Placer, Policy, ProjectPolicy, QueuedJob, Shape, wish,
};

/// 2026-01-05 09:00:00 UTC.
const NINE: i64 = 1_767_603_600;
const HOUR: u64 = 3600;

fn at(second: u64) -> Timestamp {
    Timestamp::from_micros((NINE + second as i64) * 1_000_000)
}

struct Site {
    placer: Placer,
    hosts: u128,
}

impl Site {
    fn new(project: &str, policy: ProjectPolicy) -> Self {
        let projects = [(project.to_owned(), policy)].into();
        let placer = Placer::new(Policy { projects, staging_s: Seconds::new(0), ..Policy::default() });
        Self { placer, hosts: 0 }
    }

    /// Hosts with 64 cores and 256 GiB, and so many GPUs of a model and its bytes.
    fn hosts(mut self, names: &[&str], gpus: u32, model: &str, memory_bytes: u64) -> Self {
        for name in names {
            self.hosts += 1;
            let capabilities = capabilities(name, gpus, model, memory_bytes);
            self.tell(Input::WorkerUp {
                worker_id: WorkerId::from_u128(self.hosts),
                name: (*name).to_owned(),
                kind: WorkerKind::Remote,
                incarnation: 1,
                capabilities: Box::new(capabilities),
            });
        }
        self
    }

    fn tell(&mut self, input: Input) -> Pass {
        self.placer.apply(input).unwrap()
    }

    /// Jobs are submitted, in this order, and a pass follows.
    fn submit(&mut self, jobs: &[QueuedJob]) -> Pass {
        jobs.iter().for_each(|job| drop(self.tell(Input::Queued(job.clone()))));
        let pass = self.tell(Input::Pass { now: at(0), budget_checks: u32::MAX });
        for placed in &pass.placements {
            self.tell(Input::Accepted { job_id: placed.job.job_id });
        }
        pass
    }

    fn explain(&self, number: u128) -> String {
        let job_id = JobId::from_u128(number);
        let mut explanation = self.placer.explain_job(job_id, at(0), &mut Budget::default()).unwrap();
        let job = self.placer.queue().job(job_id).unwrap();
        let limit = self.placer.shorter_limit(&job, Seconds::new(10), at(0), &mut Budget::default());
        explanation.suggestions.splice(0..0, limit);
        shown(
            &format!("$ gpulayer explain {}\n", short(number)),
            &format!("job …{}", short(number)),
            &explanation,
        )
    }

    fn explain_spec(&self, shape: Shape) -> String {
        let job = wish(JobId::from_u128(999), 0, "default".into(), Arc::new(shape), at(0));
        let explanation = self.placer.explain_wish(&job, at(0), &mut Budget::default());
        shown("$ gpulayer explain --spec spec.json\n", "a job of this spec", &explanation)
    }
}

/// What the command prints, with times in UTC wherever the test runs.
fn shown(typed: &str, what: &str, explanation: &Explanation) -> String {
    let reserved_by = explanation.reservation.as_ref().and_then(|reservation| reservation.free_by);
    let times = reserved_by.into_iter().chain(explanation.starts_by);
    let text = times.fold(page(what, explanation), |text, time| {
        let utc = jiff::Timestamp::from_microsecond(time.micros()).unwrap();
        text.replace(&moment(time), &utc.strftime("%Y-%m-%d %H:%M:%S").to_string())
    });
    format!("{typed}{text}")
}

fn short(number: u128) -> String {
    tail(JobId::from_u128(number))
}

fn capabilities(name: &str, gpus: u32, model: &str, memory_bytes: u64) -> Capabilities {
    let gpu = |index| Gpu {
        uuid: format!("GPU-{name}-{index}"),
        vendor: GpuVendor::Nvidia,
        index,
        model: model.to_owned(),
        memory_bytes,
        memory_kind: MemoryKind::Dedicated,
        compute_capability: None,
        pci_address: None,
        numa_node: None,
        links: Vec::new(),
        slice: None,
        driver: None,
        standing: GpuStanding::Ready,
    };
    Capabilities {
        version: "0".into(),
        hostname: name.into(),
        os: "linux".into(),
        arch: "x86_64".into(),
        cpus: Cpus::from_millis(64_000),
        memory_bytes: 256 << 30,
        labels: BTreeMap::new(),
        gpus: (0..gpus).map(gpu).collect(),
        secrets: Vec::new(),
        spec_secret_refs: false,
        limits: Default::default(),
        pythons: Vec::new(),
        interpreters: Vec::new(),
        advertise_address: None,
    }
}

fn gpus(count: u32) -> Shape {
    let request = GpuRequest {
        count: GpuCount::Count(count),
        vendor: None,
        memory_bytes: None,
        memory_kind: None,
        models: Vec::new(),
        min_compute_capability: None,
        share: None,
    };
    Shape {
        resources: Resources { gpus: Some(Box::new(request)), ..Resources::default() },
        ..Shape::default()
    }
}

fn with_memory(mut shape: Shape, memory_bytes: u64) -> Shape {
    if let Some(request) = shape.resources.gpus.as_deref_mut() {
        request.memory_bytes = Some(memory_bytes);
    }
    shape
}

fn limited(shape: Shape, hours: u64) -> Shape {
    Shape { bound_s: Some(Seconds::new(hours * HOUR)), ..shape }
}

fn job(number: u128, project: &str, priority: i32, shape: Shape) -> QueuedJob {
    QueuedJob {
        job_id: JobId::from_u128(number),
        epoch: 0,
        priority,
        submitted_at: at(0).plus(Seconds::from_millis(number as u64)),
        shape: Arc::new(shape),
        project: project.into(),
        avoid: None,
        luggage: Luggage::default(),
    }
}

const H100: &str = "NVIDIA H100 80GB HBM3";
/// What such a GPU reports.
const H100_BYTES: u64 = 85_520_809_984;

fn near_miss() -> String {
    let site = Site::new("default", ProjectPolicy::default())
        .hosts(&["a1", "a2", "a3"], 8, "NVIDIA A100-SXM4-40GB", 42_298_834_944)
        .hosts(&["h1"], 8, H100, H100_BYTES);
    site.explain_spec(with_memory(gpus(1), 80 << 30))
}

fn impossible() -> String {
    let site = Site::new("default", ProjectPolicy::default())
        .hosts(&["h1", "h2"], 8, H100, H100_BYTES)
        .hosts(&["login"], 0, "", 0);
    site.explain_spec(gpus(16))
}

fn quota() -> String {
    let limited = ProjectPolicy { max_gpus: Some(4), ..ProjectPolicy::default() };
    let mut site = Site::new("vision", limited).hosts(&["h1"], 8, H100, H100_BYTES);
    site.submit(&[job(1, "vision", 0, gpus(4)), job(2, "vision", 0, gpus(1))]);
    site.explain(2)
}

fn reservation() -> String {
    let mut site = Site::new("default", ProjectPolicy::default()).hosts(&["h1"], 8, H100, H100_BYTES);
    site.submit(&[job(1, "default", 0, limited(gpus(4), 3))]);
    let pass = site.submit(&[
        job(2, "default", 0, limited(gpus(8), 12)),
        job(3, "default", 0, limited(gpus(2), 1)),
        job(4, "default", 0, limited(gpus(2), 24)),
    ]);
    assert_eq!(pass.placements.iter().map(|placed| placed.job.job_id.as_u128()).collect::<Vec<_>>(), [3]);
    site.explain(2) + "\n" + &site.explain(4)
}

fn gang() -> String {
    let mut site =
        Site::new("default", ProjectPolicy::default()).hosts(&["h1", "h2", "h3"], 8, H100, H100_BYTES);
    site.submit(&[
        job(1, "default", 0, limited(gpus(8), 2)),
        job(2, "default", 0, limited(gpus(8), 5)),
        job(3, "default", 0, gpus(8)),
    ]);
    let gang = Shape { nodes: Some(2), ..limited(gpus(8), 24) };
    let cores = Shape::default();
    site.submit(&[job(4, "default", 0, gang), job(5, "default", 0, limited(cores, 1))]);
    site.explain(4)
}

fn preemption() -> String {
    let yields = ProjectPolicy { preemptible: true, ..ProjectPolicy::default() };
    let mut site = Site::new("spare", yields).hosts(&["h1"], 8, H100, H100_BYTES);
    site.submit(&[
        job(1, "vision", 0, gpus(2)),
        job(2, "spare", -10, gpus(2)),
        job(3, "spare", -5, gpus(2)),
        job(4, "spare", -10, gpus(2)),
    ]);
    let pass = site.submit(&[job(5, "vision", 10, gpus(3))]);
    for preemption in &pass.preemptions {
        let (worker_id, place) = (WorkerId::from_u128(1), preemption.place);
        site.tell(Input::Bounded { worker_id, place, ends_by: at(20) });
    }
    let going = pass.preemptions.iter().map(|preemption| {
        format!("job …{} has to go for job …{}\n", tail(preemption.place.job_id), tail(preemption.by))
    });
    going.collect::<String>() + "\n" + &site.explain(5)
}

#[test]
fn the_page_on_scheduling_shows_what_is_printed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/SCHEDULING.md");
    let kept = std::fs::read_to_string(&path).unwrap();
    let mut printed = kept.clone();
    for (name, text) in [
        ("near miss", near_miss()),
        ("impossible", impossible()),
        ("quota", quota()),
        ("reservation", reservation()),
        ("gang", gang()),
        ("preemption", preemption()),
    ] {
        let marker = format!("<!-- example: {name} -->\n```\n");
        let (before, rest) =
            printed.split_once(&marker).unwrap_or_else(|| panic!("{marker} is not on the page"));
        let (_, after) = rest.split_once("```\n").unwrap();
        printed = format!("{before}{marker}{text}```\n{after}");
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &printed).unwrap();
        return;
    }
    assert_eq!(kept, printed, "run this test with UPDATE=1 and look at the change");
}
