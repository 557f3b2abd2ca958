//! One task on its worker: what happens next, after everything that can happen. Pure: events in, effects out.
//!
//! `Starting → Staging → Launching → Preparing → Executing → Draining → Collecting → Finishing → Settled`. Nothing executes
//! before the start was answered, no finish goes out before the last log record is acknowledged, and every
//! path leads to `Settled`.

mod environment;
mod function;
mod limit_notes;
mod log_cursor;
mod log_gaps;
mod reuse;

use crate::contract::artifact::{Digest, OutputFile, UndeclaredFile};
use crate::contract::end::{End, EndReason};
use crate::contract::function::Returned;
use crate::contract::problem::Warning;
use crate::contract::progress::TaskProgress;
use crate::contract::protocol::{Finish, KeptCheckpoint, Report, StopReason};
use crate::contract::spec::JobSpec;
use crate::contract::worker::{Phase, StuckProcess};
use crate::domain::verdict::shim_lost;

pub use crate::domain::verdict::{Exit, ExitFacts, StopSent, UncollectedOutput, verdict};
pub use environment::{TaskPlace, command_line, environment, is_of_one_task};
pub use function::{Called, called};
pub use limit_notes::{
    held_back, lines_lost, memory_let_loose, memory_not_held, outlived_a_kill, tells_of_lost_lines,
};
use log_cursor::{LogCursor, LogStep};
pub use log_cursor::{LogEnd, WholeLog};
use log_gaps::LogGaps;
pub use reuse::reuse_key;

/// What happened to a task, as its runner saw it.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The server recorded the start.
    StartAccepted,
    /// The server refused the start: the task has ended, or was placed anew.
    StartRefused,
    /// Source and inputs are in the workspace.
    Staged,
    /// They could not be brought there, or bringing them was stopped.
    StageFailed {
        /// `input_unavailable`, `prepare_failed`, `disk_full`.
        reason: EndReason,
        /// What, and why.
        detail: String,
    },
    /// The shim builds what the program needs, and starts it afterwards.
    Preparing,
    /// The shim has started the program.
    Launched,
    /// No shim could take the task: the program never ran.
    LaunchFailed {
        /// Why.
        detail: String,
    },
    /// The spool holds records up to this number.
    Logged {
        /// Number of the newest record.
        through_n: u64,
    },
    /// The server has log records on disk up to `next_n - 1`.
    LogsAcknowledged {
        /// The number the next record must have.
        next_n: u64,
    },
    /// The server takes no more records of this task, and nobody there wants to hear of it.
    LogsRefused,
    /// The server takes no more records of this task, although somebody may want them.
    LogsRejected {
        /// Number of the first that it did not take.
        first_n: u64,
        /// Why.
        why: String,
    },
    /// The next record cannot be read, nor any behind it so far.
    LogsStalled,
    /// Records are lost. The log says so in their place, and goes on behind them.
    LogsLost {
        /// Number of the first.
        first_n: u64,
        /// Number of the last.
        last_n: u64,
        /// Why.
        why: String,
        /// The number the next record must have.
        next_n: u64,
    },
    /// Processes of the tree were killed seconds ago and do not end.
    Stuck {
        /// Which.
        processes: Vec<StuckProcess>,
    },
    /// The program said how far it is.
    Progressed(TaskProgress),
    /// Its checkpoint is on the server.
    CheckpointKept(KeptCheckpoint),
    /// The program and its whole tree are gone.
    Ended(ExitFacts),
    /// The shim vanished without a word; its tree was swept.
    ShimLost {
        /// Number of the last record in the spool; 0 = none.
        last_n: u64,
        /// Whether it had begun to stop the program for its timeout.
        timed_out: bool,
    },
    /// Somebody wants the task to stop.
    StopOrdered {
        /// Why; the first order's stays.
        cause: StopReason,
        /// Without grace.
        now: bool,
    },
    /// The session was revoked: stop at once and tell nobody.
    Abandoned,
    /// Outputs were looked for, and those found are on the server.
    Collected(Collection),
    /// The server recorded the finish, or refused it for good.
    FinishAnswered,
}

