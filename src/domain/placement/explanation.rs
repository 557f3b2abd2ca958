//! The whole explanation of one job: what every worker says, whose turn it is, what is reserved, and what would help.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::candidates::Candidates;
use super::explain::{explain, line_of, shown, verdict_among};
use super::fit::Wants;
use super::outlook;
use super::reservations::{Applicant, Way};
use super::suggest::{self, Change, Room};
use super::waiting::waiting_for;
use super::{Input, Luggage, Placer, PoolWorker, QueuedJob, Shape};
use crate::contract::explain::{Explanation, Suggestion, Verdict, WorkersAnswer};
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::quantity::Timestamp;

/// Suggestions that are said at most.
const SUGGESTIONS: usize = 5;
/// Jobs that are served before another which are named.
const AHEAD_NAMED: usize = 3;
/// Longer queues are not played forward, nor are changes tried out in them: both take a copy.
const PLAYED_JOBS: usize = 20_000;
/// Ends of tasks that are played forward at most, and what that may cost in checks.
const PLAYED_ENDS: usize = 2_000;
const PLAYED_CHECKS: u64 = 300_000;

impl Placer {
    /// Why a waiting job waits; `None` when it does not.
    pub fn explain_job(&self, job_id: JobId, now: Timestamp) -> Option<Explanation> {
        let job = self.queue.job(job_id)?;
        let (ahead, served_before) = self.ahead_of(&job);
        Some(Explanation { ahead: Some(ahead), served_before, ..self.explain_wish(&job, now) })
    }

    /// In one line, as `queue_reason`.
    pub fn reason_of(&self, job_id: JobId) -> Option<String> {
        let job = self.queue.job(job_id)?;
        Some(self.summary(&job, &self.answers(&job)))
    }

    /// How a job would stand if it was submitted now.
    pub fn explain_wish(&self, job: &QueuedJob, now: Timestamp) -> Explanation {
        let workers = self.answers(job);
        let suggestions = if self.would_start(job, now) { Vec::new() } else { self.suggestions(job, now) };
        let beyond_quota = self.beyond_quota(&job.project, &job.shape).is_some();
        let verdict = match verdict_among(&workers, job.shape.nodes()) {
            _ if beyond_quota => Verdict::Never,
            verdict => verdict,
        };
        let reservation = self.reserved_for(job.job_id);
        Explanation {
            verdict,
            summary: self.summary(job, &workers),
            quota: self.quota_lack(&job.project, &job.shape).map(|lack| lack.to_string()),
            reservation,
            waiting_for: waiting_for(job, self, now),
            nodes: job.shape.nodes.filter(|nodes| *nodes > 1),
            served_before: Vec::new(),
            warnings: Vec::new(),
            untested: outlook::untested(&Wants::of(&job.shape, &self.pool), &self.pool),
            starts_by: if verdict == Verdict::Never { None } else { self.starts_by(job, now) },
            ahead: None,
            remedy: match verdict {
                Verdict::Never => self.remedy(&job.project, &job.shape),
                Verdict::NotNow | Verdict::Fits => None,
            },
            workers,
            suggestions,
        }
    }

    /// The smallest change after which some worker could take it some day.
    pub(super) fn remedy(&self, project: &str, shape: &Arc<Shape>) -> Option<Suggestion> {
        let within_quota = |shape: &Shape| self.beyond_quota(project, shape).is_none();
        let changes = suggest::changes(shape, &self.pool, Room::Ever, within_quota);
        changes.into_iter().next().map(|change| change.said)
    }

    pub(super) fn summary(&self, job: &QueuedJob, answers: &[WorkersAnswer]) -> String {
        match self.quota_lack(&job.project, &job.shape) {
            Some(quota) => format!("{quota} · {}", line_of(answers, job.shape.nodes())),
            None => line_of(answers, job.shape.nodes()),
        }
    }

    pub(super) fn answers(&self, job: &QueuedJob) -> Vec<WorkersAnswer> {
        let applicant = self.applicant_of(job);
        explain(&job.shape, &self.pool, |worker| self.kept_from(worker, job, &applicant))
    }

    /// Why a worker with room is not for this job.
    fn kept_from(&self, worker: &PoolWorker, job: &QueuedJob, applicant: &Applicant) -> Option<String> {
        let kept = match self.reservations.way(worker.id, applicant) {
            Way::Open => false,
            Way::Closed => true,
            Way::Besides(reserved) => {
                let wants = Wants::of(&job.shape, &self.pool);
                wants.gpus_of(worker, |gpu| reserved.contains(&gpu.uuid)).is_none()
            }
        };
        // Which one is for those to know who may see it.
        self.reservations.on(worker.id).filter(|_| kept).map(|_| "reserved for another job".to_owned())
    }

