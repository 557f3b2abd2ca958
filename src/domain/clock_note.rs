//! When a worker's clock is so far from the server's that people should know. Nothing is decided by it: times that the
//! worker stamps (log lines) look shifted, and that is all.

use crate::contract::quantity::{Seconds, Timestamp};
use crate::contract::telemetry::ClockOffset;

/// Further apart than this is worth a word.
const WORTH_A_NOTE_MS: u64 = 1000;

/// The sentence about it, when it is worth one.
pub fn note(offset: ClockOffset) -> Option<String> {
    (offset.millis().unsigned_abs() > WORTH_A_NOTE_MS).then(|| {
        format!(
            "its clock is {offset} of this server's: the times of its log lines are shifted, nothing else; \
             is NTP on there?"
        )
    })
}

/// The worker's clock less the server's: what the server's clock said in an answer, against the middle of the call on
/// the worker's clock. Off by half of the round trip at most, so a call that took long (`round_trip`) measures nothing.
pub fn measured(sent: Timestamp, round_trip: Seconds, server: Timestamp) -> Option<ClockOffset> {
    const LONGEST_ROUND_TRIP_MS: u64 = 1000;
    if round_trip.millis() > LONGEST_ROUND_TRIP_MS {
        return None;
    }
    let middle = sent.plus(Seconds::from_millis(round_trip.millis() / 2));
    Some(ClockOffset::from_millis(middle.micros().saturating_sub(server.micros()) / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_taken_at_the_middle_of_the_call() {
        let sent = Timestamp::from_micros(100_000_000);
        let at = |server_ms: i64, round_trip_ms: u64| {
            let server = Timestamp::from_micros(server_ms * 1000);
            measured(sent, Seconds::from_millis(round_trip_ms), server).map(ClockOffset::millis)
        };
        for (server_ms, round_trip_ms, expected) in [
            (100_000, 0, Some(0)),
            (100_100, 200, Some(0)),
            (97_000, 0, Some(3000)),
            (160_000, 20, Some(-59_990)),
            (100_000, 1001, None),
        ] {
            assert_eq!(at(server_ms, round_trip_ms), expected, "{server_ms} {round_trip_ms}");
        }
    }

    #[test]
    fn a_second_is_not_worth_a_word_and_more_is() {
        assert_eq!(note(ClockOffset::from_millis(1000)), None);
        assert_eq!(note(ClockOffset::from_millis(-1000)), None);
        assert!(note(ClockOffset::from_millis(-61_000)).unwrap().contains("61.0 s behind"));
    }
}
