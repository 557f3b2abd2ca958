//! Start-up: what the store remembers of live jobs, in the form the supervisor works with. After a crash and
//! after a clean stop it is the same path.

use std::collections::HashMap;
use std::sync::Arc;

use super::StaleTask;
use super::keys::KEPT;
use crate::actors::messages::scheduler::CapacityTaken;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::job::JobState;
use crate::contract::quantity::Timestamp;
use crate::contract::spec::JobSpec;
use crate::credentials::known::Credentials;
use crate::domain::array::{Layout, LiveArray, RestoredArray};
use crate::domain::change::{TaskRecord, TaskStanding, TokenRecord};
use crate::domain::dependency::Wait;
use crate::domain::job::{LiveJob, Placed, Restored, RestoredTask, with_memory};
use crate::domain::ledger::SharedSpec;
use crate::domain::placement::{Grant, Holding, Place, Shape};
use crate::store::{Reads, StoreError};

/// Everything the supervisor starts with.
pub struct Restoration {
    /// Live jobs.
    pub jobs: Vec<LiveJob>,
    /// Live arrays; their children are among the jobs.
    pub arrays: Vec<LiveArray>,
    /// Tasks that were given up and may still hold their place.
    pub stale: HashMap<TaskId, StaleTask>,
    /// What those hold.
    pub stale_holdings: Vec<CapacityTaken>,
    /// Scopes of the idempotency keys still remembered, and when each was used.
    pub key_scopes: Vec<([u8; 32], Timestamp)>,
    /// Number of the newest event.
    pub position: u64,
    /// Credentials, as they are stored.
    pub tokens: Vec<TokenRecord>,
    /// The same with the workers' sessions, as the edge looks them up.
    pub credentials: Arc<Credentials>,
}

