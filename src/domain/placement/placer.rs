//! The placer: everything the scheduler knows, and the one door through which it learns it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fit::{Cores, plain};
use super::input::Input;
use super::pass::{Pass, Placed};
use super::policy::Policy;
use super::pool::{Again, Holding, NotHeld, Place, Pool};
use super::queue::{Queue, QueuedJob};
use super::reservations::Reservations;
use super::shares::Shares;
use super::warmth::Warmth;
use super::{Luggage, Shape};
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::spec::GpuCount;

/// See the module. Its stored form goes on bit-equal to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Placer {
    pub(super) policy: Policy,
    pub(super) queue: Queue,
    pub(super) pool: Pool,
    pub(super) shares: Shares,
    pub(super) reservations: Reservations,
    /// What was proposed and nobody answered yet.
    proposed: HashMap<JobId, Placed>,
    /// Tasks that were told to go for others.
    pub(super) leaving: BTreeSet<Place>,
    /// Shapes that no worker could ever take, by the arrivals at which that was found.
    #[serde(with = "super::pairs")]
    pub(super) hopeless: HashMap<Arc<Shape>, u64>,
    pub(super) warmth: Warmth,
}

/// Why a project may have no more now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaLack<'a> {
    /// With its running tasks it would have more cores than it may.
    Cpus {
        /// Whose.
        project: &'a str,
        /// At most, in thousandths.
        most_millis: u64,
        /// By its running tasks, in thousandths.
        holds_millis: u64,
        /// Asked for, in thousandths.
        needs_millis: u64,
    },
    /// With its running tasks it would have more GPUs than it may.
    Gpus {
        /// Whose.
        project: &'a str,
        /// At most.
        most: u64,
        /// By its running tasks.
        holds: u64,
        /// Asked for.
        needs: u64,
    },
}

impl fmt::Display for QuotaLack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaLack::Cpus { project, most_millis, holds_millis, needs_millis } => {
                write!(f, "project {project} may have {}", Cores(*most_millis))?;
                match needs_millis > most_millis {
                    true => write!(f, " at most, needs {}", plain(*needs_millis)),
                    false => write!(f, ", holds {}, needs {}", plain(*holds_millis), plain(*needs_millis)),
                }
            }
            QuotaLack::Gpus { project, most, holds, needs } => {
                write!(f, "project {project} may have {most} {}", if *most == 1 { "GPU" } else { "GPUs" })?;
                match needs > most {
                    true => write!(f, " at most, needs {needs}"),
                    false => write!(f, ", holds {holds}, needs {needs}"),
                }
            }
        }
    }
}

impl QuotaLack<'_> {
    /// Whether the job alone asks for more than its project may ever have.
    pub const fn forever(&self) -> bool {
        match *self {
            QuotaLack::Cpus { most_millis, needs_millis, .. } => needs_millis > most_millis,
            QuotaLack::Gpus { most, needs, .. } => needs > most,
        }
    }
}

impl Placer {
    /// Nobody waits and there are no workers.
    pub fn new(policy: Policy) -> Self {
        Self {
            shares: Shares::new(policy.half_life_s),
            policy,
            queue: Queue::new(),
            pool: Pool::new(),
            reservations: Reservations::default(),
            proposed: HashMap::new(),
            leaving: BTreeSet::new(),
            hopeless: HashMap::new(),
            warmth: Warmth::default(),
        }
    }

    /// Takes one thing in. Only [`Input::Pass`] is answered with anything.
    pub fn apply(&mut self, input: Input) -> Result<Pass, NotHeld> {
        match input {
            Input::Queued(job) => self.queue.insert(job),
            Input::Unqueued { job_id } => {
                self.queue.remove(job_id);
                self.drop_reservation(job_id);
            }
            Input::Accepted { job_id } => drop(self.proposed.remove(&job_id)),
            Input::Refused { job_id, gone } => self.refused(job_id, gone)?,
            Input::Taken { worker_id, place, mut holding } => {
                self.shares.take(&holding.project, &holding.grant, holding.weight);
                holding.again = holding.again.filter(|_| self.policy.is_preemptible(&holding.project));
                self.pool.record_held(worker_id, place, holding);
            }
            Input::Freed { worker_id, place } => self.release(worker_id, place)?,
            Input::Bounded { worker_id, place, ends_by } => self.pool.bound(worker_id, place, ends_by),
            Input::WorkerUp { worker_id, name, kind, incarnation, capabilities } => {
                self.pool.worker_up(worker_id, &name, kind, incarnation, &capabilities);
                self.reserve_anew(worker_id);
            }
            Input::WorkerDown { worker_id } => {
                self.pool.worker_down(worker_id);
                self.reserve_anew(worker_id);
            }
            Input::WorkerHealth { worker_id, unhealthy } => {
                let ill = unhealthy.is_some();
                self.pool.worker_health(worker_id, unhealthy);
                if ill {
                    self.reserve_anew(worker_id);
                }
            }
            Input::WorkerSecrets { worker_id, names } => self.pool.worker_secrets(worker_id, names),
            Input::WorkerDraining { worker_id, draining } => {
                self.pool.worker_draining(worker_id, draining);
                self.reserve_anew(worker_id);
            }
            Input::WorkerLeft { worker_id } => {
                self.pool.worker_left(worker_id);
                self.warmth.forget(worker_id);
                self.reserve_anew(worker_id);
            }
            Input::Used { project, at, used } => {
                self.shares.advance(at);
                self.shares.add_used(&project, used);
            }
            Input::Pass { now, budget_checks } => {
                let pass = self.pass(now, budget_checks);
                self.proposed
                    .extend(pass.placements.iter().map(|placed| (placed.job.job_id, placed.clone())));
                return Ok(pass);
            }
        }
        Ok(Pass::default())
    }

