//! What a worker measures of its machine and sends with its heartbeats, for people to look at. Nothing is decided by
//! it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// How a worker's machine is doing. What could not be measured is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Telemetry {
    /// Processes that ran or wanted to, on average over the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// Memory that programs can still have, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_available_bytes: Option<u64>,
    /// Free room on the fullest volume that its tasks write to, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free_bytes: Option<u64>,
    /// Processes of its tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_processes: Option<u32>,
}

impl Telemetry {
    /// Reads what another version may have written in another shape: no heartbeat fails for its numbers.
    pub(super) fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        let given = serde_json::Value::deserialize(deserializer)?;
        Ok(serde_json::from_value(given).unwrap_or_default())
    }
}

/// How far a worker's clock is ahead of the server's, in milliseconds (behind: negative). On the wire a number of
/// seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockOffset(i64);

impl ClockOffset {
    /// From milliseconds.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds.
    pub const fn millis(self) -> i64 {
        self.0
    }
}

/// `0.4 s behind`, `3.2 s ahead`.
impl fmt::Display for ClockOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.0 < 0 { "behind" } else { "ahead" };
        write!(f, "{:.1} s {way}", self.0.unsigned_abs() as f64 / 1000.0)
    }
}

impl Serialize for ClockOffset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0 as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for ClockOffset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Out of range or not finite: the nearest that can be held, or nothing.
        Ok(Self((f64::deserialize(deserializer)? * 1000.0).round() as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_travels_in_seconds_and_is_said_with_its_direction() {
        let behind = ClockOffset::from_millis(-1250);
        assert_eq!(serde_json::to_string(&behind).unwrap(), "-1.25");
        assert_eq!(serde_json::from_str::<ClockOffset>("-1.25").unwrap(), behind);
        assert_eq!(serde_json::from_str::<ClockOffset>("2").unwrap(), ClockOffset::from_millis(2000));
        assert_eq!(behind.to_string(), "1.2 s behind");
        assert_eq!(ClockOffset::from_millis(3200).to_string(), "3.2 s ahead");
    }

    #[test]
    fn telemetry_of_another_shape_is_no_telemetry() {
        #[derive(Deserialize)]
        struct Beat {
            #[serde(default, deserialize_with = "Telemetry::lenient")]
            telemetry: Option<Telemetry>,
        }
        let read = |text: &str| serde_json::from_str::<Beat>(text).unwrap().telemetry;
        assert_eq!(read("{}"), None);
        assert_eq!(read(r#"{"telemetry": null}"#), None);
        assert_eq!(read(r#"{"telemetry": {"load": "high"}}"#), None);
        let known = read(r#"{"telemetry": {"load": 0.5, "fans": 3}}"#).unwrap();
        assert_eq!(known, Telemetry { load: Some(0.5), ..Telemetry::default() });
    }
}
