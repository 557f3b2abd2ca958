//! What the scheduler is told, in the order in which it is told: the same inputs give the same passes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::QueuedJob;
use super::pool::{Holding, Place};
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::quantity::Timestamp;
use crate::contract::worker::{Capabilities, WorkerKind};

/// One thing that the scheduler is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "input", rename_all = "snake_case")]
pub enum Input {
    /// A job waits.
    Queued(QueuedJob),
    /// It waits no more.
    Unqueued {
        /// Which.
        job_id: JobId,
    },
    /// A proposal holds.
    Accepted {
        /// Whose.
        job_id: JobId,
    },
    /// A proposal is void.
    Refused {
        /// Whose.
        job_id: JobId,
        /// Whether the job waits no more.
        gone: bool,
    },
    /// A task holds something already.
    Taken {
        /// Where.
        worker_id: WorkerId,
        /// Which.
        place: Place,
        /// What.
        holding: Holding,
    },
    /// A task's tree is gone.
    Freed {
        /// Where.
        worker_id: WorkerId,
        /// Which.
        place: Place,
    },
    /// A task will have ended by then.
    Bounded {
        /// Where.
        worker_id: WorkerId,
        /// Which.
        place: Place,
        /// When.
        ends_by: Timestamp,
    },
    /// A worker says what it has and how its GPUs stand, and takes tasks.
    WorkerUp {
        /// Which.
        worker_id: WorkerId,
        /// What people call it.
        name: String,
        /// How it reaches the server.
        kind: WorkerKind,
        /// This start of it.
        incarnation: u64,
        /// What it has.
        capabilities: Box<Capabilities>,
    },
    /// A worker takes no tasks for now.
    WorkerDown {
        /// Which.
        worker_id: WorkerId,
    },
    /// A worker says why it takes none, or that it does.
    WorkerHealth {
        /// Which.
        worker_id: WorkerId,
        /// In its own words.
        unhealthy: Option<String>,
    },
    /// Its table of secrets was written.
    WorkerSecrets {
        /// Which.
        worker_id: WorkerId,
        /// The names there.
        names: Vec<String>,
    },
    /// An operator empties a worker, or lets it take tasks again.
    WorkerDraining {
        /// Which.
        worker_id: WorkerId,
        /// Whether.
        draining: bool,
    },
    /// A worker left for good.
    WorkerLeft {
        /// Which.
        worker_id: WorkerId,
    },
    /// A project had had so much before a restart, see [`super::usage`].
    Used {
        /// Which.
        project: Arc<str>,
        /// As of when.
        at: Timestamp,
        /// How much.
        used: u64,
    },
    /// Place what can be placed.
    Pass {
        /// The time of it.
        now: Timestamp,
        /// How many checks it may cost.
        budget_checks: u32,
    },
}
