//! What decides who may see and do what: a job's project and who submitted it, and whose an artifact is.

use diesel::dsl::exists;
use diesel::prelude::*;
use diesel::select;

use super::Reads;
use crate::contract::artifact::Digest;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::domain::change::Uploader;
use crate::domain::credentials::OwnedJob;
use crate::store::error::StoreError;
use crate::store::schema::{artifact_refs, artifact_uploads, jobs, task_standings, tasks};

impl Reads {
    /// Whose a job is; `None` = there is none.
    pub fn job_owner(&self, id: JobId) -> Result<Option<OwnedJob>, StoreError> {
        let row: Option<(String, String)> = self.pool.query("a job's owner", |connection| {
            jobs::table
                .find(id.to_bytes())
                .select((jobs::project, jobs::submitted_by))
                .first(connection)
                .optional()
        })?;
        Ok(row.map(|(project, submitted_by)| OwnedJob { project, submitted_by }))
    }

    /// Whose a job is, and what people call it; `None` = there is none.
    pub fn named_job(&self, id: JobId) -> Result<Option<(OwnedJob, Option<String>)>, StoreError> {
        let row: Option<(String, String, Option<String>)> =
            self.pool.query("a job's owner and name", |connection| {
                jobs::table
                    .find(id.to_bytes())
                    .select((jobs::project, jobs::submitted_by, jobs::name))
                    .first(connection)
                    .optional()
            })?;
        Ok(row.map(|(project, submitted_by, name)| (OwnedJob { project, submitted_by }, name)))
    }

    /// Those of `ids` whose job is of one of these projects.
    pub fn tasks_of_projects(&self, ids: &[TaskId], projects: &[String]) -> Result<Vec<TaskId>, StoreError> {
        let mut seen = Vec::new();
        for id in ids {
            let project: Option<String> = self.pool.query("a task's project", |connection| {
                tasks::table
                    .inner_join(jobs::table.on(jobs::id.eq(tasks::job_id)))
                    .filter(tasks::id.eq(id.to_bytes()))
                    .select(jobs::project)
                    .first(connection)
                    .optional()
            })?;
            if project.is_some_and(|project| projects.contains(&project)) {
                seen.push(*id);
            }
        }
        Ok(seen)
    }

    /// Whether one of these projects sent this artifact, or a job of theirs names or produced it.
    pub fn artifact_of_projects(&self, digest: &Digest, projects: &[String]) -> Result<bool, StoreError> {
        let of_jobs = artifact_refs::table
            .inner_join(jobs::table.on(jobs::id.eq(artifact_refs::job_id)))
            .filter(artifact_refs::digest.eq(*digest.bytes()))
            .filter(jobs::project.eq_any(projects))
            .select(artifact_refs::job_id);
        let owners = projects.iter().map(|name| Uploader::Project(name.clone()).to_string());
        Ok(self.sent_by(digest, owners)?
            || self.pool.query("a project's claim to an artifact", |connection| {
                select(exists(of_jobs)).get_result(connection)
            })?)
    }

    /// Whether this worker sent this artifact, or a task that has not ended on it belongs to a job that names or
    /// produced it.
    pub fn artifact_of_worker(&self, digest: &Digest, worker: WorkerId) -> Result<bool, StoreError> {
        // From the artifact to its jobs to their tasks: each step has its index, and live tasks have none.
        let live = tasks::table
            .inner_join(task_standings::table)
            .filter(tasks::job_id.eq(artifact_refs::job_id))
            .filter(tasks::worker.eq(worker.to_bytes()))
            .filter(task_standings::ended_at.is_null());
        self.pool.query("a worker's claim to an artifact", |connection| {
            select(exists(
                artifact_refs::table
                    .filter(artifact_refs::digest.eq(*digest.bytes()))
                    .filter(exists(live))
                    .select(artifact_refs::job_id),
            ))
            .get_result(connection)
        })
    }

    /// Whether this worker sent the bytes of this artifact.
    pub fn artifact_sent_by(&self, digest: &Digest, worker: WorkerId) -> Result<bool, StoreError> {
        self.sent_by(digest, [Uploader::Worker(worker).to_string()])
    }

    fn sent_by(&self, digest: &Digest, owners: impl IntoIterator<Item = String>) -> Result<bool, StoreError> {
        let owners: Vec<String> = owners.into_iter().collect();
        self.pool.query("who sent an artifact", |connection| {
            select(exists(
                artifact_uploads::table
                    .filter(artifact_uploads::digest.eq(*digest.bytes()))
                    .filter(artifact_uploads::owner.eq_any(owners)),
            ))
            .get_result(connection)
        })
    }
}
