//! Numbers with units: times, durations, CPUs. Integers inside, so that decisions are exact and replayable.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment on the server's wall clock, in microseconds since 1970 UTC. On the wire: RFC 3339 in UTC.
/// For people and for ordering what is shown; no decision rests on another machine's wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From microseconds since 1970-01-01T00:00:00Z.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970-01-01T00:00:00Z.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// This moment and a span after it.
    pub const fn plus(self, span: Seconds) -> Self {
        Self(self.0.saturating_add((span.millis() as i64).saturating_mul(1000)))
    }

    /// This moment less a span.
    pub const fn minus(self, span: Seconds) -> Self {
        Self(self.0.saturating_sub((span.millis() as i64).saturating_mul(1000)))
    }

    /// The span from `earlier` to this moment; zero when the clock was set back in between.
    pub const fn since(self, earlier: Timestamp) -> Seconds {
        let micros = self.0.saturating_sub(earlier.0);
        Seconds::from_millis(if micros < 0 { 0 } else { (micros / 1000) as u64 })
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time:.6}"),
            Err(_) => f.write_str("0001-01-01T00:00:00.000000Z"),
        }
    }
}

impl FromStr for Timestamp {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        Ok(Self(text.parse::<jiff::Timestamp>()?.as_microsecond()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A span of time, kept in whole milliseconds; on the wire a number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seconds(u64);

impl Seconds {
    /// The longest span a field may hold: ten years.
    pub const MAX: Seconds = Seconds(10 * 366 * 86_400_000);

    /// From milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// From whole seconds.
    pub const fn new(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Milliseconds.
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// This span and another one.
    pub const fn plus(self, more: Seconds) -> Self {
        Self(self.0.saturating_add(more.0))
    }

    /// As the standard library's type, for timers.
    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }

    /// Reads a number of seconds; `None` unless it is finite, not negative and at most [`Seconds::MAX`].
    pub fn from_f64(seconds: f64) -> Option<Self> {
        // The number that was given counts, not what it is rounded to.
        let most = (Self::MAX.0 / 1000) as f64;
        (0.0..=most).contains(&seconds).then(|| Self((seconds * 1000.0).round() as u64))
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) {
            serializer.serialize_u64(self.0 / 1000)
        } else {
            serializer.serialize_f64(self.0 as f64 / 1000.0)
        }
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Self::from_f64(seconds)
            .ok_or_else(|| serde::de::Error::custom("a number of seconds from 0 to ten years is expected"))
    }
}

/// An amount of CPU in thousandths of one core; on the wire a number with up to 3 decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cpus(u32);

impl Cpus {
    /// One whole core.
    pub const ONE: Cpus = Cpus(1000);

    /// From thousandths of a core.
    pub const fn from_millis(millis: u32) -> Self {
        Self(millis)
    }

    /// Thousandths of a core.
    pub const fn millis(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) {
            serializer.serialize_u32(self.0 / 1000)
        } else {
            serializer.serialize_f64(f64::from(self.0) / 1000.0)
        }
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let cpus = f64::deserialize(deserializer)?;
        if (0.0..=4e6).contains(&cpus) {
            Ok(Self((cpus * 1000.0).round() as u32))
        } else {
            Err(serde::de::Error::custom("a number of CPUs from 0 to 4,000,000 is expected"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_stay_whole_on_the_wire() {
        assert_eq!(serde_json::to_string(&Seconds::new(10)).unwrap(), "10");
        assert_eq!(serde_json::to_string(&Seconds::from_millis(1500)).unwrap(), "1.5");
        assert_eq!(serde_json::to_string(&Cpus::from_millis(250)).unwrap(), "0.25");
        assert_eq!(serde_json::from_str::<Cpus>("2").unwrap(), Cpus::from_millis(2000));
    }

    #[test]
    fn what_is_beyond_a_bound_by_less_than_a_thousandth_is_beyond_it() {
        let most = Seconds::MAX.millis() as f64 / 1000.0;
        assert_eq!(Seconds::from_f64(most), Some(Seconds::MAX));
        for beyond in [most + 0.0001, -0.0001, f64::NAN] {
            assert_eq!(Seconds::from_f64(beyond), None, "{beyond}");
        }
        assert_eq!(serde_json::from_str::<Cpus>("4e6").unwrap(), Cpus::from_millis(4_000_000_000));
        for beyond in ["4000000.0001", "-0.0001"] {
            assert!(serde_json::from_str::<Cpus>(beyond).is_err(), "{beyond}");
        }
    }

    #[test]
    fn times_are_rfc_3339_in_utc() {
        let time = Timestamp::from_micros(1_700_000_000_123_456);
        assert_eq!(time.to_string(), "2023-11-14T22:13:20.123456Z");
        assert_eq!("2023-11-14T23:13:20.123456+01:00".parse::<Timestamp>().unwrap(), time);
    }

    #[test]
    fn a_clock_set_back_gives_a_zero_span() {
        let (a, b) = (Timestamp::from_micros(5_000_000), Timestamp::from_micros(9_500_000));
        assert_eq!(b.since(a), Seconds::from_millis(4500));
        assert_eq!(a.since(b), Seconds::default());
    }
}
