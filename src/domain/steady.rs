//! Time that nobody can set: it goes on as the machine's monotonic clock does, and only drifts towards the wall clock. A
//! step of the wall clock (NTP at last reached, a virtual machine woken up, a mistake) must not end what has a limit.

use crate::contract::quantity::Timestamp;

/// One microsecond of correction in so many: a limit is never off by more than this share of itself.
const SLEW: i64 = 60;

/// The time of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steady {
    time: Timestamp,
    monotonic_micros: i64,
    /// Microseconds that have passed and not yet been used to correct, times [`SLEW`] of what they allow.
    allowed: i64,
}

impl Steady {
    /// Begins with the wall clock.
    pub const fn new(wall: Timestamp, monotonic_micros: i64) -> Self {
        Self { time: wall, monotonic_micros, allowed: 0 }
    }

    /// The time now. Never goes back.
    pub fn read(&mut self, wall: Timestamp, monotonic_micros: i64) -> Timestamp {
        let passed = monotonic_micros.saturating_sub(self.monotonic_micros).max(0);
        self.monotonic_micros = self.monotonic_micros.max(monotonic_micros);
        let ahead = self.time.micros().saturating_add(passed);
        self.allowed = self.allowed.saturating_add(passed);
        let most = self.allowed / SLEW;
        // What is given back must have passed since the last look.
        let correction = wall.micros().saturating_sub(ahead).clamp(-most.min(passed), most);
        self.allowed -= correction.abs().saturating_mul(SLEW);
        if correction.abs() < most {
            // It agrees with the wall clock: no right to correct is saved up for a step to come.
            self.allowed = 0;
        }
        self.time = Timestamp::from_micros(ahead.saturating_add(correction));
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const DAY: i64 = 86_400 * SECOND;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_it_by_a_sixtieth_of_what_passes() {
        for step in [3 * DAY, -3 * DAY] {
            let start = 1_000 * DAY;
            let mut clock = Steady::new(at(start), 5 * SECOND);
            for second in 1..=600 {
                let wall = start + step + second * SECOND;
                let read = clock.read(at(wall), (5 + second) * SECOND).micros() - start;
                let off = read - second * SECOND;
                assert!(
                    off.abs() <= second * SECOND / SLEW && off.signum() == step.signum(),
                    "{step} {second} {off}"
                );
            }
        }
    }

    #[test]
    fn it_comes_to_agree_with_the_wall_clock_and_never_goes_back() {
        let mut clock = Steady::new(at(0), 0);
        let mut before = at(0);
        // 10 s behind for a while, then 3 s ahead; looked at every few microseconds, then rarely.
        for (wall_offset, every, looks) in
            [(10 * SECOND, 7, 1_000), (10 * SECOND, SECOND, 700), (-3 * SECOND, SECOND, 900)]
        {
            for _ in 0..looks {
                let monotonic = clock.monotonic_micros + every;
                let read = clock.read(at(monotonic + wall_offset), monotonic);
                assert!(read >= before);
                before = read;
            }
        }
        assert_eq!(before.micros(), clock.monotonic_micros - 3 * SECOND);
    }

    #[test]
    fn a_clock_that_agrees_saves_nothing_up() {
        let mut clock = Steady::new(at(0), 0);
        assert_eq!(clock.read(at(DAY), DAY), at(DAY));
        assert_eq!(clock.read(at(2 * DAY), DAY), at(DAY), "stepped, and no time has passed");
        assert_eq!(clock.read(at(2 * DAY + 60), DAY + 60), at(DAY + 61));
        assert_eq!(clock.read(at(0), 0), at(DAY + 61), "a monotonic clock that is read out of order");
    }
}
