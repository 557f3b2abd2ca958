//! Jobs: one, a page of a list, and those a person may mean by a piece of text.

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Binary, Bool, Text};
use diesel::sqlite::Sqlite;

use super::Reads;
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::job::{Job, JobState, Page};
use crate::contract::quantity::Timestamp;
use crate::domain::change::JobStanding;
use crate::store::arrays::{live_ranges, range};
use crate::store::error::StoreError;
use crate::store::rows::{Beside, JobResultsRow, JobRow, JobStandingRow, job_id, read_job};
use crate::store::schema::{arrays, job_progress, job_results, job_standings, job_waits, jobs};

/// Which jobs a list shows. The default shows all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// In one of these states; empty = any.
    pub states: Vec<JobState>,
    /// Of this project.
    pub project: Option<String>,
    /// Of one of these projects, whatever else is asked for; `None` = of any.
    pub among: Option<Vec<String>>,
    /// With all of these labels.
    pub labels: Vec<LabelFilter>,
    /// With exactly this name.
    pub name: Option<String>,
    /// Submitted by this credential or user.
    pub submitted_by: Option<String>,
    /// Whose newest task was placed there.
    pub worker: Option<WorkerId>,
    /// Children of this array; `None` = those that are no children, or with `worker` any.
    pub parent: Option<JobId>,
    /// Accepted after this moment.
    pub submitted_after: Option<Timestamp>,
}

/// A label that a job must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelFilter {
    /// Its key.
    pub key: String,
    /// Its value; `None` = any.
    pub value: Option<String>,
}

/// Candidates answered for an ambiguous text.
const CANDIDATES: i64 = 10;
/// Characters an id's end must have to be taken as one.
const SHORTEST_SUFFIX: usize = 4;

type JobRows = (JobRow, JobStandingRow, Option<JobResultsRow>, Beside);

