//! What a worker reports of a task: start, phases, decline, finish.

use std::sync::Arc;

use serde_json::json;

use super::finish::Checked;
use super::{DECLINE_PAUSE, LiveJob, Placed, Run, Stage, TaskEnd};
use crate::contract::end::{End, EndReason};
use crate::contract::event::EventType;
use crate::contract::ids::{Epoch, TaskId};
use crate::contract::job::JobState;
use crate::contract::protocol::{Finish, Report};
use crate::contract::quantity::Seconds;
use crate::contract::worker::{Phase, StuckProcess, TaskState};
use crate::domain::change::{Change, JobResults};
use crate::domain::ledger::{Ledger, Notice};
use crate::domain::retry::{NextAttempt, next_attempt};

/// A report that was taken: the job's state afterwards.
pub type Judged = Result<JobState, ReportRefusal>;

/// Why a report is refused. Nothing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReportRefusal {
    /// It belongs to an earlier placement, or contradicts what was reported first.
    #[error("the report belongs to an earlier placement")]
    StaleEpoch,
    /// The task has ended.
    #[error("the task has ended")]
    TaskEnded,
}

impl LiveJob {
    /// Judges one report of this job's newest task. A report of an older one is refused.
    pub fn report(&mut self, ledger: &mut Ledger, task_id: TaskId, epoch: Epoch, report: &Report) -> Judged {
        if let Stage::Ended(ended) = &self.stage {
            return match (&ended.task, report) {
                (Some((last, reported)), Report::Finish(finish))
                    if *last == task_id && epoch == self.epoch =>
                {
                    if finish == reported {
                        Ok(self.state())
                    } else {
                        Err(ReportRefusal::StaleEpoch)
                    }
                }
                _ if epoch == self.epoch => Err(ReportRefusal::TaskEnded),
                _ => Err(ReportRefusal::StaleEpoch),
            };
        }
        if self.placed().is_none_or(|placed| placed.task_id != task_id) || epoch != self.epoch {
            return Err(ReportRefusal::StaleEpoch);
        }
        match report {
            Report::Start => self.start(ledger),
            Report::Phase { phase } => self.phase(ledger, *phase),
            Report::Decline { detail } => self.decline(ledger, detail),
            Report::Stuck { processes } => self.stuck(ledger, processes),
            Report::Finish(finish) => self.finish(ledger, finish),
        }
    }

    fn start(&mut self, ledger: &mut Ledger) -> Judged {
        let Stage::Scheduled(placed) = &self.stage else {
            return Ok(self.state());
        };
        let placed = placed.clone();
        let run =
            Run { started_at: ledger.now, stop: None, cancel_requested_at: None, unreachable_since: None };
        self.started_at = self.started_at.or(Some(ledger.now));
        self.task_moved(ledger, &placed, Some(&run), TaskEnd::running());
        self.arm_run_limits(ledger, &placed, &run);
        let (worker, task_id) = (placed.worker, placed.task_id);
        self.stage = Stage::Running(placed, run);
        self.event(ledger, Some(task_id), EventType::JobRunning, json!({"attempt": self.attempt}));
        self.moved(ledger);
        ledger.tell(Notice::Started(worker, task_id));
        Ok(JobState::Running)
    }

    fn phase(&mut self, ledger: &mut Ledger, phase: Phase) -> Judged {
        let Stage::Running(placed, _) = &self.stage else {
            return Err(ReportRefusal::StaleEpoch);
        };
        // A worker that adopts a task says again where it stands.
        if self.phase >= Some(phase) {
            return Ok(JobState::Running);
        }
        let (task_id, worker) = (placed.task_id, placed.worker);
        let limit = placed.spec.timeout_s.map(|timeout| ledger.now.plus(timeout).plus(placed.spec.grace_s));
        if let (Phase::Executing, Some(ends_by)) = (phase, limit) {
            ledger.tell(Notice::Bounded(worker, self.place_key(), ends_by));
        }
        self.phase = Some(phase);
        self.event(ledger, Some(task_id), EventType::TaskPhase, json!({"phase": phase}));
        self.moved(ledger);
        Ok(JobState::Running)
    }

