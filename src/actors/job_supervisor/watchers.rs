//! Who waits for something of a live job.

use std::collections::HashMap;

use crate::actors::messages::Reply;
use crate::actors::messages::front_desk::Until;
use crate::contract::ids::JobId;
use crate::domain::array::LiveArray;
use crate::domain::job::LiveJob;

/// Parked questions by job.
#[derive(Debug, Default)]
pub struct Watchers {
    parked: HashMap<JobId, Vec<(Until, Reply<()>)>>,
}

/// What of a job a watcher may wait for.
#[derive(Debug, Clone, Copy)]
pub struct Reached {
    /// Whether it is over.
    pub ended: bool,
    /// Number of its newest event.
    pub event_seq: u64,
    /// Number of its newest yielded value.
    pub yielded: u64,
}

impl Reached {
    /// By a job.
    pub fn by(job: &LiveJob) -> Self {
        Self { ended: job.state().ended(), event_seq: job.event_seq(), yielded: job.yielded() }
    }

    /// By an array, which yields nothing itself.
    pub fn by_array(array: &LiveArray) -> Self {
        Self { ended: array.state().ended(), event_seq: array.event_seq(), yielded: 0 }
    }

    /// Whether a watcher has what it waits for.
    pub fn satisfies(&self, until: Until) -> bool {
        match until {
            Until::Ended => self.ended,
            Until::EventAfter(seq) => self.ended || self.event_seq > seq,
            Until::YieldedAfter(n) => self.ended || self.yielded > n,
        }
    }
}

impl Watchers {
    /// Parks one; those of this job whose asker has gone are dropped on the way.
    pub fn park(&mut self, job_id: JobId, until: Until, reply: Reply<()>) {
        let parked = self.parked.entry(job_id).or_default();
        parked.retain(|(_, reply)| !reply.is_closed());
        parked.push((until, reply));
    }

    /// Takes those that have what they wait for.
    pub fn satisfied(&mut self, job_id: JobId, reached: Reached) -> Vec<Reply<()>> {
        let Some(parked) = self.parked.get_mut(&job_id) else { return Vec::new() };
        let mut done = Vec::new();
        let mut rest = Vec::new();
        for (until, reply) in parked.drain(..) {
            if reached.satisfies(until) {
                done.push(reply);
            } else if !reply.is_closed() {
                rest.push((until, reply));
            }
        }
        if rest.is_empty() {
            self.parked.remove(&job_id);
        } else {
            *parked = rest;
        }
        done
    }
}
