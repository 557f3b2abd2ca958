//! When the checkpoint of a running program is kept: as soon as the program counts another one; and one that could not be
//! kept is tried again after pauses that grow, since a server without room is asked by every task that it has.

use crate::contract::quantity::{Seconds, Timestamp};

const FIRST_PAUSE: Seconds = Seconds::new(1);
const LONGEST_PAUSE: Seconds = Seconds::new(60);

/// The checkpoints of one running task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeping {
    /// The newest that the program says is whole; 0 = it has said nothing.
    counted: u64,
    /// After the next failure.
    pause: Seconds,
    not_before: Option<Timestamp>,
}

impl Default for Keeping {
    fn default() -> Self {
        Self { counted: 0, pause: FIRST_PAUSE, not_before: None }
    }
}

impl Keeping {
    /// The program says which one is whole.
    pub fn counted(&mut self, checkpoint: u64) {
        self.counted = checkpoint;
    }

    /// The one to be kept now, unless it is already.
    pub fn due(&self, now: Timestamp) -> Option<u64> {
        let rests = self.not_before.is_some_and(|time| now < time);
        (self.counted > 0 && !rests).then_some(self.counted)
    }

    /// It is on the server.
    pub fn kept(&mut self) {
        (self.pause, self.not_before) = (FIRST_PAUSE, None);
    }

    /// It could not be brought there.
    pub fn failed(&mut self, now: Timestamp) {
        self.not_before = Some(now.plus(self.pause));
        self.pause = Seconds::from_millis(self.pause.millis() * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    #[test]
    fn a_program_that_counts_none_has_none_kept_while_it_runs() {
        let mut keeping = Keeping::default();
        assert_eq!(keeping.due(START), None);
        keeping.counted(1);
        assert_eq!(keeping.due(START), Some(1));
    }

    #[test]
    fn what_cannot_be_kept_is_tried_again_after_pauses_that_double_up_to_a_minute() {
        let mut keeping = Keeping::default();
        keeping.counted(1);
        let (mut now, mut pauses) = (START, Vec::new());
        for _ in 0..8 {
            keeping.failed(now);
            let pause =
                (1..).find(|seconds| keeping.due(now.plus(Seconds::new(*seconds))).is_some()).unwrap();
            pauses.push(pause);
            now = now.plus(Seconds::new(pause));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        // A newer one does not hurry it, and what is brought at last begins the count anew.
        keeping.failed(now);
        keeping.counted(2);
        assert_eq!(keeping.due(now.plus(Seconds::new(59))), None);
        assert_eq!(keeping.due(now.plus(Seconds::new(60))), Some(2));
        keeping.kept();
        assert_eq!(keeping.due(now), Some(2));
        keeping.failed(now);
        assert_eq!(keeping.due(now.plus(Seconds::new(1))), Some(2));
    }
}
