//! Tasks, events, used keys and artifact references: what happened, and what it holds on to.

use diesel::dsl::exists;
use diesel::prelude::*;
use diesel::select;
use diesel::sqlite::Sqlite;

use super::Reads;
use crate::contract::artifact::Digest;
use crate::contract::event::Event;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::job::JobState;
use crate::contract::quantity::Timestamp;
use crate::contract::worker::Task;
use crate::domain::change::{TaskRecord, TaskStanding, UsedKey};
use crate::store::error::StoreError;
use crate::store::forms::signed;
use crate::store::rows::{EventRow, TaskRow, TaskStandingRow, UsedKeyRow, hash, read_task};
use crate::store::schema::{
    artifact_refs, events, job_standings, jobs, late_results, task_standings, tasks, used_keys,
};
use crate::store::words;

/// An ended task as its repeated finish has to be judged and answered.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskFinish {
    /// Which placement it was.
    pub record: TaskRecord,
    /// How it stands, with the end that was recorded.
    pub standing: TaskStanding,
    /// Where its job stands now.
    pub job_state: JobState,
}

/// Which events of the feed somebody may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedScope {
    /// All.
    All,
    /// Those of jobs.
    Jobs,
    /// Those of these projects' jobs.
    Projects(Vec<String>),
}

impl Reads {
    /// A job's placements, oldest first.
    pub fn tasks(&self, job: JobId) -> Result<Vec<Task>, StoreError> {
        type Row = (TaskRow, TaskStandingRow, Option<String>);
        let rows: Vec<Row> = self.pool.query("a job's tasks", |connection| {
            tasks::table
                .inner_join(task_standings::table)
                .left_join(late_results::table.on(late_results::task_id.eq(tasks::id)))
                .filter(tasks::job_id.eq(job.to_bytes()))
                .order((tasks::job_id, tasks::id))
                .select((
                    TaskRow::as_select(),
                    TaskStandingRow::as_select(),
                    late_results::outputs.nullable(),
                ))
                .load(connection)
        })?;
        rows.into_iter().map(|(row, standing, late)| read_task(row, standing, late)).collect()
    }

    /// The ranks of those placements that are tasks of gangs.
    pub fn ranks(&self, job: JobId) -> Result<Vec<(TaskId, u32)>, StoreError> {
        let rows: Vec<TaskRow> = self.pool.query("a job's ranks", |connection| {
            tasks::table
                .filter(tasks::job_id.eq(job.to_bytes()))
                .filter(tasks::gang.is_not_null())
                .select(TaskRow::as_select())
                .load(connection)
        })?;
        rows.into_iter().map(|row| row.read().map(|record| (record.id, record.rank()))).collect()
    }

    /// What never changes about a task.
    pub fn task_record(&self, task: TaskId) -> Result<Option<TaskRecord>, StoreError> {
        let row: Option<TaskRow> = self.pool.query("a task", |connection| {
            tasks::table
                .filter(tasks::id.eq(task.to_bytes()))
                .select(TaskRow::as_select())
                .first(connection)
                .optional()
        })?;
        row.map(TaskRow::read).transpose()
    }

    /// A task that has ended, for a repeat of its finish; `None` = no such task, or not ended.
    pub fn task_finish(&self, task: TaskId) -> Result<Option<TaskFinish>, StoreError> {
        let row: Option<(TaskRow, TaskStandingRow, String)> =
            self.pool.query("a task's finish", |connection| {
                tasks::table
                    .inner_join(task_standings::table)
                    .inner_join(job_standings::table.on(job_standings::job_id.eq(tasks::job_id)))
                    .filter(tasks::id.eq(task.to_bytes()))
                    .filter(task_standings::ended_at.is_not_null())
                    .select((TaskRow::as_select(), TaskStandingRow::as_select(), job_standings::state))
                    .first(connection)
                    .optional()
            })?;
        row.map(|(row, standing, state)| {
            Ok(TaskFinish {
                record: row.read()?,
                standing: standing.read()?,
                job_state: words::read_job_state(&state)?,
            })
        })
        .transpose()
    }

    /// A job's events numbered above `after`, oldest first, at most `limit`.
    pub fn events(&self, job: JobId, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        let rows: Vec<EventRow> = self.pool.query("a job's events", |connection| {
            events::table
                .filter(events::job_id.eq(job.to_bytes()))
                .filter(events::seq.gt(signed(after)))
                .order(events::seq)
                .limit(limit as i64)
                .select(EventRow::as_select())
                .load(connection)
        })?;
        rows.into_iter().map(EventRow::read).collect()
    }

