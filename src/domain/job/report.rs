//! What a worker reports of a task: start, phases, decline, finish.

use std::sync::Arc;

use serde_json::json;

use super::finish::Checked;
use super::place::as_run;
use super::tasks::TaskEnd;
use super::{LiveJob, LiveTask, NotStarted, Outcome, Over, Run, Stage, Stands};
use crate::contract::artifact::Digest;
use crate::contract::event::EventType;
use crate::contract::ids::{Epoch, TaskId};
use crate::contract::job::JobState;
use crate::contract::progress::TaskProgress;
use crate::contract::protocol::{Finish, KeptCheckpoint, Report};
use crate::contract::worker::{Phase, StuckProcess, TaskState};
use crate::domain::change::{Change, JobResults};
use crate::domain::ledger::{Ledger, Notice};
use crate::domain::progress::bounded;

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
    /// Judges one report of a task of this job's newest placement. A report of an older one is refused.
    pub fn report(&mut self, ledger: &mut Ledger, task_id: TaskId, epoch: Epoch, report: &Report) -> Judged {
        if epoch != self.epoch {
            return Err(ReportRefusal::StaleEpoch);
        }
        let rank = match &self.stage {
            Stage::Queued => return Err(ReportRefusal::StaleEpoch),
            Stage::Ended(ended) => {
                let known = ended.tasks.iter().find(|(id, _)| *id == task_id).map(|(_, finish)| &**finish);
                return judge_repeat(known, report).map(|()| self.state());
            }
            Stage::Placed(tasks) => {
                let Some(rank) = self.rank_of(task_id) else { return Err(ReportRefusal::StaleEpoch) };
                if let Some(Stands::Over(over)) = tasks.get(rank).map(|task| &task.stands) {
                    return judge_repeat(over.reported.as_deref(), report).map(|()| self.state());
                }
                rank
            }
        };
        match report {
            Report::Start => self.start(ledger, rank),
            Report::Phase { phase } => self.phase(ledger, rank, *phase),
            Report::Decline { detail } => self.decline(ledger, rank, detail),
            Report::Stuck { processes } => self.stuck(ledger, rank, processes),
            Report::Progress { progress } => self.progressed(ledger, rank, progress),
            Report::Checkpoint { kept } => self.checkpoint_kept(ledger, rank, kept.clone()),
            Report::Yielded { first_n, values } => self.take_yielded(ledger, rank, *first_n, values),
            Report::Finish(finish) => self.finish(ledger, rank, finish),
        }
    }

    fn start(&mut self, ledger: &mut Ledger, rank: usize) -> Judged {
        let first = self.state() == JobState::Scheduled;
        let Stage::Placed(tasks) = &mut self.stage else { return Err(ReportRefusal::StaleEpoch) };
        let Some(task) = tasks.get_mut(rank) else { return Err(ReportRefusal::StaleEpoch) };
        if task.run().is_some() {
            return Ok(JobState::Running);
        }
        let run = Run { started_at: ledger.now, phase: None, stop: None, unreachable_since: None };
        task.stands = Stands::Running(run);
        let placed = task.placed.clone();
        self.started_at = self.started_at.or(Some(ledger.now));
        self.task_moved(ledger, &placed, Some(&run), TaskEnd::running());
        self.arm_run_limits(ledger, &placed, &run);
        if first {
            let data = json!({"attempt": self.attempt});
            self.event(ledger, Some(placed.task_id), EventType::JobRunning, data);
        }
        self.moved(ledger);
        let (worker, task_id) = (placed.worker, placed.task_id);
        ledger.tell(Notice::Started { worker, task_id, suspended: false });
        Ok(JobState::Running)
    }

    fn phase(&mut self, ledger: &mut Ledger, rank: usize, phase: Phase) -> Judged {
        let Some((placed, run)) = self.runs(rank) else { return Err(ReportRefusal::StaleEpoch) };
        // A worker that adopts a task says again where it stands.
        if run.phase >= Some(phase) {
            return Ok(JobState::Running);
        }
        let limit = placed.spec.timeout_s.map(|timeout| ledger.now.plus(timeout).plus(placed.spec.grace_s));
        if let (Phase::Executing, Some(ends_by)) = (phase, limit) {
            ledger.tell(Notice::Bounded(placed.worker, self.place_key(), ends_by));
        }
        self.reached(rank, phase);
        self.event(ledger, Some(placed.task_id), EventType::TaskPhase, json!({"phase": phase}));
        self.moved(ledger);
        Ok(JobState::Running)
    }

    /// A job is where the last of its tasks is.
    fn reached(&mut self, rank: usize, phase: Phase) {
        let Stage::Placed(tasks) = &mut self.stage else { return };
        if let Some(run) = tasks.get_mut(rank).and_then(LiveTask::run_mut) {
            run.phase = Some(phase);
        }
        let live = tasks.iter().filter(|task| task.alive().is_some());
        self.phase = live.map(|task| task.run().and_then(|run| run.phase)).min().flatten();
    }

    fn stuck(&mut self, ledger: &mut Ledger, rank: usize, processes: &[StuckProcess]) -> Judged {
        let Some((placed, _)) = self.runs(rank) else { return Err(ReportRefusal::StaleEpoch) };
        self.event(ledger, Some(placed.task_id), EventType::TaskStuck, json!({"processes": processes}));
        self.moved(ledger);
        Ok(JobState::Running)
    }

    /// Of a gang rank 0 speaks for all.
    fn progressed(&mut self, ledger: &mut Ledger, rank: usize, said: &TaskProgress) -> Judged {
        self.runs(rank).ok_or(ReportRefusal::StaleEpoch)?;
        if let Some(said) = bounded(said.clone()).filter(|_| rank == 0) {
            ledger.change(Change::JobProgressed(self.id, Box::new(said)));
        }
        Ok(JobState::Running)
    }

    /// Of a gang that of rank 0.
    fn checkpoint_kept(&mut self, ledger: &mut Ledger, rank: usize, kept: Option<KeptCheckpoint>) -> Judged {
        let (placed, _) = self.runs(rank).ok_or(ReportRefusal::StaleEpoch)?;
        if let Some(KeptCheckpoint { artifact, size_bytes, left_out }) = kept.filter(|_| rank == 0) {
            self.replace_checkpoint(ledger, Some(artifact));
            let mut data = json!({"artifact": artifact, "size_bytes": size_bytes});
            if !left_out.is_empty() {
                data["left_out"] = json!(left_out);
            }
            self.event(ledger, Some(placed.task_id), EventType::TaskCheckpoint, data);
            self.moved(ledger);
        }
        Ok(JobState::Running)
    }

    /// Its first attempt finds what the job that it repeats has left.
    pub fn begin_with(&mut self, ledger: &mut Ledger, checkpoint: Digest) {
        self.replace_checkpoint(ledger, Some(checkpoint));
        self.moved(ledger);
    }

    pub(super) fn replace_checkpoint(&mut self, ledger: &mut Ledger, kept: Option<Digest>) {
        if self.checkpoint != kept {
            let before = std::mem::replace(&mut self.checkpoint, kept);
            ledger.change(Change::CheckpointKept { job_id: self.id, kept, before });
        }
    }

    fn decline(&mut self, ledger: &mut Ledger, rank: usize, detail: &str) -> Judged {
        let Some(task) = self.tasks().get(rank).filter(|task| !task.started()) else {
            return Err(ReportRefusal::StaleEpoch);
        };
        let task_id = task.placed.task_id;
        let end = TaskEnd { state: TaskState::Declined, ..TaskEnd::running() };
        self.event(ledger, Some(task_id), EventType::TaskDeclined, json!({"detail": detail}));
        self.not_started(ledger, rank, NotStarted::Declined, end);
        Ok(self.state())
    }

    fn finish(&mut self, ledger: &mut Ledger, rank: usize, finish: &Finish) -> Judged {
        let Some((placed, run)) = self.runs(rank) else { return Err(ReportRefusal::StaleEpoch) };
        let Checked { end, outputs, result, warnings } = Checked::of(&as_run(&placed), &run, finish);
        let (undeclared, log_artifact) = (finish.undeclared.clone(), finish.log_artifact);
        let results = Arc::new(JobResults { outputs, undeclared, log_artifact, result, warnings });
        let kept = placed.gang.is_some().then(|| results.clone());
        let row = TaskEnd { log_artifact, results: kept, ..TaskEnd::ended(&end) };
        self.task_moved(ledger, &placed, Some(&run), row);
        self.tell_end(ledger, &placed, &end);
        self.release(ledger, &placed);
        let over = Over {
            at: ledger.now,
            how: Outcome::Ended(end),
            stop: run.stop.map(|stop| stop.cause),
            results,
            reported: Some(Box::new(finish.clone())),
        };
        self.over(ledger, rank, over);
        Ok(self.state())
    }

    /// Records something about an earlier task of this job that changes nothing.
    pub fn remark(&mut self, ledger: &mut Ledger, task_id: TaskId, kind: EventType, data: serde_json::Value) {
        self.event(ledger, Some(task_id), kind, data);
        self.moved(ledger);
    }
}

/// A report of a task that is over: a repeat of its finish is answered like the first.
fn judge_repeat(known: Option<&Finish>, report: &Report) -> Result<(), ReportRefusal> {
    match (known, report) {
        (Some(known), Report::Finish(finish)) if **finish == *known => Ok(()),
        (Some(_), Report::Finish(_)) => Err(ReportRefusal::StaleEpoch),
        _ => Err(ReportRefusal::TaskEnded),
    }
}
