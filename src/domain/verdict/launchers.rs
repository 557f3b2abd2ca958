//! Launchers that report a child's failure as their own: torchrun's `ChildFailedError`, `subprocess.run(check=True)`.
//! What matters is what the child said before.

use super::traceback::Traceback;
use super::transcript::Spoken;

/// What a launcher says of the rank that failed first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RootCause {
    pub(super) rank: Option<u32>,
    /// `exitcode : -9`: ended by a signal.
    pub(super) exit_code: Option<i32>,
}

/// Whether this exception only reports that a child failed.
pub(super) fn is_launcher(traceback: &Traceback) -> bool {
    matches!(
        traceback.short_class(),
        "ChildFailedError" | "CalledProcessError" | "ProcessExitedException" | "SubprocessError"
    )
}

/// The block below torchrun's exception; whatever follows its headline counts as part of it.
pub(super) fn root_cause(lines: &[Spoken], launcher: &Traceback) -> RootCause {
    let mut cause = RootCause::default();
    let block = lines.iter().skip(launcher.line).map(|line| line.text.trim());
    for line in block.skip_while(|line| !line.starts_with("Root Cause")) {
        let Some((name, value)) = line.split_once(':') else { continue };
        let first = value.trim().split([' ', '(']).next().unwrap_or("");
        match name.trim() {
            "rank" => cause.rank = first.parse().ok(),
            "exitcode" => cause.exit_code = first.parse().ok(),
            _ => {}
        }
    }
    cause
}

/// What the child that failed first said: its own last traceback where lines are labelled; else the last one before
/// the launcher's, save those that only tell of a peer that went away.
pub(super) fn childs<'a>(
    before: &'a [Traceback],
    root: &RootCause,
    tells_of_a_peer: &dyn Fn(&Traceback) -> bool,
) -> Option<&'a Traceback> {
    let own = || before.iter().rev().filter(|traceback| !is_launcher(traceback));
    let labelled = own().find(|traceback| root.rank.is_some() && traceback.rank == root.rank);
    labelled.or_else(|| own().find(|traceback| !tells_of_a_peer(traceback))).or_else(|| own().next())
}
