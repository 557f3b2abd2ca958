//! Fair share: how much of the machines each project has had of late. What it has used counts less with age, by half
//! every half-life; what it holds now counts as if it had been held for [`AT_ONCE`] already, so that a project that
//! was given a place waits behind the others for the next.
//!
//! A holding weighs as much as the largest part of all machines that it takes, be it of their cores, their memory or
//! their GPUs, in millionths (dominant resource fairness: Ghodsi et al., 2011). Integers only.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::pool::Capacity;
use super::{Amount, Grant};
use crate::contract::quantity::{Seconds, Timestamp};

/// For how long a holding counts when it begins.
pub const AT_ONCE: Seconds = Seconds::new(3600);
/// Steps in a half-life; within one, age makes no difference.
const STEPS: u64 = 64;
/// 2^(-1/64) in units of 2^-32.
const STEP_FACTOR: u128 = 4_248_701_965;

/// What one project has had and has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Millionths of all machines, times milliseconds, decayed.
    pub used: u128,
    /// Millionths of all machines that it holds now.
    pub held: u64,
    /// Cores it holds now, in thousandths.
    pub cpu_millis: u64,
    /// GPUs it holds now.
    pub gpus: u64,
}

/// All projects that have or had something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    step_ms: u64,
    as_of_ms: u64,
    projects: BTreeMap<Arc<str>, Usage>,
    /// What was given back since `as_of_ms`: it was held until then at least, and the next look at the clock counts it.
    given_back: BTreeMap<Arc<str>, u64>,
}

impl Shares {
    /// Nobody has had anything.
    pub fn new(half_life: Seconds) -> Self {
        Self {
            step_ms: (half_life.millis() / STEPS).max(1),
            as_of_ms: 0,
            projects: BTreeMap::new(),
            given_back: BTreeMap::new(),
        }
    }

    /// Time passes: what is held is used, and what was used gets older. A clock that was put back changes nothing.
    pub fn advance(&mut self, now: Timestamp) {
        let now_ms = u64::try_from(now.micros() / 1000).unwrap_or(0);
        if self.as_of_ms == 0 {
            self.as_of_ms = now_ms;
        }
        while self.as_of_ms < now_ms {
            let step_end = (self.as_of_ms / self.step_ms + 1) * self.step_ms;
            let until = now_ms.min(step_end);
            let span = u128::from(until - self.as_of_ms);
            for (project, usage) in &mut self.projects {
                let given_back = self.given_back.get(project).copied().unwrap_or(0);
                usage.used += (u128::from(usage.held) + u128::from(given_back)) * span;
                if until == step_end {
                    usage.used = (usage.used * STEP_FACTOR) >> 32;
                }
            }
            self.as_of_ms = until;
            self.projects.retain(|_, usage| usage.used > 0 || usage.held > 0 || usage.cpu_millis > 0);
            if self.projects.is_empty() {
                self.as_of_ms = now_ms;
            }
        }
        self.given_back.clear();
    }

    /// A project had had so much before, as of now.
    pub fn add_used(&mut self, project: &Arc<str>, used: u64) {
        self.projects.entry(project.clone()).or_default().used += u128::from(used);
    }

    /// What every project has had, as of the last advance.
    pub fn noted(&self) -> Vec<(Arc<str>, u64)> {
        let whole = |used: u128| u64::try_from(used).unwrap_or(u64::MAX);
        let had = self.projects.iter().filter(|(_, usage)| usage.used > 0);
        had.map(|(project, usage)| (project.clone(), whole(usage.used))).collect()
    }

    /// A project took something.
    pub fn take(&mut self, project: &Arc<str>, grant: &Grant, weight: u64) {
        let usage = self.projects.entry(project.clone()).or_default();
        usage.held = usage.held.saturating_add(weight);
        usage.cpu_millis = usage.cpu_millis.saturating_add(grant.amount.cpu_millis);
        usage.gpus = usage.gpus.saturating_add(grant.gpus.len() as u64);
    }

    /// And gave it back; it counts until the next look at the clock, which follows at once.
    pub fn give_back(&mut self, project: &Arc<str>, grant: &Grant, weight: u64) {
        if let Some(usage) = self.projects.get_mut(project) {
            usage.held = usage.held.saturating_sub(weight);
            usage.cpu_millis = usage.cpu_millis.saturating_sub(grant.amount.cpu_millis);
            usage.gpus = usage.gpus.saturating_sub(grant.gpus.len() as u64);
            let given_back = self.given_back.entry(project.clone()).or_default();
            *given_back = given_back.saturating_add(weight);
        }
    }

