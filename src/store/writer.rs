//! The one connection that writes the main database.
//!
//! A batch is one transaction that first checks the leader's term. Rows are after-images written with REPLACE, so
//! of several standings of one job or task in a batch only the last is written.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use diesel::prelude::*;
use diesel::{delete, replace_into};

use super::arrays;
use super::checkpoint::Checkpointer;
use super::connection::{self, Role};
use super::error::StoreError;
use super::explanations;
use super::forms::{
    self, EventForm, JobForm, JobResultsForm, JobStandingForm, LateResultsForm, OutboxForm, TaskForm,
    TaskStandingForm, TokenForm, UsedKeyForm, WorkerForm, signed,
};
use super::lock::StateLock;
use super::schema::{
    artifact_refs, artifact_uploads, events, job_progress, job_results, job_standings, job_waits, jobs,
    late_results, meta, outbox, task_standings, tasks, tokens, used_keys, workers,
};
use super::space::Ballast;
use super::usage;
use super::yielded;
use crate::contract::artifact::Digest;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::quantity::{Seconds, Timestamp};
use crate::contract::worker::TaskState;
use crate::domain::change::{Change, JobResults, TaskStanding, Uploader};

/// Where the journal writes. A trait, so that tests can make the nth commit fail.
pub trait CommitPort: Send {
    /// Makes the batch durable in one transaction, or nothing of it. Fails when `term` is not the database's.
    fn apply(&mut self, batch: &[Change], term: u64) -> Result<(), StoreError>;
}

/// How long used keys answer repeats (CONTRACT, Requests and answers).
pub const KEYS_KEPT: Seconds = Seconds::new(7 * 86_400);
/// Old keys go in passing: at most so many with one commit, so that no commit pays for a backlog.
const KEYS_PRUNED_AT_ONCE: i64 = 256;
/// Between two looks for old keys, by the clock of the keys themselves.
const PRUNE_EVERY: Seconds = Seconds::new(60);
/// How long it is remembered who sent an artifact; longer than anything else keeps one that no job names.
const UPLOADS_KEPT: Seconds = Seconds::new(7 * 86_400);
/// Old ones go in passing, like keys.
const UPLOADS_PRUNED_AT_ONCE: i64 = 16;
/// A placed task until its worker starts it.
const FRESH_TASK: TaskStanding = TaskStanding::of(TaskState::Assigned);

/// Writes the main database. There is one per state folder: whoever holds it holds the folder's lock.
pub struct Writer {
    path: PathBuf,
    connection: SqliteConnection,
    checkpointer: Checkpointer,
    ballast: Arc<Ballast>,
    next_prune: Timestamp,
    _lock: Arc<StateLock>,
}

impl Writer {
    pub(super) fn new(
        path: PathBuf,
        connection: SqliteConnection,
        checkpointer: Checkpointer,
        ballast: Arc<Ballast>,
        lock: Arc<StateLock>,
    ) -> Self {
        Self { path, connection, checkpointer, ballast, next_prune: Timestamp::default(), _lock: lock }
    }

    fn commit(&mut self, batch: &[Change], term: u64) -> Result<(), StoreError> {
        let superseded = superseded(batch);
        let prune = self.keys_to_prune(batch);
        let full = {
            let _gate = self.checkpointer.gate();
            connection::transaction(&mut self.connection, |connection| {
                check_term(connection, term)?;
                for (change, superseded) in batch.iter().zip(superseded) {
                    write(connection, change, superseded)?;
                }
                prune.map_or(Ok(false), |before| prune_keys(connection, before))
            })?
        };
        if let Some(before) = prune
            && !full
        {
            self.next_prune = before.plus(KEYS_KEPT).plus(PRUNE_EVERY);
        }
        self.checkpointer.wrote(batch.len() as u64);
        Ok(())
    }

    /// On a full disk SQLite says `disk is full` where its log cannot grow, and `disk I/O error` where the log's index
    /// cannot.
    fn lacked_room(&self, error: &StoreError) -> bool {
        match error {
            StoreError::Full { .. } => true,
            StoreError::Commit { .. } => self.ballast.folder_is_full(),
            _ => false,
        }
    }

    /// The time before which keys go with this batch. Time comes from the keys of the batch: there is no clock here.
    fn keys_to_prune(&self, batch: &[Change]) -> Option<Timestamp> {
        let now = batch.iter().rev().find_map(|change| match change {
            Change::KeyUsed(key) => Some(key.used_at),
            _ => None,
        })?;
        (now >= self.next_prune)
            .then(|| Timestamp::from_micros(now.micros() - Timestamp::default().plus(KEYS_KEPT).micros()))
    }
}