impl Reads {
    /// One job; `queue_reason` is left to whoever knows it.
    pub fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        let row: Option<JobRows> = self.pool.query("a job", |connection| {
            job_standings::table
                .inner_join(
                    jobs::table
                        .left_join(job_results::table)
                        .left_join(job_waits::table)
                        .left_join(arrays::table.on(arrays::job_id.nullable().eq(jobs::parent)))
                        .left_join(job_progress::table),
                )
                .filter(job_standings::job_id.eq(id.to_bytes()))
                .select((
                    JobRow::as_select(),
                    JobStandingRow::as_select(),
                    Option::<JobResultsRow>::as_select(),
                    (
                        job_waits::waits.nullable(),
                        arrays::child_spec.nullable(),
                        job_progress::progress.nullable(),
                    ),
                ))
                .first(connection)
                .optional()
        })?;
        row.map(read_rows).transpose()
    }

    /// Where one job stands.
    pub fn job_standing(&self, id: JobId) -> Result<Option<JobStanding>, StoreError> {
        let row: Option<JobStandingRow> = self.pool.query("a job's standing", |connection| {
            job_standings::table
                .find(id.to_bytes())
                .select(JobStandingRow::as_select())
                .first(connection)
                .optional()
        })?;
        row.map(JobStandingRow::read).transpose()
    }

    /// A page of the jobs that match, newest first, of those before `cursor` (the last id of the page before).
    pub fn jobs(
        &self,
        filter: &JobFilter,
        cursor: Option<JobId>,
        limit: usize,
    ) -> Result<Page<Job>, StoreError> {
        let mut rows =
            self.pool.query("a page of jobs", |connection| load_page(connection, filter, cursor, limit))?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let items: Vec<Job> = rows.into_iter().map(read_rows).collect::<Result<_, _>>()?;
        let next_cursor = items.last().filter(|_| more).map(|job| job.id.to_string());
        Ok(Page { items, next_cursor })
    }

    /// The jobs a person may mean by `text`: `@last` (of `submitted_by`, if given), else a whole id, a name (its latest
    /// job), the beginning of an id, or the end of one (from 4 characters). Newest first; none = no such job,
    /// several = ambiguous, of which at most 10 are answered. Only jobs of the projects in `among` are meant, if given.
    pub fn resolve(
        &self,
        text: &str,
        submitted_by: Option<&str>,
        among: Option<&[String]>,
    ) -> Result<Vec<JobId>, StoreError> {
        if text == "@last" {
            return self.latest(submitted_by, among);
        }
        if let Ok(id) = text.parse::<JobId>() {
            let owner = self
                .job_owner(id)?
                .filter(|job| among.is_none_or(|projects| projects.contains(&job.project)));
            return Ok(owner.map(|_| id).into_iter().collect());
        }
        // A name that looks like a piece of an id is still a name: people choose names, not ids.
        let named = self.latest_named(text, among)?;
        if !named.is_empty() {
            return Ok(named);
        }
        if let Some(beginning) = text.strip_prefix(JobId::PREFIX) {
            return match id_range(beginning) {
                Some((low, high)) => self.between(low, high, among),
                None => Ok(Vec::new()),
            };
        }
        // Tables show the tail of an id behind an ellipsis, and people copy what they see.
        let suffix = text.strip_prefix('…').unwrap_or(text);
        if suffix.len() >= SHORTEST_SUFFIX { self.ending_with(suffix, among) } else { Ok(Vec::new()) }
    }

    fn latest(&self, submitted_by: Option<&str>, among: Option<&[String]>) -> Result<Vec<JobId>, StoreError> {
        read_ids(self.pool.query("the last job", |connection| {
            let mut query = jobs::table
                .filter(jobs::parent.is_null())
                .select(jobs::id)
                .order(jobs::id.desc())
                .limit(1)
                .into_boxed::<Sqlite>();
            if let Some(submitted_by) = submitted_by {
                query = query.filter(jobs::submitted_by.eq(submitted_by));
            }
            if let Some(among) = among {
                query = query.filter(jobs::project.eq_any(among));
            }
            query.load(connection)
        })?)
    }

    fn latest_named(&self, name: &str, among: Option<&[String]>) -> Result<Vec<JobId>, StoreError> {
        read_ids(self.pool.query("jobs by name", |connection| {
            ids_among(among)
                .filter(jobs::name.eq(name))
                .filter(jobs::parent.is_null())
                .order(jobs::id.desc())
                .limit(1)
                .load(connection)
        })?)
    }

    fn between(&self, low: JobId, high: JobId, among: Option<&[String]>) -> Result<Vec<JobId>, StoreError> {
        read_ids(self.pool.query("jobs by the beginning of an id", |connection| {
            ids_among(among)
                .filter(jobs::id.between(low.to_bytes(), high.to_bytes()))
                .order(jobs::id.desc())
                .limit(CANDIDATES)
                .load(connection)
        })?)
    }

    /// Looks at every id: there is no index of ends, and a person asks rarely.
    fn ending_with(&self, suffix: &str, among: Option<&[String]>) -> Result<Vec<JobId>, StoreError> {
        let ids = self.pool.query("jobs by the end of an id", |connection| {
            ids_among(among).order(jobs::id.desc()).load(connection)
        })?;
        let mut ids = read_ids(ids)?;
        ids.retain(|id| id.to_string().strip_prefix(JobId::PREFIX).is_some_and(|id| id.ends_with(suffix)));
        ids.truncate(CANDIDATES as usize);
        Ok(ids)
    }
}

fn read_rows((job, standing, results, beside): JobRows) -> Result<Job, StoreError> {
    read_job(job, standing, results, beside)
}

/// Ids of the jobs of these projects, or of all.
fn ids_among(projects: Option<&[String]>) -> jobs::BoxedQuery<'_, Sqlite, diesel::sql_types::Binary> {
    let ids = jobs::table.select(jobs::id).into_boxed::<Sqlite>();
    match projects {
        Some(projects) => ids.filter(jobs::project.eq_any(projects)),
        None => ids,
    }
}

