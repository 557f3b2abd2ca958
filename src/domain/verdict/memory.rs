//! Kills for want of memory, as the kernel counted them.

use super::kernel::KernelWord;
use super::last_words::LastWords;
use super::rules::Status;
use super::{Exit, ExitFacts, MOST_EVIDENCE};
use crate::contract::end::{Certainty, End, EndReason};
use crate::contract::quantity::Seconds;

/// A kill this long before the end, in milliseconds, need not be why the program ended.
const LONG_BEFORE_MILLIS: u64 = 60_000;

/// A task's memory limit, and what the kernel did about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryFacts {
    /// What its processes could use together; `None` = no limit was in force.
    pub limit_bytes: Option<u64>,
    /// Processes of it that the kernel killed for want of memory; `None` = nobody counted.
    pub oom_kills: Option<u64>,
    /// From its start to the first of them.
    pub oom_killed_after: Option<Seconds>,
}

/// The end of a task that the kernel took memory from.
pub(super) fn oom_killed(
    facts: &ExitFacts,
    status: Status<'_>,
    kernel: &[KernelWord<'_>],
    words: &LastWords,
) -> Option<End> {
    let kills = facts.memory.oom_kills.unwrap_or(0);
    let logged = kernel.iter().find_map(|word| match word {
        KernelWord::OomKill { of_machine, line } => Some((*of_machine, *line)),
        _ => None,
    });
    if kills == 0 && logged.is_none() {
        return None;
    }
    let died_of_it = status.signal == Some("SIGKILL") || status.exit_code == Some(137);
    let explained = words.exception.is_some() || words.conclusion.is_some();
    let long_before = match (facts.duration, facts.memory.oom_killed_after) {
        (Some(duration), Some(after)) => {
            duration.millis().saturating_sub(after.millis()) > LONG_BEFORE_MILLIS
        }
        _ => false,
    };
    if long_before && !died_of_it && (explained || matches!(facts.exit, Exit::Signalled { .. })) {
        return None;
    }
    let certainty = if long_before && !died_of_it { Certainty::Possible } else { Certainty::Certain };
    let of_machine = logged.is_some_and(|(of_machine, _)| of_machine && kills == 0);
    let basis = match kills {
        0 if of_machine => {
            "the kernel log names a process of the task: the whole machine was out of memory".to_owned()
        }
        0 => "the kernel log names a process of the task".to_owned(),
        1 => "the kernel counted 1 OOM kill in the task's group".to_owned(),
        kills => format!("the kernel counted {kills} OOM kills in the task's group"),
    };
    let mut evidence: Vec<String> = logged.iter().map(|(_, line)| (*line).to_owned()).collect();
    let room = MOST_EVIDENCE - 1 - evidence.len();
    evidence.extend(self::kills(&facts.memory));
    evidence.extend(words.evidence.iter().rev().take(room).rev().cloned());
    evidence.truncate(MOST_EVIDENCE);
    Some(End {
        certainty: Some(certainty),
        basis: Some(basis),
        advice: Some(advice(facts, of_machine)),
        evidence,
        ..End::of(EndReason::OomKilled, sentence(facts, of_machine))
    })
}

/// `OOM kills in the task's group: 1, the first 14 s after the start`; `None` when nothing was killed.
pub(super) fn kills(memory: &MemoryFacts) -> Option<String> {
    let kills = memory.oom_kills.filter(|kills| *kills > 0)?;
    let first = memory
        .oom_killed_after
        .map_or(String::new(), |after| format!(", the first {} after the start", span(after)));
    Some(format!("OOM kills in the task's group: {kills}{first}"))
}

/// The sentence beside the cause of a stop: `the kernel killed 1 of its processes for lack of memory, 2 s after start`.
pub(super) fn killed_before(memory: &MemoryFacts) -> Option<String> {
    let kills = memory.oom_kills.filter(|kills| *kills > 0)?;
    let at = memory.oom_killed_after.map_or(String::new(), |after| format!(", {} after start", span(after)));
    Some(format!("the kernel killed {kills} of its processes for lack of memory{at}"))
}

/// `peak 512 MiB of 512 MiB, 14 s after start`
fn sentence(facts: &ExitFacts, of_machine: bool) -> String {
    let peak = facts.peak_memory_bytes.map(|bytes| match facts.memory.limit_bytes {
        Some(limit) => format!("peak {} of {}", binary(bytes), binary(limit)),
        None => format!("peak {}", binary(bytes)),
    });
    let at =
        facts.memory.oom_killed_after.or(facts.duration).map(|after| format!("{} after start", span(after)));
    let machine = of_machine.then(|| "the machine was out of memory".to_owned());
    let parts: Vec<String> = [machine, peak, at].into_iter().flatten().collect();
    if parts.is_empty() {
        "the kernel killed a process of the task for lack of memory".to_owned()
    } else {
        parts.join(", ")
    }
}

fn advice(facts: &ExitFacts, of_machine: bool) -> String {
    match facts.memory.limit_bytes {
        Some(limit) => format!("--memory {}", flag(limit.saturating_mul(2))),
        None if of_machine => {
            "ask for what it needs with --memory, so that it is placed where that is free; or fewer jobs side by side".to_owned()
        }
        None => "ask for more with --memory, or use less".to_owned(),
    }
}

/// `512 MiB`, `1.5 GiB`; whole numbers below 10 of a unit keep one decimal only when there is one.
pub fn binary(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                tenth => format!("{}.{tenth} {unit}", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}

/// As `--memory` takes it: `1GiB`, `1536MiB`; rounded up to whole MiB.
fn flag(bytes: u64) -> String {
    let mib = bytes.div_ceil(1 << 20);
    if mib.is_multiple_of(1024) { format!("{}GiB", mib / 1024) } else { format!("{mib}MiB") }
}

/// `14 s`, `2 min 5 s`, `1 h 3 min`.
fn span(time: Seconds) -> String {
    let seconds = time.millis() / 1000;
    match seconds {
        0 => format!("{} ms", time.millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_typed() {
        assert_eq!(binary(512 << 20), "512 MiB");
        assert_eq!(binary(1_610_612_736), "1.5 GiB");
        assert_eq!(binary((512 << 20) - 4096), "511.9 MiB");
        assert_eq!(flag(1 << 30), "1GiB");
        assert_eq!(flag((1 << 30) + 1), "1025MiB");
        assert_eq!(span(Seconds::from_millis(14_300)), "14 s");
        assert_eq!(span(Seconds::from_millis(900)), "900 ms");
    }
}
