//! The pauses between repeats of a call that brought no answer: doubling, with chance in them, so that the workers
//! of a server that comes back do not all call at once.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Grows with every wait.
#[derive(Debug)]
pub struct Pause {
    next: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Self::new()
    }
}

impl Pause {
    /// The first wait is about 50 ms, the longest 5 s.
    pub fn new() -> Self {
        Self { next: FIRST }
    }

    /// Waits between half of the pause and the whole of it.
    pub async fn wait(&mut self) {
        let share = rand::random_range(0.5..1.0);
        tokio::time::sleep(self.next.mul_f64(share)).await;
        self.next = (self.next * 2).min(LONGEST);
    }
}
