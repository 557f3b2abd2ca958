//! Who waits for something of a live job.

use std::collections::HashMap;

use crate::actors::messages::Reply;
use crate::actors::messages::front_desk::Until;
use crate::contract::ids::JobId;

/// Parked questions by job.
#[derive(Debug, Default)]
pub struct Watchers {
    parked: HashMap<JobId, Vec<(Until, Reply<()>)>>,
}

/// Whether a watcher has what it waits for.
pub fn satisfied(until: Until, ended: bool, event_seq: u64) -> bool {
    match until {
        Until::Ended => ended,
        Until::EventAfter(seq) => ended || event_seq > seq,
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
    pub fn satisfied(&mut self, job_id: JobId, ended: bool, event_seq: u64) -> Vec<Reply<()>> {
        let Some(parked) = self.parked.get_mut(&job_id) else { return Vec::new() };
        let mut done = Vec::new();
        let mut rest = Vec::new();
        for (until, reply) in parked.drain(..) {
            if satisfied(until, ended, event_seq) {
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
