//! What the heartbeats of one worker said of its machine: kept in memory, shown to people.

use std::time::Duration;

use tokio::time::Instant;

use crate::contract::protocol::HeartbeatRequest;
use crate::contract::quantity::Seconds;
use crate::contract::telemetry::{ClockOffset, Telemetry};
use crate::domain::clock_note;

/// Of the newest heartbeats since the session opened or was resumed.
#[derive(Debug, Default)]
pub(super) struct Vitals {
    seq: u64,
    /// When the newest one came.
    heartbeat_at: Option<Instant>,
    longest_silence: Option<Duration>,
    telemetry: Option<Telemetry>,
    clock_offset: Option<ClockOffset>,
}

impl Vitals {
    /// Takes a heartbeat in; `false` = a newer one was there before it.
    pub(super) fn hear(&mut self, heartbeat: &HeartbeatRequest) -> bool {
        if heartbeat.seq <= self.seq {
            return false;
        }
        self.seq = heartbeat.seq;
        let before = self.heartbeat_at.replace(Instant::now());
        self.longest_silence = self.longest_silence.max(before.map(|before| before.elapsed()));
        // One that could not measure anew says nothing; what was known is old then, and is not shown as new.
        self.telemetry = heartbeat.telemetry;
        // Measured with the heartbeat before: the first of a start has none, and changes nothing.
        self.clock_offset = heartbeat.clock_offset_s.or(self.clock_offset);
        true
    }

    pub(super) fn longest_silence(&self) -> Option<Seconds> {
        let millis = |gap: Duration| u64::try_from(gap.as_millis()).unwrap_or(u64::MAX);
        self.longest_silence.map(|gap| Seconds::from_millis(millis(gap)))
    }

    pub(super) fn telemetry(&self) -> Option<Telemetry> {
        self.telemetry
    }

    pub(super) fn clock_offset(&self) -> Option<ClockOffset> {
        self.clock_offset
    }

    /// What is odd about it although it works.
    pub(super) fn notes(&self) -> Vec<String> {
        self.clock_offset.and_then(clock_note::note).into_iter().collect()
    }
}
