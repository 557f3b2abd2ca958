//! Shims that are stopped (SIGSTOP), by their own task perhaps: they keep no time, hear no order and greet no worker.

use rustix::process::Signal;

use super::shim::SHIM_NAME;
use super::stuck::look_at_stuck;
use super::tree::signal_if;

/// Lets a shim go on that is stopped; whether it was.
pub(super) fn wake(pid: u32) -> bool {
    let stopped = |pid| is_shim(pid) && look_at_stuck(pid).is_some_and(|shim| shim.state == "T");
    let was_stopped = stopped(pid);
    if was_stopped {
        signal_if(pid, Signal::CONT, stopped);
    }
    was_stopped
}

/// Ends a shim that cannot be spoken with. What it held is then swept like that of any lost one.
pub(super) fn end(pid: u32) {
    signal_if(pid, Signal::KILL, is_shim);
}

fn is_shim(pid: u32) -> bool {
    look_at_stuck(pid).is_some_and(|process| process.command == SHIM_NAME)
}
