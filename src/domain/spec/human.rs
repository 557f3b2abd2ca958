//! Sizes and durations as people write them, for flags and `--spec` files. The wire takes only numbers.
//!
//! Sizes: `KB MB GB TB PB` and the bare `K M G T P` are powers of 1000, `KiB MiB GiB TiB PiB` and `Ki Mi Gi Ti Pi`
//! powers of 1024, in any case; without a unit, or with `B`, bytes. Durations: `ms s m h d w` (and `min`), joined
//! from large to small as in `1h30m`; without a unit, seconds. Both take decimals: `1.5GiB`, `0.5h`.

use serde_json::Value;

use crate::contract::problem::Fault;
use crate::contract::quantity::Seconds;

/// A text that is no size or no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not of the form of a size.
    #[error("not a size; write bytes as a number, or such as 80GB, 16GiB, 512M")]
    NotASize,
    /// Not of the form of a duration.
    #[error("not a duration; write seconds as a number, or such as 90m, 1h30m, 250ms, 2d")]
    NotADuration,
    /// A size above 2^53 bytes, or a duration above ten years.
    #[error("too large; sizes go up to 8 PiB, durations up to ten years")]
    TooLarge,
}

/// The largest size: what every JSON reader keeps exact.
const MAX_BYTES: u128 = 1 << 53;