/// Why the store's word cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// It cannot be read.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
    /// A row holds what this build does not understand.
    #[error("{what} of job {job_id} cannot be read")]
    Unreadable {
        /// Whose.
        job_id: JobId,
        /// Which part.
        what: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Reads it all.
pub fn restore(reads: &Reads, now: Timestamp) -> Result<Restoration, RestoreError> {
    let mut shapes = Shapes::default();
    let mut tasks: HashMap<JobId, Vec<RestoredTask>> = HashMap::new();
    for (record, placed, standing) in with_specs(reads, reads.live_tasks()?)? {
        tasks.entry(record.job_id).or_default().push(RestoredTask { placed, standing });
    }
    let mut jobs = Vec::new();
    let mut waits = reads.waits()?;
    let arrays = restored_arrays(reads, &mut waits)?;
    for row in reads.live_jobs()? {
        if arrays.contains_key(&row.id) {
            continue;
        }
        let member = row.parent.and_then(|parent| arrays.get(&parent)).map(|array| {
            let place = row.id.as_u128().saturating_sub(array.child(0).as_u128()) as usize;
            (array.member(place), array.spec.clone())
        });
        let mut job = LiveJob::restore(Restored {
            id: row.id,
            priority: row.priority,
            submitted_at: row.submitted_at,
            queue_deadline: row.queue_deadline,
            shape: grown(shapes.read(row.id, row.shape)?, row.standing.memory_bytes),
            project: row.project,
            waits: waits.remove(&row.id).unwrap_or_default(),
            standing: row.standing,
            tasks: newest_placement(tasks.remove(&row.id)),
        });
        if let Some((member, spec)) = member {
            job.spec = job.tasks().is_empty().then_some(spec);
            job.member = Some(Box::new(member));
        }
        jobs.push(job);
    }
    let mut stale = HashMap::new();
    let mut stale_holdings = Vec::new();
    for (record, placed, _) in with_specs(reads, reads.stale_tasks()?)? {
        let place = Place { job_id: record.job_id, epoch: record.epoch };
        let (worker_id, project) = (record.worker, placed.spec.project.as_str().into());
        let Placed { grant, weight, .. } = placed;
        let holding =
            Holding { grant, project, priority: placed.spec.priority, weight, ends_by: None, again: None };
        stale.insert(record.id, StaleTask { worker_id, place });
        stale_holdings.push(CapacityTaken { worker_id, place, holding });
    }
    let tokens = reads.tokens()?;
    let sessions = reads
        .workers()?
        .into_iter()
        .filter_map(|worker| worker.session_hash.map(|session_hash| (session_hash, worker.id, worker.gone)));
    let credentials = Arc::new(Credentials::load(tokens.iter().cloned(), sessions));
    Ok(Restoration {
        tokens,
        credentials,
        jobs,
        arrays: arrays.into_values().collect(),
        stale,
        stale_holdings,
        key_scopes: reads.used_key_scopes(now.minus(KEPT))?,
        position: reads.last_position()?,
    })
}

fn restored_arrays(
    reads: &Reads,
    waits: &mut HashMap<JobId, Vec<Wait>>,
) -> Result<HashMap<JobId, LiveArray>, RestoreError> {
    let mut arrays = HashMap::new();
    for row in reads.live_arrays()? {
        let unreadable = |source| RestoreError::Unreadable { job_id: row.id, what: "the spec", source };
        let whole: JobSpec = serde_json::from_str(&row.spec).map_err(unreadable)?;
        let spec: SharedSpec = serde_json::from_str(&row.child_spec).map_err(unreadable)?;
        let layout = whole.array.as_deref().map(Layout::of).unwrap_or_default();
        let place = |id: JobId| id.as_u128().saturating_sub(row.first_child.as_u128()) as usize;
        let mut children = vec![(JobState::Queued, false); row.children];
        for (id, state, placed) in reads.children(row.id)? {
            if let Some(child) = children.get_mut(place(id)) {
                *child = (state, placed);
            }
        }
        let worst = reads.worst_child(row.id)?.map(|(id, end)| (place(id), Box::new(end)));
        let array = LiveArray::restore(RestoredArray {
            id: row.id,
            first_child: row.first_child,
            spec,
            layout: Arc::new(layout),
            queue_deadline: row.queue_deadline,
            waits: waits.remove(&row.id).unwrap_or_default(),
            standing: row.standing,
            children,
            worst,
        });
        arrays.insert(array.id, array);
    }
    Ok(arrays)
}

/// By rank. A placement of which nothing lives is over.
fn newest_placement(tasks: Option<Vec<RestoredTask>>) -> Vec<RestoredTask> {
    let mut tasks = tasks.unwrap_or_default();
    tasks.sort_by_key(|task| task.placed.gang.as_ref().map(|gang| gang.rank));
    if tasks.iter().any(|task| !task.standing.state.ended()) { tasks } else { Vec::new() }
}

fn with_specs(
    reads: &Reads,
    tasks: Vec<(TaskRecord, TaskStanding)>,
) -> Result<Vec<(TaskRecord, Placed, TaskStanding)>, RestoreError> {
    let wanted: Vec<JobId> = tasks.iter().map(|(record, _)| record.job_id).collect();
    let mut specs = HashMap::new();
    for (job_id, text) in reads.specs(&wanted)? {
        let spec: SharedSpec = serde_json::from_str(&text).map_err(|source| RestoreError::Unreadable {
            job_id,
            what: "the spec",
            source,
        })?;
        specs.insert(job_id, spec);
    }
    let placed = tasks.into_iter().filter_map(|(record, standing)| {
        let spec = specs.get(&record.job_id)?.clone();
        let spec = with_memory(spec, record.memory_bytes);
        let grant = Grant { amount: Shape::of(&spec).amount(), gpus: record.gpus.clone() };
        let TaskRecord { id: task_id, worker, weight, ref gang, .. } = record;
        let placed = Placed { task_id, worker, spec, grant, weight, gang: gang.clone() };
        Some((record, placed, standing))
    });
    Ok(placed.collect())
}

/// A shape whose memory request has grown is that job's own.
fn grown(shape: Arc<Shape>, memory_bytes: Option<u64>) -> Arc<Shape> {
    memory_bytes.map_or(shape.clone(), |bytes| Arc::new(shape.with_memory(bytes)))
}

/// Shapes by their stored text: a hundred thousand jobs share a handful.
#[derive(Default)]
struct Shapes {
    known: HashMap<Arc<str>, Arc<Shape>>,
}

impl Shapes {
    fn read(&mut self, job_id: JobId, text: Arc<str>) -> Result<Arc<Shape>, RestoreError> {
        if let Some(shape) = self.known.get(&text) {
            return Ok(shape.clone());
        }
        let shape: Shape = serde_json::from_str(&text).map_err(|source| RestoreError::Unreadable {
            job_id,
            what: "the shape",
            source,
        })?;
        let shape = Arc::new(shape);
        self.known.insert(text, shape.clone());
        Ok(shape)
    }
}
