//! Limits that come due by themselves: one timer for the earliest of them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::contract::quantity::Timestamp;
use crate::domain::ledger::Alarm;

/// Never sleep longer: the wall clock may be set, and then the remaining time is another.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Alarms in the order they come due. One that no longer applies stays until then and changes nothing.
#[derive(Debug, Default)]
pub struct Alarms {
    waiting: BTreeSet<(Timestamp, Alarm)>,
}

impl Alarms {
    /// Adds one. Says whether it is now the earliest, so that the timer has to be set anew.
    pub fn add(&mut self, at: Timestamp, alarm: Alarm) -> bool {
        self.waiting.insert((at, alarm));
        self.waiting.first() == Some(&(at, alarm))
    }

    /// How long to sleep until the earliest.
    pub fn sleep(&self, now: Timestamp) -> Option<Duration> {
        self.waiting.first().map(|(at, _)| at.since(now).duration().min(LONGEST_SLEEP))
    }

    /// Takes one that is due.
    pub fn due(&mut self, now: Timestamp) -> Option<Alarm> {
        let (at, _) = self.waiting.first()?;
        if *at <= now { self.waiting.pop_first().map(|(_, alarm)| alarm) } else { None }
    }
}
