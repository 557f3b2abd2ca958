//! Placement: which queued job goes to which worker, and why one does not. Pure and in integers, so that a pass
//! replays bit-equal from the same queue, pool and budget.
//!
//! Jobs are grouped by [`Shape`]: what holds for one job of a shape holds for all of them, so a pass looks at
//! shapes and workers, never at their product with the length of the queue. [`Queue`] holds who waits,
//! [`Pool`] what the workers have and what is reserved, [`place`] decides, [`explain`] says why not.

mod explain;
mod fit;
mod pass;
mod pool;
mod queue;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use explain::{Verdict, WorkerReason, explain, never_fits, queue_reason, verdict};
pub(super) use fit::Bytes;
pub use fit::Lack;
pub use pass::{Pass, Placed, place};
pub use pool::{Pool, PoolError, PoolWorker};
pub use queue::{Queue, QueuedJob};

use super::secrets::SecretRef;
use crate::contract::ids::{Epoch, JobId, WorkerId};
use crate::contract::spec::{JobSpec, Resources, Target};

/// What a job asks of a machine: jobs of one shape are interchangeable to the scheduler.
/// Kept with the job in this JSON form (`JobRecord::shape`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Shape {
    /// Resources.
    #[serde(default)]
    pub resources: Resources,
    /// Where it may run.
    #[serde(default)]
    pub target: Target,
    /// Secrets that the worker's table has to have.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub secrets: BTreeSet<String>,
    /// Whether it names variables or files of the worker as secrets, so that the worker has to allow that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spec_secret_refs: bool,
}

impl Shape {
    /// The part of a spec that decides where it can run.
    pub fn of(spec: &JobSpec) -> Self {
        let mut shape = Self { resources: spec.resources.clone(), target: spec.target, ..Self::default() };
        for secret in &spec.secrets {
            match SecretRef::parse(&secret.reference) {
                Some(SecretRef::Name(name)) => drop(shape.secrets.insert(name.to_owned())),
                reference => shape.spec_secret_refs |= reference.is_some_and(SecretRef::reaches_into_worker),
            }
        }
        shape
    }

    /// The same with another memory request.
    pub fn with_memory(&self, memory_bytes: u64) -> Self {
        let mut shape = self.clone();
        shape.resources.memory_bytes = Some(memory_bytes);
        shape
    }

    /// What a task of this shape takes from its worker.
    pub fn amount(&self) -> Amount {
        Amount {
            cpu_millis: self.resources.cpus.millis().into(),
            memory_bytes: self.resources.memory_bytes.unwrap_or(0),
        }
    }
}

/// What a worker has, or a task takes, in countable things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Amount {
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Main memory in bytes.
    pub memory_bytes: u64,
}

impl Amount {
    /// Whether every part of `other` fits in this.
    pub const fn holds(self, other: Amount) -> bool {
        self.cpu_millis >= other.cpu_millis && self.memory_bytes >= other.memory_bytes
    }

    /// What is left of this without `other`, `None` when `other` is larger in any part.
    pub const fn checked_sub(self, other: Amount) -> Option<Amount> {
        match (
            self.cpu_millis.checked_sub(other.cpu_millis),
            self.memory_bytes.checked_sub(other.memory_bytes),
        ) {
            (Some(cpu_millis), Some(memory_bytes)) => Some(Amount { cpu_millis, memory_bytes }),
            _ => None,
        }
    }

    /// What is left of this without `other`, zero where `other` is larger.
    pub const fn saturating_sub(self, other: Amount) -> Amount {
        Amount {
            cpu_millis: self.cpu_millis.saturating_sub(other.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }

    /// Both together.
    pub const fn saturating_add(self, other: Amount) -> Amount {
        Amount {
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }
}

/// One job on one worker, as proposed on this state of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The job.
    pub job_id: JobId,
    /// The job's epoch the proposal was made on; another one makes it void.
    pub job_epoch: Epoch,
    /// Where.
    pub worker_id: WorkerId,
    /// The worker's incarnation the proposal was made on.
    pub incarnation: u64,
}
