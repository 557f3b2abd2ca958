//! What the actors need to stand where they stood before a restart.

use std::collections::HashMap;
use std::sync::Arc;

use diesel::prelude::*;

use super::Reads;
use crate::contract::ids::JobId;
use crate::contract::quantity::Timestamp;
use crate::domain::change::{JobStanding, OutboxEntry, TaskRecord, TaskStanding, TokenRecord, WorkerRecord};
use crate::domain::dependency::Wait;
use crate::store::error::StoreError;
use crate::store::rows::{JobStandingRow, OutboxRow, TaskRow, TaskStandingRow, TokenRow, WorkerRow, job_id};
use crate::store::schema::{
    arrays, events, job_standings, job_waits, jobs, meta, outbox, task_standings, tasks, tokens, workers,
};

/// Ids per query: well below SQLite's limit of bound values.
const IDS_AT_ONCE: usize = 500;

/// A job that has not ended, with all that is needed to queue it, but not its spec.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveRow {
    /// The job.
    pub id: JobId,
    /// Higher goes first.
    pub priority: i32,
    /// What it asks of a machine, as JSON.
    pub shape: Arc<str>,
    /// Whose share it counts towards.
    pub project: Arc<str>,
    /// When it was accepted.
    pub submitted_at: Timestamp,
    /// When its queue timeout ends.
    pub queue_deadline: Option<Timestamp>,
    /// The array it is a child of.
    pub parent: Option<JobId>,
    /// Where it stands.
    pub standing: JobStanding,
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = jobs)]
struct LiveJobRow {
    id: Vec<u8>,
    priority: i32,
    shape: String,
    project: String,
    submitted_at: i64,
    queue_deadline: Option<i64>,
    parent: Option<Vec<u8>>,
}

impl Reads {
    /// Every job that has not ended, oldest first.
    pub fn live_jobs(&self) -> Result<Vec<LiveRow>, StoreError> {
        let rows: Vec<(LiveJobRow, JobStandingRow)> = self.pool.query("the live jobs", |connection| {
            job_standings::table
                .inner_join(jobs::table)
                .filter(job_standings::ended_at.is_null())
                .order(job_standings::job_id)
                .select((LiveJobRow::as_select(), JobStandingRow::as_select()))
                .load(connection)
        })?;
        // Few shapes, many jobs: neighbours share one text.
        let (mut last, mut last_project): (Option<Arc<str>>, Option<Arc<str>>) = (None, None);
        let shared = |last: &mut Option<Arc<str>>, text: String| match last {
            Some(known) if **known == *text => Arc::clone(known),
            _ => Arc::clone(last.insert(Arc::from(text))),
        };
        rows.into_iter()
            .map(|(row, standing)| {
                let shape = shared(&mut last, row.shape);
                let project = shared(&mut last_project, row.project);
                Ok(LiveRow {
                    id: job_id(&row.id, "jobs.id")?,
                    priority: row.priority,
                    shape,
                    project,
                    submitted_at: Timestamp::from_micros(row.submitted_at),
                    queue_deadline: row.queue_deadline.map(Timestamp::from_micros),
                    parent: row.parent.map(|bytes| job_id(&bytes, "jobs.parent")).transpose()?,
                    standing: standing.read()?,
                })
            })
            .collect()
    }

    /// What jobs wait for, of those that do.
    pub fn waits(&self) -> Result<HashMap<JobId, Vec<Wait>>, StoreError> {
        let rows: Vec<(Vec<u8>, String)> = self.pool.query("what jobs wait for", |connection| {
            job_waits::table.select((job_waits::job_id, job_waits::waits)).load(connection)
        })?;
        rows.into_iter()
            .map(|(id, waits)| {
                let waits = serde_json::from_str(&waits)
                    .map_err(|_| StoreError::Corrupt { what: "job_waits.waits" })?;
                Ok((job_id(&id, "job_waits.job_id")?, waits))
            })
            .collect()
    }

