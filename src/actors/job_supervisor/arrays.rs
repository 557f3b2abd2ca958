//! Arrays: what their children do is counted here, in the commit in which they do it, and what follows for the parent
//! and for those that wait for their turn goes into the same commit.

use std::collections::{HashMap, HashSet};

use actix::{AsyncContext, Context, Handler, Message};

use super::watchers::Reached;
use super::{JobSupervisor, Speech, answer};
use crate::actors::messages::front_desk::{Held, WhyHeld};
use crate::contract::ids::JobId;
use crate::domain::array::{LiveArray, Sweep};
use crate::domain::change::Change;
use crate::domain::dependency::Over;
use crate::domain::job::LiveJob;
use crate::domain::ledger::Ledger;
use crate::journal::Seq;

/// Children that are ended in one turn: others must not wait for a hundred thousand.
const SLICE: usize = 2_000;

/// The live arrays.
#[derive(Debug, Default)]
pub struct Arrays {
    pub(super) live: HashMap<JobId, LiveArray>,
    /// To be looked at with the next commit, although no child of them moved.
    pub(super) due: HashSet<JobId>,
    /// To be swept on after the next commit.
    pub(super) sweeping: HashSet<JobId>,
}

/// Ends more children of an array that ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SweepOn(JobId);

impl Arrays {
    /// With those that the store remembers.
    pub fn restored(arrays: Vec<LiveArray>) -> Self {
        let live: HashMap<_, _> = arrays.into_iter().map(|array| (array.id, array)).collect();
        Self { due: live.keys().copied().collect(), live, sweeping: HashSet::new() }
    }
}

impl JobSupervisor {
    /// After a restart: what follows from where arrays stand. Answers those that wait for other jobs.
    pub(super) fn rederive_arrays(&mut self, ledger: &mut Ledger) -> Vec<JobId> {
        for array in self.arrays.live.values() {
            array.arm(ledger);
            if array.sweeps() {
                self.arrays.sweeping.insert(array.id);
            }
        }
        let waiting = self.arrays.live.values().filter(|array| !array.waits().is_empty());
        waiting.map(|array| array.id).collect()
    }

    /// A parent moved: whoever waits for that is told once it is on disk.
    pub(super) fn parent_moved(&mut self, seq: Seq, parent: JobId) {
        let Some(array) = self.arrays.live.get(&parent) else { return };
        let reached = Reached::by_array(array);
        for reply in self.watchers.satisfied(parent, reached) {
            self.speeches.push(seq, answer(reply, ()));
        }
        if reached.ended {
            self.speeches.push(seq, Speech::JobOver(parent));
        }
    }

    /// An array's end is on disk: from now on the store speaks for it.
    pub(super) fn forget_array(&mut self, parent: JobId) {
        self.timed_out_arrays.waited_for.remove(&parent);
        if let Some(array) = self.arrays.live.remove(&parent) {
            let reason = array.end().map(|end| end.reason);
            self.note_over(parent, reason.map(|reason| Over::Ended { state: array.state(), reason }));
        }
    }

    /// Takes an array in, with its children.
    pub(super) fn take_array(&mut self, array: LiveArray, template: &LiveJob) {
        self.jobs.reserve(array.len());
        self.limits.came(&template.project, array.len() as u64);
        for place in 0..array.len() {
            let child = template.child(array.child(place), array.member(place));
            self.jobs.insert(child.id, child);
        }
        self.arrays.due.insert(array.id);
        self.arrays.live.insert(array.id, array);
    }

    /// Counts what children did, tells the scheduler of those whose turn it is, and moves the parents. Answers the
    /// parents that moved.
    pub(super) fn tally(&mut self, ledger: &mut Ledger) -> Vec<JobId> {
        if self.arrays.live.is_empty() {
            return Vec::new();
        }
        let mut due = std::mem::take(&mut self.arrays.due);
        for change in &ledger.changes {
            let Change::JobMoved(job_id, standing) = change else { continue };
            let Some(member) = self.jobs.get(job_id).and_then(|job| job.member.as_ref()) else { continue };
            let Some(array) = self.arrays.live.get_mut(&member.parent) else { continue };
            array.note(member.place, standing.state, standing.end.as_deref());
            due.insert(member.parent);
        }
        let mut moved = Vec::new();
        for parent in due {
            let Some(array) = self.arrays.live.get_mut(&parent) else { continue };
            for place in array.release() {
                if let Some(child) = self.jobs.get_mut(&array.child(place)) {
                    child.take_turn(ledger, array.spec.clone());
                }
            }
            if array.settle(ledger) {
                moved.push(parent);
            }
        }
        moved
    }

    /// Ends the next children of an array that ends. Answers them.
    pub(super) fn sweep(&mut self, ledger: &mut Ledger, parent: JobId) -> Vec<JobId> {
        let Some(array) = self.arrays.live.get_mut(&parent) else { return Vec::new() };
        let Some((sweep, places)) = array.sweep(SLICE) else { return Vec::new() };
        if places.len() == SLICE {
            self.arrays.sweeping.insert(parent);
        }
        let waited_for = self.timed_out_arrays.waited_for.get(&parent).cloned();
        let mut touched = Vec::with_capacity(places.len());
        for place in places {
            let child = array.child(place);
            let Some(job) = self.jobs.get_mut(&child) else { continue };
            match &sweep {
                Sweep::Cancel { now } => {
                    job.cancel(ledger, *now);
                }
                Sweep::End(end) => job.cannot_start(ledger, (**end).clone()),
                Sweep::QueueTimeout => job.queue_timed_out(ledger, waited_for.as_deref()),
            }
            touched.push(child);
        }
        touched
    }

    /// `queue_timeout_s` of an array came due.
    pub(super) fn array_timeout(&mut self, parent: JobId) {
        let ledger = self.ledger();
        if self.arrays.live.get_mut(&parent).is_some_and(|array| array.queue_timeout(&ledger)) {
            self.arrays.sweeping.insert(parent);
        }
    }

    /// Goes on with what is being swept, after others had their turn.
    pub(super) fn sweep_on(&mut self, ctx: &mut Context<Self>) {
        for parent in std::mem::take(&mut self.arrays.sweeping) {
            ctx.notify(SweepOn(parent));
        }
    }
}

impl Handler<SweepOn> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, on: SweepOn, ctx: &mut Context<Self>) {
        let mut ledger = self.ledger();
        let touched = self.sweep(&mut ledger, on.0);
        self.commit(ctx, ledger, &touched);
        self.speak();
    }
}

impl Handler<WhyHeld> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, question: WhyHeld, _: &mut Context<Self>) {
        let why = match (self.arrays.live.get(&question.job_id), self.jobs.get(&question.job_id)) {
            (Some(array), _) => array.first_offered().map(Held::Child),
            (_, Some(LiveJob { member: Some(member), .. })) => self
                .arrays
                .live
                .get(&member.parent)
                .and_then(|array| array.why_held(member.place))
                .map(Held::Reason),
            _ => None,
        };
        self.say_at_newest(answer(question.reply, why));
    }
}
