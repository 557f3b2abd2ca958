//! From the facts of an exit to its end: the reason, the owner, and one sentence that says why.

use super::WholeLog;
use crate::contract::end::{End, EndReason};
use crate::contract::quantity::Seconds;
use crate::contract::spec::{JobSpec, Run, Workload};

/// How the program of a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// It exited by itself with this status.
    Exited {
        /// 0 to 255.
        code: i32,
    },
    /// A signal ended it.
    Signalled {
        /// Its name, such as `SIGKILL`.
        signal: String,
    },
    /// It could not be executed.
    NotFound {
        /// 127 when there is no such program, 126 when it may not be executed.
        code: i32,
        /// What was tried, and the system's word for it.
        detail: String,
    },
    /// It never got as far as being executed.
    NotPrepared {
        /// What could not be done, on what.
        detail: String,
        /// Whether the disk was full.
        disk_full: bool,
    },
}

/// Why the shim sent the stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopSent {
    /// It was ordered to.
    Order,
    /// `timeout_s` had passed.
    Timeout,
    /// No worker had come back for too long.
    Orphaned,
}

/// What is known of an execution that is over, its whole tree gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitFacts {
    /// How the program ended.
    pub exit: Exit,
    /// The stop signal that was sent before it ended, if any was.
    pub stop: Option<StopSent>,
    /// From its start to its end; `None` when it never started.
    pub duration: Option<Seconds>,
    /// Largest memory of the tree, where it could be measured.
    pub peak_memory_bytes: Option<u64>,
    /// Number of the last log record; 0 = it wrote none.
    pub last_n: u64,
    /// Where all that it wrote is.
    pub whole_log: WholeLog,
}

/// A declared output that did not come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncollectedOutput {
    /// The name it is listed under.
    pub name: String,
    /// `nothing matches …`, or why it could not be read or sent.
    pub why: String,
}

/// The end of an execution. An exit before the stop signal was sent stands as it is; after it, the cause of the
/// stop names the end (CONTRACT, Words and states).
pub fn verdict(facts: &ExitFacts, spec: &JobSpec, uncollected: &[UncollectedOutput]) -> End {
    let (exit_code, signal) = match &facts.exit {
        Exit::Exited { code } | Exit::NotFound { code, .. } => (Some(*code), None),
        Exit::Signalled { signal } => (None, Some(signal.clone())),
        Exit::NotPrepared { .. } => (None, None),
    };
    let (reason, detail) = match (&facts.stop, &facts.exit) {
        (Some(StopSent::Order), _) => (EndReason::Cancelled, None),
        (Some(StopSent::Timeout), _) => (EndReason::TimedOut, spec.timeout_s.map(timeout_sentence)),
        (Some(StopSent::Orphaned), _) => {
            (EndReason::WorkerLost, Some("no worker came back for the task in time".to_owned()))
        }
        (None, Exit::Exited { code: 0 }) => completed(uncollected),
        (None, Exit::Exited { code }) => (EndReason::ExitNonzero, Some(format!("exited with status {code}"))),
        (None, Exit::Signalled { signal }) => (EndReason::Signalled, Some(format!("ended by {signal}"))),
        (None, Exit::NotFound { code, detail }) => {
            (EndReason::ExecutableNotFound, Some(not_found(spec, *code, detail)))
        }
        (None, Exit::NotPrepared { detail, disk_full: false }) => {
            (EndReason::PrepareFailed, Some(detail.clone()))
        }
        (None, Exit::NotPrepared { detail, disk_full: true }) => (EndReason::DiskFull, Some(detail.clone())),
    };
    End {
        exit_code,
        signal,
        peak_memory_bytes: facts.peak_memory_bytes,
        duration_s: facts.duration,
        ..End::of(reason, detail)
    }
}

/// The end of a task whose shim vanished without writing down how it ended.
pub(super) fn shim_lost() -> End {
    let detail =
        "the task's shim ended without a word (was it killed?); the rest of the task was killed with it";
    End::of(EndReason::Internal, detail.to_owned())
}

fn completed(uncollected: &[UncollectedOutput]) -> (EndReason, Option<String>) {
    if uncollected.is_empty() {
        return (EndReason::Completed, None);
    }
    let each: Vec<String> =
        uncollected.iter().map(|output| format!("`{}`: {}", output.name, output.why)).collect();
    (
        EndReason::MissingOutput,
        Some(format!("exited with status 0, but declared outputs are missing: {}", each.join("; "))),
    )
}

fn timeout_sentence(timeout: Seconds) -> String {
    format!("ran longer than timeout_s = {}", timeout.millis() as f64 / 1000.0)
}

fn not_found(spec: &JobSpec, code: i32, detail: &str) -> String {
    let Workload::Command(command) = &spec.workload else {
        return detail.to_owned();
    };
    let advice = match &command.run {
        Run::Shell(_) => "the shell itself could not be executed",
        Run::Argv(argv) if argv.first().is_some_and(|program| program.contains(char::is_whitespace)) => {
            "the first word of argv is the program alone; use `shell` for a whole command line"
        }
        Run::Argv(_) if code == 126 => "make it executable (chmod +x) or name its interpreter first",
        Run::Argv(argv) if argv.first().is_some_and(|program| program.contains('/')) => {
            "paths are relative to the task's workspace: send it with the source, or give an absolute path"
        }
        Run::Argv(_) => "install it on the worker, or add its folder to PATH with `env`",
    };
    format!("{detail}; {advice}")
}
