//! A time limit with which a job could start now: where there is room that is kept for another, whoever has ended before
//! that one can start may have it meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::{Budget, Placer, QueuedJob, Shape, rounded_down};
use crate::contract::explain::Suggestion;
use crate::contract::quantity::{Seconds, Timestamp};

/// For reading the answer and typing the command again.
const TYPING: Seconds = Seconds::new(30);
/// Limits of so much are told in whole minutes.
const IN_MINUTES: Seconds = Seconds::new(600);

impl Placer {
    /// The longest `timeout_s`, of those that were tried, with which this job would start now; `None` when none would, or
    /// it starts as it is. `grace` is its `grace_s`. Takes a few copies of the
    /// queue, as far as the budget goes.
    pub fn shorter_limit(
        &self,
        job: &QueuedJob,
        grace: Seconds,
        now: Timestamp,
        budget: &mut Budget,
    ) -> Option<Suggestion> {
        if budget.for_pass(self).is_none()
            || self.quota_lack(&job.project, &job.shape).is_some()
            || !self.has_room(job, budget)
        {
            return None;
        }
        // Reservations are made in passing, when somebody is about to be overtaken.
        let mut after = self.played(job, budget)?;
        if after.places(job, now, budget)? {
            return None;
        }
        let free_by: BTreeSet<Timestamp> =
            after.reservations().all().filter_map(|(_, reservation)| reservation.free_by).collect();
        let limits = free_by.into_iter().rev().filter_map(|free_by| {
            let staged_at = now.plus(self.policy.staging_s).plus(TYPING);
            let bound = rounded_down(free_by.since(staged_at));
            let limit = told(Seconds::from_millis(bound.millis().checked_sub(grace.millis())?))?;
            job.shape.bound_s.is_none_or(|now| now > bound).then_some((limit, bound))
        });
        let tried = limits.map(|(limit, bound)| {
            let shape = Arc::new(Shape { bound_s: Some(bound), ..(*job.shape).clone() });
            (limit, QueuedJob { shape, ..job.clone() })
        });
        let (limit, _) = tried.into_iter().find(|(_, job)| self.would_start(job, now, budget))?;
        Some(Suggestion {
            change: format!("--timeout {} or less", typed(limit)),
            pointer: "/timeout_s".to_owned(),
            value: json!(limit),
        })
    }
}

/// What people type: whole minutes, or whole seconds when it is short; `None` = nothing is left.
fn told(limit: Seconds) -> Option<Seconds> {
    let unit = if limit >= IN_MINUTES { 60 } else { 1 };
    Some(Seconds::new(limit.millis() / 1000 / unit * unit)).filter(|limit| limit.millis() > 0)
}

/// `90m`, `2h`, `45s`, as a flag reads it.
fn typed(limit: Seconds) -> String {
    let seconds = limit.millis() / 1000;
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, minutes, 0) => format!("{minutes}m"),
        (hours, 0, 0) => format!("{hours}h"),
        (hours, minutes, 0) => format!("{hours}h{minutes}m"),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::spec::human;

    #[test]
    fn a_limit_is_told_as_a_flag_reads_it() {
        for (seconds, text) in
            [(45, "45s"), (61, "61s"), (599, "599s"), (5400, "1h30m"), (7200, "2h"), (900, "15m")]
        {
            assert_eq!(typed(Seconds::new(seconds)), text);
            assert_eq!(human::seconds(text).unwrap(), Seconds::new(seconds));
        }
        assert_eq!(told(Seconds::new(659)), Some(Seconds::new(600)), "never more than there is");
        assert_eq!(told(Seconds::from_millis(999)), None);
    }
}
