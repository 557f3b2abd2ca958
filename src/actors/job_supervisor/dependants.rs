//! Who waits for whom: when a job is over, those that wait for it are judged, and those that wait for these, all in
//! one commit.

use std::collections::HashMap;
use std::sync::Arc;

use actix::Context;
use tracing::error;

use super::JobSupervisor;
use crate::contract::end::{End, EndReason};
use crate::contract::ids::JobId;
use crate::contract::spec::JobSpec;
use crate::domain::dependency::{self, Over, Produced, Wait};
use crate::domain::job::{LiveJob, Stage};
use crate::domain::ledger::{Ledger, SharedSpec};

/// Jobs by the one that they wait for. A job that ended meanwhile may still stand here; it is passed over.
#[derive(Debug, Default)]
pub struct Dependants {
    waiting: HashMap<JobId, Vec<JobId>>,
    /// Ended, on disk, and not looked at yet.
    over: Vec<(JobId, Over)>,
}

/// What was read of ended jobs during one pass: ten thousand may wait for the same.
#[derive(Default)]
struct Known {
    over: HashMap<JobId, Option<Over>>,
    produced: HashMap<JobId, Produced>,
}

/// How a job that ended is over for those that wait for it.
pub fn over(job: &LiveJob) -> Option<Over> {
    match job.stage() {
        Stage::Ended(ended) => Some(Over::Ended { state: job.state(), reason: ended.end.reason }),
        Stage::Queued | Stage::Placed(_) => None,
    }
}

impl JobSupervisor {
    /// Notes what these jobs wait for. What is over already is judged at once, into the same ledger. Answers the jobs
    /// that moved by it.
    pub(super) fn await_dependencies(&mut self, ledger: &mut Ledger, jobs: &[JobId]) -> Vec<JobId> {
        let mut known = Known::default();
        let mut moved = Vec::new();
        for job_id in jobs {
            let waits: Vec<JobId> = self.waits_of(*job_id).iter().map(|wait| wait.job).collect();
            for on in waits {
                // One that ended and is not on disk yet comes as any other, once it is.
                if self.jobs.contains_key(&on) || self.arrays.live.contains_key(&on) {
                    self.dependants.waiting.entry(on).or_default().push(*job_id);
                } else {
                    self.judge_dependant(ledger, *job_id, on, &mut known);
                    moved.push(*job_id);
                }
            }
        }
        moved.extend(self.cascade(ledger, moved.clone(), &mut known));
        moved
    }

    /// The job's end is on disk, and the supervisor is about to forget it.
    pub(super) fn note_over(&mut self, job_id: JobId, over: Option<Over>) {
        if let Some(over) = over
            && self.dependants.waiting.contains_key(&job_id)
        {
            self.dependants.over.push((job_id, over));
        }
    }

    /// Judges those that wait for what ended since.
    pub(super) fn judge_dependants(&mut self, ctx: &mut Context<Self>) {
        if self.dependants.over.is_empty() {
            return;
        }
        let mut ledger = self.ledger();
        let mut known = Known::default();
        let mut moved = Vec::new();
        for (on, over) in std::mem::take(&mut self.dependants.over) {
            known.over.insert(on, Some(over));
            for job_id in self.dependants.waiting.remove(&on).unwrap_or_default() {
                self.judge_dependant(&mut ledger, job_id, on, &mut known);
                moved.push(job_id);
            }
        }
        moved.extend(self.cascade(&mut ledger, moved.clone(), &mut known));
        self.commit(ctx, ledger, &moved);
    }

    /// Those that wait for jobs which have just ended without a start, and so on. Answers them.
    fn cascade(&mut self, ledger: &mut Ledger, mut looked_at: Vec<JobId>, known: &mut Known) -> Vec<JobId> {
        let mut moved = Vec::new();
        while let Some(on) = looked_at.pop() {
            if self.jobs.get(&on).is_none_or(|job| over(job).is_none()) {
                continue;
            }
            for job_id in self.dependants.waiting.remove(&on).unwrap_or_default() {
                self.judge_dependant(ledger, job_id, on, known);
                looked_at.push(job_id);
                moved.push(job_id);
            }
        }
        moved
    }

