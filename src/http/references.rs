//! The other jobs that a spec names: that they are there for this client, what they are called, and `#index` of a batch.

use std::collections::HashMap;

use serde_json::Value;

use super::caller::Client;
use crate::actors::messages::front_desk::NewJob;
use crate::contract::ids::JobId;
use crate::contract::problem::Fault;
use crate::contract::spec::{InputOrigin, JobSpec};
use crate::domain::credentials::JobAct;
use crate::store::{Reads, StoreError};

/// Entries of a list that are looked at; one with more has a fault of its own.
const ENTRIES: usize = 1_000;

/// An entry of the same batch that came before.
#[derive(Debug, Clone)]
pub struct Earlier {
    /// The id it was given.
    pub id: JobId,
    /// What people call it.
    pub name: Option<String>,
}

impl Earlier {
    /// Of a job that was read.
    pub fn of(job: &NewJob) -> Self {
        Self { id: job.record.id, name: job.record.name.clone() }
    }
}

/// The jobs that a spec names by their ids.
#[derive(Debug, Default)]
pub struct Named {
    /// What people call them.
    pub names: HashMap<JobId, String>,
    /// Those that are not there for this client.
    pub faults: Vec<Fault>,
}

/// Looks up the jobs that a spec names. Read from the document, so that a spec with other faults has these told too.
pub fn named(value: &Value, prefix: &str, client: &Client, reads: &Reads) -> Result<Named, StoreError> {
    let mut named = Named::default();
    let mut known: HashMap<JobId, bool> = HashMap::new();
    let project = value.get("project").and_then(Value::as_str).unwrap_or("default");
    for (pointer, id, of_outputs) in ids_in(value, prefix) {
        let there = match known.get(&id) {
            Some(there) => *there,
            None => {
                let found = reads.named_job(id)?;
                let found = found.filter(|(job, _)| client.grant.judge(JobAct::See, job).is_ok());
                // Whoever sees this job is told the name, and need not see the other project.
                if let Some((job, Some(name))) = &found
                    && job.project == project
                {
                    named.names.insert(id, name.clone());
                }
                let there = found.is_some();
                let own = found.is_some_and(|(job, _)| job.project == project || client.grant.sees_all());
                if there && of_outputs && !own {
                    named.faults.push(fault(pointer.clone(), format!("job {id} is of another project")));
                }
                known.insert(id, there);
                there
            }
        };
        if !there {
            named.faults.push(fault(pointer, format!("there is no job {id}")));
        }
    }
    Ok(named)
}

fn fault(pointer: String, detail: String) -> Fault {
    Fault { pointer, code: "invalid".to_owned(), detail }
}

/// Every id of a job in the document, with its pointer, and whether outputs of it are wanted.
fn ids_in(value: &Value, prefix: &str) -> Vec<(String, JobId, bool)> {
    let mut ids = Vec::new();
    let mut note = |pointer: String, given: Option<&Value>, of_outputs| {
        if let Some(id) = given.and_then(Value::as_str).and_then(|text| text.parse().ok()) {
            ids.push((pointer, id, of_outputs));
        }
    };
    let entries = |name: &str| value.get(name).and_then(Value::as_array).into_iter().flatten().take(ENTRIES);
    for (index, input) in entries("inputs").enumerate() {
        note(format!("{prefix}/inputs/{index}/from/job"), input.pointer("/from/job"), true);
    }
    for (index, dependency) in entries("depends_on").enumerate() {
        note(format!("{prefix}/depends_on/{index}/job"), dependency.get("job"), false);
    }
    ids
}

/// Puts ids in the place of `#index`. Answers what people call these jobs.
pub fn put_ids(spec: &mut JobSpec, batch: &[Option<Earlier>]) -> HashMap<JobId, String> {
    let mut names = HashMap::new();
    let mut put = |given: &mut String| {
        let index = given.strip_prefix('#').and_then(|index| index.parse::<usize>().ok());
        if let Some(earlier) = index.and_then(|index| batch.get(index)?.as_ref()) {
            *given = earlier.id.to_string();
            names.extend(earlier.name.clone().map(|name| (earlier.id, name)));
        }
    };
    for dependency in &mut spec.depends_on {
        put(&mut dependency.job);
    }
    for input in &mut spec.inputs {
        if let InputOrigin::From(from) = &mut input.origin {
            put(&mut from.job);
        }
    }
    names
}
