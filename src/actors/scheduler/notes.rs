//! What waiting jobs waited for last: noted once a second at most, in passing, because who finds a place at last is asked
//! what it had been missing.

use std::collections::HashMap;
use std::sync::Arc;

use crate::contract::ids::JobId;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::domain::placement::{Placed, Placer, Shape};

/// Between two notes: what came and went in between is noted as it stood before.
const EVERY: Seconds = Seconds::new(1);
/// Workers that are looked at for one note.
const BUDGET_CHECKS: usize = 20_000;
/// Lanes that are noted at most.
const MOST_LANES: usize = 256;

/// See the module.
#[derive(Default)]
pub(super) struct Notes {
    noted_at: Timestamp,
    reasons: HashMap<(Arc<str>, Arc<Shape>), Arc<str>>,
}

impl Notes {
    /// After a pass: notes why those wait that found no room, if it is time.
    pub(super) fn note(&mut self, placer: &Placer, now: Timestamp) {
        if now < self.noted_at.plus(EVERY) && now >= self.noted_at {
            return;
        }
        self.noted_at = now;
        let lanes = (BUDGET_CHECKS / placer.pool().workers().count().max(1)).clamp(1, MOST_LANES);
        let reasons = placer.reasons(lanes, now).into_iter();
        self.reasons = reasons.map(|(project, shape, reason)| ((project, shape), reason.into())).collect();
    }

    /// What those of these jobs had waited for that were there when it was noted.
    pub(super) fn of(&self, placed: &[Placed]) -> Vec<(JobId, Arc<str>)> {
        if self.reasons.is_empty() {
            return Vec::new();
        }
        let reason = |placed: &Placed| {
            let job = &placed.job;
            let reason = self.reasons.get(&(job.project.clone(), job.shape.clone()))?;
            (job.submitted_at <= self.noted_at).then(|| (job.job_id, Arc::clone(reason)))
        };
        placed.iter().filter_map(reason).collect()
    }
}
