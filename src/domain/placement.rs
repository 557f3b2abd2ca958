//! Placement: which queued job goes to which worker, and why one does not. Pure and in integers, so that a pass
//! replays bit-equal from the same inputs.
//!
//! Jobs are grouped by [`Shape`]: what holds for one job of a shape holds for all of them, so a pass looks at
//! shapes and workers, never at their product with the length of the queue. [`Placer`] is the whole: it takes
//! [`Input`]s, one after the other, and answers those that ask for a [`Pass`]. [`replay`] holds a record of both against it. In it, [`Queue`] holds who waits, [`Pool`]
//! what the workers have and what is taken, [`Shares`] who had how much, [`Reservations`] what was promised to big jobs;
//! `Warmth` says where a job's files may be already; [`explain`] says why not.

mod ahead;
mod budget;
mod candidates;
mod departure;
mod explain;
mod explanation;
mod fit;
mod frameworks;
mod gpus;
mod input;
mod limits;
mod models;
mod outlook;
mod pairs;
mod pass;
mod placer;
mod policy;
mod pool;
mod preemption;
mod profiles;
mod queue;
pub mod replay;
mod reservations;
pub mod shares;
mod sizes;
mod suggest;
pub mod usage;
mod waiting;
mod warmth;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use budget::Budget;
pub use explain::{NO_WORKER, RESERVED, Verdict, explain, never_fits, queue_reason, verdict};
pub use explanation::{QueueReason, wish};
pub use fit::{GpuCensus, Lack};
pub use gpus::{GpuKind, GpuUuid, PoolGpu, Unsuited};
pub use input::Input;
pub use outlook::{Never, Outlook};
pub use pass::{Pass, Placed, Preemption};
pub use placer::{Placer, QuotaLack};
pub use policy::{Policy, ProjectPolicy};
pub use pool::{Again, Capacity, Holding, NotHeld, Place, Pool, PoolWorker};
pub use profiles::{PROFILES, vendor_of};
pub use queue::{Queue, QueuedJob};
pub use reservations::{Reservation, Reservations, ReservedPart};
pub use shares::Shares;
pub(super) use sizes::Bytes;
pub use warmth::Luggage;

use super::secrets::SecretRef;
use crate::contract::ids::{Epoch, JobId, WorkerId};
use crate::contract::quantity::Seconds;
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
    /// What a framework has to compute on, by framework.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backends: BTreeMap<String, String>,
    /// How long a task takes at most from executing to its kill, rounded up; absent = nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_s: Option<Seconds>,
    /// Workers at once, with all of this on each; absent = 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
}

impl Shape {
    /// The part of a spec that decides where it can run.
    pub fn of(spec: &JobSpec) -> Self {
        let mut shape = Self { resources: spec.resources.clone(), target: spec.target, ..Self::default() };
        shape.bound_s = spec.timeout_s.map(|timeout| rounded_up(timeout, spec.grace_s));
        shape.nodes = spec.distributed.as_ref().map(|gang| gang.nodes);
        if let Some(profile) = &spec.profile {
            profiles::apply(profile, &mut shape);
        }
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

    /// Workers at once.
    pub fn nodes(&self) -> usize {
        self.nodes.map_or(1, |nodes| nodes.max(1) as usize)
    }

    /// What a task of this shape takes from its worker, without the GPUs.
    pub fn amount(&self) -> Amount {
        Amount {
            cpu_millis: self.resources.cpus.millis().into(),
            memory_bytes: self.resources.memory_bytes.unwrap_or(0),
        }
    }
}

/// The sum, to an eighth: jobs whose limits differ by seconds are alike.
fn rounded_up(timeout: Seconds, grace: Seconds) -> Seconds {
    let millis = timeout.millis().saturating_add(grace.millis());
    let step = 1_u64 << millis.max(1).ilog2().saturating_sub(3);
    // What is stored has to be a span that is read back.
    Seconds::from_millis(millis.div_ceil(step).saturating_mul(step)).min(Seconds::MAX)
}

/// The longest bound that is kept as it is and is no longer than this.
fn rounded_down(span: Seconds) -> Seconds {
    let step = 1_u64 << span.millis().max(1).ilog2().saturating_sub(3);
    Seconds::from_millis(span.millis() / step * step)
}

/// What a worker has, or a task takes, in countable things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
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

/// What a task takes of its worker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Grant {
    /// Countable things.
    pub amount: Amount,
    /// These GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUuid>,
}

/// One task's seat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seated {
    /// Where.
    pub worker_id: WorkerId,
    /// The worker's incarnation the decision was made on.
    pub incarnation: u64,
    /// With these GPUs.
    pub gpus: Vec<GpuUuid>,
    /// How much of all machines that is, in millionths, see [`shares`].
    pub weight: u64,
}

/// One job on one worker, or on one for each node, as proposed on this state of all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The job.
    pub job_id: JobId,
    /// The job's epoch the proposal was made on; another one makes it void.
    pub job_epoch: Epoch,
    /// By rank.
    pub seats: Vec<Seated>,
}
