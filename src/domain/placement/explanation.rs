//! The whole explanation of one job: what every worker says, whose turn it is, what is reserved, and what would help.

use std::sync::Arc;

use super::ahead::{Ahead, ahead_of};
use super::budget::for_touching;
use super::candidates::Candidates;
use super::explain::{explain, line_of, shown, verdict_among};
use super::fit::Wants;
use super::outlook;
use super::reservations::{Applicant, Way};
use super::suggest::{self, Change, Room};
use super::waiting::{quota_holders, waiting_for};
use super::{Budget, Input, Luggage, Pass, Placer, PoolWorker, QueuedJob, Shape};
use crate::contract::explain::{Explanation, ReservedFor, Suggestion, Verdict, WorkersAnswer};
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::quantity::Timestamp;

/// Suggestions that are said at most.
const SUGGESTIONS: usize = 5;
/// Longer queues are not played forward, nor are changes tried out in them: both take a copy.
const PLAYED_JOBS: usize = 20_000;
/// Ends of tasks that are played forward at most.
const PLAYED_ENDS: usize = 2_000;
/// Scans of the workers that it takes to say what each of them answers, and what is waited for.
const EXPLAINED_SCANS: usize = 4;
/// Of a job for which there is room, when it costs too much to find out whether a pass keeps that for others.
const NOT_PLAYED: &str = "so much waits that it was not worked out whether others come first";

/// Why a job waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueReason {
    /// In one line, grouped per worker. Names no other job: not everybody may see it.
    pub line: String,
    /// The job for which all workers are kept that are kept for another.
    pub reserved_for: Option<JobId>,
}

impl Placer {
    /// Why a waiting job waits; `None` when it does not.
    pub fn explain_job(&self, job_id: JobId, now: Timestamp, budget: &mut Budget) -> Option<Explanation> {
        let job = self.queue.job(job_id)?;
        let ahead = budget.within_half(|budget| ahead_of(&job, self, budget));
        let explanation = self.explain_wish(&job, now, budget);
        let Some(Ahead { jobs, first, favoured }) = ahead else { return Some(explanation) };
        Some(Explanation { ahead: Some(jobs), served_before: first, favoured, ..explanation })
    }

    /// In one line, as `queue_reason`.
    pub fn reason_of(&self, job_id: JobId, now: Timestamp) -> Option<QueueReason> {
        let job = self.queue.job(job_id)?;
        let answers = self.answers(&job, now);
        let mut kept = answers.iter().filter_map(|answer| answer.reserved_for.as_ref()?.job);
        let first = kept.next();
        let reserved_for = first.filter(|first| kept.all(|other| other == *first));
        Some(QueueReason { line: self.summary(&job, &answers), reserved_for })
    }

    /// How a job would stand if it was submitted now. When the budget is spent, what was not found by then is left out.
    pub fn explain_wish(&self, job: &QueuedJob, now: Timestamp, budget: &mut Budget) -> Explanation {
        if self.quota_lack(&job.project, &job.shape).is_some() || !self.has_seats(job, now, budget) {
            let explained = self.explained(job, now, budget);
            return Explanation { suggestions: self.suggestions(job, now, budget), ..explained };
        }
        let mut after = self.played(job, budget);
        match after.as_mut().and_then(|after| after.places(job, now, budget)).zip(after) {
            Some((true, _)) => self.explained(job, now, budget),
            // There is room, and the next pass keeps it for others: how it stands then is the truth.
            Some((false, after)) => {
                let explained = after.explained(job, now, budget);
                Explanation { suggestions: self.suggestions(job, now, budget), ..explained }
            }
            None => {
                let mut explained = self.explained(job, now, budget);
                if explained.verdict == Verdict::Fits {
                    explained.summary = format!("{} · {NOT_PLAYED}", explained.summary);
                }
                explained
            }
        }
    }

