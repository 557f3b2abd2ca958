//! From a spec as it came in to a job that can be accepted: read once, written once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::caller::Client;
use super::references::{self, Earlier};
use super::state::Ports;
use crate::actors::messages::front_desk::NewJob;
use crate::artifacts::{ArtifactError, ArtifactStore};
use crate::clock;
use crate::contract::array::ArrayProgress;
use crate::contract::artifact::Digest;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::JobId;
use crate::contract::job::{Job, JobState};
use crate::contract::problem::{Fault, Warning};
use crate::contract::quantity::Timestamp;
use crate::contract::spec::JobSpec;
use crate::domain::array::{Layout, NewArray};
use crate::domain::change::JobRecord;
use crate::domain::credentials::Grant;
use crate::domain::dependency;
use crate::domain::placement::Shape;
use crate::domain::spec::{self, ReadOptions};
use crate::store::{Reads, StoreError};

/// Why a spec does not become a job.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It has faults.
    #[error("the spec has {} faults", .0.len())]
    Faults(Vec<Fault>),
    /// Whether its artifacts are here cannot be told.
    #[error("cannot look for the artifacts of a spec")]
    Artifacts(#[source] ArtifactError),
    /// Whose its artifacts are cannot be told.
    #[error("cannot look up the artifacts of a spec")]
    Owners(#[from] StoreError),
    /// It cannot be written down again.
    #[error("cannot write a spec as JSON")]
    Write(#[from] serde_json::Error),
}

/// What a client may submit: into which projects, how high, and with which artifacts.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    grant: &'a Grant,
    artifacts: &'a ArtifactStore,
    reads: &'a Reads,
}

impl<'a> Bounds<'a> {
    /// Those of this client.
    pub fn of(client: &'a Client, ports: &'a Ports) -> Self {
        Self { grant: &client.grant, artifacts: &ports.artifacts, reads: &ports.reads }
    }

    /// What of a spec goes beyond them. Read from the document, so that a spec with other faults has these told too.
    pub fn faults(&self, value: &Value, prefix: &str) -> Vec<Fault> {
        self.faults_where(value, prefix, |project| self.grant.may_submit_into(project))
    }

    /// The same of a spec that is only asked about: of projects that the client sees.
    pub fn faults_of_wish(&self, value: &Value, prefix: &str) -> Vec<Fault> {
        self.faults_where(value, prefix, |project| {
            self.grant.sees_all() || self.grant.projects.include(project)
        })
    }

    fn faults_where(&self, value: &Value, prefix: &str, may: impl Fn(&str) -> bool) -> Vec<Fault> {
        let mut faults = Vec::new();
        let project = project_in(value);
        if !may(project) {
            let into = self.grant.projects.names().unwrap_or_default().join("`, `");
            faults.push(Fault {
                pointer: format!("{prefix}/project"),
                code: ErrorCode::NotFound.word().to_owned(),
                detail: format!(
                    "there is no project `{}` for this token; it may submit into `{into}`",
                    project.escape_debug()
                ),
            });
        }
        let given = value.get("priority").and_then(Value::as_i64).and_then(|given| i32::try_from(given).ok());
        let given = given.unwrap_or_default();
        if let Some(most) = self.grant.priority_over(given) {
            faults.push(Fault {
                pointer: format!("{prefix}/priority"),
                code: "invalid".to_owned(),
                detail: format!("{given} given; this token may submit with at most {most}"),
            });
        }
        faults
    }

    /// Pins checkpoints that belong to a job which the client may repeat, so that they are still there when the new one
    /// is recorded. Answers those that are here.
    pub fn pin_checkpoints(
        &self,
        checkpoints: Vec<(usize, Digest)>,
    ) -> Result<Vec<(usize, Digest)>, ArtifactError> {
        let mut here = Vec::with_capacity(checkpoints.len());
        for (place, kept) in checkpoints {
            if self.artifacts.touch(kept)? {
                here.push((place, kept));
            }
        }
        Ok(here)
    }

    /// Pins the artifacts that a spec names; those that are not here, or that are not the project's, are its faults.
    pub fn pin_named(&self, value: &Value, prefix: &str) -> Result<Vec<Digest>, Unreadable> {
        let named = named_artifacts(value, prefix);
        let project = [project_in(value).to_owned()];
        let mut missing = Vec::new();
        // The calls of an array often share their arguments.
        let mut known: HashMap<Digest, bool> = HashMap::new();
        for (pointer, digest) in &named {
            let here = match known.entry(*digest) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => {
                    let may = self.grant.sees_all() || self.reads.artifact_of_projects(digest, &project)?;
                    let here = may && self.artifacts.touch(*digest).map_err(Unreadable::Artifacts)?;
                    *unknown.insert(here)
                }
            };
            if !here {
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
}

/// A spec that names no project is of the only one that its client may submit into, if there is but one.
pub fn with_project(mut spec: Value, client: &Client) -> Value {
    if let (Some([only]), Some(fields)) = (client.grant.projects.names(), spec.as_object_mut())
        && fields.get("project").is_none_or(Value::is_null)
    {
        fields.insert("project".to_owned(), Value::from(only.as_str()));
    }
    spec
}

fn project_in(value: &Value) -> &str {
    value.get("project").and_then(Value::as_str).unwrap_or("default")
}

/// Reads one spec and makes a job of it. Pointers begin with `prefix`. Artifacts that it names are pinned, so that they
/// are still there when the job is recorded; those that are not here are faults, told together with the others, and so
/// are jobs that it names and the client cannot see. `batch`: the entries before this one.
pub fn read_job(
    value: &Value,
    prefix: &str,
    options: ReadOptions,
    client: &Client,
    ports: &Ports,
    batch: &[Option<Earlier>],
) -> Result<NewJob, Unreadable> {
    let bounds = Bounds::of(client, ports);
    let read = spec::read(value, prefix, options);
    let mut faults = bounds.faults(value, prefix);
    let pinned = match bounds.pin_named(value, prefix) {
        Ok(named) => named,
        Err(Unreadable::Faults(missing)) => {
            faults.extend(missing);
            Vec::new()
        }
        Err(refused) => return Err(refused),
    };
    let named = references::named(value, prefix, client, &ports.reads)?;
    faults.extend(named.faults);
    match read {
        Ok(mut read) if faults.is_empty() => {
            let mut names = references::put_ids(&mut read.spec, batch);
            names.extend(named.names);
            let waits = dependency::waits(&read.spec, |id| names.get(&id).cloned());
            let job = new_job(read.spec, read.warnings, pinned, client.user(), None)?;
            Ok(NewJob { waits, ..job })
        }
        Ok(_) => Err(Unreadable::Faults(faults)),
        Err(mut found) => {
            found.extend(faults);
            Err(Unreadable::Faults(found))
        }
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
    let array = array_of(&spec)?;
    let (waits, checkpoints) = (Vec::new(), Vec::new());
    Ok(NewJob { record: Box::new(record), spec: Arc::new(spec), waits, array, checkpoints })
}

/// The children of a spec that is an array.
fn array_of(spec: &JobSpec) -> Result<Option<NewArray>, serde_json::Error> {
    let Some(array) = spec.array.as_deref() else { return Ok(None) };
    let layout = Arc::new(Layout::of(array));
    // What it waits for and that it is an array concerns the parent alone.
    let child = JobSpec { array: None, depends_on: Vec::new(), ..spec.clone() };
    let text = Arc::from(serde_json::to_string(&child)?);
    let first_child = clock::first_of(layout.len());
    Ok(Some(NewArray { first_child, spec: Arc::new(child), text, layout }))
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
        queue_reason: dependency::queue_reason(&job.waits),
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
        preempted_by: None,
        progress: job.array.as_ref().map(|array| queued(array.layout.len())),
        end: None,
        result: None,
        outputs: Vec::new(),
        undeclared: Vec::new(),
        log_artifact: None,
        warnings: record.warnings.clone(),
    })
}

/// The counts of an array of which nothing has moved.
fn queued(children: usize) -> Value {
    serde_json::to_value(ArrayProgress::queued(children)).unwrap_or_default()
}

/// A stored job turned back into what its submission was answered with.
pub fn rewound(job: Job) -> Job {
    let all = job.progress.as_ref().filter(|_| job.is_array());
    let all = all.and_then(|progress| progress.get("total")?.as_u64());
    Job {
        progress: all.and_then(|all| usize::try_from(all).ok()).map(queued),
        state: JobState::Queued,
        queue_reason: None,
        attempt: 1,
        worker: None,
        scheduled_at: None,
        started_at: None,
        ended_at: None,
        unreachable_since: None,
        cancel_requested_at: None,
        preempted_by: None,
        end: None,
        result: None,
        outputs: Vec::new(),
        undeclared: Vec::new(),
        log_artifact: None,
        ..job
    }
}

/// Entries of `inputs` and of `values` at most; a spec with more has a fault of its own.
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
    if let Some(function) = value.pointer("/workload/function") {
        let mut note_call = |prefix: &dyn Fn() -> String, call: &Value| {
            note(&|| format!("{}/payload", prefix()), call.get("payload"));
            let values = call.get("values").and_then(Value::as_array);
            for (index, named) in values.into_iter().flatten().take(INPUTS).enumerate() {
                note(&|| format!("{}/values/{index}", prefix()), Some(named));
            }
        };
        note_call(&|| format!("{prefix}/workload/function"), function);
        let items = value.pointer("/array/items").and_then(Value::as_array);
        for (index, item) in items.into_iter().flatten().enumerate() {
            note_call(&|| format!("{prefix}/array/items/{index}"), item);
        }
    }
    named
}
