//! Jobs that wait for what cannot come any more: a job that has ended otherwise than they need. They would end
//! `dependency_failed` at once, so their submission says so, or is refused where impossible jobs are.

use std::collections::HashMap;

use super::refusal::Refusal;
use super::state::EdgeState;
use crate::actors::messages::front_desk::NewJob;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::JobId;
use crate::contract::problem::{Fault, Warning};
use crate::contract::spec::InputOrigin;
use crate::domain::dependency::{self, Over, Wait};
use crate::store::StoreError;

/// What a job waits for in vain: where the spec says that it does, and how the other ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vain {
    pointer: String,
    detail: String,
}

/// Of each job the first of its waits that is in vain.
pub fn of(state: &EdgeState, jobs: &[NewJob]) -> Result<Vec<Option<Vain>>, StoreError> {
    // Jobs of a batch wait for each other, and those have not ended; or all for the same one.
    let mut known: HashMap<JobId, Option<Over>> = jobs.iter().map(|job| (job.record.id, None)).collect();
    let mut over = |job: JobId| match known.get(&job) {
        Some(over) => Ok(*over),
        None => {
            let standing = state.ports.reads.job_standing(job)?;
            let over = standing.and_then(|standing| {
                Some(Over::Ended { state: standing.state, reason: standing.end?.reason })
            });
            known.insert(job, over);
            Ok::<_, StoreError>(over)
        }
    };
    let mut found = Vec::with_capacity(jobs.len());
    for job in jobs {
        let mut vain = None;
        for wait in &job.waits {
            if let Some(over) = over(wait.job)?
                && let Err(failed) = dependency::judge(wait, over)
            {
                let detail = failed.detail.clone().unwrap_or_else(|| failed.reason.sentence());
                vain = Some(Vain { pointer: pointer(job, wait), detail });
                break;
            }
        }
        found.push(vain);
    }
    Ok(found)
}

fn pointer(job: &NewJob, wait: &Wait) -> String {
    let is_it = |given: &str| given.parse() == Ok(wait.job);
    let from = |origin: &InputOrigin| matches!(origin, InputOrigin::From(from) if is_it(&from.job));
    let named = job.spec.depends_on.iter().position(|asked| is_it(&asked.job));
    let input = || job.spec.inputs.iter().position(|input| from(&input.origin));
    match (named, named.map_or_else(input, |_| None)) {
        (Some(index), _) => format!("/depends_on/{index}/job"),
        (None, Some(index)) => format!("/inputs/{index}/from/job"),
        (None, None) => "/depends_on".to_owned(),
    }
}

impl Vain {
    /// Among the warnings of its job; its pointer begins with `prefix`.
    pub fn warning(&self, prefix: &str) -> Warning {
        let detail = format!("it will end at once as `dependency_failed`: {}", self.detail);
        Warning { pointer: format!("{prefix}{}", self.pointer), detail }
    }

    /// The refusal of such a job.
    pub fn refusal(&self) -> Refusal {
        let fault = Fault {
            pointer: self.pointer.clone(),
            code: "dependency_failed".to_owned(),
            detail: self.detail.clone(),
        };
        Refusal::new(ErrorCode::InvalidSpec, format!("the job can never start: {}", self.detail))
            .with_faults(vec![fault])
    }
}