    /// Without changes that would let it start.
    fn explained(&self, job: &QueuedJob, now: Timestamp, budget: &mut Budget) -> Explanation {
        budget.spend_scans(EXPLAINED_SCANS, self);
        let workers = self.answers(job, now);
        let beyond_quota = self.beyond_quota(&job.project, &job.shape).is_some();
        let verdict = match verdict_among(&workers, job.shape.nodes()) {
            _ if beyond_quota => Verdict::Never,
            verdict => verdict,
        };
        let reservation = self.reserved_for(job.job_id);
        Explanation {
            verdict,
            summary: self.summary(job, &workers),
            held: None,
            quota: self.quota_lack(&job.project, &job.shape).map(|lack| lack.to_string()),
            quota_held_by: quota_holders(job, self, now),
            reservation,
            waiting_for: waiting_for(job, &self.applicant_of(job, now), self, now),
            nodes: job.shape.nodes.filter(|nodes| *nodes > 1),
            served_before: Vec::new(),
            favoured: None,
            warnings: Vec::new(),
            untested: outlook::untested(&Wants::of(&job.shape, &self.pool), &self.pool),
            starts_by: match verdict {
                Verdict::Never => None,
                Verdict::NotNow | Verdict::Fits => budget.within_half(|half| self.starts_by(job, now, half)),
            },
            ahead: None,
            remedy: match verdict {
                Verdict::Never => self.remedy(&job.project, &job.shape, budget),
                Verdict::NotNow | Verdict::Fits => None,
            },
            workers,
            suggestions: Vec::new(),
        }
    }

    /// The smallest change after which some worker could take it some day.
    pub(super) fn remedy(
        &self,
        project: &str,
        shape: &Arc<Shape>,
        budget: &mut Budget,
    ) -> Option<Suggestion> {
        let within_quota = |shape: &Shape| self.beyond_quota(project, shape).is_none();
        let changes = suggest::changes(shape, &self.pool, Room::Ever, within_quota, budget);
        changes.into_iter().next().map(|change| change.said)
    }

    pub(super) fn summary(&self, job: &QueuedJob, answers: &[WorkersAnswer]) -> String {
        match self.quota_lack(&job.project, &job.shape) {
            Some(quota) => format!("{quota} · {}", line_of(answers, job.shape.nodes())),
            None => line_of(answers, job.shape.nodes()),
        }
    }

    pub(super) fn answers(&self, job: &QueuedJob, now: Timestamp) -> Vec<WorkersAnswer> {
        let applicant = self.applicant_of(job, now);
        explain(&job.shape, &self.pool, |worker| self.kept_from(worker, job, &applicant))
    }

    /// For whom a worker with room is kept from this job.
    fn kept_from(&self, worker: &PoolWorker, job: &QueuedJob, applicant: &Applicant) -> Option<ReservedFor> {
        let kept = match self.reservations.way(worker.id, applicant) {
            Way::Open => false,
            Way::Closed => true,
            Way::Besides(reserved) => {
                let wants = Wants::of(&job.shape, &self.pool);
                wants.gpus_of(worker, |gpu| reserved.contains(&gpu.uuid)).is_none()
            }
        };
        let reserved_for = self.reservations.on(worker.id).filter(|_| kept)?;
        let until = self.reservations.of(reserved_for).and_then(|reservation| reservation.free_by);
        Some(ReservedFor { job: Some(reserved_for), until })
    }

    /// As a pass now would see it.
    pub(super) fn applicant_of(&self, job: &QueuedJob, now: Timestamp) -> Applicant {
        Applicant {
            job_id: job.job_id,
            priority: job.priority,
            amount: job.shape.amount(),
            ends_by: self.ends_by(&job.shape, now),
            avoid: job.avoid,
            luggage: job.luggage,
        }
    }

    /// What people call a worker.
    pub fn name_of(&self, worker_id: WorkerId) -> String {
        self.pool.worker(worker_id).map_or_else(|| worker_id.to_string(), shown)
    }

    /// Whether a pass now would place it, as far as that was found out.
    pub(super) fn would_start(&self, job: &QueuedJob, now: Timestamp, budget: &mut Budget) -> bool {
        budget.for_pass(self).is_some()
            && self.quota_lack(&job.project, &job.shape).is_none()
            && self.has_seats(job, now, budget)
            && (self.is_too_long_to_play()
                || self
                    .played(job, budget)
                    .is_some_and(|mut placer| placer.places(job, now, budget) == Some(true)))
    }

    /// Whether enough workers have room, for whomever it is kept.
    pub(super) fn has_room(&self, job: &QueuedJob, budget: &mut Budget) -> bool {
        budget.spend_scans(1, self);
        let wants = Wants::of(&job.shape, &self.pool);
        self.pool.workers().filter(|worker| wants.lack(worker).is_none()).take(job.shape.nodes()).count()
            == job.shape.nodes()
    }

