//! Jobs that leave the queue without a place: what they had waited for is asked of the scheduler, and kept with the job.
//! A job whose queue timeout is over ends when the scheduler has said so; it says so of every job that it is asked about,
//! also of one that it does not know. After a restart in between, the alarm is set again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use actix::{Context, Handler};

use super::JobSupervisor;
use crate::actors::messages::job_supervisor::QueueLeft;
use crate::actors::messages::scheduler::QueueTimeoutsOver;
use crate::contract::explain::LastStanding;
use crate::contract::ids::JobId;
use crate::domain::change::Change;
use crate::domain::job::{LiveJob, Stage};

/// What is known of arrays whose queue timeout is over.
#[derive(Debug, Default)]
pub struct TimedOutArrays {
    /// The child that the scheduler was asked about, and its array.
    asked: HashMap<JobId, JobId>,
    /// What the children of an array waited for.
    pub(super) waited_for: HashMap<JobId, Arc<str>>,
}

impl JobSupervisor {
    /// `queue_timeout_s` of these came due. Those that wait for a place end when the scheduler has said how they stand.
    pub(super) fn queue_timeouts(&mut self, ctx: &mut Context<Self>, due: Vec<JobId>) {
        let mut asked = BTreeSet::new();
        for id in due {
            if let Some(array) = self.arrays.live.get(&id) {
                match array.first_offered() {
                    Some(child) => {
                        self.timed_out_arrays.asked.insert(child, id);
                        asked.insert(child);
                    }
                    None => self.array_timeout(id),
                }
            } else if self.jobs.get(&id).is_some_and(|job| job.waits_for_place((self.now)())) {
                asked.insert(id);
            } else {
                self.step(ctx, id, LiveJob::queue_timeout);
            }
        }
        if !asked.is_empty() {
            self.tells.timed_out.do_send(QueueTimeoutsOver { job_ids: asked.into_iter().collect() });
        }
    }
}

impl Handler<QueueLeft> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, left: QueueLeft, ctx: &mut Context<Self>) {
        let mut ledger = self.ledger();
        let mut touched = Vec::new();
        let mut explained: HashMap<JobId, Arc<str>> = HashMap::new();
        // Those that stood alike share one text.
        let mut texts: HashMap<*const LastStanding, Arc<str>> = HashMap::new();
        for (job_id, standing) in &left.departures {
            let why: Option<Arc<str>> = standing.as_ref().map(|standing| standing.summary.as_str().into());
            if let Some(parent) = self.timed_out_arrays.asked.remove(job_id) {
                self.timed_out_arrays.waited_for.extend(why.clone().map(|why| (parent, why)));
                self.array_timeout(parent);
            }
            let mut owner = *job_id;
            if let Some(job) = self.jobs.get_mut(job_id) {
                owner = job.member.as_ref().map_or(owner, |member| member.parent);
                job.queue_timed_out(&mut ledger, why.as_deref());
                if matches!(job.stage(), Stage::Queued) {
                    // The clock was put back: it goes on waiting.
                    job.rederive(&mut ledger);
                }
                touched.push(*job_id);
            }
            if let Some(standing) = standing {
                let text = texts
                    .entry(Arc::as_ptr(standing))
                    .or_insert_with(|| serde_json::to_string(&**standing).unwrap_or_default().into());
                explained.entry(owner).or_insert_with(|| Arc::clone(text));
            }
        }
        ledger.changes.extend(explained.into_iter().map(|(id, text)| Change::JobExplained(id, text)));
        self.commit(ctx, ledger, &touched);
        self.speak();
    }
}
