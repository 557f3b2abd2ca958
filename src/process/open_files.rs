//! How many files a process may have open. A daemon holds a connection or three for every worker, so it takes all that
//! it may have; the programs it runs start with what it was started with, as some of them close every number there is.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// More is of no use to a daemon, and costs the programs that look at every number.
const ENOUGH: u64 = 65_536;

/// The limit that this process was started with, once it was changed.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's limit as far as it may. Returns how many it may have open now; `None` = without a limit.
pub fn raise_open_files() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let most = before.maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    if before.current.is_none_or(|current| current >= most) {
        return before.current;
    }
    let raised = Rlimit { current: Some(most), maximum: before.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => {
            // Raised again, it is no longer what it was at the start.
            BEFORE.get_or_init(|| before);
            Some(most)
        }
        Err(_) => before.current,
    }
}

/// Gives a new child what this process was started with. One that is gone already needs it no more.
pub(super) fn restore_open_files(child: Pid) {
    if let Some(before) = BEFORE.get() {
        let _ = prlimit(Some(child), Resource::Nofile, *before);
    }
}
