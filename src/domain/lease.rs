//! Deadlines of leases, on a monotonic clock in milliseconds. Which leases ran out is decided here and nowhere
//! else (CONTRACT, Leases and loss); epochs are durable, these deadlines are not: after a restart each begins
//! anew.

use std::collections::{BTreeSet, HashMap};

use crate::contract::ids::{Epoch, TaskId, WorkerId};

/// Milliseconds on a monotonic clock.
pub type Tick = u64;

/// The times leases keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Silence after which a started task's lease runs out.
    pub ttl_ms: u64,
    /// Time a placed task has to start.
    pub start_ms: u64,
    /// A gap between two looks longer than this means that the server itself stood still.
    pub stall_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    epoch: Epoch,
    worker: WorkerId,
    started: bool,
    /// `None`: it ran out and is suspended until renewed or forgotten.
    deadline: Option<Tick>,
}

/// All leases.
#[derive(Debug)]
pub struct LeaseTable {
    times: LeaseTimes,
    leases: HashMap<TaskId, Lease>,
    deadlines: BTreeSet<(Tick, TaskId)>,
    looked_at: Tick,
}

impl LeaseTable {
    /// Without leases. `now` is the first look.
    pub fn new(times: LeaseTimes, now: Tick) -> Self {
        Self { times, leases: HashMap::new(), deadlines: BTreeSet::new(), looked_at: now }
    }

    /// A lease begins. It has to start within `start_ms`.
    pub fn watch(&mut self, now: Tick, task: TaskId, epoch: Epoch, worker: WorkerId) {
        self.forget(task);
        let deadline = Some(now + self.times.start_ms);
        self.set(task, Lease { epoch, worker, started: false, deadline });
    }

    /// The task started: from now on it has to stay renewed. `suspended`: its lease had run out before, and its return is
    /// to be told.
    pub fn started(&mut self, now: Tick, task: TaskId, suspended: bool) {
        if let Some(lease) = self.leases.get(&task).copied() {
            let deadline = (!suspended).then(|| now + self.times.ttl_ms);
            self.set(task, Lease { started: true, deadline, ..lease });
        }
    }

    /// A worker says that it holds these. Only leases of that worker and epoch are renewed; a task that has not
    /// started keeps its start deadline. Answers the suspended ones that came back.
    pub fn renew(&mut self, now: Tick, worker: WorkerId, held: &[(TaskId, Epoch)]) -> Vec<(TaskId, Epoch)> {
        let mut back = Vec::new();
        for (task, epoch) in held {
            if let Some(lease) = self.leases.get(task).copied()
                && lease.epoch == *epoch
                && lease.worker == worker
                && lease.started
            {
                if lease.deadline.is_none() {
                    back.push((*task, *epoch));
                }
                let deadline = Some(now + self.times.ttl_ms);
                self.set(*task, Lease { deadline, ..lease });
            }
        }
        back
    }

    /// The lease is over.
    pub fn forget(&mut self, task: TaskId) {
        if let Some(Lease { deadline: Some(deadline), .. }) = self.leases.remove(&task) {
            self.deadlines.remove(&(deadline, task));
        }
    }

    /// Those that ran out since the last look, now suspended. A server that stood still judges nobody: every
    /// lease gets a full term first.
    pub fn expired(&mut self, now: Tick) -> Vec<(TaskId, Epoch)> {
        let stalled = now.saturating_sub(self.looked_at) > self.times.stall_ms;
        self.looked_at = now;
        if stalled {
            self.extend_all(now);
            return Vec::new();
        }
        let mut out = Vec::new();
        while let Some((deadline, task)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            if let Some(lease) = self.leases.get_mut(&task) {
                lease.deadline = None;
                out.push((task, lease.epoch));
            }
        }
        out
    }

