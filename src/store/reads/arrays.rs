//! Arrays: what the supervisor needs to stand where it stood, and what is asked of a whole family.

use std::collections::HashMap;
use std::sync::Arc;

use diesel::prelude::*;

use super::Reads;
use crate::contract::artifact::Digest;
use crate::contract::end::{End, EndReason};
use crate::contract::ids::JobId;
use crate::contract::job::JobState;
use crate::contract::quantity::Timestamp;
use crate::domain::change::JobStanding;
use crate::store::arrays::range;
use crate::store::error::StoreError;
use crate::store::rows::{JobStandingRow, hash, job_id};
use crate::store::schema::{arrays, artifact_refs, job_standings, jobs};

/// A live array as the store keeps it.
#[derive(Debug)]
pub struct ArrayRow {
    /// The parent.
    pub id: JobId,
    /// Its first child.
    pub first_child: JobId,
    /// How many there are.
    pub children: usize,
    /// The parent's spec, with the array.
    pub spec: Arc<str>,
    /// What each child runs.
    pub child_spec: Arc<str>,
    /// When its queue timeout ends.
    pub queue_deadline: Option<Timestamp>,
    /// The parent's row.
    pub standing: JobStanding,
}

type LiveArrayRow = ((Vec<u8>, String, Option<i64>), (Vec<u8>, i64, String), JobStandingRow);

impl Reads {
    /// Every array that has not ended.
    pub fn live_arrays(&self) -> Result<Vec<ArrayRow>, StoreError> {
        let rows: Vec<LiveArrayRow> = self.pool.query("the live arrays", |connection| {
            arrays::table
                .inner_join(jobs::table.on(jobs::id.eq(arrays::job_id)))
                .inner_join(job_standings::table.on(job_standings::job_id.eq(arrays::job_id)))
                .filter(job_standings::ended_at.is_null())
                .select((
                    (jobs::id, jobs::spec, jobs::queue_deadline),
                    (arrays::first_child, arrays::children, arrays::child_spec),
                    JobStandingRow::as_select(),
                ))
                .load(connection)
        })?;
        rows.into_iter()
            .map(|((id, spec, deadline), (first_child, children, child_spec), standing)| {
                Ok(ArrayRow {
                    id: job_id(&id, "jobs.id")?,
                    first_child: job_id(&first_child, "arrays.first_child")?,
                    children: usize::try_from(children)
                        .map_err(|_| StoreError::Corrupt { what: "arrays.children" })?,
                    spec: spec.into(),
                    child_spec: child_spec.into(),
                    queue_deadline: deadline.map(Timestamp::from_micros),
                    standing: standing.read()?,
                })
            })
            .collect()
    }

    /// The states of the children of an array, whether each was ever placed, and its id, in order.
    pub fn children(&self, parent: JobId) -> Result<Vec<(JobId, JobState, bool)>, StoreError> {
        let rows: Vec<(Vec<u8>, String, i64)> =
            self.pool.query("the children of an array", |connection| {
                let Some((first, last)) = range(connection, parent)? else { return Ok(Vec::new()) };
                job_standings::table
                    .filter(job_standings::job_id.between(first, last))
                    .order(job_standings::job_id)
                    .select((job_standings::job_id, job_standings::state, job_standings::epoch))
                    .load(connection)
            })?;
        rows.into_iter()
            .map(|(id, state, epoch)| {
                let state = crate::store::words::read_job_state(&state)?;
                Ok((job_id(&id, "job_standings.job_id")?, state, epoch > 0))
            })
            .collect()
    }

    /// The first child that did not succeed, and how it ended; one that was cancelled only if no other failed.
    pub fn worst_child(&self, parent: JobId) -> Result<Option<(JobId, End)>, StoreError> {
        for states in [&[JobState::Failed, JobState::TimedOut][..], &[JobState::Cancelled]] {
            let row: Option<(Vec<u8>, Option<String>)> =
                self.pool.query("the worst child of an array", |connection| {
                    let Some((first, last)) = range(connection, parent)? else { return Ok(None) };
                    job_standings::table
                        .filter(job_standings::job_id.between(first, last))
                        .filter(job_standings::state.eq_any(states.iter().map(|state| state.word())))
                        .order((job_standings::ended_at, job_standings::job_id))
                        .select((job_standings::job_id, job_standings::end_json))
                        .first(connection)
                        .optional()
                })?;
            if let Some((id, end)) = row {
                let end = end.and_then(|end| serde_json::from_str(&end).ok());
                let end = end.unwrap_or_else(|| End::of(EndReason::Internal, None));
                return Ok(Some((job_id(&id, "job_standings.job_id")?, end)));
            }
        }
        Ok(None)
    }

