//! The exit status of the process (CONTRACT, Command line): a foreground job's own, or the number that says why
//! there is none.

use std::process::ExitCode;

use crate::contract::end::{End, EndReason, Owner};
use crate::contract::job::{Job, JobState};

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExitStatus(pub(super) u8);

impl ExitStatus {
    pub(super) const SUCCESS: Self = Self(0);
    pub(super) const FAILED: Self = Self(1);
    pub(super) const USAGE: Self = Self(2);
    /// The connection was given up while the job still runs.
    pub(super) const GIVEN_UP: Self = Self(75);
    pub(super) const TIMED_OUT: Self = Self(124);
    /// Stopped by platform or operator, or without a non-zero status of its own.
    pub(super) const NO_STATUS: Self = Self(125);
    pub(super) const NOT_FOUND: Self = Self(127);
    pub(super) const CANCELLED: Self = Self(130);

    /// Of an ended job.
    pub(super) fn of_job(job: &Job) -> Self {
        match job.state {
            JobState::Succeeded => Self::SUCCESS,
            JobState::Cancelled => Self::CANCELLED,
            JobState::TimedOut => Self::TIMED_OUT,
            JobState::Failed => job.end.as_ref().map_or(Self::NO_STATUS, Self::of_failure),
            JobState::Queued | JobState::Provisioning | JobState::Scheduled | JobState::Running => {
                Self::GIVEN_UP
            }
        }
    }

    fn of_failure(end: &End) -> Self {
        if matches!(end.owner, Owner::Platform | Owner::Operator) {
            return Self::NO_STATUS;
        }
        let own = end.exit_code.filter(|code| *code != 0).and_then(|code| u8::try_from(code).ok());
        let signal = end.signal.as_deref().and_then(signal_number);
        match (own, signal) {
            (Some(code), _) => Self(code),
            (None, Some(number)) => Self(128 + number),
            (None, None) if end.reason == EndReason::ExecutableNotFound => Self::NOT_FOUND,
            (None, None) => Self::NO_STATUS,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        ExitCode::from(status.0)
    }
}

/// Linux signal numbers by name; the job may have run on another machine, so this is not the system's own table.
fn signal_number(name: &str) -> Option<u8> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = name.strip_prefix("SIG").unwrap_or(name);
    if let Some(real_time) = name.strip_prefix("RTMIN+") {
        return real_time.parse::<u8>().ok().filter(|n| *n <= 30).map(|n| 34 + n);
    }
    let place = NAMES.iter().position(|known| *known == name);
    place.and_then(|index| u8::try_from(index + 1).ok()).or_else(|| name.parse().ok().filter(|n| *n < 128))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(reason: EndReason, exit_code: Option<i32>, signal: Option<&str>) -> u8 {
        let mut end = End::of(reason, None);
        (end.exit_code, end.signal) = (exit_code, signal.map(str::to_owned));
        ExitStatus::of_failure(&end).0
    }

    #[test]
    fn a_failed_job_exits_as_the_contract_says() {
        use EndReason::*;
        let table = [
            (ExitNonzero, Some(3), None, 3),
            (ExitNonzero, Some(255), None, 255),
            (Signalled, None, Some("SIGSEGV"), 139),
            (Signalled, None, Some("SIGRTMIN+1"), 163),
            (OomKilled, None, Some("SIGKILL"), 137),
            (ExecutableNotFound, Some(126), None, 126),
            (ExecutableNotFound, Some(127), None, 127),
            (ExecutableNotFound, None, None, 127),
            (MissingOutput, Some(0), None, 125),
            (WorkerLost, None, None, 125),
            (DependencyFailed, None, None, 125),
            (Internal, Some(1), None, 125),
            (Drained, None, Some("SIGTERM"), 125),
        ];
        for (reason, code, signal, status) in table {
            assert_eq!(failure(reason, code, signal), status, "{reason:?} {code:?} {signal:?}");
        }
    }
}