    /// One job and one that it waits for, which is over.
    fn judge_dependant(&mut self, ledger: &mut Ledger, job_id: JobId, on: JobId, known: &mut Known) {
        let Some(wait) = self.waits_of(job_id).iter().find(|wait| wait.job == on).cloned() else { return };
        // What cannot be read now is judged after the next start.
        let Some(over) = self.over_of(on, known) else { return };
        let judged = dependency::judge(&wait, over)
            .and_then(|()| if wait.outputs { self.filled(job_id, &wait, known).map(Some) } else { Ok(None) });
        if let Some(job) = self.jobs.get_mut(&job_id) {
            match judged {
                Ok(filled) => {
                    job.dependency_met(ledger, on, filled);
                }
                Err(end) => job.dependency_failed(ledger, *end),
            }
        } else if let Some(array) = self.arrays.live.get_mut(&job_id) {
            match judged {
                Ok(filled) => array.dependency_met(ledger, on, filled),
                Err(end) => {
                    array.dependency_failed(end);
                    self.arrays.sweeping.insert(job_id);
                }
            }
            self.arrays.due.insert(job_id);
        }
    }

    /// What a job, or an array, still waits for.
    fn waits_of(&self, job_id: JobId) -> &[Wait] {
        match self.jobs.get(&job_id) {
            Some(job) => job.waits(),
            None => self.arrays.live.get(&job_id).map_or(&[], |array| array.waits()),
        }
    }

    fn over_of(&self, on: JobId, known: &mut Known) -> Option<Over> {
        if let Some(job) = self.jobs.get(&on) {
            return over(job);
        }
        *known.over.entry(on).or_insert_with(|| match self.reads.job_standing(on) {
            Ok(Some(standing)) => {
                let reason = standing.end.map(|end| end.reason)?;
                Some(Over::Ended { state: standing.state, reason })
            }
            Ok(None) => Some(Over::Gone),
            Err(error) => {
                error!(job_id = %on, %error, "a dependency cannot be read from the store");
                None
            }
        })
    }

    /// The job's spec with the outputs of what it waited for as inputs.
    fn filled(&self, job_id: JobId, wait: &Wait, known: &mut Known) -> Result<SharedSpec, Box<End>> {
        let unreadable = |what: &str| {
            let detail = format!("{what} of {wait} cannot be read");
            Box::new(End::of(EndReason::InputUnavailable, detail))
        };
        let array = self.arrays.live.get(&job_id).map(|array| array.spec.clone());
        let held = array.or_else(|| self.jobs.get(&job_id).and_then(|job| job.spec.clone()));
        let spec = match held.or_else(|| self.stored_spec(job_id)) {
            Some(spec) => spec,
            None => return Err(unreadable("the spec that names outputs")),
        };
        let produced = match known.produced.get(&wait.job) {
            Some(produced) => produced,
            None => {
                let read = self.produced_by(wait.job).ok_or_else(|| unreadable("outputs"))?;
                known.produced.entry(wait.job).or_insert(read)
            }
        };
        dependency::fill(&spec, wait, produced).map(Arc::new)
    }

    fn stored_spec(&self, job_id: JobId) -> Option<SharedSpec> {
        let (_, text) = self.reads.specs(&[job_id]).ok()?.pop()?;
        serde_json::from_str(&text).ok()
    }

    fn produced_by(&self, on: JobId) -> Option<Produced> {
        let job = self.reads.job(on).ok()??;
        let spec: JobSpec = serde_json::from_str(job.spec.get()).ok()?;
        Some(Produced { declared: spec.outputs, files: job.outputs })
    }
}
