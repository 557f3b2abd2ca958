//! The states as docs/CONTRACT.md has them: exactly these arrows, and exactly these states for these reasons.

use gpulayer::contract::end::{EndReason, Owner};
use gpulayer::contract::job::JobState;
use gpulayer::contract::worker::TaskState;

const ARROWS: &[(&str, &[&str])] = &[
    ("queued", &["provisioning", "scheduled", "cancelled", "timed_out", "failed"]),
    ("provisioning", &["queued", "scheduled", "cancelled", "timed_out", "failed"]),
    ("scheduled", &["running", "queued", "cancelled", "timed_out", "failed"]),
    ("running", &["succeeded", "failed", "cancelled", "timed_out", "queued"]),
    ("succeeded", &[]),
    ("failed", &[]),
    ("cancelled", &[]),
    ("timed_out", &[]),
];

#[test]
fn exactly_the_arrows_of_the_contract() {
    assert_eq!(ARROWS.len(), JobState::ALL.len());
    for (from, allowed) in ARROWS {
        let from = JobState::ALL.into_iter().find(|state| state.word() == *from).unwrap();
        for to in JobState::ALL {
            assert_eq!(from.may_become(to), allowed.contains(&to.word()), "{} → {}", from.word(), to.word());
        }
        assert_eq!(from.ended(), allowed.is_empty(), "{}", from.word());
    }
}

#[test]
fn words_are_those_of_the_wire() {
    for state in JobState::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.word());
    }
    for reason in EndReason::ALL {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.word());
    }
}

/// Reason, owner, state of the job, state of the task.
const ENDS: &[(&str, Owner, JobState, TaskState)] = {
    use JobState::{Cancelled, Failed, Succeeded, TimedOut};
    use Owner::{Infrastructure, Operator, Platform, User};
    &[
        ("completed", User, Succeeded, TaskState::Succeeded),
        ("exit_nonzero", User, Failed, TaskState::Failed),
        ("signalled", User, Failed, TaskState::Failed),
        ("timed_out", User, TimedOut, TaskState::TimedOut),
        ("queue_timed_out", User, TimedOut, TaskState::TimedOut),
        ("cancelled", User, Cancelled, TaskState::Cancelled),
        ("dependency_failed", User, Failed, TaskState::Failed),
        ("oom_killed", User, Failed, TaskState::Failed),
        ("cuda_out_of_memory", User, Failed, TaskState::Failed),
        ("import_error", User, Failed, TaskState::Failed),
        ("executable_not_found", User, Failed, TaskState::Failed),
        ("environment_failed", User, Failed, TaskState::Failed),
        ("missing_output", User, Failed, TaskState::Failed),
        ("worker_lost", Infrastructure, Failed, TaskState::Lost),
        ("worker_rebooted", Infrastructure, Failed, TaskState::Lost),
        ("gpu_error", Infrastructure, Failed, TaskState::Failed),
        ("nccl_error", Infrastructure, Failed, TaskState::Failed),
        ("rendezvous_failed", Infrastructure, Failed, TaskState::Failed),
        ("disk_full", Infrastructure, Failed, TaskState::Failed),
        ("preempted", Infrastructure, Failed, TaskState::Cancelled),
        ("input_unavailable", Infrastructure, Failed, TaskState::Failed),
        ("prepare_failed", Platform, Failed, TaskState::Failed),
        ("internal", Platform, Failed, TaskState::Failed),
        ("drained", Operator, Failed, TaskState::Failed),
        ("evicted", Operator, Failed, TaskState::Failed),
        ("revoked", Operator, Failed, TaskState::Failed),
    ]
};

#[test]
fn every_reason_has_its_owner_and_its_states() {
    let found: Vec<_> = EndReason::ALL
        .iter()
        .map(|reason| (reason.word(), reason.owner(), reason.job_state(), reason.task_state()))
        .collect();
    assert_eq!(found, ENDS);
}