/// What was found in a workspace after the end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Collection {
    /// Declared outputs, their bytes already on the server.
    pub outputs: Vec<OutputFile>,
    /// Declared, not optional, and not brought back.
    pub uncollected: Vec<UncollectedOutput>,
    /// New files that no output declares.
    pub undeclared: Vec<UndeclaredFile>,
    /// The whole log, when it had to be kept as one artifact.
    pub log_artifact: Option<Digest>,
    /// What the function returned or raised.
    pub result: Option<Returned>,
    /// The program's last word about how far it is.
    pub progress: Option<TaskProgress>,
    /// What its next attempt is to begin with.
    pub checkpoint: Option<KeptCheckpoint>,
    /// Single files that could not be brought back, or why none was looked for.
    pub warnings: Vec<Warning>,
    /// Nothing could be looked for: what is there is kept unseen.
    pub set_aside: bool,
}

/// What the runner has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Tell the server; `Start` and `Finish` are answered by events.
    Report(Report),
    /// Bring source and inputs into the workspace.
    Stage,
    /// Stop bringing them; still answered by `Staged` or `StageFailed`.
    StopStaging,
    /// Hand the task to a shim.
    Launch,
    /// Tell the shim to stop the program.
    StopShim {
        /// Why, for the program to read.
        cause: StopReason,
        /// Without grace.
        now: bool,
    },
    /// Send records from the spool, from this number on.
    UploadLogs {
        /// Number of the first record.
        first_n: u64,
        /// Number of the last that should be there.
        through_n: u64,
        /// The log's end, once its program is over.
        end: Option<LogEnd>,
    },
    /// Look for outputs and undeclared files, and bring the outputs to the server, and the whole log if the stored
    /// lines say less.
    Collect {
        /// Where the whole log is.
        whole_log: WholeLog,
        /// Whether another attempt may follow, which wants the checkpoint.
        with_checkpoint: bool,
        /// Whether nobody waits for what may take long, the checkpoint and a long result: it was to stop at once.
        in_a_hurry: bool,
    },
    /// Bring no more of them; still answered by `Collected`, in which what was not brought is named.
    StopCollecting,
    /// Remove the task's folder; nothing more is needed of it.
    RemoveFolder,
    /// Keep the workspace for those who want its undeclared files, and remove the rest.
    KeepWorkspace,
}

/// What was found of a task when its worker restarted.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// No shim ever had it: the start is reported (again) and the workspace prepared anew.
    Unlaunched,
    /// Its shim is alive.
    Running,
    /// The same, and the program has not started yet: what it needs is built.
    Preparing,
    /// Its shim wrote down how it ended.
    Ended(ExitFacts),
    /// Its shim had it and vanished; its tree was swept.
    Lost {
        /// Number of the last record in the spool; 0 = none.
        last_n: u64,
        /// Whether it had begun to stop the program for its timeout.
        timed_out: bool,
    },
}

/// Where a task stands, and what is known there.
#[derive(Debug, Clone, PartialEq)]
enum Stage {
    Starting,
    Staging,
    Launching,
    Preparing,
    Executing,
    Draining(Outcome),
    Collecting(Outcome),
    Finishing { keep: bool },
    Settled,
}

/// What is known of an execution that is over.
#[derive(Debug, Clone, PartialEq)]
enum Outcome {
    Exited(ExitFacts),
    Lost { timed_out: bool },
}

impl Outcome {
    /// Whether the program ran at all.
    fn executed(&self) -> bool {
        match self {
            Outcome::Exited(facts) => {
                !facts.in_prelude && matches!(facts.exit, Exit::Exited { .. } | Exit::Signalled { .. })
            }
            Outcome::Lost { .. } => false,
        }
    }

    /// Whether it may be a success.
    fn exited_well(&self) -> bool {
        matches!(self, Outcome::Exited(facts) if facts.exit == (Exit::Exited { code: 0 }) && facts.stop.is_none())
    }

    fn whole_log(&self) -> WholeLog {
        match self {
            Outcome::Exited(facts) => facts.whole_log,
            Outcome::Lost { .. } => WholeLog::Broken,
        }
    }
}

/// How a task was told to stop; once, and then only harder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StopOrder {
    cause: StopReason,
    now: bool,
}

/// One task on its worker.
#[derive(Debug, Clone)]
pub struct TaskRun {
    stage: Stage,
    stop: Option<StopOrder>,
    abandoned: bool,
    log: LogCursor,
    log_gaps: LogGaps,
    stages: bool,
    collects: bool,
    notes: Vec<Warning>,
}

impl TaskRun {
    /// A task just received. `effects` gets the start report.
    pub fn new(spec: &JobSpec, effects: &mut Vec<Effect>) -> Self {
        effects.push(Effect::Report(Report::Start));
        Self::at(spec, Stage::Starting)
    }