fn load_page(
    connection: &mut SqliteConnection,
    filter: &JobFilter,
    cursor: Option<JobId>,
    limit: usize,
) -> QueryResult<Vec<JobRows>> {
    let mut query = job_standings::table
        .inner_join(
            jobs::table
                .left_join(job_results::table)
                .left_join(job_waits::table)
                .left_join(arrays::table.on(arrays::job_id.nullable().eq(jobs::parent)))
                .left_join(job_progress::table),
        )
        .select((
            JobRow::as_select(),
            JobStandingRow::as_select(),
            Option::<JobResultsRow>::as_select(),
            (job_waits::waits.nullable(), arrays::child_spec.nullable(), job_progress::progress.nullable()),
        ))
        .limit(limit as i64 + 1)
        .into_boxed::<Sqlite>();
    let live = !filter.states.is_empty() && !filter.states.iter().any(|state| state.ended());
    if !filter.states.is_empty() {
        query = query.filter(job_standings::state.eq_any(filter.states.iter().map(|state| state.word())));
        // Said in the index's own words, so that live jobs are found without reading the ended ones.
        if live {
            query = query.filter(job_standings::ended_at.is_null());
        }
    }
    // Live jobs are found by their own index, others by that of parents and jobs without one; and the children of a live
    // array are stepped over in one go.
    let before = cursor.map_or([u8::MAX; 16], |cursor| cursor.to_bytes());
    query = if live || filter.parent.is_some() || filter.worker.is_some() {
        query.filter(job_standings::job_id.lt(before)).order(job_standings::job_id.desc())
    } else {
        query.filter(jobs::id.lt(before)).order(jobs::id.desc())
    };
    if live && filter.parent.is_none() && filter.worker.is_none() {
        for (first, last) in live_ranges(connection)? {
            query = query.filter(diesel::dsl::not(job_standings::job_id.between(first, last)));
        }
    }
    query = match filter.parent {
        Some(parent) => {
            let range = range(connection, parent)?;
            // No array has no children.
            let (first, last) = range.unwrap_or(([1; 16], [0; 16]));
            query
                .filter(job_standings::job_id.between(first, last))
                .filter(jobs::parent.eq(parent.to_bytes()))
        }
        // Who asks for a worker asks for what runs there, and that are children.
        None if filter.worker.is_some() => query,
        None => query.filter(jobs::parent.is_null()),
    };
    if let Some(project) = &filter.project {
        query = query.filter(jobs::project.eq(project));
    }
    if let Some(among) = &filter.among {
        query = query.filter(jobs::project.eq_any(among));
    }
    if let Some(name) = &filter.name {
        query = query.filter(jobs::name.eq(name));
    }
    if let Some(submitted_by) = &filter.submitted_by {
        query = query.filter(jobs::submitted_by.eq(submitted_by));
    }
    if let Some(worker) = filter.worker {
        // A job's own column says where rank 0 is.
        let of_a_gang = sql::<Bool>(
            "EXISTS (SELECT 1 FROM tasks AS one WHERE one.job_id = job_standings.job_id AND one.epoch = job_standings.epoch \
             AND one.gang IS NOT NULL AND one.worker = ",
        );
        let of_a_gang = of_a_gang.bind::<Binary, _>(worker.to_bytes().to_vec()).sql(")");
        query = query.filter(job_standings::worker.eq(worker.to_bytes()).or(of_a_gang));
    }
    if let Some(after) = filter.submitted_after {
        query = query.filter(jobs::submitted_at.gt(after.micros()));
    }
    for label in &filter.labels {
        let found = sql::<Bool>("EXISTS (SELECT 1 FROM json_each(jobs.labels) AS label WHERE label.key = ")
            .bind::<Text, _>(&label.key);
        query = match &label.value {
            Some(value) => query.filter(found.sql(" AND label.value = ").bind::<Text, _>(value).sql(")")),
            None => query.filter(found.sql(")")),
        };
    }
    query.load(connection)
}

fn read_ids(rows: Vec<Vec<u8>>) -> Result<Vec<JobId>, StoreError> {
    rows.iter().map(|bytes| job_id(bytes, "jobs.id")).collect()
}

/// The lowest and highest id that begin with these characters (without `job_`); `None` = no id can.
fn id_range(beginning: &str) -> Option<(JobId, JobId)> {
    if beginning.is_empty() {
        return Some((JobId::from_u128(0), JobId::from_u128(u128::MAX)));
    }
    let missing = 26usize.checked_sub(beginning.len())?;
    let fill = |digit: &str| format!("{}{beginning}{}", JobId::PREFIX, digit.repeat(missing)).parse().ok();
    Some((fill("0")?, fill("z")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_beginning_holds_the_ids_that_begin_so() {
        let id = JobId::from_u128(0x0190_1234_5678_9abc_def0_1234_5678_9abc);
        let text = id.to_string();
        for length in 0..=26 {
            let (low, high) = id_range(&text[4..4 + length]).unwrap();
            assert!(low <= id && id <= high, "{length}");
        }
        assert_eq!(id_range(&text[4..]).unwrap(), (id, id));
        assert_eq!(id_range("u"), None);
        assert_eq!(id_range("é"), None);
    }
}
