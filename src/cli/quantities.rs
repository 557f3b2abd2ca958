//! Sizes and times of flags, as people write them.

use serde_json::{Number, Value};

use super::error::CliError;
use crate::contract::quantity::Seconds;
use crate::domain::spec::human;

/// `16GiB`, `80GB`, `1024` → bytes.
pub(super) fn bytes(flag: &'static str, text: &str) -> Result<u64, CliError> {
    human::bytes(text).map_err(|source| CliError::Quantity { flag, given: text.to_owned(), source })
}

/// `90m`, `1h30m`, `10s`, `1.5`.
pub(super) fn span(flag: &'static str, text: &str) -> Result<Seconds, CliError> {
    human::seconds(text).map_err(|source| CliError::Quantity { flag, given: text.to_owned(), source })
}

/// A span as the wire's number of seconds.
pub(super) fn seconds(flag: &'static str, text: &str) -> Result<Value, CliError> {
    Ok(serde_json::to_value(span(flag, text)?).unwrap_or(Value::Null))
}

/// A JSON number, whole when it can be.
pub(super) fn number(value: f64) -> Option<Value> {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Some(Value::from(value as i64));
    }
    Number::from_f64(value).map(Value::Number)
}