    /// A task found after a restart of the worker.
    pub fn adopt(spec: &JobSpec, found: Found, effects: &mut Vec<Effect>) -> Self {
        match found {
            Found::Unlaunched => Self::new(spec, effects),
            Found::Running => {
                effects.push(Effect::Report(Report::Phase { phase: Phase::Executing }));
                Self::at(spec, Stage::Executing)
            }
            Found::Preparing => {
                effects.push(Effect::Report(Report::Phase { phase: Phase::Environment }));
                Self::at(spec, Stage::Preparing)
            }
            Found::Ended(facts) => {
                let mut run = Self::at(spec, Stage::Executing);
                run.on(Event::Ended(facts), spec, effects);
                run
            }
            Found::Lost { last_n, timed_out } => {
                let mut run = Self::at(spec, Stage::Executing);
                run.on(Event::ShimLost { last_n, timed_out }, spec, effects);
                run
            }
        }
    }

    fn at(spec: &JobSpec, stage: Stage) -> Self {
        let is_function = spec.workload.function().is_some();
        Self {
            stage,
            stop: None,
            abandoned: false,
            log: LogCursor::default(),
            log_gaps: LogGaps::default(),
            stages: spec.source.is_some() || !spec.inputs.is_empty() || is_function,
            collects: !spec.outputs.is_empty() || is_function,
            notes: Vec::new(),
        }
    }

    /// Where it stands, as the server knows phases; `None` before the start was answered.
    pub fn phase(&self) -> Option<Phase> {
        match self.stage {
            Stage::Starting => None,
            Stage::Staging | Stage::Launching => Some(Phase::Staging),
            Stage::Preparing => Some(Phase::Environment),
            Stage::Executing => Some(Phase::Executing),
            Stage::Draining(_) | Stage::Collecting(_) | Stage::Finishing { .. } | Stage::Settled => {
                Some(Phase::Finishing)
            }
        }
    }

    /// It begins with what an earlier attempt left.
    pub fn begins_with_a_checkpoint(&mut self) {
        self.stages = true;
    }

    /// Something for its finish that its user should know.
    pub fn note(&mut self, warning: Warning) {
        self.notes.push(warning);
    }

    /// Whether nothing is left to do for it.
    pub fn settled(&self) -> bool {
        self.stage == Stage::Settled
    }

    /// Takes one event. Events that do not fit the stage are late or repeated and change nothing.
    pub fn on(&mut self, event: Event, spec: &JobSpec, effects: &mut Vec<Effect>) {
        match event {
            Event::StartAccepted => self.start_accepted(effects),
            Event::StartRefused => self.start_refused(effects),
            Event::Staged => self.staged(effects),
            Event::StageFailed { reason, detail } => self.stage_failed(reason, detail, effects),
            Event::Preparing => self.preparing(effects),
            Event::Launched => self.launched(effects),
            Event::LaunchFailed { detail } => self.launch_failed(detail, effects),
            Event::Logged { through_n } => self.log_moved(|log| log.logged(through_n), effects),
            Event::LogsAcknowledged { next_n } => self.log_moved(|log| log.acknowledged(next_n), effects),
            Event::LogsRefused => self.log_moved(LogCursor::refused, effects),
            Event::LogsRejected { first_n, why } => {
                self.log_gaps.open(first_n, why);
                self.log_moved(LogCursor::refused, effects);
            }
            Event::LogsStalled => self.log_moved(LogCursor::stalled, effects),
            Event::LogsLost { first_n, last_n, why, next_n } => {
                self.log_gaps.add(first_n, last_n, why);
                self.log_moved(|log| log.acknowledged(next_n), effects);
            }
            Event::Stuck { processes } => self.stuck(processes, effects),
            Event::Progressed(progress) => self.said(Report::Progress { progress }, effects),
            Event::CheckpointKept(kept) => self.said(Report::Checkpoint { kept: Some(kept) }, effects),
            Event::Ended(mut facts) => {
                self.notes.append(&mut facts.warnings);
                let end = LogEnd { last_n: facts.last_n, lost_records: facts.lost_records };
                self.execution_over(Outcome::Exited(facts), end, effects);
            }
            Event::ShimLost { last_n, timed_out } => {
                // A program can write the word as well; without a timeout it means nothing.
                let timed_out = timed_out && spec.timeout_s.is_some();
                self.execution_over(Outcome::Lost { timed_out }, LogEnd { last_n, lost_records: 0 }, effects);
            }
            Event::StopOrdered { cause, now } => self.stop_ordered(cause, now, effects),
            Event::Abandoned => self.abandon(effects),
            Event::Collected(collection) => self.collected(collection, spec, effects),
            Event::FinishAnswered => self.finish_answered(effects),
        }
    }

