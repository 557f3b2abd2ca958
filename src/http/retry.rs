//! What a retry runs: a job again as it was, of an array also only the children that did not succeed, and of a child the
//! one index again. It begins with the checkpoints that were left.

use super::refusal::Refusal;
use crate::contract::artifact::Digest;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::JobId;
use crate::contract::job::{Job, JobState};
use crate::contract::problem::{Fault, Warning};
use crate::contract::spec::{Array, JobSpec};
use crate::domain::array::Layout;
use crate::store::Reads;

/// The spec that repeats an ended job. `failed`: only what did not succeed.
pub fn spec(reads: &Reads, before: &Job, failed: bool) -> Result<JobSpec, Refusal> {
    if let (Some(parent), Some(index)) = (before.parent, before.array_index) {
        let mut spec = array_spec(reads, parent)?;
        only(&mut spec, vec![index]);
        return Ok(spec);
    }
    let mut spec: JobSpec = serde_json::from_str(before.spec.get()).map_err(Refusal::internal)?;
    if failed {
        let indices = if spec.array.is_some() { reads.failed_indices(before.id)? } else { Vec::new() };
        if before.state == JobState::Succeeded || (spec.array.is_some() && indices.is_empty()) {
            let detail = match spec.array {
                Some(_) => "all children of the array succeeded, so none failed that could be repeated",
                None => "the job is no array and succeeded: leave `failed` out to repeat it all the same",
            };
            let fault = Fault {
                pointer: "/failed".to_owned(),
                code: "invalid".to_owned(),
                detail: detail.to_owned(),
            };
            return Err(Refusal::new(ErrorCode::InvalidRequest, detail).with_faults(vec![fault]));
        }
        only(&mut spec, indices);
    }
    Ok(spec)
}

/// The checkpoints that an ended job left, with the places that their owners have among the children of `array`, the
/// new one; 0 for a job that is no array.
pub fn checkpoints(
    reads: &Reads,
    before: &Job,
    array: Option<&Array>,
) -> Result<Vec<(usize, Digest)>, Refusal> {
    let Some(array) = array.filter(|_| before.parent.is_none()) else {
        let left = reads.job_standing(before.id)?.and_then(|standing| standing.checkpoint);
        return Ok(left.map(|left| (0, left)).into_iter().collect());
    };
    let mut left = reads.checkpoints_of_children(before.id)?;
    let places = Layout::of(array);
    let found = places.indices().enumerate().filter_map(|(place, index)| Some((place, left.remove(&index)?)));
    Ok(found.collect())
}

/// What is noticed when checkpoints that were left are not there any more.
pub fn checkpoints_gone(count: usize) -> Warning {
    let detail = match count {
        1 => "the checkpoint that was left is not on the server any more; it begins anew".to_owned(),
        _ => format!(
            "{count} checkpoints that were left are not on the server any more; their jobs begin anew"
        ),
    };
    Warning { pointer: String::new(), detail }
}

fn array_spec(reads: &Reads, parent: JobId) -> Result<JobSpec, Refusal> {
    let text = reads.array_spec(parent)?.ok_or_else(|| Refusal::not_found(format_args!("array {parent}")))?;
    serde_json::from_str(&text).map_err(Refusal::internal)
}

fn only(spec: &mut JobSpec, indices: Vec<u64>) {
    if let Some(array) = &mut spec.array {
        let Array { indices: asked, .. } = &mut **array;
        *asked = Some(indices);
    }
}
