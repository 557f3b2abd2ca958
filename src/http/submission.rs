//! From a spec as it came in to a job that can be accepted: read once, written once.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::actors::messages::front_desk::NewJob;
use crate::actors::messages::scheduler::Shape;
use crate::artifacts::{ArtifactError, ArtifactStore};
use crate::clock;
use crate::contract::artifact::Digest;
use crate::contract::ids::JobId;
use crate::contract::job::{Job, JobState};
use crate::contract::problem::{Fault, Warning};
use crate::contract::quantity::Timestamp;
use crate::contract::spec::JobSpec;
use crate::domain::change::JobRecord;
use crate::domain::spec::{self, ReadOptions};

/// Why a spec does not become a job.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It has faults.
    #[error("the spec has {} faults", .0.len())]
    Faults(Vec<Fault>),
    /// Whether its artifacts are here cannot be told.
    #[error("cannot look for the artifacts of a spec")]
    Artifacts(#[source] ArtifactError),
    /// It cannot be written down again.
    #[error("cannot write a spec as JSON")]
    Write(#[from] serde_json::Error),
}

/// Reads one spec and makes a job of it. Pointers begin with `prefix`. Artifacts that it names are pinned in
/// `artifacts`, so that they are still there when the job is recorded; those that are not here are faults, told
/// together with the others.
pub fn read_job(
    value: &Value,
    prefix: &str,
    options: ReadOptions,
    submitted_by: &str,
    artifacts: &ArtifactStore,
) -> Result<NewJob, Unreadable> {
    let read = spec::read(value, prefix, options);
    let pinned = pin_named(value, prefix, artifacts);
    match (read, pinned) {
        (Ok(read), Ok(named)) => Ok(new_job(read.spec, read.warnings, named, submitted_by, None)?),
        (Ok(_), Err(refused)) => Err(refused),
        (Err(faults), Ok(_)) => Err(Unreadable::Faults(faults)),
        (Err(mut faults), Err(Unreadable::Faults(missing))) => {
            faults.extend(missing);
            Err(Unreadable::Faults(faults))
        }
        (Err(_), Err(refused)) => Err(refused),
    }
}

/// Pins the artifacts that a spec names; those that are not here are its faults.
pub fn pin_named(value: &Value, prefix: &str, artifacts: &ArtifactStore) -> Result<Vec<Digest>, Unreadable> {
    let named = named_artifacts(value, prefix);
    let mut missing = Vec::new();
    for (pointer, digest) in &named {
        if !artifacts.touch(*digest).map_err(Unreadable::Artifacts)? {
            missing.push(Fault {
                pointer: pointer.clone(),
                code: "missing_artifact".to_owned(),
                detail: format!("artifact not uploaded: {digest}; PUT it first"),
            });
        }
    }
    if missing.is_empty() {
        Ok(named.into_iter().map(|(_, digest)| digest).collect())
    } else {
        Err(Unreadable::Faults(missing))
    }
}

/// The job of an earlier submission with the same spec, as it was answered then. For a job that is gone: its
/// artifacts may be too.
pub fn resubmitted(
    value: &Value,
    options: ReadOptions,
    submitted_by: &str,
    id: JobId,
    submitted_at: Timestamp,
) -> Option<Job> {
    let read = spec::read(value, "", options).ok()?;
    let mut job = new_job(read.spec, read.warnings, Vec::new(), submitted_by, None).ok()?;
    (job.record.id, job.record.submitted_at) = (id, submitted_at);
    as_submitted(&job).ok()
}

/// A new job with this spec, submitted now.
pub fn new_job(
    spec: JobSpec,
    warnings: Vec<Warning>,
    artifacts: Vec<Digest>,
    submitted_by: &str,
    retry_of: Option<JobId>,
) -> Result<NewJob, serde_json::Error> {
    let submitted_at = clock::now();
    let shape = Shape::of(&spec);
    let record = JobRecord {
        id: clock::job_id(),
        spec: Arc::from(serde_json::to_string(&spec)?),
        name: spec.name.clone(),
        project: spec.project.clone(),
        labels: serde_json::to_string(&spec.labels)?,
        priority: spec.priority,
        shape: Arc::from(serde_json::to_string(&shape)?),
        submitted_by: submitted_by.to_owned(),
        submitted_at,
        queue_deadline: spec.queue_timeout_s.map(|timeout| submitted_at.plus(timeout)),
        retry_of,
        warnings,
        artifacts,
    };
    Ok(NewJob { record: Box::new(record), spec: Arc::new(spec) })
}

/// The job as it stands right after its submission.
pub fn as_submitted(job: &NewJob) -> Result<Job, serde_json::Error> {
    let record = &job.record;
    Ok(Job {
        id: record.id,
        name: record.name.clone(),
        project: record.project.clone(),
        labels: job.spec.labels.clone(),
        submitted_by: record.submitted_by.clone(),
        state: JobState::Queued,
        queue_reason: None,
        spec: Arc::from(RawValue::from_string(record.spec.as_ref().to_owned())?),
        attempt: 1,
        parent: None,
        array_index: None,
        retry_of: record.retry_of,
        worker: None,
        submitted_at: record.submitted_at,
        scheduled_at: None,
        started_at: None,
        ended_at: None,
        unreachable_since: None,
        cancel_requested_at: None,
        progress: None,
        end: None,
        result: None,
        outputs: Vec::new(),
        undeclared: Vec::new(),
        log_artifact: None,
        warnings: record.warnings.clone(),
    })
}

/// A stored job turned back into what its submission was answered with.
pub fn rewound(job: Job) -> Job {
    Job {
        state: JobState::Queued,
        queue_reason: None,
        attempt: 1,
        worker: None,
        scheduled_at: None,
        started_at: None,
        ended_at: None,
        unreachable_since: None,
        cancel_requested_at: None,
        progress: None,
        end: None,
        result: None,
        outputs: Vec::new(),
        undeclared: Vec::new(),
        log_artifact: None,
        ..job
    }
}

/// Entries of `inputs` at most; a spec with more has a fault of its own.
const INPUTS: usize = 1_000;

/// Artifacts that a spec names, each with its pointer. Read from the document, so that a spec with other faults
/// names them too.
fn named_artifacts(value: &Value, prefix: &str) -> Vec<(String, Digest)> {
    let mut named = Vec::new();
    let mut note = |pointer: &dyn Fn() -> String, given: Option<&Value>| {
        if let Some(digest) = given.and_then(Value::as_str).and_then(|text| text.parse().ok()) {
            named.push((pointer(), digest));
        }
    };
    note(&|| format!("{prefix}/source"), value.get("source"));
    let inputs = value.get("inputs").and_then(Value::as_array);
    for (index, input) in inputs.into_iter().flatten().take(INPUTS).enumerate() {
        note(&|| format!("{prefix}/inputs/{index}/artifact"), input.get("artifact"));
    }
    note(&|| format!("{prefix}/workload/function/payload"), value.pointer("/workload/function/payload"));
    named
}