    /// What a project has had and has.
    pub fn usage(&self, project: &str) -> Usage {
        self.projects.get(project).cloned().unwrap_or_default()
    }

    /// Every project that has or had something.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Usage)> {
        self.projects.iter()
    }

    /// The less, the sooner it is served: what it had and has, divided by its share.
    pub fn load(&self, project: &str, share: u32) -> u128 {
        let usage = self.projects.get(project);
        usage.map_or(0, |usage| {
            (usage.used + u128::from(usage.held) * u128::from(AT_ONCE.millis())) / u128::from(share.max(1))
        })
    }
}

/// How much a grant weighs where all machines have so much, in millionths; at least 1.
pub fn weight(grant: &Grant, capacity: Capacity) -> u64 {
    weight_of(grant.amount, grant.gpus.len() as u64, capacity)
}

/// The same of so much and so many GPUs.
pub(super) fn weight_of(amount: Amount, gpus: u64, capacity: Capacity) -> u64 {
    let part = |of: u64, all: u64| {
        let millionths = u128::from(of) * 1_000_000 / u128::from(all.max(1));
        u64::try_from(millionths).unwrap_or(u64::MAX).min(1_000_000)
    };
    part(amount.cpu_millis, capacity.amount.cpu_millis)
        .max(part(amount.memory_bytes, capacity.amount.memory_bytes))
        .max(part(gpus, capacity.gpus))
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn cores(millis: u64) -> Grant {
        Grant { amount: Amount { cpu_millis: millis, memory_bytes: 0 }, gpus: Vec::new() }
    }

    #[test]
    fn what_was_used_counts_half_after_a_half_life() {
        let mut shares = Shares::new(Seconds::new(DAY as u64));
        let project: Arc<str> = "vision".into();
        shares.advance(at(1_000 * DAY));
        shares.take(&project, &cores(1000), 1000);
        shares.advance(at(1_000 * DAY + 3600));
        shares.give_back(&project, &cores(1000), 1000);
        shares.advance(at(1_000 * DAY + 3600));
        let used = shares.usage("vision").used;
        assert!((3_500_000_000..=3_600_000_000).contains(&used), "{used}");
        shares.advance(at(1_001 * DAY + 3600));
        let later = shares.usage("vision").used;
        assert!((used * 49 / 100..=used * 51 / 100).contains(&later), "{used} {later}");
        shares.advance(at(1_200 * DAY));
        assert_eq!(shares.all().count(), 0, "nothing is kept of who had something long ago");
    }

    #[test]
    fn a_task_counts_until_it_is_given_back_though_nobody_looked_at_the_clock_meanwhile() {
        let mut shares = Shares::new(Seconds::new(DAY as u64));
        let project: Arc<str> = "vision".into();
        shares.advance(at(1_000 * DAY));
        shares.take(&project, &cores(1000), 1000);
        shares.give_back(&project, &cores(1000), 1000);
        assert_eq!(shares.usage("vision").cpu_millis, 0, "and its quota is free at once");
        shares.advance(at(1_000 * DAY + 3600));
        let used = shares.usage("vision").used;
        assert!((3_500_000_000..=3_600_000_000).contains(&used), "{used}");
        shares.advance(at(1_000 * DAY + 3601));
        assert!(shares.usage("vision").used <= used, "but no longer");
    }

    #[test]
    fn how_time_is_cut_makes_no_difference() {
        let project: Arc<str> = "vision".into();
        let run = |stops: &[i64]| {
            let mut shares = Shares::new(Seconds::new(3600));
            shares.advance(at(DAY));
            shares.take(&project, &cores(1), 7);
            stops.iter().for_each(|stop| shares.advance(at(DAY + stop)));
            shares.usage("vision")
        };
        assert_eq!(run(&[100_000]), run(&[1, 59, 4000, 4000, 3999, 99_999, 100_000]));
    }

    #[test]
    fn the_scarcest_part_weighs() {
        let capacity = Capacity { amount: Amount { cpu_millis: 64_000, memory_bytes: 512 << 30 }, gpus: 8 };
        assert_eq!(weight(&cores(6_400), capacity), 100_000);
        let mut one_gpu = cores(1_000);
        one_gpu.gpus = vec!["GPU-1".into()];
        assert_eq!(weight(&one_gpu, capacity), 125_000);
        assert_eq!(weight(&cores(0), Capacity::default()), 1);
    }
}