    fn start_accepted(&mut self, effects: &mut Vec<Effect>) {
        if self.stage != Stage::Starting {
            return;
        }
        if self.stop.is_some() {
            self.finish_unlaunched(End::of(EndReason::Cancelled, None), effects);
        } else if self.stages {
            self.stage = Stage::Staging;
            effects.push(Effect::Report(Report::Phase { phase: Phase::Staging }));
            effects.push(Effect::Stage);
        } else {
            self.stage = Stage::Launching;
            effects.push(Effect::Launch);
        }
    }

    fn start_refused(&mut self, effects: &mut Vec<Effect>) {
        if self.stage == Stage::Starting {
            self.settle(effects);
        }
    }

    fn staged(&mut self, effects: &mut Vec<Effect>) {
        if self.stage != Stage::Staging {
            return;
        }
        if self.stop.is_some() {
            self.finish_unlaunched(End::of(EndReason::Cancelled, None), effects);
        } else {
            self.stage = Stage::Launching;
            effects.push(Effect::Launch);
        }
    }

    fn stage_failed(&mut self, reason: EndReason, detail: String, effects: &mut Vec<Effect>) {
        if self.stage != Stage::Staging {
            return;
        }
        let end = match self.stop {
            Some(_) => End::of(EndReason::Cancelled, None),
            None => End::of(reason, detail),
        };
        self.finish_unlaunched(end, effects);
    }

    fn preparing(&mut self, effects: &mut Vec<Effect>) {
        if self.stage == Stage::Launching {
            self.shim_began(Stage::Preparing, Phase::Environment, effects);
        }
    }

    fn launched(&mut self, effects: &mut Vec<Effect>) {
        if matches!(self.stage, Stage::Launching | Stage::Preparing) {
            self.shim_began(Stage::Executing, Phase::Executing, effects);
        }
    }

    fn shim_began(&mut self, stage: Stage, phase: Phase, effects: &mut Vec<Effect>) {
        self.stage = stage;
        if !self.abandoned {
            effects.push(Effect::Report(Report::Phase { phase }));
        }
        if let Some(StopOrder { cause, now }) = self.stop {
            effects.push(Effect::StopShim { cause, now });
        }
    }

    fn launch_failed(&mut self, detail: String, effects: &mut Vec<Effect>) {
        if self.stage != Stage::Launching {
            return;
        }
        let end = match self.stop {
            Some(_) => End::of(EndReason::Cancelled, None),
            None => End::of(EndReason::PrepareFailed, detail),
        };
        self.finish_unlaunched(end, effects);
    }

    /// Nothing ran: there is no log and nothing to collect.
    fn finish_unlaunched(&mut self, end: End, effects: &mut Vec<Effect>) {
        if self.abandoned {
            return self.settle(effects);
        }
        self.stage = Stage::Finishing { keep: false };
        let finish = Finish {
            end,
            after_stop: self.stop.is_some(),
            outputs: Vec::new(),
            undeclared: Vec::new(),
            log_artifact: None,
            result: None,
            warnings: Vec::new(),
        };
        effects.push(Effect::Report(Report::Finish(Box::new(finish))));
    }

    /// Whether a shim has it, or is given it.
    fn is_with_shim(&self) -> bool {
        matches!(self.stage, Stage::Launching | Stage::Preparing | Stage::Executing)
    }

    /// The task goes on being one that runs: what it holds stays reserved until its tree is gone.
    fn stuck(&mut self, processes: Vec<StuckProcess>, effects: &mut Vec<Effect>) {
        if self.is_with_shim() && !self.abandoned {
            effects.push(Effect::Report(Report::Stuck { processes }));
        }
    }

    /// Something that only a running program says.
    fn said(&mut self, report: Report, effects: &mut Vec<Effect>) {
        if self.stage == Stage::Executing && !self.abandoned {
            effects.push(Effect::Report(report));
        }
    }

    fn execution_over(&mut self, outcome: Outcome, end: LogEnd, effects: &mut Vec<Effect>) {
        if !self.is_with_shim() {
            return;
        }
        if self.abandoned {
            return self.settle(effects);
        }
        if self.stage != Stage::Executing && outcome.executed() {
            // So short that its end overtook the word of its start.
            effects.push(Effect::Report(Report::Phase { phase: Phase::Executing }));
        }
        self.stage = Stage::Draining(outcome);
        self.log_moved(|log| log.closed(end), effects);
    }

