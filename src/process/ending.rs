//! What is written of a task when it stops and when it ends.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use super::identity::Claim;
use super::remark::remark;
use super::resolve::Refusal;
use super::signal_name::signal_name;
use super::{ExitRecord, Launch, STOP_FILE, STOP_FILE_UNFINISHED, Wait};
use crate::clock;
use crate::contract::protocol::StopReason;
use crate::contract::quantity::Timestamp;
use crate::contract::spec::StopSignal;
use crate::domain::task_run::WholeLog;

/// A program that looks for the file while it is written must not read half a word.
pub(super) fn write_stop_file(task_folder: &Path, reason: StopReason) -> io::Result<()> {
    let unfinished = task_folder.join(STOP_FILE_UNFINISHED);
    std::fs::write(&unfinished, format!("{}\n", reason.word()))?;
    std::fs::rename(unfinished, task_folder.join(STOP_FILE))
}

/// Writes the record down.
pub(super) fn conclude(claim: &mut Claim, record: &ExitRecord) {
    if let Err(error) = claim.conclude(record) {
        remark(format_args!("the exit record of {} cannot be written: {error}", record.task_id));
    }
}

/// The record of a task whose program, or prelude, could not be started.
pub(super) fn never_ran(launch: &Launch, at: Timestamp, refusal: Refusal) -> ExitRecord {
    ExitRecord {
        task_id: launch.task_id,
        wait: Wait::NotStarted { kind: refusal.kind, detail: refusal.detail },
        stop: None,
        after_stop: false,
        started_at: at,
        ended_at: clock::now(),
        in_prelude: false,
        duration: Duration::ZERO,
        peak_memory_bytes: None,
        memory_limit_bytes: None,
        oom_kills: None,
        oom_killed_after: None,
        cpu_throttling: None,
        memory_not_held: false,
        lost_records: 0,
        lost_because: String::new(),
        last_n: 0,
        whole_log: WholeLog::InLines,
        pids: Vec::new(),
    }
}

/// What a wait status says.
pub(super) fn wait_of(status: i32) -> Wait {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        Wait::Signalled { signal, name: signal_name(signal) }
    } else {
        Wait::Exited { code: libc::WEXITSTATUS(status) }
    }
}

/// The system's name for it.
pub(super) fn signal_of(signal: StopSignal) -> Signal {
    match signal {
        StopSignal::Term => Signal::TERM,
        StopSignal::Int => Signal::INT,
        StopSignal::Hup => Signal::HUP,
        StopSignal::Quit => Signal::QUIT,
        StopSignal::Usr1 => Signal::USR1,
        StopSignal::Usr2 => Signal::USR2,
        StopSignal::Kill => Signal::KILL,
    }
}
