//! What a worker's heartbeats list, against what the server believes to be there. Two things can be wrong: a task that
//! the server does not know runs on, and one that it takes for started is nowhere. Both come about when the server has
//! forgotten something, as after an older copy of its state was put back.
//!
//! Nothing is said at the first sight of either. Heartbeats and reports travel on different connections, so a heartbeat
//! may be older than what the server has heard since: it lists what has ended, and does not list what has started. Only
//! heartbeats one after the other count, and against a started task only those that were certainly written later: those
//! that tell of an answer to a heartbeat which the server got when it knew of the start.

use std::collections::BTreeMap;

use crate::contract::ids::{TaskId, WorkerId};
use crate::contract::protocol::Held;
use crate::contract::worker::TaskState;
use crate::domain::change::TaskRecord;

/// So many heartbeats in a row have to say the same.
const IN_A_ROW: u32 = 3;

/// What one worker's heartbeats have said so far.
#[derive(Debug, Default)]
pub struct RollCall {
    started: BTreeMap<TaskId, Started>,
    strangers: BTreeMap<TaskId, u32>,
}

/// A task that started there, as far as the server knows.
#[derive(Debug, Default)]
struct Started {
    /// The first heartbeat that came after the server knew. What is written after its answer lists the task, unless it
    /// is gone.
    since: Option<u64>,
    missed: u32,
}

/// One heartbeat, newer than all before it.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Its number.
    pub seq: u64,
    /// The newest one whose answer the worker had when it wrote this; an older worker does not say.
    pub answered_seq: Option<u64>,
    /// What the worker holds.
    pub listed: &'a [Held],
}

/// What cannot be explained by messages on their way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unaccounted {
    /// Listed, and not expected there.
    pub strangers: Vec<Held>,
    /// Started there, and not listed.
    pub missing: Vec<TaskId>,
}

impl Unaccounted {
    /// Whether all is as it should be.
    pub fn is_empty(&self) -> bool {
        self.strangers.is_empty() && self.missing.is_empty()
    }
}

impl RollCall {
    /// From now on the task is expected there.
    pub fn started(&mut self, task_id: TaskId) {
        self.started.entry(task_id).or_default();
    }

    /// It is not any more.
    pub fn settled(&mut self, task_id: TaskId) {
        self.started.remove(&task_id);
    }

    /// The worker began anew, and counts its heartbeats from the beginning.
    pub fn began_anew(&mut self) {
        self.started.values_mut().for_each(|started| *started = Started::default());
        self.strangers.clear();
    }

    /// Takes one heartbeat in. `expected`: what may be there without having started, or is ordered to end. What is
    /// unaccounted for is said again after as many heartbeats more.
    pub fn hear(&mut self, call: Call<'_>, expected: impl Fn(TaskId) -> bool) -> Unaccounted {
        let mut unaccounted = Unaccounted::default();
        let before = std::mem::take(&mut self.strangers);
        for held in call.listed {
            let task_id = held.task_id;
            if let Some(started) = self.started.get_mut(&task_id) {
                started.missed = 0;
            } else if !expected(task_id) {
                let seen = before.get(&task_id).map_or(1, |seen| seen + 1);
                if seen >= IN_A_ROW {
                    unaccounted.strangers.push(*held);
                } else {
                    self.strangers.insert(task_id, seen);
                }
            }
        }
        for (task_id, started) in &mut self.started {
            let since = *started.since.get_or_insert(call.seq);
            let later = call.answered_seq.is_some_and(|answered| answered >= since);
            if !later || call.listed.iter().any(|held| held.task_id == *task_id) {
                continue;
            }
            started.missed += 1;
            if started.missed >= IN_A_ROW {
                started.missed = 0;
                unaccounted.missing.push(*task_id);
            }
        }
        unaccounted
    }
}

