//! What projects had had of the machines before a restart: from what was noted last, and from what was held since.

use std::sync::Arc;

use super::shares::Shares;
use super::{Amount, Grant};
use crate::contract::quantity::{Seconds, Timestamp};

/// What every project had had at some time: millionths of all machines times milliseconds, decayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedUsage {
    /// When.
    pub at: Timestamp,
    /// By project; one that is not here had had nothing.
    pub used: Vec<(Arc<str>, u64)>,
}

/// A project held something from one time to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSpan {
    /// Which.
    pub project: Arc<str>,
    /// How much, in millionths of all machines.
    pub weight: u64,
    /// From when.
    pub from: Timestamp,
    /// Until when; `None` = it holds it now.
    pub to: Option<Timestamp>,
}

/// What was held longer ago than so many half-lives counts less than a thousandth.
const HALF_LIVES: u64 = 10;

/// Since when it matters what was held: since it was noted, and not for longer than anything counts.
pub fn matters_since(half_life: Seconds, noted_at: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let oldest = now.minus(Seconds::from_millis(half_life.millis().saturating_mul(HALF_LIVES)));
    noted_at.map_or(oldest, |at| at.max(oldest))
}

/// What every project has had by now. `held` is what was held since [`matters_since`], in no order.
pub fn rebuilt(
    half_life: Seconds,
    noted: Option<&NotedUsage>,
    held: &[HeldSpan],
    now: Timestamp,
) -> NotedUsage {
    let since = matters_since(half_life, noted.map(|noted| noted.at), now);
    let mut shares = Shares::new(half_life);
    shares.advance(since.min(now));
    for (project, used) in noted.filter(|noted| noted.at == since).iter().flat_map(|noted| &noted.used) {
        shares.add_used(project, *used);
    }
    // At one time what ends goes before what begins, and order makes no other difference.
    let mut turns: Vec<(Timestamp, bool, usize)> = Vec::with_capacity(2 * held.len());
    for (index, span) in held.iter().enumerate() {
        let (from, to) = (span.from.max(since).min(now), span.to.unwrap_or(now).min(now));
        if from < to {
            turns.push((from, true, index));
            turns.push((to, false, index));
        }
    }
    turns.sort_unstable();
    let nothing = Grant { amount: Amount::default(), gpus: Vec::new() };
    for (at, begins, index) in turns {
        let HeldSpan { project, weight, .. } = &held[index];
        shares.advance(at);
        if begins {
            shares.take(project, &nothing, *weight);
        } else {
            shares.give_back(project, &nothing, *weight);
            // It was held until now, and not until the next turn.
            shares.advance(at);
        }
    }
    shares.advance(now);
    NotedUsage { at: now, used: shares.noted() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Seconds = Seconds::new(3600);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
    }

    fn span(project: &str, weight: u64, from: i64, to: Option<i64>) -> HeldSpan {
        HeldSpan { project: project.into(), weight, from: at(from), to: to.map(at) }
    }

    #[test]
    fn what_is_rebuilt_is_what_would_have_been_had_nothing_stopped() {
        let spans = [span("a", 500, 0, Some(4_000)), span("b", 70, 10, Some(20)), span("a", 9, 3_000, None)];
        let whole = rebuilt(HOUR, None, &spans, at(9_000));
        assert_eq!(whole.used.len(), 2);
        for stop in [15, 3_500, 4_000, 8_999] {
            let held_then: Vec<HeldSpan> = spans
                .iter()
                .filter(|span| span.from < at(stop))
                .map(|span| HeldSpan { to: span.to.filter(|to| *to <= at(stop)), ..span.clone() })
                .collect();
            let noted = rebuilt(HOUR, None, &held_then, at(stop));
            let again = rebuilt(HOUR, Some(&noted), &spans, at(9_000));
            assert_eq!(again, whole, "stopped at {stop}");
        }
    }

    #[test]
    fn what_is_too_old_counts_no_more() {
        let old = NotedUsage { at: at(0), used: vec![("a".into(), 1 << 40)] };
        assert_eq!(rebuilt(HOUR, Some(&old), &[], at(11 * 3600)).used, []);
        let spans = [span("a", 1, 0, Some(3600)), span("b", 1, 10 * 3600, Some(10 * 3600 + 60))];
        let now = rebuilt(HOUR, None, &spans, at(11 * 3600));
        assert_eq!(now.used.iter().map(|(project, _)| &**project).collect::<Vec<_>>(), ["b"]);
    }
}
