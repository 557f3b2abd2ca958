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
use crate::contract::spec::{InputOrigin, JobSpec, Workload};
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
/// `artifacts`, so that they are still there when the job is recorded.
pub fn read_job(
    value: &Value,
    prefix: &str,
    options: ReadOptions,
    submitted_by: &str,
    artifacts: &ArtifactStore,
) -> Result<NewJob, Unreadable> {
    let read = spec::read(value, prefix, options).map_err(Unreadable::Faults)?;
    let artifacts = pin_named(&read.spec, prefix, artifacts)?;
    Ok(new_job(read.spec, read.warnings, artifacts, submitted_by, None)?)
}

/// Pins the artifacts that a spec names; those that are not here are its faults.
pub fn pin_named(spec: &JobSpec, prefix: &str, artifacts: &ArtifactStore) -> Result<Vec<Digest>, Unreadable> {
    let named = named_artifacts(spec, prefix);
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

/// A new job with this spec, submitted now.
pub fn new_job(
    spec: JobSpec,
    warnings: Vec<Warning>,
    artifacts: Vec<Digest>,
    submitted_by: &str,
    retry_of: Option<JobId>,
) -> Result<NewJob, serde_json::Error> {
    let submitted_at = clock::now();
    let shape = Shape { resources: spec.resources.clone(), target: spec.target };
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

/// Artifacts that a spec names, each with its pointer.
fn named_artifacts(spec: &JobSpec, prefix: &str) -> Vec<(String, Digest)> {
    let mut named = Vec::new();
    if let Some(source) = spec.source {
        named.push((format!("{prefix}/source"), source));
    }
    for (index, input) in spec.inputs.iter().enumerate() {
        if let InputOrigin::Artifact(digest) = input.origin {
            named.push((format!("{prefix}/inputs/{index}/artifact"), digest));
        }
    }
    if let Workload::Function(function) = &spec.workload
        && let Ok(digest) = function.payload.parse()
    {
        named.push((format!("{prefix}/workload/function/payload"), digest));
    }
    named
}