    /// When the last child began that ever did; `None` = none has, or it is no array.
    pub fn last_child_began(&self, parent: JobId) -> Result<Option<Timestamp>, StoreError> {
        let newest: Option<i64> = self.pool.query("when the last child of an array began", |connection| {
            let Some((first, last)) = range(connection, parent)? else { return Ok(None) };
            job_standings::table
                .filter(job_standings::job_id.between(first, last))
                .select(diesel::dsl::max(job_standings::started_at))
                .first(connection)
        })?;
        Ok(newest.map(Timestamp::from_micros))
    }

    /// The indices of the children that ended and did not succeed, ascending.
    pub fn failed_indices(&self, parent: JobId) -> Result<Vec<u64>, StoreError> {
        let words = [JobState::Failed, JobState::TimedOut, JobState::Cancelled].map(JobState::word);
        let rows: Vec<Option<i64>> = self.pool.query("the failed children of an array", |connection| {
            let Some((first, last)) = range(connection, parent)? else { return Ok(Vec::new()) };
            job_standings::table
                .inner_join(jobs::table)
                .filter(job_standings::job_id.between(first, last))
                .filter(job_standings::state.eq_any(words))
                .order(job_standings::job_id)
                .select(jobs::array_index)
                .load(connection)
        })?;
        Ok(rows.into_iter().flatten().map(|index| index as u64).collect())
    }

    /// What the children of an array left for another attempt, by their indices.
    pub fn checkpoints_of_children(&self, parent: JobId) -> Result<HashMap<u64, Digest>, StoreError> {
        let rows: Vec<(Option<i64>, JobStandingRow)> =
            self.pool.query("the checkpoints of an array", |connection| {
                let Some((first, last)) = range(connection, parent)? else { return Ok(Vec::new()) };
                job_standings::table
                    .inner_join(jobs::table)
                    .filter(job_standings::job_id.between(first, last))
                    .filter(job_standings::attempts.like("%\"checkpoint\"%"))
                    .select((jobs::array_index, JobStandingRow::as_select()))
                    .load(connection)
            })?;
        let mut left = HashMap::new();
        for (index, standing) in rows {
            let (index, checkpoint) = (index.map(|index| index as u64), standing.read()?.checkpoint);
            left.extend(index.zip(checkpoint));
        }
        Ok(left)
    }

    /// The spec of an array, as it was submitted.
    pub fn array_spec(&self, parent: JobId) -> Result<Option<String>, StoreError> {
        self.pool.query("the spec of an array", |connection| {
            jobs::table.find(parent.to_bytes()).select(jobs::spec).first(connection).optional()
        })
    }

    /// The array that a job is a child of.
    pub fn parent_of(&self, child: JobId) -> Result<Option<JobId>, StoreError> {
        let row: Option<Option<Vec<u8>>> = self.pool.query("the parent of a job", |connection| {
            jobs::table.find(child.to_bytes()).select(jobs::parent).first(connection).optional()
        })?;
        row.flatten().map(|bytes| job_id(&bytes, "jobs.parent")).transpose()
    }

    /// Every artifact that the children of an array name.
    pub fn artifacts_of_children(&self, parent: JobId) -> Result<Vec<Digest>, StoreError> {
        let rows: Vec<Vec<u8>> = self.pool.query("the artifacts of an array", |connection| {
            let Some((first, last)) = range(connection, parent)? else { return Ok(Vec::new()) };
            artifact_refs::table
                .filter(artifact_refs::job_id.between(first, last))
                .select(artifact_refs::digest)
                .distinct()
                .load(connection)
        })?;
        rows.iter().map(|bytes| hash(bytes, "artifact_refs.digest").map(Digest::from_bytes)).collect()
    }
}