/// Whether a task that `worker` lists and nobody expects there may be left alone, by what the store has of it: its row,
/// and how it ended if it has. One that ended is only on its way to hear so. One that the store has never heard of, or
/// that was given up, is nobody's.
pub fn may_stay(worker: WorkerId, held: &Held, stored: Option<(&TaskRecord, Option<TaskState>)>) -> bool {
    match stored {
        None => false,
        Some((record, ended)) => {
            // The same task under another placement: that is not to be told apart by an order, so it is left.
            let same = record.worker == worker && record.epoch == held.epoch;
            !same || ended != Some(TaskState::Lost)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: TaskId = TaskId::from_u128(1);

    fn held(task_id: TaskId) -> Held {
        Held { task_id, epoch: 1, phase: None }
    }

    fn call(seq: u64, answered: u64, listed: &[Held]) -> Call<'_> {
        Call { seq, answered_seq: Some(answered), listed }
    }

    /// The heartbeat before was answered, as usual.
    fn usual(seq: u64, listed: &[Held]) -> Call<'_> {
        call(seq, seq - 1, listed)
    }

    #[test]
    fn a_stranger_is_told_of_when_it_stays() {
        let mut roll = RollCall::default();
        let listed = [held(TASK)];
        for seq in 1..=2 {
            assert!(roll.hear(usual(seq, &listed), |_| false).is_empty());
        }
        assert!(roll.hear(usual(3, &[]), |_| false).is_empty());
        for seq in 4..=5 {
            assert!(roll.hear(usual(seq, &listed), |_| false).is_empty(), "counted anew");
        }
        assert_eq!(roll.hear(usual(6, &listed), |_| false).strangers, listed);
        assert!(roll.hear(usual(7, &listed), |_| false).is_empty(), "said, and not at once again");
    }

    #[test]
    fn what_is_offered_ordered_to_end_or_started_is_no_stranger() {
        let mut roll = RollCall::default();
        let listed = [held(TASK)];
        for seq in 1..=9 {
            assert!(roll.hear(usual(seq, &listed), |task_id| task_id == TASK).is_empty());
        }
        roll.started(TASK);
        for seq in 10..=19 {
            assert!(roll.hear(usual(seq, &listed), |_| false).is_empty());
        }
    }

    #[test]
    fn a_started_task_that_is_not_listed_any_more_is_missing() {
        let mut roll = RollCall::default();
        roll.started(TASK);
        let listed = [held(TASK)];
        assert!(roll.hear(usual(10, &listed), |_| false).is_empty());
        for seq in 11..=12 {
            assert!(roll.hear(usual(seq, &[]), |_| false).is_empty());
        }
        assert!(roll.hear(usual(13, &listed), |_| false).is_empty(), "it was listed in between");
        for seq in 14..=15 {
            assert!(roll.hear(usual(seq, &[]), |_| false).is_empty());
        }
        assert_eq!(roll.hear(usual(16, &[]), |_| false).missing, [TASK]);
        roll.settled(TASK);
        for seq in 17..=30 {
            assert!(roll.hear(usual(seq, &[]), |_| false).is_empty());
        }
    }

    #[test]
    fn heartbeats_written_before_the_start_say_nothing_against_it() {
        let mut roll = RollCall::default();
        assert!(roll.hear(usual(1, &[]), |_| false).is_empty());
        // Ten of them hang on a line that comes back, while the start went over another.
        roll.started(TASK);
        for seq in 2..=11 {
            assert!(roll.hear(call(seq, 1, &[]), |_| false).is_empty());
        }
        for seq in 12..=20 {
            assert!(roll.hear(call(seq, 11, &[held(TASK)]), |_| false).is_empty());
        }
    }

    #[test]
    fn answers_of_the_server_before_this_one_do_not_count() {
        let mut roll = RollCall::default();
        roll.started(TASK);
        // The first that this server gets tells of an answer that another one gave.
        for seq in 701..=710 {
            assert!(roll.hear(call(seq, 700, &[]), |_| false).is_empty());
        }
        assert!(roll.hear(call(711, 701, &[]), |_| false).is_empty());
        assert!(roll.hear(call(712, 702, &[]), |_| false).is_empty());
        assert_eq!(roll.hear(call(713, 712, &[]), |_| false).missing, [TASK]);
    }

    #[test]
    fn a_worker_that_does_not_say_what_it_heard_loses_nothing() {
        let mut roll = RollCall::default();
        roll.started(TASK);
        for seq in 1..=99 {
            let call = Call { seq, answered_seq: None, listed: &[] };
            assert!(roll.hear(call, |_| false).is_empty());
        }
    }

    #[test]
    fn a_new_start_of_the_worker_is_heard_from_its_first_heartbeat() {
        let mut roll = RollCall::default();
        roll.started(TASK);
        let listed = [held(TASK)];
        assert!(roll.hear(usual(500, &listed), |_| false).is_empty());
        roll.began_anew();
        for seq in 1..=3 {
            assert!(roll.hear(usual(seq, &[]), |_| false).is_empty());
        }
        assert_eq!(roll.hear(usual(4, &[]), |_| false).missing, [TASK]);
    }

    #[test]
    fn only_what_nobody_has_or_was_given_up_has_to_go() {
        let worker = WorkerId::from_u128(4);
        let record = TaskRecord {
            id: TASK,
            job_id: crate::contract::ids::JobId::from_u128(9),
            worker,
            epoch: 1,
            attempt: 1,
            assigned_at: Default::default(),
            memory_bytes: None,
            gpus: Vec::new(),
            weight: 1,
            gang: None,
        };
        let known = |state| Some((&record, state));
        assert!(!may_stay(worker, &held(TASK), None));
        assert!(!may_stay(worker, &held(TASK), known(Some(TaskState::Lost))));
        assert!(may_stay(worker, &held(TASK), known(None)), "it is about to be told of");
        assert!(may_stay(worker, &held(TASK), known(Some(TaskState::Succeeded))), "its answer is on its way");
        let newer = Held { epoch: 2, ..held(TASK) };
        assert!(may_stay(worker, &newer, known(Some(TaskState::Lost))));
        assert!(may_stay(WorkerId::from_u128(5), &held(TASK), known(Some(TaskState::Lost))));
    }
}
