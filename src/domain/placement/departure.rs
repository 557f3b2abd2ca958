//! How a job stood to the workers when it left the queue, in a form that is kept: of bounded size.

use std::sync::Arc;

use super::explain::verdict_among;
use super::{Budget, Placer, QueuedJob, Shape};
use crate::contract::explain::{CountedAnswer, LastStanding, ReservedPlace, Verdict, WorkersAnswer};
use crate::contract::ids::JobId;
use crate::contract::quantity::Timestamp;

/// Answers that are kept, and workers that are named with each.
const ANSWERS: usize = 12;
const NAMES: usize = 4;
/// Checks that finding changes may cost, while other jobs wait for the next pass.
const ADVICE_CHECKS: u32 = 100_000;
/// Bytes of one sentence or name.
const SAID_BYTES: usize = 400;

/// Cuts a text at a character.
fn shortened(text: &str) -> String {
    if text.len() <= SAID_BYTES {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(SAID_BYTES)])
}

fn counted(answer: WorkersAnswer) -> CountedAnswer {
    CountedAnswer {
        verdict: answer.verdict,
        reason: shortened(&answer.reason),
        workers: answer.workers.len() as u64,
        names: answer.workers.iter().take(NAMES).map(|name| shortened(name)).collect(),
    }
}

impl Placer {
    /// What is reserved for a job, by name.
    pub fn reserved_for(&self, job_id: JobId) -> Option<ReservedPlace> {
        self.reservations.of(job_id).map(|reservation| ReservedPlace {
            workers: reservation.parts.iter().map(|part| self.name_of(part.worker_id)).collect(),
            free_by: reservation.free_by,
        })
    }

    /// How a job that does not wait any more stands to the workers. `reservation` is what was reserved for it.
    pub fn last_standing(
        &self,
        job: &QueuedJob,
        reservation: Option<ReservedPlace>,
        now: Timestamp,
    ) -> LastStanding {
        let answers = self.answers(job, now);
        let reservation = reservation.map(|reserved| ReservedPlace {
            workers: reserved.workers.iter().take(NAMES).map(|name| shortened(name)).collect(),
            ..reserved
        });
        LastStanding {
            verdict: verdict_among(&answers, job.shape.nodes()),
            summary: shortened(&self.summary(job, &answers)),
            quota: self.quota_lack(&job.project, &job.shape).map(|lack| lack.to_string()),
            reservation,
            workers: answers.into_iter().take(ANSWERS).map(counted).collect(),
            remedy: None,
            suggestions: Vec::new(),
        }
    }

    /// The same with what would have helped: the smallest changes that would let a job of this kind start now, or some day
    /// when no worker could ever take it. Takes copies of the queue: not for many.
    pub fn with_advice(&self, standing: LastStanding, job: &QueuedJob, now: Timestamp) -> LastStanding {
        let beyond_quota = self.beyond_quota(&job.project, &job.shape).is_some();
        let never = beyond_quota || standing.verdict == Verdict::Never;
        let mut budget = Budget::of(ADVICE_CHECKS);
        let remedy = if never { self.remedy(&job.project, &job.shape, &mut budget) } else { None };
        LastStanding { remedy, suggestions: self.suggestions(job, now, &mut budget), ..standing }
    }

    /// Why the jobs of some lanes wait, that were found without room: at most so many lanes.
    pub fn reasons(&self, most: usize, now: Timestamp) -> Vec<(Arc<str>, Arc<Shape>, String)> {
        let blocked = self.queue.heads().filter_map(|(turn, lane)| {
            let (key, blocked) = self.queue.standing(lane)?;
            blocked?;
            let reason = shortened(&self.reason_of(turn.job_id(), now)?.line);
            Some((key.project.clone(), key.shape.clone(), reason))
        });
        blocked.take(most).collect()
    }
}
