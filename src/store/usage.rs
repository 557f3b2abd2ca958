//! Who had how much of the machines: what was noted, and what tasks held since.

use std::sync::Arc;

use diesel::prelude::*;
use diesel::{delete, insert_into, replace_into};

use super::error::StoreError;
use super::reads::Reads;
use super::schema::{job_standings, jobs, meta, project_usage, task_standings, tasks};
use crate::contract::quantity::Timestamp;
use crate::domain::placement::usage::{HeldSpan, NotedUsage};

/// The key of `meta` that says when it was noted.
const NOTED_AT: &str = "usage_noted_at";

/// Writes what every project had had, in place of what was noted before.
pub fn write(connection: &mut SqliteConnection, usage: &NotedUsage) -> QueryResult<()> {
    delete(project_usage::table).execute(connection)?;
    for (project, used) in &usage.used {
        // Above 2^63 it would be more than all machines for a hundred thousand years.
        let used = i64::try_from(*used).unwrap_or(i64::MAX);
        insert_into(project_usage::table)
            .values((project_usage::project.eq(&**project), project_usage::used.eq(used)))
            .execute(connection)?;
    }
    replace_into(meta::table)
        .values((meta::key.eq(NOTED_AT), meta::value.eq(usage.at.micros())))
        .execute(connection)
        .map(drop)
}

type SpanRow = (String, i64, i64, Option<i64>);

fn span((project, weight, from, to): SpanRow) -> HeldSpan {
    HeldSpan {
        project: Arc::from(project),
        weight: weight.unsigned_abs(),
        from: Timestamp::from_micros(from),
        to: to.map(Timestamp::from_micros),
    }
}

impl Reads {
    /// What was noted last; `None` = nothing was.
    pub fn noted_usage(&self) -> Result<Option<NotedUsage>, StoreError> {
        let (at, rows): (Option<i64>, Vec<(String, i64)>) =
            self.pool.query("who had how much", |connection| {
                let at = meta::table.find(NOTED_AT).select(meta::value).first(connection).optional()?;
                let columns = (project_usage::project, project_usage::used);
                Ok((at, project_usage::table.select(columns).order(project_usage::project).load(connection)?))
            })?;
        let used = rows.into_iter().map(|(project, used)| (Arc::from(project), used.unsigned_abs()));
        Ok(at.map(|at| NotedUsage { at: Timestamp::from_micros(at), used: used.collect() }))
    }

    /// What tasks held that have not ended, or ended after `since`: as many rows as that are, by an index.
    pub fn held_since(&self, since: Timestamp) -> Result<Vec<HeldSpan>, StoreError> {
        let columns = (jobs::project, tasks::weight, tasks::assigned_at, task_standings::ended_at);
        let rows: Vec<SpanRow> = self.pool.query("what tasks held of late", |connection| {
            let mut rows: Vec<SpanRow> = task_standings::table
                .inner_join(tasks::table.inner_join(jobs::table.on(jobs::id.eq(tasks::job_id))))
                .filter(task_standings::ended_at.gt(since.micros()))
                .select(columns)
                .load(connection)?;
            // A task has not ended only while its job has not.
            let live: Vec<SpanRow> = job_standings::table
                .inner_join(jobs::table)
                .inner_join(tasks::table.on(tasks::job_id.eq(job_standings::job_id)))
                .inner_join(task_standings::table.on(task_standings::task_id.eq(tasks::id)))
                .filter(job_standings::ended_at.is_null())
                .filter(task_standings::ended_at.is_null())
                .select(columns)
                .load(connection)?;
            rows.extend(live);
            Ok(rows)
        })?;
        Ok(rows.into_iter().map(span).collect())
    }
}