    fn has_seats(&self, job: &QueuedJob, now: Timestamp, budget: &mut Budget) -> bool {
        let mut checks = 0;
        let wants = Wants::of(&job.shape, &self.pool);
        let mut list = Candidates::find(wants, self.pool.workers(), &mut checks);
        let applicant = self.applicant_of(job, now);
        let seats = list.seats(job.shape.nodes(), &applicant, self.ground(), &mut checks);
        budget.spend(checks);
        seats.is_some()
    }

    fn is_too_long_to_play(&self) -> bool {
        self.queue.len() > PLAYED_JOBS
    }

    /// A copy in which this job waits as it is said to; `None` when that is too much to copy, or nothing could be tried in
    /// it.
    pub(super) fn played(&self, job: &QueuedJob, budget: &mut Budget) -> Option<Self> {
        if self.is_too_long_to_play() || budget.for_pass(self).is_none() {
            return None;
        }
        budget.spend(for_touching(self.queue.len()));
        let mut placer = self.clone();
        placer.queue.insert(job.clone());
        Some(placer)
    }

    /// A pass of a copy, with what is left; `None` = nothing is.
    fn play(&mut self, now: Timestamp, budget: &mut Budget) -> Option<Pass> {
        let pass = self.tried_pass(now, budget.for_pass(self)?);
        budget.spend(pass.checks);
        Some(pass)
    }

    /// Whether a pass of this copy places it; `None` = the budget was spent before that was found out.
    pub(super) fn places(&mut self, job: &QueuedJob, now: Timestamp, budget: &mut Budget) -> Option<bool> {
        let pass = self.play(now, budget)?;
        let placed = pass.placements.iter().any(|placed| placed.job.job_id == job.job_id);
        (placed || !pass.exhausted).then_some(placed)
    }

    pub(super) fn suggestions(
        &self,
        job: &QueuedJob,
        now: Timestamp,
        budget: &mut Budget,
    ) -> Vec<Suggestion> {
        let within_quota = |shape: &Shape| self.quota_lack(&job.project, shape).is_none();
        let changes = budget
            .within_half(|budget| suggest::changes(&job.shape, &self.pool, Room::Now, within_quota, budget));
        let helps = |change: &Change| {
            self.would_start(&QueuedJob { shape: change.shape.clone(), ..job.clone() }, now, budget)
        };
        changes.into_iter().filter(helps).take(SUGGESTIONS).map(|change| change.said).collect()
    }

    /// When it starts at the latest: the queue is played forward, with every task taking all the time it may. `None` also
    /// when that was not found out.
    fn starts_by(&self, job: &QueuedJob, now: Timestamp, budget: &mut Budget) -> Option<Timestamp> {
        let mut placer = self.played(job, budget)?;
        let mut now = now;
        let ends = for_touching(self.pool.all_holdings().count());
        for _ in 0..PLAYED_ENDS {
            let pass = placer.play(now, budget)?;
            if pass.placements.iter().any(|placed| placed.job.job_id == job.job_id) {
                return Some(now);
            }
            if pass.exhausted {
                return None;
            }
            budget.spend(ends);
            let next = placer.pool.next_end()?;
            now = now.max(next);
            for (worker_id, place) in placer.pool.ending_by(now) {
                let back = placer.comes_back(worker_id, place);
                let _ = placer.apply(Input::Freed { worker_id, place });
                // Who had to go for another has its turn again, the whole of a gang when its last task has gone.
                if let Some(job) = back.filter(|job| placer.pool.places_of(job.job_id).is_empty()) {
                    let _ = placer.apply(Input::Queued(job));
                }
            }
        }
        None
    }

    /// A copy as if there were so many more idle workers like this one (name or id), and as if that job neither waited nor ran;
    /// `None` when there is no such worker.
    pub fn supposing(&self, like: Option<&str>, more: u32, without: Option<JobId>) -> Option<Self> {
        let mut placer = self.clone();
        if let Some(like) = like {
            let called = |worker: &&PoolWorker| worker.name == like || worker.id.to_string() == like;
            let id = self.pool.workers().find(called)?.id;
            placer.pool.multiply(id, more);
        }
        if let Some(job_id) = without {
            placer.forget(job_id);
        }
        Some(placer)
    }
}

/// A job that nobody submitted.
pub fn wish(job_id: JobId, priority: i32, project: Arc<str>, shape: Arc<Shape>, now: Timestamp) -> QueuedJob {
    let luggage = Luggage::default();
    QueuedJob { job_id, epoch: 0, priority, submitted_at: now, shape, project, avoid: None, luggage }
}
