//! Jobs that leave the queue without a place: how they stood to the workers is found afterwards, a slice a turn, so that
//! a hundred thousand that time out together hold up nobody.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::contract::explain::{LastStanding, ReservedPlace, Suggestion};
use crate::contract::ids::JobId;
use crate::contract::quantity::Timestamp;
use crate::domain::placement::{Placer, QueuedJob, Shape};

/// Jobs answered for in one turn: each is a row for the supervisor to write.
const SLICE: usize = 2_000;
/// Workers that are looked at in one turn.
const BUDGET_CHECKS: usize = 100_000;
/// Until nobody is left, changes are tried out for so many kinds of jobs, because each try takes a copy of the queue.
const ADVISED: usize = 4;

/// What jobs have in common that stand alike.
type Kind = (Arc<Shape>, Arc<str>, i32);

/// The remedy of what no worker could ever take, and the changes that would let it start now.
type Advice = (Option<Suggestion>, Vec<Suggestion>);

/// One job that left.
struct Departed {
    job_id: JobId,
    /// As it waited, with what was reserved for it; `None` = it did not wait.
    waited: Option<(QueuedJob, Option<ReservedPlace>)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Departures {
    waiting: VecDeque<Departed>,
    advice: HashMap<Kind, Advice>,
}

impl Departures {
    /// A job is about to leave. To be called before the placer hears of it.
    pub(super) fn add(&mut self, placer: &Placer, job_id: JobId) {
        let waited = placer.queue().job(job_id).map(|job| (job, placer.reserved_for(job_id)));
        self.waiting.push_back(Departed { job_id, waited });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How the next of them stood, at most a slice of them.
    pub(super) fn slice(
        &mut self,
        placer: &Placer,
        now: Timestamp,
    ) -> Vec<(JobId, Option<Arc<LastStanding>>)> {
        let workers = placer.pool().workers().count().max(1);
        let mut checks = 0;
        let mut known: HashMap<Kind, Arc<LastStanding>> = HashMap::new();
        let mut answers = Vec::new();
        while answers.len() < SLICE && checks < BUDGET_CHECKS {
            let Some(Departed { job_id, waited }) = self.waiting.pop_front() else { break };
            let standing = waited.map(|(job, reserved)| {
                let kind = (job.shape.clone(), job.project.clone(), job.priority);
                if reserved.is_none()
                    && let Some(known) = known.get(&kind)
                {
                    return Arc::clone(known);
                }
                checks += workers;
                let alone = reserved.is_some();
                let standing = placer.last_standing(&job, reserved, now);
                let standing = Arc::new(self.advised(placer, standing, &job, &kind, now));
                if !alone {
                    known.insert(kind, Arc::clone(&standing));
                }
                standing
            });
            answers.push((job_id, standing));
        }
        if self.waiting.is_empty() {
            self.advice.clear();
        }
        answers
    }

    fn advised(
        &mut self,
        placer: &Placer,
        standing: LastStanding,
        job: &QueuedJob,
        kind: &Kind,
        now: Timestamp,
    ) -> LastStanding {
        if let Some((remedy, suggestions)) = self.advice.get(kind).cloned() {
            return LastStanding { remedy, suggestions, ..standing };
        }
        if self.advice.len() >= ADVISED {
            return standing;
        }
        let advised = placer.with_advice(standing, job, now);
        self.advice.insert(kind.clone(), (advised.remedy.clone(), advised.suggestions.clone()));
        advised
    }
}
