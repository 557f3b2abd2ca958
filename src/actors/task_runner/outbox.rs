//! What is to be reported: in batches, a few on their way at once, and never two things of one task at once, so
//! that the server sees each task's reports in order. (What a task yields goes beside it: it is numbered.)

use std::collections::{BTreeMap, HashSet};

use crate::contract::ids::TaskId;
use crate::contract::protocol::{Report, ReportItem};

/// While two calls are on their way, the next batch gathers; more would only make batches smaller.
const CALLS_AT_ONCE: usize = 2;
/// Keeps a batch, of which each finish lists files, well below the server's limit on bodies.
const ITEMS_PER_CALL: usize = 256;

/// Reports due and reports on their way.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    open: bool,
    due: Vec<ReportItem>,
    on_the_way: HashSet<TaskId>,
    /// Those of them that have a call of their own, which counts for none of the few.
    alone: HashSet<TaskId>,
    calls: usize,
}

impl Outbox {
    /// Adds a report behind all others. Of a task's progress only the newest is due: a server that is away must not find
    /// a queue of them.
    pub(super) fn push(&mut self, item: ReportItem) {
        if let Report::Progress { .. } = item.report {
            let older = |due: &ReportItem| {
                due.task_id == item.task_id && matches!(due.report, Report::Progress { .. })
            };
            self.due.retain(|due| !older(due));
        }
        self.due.push(item);
    }

    /// From now on reports may go; before the worker has a session none may.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// The next batch, if one may go now. It counts as on its way until [`Outbox::answered`].
    pub(super) fn next_batch(&mut self) -> Option<Vec<ReportItem>> {
        if !self.open || self.calls == CALLS_AT_ONCE {
            return None;
        }
        let mut batch = Vec::new();
        let mut held_back = HashSet::new();
        let mut later = Vec::new();
        for item in self.due.drain(..) {
            let waits = self.on_the_way.contains(&item.task_id) || held_back.contains(&item.task_id);
            if waits || batch.len() == ITEMS_PER_CALL {
                held_back.insert(item.task_id);
                later.push(item);
            } else {
                batch.push(item);
            }
        }
        self.due = later;
        if batch.is_empty() {
            return None;
        }
        self.on_the_way.extend(batch.iter().map(|item| item.task_id));
        self.calls += 1;
        Some(batch)
    }

    /// A batch came back, whatever the answer.
    pub(super) fn answered(&mut self, tasks: impl IntoIterator<Item = TaskId>) {
        let mut counted = true;
        for task_id in tasks {
            self.on_the_way.remove(&task_id);
            counted &= !self.alone.remove(&task_id);
        }
        self.calls -= usize::from(counted);
    }

    /// A batch of several tasks came back unjudged: each task's reports, to go on calls of their own. They stay on their
    /// way, and other batches can go.
    pub(super) fn parted(&mut self, batch: Vec<ReportItem>) -> Vec<Vec<ReportItem>> {
        self.calls -= 1;
        let mut by_task: BTreeMap<TaskId, Vec<ReportItem>> = BTreeMap::new();
        for item in batch {
            by_task.entry(item.task_id).or_default().push(item);
        }
        self.alone.extend(by_task.keys());
        by_task.into_values().collect()
    }
}

/// Whether a batch ends something, so that the server may have new work for the place.
pub(super) fn frees_a_place(batch: &[ReportItem]) -> bool {
    batch.iter().any(|item| matches!(item.report, Report::Finish(_) | Report::Decline { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::progress::TaskProgress;
    use crate::contract::worker::Phase;

    fn item(task: u128, report: Report) -> ReportItem {
        ReportItem { task_id: TaskId::from_u128(task), epoch: 1, report }
    }

    fn phase(task: u128) -> ReportItem {
        item(task, Report::Phase { phase: Phase::Executing })
    }

    #[test]
    fn nothing_goes_before_the_session_is_there() {
        let mut outbox = Outbox::default();
        outbox.push(item(1, Report::Start));
        assert_eq!(outbox.next_batch(), None);
        outbox.open();
        assert_eq!(outbox.next_batch(), Some(vec![item(1, Report::Start)]));
    }

    #[test]
    fn what_gathers_goes_at_once_and_each_task_stays_in_order() {
        let mut outbox = Outbox::default();
        outbox.open();
        outbox.push(item(1, Report::Start));
        outbox.push(item(2, Report::Start));
        let first = outbox.next_batch().unwrap();
        assert_eq!(first.len(), 2);
        outbox.push(phase(1));
        outbox.push(item(3, Report::Start));
        outbox.push(phase(3));
        // Task 1 has a report on its way: it waits; task 3 goes whole.
        assert_eq!(outbox.next_batch(), Some(vec![item(3, Report::Start), phase(3)]));
        outbox.push(item(4, Report::Start));
        assert_eq!(outbox.next_batch(), None, "two calls are on their way");
        outbox.answered(first.iter().map(|item| item.task_id));
        assert_eq!(outbox.next_batch(), Some(vec![phase(1), item(4, Report::Start)]));
    }

    #[test]
    fn what_was_too_large_goes_task_by_task_and_holds_up_no_other() {
        let mut outbox = Outbox::default();
        outbox.open();
        for item in [phase(1), item(2, Report::Start), phase(1)] {
            outbox.push(item);
        }
        let batch = outbox.next_batch().unwrap();
        outbox.push(item(9, Report::Start));
        outbox.next_batch().unwrap();
        assert_eq!(outbox.parted(batch), [vec![phase(1), phase(1)], vec![item(2, Report::Start)]]);
        // Both are on their way still, and the call that brought them back has made room.
        for item in [phase(2), item(3, Report::Start)] {
            outbox.push(item);
        }
        assert_eq!(outbox.next_batch(), Some(vec![item(3, Report::Start)]));
        outbox.push(item(4, Report::Start));
        assert_eq!(outbox.next_batch(), None, "two calls are on their way");
        outbox.answered([TaskId::from_u128(2)]);
        assert_eq!(outbox.next_batch(), None, "and its end was of neither");
        outbox.answered([TaskId::from_u128(9)]);
        assert_eq!(outbox.next_batch(), Some(vec![phase(2), item(4, Report::Start)]));
    }

    #[test]
    fn of_progress_only_the_newest_word_goes() {
        let progress = |task, done: f64| {
            let progress = TaskProgress { done: Some(done), ..TaskProgress::default() };
            item(task, Report::Progress { progress })
        };
        let mut outbox = Outbox::default();
        outbox.open();
        for item in [phase(1), progress(1, 1.0), progress(2, 1.0), progress(1, 2.0)] {
            outbox.push(item);
        }
        assert_eq!(outbox.next_batch(), Some(vec![phase(1), progress(2, 1.0), progress(1, 2.0)]));
    }

    #[test]
    fn a_full_batch_does_not_let_a_task_overtake_itself() {
        let mut outbox = Outbox::default();
        outbox.open();
        for task in 0..ITEMS_PER_CALL as u128 {
            outbox.push(item(task, Report::Start));
        }
        outbox.push(phase(0));
        outbox.push(phase(1));
        assert_eq!(outbox.next_batch().unwrap().len(), ITEMS_PER_CALL);
        assert_eq!(outbox.next_batch(), None, "both have a report on its way");
    }
}
