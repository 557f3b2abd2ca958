//! Whether an attempt that ended is followed by another.

use crate::contract::end::{EndReason, Owner};
use crate::contract::spec::Retry;

/// What is different about the attempt that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NextAttempt {
    /// What it asks for instead, in bytes.
    pub memory_bytes: Option<u64>,
}

/// The attempt that follows one that asked for `memory_bytes` and ended for `reason`, if any does. With
/// `memory_growth` an attempt that ran out of memory is followed by one that asks for more, and by none once it had
/// the most: the same again would end the same (CONTRACT, Words and states).
pub fn next_attempt(
    retry: &Retry,
    attempt: u32,
    reason: EndReason,
    memory_bytes: Option<u64>,
) -> Option<NextAttempt> {
    if !retries(retry, attempt, reason) {
        return None;
    }
    let (Some(growth), Some(asked), EndReason::OomKilled) = (&retry.memory_growth, memory_bytes, reason)
    else {
        return Some(NextAttempt::default());
    };
    let next = grown(asked, growth.factor_millis()).min(growth.max_bytes);
    (next > asked).then_some(NextAttempt { memory_bytes: Some(next) })
}

/// `asked` times the factor, rounded up.
fn grown(asked: u64, factor_millis: u64) -> u64 {
    u64::try_from((u128::from(asked) * u128::from(factor_millis)).div_ceil(1000)).unwrap_or(u64::MAX)
}

/// A retry only when attempts are left and the reason is asked for (CONTRACT, Words and states). `worker_lost`
/// includes `worker_rebooted`; an owner's name stands for all its reasons; success and cancellation are never
/// retried.
pub fn retries(retry: &Retry, attempt: u32, reason: EndReason) -> bool {
    attempt < retry.max_attempts && is_asked_for(retry, reason)
}

/// Whether this end is one after which retries were asked for, and whether there can be any.
pub fn is_asked_for(retry: &Retry, reason: EndReason) -> bool {
    retry.max_attempts > 1
        && !matches!(reason, EndReason::Completed | EndReason::Cancelled | EndReason::QueueTimedOut)
        && retry.retry_on.iter().any(|asked| covers(asked, reason))
}

fn covers(asked: &str, reason: EndReason) -> bool {
    asked == "any"
        || asked == reason.word()
        || asked == owner_word(reason.owner())
        || (asked == EndReason::WorkerLost.word() && reason == EndReason::WorkerRebooted)
}

/// The word of an owner in `retry_on`.
pub const fn owner_word(owner: Owner) -> &'static str {
    match owner {
        Owner::User => "user",
        Owner::Infrastructure => "infrastructure",
        Owner::Platform => "platform",
        Owner::Operator => "operator",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::spec::MemoryGrowth;

    fn retry(max_attempts: u32, on: &[&str]) -> Retry {
        Retry {
            max_attempts,
            retry_on: on.iter().map(|word| (*word).to_owned()).collect(),
            ..Retry::default()
        }
    }

    #[test]
    fn the_default_never_retries() {
        for reason in EndReason::ALL {
            assert!(!retries(&Retry::default(), 1, *reason), "{reason:?}");
        }
    }

    #[test]
    fn only_asked_reasons_and_only_while_attempts_are_left() {
        let policy = retry(3, &["worker_lost"]);
        assert!(retries(&policy, 2, EndReason::WorkerLost));
        assert!(retries(&policy, 2, EndReason::WorkerRebooted), "a reboot is a lost worker");
        assert!(!retries(&policy, 3, EndReason::WorkerLost), "the third attempt was the last");
        assert!(!retries(&policy, 1, EndReason::ExitNonzero));
        assert!(retries(&retry(2, &["infrastructure"]), 1, EndReason::DiskFull));
        assert!(!retries(&retry(2, &["infrastructure"]), 1, EndReason::Internal));
    }

    #[test]
    fn memory_grows_after_an_oom_kill_until_it_had_the_most() {
        let growth = |factor, max_bytes| Retry {
            memory_growth: Some(MemoryGrowth { factor, max_bytes }),
            ..retry(9, &["oom_killed", "worker_lost"])
        };
        let after = |policy: &Retry, asked| {
            next_attempt(policy, 1, EndReason::OomKilled, Some(asked)).map(|next| next.memory_bytes)
        };
        let policy = growth(1.5, 1000);
        assert_eq!(after(&policy, 400), Some(Some(600)));
        assert_eq!(after(&policy, 601), Some(Some(902)), "rounded up");
        assert_eq!(after(&policy, 900), Some(Some(1000)), "never more than the most");
        assert_eq!(after(&policy, 1000), None, "the same again would end the same");
        assert_eq!(after(&growth(1.001, u64::MAX), u64::MAX - 1), Some(Some(u64::MAX)));
        let lost = next_attempt(&policy, 1, EndReason::WorkerLost, Some(400));
        assert_eq!(lost, Some(NextAttempt::default()), "other ends say nothing about memory");
        assert_eq!(next_attempt(&policy, 9, EndReason::OomKilled, Some(400)), None, "no attempts left");
        let unasked = Retry { retry_on: vec!["worker_lost".into()], ..policy };
        assert_eq!(next_attempt(&unasked, 1, EndReason::OomKilled, Some(400)), None);
    }

    #[test]
    fn any_spares_success_and_cancellation() {
        let policy = retry(9, &["any"]);
        for reason in EndReason::ALL {
            let spared =
                matches!(reason, EndReason::Completed | EndReason::Cancelled | EndReason::QueueTimedOut);
            assert_eq!(retries(&policy, 1, *reason), !spared, "{reason:?}");
        }
    }
}
