//! What a user should know of limits that were not there, or were felt.

use crate::contract::problem::Warning;
use crate::contract::quantity::Seconds;
use crate::contract::spec::Resources;
use crate::contract::worker::EnforcedLimits;

/// A shorter run says little about what it needs.
const WORTH_A_WORD: Seconds = Seconds::new(5);
/// Being held back this often, in percent of the time, is worth a word.
const OFTEN_PERCENT: u64 = 25;

/// The worker cannot hold the task to the memory it asked for.
pub fn memory_not_held(resources: &Resources, enforced: EnforcedLimits) -> Option<Warning> {
    (resources.memory_bytes.is_some() && !enforced.memory).then(|| Warning {
        pointer: "/resources/memory_bytes".to_owned(),
        detail: "this worker cannot enforce memory limits: the memory was reserved, but the task could take more, and if \
                 the machine ran out of it, the end is told less exactly"
            .to_owned(),
    })
}

/// The kernel did not take the limit for this task.
pub fn memory_let_loose() -> Warning {
    Warning {
        pointer: "/resources/memory_bytes".to_owned(),
        detail: "the kernel did not take the memory limit of this task: it could use more than it asked for"
            .to_owned(),
    }
}

/// The program ended well, although the kernel had killed a part of it.
pub fn outlived_a_kill(kills: u64) -> Option<Warning> {
    (kills > 0).then(|| Warning {
        pointer: "/resources/memory_bytes".to_owned(),
        detail: format!(
            "the kernel killed {kills} of the task's processes for lack of memory, yet the program exited with 0: its \
             results may be incomplete; ask for more with `--memory`"
        ),
    })
}

/// The end of the log could not be written, nor could the mark that says so; `because` is empty where nobody knows.
pub fn lines_lost(records: u64, because: &str) -> Option<Warning> {
    let lost = match records {
        0 => return None,
        1 => "the last line of the log is lost".to_owned(),
        many => format!("the last {many} lines of the log are lost"),
    };
    let because = if because.is_empty() { "the worker could not write them" } else { because };
    Some(Warning { pointer: String::new(), detail: format!("{lost}: {because}") })
}

/// Whether a warning of a job says that lines of its log are missing.
pub fn tells_of_lost_lines(warning: &Warning) -> bool {
    [" of the log are lost", " of the log is lost", "the log lacks "]
        .iter()
        .any(|words| warning.detail.contains(words))
}

/// The task wanted more CPU than it asked for, often enough to be slower for it.
pub fn held_back(cpu_millis: u32, periods: u64, throttled_periods: u64, ran: Seconds) -> Option<Warning> {
    let percent = (throttled_periods * 100).checked_div(periods)?;
    if percent <= OFTEN_PERCENT || ran <= WORTH_A_WORD {
        return None;
    }
    let cpus = f64::from(cpu_millis) / 1000.0;
    let unit = if cpu_millis == 1000 { "CPU" } else { "CPUs" };
    Some(Warning {
        pointer: "/resources/cpus".to_owned(),
        detail: format!("held to {cpus} {unit} for {percent} % of its run: ask for more with `--cpus N`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_felt_for_long_is_said() {
        let minute = Seconds::new(60);
        let said = held_back(1000, 600, 378, minute).unwrap();
        assert_eq!(said.detail, "held to 1 CPU for 63 % of its run: ask for more with `--cpus N`");
        assert!(held_back(1500, 600, 378, minute).unwrap().detail.starts_with("held to 1.5 CPUs"));
        assert_eq!(held_back(1000, 600, 150, minute), None);
        assert_eq!(held_back(1000, 50, 50, Seconds::new(5)), None);
        assert_eq!(held_back(1000, 0, 0, minute), None);
    }

    #[test]
    fn what_did_not_happen_is_not_told() {
        assert_eq!((outlived_a_kill(0), lines_lost(0, "x")), (None, None));
        assert!(outlived_a_kill(2).is_some_and(|warning| warning.detail.contains("killed 2 of the task's")));
        let lost = |records, because| lines_lost(records, because).unwrap().detail;
        assert_eq!(lost(7, "the disk was full"), "the last 7 lines of the log are lost: the disk was full");
        assert_eq!(lost(1, "it was gone"), "the last line of the log is lost: it was gone");
        assert!(lost(2, "").ends_with("the worker could not write them"));
        assert!([1, 7].iter().all(|lost| tells_of_lost_lines(&lines_lost(*lost, "").unwrap())));
        assert!(!tells_of_lost_lines(&memory_let_loose()));
    }

    #[test]
    fn a_limit_nobody_asked_for_is_not_missed() {
        let held = EnforcedLimits { memory: true, ..EnforcedLimits::default() };
        let asked = Resources { memory_bytes: Some(1), ..Resources::default() };
        assert_eq!(memory_not_held(&asked, held), None);
        assert_eq!(memory_not_held(&Resources::default(), EnforcedLimits::default()), None);
        assert_eq!(
            memory_not_held(&asked, EnforcedLimits::default()).unwrap().pointer,
            "/resources/memory_bytes"
        );
    }
}
