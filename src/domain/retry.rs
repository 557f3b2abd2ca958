//! Whether an attempt that ended is followed by another.

use crate::contract::end::{EndReason, Owner};
use crate::contract::spec::Retry;

/// A retry only when attempts are left and the reason is asked for (CONTRACT, Words and states). `worker_lost`
/// includes `worker_rebooted`; an owner's name stands for all its reasons; success and cancellation are never
/// retried.
pub fn retries(retry: &Retry, attempt: u32, reason: EndReason) -> bool {
    attempt < retry.max_attempts
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
    fn any_spares_success_and_cancellation() {
        let policy = retry(9, &["any"]);
        for reason in EndReason::ALL {
            let spared =
                matches!(reason, EndReason::Completed | EndReason::Cancelled | EndReason::QueueTimedOut);
            assert_eq!(retries(&policy, 1, *reason), !spared, "{reason:?}");
        }
    }
}
