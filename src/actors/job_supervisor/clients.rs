//! What clients ask of the supervisor, as the front desk passed it on.

use std::collections::{BTreeMap, BTreeSet};

use actix::{Context, Handler};
use serde_json::json;

use super::watchers::Reached;
use super::{JobSupervisor, Speech, Stopping, answer};
use crate::actors::messages::front_desk::{
    Act, CancelJob, CountJobs, Holder, JobCounts, JobNotEnded, Keyed, NewJob, PrepareStop, ProjectFull,
    PurgeJob, StorageLevel, SubmitJobs, SubmitRefusal, WatchJob, WhoHolds,
};
use crate::actors::messages::scheduler::StopPlacing;
use crate::actors::messages::send;
use crate::contract::ids::JobId;
use crate::contract::job::JobState;
use crate::credentials::known::Standing;
use crate::domain::array::LiveArray;
use crate::domain::change::{Change, UsedKey};
use crate::domain::job::LiveJob;
use crate::domain::placement::Shape;

impl JobSupervisor {
    /// Takes the caller's key: `Some(change)` to go with the decision, `None` for a repeat.
    pub(super) fn take_key(&mut self, key: Option<Box<UsedKey>>) -> Option<Option<Change>> {
        match key {
            None => Some(None),
            Some(key) if self.keys.take(&key) => Some(Some(Change::KeyUsed(key))),
            Some(_) => None,
        }
    }

    fn refuse_submission(&self) -> Option<SubmitRefusal> {
        if self.stopping.is_some() {
            Some(SubmitRefusal::Stopping)
        } else if self.storage_full {
            Some(SubmitRefusal::StorageFull)
        } else {
            None
        }
    }

    /// Whether the projects of these jobs may have them.
    fn room_for(&self, jobs: &[NewJob]) -> Result<(), ProjectFull> {
        let mut asked: BTreeMap<&str, u64> = BTreeMap::new();
        for job in jobs {
            let count = job.array.as_ref().map_or(1, |array| array.layout.len() as u64);
            *asked.entry(&job.record.project).or_default() += count;
        }
        self.limits.judge(&asked)
    }

    /// The state for which a job cannot be removed: its own, or that of the array that still counts it.
    fn state_that_keeps(&self, job_id: JobId, parent: Option<JobId>) -> Option<JobState> {
        let job = self.jobs.get(&job_id).map(LiveJob::state);
        let array = [Some(job_id), parent].into_iter().flatten().find_map(|id| self.arrays.live.get(&id));
        // An array that has ended is forgotten once that is on disk; until then its children are counted.
        job.filter(|state| !state.ended()).or(array.map(LiveArray::state).filter(|state| !state.ended()))
    }

    /// Whether something runs that can be stopped: a worker that does not answer is told when it comes back.
    fn anything_to_stop(&self) -> bool {
        self.tasks
            .values()
            .filter_map(|job_id| self.jobs.get(job_id))
            .flat_map(LiveJob::tasks)
            .any(|task| task.run().is_some_and(|run| run.unreachable_since.is_none()))
    }

    /// While draining: answers once nothing runs that can be stopped.
    pub(super) fn answer_drained(&mut self) {
        if matches!(self.stopping, Some(Stopping::Draining(Some(_))))
            && !self.anything_to_stop()
            && let Some(Stopping::Draining(reply)) = &mut self.stopping
            && let Some(reply) = reply.take()
        {
            let newest = self.journal.newest();
            self.speeches.push(newest, answer(reply, ()));
        }
    }
}

impl Handler<SubmitJobs> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: SubmitJobs, ctx: &mut Self::Context) {
        if let Some(refusal) = self.refuse_submission() {
            send(call.reply, Err(refusal));
            return;
        }
        let reply = call.reply;
        let now = (self.now)();
        if call.pass.is_some_and(|pass| pass.standing(now) != Standing::Valid) {
            self.say_at_newest(answer(reply, Err(SubmitRefusal::Revoked)));
            return;
        }
        // A repeat gets its first answer, however full the project is; a refusal leaves the key free.
        if call.key.as_ref().is_none_or(|key| !self.keys.is_taken(key))
            && let Err(full) = self.room_for(&call.jobs)
        {
            self.say_at_newest(answer(reply, Err(full.into())));
            return;
        }
        let Some(key) = self.take_key(call.key) else {
            self.say_at_newest(answer(reply, Ok(Keyed::Repeat)));
            return;
        };
        let mut ledger = self.ledger();
        let mut ids = Vec::with_capacity(call.jobs.len());
        let mut held = 0;
        for new in call.jobs {
            let shape = self.shared_shape(Shape::of(&new.spec));
            ids.push(new.record.id);
            if let Some(array) = new.array {
                let template = LiveJob::template(&new.record, shape);
                let array = LiveArray::accept(&mut ledger, new.record, array, new.waits);
                let children = new.checkpoints.into_iter().map(|(place, kept)| (array.child(place), kept));
                let begin: Vec<_> = children.collect();
                self.take_array(array, &template);
                for (child, kept) in begin {
                    if let Some(child) = self.jobs.get_mut(&child) {
                        child.begin_with(&mut ledger, kept);
                    }
                }
                continue;
            }
            let mut job = LiveJob::accept_after(&mut ledger, new.record, new.spec, shape, new.waits);
            if let Some((_, kept)) = new.checkpoints.into_iter().next() {
                job.begin_with(&mut ledger, kept);
            }
            self.limits.came(&job.project, 1);
            self.jobs.insert(job.id, job);
            held += 1;
        }
        let moved = self.await_dependencies(&mut ledger, &ids);
        ledger.changes.extend(key);
        self.held_specs += held;
        let seq = self.commit(ctx, ledger, &moved);
        self.speeches.push(seq, answer(reply, Ok(Keyed::Done(()))));
        if self.held_specs > super::HELD_SPECS {
            for job_id in ids {
                self.speeches.push(seq, Speech::SpecStored(job_id));
            }
        }
    }
}

