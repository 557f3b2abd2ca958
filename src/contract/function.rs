//! What a function job's function returned or raised.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::artifact::Digest;
use super::spec::Serializer;

/// Bytes of what was returned that a job's record holds itself; more is an artifact.
pub const MOST_INLINE_BYTES: usize = 8 * 1024;

/// As a worker reports it: `text` or `artifact`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Returned {
    /// How what was returned is coded. What was raised is always JSON.
    pub serializer: Serializer,
    /// Whether it is an exception.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raised: bool,
    /// Whether the process ended before it had made all calls of its task: it is what came of those that were through.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// JSON, or the base64 of cloudpickle's bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The bytes, when they are many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Digest>,
    /// How many bytes there are, before any base64.
    pub size_bytes: u64,
}

/// As a job shows it: `inline` or `artifact`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FunctionResult {
    /// How what was returned is coded. What was raised is always JSON.
    pub serializer: Serializer,
    /// Whether it is an exception: then an object with `type`, `module`, `message` and `traceback`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raised: bool,
    /// Whether the process ended before it had made all calls of its task: it is what came of those that were through.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// The JSON value, or the base64 of cloudpickle's bytes as a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub inline: Option<Arc<RawValue>>,
    /// The bytes, when they are many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Digest>,
    /// How many bytes there are, before any base64.
    pub size_bytes: u64,
}

impl From<Returned> for FunctionResult {
    fn from(returned: Returned) -> Self {
        let Returned { serializer, raised, partial, text, artifact, size_bytes } = returned;
        let is_json = raised || serializer == Serializer::Json;
        let inline = text.and_then(|text| {
            let json =
                if is_json { RawValue::from_string(text) } else { serde_json::value::to_raw_value(&text) };
            json.ok().map(Arc::from)
        });
        Self { serializer, raised, partial, inline, artifact, size_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_shown_as_it_was_written_and_a_pickle_as_text() {
        let shown = |serializer, raised, text: &str| {
            let text = Some(text.to_owned());
            let returned =
                Returned { serializer, raised, partial: false, text, artifact: None, size_bytes: 3 };
            serde_json::to_string(&FunctionResult::from(returned)).unwrap()
        };
        let huge = shown(Serializer::Json, false, "{\"n\": 123456789012345678901234567890}");
        assert_eq!(
            huge,
            r#"{"serializer":"json","inline":{"n": 123456789012345678901234567890},"size_bytes":3}"#
        );
        let pickle = shown(Serializer::Cloudpickle, false, "gASVBQAAAA==");
        assert_eq!(pickle, r#"{"serializer":"cloudpickle","inline":"gASVBQAAAA==","size_bytes":3}"#);
        let raised = shown(Serializer::Cloudpickle, true, "{}");
        assert_eq!(raised, r#"{"serializer":"cloudpickle","raised":true,"inline":{},"size_bytes":3}"#);
    }
}