impl CommitPort for Writer {
    fn apply(&mut self, batch: &[Change], term: u64) -> Result<(), StoreError> {
        match self.commit(batch, term) {
            // SQLite may have rolled back by itself, and then the connection's own idea of its transaction is
            // wrong: the second try gets a new one.
            Err(error) if self.lacked_room(&error) && self.ballast.release() => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the disk is full: released the ballast"
                );
                self.connection = connection::open(&self.path, Role::Writer)?;
                self.commit(batch, term)
            }
            outcome => outcome,
        }
    }
}

/// For each change, whether a later one of the batch writes the same standing. A purge removes rows of tasks that it
/// does not name, so nothing is superseded across it.
fn superseded(batch: &[Change]) -> Vec<bool> {
    let mut answer = vec![false; batch.len()];
    if batch.len() < 2 {
        return answer;
    }
    let mut jobs = HashSet::new();
    let mut tasks = HashSet::new();
    for (superseded, change) in answer.iter_mut().zip(batch).rev() {
        *superseded = match change {
            Change::JobInserted(record, _) => !jobs.insert(record.id),
            Change::JobMoved(id, _) => !jobs.insert(*id),
            Change::TaskInserted(record) => !tasks.insert(record.id),
            Change::TaskMoved(id, _) => !tasks.insert(*id),
            Change::JobPurged(_) => {
                jobs.clear();
                tasks.clear();
                false
            }
            _ => false,
        };
    }
    answer
}

fn check_term(connection: &mut SqliteConnection, held: u64) -> Result<(), StoreError> {
    let current: i64 = meta::table.find("leader_term").select(meta::value).first(connection)?;
    if current == signed(held) { Ok(()) } else { Err(StoreError::TermOver { held, current: current as u64 }) }
}

fn write(connection: &mut SqliteConnection, change: &Change, superseded: bool) -> QueryResult<()> {
    match change {
        Change::JobInserted(record, standing) => {
            replace_into(jobs::table).values(JobForm::from(&**record)).execute(connection)?;
            refer(connection, record.id, false, &record.artifacts)?;
            if !superseded {
                replace_into(job_standings::table)
                    .values(JobStandingForm::new(record.id, standing))
                    .execute(connection)?;
            }
        }
        Change::JobMoved(id, standing) if !superseded => {
            replace_into(job_standings::table)
                .values(JobStandingForm::new(*id, standing))
                .execute(connection)?;
        }
        Change::TaskInserted(record) => {
            replace_into(tasks::table).values(TaskForm::from(record)).execute(connection)?;
            if !superseded {
                replace_into(task_standings::table)
                    .values(TaskStandingForm::new(record.id, &FRESH_TASK))
                    .execute(connection)?;
            }
        }
        Change::TaskMoved(id, standing) if !superseded => {
            replace_into(task_standings::table)
                .values(TaskStandingForm::new(*id, standing))
                .execute(connection)?;
            if let Some(digest) = standing.log_artifact {
                refer_to_log(connection, *id, digest)?;
            }
            if let Some(results) = &standing.results {
                refer_to_results(connection, *id, results)?;
            }
        }
        Change::JobMoved(..) | Change::TaskMoved(..) => {}
        Change::ArrayInserted(array) => arrays::insert(connection, array)?,
        Change::ArrayMoved(id, progress) => write_progress(connection, *id, &forms::json(progress))?,
        Change::CheckpointKept { job_id, kept, before } => {
            if let Some(before) = before {
                delete(artifact_refs::table.find((job_id.to_bytes(), false, *before.bytes())))
                    .execute(connection)?;
            }
            refer(connection, *job_id, false, kept.as_slice())?;
        }
        Change::JobProgressed(id, progress) => write_progress(connection, *id, &forms::json(&**progress))?,
        Change::ValuesYielded(id, first_n, values) => {
            yielded::write(connection, *id, *first_n, values)?;
            let artifacts: Vec<Digest> = values.iter().filter_map(|value| value.artifact).collect();
            refer(connection, *id, false, &artifacts)?;
        }
        Change::ArrayFilled(id, spec, child_spec, artifacts) => {
            diesel::update(jobs::table.find(id.to_bytes()))
                .set(jobs::spec.eq(&**spec))
                .execute(connection)?;
            arrays::filled(connection, *id, child_spec)?;
            refer(connection, *id, false, artifacts)?;
        }
        Change::ArtifactsNamed(id, digests) => refer(connection, *id, false, digests)?,
        Change::JobWaits(id, waits) if waits.is_empty() => {
            delete(job_waits::table.find(id.to_bytes())).execute(connection)?;
        }
        Change::JobWaits(id, waits) => {
            replace_into(job_waits::table)
                .values((job_waits::job_id.eq(id.to_bytes()), job_waits::waits.eq(forms::json(waits))))
                .execute(connection)?;
        }
        Change::InputsFilled(id, spec, artifacts) => {
            diesel::update(jobs::table.find(id.to_bytes()))
                .set(jobs::spec.eq(&**spec))
                .execute(connection)?;
            refer(connection, *id, false, artifacts)?;
        }
        Change::JobResults(id, results) => write_results(connection, *id, results)?,
        Change::LateResults(task_id, job_id, results) => {
            replace_into(late_results::table)
                .values(LateResultsForm::new(*task_id, *job_id, results))
                .execute(connection)?;
            // Referred to like what the spec names: the job's own results come and go beside it.
            refer(connection, *job_id, false, &results.artifacts())?;
        }
        Change::JobExplained(id, text) => explanations::write(connection, *id, text)?,
        Change::UsageNoted(noted) => usage::write(connection, noted)?,
        Change::JobPurged(id) => purge(connection, *id)?,
        Change::EventAppended(event) => {
            replace_into(events::table).values(EventForm::from(&**event)).execute(connection)?;
        }
        Change::KeyUsed(key) => {
            replace_into(used_keys::table).values(UsedKeyForm::from(&**key)).execute(connection)?;
        }
        Change::WorkerRecorded(record) => {
            replace_into(workers::table).values(WorkerForm::from(&**record)).execute(connection)?;
        }
        Change::ArtifactSent(digest, uploader, at) => write_upload(connection, digest, uploader, *at)?,
        Change::TokenRecorded(record) => {
            replace_into(tokens::table).values(TokenForm::from(&**record)).execute(connection)?;
        }
        Change::OutboxQueued(entry) => {
            replace_into(outbox::table).values(OutboxForm::from(&**entry)).execute(connection)?;
        }
        Change::OutboxDelivered(id) => {
            delete(outbox::table.find(id.0.to_be_bytes())).execute(connection)?;
        }
    }
    Ok(())
}

