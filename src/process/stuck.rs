//! What is known of a process that does not die.

use std::fs;

use crate::contract::worker::StuckProcess;

/// Lines of a kernel stack that are kept: the innermost say what it waits for.
const STACK_LINES: usize = 12;

/// Looks at one; `None` = it has ended meanwhile, or only waits to be reaped.
pub fn look_at_stuck(pid: u32) -> Option<StuckProcess> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The second field is the program's name in parentheses and may hold anything.
    let (before, after) = stat.rsplit_once(')')?;
    let command = before.split_once('(').map_or("", |(_, name)| name).to_owned();
    let state = after.split_ascii_whitespace().next()?.to_owned();
    let lives = !matches!(state.as_str(), "Z" | "X");
    lives.then(|| StuckProcess { pid, command, state, waits_in: waits_in(pid) })
}

/// The stack is for root alone; the function's name is for everybody.
fn waits_in(pid: u32) -> Vec<String> {
    let stack = fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
    let stack: Vec<String> = stack
        .lines()
        .map(|line| line.rsplit_once(' ').map_or(line, |(_, function)| function).to_owned())
        .take(STACK_LINES)
        .collect();
    if !stack.is_empty() {
        return stack;
    }
    let name = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    if matches!(name.as_str(), "" | "0") { Vec::new() } else { vec![name] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_described_and_a_gone_one_is_not() {
        let me = look_at_stuck(std::process::id()).unwrap();
        assert_eq!((me.pid, me.state.is_empty(), me.command.is_empty()), (std::process::id(), false, false));
        assert_eq!(look_at_stuck(u32::MAX), None);
    }
}
