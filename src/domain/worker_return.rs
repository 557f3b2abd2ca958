//! Who may take a worker's session up again: the same worker after a restart of its agent or of its machine, but not
//! a copy of it while it lives (CONTRACT, Leases and loss). Silence is what tells them apart, so a newcomer that may
//! be either has to wait until the one the server knows has been silent for long enough.

use crate::contract::protocol::Identity;
use crate::contract::quantity::Seconds;

/// Heartbeats that a machine must have missed before one with another boot takes its place.
const MISSED_HEARTBEATS: u64 = 3;

/// The worker as the server knows it.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Who took the session up last.
    pub identity: &'a Identity,
    /// The process that did; `None` when that was before the server's own start, or it did not say.
    pub process: Option<&'a str>,
    /// Since its last word, or since the server's own start.
    pub silent_for: Seconds,
    /// It lives in the server's own process, of which there can be no second one.
    pub in_process: bool,
}

/// Who wants to take the session up.
#[derive(Debug, Clone, Copy)]
pub struct Newcomer<'a> {
    /// Who it says it is.
    pub identity: &'a Identity,
    /// Names its process.
    pub process: Option<&'a str>,
    /// Its folder does not lie where the start before left it: it was moved, or copied.
    pub moved: bool,
}

/// What the server expects of the times of its workers.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Between heartbeats.
    pub heartbeat: Seconds,
    /// After which a silent worker is offline.
    pub lease_ttl: Seconds,
}

/// Why a newcomer may not, or not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnRefusal {
    /// The one that is known was there a moment ago: this may be a copy of it. Try again later.
    InUse,
    /// The known one has started more often than this one knows of: its folder is an older copy, such as a snapshot
    /// that was rolled back. No later try succeeds.
    Outdated,
}

/// A newcomer that may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Return {
    /// Its processes may still be there: it says which.
    SameBoot,
    /// All that ran there is gone.
    Rebooted,
}

/// Decides whether the newcomer is the known worker.
pub fn judge(known: Known<'_>, newcomer: Newcomer<'_>, pace: Pace) -> Result<Return, ReturnRefusal> {
    let (was, is) = (known.identity, newcomer.identity);
    let same_boot = was.machine_id == is.machine_id && was.boot_id == is.boot_id;
    if is.incarnation < was.incarnation {
        return Err(ReturnRefusal::Outdated);
    }
    if is.incarnation == was.incarnation {
        // A repeat, because the answer was lost; or two starts from two copies of one folder.
        let one_process = known.process.is_none() || known.process == newcomer.process;
        return if same_boot && one_process && !newcomer.moved {
            Ok(Return::SameBoot)
        } else {
            Err(ReturnRefusal::Outdated)
        };
    }
    let awaited = if known.in_process {
        Seconds::default()
    } else if was.machine_id != is.machine_id || newcomer.moved {
        pace.lease_ttl
    } else if !same_boot {
        pace.lease_ttl.min(Seconds::from_millis(pace.heartbeat.millis().saturating_mul(MISSED_HEARTBEATS)))
    } else {
        // Its folder is locked by one process at a time: the one before is gone, or about to be told.
        Seconds::default()
    };
    if known.silent_for < awaited {
        return Err(ReturnRefusal::InUse);
    }
    Ok(if same_boot { Return::SameBoot } else { Return::Rebooted })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { heartbeat: Seconds::new(2), lease_ttl: Seconds::new(20) };

    fn identity(machine: &str, boot: &str, incarnation: u64) -> Identity {
        Identity { machine_id: machine.into(), boot_id: boot.into(), incarnation }
    }

    /// Known: machine m, boot b, start 5, process p.
    fn judged(
        silent_s: u64,
        newcomer: &Identity,
        process: &str,
        moved: bool,
    ) -> Result<Return, ReturnRefusal> {
        let known = identity("m", "b", 5);
        let known = Known {
            identity: &known,
            process: Some("p"),
            silent_for: Seconds::new(silent_s),
            in_process: false,
        };
        judge(known, Newcomer { identity: newcomer, process: Some(process), moved }, PACE)
    }

    #[test]
    fn who_may_come_back_and_when() {
        use Return::{Rebooted, SameBoot};
        use ReturnRefusal::{InUse, Outdated};
        let of = identity;
        for (what, silent_s, newcomer, process, moved, expected) in [
            ("a restarted agent, at once", 0, of("m", "b", 6), "q", false, Ok(SameBoot)),
            ("a repeat: its answer was lost", 0, of("m", "b", 5), "p", false, Ok(SameBoot)),
            ("a reboot within a moment, or a clone", 3, of("m", "c", 6), "q", false, Err(InUse)),
            ("the reboot, when the old one stays silent", 6, of("m", "c", 6), "q", false, Ok(Rebooted)),
            ("another machine while the old one lives", 6, of("n", "c", 6), "q", false, Err(InUse)),
            ("another machine, the old one offline", 20, of("n", "c", 6), "q", false, Ok(Rebooted)),
            ("a copied folder on the same machine", 3, of("m", "b", 6), "q", true, Err(InUse)),
            ("a moved folder, the old place silent", 20, of("m", "b", 6), "q", true, Ok(SameBoot)),
            ("two starts of two copies", 0, of("m", "b", 5), "q", false, Err(Outdated)),
            ("the same on another machine", 99, of("n", "c", 5), "q", false, Err(Outdated)),
            ("a snapshot that was rolled back", 99, of("m", "c", 4), "q", false, Err(Outdated)),
            ("an old start that is still there", 0, of("m", "b", 4), "q", false, Err(Outdated)),
        ] {
            assert_eq!(judged(silent_s, &newcomer, process, moved), expected, "{what}");
        }
    }

    #[test]
    fn a_worker_in_the_servers_own_process_waits_for_nobody() {
        let (was, is) = (identity("m", "b", 5), identity("m", "c", 6));
        let known = Known { identity: &was, process: None, silent_for: Seconds::default(), in_process: true };
        let newcomer = Newcomer { identity: &is, process: Some("q"), moved: false };
        assert_eq!(judge(known, newcomer, PACE), Ok(Return::Rebooted));
    }

    #[test]
    fn after_a_restart_of_the_server_a_repeat_is_still_a_repeat() {
        let was = identity("m", "b", 5);
        let known =
            Known { identity: &was, process: None, silent_for: Seconds::default(), in_process: false };
        let newcomer = Newcomer { identity: &was, process: Some("p"), moved: false };
        assert_eq!(judge(known, newcomer, PACE), Ok(Return::SameBoot));
    }
}