fn refer(
    connection: &mut SqliteConnection,
    id: JobId,
    of_results: bool,
    digests: &[Digest],
) -> QueryResult<()> {
    for digest in digests {
        replace_into(artifact_refs::table)
            .values((
                artifact_refs::job_id.eq(id.to_bytes()),
                artifact_refs::of_results.eq(of_results),
                artifact_refs::digest.eq(*digest.bytes()),
            ))
            .execute(connection)?;
    }
    Ok(())
}

/// Also drops rows that are too old to matter, from the old end, a few at a time.
fn write_upload(
    connection: &mut SqliteConnection,
    digest: &Digest,
    uploader: &Uploader,
    at: Timestamp,
) -> QueryResult<()> {
    replace_into(artifact_uploads::table)
        .values((
            artifact_uploads::digest.eq(*digest.bytes()),
            artifact_uploads::owner.eq(uploader.to_string()),
            artifact_uploads::uploaded_at.eq(at.micros()),
        ))
        .execute(connection)?;
    let before = at.minus(UPLOADS_KEPT).micros();
    let old: Vec<(Vec<u8>, String)> = artifact_uploads::table
        .filter(artifact_uploads::uploaded_at.lt(before))
        .order(artifact_uploads::uploaded_at)
        .limit(UPLOADS_PRUNED_AT_ONCE)
        .select((artifact_uploads::digest, artifact_uploads::owner))
        .load(connection)?;
    for row in old {
        delete(artifact_uploads::table.find(row)).execute(connection)?;
    }
    Ok(())
}

/// A task's log outlives the attempt: the next one's results do not take its place.
fn refer_to_log(connection: &mut SqliteConnection, id: TaskId, digest: Digest) -> QueryResult<()> {
    let job: Option<Vec<u8>> =
        tasks::table.find(id.to_bytes()).select(tasks::job_id).first(connection).optional()?;
    match job.as_deref().and_then(JobId::from_bytes) {
        Some(job_id) => refer(connection, job_id, false, &[digest]),
        None => Ok(()),
    }
}

/// What a task of a gang brought back is its job's, and kept as such, before all tasks are over.
fn refer_to_results(connection: &mut SqliteConnection, id: TaskId, results: &JobResults) -> QueryResult<()> {
    let job: Option<Vec<u8>> =
        tasks::table.find(id.to_bytes()).select(tasks::job_id).first(connection).optional()?;
    let digests: Vec<Digest> = results.outputs.iter().filter_map(|file| file.artifact).collect();
    match job.as_deref().and_then(JobId::from_bytes) {
        Some(job_id) => refer(connection, job_id, true, &digests),
        None => Ok(()),
    }
}

