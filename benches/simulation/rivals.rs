//! What others do, each in its plainest honest form: a list of who waits in order, hosts with free GPUs, and a job goes
//! to the fullest hosts that can take it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::trace::{Cluster, TraceJob};
use super::{Decisions, Scheduler};

/// In which order jobs are served, and what one that does not fit does to those behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// By arrival; who does not fit holds up all behind it.
    Fifo,
    /// By priority, then arrival; who does not fit holds up all behind it.
    StrictPriority,
    /// By priority, then arrival; whoever fits goes, and nothing is kept for who does not.
    GreedyBackfill,
}

/// See the module.
pub struct Rival {
    rule: Rule,
    waiting: BTreeMap<(Reverse<i32>, u64, usize), (u32, usize)>,
    free: Vec<u32>,
    running: HashMap<usize, (u32, Vec<usize>)>,
}

impl Rival {
    /// On idle hosts.
    pub fn new(cluster: Cluster, rule: Rule) -> Self {
        let free = vec![cluster.gpus_per_host; cluster.hosts];
        Self { rule, waiting: BTreeMap::new(), free, running: HashMap::new() }
    }

    /// The fullest hosts that have so many GPUs free, the lowest numbers first; all or none.
    fn hosts_for(&self, gpus: u32, nodes: usize) -> Option<Vec<usize>> {
        let mut able: Vec<usize> = (0..self.free.len()).filter(|host| self.free[*host] >= gpus).collect();
        able.sort_by_key(|host| (self.free[*host], *host));
        able.truncate(nodes);
        (able.len() == nodes).then_some(able)
    }
}

impl Scheduler for Rival {
    fn queued(&mut self, number: usize, job: &TraceJob, now_s: u64) {
        let priority = if self.rule == Rule::Fifo { 0 } else { job.priority };
        self.waiting.insert((Reverse(priority), now_s, number), (job.gpus, job.nodes));
    }

    fn freed(&mut self, number: usize) {
        if let Some((gpus, hosts)) = self.running.remove(&number) {
            hosts.into_iter().for_each(|host| self.free[host] += gpus);
        }
    }

    fn pass(&mut self, _: u64) -> Decisions {
        let mut decisions = Decisions::default();
        let mut after = None;
        loop {
            let next = match after {
                None => self.waiting.iter().next(),
                Some(turn) => {
                    self.waiting.range((std::ops::Bound::Excluded(turn), std::ops::Bound::Unbounded)).next()
                }
            };
            let Some((&turn, &(gpus, nodes))) = next else { break };
            match self.hosts_for(gpus, nodes) {
                Some(hosts) => {
                    self.waiting.remove(&turn);
                    hosts.iter().for_each(|host| self.free[*host] -= gpus);
                    self.running.insert(turn.2, (gpus, hosts.clone()));
                    decisions.starts.push((turn.2, hosts));
                }
                None if self.rule == Rule::GreedyBackfill => {}
                None => break,
            }
            after = Some(turn);
        }
        decisions
    }
}