    fn stuck(&mut self, ledger: &mut Ledger, processes: &[StuckProcess]) -> Judged {
        let Stage::Running(placed, _) = &self.stage else {
            return Err(ReportRefusal::StaleEpoch);
        };
        let task_id = placed.task_id;
        self.event(ledger, Some(task_id), EventType::TaskStuck, json!({"processes": processes}));
        self.moved(ledger);
        Ok(JobState::Running)
    }

    fn decline(&mut self, ledger: &mut Ledger, detail: &str) -> Judged {
        let Stage::Scheduled(placed) = &self.stage else {
            return Err(ReportRefusal::StaleEpoch);
        };
        let placed = placed.clone();
        let end = TaskEnd { state: TaskState::Declined, end: None, log_artifact: None, stale: false };
        self.task_moved(ledger, &placed, None, end);
        self.event(ledger, Some(placed.task_id), EventType::TaskDeclined, json!({"detail": detail}));
        self.avoid = Some(placed.worker);
        self.release(ledger, &placed);
        self.requeue(ledger, "declined", DECLINE_PAUSE);
        Ok(JobState::Queued)
    }

    fn finish(&mut self, ledger: &mut Ledger, finish: &Finish) -> Judged {
        let Stage::Running(placed, run) = &self.stage else {
            return Err(ReportRefusal::StaleEpoch);
        };
        let (placed, run) = (placed.clone(), *run);
        let Checked { end, outputs, warnings } = Checked::of(&placed.spec, &run, finish);
        let row = TaskEnd { log_artifact: finish.log_artifact, ..TaskEnd::ended(&end) };
        self.task_moved(ledger, &placed, Some(&run), row);
        if self.next_attempt(&placed, &run, &end).is_some() {
            self.event(ledger, Some(placed.task_id), EventType::TaskEnded, json!({"end": &end}));
        }
        self.release(ledger, &placed);
        let results = JobResults {
            outputs,
            undeclared: finish.undeclared.clone(),
            log_artifact: finish.log_artifact,
            warnings,
        };
        if results != JobResults::default() {
            ledger.change(Change::JobResults(self.id, Arc::new(results)));
        }
        self.settle(ledger, &placed, &run, end, Some(Box::new(finish.clone())));
        Ok(self.state())
    }

    /// Records something about an earlier task of this job that changes nothing.
    pub fn remark(&mut self, ledger: &mut Ledger, task_id: TaskId, kind: EventType, data: serde_json::Value) {
        self.event(ledger, Some(task_id), kind, data);
        self.moved(ledger);
    }

    /// After a task's end: another attempt, or the job's end.
    pub(super) fn settle(
        &mut self,
        ledger: &mut Ledger,
        placed: &Placed,
        run: &Run,
        end: End,
        reported: Option<Box<Finish>>,
    ) {
        let retry = &placed.spec.retry;
        if let Some(next) = self.next_attempt(placed, run, &end) {
            self.attempt += 1;
            let preempted = end.reason == EndReason::Preempted;
            self.preemptions += u32::from(preempted);
            // Nothing was wrong with the worker of one that was preempted.
            self.avoid = (retry.avoid_worker && !preempted).then_some(placed.worker);
            self.spec = Some(placed.spec.clone());
            if let Some(memory_bytes) = next.memory_bytes {
                self.ask_for(memory_bytes);
            }
            let pause = if preempted { Seconds::default() } else { retry.backoff_s };
            self.requeue_after(ledger, end.reason, pause);
        } else {
            let task = reported.map(|reported| (placed.task_id, reported));
            self.end(ledger, end, task, run.cancel_requested_at);
        }
    }

    /// One that was preempted is always followed by another, which does not count. A job that somebody cancelled has no
    /// other attempt, whatever ended this one.
    pub(super) fn next_attempt(&self, placed: &Placed, run: &Run, end: &End) -> Option<NextAttempt> {
        let asked = placed.spec.resources.memory_bytes;
        let next = match end.reason {
            EndReason::Preempted => Some(NextAttempt::default()),
            reason => next_attempt(&placed.spec.retry, self.attempt - self.preemptions, reason, asked),
        };
        next.filter(|_| run.cancel_requested_at.is_none())
    }

    /// The lease is over and the worker's resources are free.
    pub(super) fn release(&self, ledger: &mut Ledger, placed: &Placed) {
        ledger.tell(Notice::Settled(placed.worker, placed.task_id));
        ledger.tell(Notice::Freed(placed.worker, self.place_key()));
    }
}