    fn log_moved(&mut self, movement: impl FnOnce(&mut LogCursor) -> LogStep, effects: &mut Vec<Effect>) {
        if self.abandoned || !(self.is_with_shim() || matches!(self.stage, Stage::Draining(_))) {
            return;
        }
        match (movement(&mut self.log), &self.stage) {
            (LogStep::Upload { first_n, through_n, end }, _) => {
                effects.push(Effect::UploadLogs { first_n, through_n, end });
            }
            (LogStep::Drained, Stage::Draining(outcome)) => {
                let whole_log = outcome.whole_log();
                let with_checkpoint = !outcome.exited_well();
                self.stage = Stage::Collecting(outcome.clone());
                if self.collects {
                    effects.push(Effect::Report(Report::Phase { phase: Phase::Finishing }));
                }
                // An eviction or a preemption in a hurry has another attempt follow, which is to find it.
                let in_a_hurry = self.stop == Some(StopOrder { cause: StopReason::Cancelled, now: true });
                effects.push(Effect::Collect { whole_log, with_checkpoint, in_a_hurry });
            }
            (LogStep::Wait | LogStep::Drained, _) => {}
        }
    }

    fn stop_ordered(&mut self, cause: StopReason, now: bool, effects: &mut Vec<Effect>) {
        // The server repeats an order until the task is gone; only a harder one is news.
        let cause = match self.stop {
            Some(before) if before.now || !now => return,
            Some(before) => before.cause,
            None => cause,
        };
        self.stop = Some(StopOrder { cause, now });
        match self.stage {
            Stage::Staging => effects.push(Effect::StopStaging),
            Stage::Preparing | Stage::Executing => effects.push(Effect::StopShim { cause, now }),
            // The exit stands as it is; only who is in a hurry gives its outputs up.
            Stage::Collecting(_) if now => effects.push(Effect::StopCollecting),
            Stage::Starting
            | Stage::Launching
            | Stage::Draining(_)
            | Stage::Collecting(_)
            | Stage::Finishing { .. }
            | Stage::Settled => {}
        }
    }

    fn abandon(&mut self, effects: &mut Vec<Effect>) {
        self.abandoned = true;
        self.stop_ordered(StopReason::Revoked, true, effects);
        match self.stage {
            // What was handed to a shim, or is being written to, ends by its own event.
            Stage::Staging | Stage::Launching | Stage::Preparing | Stage::Executing | Stage::Settled => {}
            Stage::Starting | Stage::Draining(_) | Stage::Collecting(_) | Stage::Finishing { .. } => {
                self.settle(effects);
            }
        }
    }

    fn collected(&mut self, collection: Collection, spec: &JobSpec, effects: &mut Vec<Effect>) {
        let Stage::Collecting(outcome) = &self.stage else {
            return;
        };
        let (end, after_stop) = match outcome {
            Outcome::Exited(facts) => (verdict(facts, spec, &collection.uncollected), facts.stop.is_some()),
            Outcome::Lost { timed_out } => (shim_lost(*timed_out, spec), *timed_out),
        };
        let last_word = collection.progress.map(|progress| Effect::Report(Report::Progress { progress }));
        let kept = collection.checkpoint.map(|kept| Effect::Report(Report::Checkpoint { kept: Some(kept) }));
        effects.extend(last_word.into_iter().chain(kept));
        self.stage = Stage::Finishing { keep: collection.set_aside || !collection.undeclared.is_empty() };
        let mut warnings = std::mem::take(&mut self.notes);
        warnings.extend(self.log_gaps.warning(self.log.last_n()).into_iter().chain(collection.warnings));
        let finish = Finish {
            end,
            after_stop,
            outputs: collection.outputs,
            undeclared: collection.undeclared,
            log_artifact: collection.log_artifact,
            result: collection.result,
            warnings,
        };
        effects.push(Effect::Report(Report::Finish(Box::new(finish))));
    }

    fn finish_answered(&mut self, effects: &mut Vec<Effect>) {
        if let Stage::Finishing { keep } = self.stage {
            self.stage = Stage::Settled;
            effects.push(if keep { Effect::KeepWorkspace } else { Effect::RemoveFolder });
        }
    }

    fn settle(&mut self, effects: &mut Vec<Effect>) {
        self.stage = Stage::Settled;
        effects.push(Effect::RemoveFolder);
    }
}

#[cfg(test)]
mod tests;