    /// Tasks that have not ended, and ended ones whose resources may still be taken; the former first.
    pub fn live_tasks(&self) -> Result<Vec<(TaskRecord, TaskStanding)>, StoreError> {
        let rows: Vec<(TaskRow, TaskStandingRow)> = self.pool.query("the live tasks", |connection| {
            let columns = (TaskRow::as_select(), TaskStandingRow::as_select());
            // A task has not ended only while its job has not.
            let of_a_gang = tasks::gang.is_not_null().and(tasks::epoch.eq(job_standings::epoch));
            job_standings::table
                .inner_join(tasks::table.on(tasks::job_id.eq(job_standings::job_id)))
                .inner_join(task_standings::table.on(task_standings::task_id.eq(tasks::id)))
                .filter(job_standings::ended_at.is_null())
                .filter(task_standings::ended_at.is_null().or(of_a_gang))
                .order(tasks::id)
                .select(columns)
                .load(connection)
        })?;
        rows.into_iter().map(|(row, standing)| Ok((row.read()?, standing.read()?))).collect()
    }

    /// Tasks that have ended while their process trees may still be there.
    pub fn stale_tasks(&self) -> Result<Vec<(TaskRecord, TaskStanding)>, StoreError> {
        let rows: Vec<(TaskRow, TaskStandingRow)> = self.pool.query("the stale tasks", |connection| {
            task_standings::table
                .inner_join(tasks::table)
                .filter(task_standings::stale)
                .order(task_standings::task_id)
                .select((TaskRow::as_select(), TaskStandingRow::as_select()))
                .load(connection)
        })?;
        rows.into_iter().map(|(row, standing)| Ok((row.read()?, standing.read()?))).collect()
    }

    /// The specs of these jobs as JSON, in no order; a job that is not there is left out.
    pub fn specs(&self, ids: &[JobId]) -> Result<Vec<(JobId, Arc<str>)>, StoreError> {
        let mut specs = Vec::with_capacity(ids.len());
        for ids in ids.chunks(IDS_AT_ONCE) {
            let bytes: Vec<[u8; 16]> = ids.iter().map(|id| id.to_bytes()).collect();
            let rows: Vec<(Vec<u8>, String, Option<String>)> = self.pool.query("specs", |connection| {
                jobs::table
                    .left_join(arrays::table.on(arrays::job_id.nullable().eq(jobs::parent)))
                    .filter(jobs::id.eq_any(bytes))
                    .select((jobs::id, jobs::spec, arrays::child_spec.nullable()))
                    .load(connection)
            })?;
            for (id, spec, child_spec) in rows {
                let spec = child_spec.unwrap_or(spec);
                specs.push((job_id(&id, "jobs.id")?, Arc::from(spec)));
            }
        }
        Ok(specs)
    }

    /// Every worker that ever registered, oldest first.
    pub fn workers(&self) -> Result<Vec<WorkerRecord>, StoreError> {
        let rows: Vec<WorkerRow> = self.pool.query("the workers", |connection| {
            workers::table.order(workers::id).select(WorkerRow::as_select()).load(connection)
        })?;
        rows.into_iter().map(WorkerRow::read).collect()
    }

    /// Every credential, oldest first.
    pub fn tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
        let rows: Vec<TokenRow> = self.pool.query("the tokens", |connection| {
            tokens::table.order(tokens::created_at).select(TokenRow::as_select()).load(connection)
        })?;
        rows.into_iter().map(TokenRow::read).collect()
    }

    /// The newest event's server-wide number, also when that event is gone; 0 = none yet.
    pub fn last_position(&self) -> Result<u64, StoreError> {
        let (newest, floor): (Option<i64>, i64) = self.pool.query("the last position", |connection| {
            Ok((
                events::table.select(diesel::dsl::max(events::position)).first(connection)?,
                meta::table.find("last_position").select(meta::value).first(connection)?,
            ))
        })?;
        Ok(newest.unwrap_or(0).max(floor) as u64)
    }

    /// Effects that were decided and not delivered, oldest first.
    pub fn outbox(&self) -> Result<Vec<OutboxEntry>, StoreError> {
        let rows: Vec<OutboxRow> = self.pool.query("the outbox", |connection| {
            outbox::table.order(outbox::id).select(OutboxRow::as_select()).load(connection)
        })?;
        rows.into_iter().map(OutboxRow::read).collect()
    }
}
