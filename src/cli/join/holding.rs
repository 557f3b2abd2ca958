//! The tasks of a worker, as its calls tell of them.
//!
//! Its heartbeats list what it holds, but a list may be older than an answer that has just come: the worker writes it
//! before it has read which tasks it was given, or that an end was taken. So an answer stands until a list that was
//! written after it.

use std::collections::HashMap;

use crate::contract::ids::TaskId;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Holding {
    tasks: HashMap<TaskId, Sight>,
    ended: u64,
}

/// What was heard of a task last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// The server gave it, and no list was written since.
    Given,
    /// It was given, and missed by one list, which may have been written before.
    Missed,
    /// A list had it.
    Listed,
    /// The server has taken its end; a list from before may still have it.
    Ended,
}

impl Holding {
    /// The server gave this task.
    pub(super) fn given(&mut self, task: TaskId) {
        self.tasks.insert(task, Sight::Given);
    }

    /// The server has taken the end of this task.
    pub(super) fn ended(&mut self, task: TaskId) {
        self.tasks.insert(task, Sight::Ended);
        self.ended += 1;
    }

    /// The worker lists what it holds.
    pub(super) fn listed(&mut self, tasks: impl Iterator<Item = TaskId>) {
        let before = std::mem::take(&mut self.tasks);
        for task in tasks {
            let ended = before.get(&task) == Some(&Sight::Ended);
            self.tasks.insert(task, if ended { Sight::Ended } else { Sight::Listed });
        }
        for (task, sight) in before {
            if sight == Sight::Given {
                self.tasks.entry(task).or_insert(Sight::Missed);
            }
        }
    }

    /// Tasks it has now, and those that have ended.
    pub(super) fn counts(&self) -> (usize, u64) {
        (self.tasks.values().filter(|sight| **sight != Sight::Ended).count(), self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(holding: &mut Holding, tasks: &[TaskId]) -> usize {
        holding.listed(tasks.iter().copied());
        holding.counts().0
    }

    #[test]
    fn a_list_written_before_an_answer_changes_nothing_that_the_answer_said() {
        let mut holding = Holding::default();
        let task = TaskId::from_u128(1);
        holding.given(task);
        assert_eq!(listed(&mut holding, &[]), 1, "the worker had not read the answer yet");
        assert_eq!(listed(&mut holding, &[task]), 1);
        holding.ended(task);
        assert_eq!(holding.counts(), (0, 1));
        assert_eq!(listed(&mut holding, &[task]), 0, "nor this one");
        assert_eq!(listed(&mut holding, &[]), 0);
        assert_eq!(holding.counts(), (0, 1));
    }

    #[test]
    fn lists_that_agree_are_right() {
        let mut holding = Holding::default();
        let (kept, lost) = (TaskId::from_u128(2), TaskId::from_u128(4));
        assert_eq!(listed(&mut holding, &[kept, lost]), 2, "it came back with them");
        assert_eq!(listed(&mut holding, &[kept]), 1, "what a list had and the next has not is gone");
        let never = TaskId::from_u128(3);
        holding.given(never);
        assert_eq!(listed(&mut holding, &[kept]), 2);
        assert_eq!(listed(&mut holding, &[kept]), 1, "given, and never held");
    }
}