    fn applicant_of(&self, job: &QueuedJob) -> Applicant {
        Applicant {
            job_id: job.job_id,
            priority: job.priority,
            amount: job.shape.amount(),
            // As if it had no limit: whether it would end in time is what the pass knows.
            ends_by: None,
            avoid: job.avoid,
            luggage: job.luggage,
        }
    }

    /// What people call a worker.
    pub fn name_of(&self, worker_id: WorkerId) -> String {
        self.pool.worker(worker_id).map_or_else(|| worker_id.to_string(), shown)
    }

    /// How many jobs are served before this one, and the first of them.
    fn ahead_of(&self, job: &QueuedJob) -> (u64, Vec<JobId>) {
        let load = |project: &str| self.shares.load(project, self.policy.share(project));
        let own = (Reverse(job.priority), load(&job.project), job.submitted_at, job.job_id);
        let (mut ahead, mut first) = (0, BTreeSet::new());
        for (project, turns) in self.queue.lines() {
            let theirs = load(project);
            let turns = turns
                .map(|(priority, submitted_at, job_id)| (Reverse(priority), theirs, submitted_at, job_id));
            // The turns of a lane are in this order already.
            for (index, turn) in turns.take_while(|turn| *turn < own).enumerate() {
                ahead += 1;
                if index < AHEAD_NAMED {
                    first.insert(turn);
                }
            }
        }
        (ahead, first.into_iter().take(AHEAD_NAMED).map(|(_, _, _, job_id)| job_id).collect())
    }

    /// Whether a pass now would place it.
    fn would_start(&self, job: &QueuedJob, now: Timestamp) -> bool {
        self.quota_lack(&job.project, &job.shape).is_none()
            && self.has_seats(job, now)
            && self.played(job).is_none_or(|mut placer| placer.places(job, now))
    }

    fn has_seats(&self, job: &QueuedJob, now: Timestamp) -> bool {
        let mut checks = 0;
        let wants = Wants::of(&job.shape, &self.pool);
        let mut list = Candidates::find(wants, self.pool.workers(), &mut checks);
        let ends_by = job.shape.bound_s.map(|bound| now.plus(self.policy.staging_s).plus(bound));
        let applicant = Applicant { ends_by, ..self.applicant_of(job) };
        list.seats(job.shape.nodes(), &applicant, self.ground(), &mut checks).is_some()
    }

    /// A copy in which this job waits as it is said to; `None` when that is too much to copy.
    fn played(&self, job: &QueuedJob) -> Option<Self> {
        if self.queue.len() > PLAYED_JOBS {
            return None;
        }
        let mut placer = self.clone();
        placer.queue.insert(job.clone());
        Some(placer)
    }

    fn places(&mut self, job: &QueuedJob, now: Timestamp) -> bool {
        let pass = self.apply(Input::Pass { now, budget_checks: u32::MAX }).unwrap_or_default();
        pass.placements.iter().any(|placed| placed.job.job_id == job.job_id)
    }

    pub(super) fn suggestions(&self, job: &QueuedJob, now: Timestamp) -> Vec<Suggestion> {
        let helps = |change: &Change| {
            self.would_start(&QueuedJob { shape: change.shape.clone(), ..job.clone() }, now)
        };
        let within_quota = |shape: &Shape| self.quota_lack(&job.project, shape).is_none();
        let changes = suggest::changes(&job.shape, &self.pool, Room::Now, within_quota);
        changes.into_iter().filter(helps).take(SUGGESTIONS).map(|change| change.said).collect()
    }

    /// When it starts at the latest: the queue is played forward, with every task taking all the time it may.
    fn starts_by(&self, job: &QueuedJob, now: Timestamp) -> Option<Timestamp> {
        let mut placer = self.played(job)?;
        let mut now = now;
        let mut checks = 0_u64;
        for _ in 0..PLAYED_ENDS {
            let pass = placer.apply(Input::Pass { now, budget_checks: u32::MAX }).unwrap_or_default();
            checks += u64::from(pass.checks);
            if pass.placements.iter().any(|placed| placed.job.job_id == job.job_id) {
                return Some(now);
            }
            if checks > PLAYED_CHECKS {
                return None;
            }
            let next = placer.pool.next_end()?;
            now = now.max(next);
            for (worker_id, place) in placer.pool.ending_by(now) {
                let _ = placer.apply(Input::Freed { worker_id, place });
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