const SIZE_UNITS: [(&str, u128); 6] = [
    ("", 1),
    ("k", 1_000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("p", 1_000_000_000_000_000),
];

/// In milliseconds.
const DURATION_UNITS: [(&str, u128); 7] = [
    ("w", 604_800_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Reads a size in bytes; a fraction of a byte is dropped.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    let (number, rest) = Decimal::read(text.trim()).ok_or(QuantityError::NotASize)?;
    let unit = size_unit(rest.trim_start()).ok_or(QuantityError::NotASize)?;
    let bytes = number.times(unit).filter(|bytes| *bytes <= MAX_BYTES).ok_or(QuantityError::TooLarge)?;
    u64::try_from(bytes).map_err(|_| QuantityError::TooLarge)
}

fn size_unit(text: &str) -> Option<u128> {
    let lower = text.to_ascii_lowercase();
    let letters = lower.strip_suffix('b').unwrap_or(&lower);
    let (prefix, binary) = match letters.strip_suffix('i') {
        Some("") => return None,
        Some(prefix) => (prefix, true),
        None => (letters, false),
    };
    let power = SIZE_UNITS.iter().position(|(unit, _)| *unit == prefix)?;
    Some(if binary { 1 << (10 * power) } else { SIZE_UNITS[power].1 })
}

/// Reads a duration; a fraction of a millisecond is dropped.
pub fn seconds(text: &str) -> Result<Seconds, QuantityError> {
    let text = text.trim();
    let millis = match Decimal::read(text) {
        Some((plain, "")) => plain.times(1_000).ok_or(QuantityError::TooLarge)?,
        _ => joined_millis(text)?,
    };
    let millis = u64::try_from(millis).map_err(|_| QuantityError::TooLarge)?;
    Some(Seconds::from_millis(millis)).filter(|span| *span <= Seconds::MAX).ok_or(QuantityError::TooLarge)
}

/// `1h30m`: numbers with units, each unit smaller than the one before.
fn joined_millis(text: &str) -> Result<u128, QuantityError> {
    let (mut rest, mut millis, mut above) = (text, 0u128, u128::MAX);
    while !rest.is_empty() || above == u128::MAX {
        let (number, after) = Decimal::read(rest).ok_or(QuantityError::NotADuration)?;
        let after = after.trim_start();
        let (word, next) =
            after.split_at(after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len()));
        let named = DURATION_UNITS.iter().find(|(unit, _)| word.eq_ignore_ascii_case(unit));
        let unit =
            named.map(|(_, unit)| *unit).filter(|unit| *unit < above).ok_or(QuantityError::NotADuration)?;
        let part = number.times(unit).ok_or(QuantityError::TooLarge)?;
        millis = millis.checked_add(part).ok_or(QuantityError::TooLarge)?;
        (rest, above) = (next.trim_start(), unit);
    }
    Ok(millis)
}

/// A decimal number, exact: `digits` × 10^-`decimals`.
struct Decimal {
    digits: u128,
    decimals: u32,
}

impl Decimal {
    /// Reads digits with at most one point; gives what follows.
    fn read(text: &str) -> Option<(Self, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        // 18 digits each keep every product below 2^128.
        if whole.is_empty() || whole.len() > 18 || fraction.len() > 18 || number.ends_with('.') {
            return None;
        }
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some((Self { digits, decimals: u32::try_from(fraction.len()).ok()? }, rest))
    }

    fn times(&self, unit: u128) -> Option<u128> {
        Some(self.digits.checked_mul(unit)? / 10u128.checked_pow(self.decimals)?)
    }
}

/// The fields of a spec that hold a size.
const SIZES: &[&[&str]] = &[
    &["resources", "memory_bytes"],
    &["resources", "disk_bytes"],
    &["resources", "gpus", "memory_bytes"],
    &["retry", "memory_growth", "max_bytes"],
];

/// The fields of a spec that hold a duration.
const DURATIONS: &[&[&str]] = &[
    &["timeout_s"],
    &["queue_timeout_s"],
    &["grace_s"],
    &["unreachable_timeout_s"],
    &["workspace_ttl_s"],
    &["retry", "backoff_s"],
];

/// Turns sizes and durations given as text in a `--spec` document into the numbers of the wire; everything else is
/// left for `read`. `prefix` goes before the pointer of every fault.
pub fn to_wire(spec: &mut Value, prefix: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for path in SIZES {
        rewrite(spec, prefix, path, &mut faults, |text| bytes(text).map(Value::from));
    }
    for path in DURATIONS {
        rewrite(spec, prefix, path, &mut faults, |text| {
            // `Seconds` writes itself as the wire's number, which is never an error in memory.
            seconds(text).map(|span| serde_json::to_value(span).unwrap_or(Value::Null))
        });
    }
    faults
}

fn rewrite(
    spec: &mut Value,
    prefix: &str,
    path: &[&str],
    faults: &mut Vec<Fault>,
    read: impl Fn(&str) -> Result<Value, QuantityError>,
) {
    let Some(field) = path.iter().try_fold(spec, |value, name| value.get_mut(name)) else { return };
    let Value::String(text) = field else { return };
    match read(text) {
        Ok(number) => *field = number,
        Err(error) => faults.push(Fault {
            pointer: format!("{prefix}/{}", path.join("/")),
            code: "invalid".to_owned(),
            detail: format!("`{}` is {error}", text.chars().take(64).collect::<String>()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_exact() {
        for (text, expected) in [
            ("0", 0),
            ("1024", 1024),
            ("512B", 512),
            ("80GB", 80_000_000_000),
            ("80g", 80_000_000_000),
            ("16GiB", 16 << 30),
            ("16 gib", 16 << 30),
            ("16Gi", 16 << 30),
            ("512M", 512_000_000),
            ("1.5GiB", 3 << 29),
            ("0.1KB", 100),
            ("79.6GiB", 85_469_849_190),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "GB", "-1", "1e9", "1.", ".5G", "1.2.3", "5 parsecs", "5ib", "5 i", "١GB", "1,5GB"]
        {
            assert_eq!(bytes(text), Err(QuantityError::NotASize), "{text}");
        }
        for text in ["9PiB", "999999999999999999", "999999999999999999.999999999999999999PiB"] {
            assert_eq!(bytes(text), Err(QuantityError::TooLarge), "{text}");
        }
    }

    #[test]
    fn durations_go_from_large_to_small() {
        for (text, millis) in [
            ("0", 0),
            ("90", 90_000),
            ("1.5", 1_500),
            ("10s", 10_000),
            ("250ms", 250),
            ("90m", 5_400_000),
            ("90min", 5_400_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1.5H", 5_400_000),
            ("2d", 172_800_000),
            ("1w1d1h1m1s1ms", 694_861_001),
        ] {
            assert_eq!(seconds(text), Ok(Seconds::from_millis(millis)), "{text}");
        }
        for text in ["", "h", "-1s", "1m1h", "1m1m", "1min1m", "1h30", "5 apples", "1s2", "0 0", "1e3"] {
            assert_eq!(seconds(text), Err(QuantityError::NotADuration), "{text}");
        }
        for text in ["11000d", "999999999999999999w"] {
            assert_eq!(seconds(text), Err(QuantityError::TooLarge), "{text}");
        }
    }

    #[test]
    fn rewrites_only_the_fields_that_hold_quantities() {
        let mut spec = json!({
            "timeout_s": "90m",
            "grace_s": 5,
            "queue_timeout_s": "soon",
            "env": { "timeout_s": "90m" },
            "resources": { "memory_bytes": "16GiB", "gpus": { "memory_bytes": "lots" } },
            "retry": { "backoff_s": "1500ms" },
        });
        let faults = to_wire(&mut spec, "");
        let pointers: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/resources/gpus/memory_bytes", "/queue_timeout_s"]);
        assert!(faults[1].detail.starts_with("`soon` is not a duration; write"), "{}", faults[1].detail);
        assert_eq!(
            spec,
            json!({
                "timeout_s": 5400,
                "grace_s": 5,
                "queue_timeout_s": "soon",
                "env": { "timeout_s": "90m" },
                "resources": { "memory_bytes": 17_179_869_184_u64, "gpus": { "memory_bytes": "lots" } },
                "retry": { "backoff_s": 1.5 },
            })
        );
    }
}