    /// Who waits.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What the workers have.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Who had how much.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// What was promised.
    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    fn refused(&mut self, job_id: JobId, gone: bool) -> Result<(), NotHeld> {
        let Some(placed) = self.proposed.remove(&job_id) else { return Ok(()) };
        if gone || self.queue.contains(job_id) {
            return self.free(&placed);
        }
        self.take_back(placed)
    }

    /// As if it had not been placed: it waits on, where it was in the queue.
    pub(super) fn take_back(&mut self, placed: Placed) -> Result<(), NotHeld> {
        self.free(&placed)?;
        self.queue.insert(placed.job);
        Ok(())
    }

    fn free(&mut self, placed: &Placed) -> Result<(), NotHeld> {
        placed.seats.iter().try_for_each(|seat| self.release(seat.worker_id, placed.place()))
    }

    fn release(&mut self, worker_id: WorkerId, place: Place) -> Result<(), NotHeld> {
        let Holding { grant, project, weight, .. } = self.pool.release(worker_id, place)?;
        self.shares.give_back(&project, &grant, weight);
        self.leaving.remove(&place);
        Ok(())
    }

    /// Nothing is reserved for a job any more; what was is open to others.
    pub(super) fn drop_reservation(&mut self, job_id: JobId) {
        for worker_id in self.reservations.drop_of(job_id) {
            self.pool.note_growth(worker_id);
        }
    }

    /// A worker is not what it was: what was reserved there is reserved anew, from what there is now.
    fn reserve_anew(&mut self, worker_id: WorkerId) {
        if let Some(job_id) = self.reservations.on(worker_id) {
            self.drop_reservation(job_id);
        }
    }

    /// Why the owner's limits keep a job of this project and shape from being placed now.
    pub fn quota_lack<'a>(&'a self, project: &'a str, shape: &Shape) -> Option<QuotaLack<'a>> {
        let usage = self.shares.usage(project);
        self.lack_besides(project, shape, usage.cpu_millis, usage.gpus)
    }

    /// The same if nothing of the project ran: what it may never have.
    pub(super) fn beyond_quota<'a>(&'a self, project: &'a str, shape: &Shape) -> Option<QuotaLack<'a>> {
        self.lack_besides(project, shape, 0, 0)
    }

    fn lack_besides<'a>(
        &'a self,
        project: &'a str,
        shape: &Shape,
        holds_millis: u64,
        holds: u64,
    ) -> Option<QuotaLack<'a>> {
        let policy = self.policy.projects.get(project)?;
        let nodes = shape.nodes() as u64;
        let (needs_millis, needs) = (nodes * shape.amount().cpu_millis, nodes * gpus_of(shape));
        let cpus = policy
            .max_cpu_millis
            .filter(|most_millis| holds_millis + needs_millis > *most_millis)
            .map(|most_millis| QuotaLack::Cpus { project, most_millis, holds_millis, needs_millis });
        let most_gpus = policy.max_gpus.filter(|most| needs > 0 && holds + needs > *most);
        let gpus = most_gpus.map(|most| QuotaLack::Gpus { project, most, holds, needs });
        // What never helps comes first.
        let forever = |lack: &QuotaLack<'_>| lack.forever();
        cpus.filter(forever).or_else(|| gpus.filter(forever)).or(cpus).or(gpus)
    }

    /// As if nothing of a job waited or ran.
    pub(super) fn forget(&mut self, job_id: JobId) {
        self.queue.remove(job_id);
        self.drop_reservation(job_id);
        self.proposed.remove(&job_id);
        for (worker_id, place) in self.pool.places_of(job_id) {
            // It is on the books, that is where it was found.
            let _ = self.release(worker_id, place);
        }
    }

    /// How the job of a task waits again that was told to go for another and has left this worker; `None` when it was not
    /// told to, or nobody knows what it asks for. To be asked before the place is freed.
    pub(super) fn comes_back(&self, worker_id: WorkerId, place: Place) -> Option<QueuedJob> {
        let holding = self.pool.holding(worker_id, place).filter(|_| self.leaving.contains(&place))?;
        let Again { shape, submitted_at } = holding.again.clone()?;
        let (Place { job_id, epoch }, priority, project) = (place, holding.priority, holding.project.clone());
        let luggage = Luggage::default();
        Some(QueuedJob { job_id, epoch, priority, submitted_at, shape, project, avoid: None, luggage })
    }

    /// Whether a task runs that may be stopped for a job of this priority.
    pub(super) fn somebody_yields_to(&self, priority: i32) -> bool {
        self.policy.projects.values().any(|policy| policy.preemptible)
            && self.pool.workers().any(|worker| {
                self.pool.holdings_of(worker.id).any(|(place, holding)| {
                    holding.priority < priority
                        && self.policy.is_preemptible(&holding.project)
                        && !self.leaving.contains(&place)
                })
            })
    }
}

/// GPUs that a task of a shape takes at least: all of a worker is at least one.
pub(super) fn gpus_of(shape: &Shape) -> u64 {
    shape.resources.gpus.as_deref().map_or(0, |gpus| match gpus.count {
        GpuCount::Count(count) => u64::from(count),
        GpuCount::All => 1,
    })
}
