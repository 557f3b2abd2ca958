//! What of a task's log never came to the server, for the warning that says so.

use crate::contract::problem::Warning;

/// Gaps that are named one by one; of more only the first and the last end.
const MOST_NAMED: usize = 5;

/// Lines that are not on the server, in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct LogGaps {
    gaps: Vec<(u64, u64)>,
    /// From here to the end of the log.
    open_from: Option<u64>,
    /// Of the first.
    why: Option<String>,
}

impl LogGaps {
    /// These lines are missing.
    pub(super) fn add(&mut self, first_n: u64, last_n: u64, why: String) {
        match self.gaps.last_mut() {
            Some((_, last)) if *last + 1 >= first_n => *last = last_n.max(*last),
            _ => self.gaps.push((first_n, last_n)),
        }
        self.why.get_or_insert(why);
    }

    /// All from this line on are missing.
    pub(super) fn open(&mut self, first_n: u64, why: String) {
        self.open_from.get_or_insert(first_n);
        self.why.get_or_insert(why);
    }

    /// What there is to say when the log has come to its end with `last_n`.
    pub(super) fn warning(&mut self, last_n: u64) -> Option<Warning> {
        let mut gaps = std::mem::take(&mut self.gaps);
        gaps.extend(self.open_from.take().filter(|from| *from <= last_n).map(|from| (from, last_n)));
        let why = self.why.take()?;
        let (first, last) = (gaps.first()?.0, gaps.last()?.1);
        let lines = if gaps.len() > MOST_NAMED {
            format!("lines in {} places between {first} and {last}", gaps.len())
        } else {
            let named: Vec<String> = gaps.into_iter().map(shown).collect();
            format!("its {}", named.join(" and "))
        };
        let detail = format!("the log lacks {lines} of this task: {why}");
        Some(Warning { pointer: String::new(), detail })
    }
}

fn shown((first, last): (u64, u64)) -> String {
    if first == last { format!("line {first}") } else { format!("lines {first} to {last}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(gaps: &mut LogGaps, last_n: u64) -> String {
        let warning = gaps.warning(last_n).filter(super::super::tells_of_lost_lines);
        warning.map(|warning| warning.detail).unwrap_or_default()
    }

    #[test]
    fn every_gap_is_named_and_an_open_one_ends_with_the_log() {
        let mut gaps = LogGaps::default();
        assert_eq!(gaps.warning(9), None);
        gaps.add(2, 3, "cut".into());
        gaps.add(4, 5, "cut again".into());
        gaps.add(8, 8, "cut again".into());
        gaps.open(20, "refused".into());
        assert_eq!(
            said(&mut gaps, 31),
            "the log lacks its lines 2 to 5 and line 8 and lines 20 to 31 of this task: cut"
        );
        gaps.open(20, "refused".into());
        assert_eq!(said(&mut gaps, 19), "", "nothing came behind it");
        (0..9).for_each(|n| gaps.add(n * 10 + 1, n * 10 + 2, "cut".into()));
        assert_eq!(said(&mut gaps, 99), "the log lacks lines in 9 places between 1 and 82 of this task: cut");
    }
}