    /// Whether this task, which was given up, has brought something back late.
    pub fn came_late(&self, task: TaskId) -> Result<bool, StoreError> {
        self.pool.query("late results", |connection| {
            select(exists(late_results::table.filter(late_results::task_id.eq(task.to_bytes()))))
                .get_result(connection)
        })
    }

    /// Events at positions above `after`, oldest first, at most `limit`, of those in `scope`, and up to where it
    /// looked. Purged jobs leave gaps.
    pub fn feed(&self, after: u64, limit: usize, scope: &FeedScope) -> Result<(Vec<Event>, u64), StoreError> {
        let (rows, newest): (Vec<EventRow>, Option<i64>) =
            self.pool.query("the event feed", |connection| {
                // First: what is committed meanwhile must not be passed over.
                let newest = events::table.select(diesel::dsl::max(events::position)).first(connection)?;
                let mut query = events::table
                    .filter(events::position.gt(signed(after)))
                    .order(events::position)
                    .limit(limit as i64)
                    .select(EventRow::as_select())
                    .into_boxed::<Sqlite>();
                query =
                    match scope {
                        FeedScope::All => query,
                        FeedScope::Jobs => query.filter(events::job_id.is_not_null()),
                        FeedScope::Projects(names) => query.filter(events::job_id.eq_any(
                            jobs::table.filter(jobs::project.eq_any(names)).select(jobs::id.nullable()),
                        )),
                    };
                Ok((query.load(connection)?, newest))
            })?;
        let events: Vec<Event> = rows.into_iter().map(EventRow::read).collect::<Result<_, _>>()?;
        let through = match events.last() {
            Some(last) if events.len() >= limit => last.position,
            last => (newest.unwrap_or(0) as u64).max(last.map_or(after, |last| last.position)),
        };
        Ok((events, through))
    }

    /// A used idempotency key with its first answer.
    pub fn used_key(&self, scope: &[u8; 32]) -> Result<Option<UsedKey>, StoreError> {
        let row: Option<UsedKeyRow> = self.pool.query("a used key", |connection| {
            used_keys::table
                .filter(used_keys::scope.eq(scope.as_slice()))
                .select(UsedKeyRow::as_select())
                .first(connection)
                .optional()
        })?;
        row.map(UsedKeyRow::read).transpose()
    }

    /// The scopes of all keys used at or after `since` and when, oldest first.
    pub fn used_key_scopes(&self, since: Timestamp) -> Result<Vec<([u8; 32], Timestamp)>, StoreError> {
        let rows: Vec<(Vec<u8>, i64)> = self.pool.query("the used keys", |connection| {
            used_keys::table
                .filter(used_keys::used_at.ge(since.micros()))
                .order(used_keys::rowid)
                .select((used_keys::scope, used_keys::used_at))
                .load(connection)
        })?;
        let read = |(scope, used_at): &(Vec<u8>, i64)| {
            Ok((hash(scope, "used_keys.scope")?, Timestamp::from_micros(*used_at)))
        };
        rows.iter().map(read).collect()
    }

    /// Whether a job other than `except` names or produced this artifact.
    pub fn artifact_referenced(&self, digest: &Digest, except: Option<JobId>) -> Result<bool, StoreError> {
        let of_digest = artifact_refs::table.filter(artifact_refs::digest.eq(*digest.bytes()));
        self.pool.query("the references to an artifact", |connection| match except {
            Some(job) => select(exists(of_digest.filter(artifact_refs::job_id.ne(job.to_bytes()))))
                .get_result(connection),
            None => select(exists(of_digest)).get_result(connection),
        })
    }

    /// The artifacts that a job names or produced.
    pub fn artifacts_of(&self, job: JobId) -> Result<Vec<Digest>, StoreError> {
        let rows: Vec<Vec<u8>> = self.pool.query("a job's artifacts", |connection| {
            artifact_refs::table
                .filter(artifact_refs::job_id.eq(job.to_bytes()))
                .select(artifact_refs::digest)
                .distinct()
                .load(connection)
        })?;
        rows.iter().map(|bytes| hash(bytes, "artifact_refs.digest").map(Digest::from_bytes)).collect()
    }
}
