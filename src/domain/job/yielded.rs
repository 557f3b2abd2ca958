//! What a job's generator yields: each value is kept once, under its number.

use super::LiveJob;
use super::report::{Judged, ReportRefusal};
use crate::contract::job::JobState;
use crate::contract::yielded::Yielded;
use crate::domain::change::Change;
use crate::domain::ledger::Ledger;

impl LiveJob {
    /// Number of the newest value that its generator yielded; 0 = none yet.
    pub fn yielded(&self) -> u64 {
        self.yielded
    }

    /// A batch that came twice is known by its numbers; so is what another attempt, which begins at 1 again, yields again.
    pub(super) fn take_yielded(
        &mut self,
        ledger: &mut Ledger,
        rank: usize,
        first_n: u64,
        values: &[Yielded],
    ) -> Judged {
        self.runs(rank).ok_or(ReportRefusal::StaleEpoch)?;
        if let Some((first_n, news)) = news(self.yielded, first_n, values).filter(|_| rank == 0) {
            self.yielded = first_n.saturating_add(news.len() as u64 - 1);
            ledger.change(Change::ValuesYielded(self.id, first_n, news.to_vec()));
            self.moved(ledger);
        }
        Ok(JobState::Running)
    }
}

/// What of a batch is not known yet, and the number of its first; `None` = nothing.
fn news(known: u64, first_n: u64, values: &[Yielded]) -> Option<(u64, &[Yielded])> {
    let first_n = first_n.max(1);
    let begin = first_n.max(known.saturating_add(1));
    let repeated = usize::try_from(begin - first_n).ok()?;
    values.get(repeated..).filter(|news| !news.is_empty()).map(|news| (begin, news))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(known: u64, first_n: u64, count: u64) -> Option<(u64, Vec<u64>)> {
        let values: Vec<Yielded> = (0..count).map(|place| Yielded::lost(first_n + place)).collect();
        let (first_n, news) = news(known, first_n, &values)?;
        Some((first_n, news.iter().map(|value| value.size_bytes).collect()))
    }

    #[test]
    fn each_number_counts_once() {
        assert_eq!(sizes(0, 1, 3), Some((1, vec![1, 2, 3])));
        assert_eq!(sizes(3, 4, 2), Some((4, vec![4, 5])), "what follows");
        assert_eq!(sizes(3, 1, 3), None, "a repeat");
        assert_eq!(sizes(3, 2, 4), Some((4, vec![4, 5])), "a repeat and more");
        assert_eq!(sizes(9, 1, 3), None, "another attempt, which is not as far");
        assert_eq!(
            sizes(3, 7, 1),
            Some((7, vec![7])),
            "what lies between is lost, and has its numbers all the same"
        );
        assert_eq!(sizes(3, 4, 0), None);
    }

    #[test]
    fn no_number_is_too_large() {
        let one = [Yielded::lost(0)];
        assert_eq!(news(0, 0, &one), Some((1, &one[..])));
        assert_eq!(news(u64::MAX, 1, &one), None);
        assert_eq!(news(0, u64::MAX, &one), Some((u64::MAX, &one[..])));
    }
}