    /// How many are watched.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether none is watched.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn extend_all(&mut self, now: Tick) {
        self.deadlines.clear();
        for (task, lease) in &mut self.leases {
            if lease.deadline.is_some() {
                let term = if lease.started { self.times.ttl_ms } else { self.times.start_ms };
                lease.deadline = Some(now + term);
                self.deadlines.insert((now + term, *task));
            }
        }
    }

    fn set(&mut self, task: TaskId, lease: Lease) {
        if let Some(Lease { deadline: Some(old), .. }) = self.leases.insert(task, lease) {
            self.deadlines.remove(&(old, task));
        }
        if let Some(deadline) = lease.deadline {
            self.deadlines.insert((deadline, task));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: LeaseTimes = LeaseTimes { ttl_ms: 20_000, start_ms: 20_000, stall_ms: 5_000 };
    const TASK: TaskId = TaskId::from_u128(7);
    const WORKER: WorkerId = WorkerId::from_u128(1);

    /// Looks every second from `from` to `to`, as the actor does.
    fn look(table: &mut LeaseTable, from: Tick, to: Tick) -> Vec<(TaskId, Epoch)> {
        (from / 1000..=to / 1000).flat_map(|second| table.expired(second * 1000)).collect()
    }

    fn running() -> LeaseTable {
        let mut table = LeaseTable::new(TIMES, 0);
        table.watch(0, TASK, 3, WORKER);
        table.started(1_000, TASK, false);
        table
    }

    #[test]
    fn a_renewed_lease_holds_and_a_silent_one_runs_out_once() {
        let mut table = running();
        assert!(look(&mut table, 0, 20_000).is_empty());
        assert!(table.renew(20_500, WORKER, &[(TASK, 3)]).is_empty());
        assert!(look(&mut table, 21_000, 40_000).is_empty());
        assert_eq!(look(&mut table, 41_000, 90_000), [(TASK, 3)]);
    }

    #[test]
    fn only_its_own_worker_and_epoch_renew_it() {
        let mut table = running();
        table.renew(15_000, WorkerId::from_u128(2), &[(TASK, 3)]);
        table.renew(15_000, WORKER, &[(TASK, 2)]);
        assert_eq!(look(&mut table, 0, 21_000), [(TASK, 3)]);
    }

    #[test]
    fn a_suspended_lease_may_come_back_and_a_forgotten_one_may_not() {
        let mut table = running();
        assert_eq!(look(&mut table, 0, 21_000), [(TASK, 3)]);
        assert_eq!(table.renew(30_000, WORKER, &[(TASK, 3)]), [(TASK, 3)]);
        table.forget(TASK);
        assert!(table.renew(31_000, WORKER, &[(TASK, 3)]).is_empty());
        assert!(table.is_empty());
    }

    #[test]
    fn a_lease_that_was_suspended_before_a_restart_is_judged_by_nobody_and_may_come_back() {
        let mut table = LeaseTable::new(TIMES, 0);
        table.watch(0, TASK, 3, WORKER);
        table.started(0, TASK, true);
        assert!(look(&mut table, 0, 90_000).is_empty());
        assert_eq!(table.renew(91_000, WORKER, &[(TASK, 3)]), [(TASK, 3)]);
        assert_eq!(look(&mut table, 92_000, 120_000), [(TASK, 3)], "from then on it is like any other");
    }

    #[test]
    fn heartbeats_do_not_excuse_a_task_that_never_starts() {
        let mut table = LeaseTable::new(TIMES, 0);
        table.watch(0, TASK, 1, WORKER);
        table.renew(19_000, WORKER, &[(TASK, 1)]);
        assert_eq!(look(&mut table, 0, 20_000), [(TASK, 1)]);
    }

    #[test]
    fn a_server_that_stood_still_gives_everyone_a_full_term() {
        let mut table = running();
        assert!(table.expired(60_000).is_empty(), "the gap is the server's own");
        assert!(look(&mut table, 60_000, 79_000).is_empty());
        assert_eq!(look(&mut table, 80_000, 80_000), [(TASK, 3)]);
    }
}