fn write_progress(connection: &mut SqliteConnection, id: JobId, progress: &str) -> QueryResult<()> {
    replace_into(job_progress::table)
        .values((job_progress::job_id.eq(id.to_bytes()), job_progress::progress.eq(progress)))
        .execute(connection)
        .map(drop)
}

fn write_results(connection: &mut SqliteConnection, id: JobId, results: &JobResults) -> QueryResult<()> {
    delete(artifact_refs::table)
        .filter(artifact_refs::job_id.eq(id.to_bytes()))
        .filter(artifact_refs::of_results.eq(true))
        .execute(connection)?;
    // Most jobs bring nothing back, and a job without a row has brought nothing back.
    if *results == JobResults::default() {
        delete(job_results::table.find(id.to_bytes())).execute(connection)?;
        return Ok(());
    }
    replace_into(job_results::table).values(JobResultsForm::new(id, results)).execute(connection)?;
    refer(connection, id, true, &results.artifacts())
}

fn purge(connection: &mut SqliteConnection, id: JobId) -> QueryResult<()> {
    let (parent, id) = (id, id.to_bytes());
    // Positions are never given out twice, also when the newest events are among those that go.
    let newest: Option<i64> = events::table.select(diesel::dsl::max(events::position)).first(connection)?;
    if let Some(newest) = newest {
        diesel::update(meta::table.find("last_position"))
            .filter(meta::value.lt(newest))
            .set(meta::value.eq(newest))
            .execute(connection)?;
    }
    explanations::purge(connection, parent)?;
    arrays::purge(connection, parent)?;
    let of_job = tasks::table.filter(tasks::job_id.eq(id)).select(tasks::id);
    delete(task_standings::table.filter(task_standings::task_id.eq_any(of_job))).execute(connection)?;
    delete(tasks::table.filter(tasks::job_id.eq(id))).execute(connection)?;
    delete(events::table.filter(events::job_id.eq(id))).execute(connection)?;
    delete(artifact_refs::table.filter(artifact_refs::job_id.eq(id))).execute(connection)?;
    delete(job_results::table.find(id)).execute(connection)?;
    delete(late_results::table.filter(late_results::job_id.eq(id))).execute(connection)?;
    delete(job_waits::table.find(id)).execute(connection)?;
    yielded::purge(connection, parent)?;
    delete(job_standings::table.find(id)).execute(connection)?;
    delete(jobs::table.find(id)).execute(connection)?;
    Ok(())
}

/// Removes keys used before `before`, from the old end of the table. Answers whether there may be more.
fn prune_keys(connection: &mut SqliteConnection, before: Timestamp) -> Result<bool, StoreError> {
    let oldest: Vec<(i64, i64)> = used_keys::table
        .select((used_keys::rowid, used_keys::used_at))
        .order(used_keys::rowid)
        .limit(KEYS_PRUNED_AT_ONCE)
        .load(connection)?;
    let old = oldest.iter().take_while(|(_, used_at)| *used_at < before.micros());
    let Some((newest_old, _)) = old.clone().last() else {
        return Ok(false);
    };
    delete(used_keys::table.filter(used_keys::rowid.le(newest_old))).execute(connection)?;
    Ok(old.count() as i64 == KEYS_PRUNED_AT_ONCE)
}

#[cfg(test)]
mod tests {
    use diesel::connection::SimpleConnection;

    use super::*;
    use crate::domain::change::{OutboxEntry, OutboxId};
    use crate::store::{ONLY_TERM, Store};

    /// Far more than fits into the database as [`fill`] leaves it.
    fn large() -> Change {
        Change::OutboxQueued(Box::new(OutboxEntry {
            id: OutboxId(1),
            kind: "webhook".into(),
            payload: "x".repeat(1 << 20),
            created_at: Timestamp::default(),
        }))
    }

    /// Stands for a full disk: this connection may not add a page. A new one, after the ballast went, may.
    fn fill(writer: &mut Writer) {
        writer.connection.batch_execute("PRAGMA max_page_count = 1").unwrap();
    }

    #[test]
    fn a_full_disk_gives_up_the_ballast_and_the_commit_goes_through() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let ballast = folder.path().join("ballast");
        std::fs::write(&ballast, "ballast").unwrap();
        let mut writer = store.writer().unwrap();
        fill(&mut writer);
        writer.apply(&[large()], ONLY_TERM).unwrap();
        assert!(!ballast.exists());
        assert_eq!(store.reader().outbox().unwrap().len(), 1);
    }

    #[test]
    fn a_full_disk_without_ballast_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut writer = store.writer().unwrap();
        fill(&mut writer);
        let failed = writer.apply(&[large()], ONLY_TERM);
        assert!(matches!(failed, Err(StoreError::Full { .. })), "{failed:?}");
        assert!(store.reader().outbox().unwrap().is_empty());
    }
}