impl Handler<CancelJob> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: CancelJob, ctx: &mut Self::Context) {
        let reply = call.reply;
        let Some(key) = self.take_key(call.key) else {
            self.say_at_newest(answer(reply, Keyed::Repeat));
            return;
        };
        let mut ledger = self.ledger();
        let mut touched = vec![call.job_id];
        let changed = if let Some(array) = self.arrays.live.get_mut(&call.job_id) {
            let changed = array.cancel(&mut ledger, call.now);
            touched.extend(self.sweep(&mut ledger, call.job_id));
            changed
        } else {
            let job = self.jobs.get_mut(&call.job_id);
            job.is_some_and(|job| job.cancel(&mut ledger, call.now))
        };
        if let Some(author) = call.by.filter(|_| changed) {
            ledger.audit(&author, Act::JobCancel, &call.job_id.to_string(), json!({ "now": call.now }));
        }
        ledger.changes.extend(key);
        self.commit(ctx, ledger, &touched);
        self.say_at_newest(answer(reply, Keyed::Done(changed)));
    }
}

impl Handler<PurgeJob> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: PurgeJob, ctx: &mut Self::Context) {
        let reply = call.reply;
        if let Some(state) = self.state_that_keeps(call.job_id, call.parent) {
            self.say_at_newest(answer(reply, Err(JobNotEnded { state })));
            return;
        }
        let Some(key) = self.take_key(call.key) else {
            self.say_at_newest(answer(reply, Ok(Keyed::Repeat)));
            return;
        };
        let mut ledger = self.ledger();
        ledger.change(Change::JobPurged(call.job_id));
        if let Some(author) = call.by {
            ledger.audit(&author, Act::JobPurge, &call.job_id.to_string(), json!({}));
        }
        ledger.changes.extend(key);
        self.commit(ctx, ledger, &[]);
        self.say_at_newest(answer(reply, Ok(Keyed::Done(()))));
    }
}

impl Handler<WatchJob> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, watch: WatchJob, _: &mut Self::Context) {
        let job = self.jobs.get(&watch.job_id).map(Reached::by);
        let array = || self.arrays.live.get(&watch.job_id).map(Reached::by_array);
        match job.or_else(array) {
            Some(reached) if !reached.satisfies(watch.until) => {
                self.watchers.park(watch.job_id, watch.until, watch.reply);
            }
            _ => self.say_at_newest(answer(watch.reply, ())),
        }
    }
}

impl Handler<CountJobs> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, question: CountJobs, _: &mut Self::Context) {
        let mut counts = JobCounts::default();
        for job in self.jobs.values() {
            match job.state() {
                JobState::Queued => counts.queued += 1,
                JobState::Scheduled => counts.scheduled += 1,
                JobState::Running => counts.running += 1,
                _ => {}
            }
        }
        send(question.reply, counts);
    }
}

impl Handler<WhoHolds> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, question: WhoHolds, _: &mut Self::Context) {
        let mut placed = self.tasks.values().filter_map(|job_id| self.jobs.get(job_id));
        let holder = match (placed.next(), placed.next()) {
            (Some(only), None) if only.placed().next().is_some() => {
                let at_most = only.time_left((self.now)());
                Some(Holder { job_id: only.id, at_most })
            }
            _ => None,
        };
        send(question.reply, holder);
    }
}

impl Handler<StorageLevel> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, level: StorageLevel, _: &mut Self::Context) {
        self.storage_full = level.full;
    }
}

impl Handler<PrepareStop> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, stop: PrepareStop, ctx: &mut Context<Self>) {
        self.tells.stop_placing.do_send(StopPlacing);
        if !stop.cancel_running {
            self.stopping = Some(Stopping::Keeping);
            self.say_at_newest(answer(stop.reply, ()));
            return;
        }
        let placed: BTreeSet<JobId> = self.tasks.values().copied().collect();
        for job_id in placed {
            self.step(ctx, job_id, |job, ledger| job.shut_down(ledger));
        }
        self.stopping = Some(Stopping::Draining(Some(stop.reply)));
        self.answer_drained();
        self.speak();
    }
}
