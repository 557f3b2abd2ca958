//! `application/problem+json`: how every refusal looks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error_code::ErrorCode;
use super::server::ProtocolRange;

/// One bad field: where, and what is allowed there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    /// JSON pointer into the request body.
    pub pointer: String,
    /// `invalid`, `not_supported`, `unknown_field`, …
    pub code: String,
    /// What is wrong and what is allowed.
    pub detail: String,
}

/// The code of a fault: the project may not have so much, whatever workers there are.
pub const BEYOND_QUOTA: &str = "beyond_quota";

/// Something noticed that is no fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// JSON pointer into the request body; empty when it concerns the whole.
    pub pointer: String,
    /// What was noticed and what to do.
    pub detail: String,
}

impl Warning {
    /// Of a job as a whole, not of a field of its spec.
    pub fn of_job(detail: String) -> Self {
        Self { pointer: String::new(), detail }
    }
}

/// The body of every error answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `https://gpulayer.dev/errors/<code>`: a name, never fetched.
    #[serde(rename = "type")]
    pub kind: String,
    /// One sentence from the table.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What failed, on what, and what to do next.
    pub detail: String,
    /// From the one table.
    pub code: ErrorCode,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// To find it in the daemon's log.
    pub request_id: String,
    /// Every bad field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Fault>,
    /// With `upload_gap`: where the upload stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
    /// With `protocol_version`: what the server speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ProtocolRange>,
}

impl Problem {
    /// From the table, with what happened this time.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("https://gpulayer.dev/errors/{}", code.word()),
            title: code.sentence().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code,
            retryable: code.retryable(),
            request_id: String::new(),
            errors: Vec::new(),
            received_bytes: None,
            protocol: None,
        }
    }

    /// The same with its bad fields.
    pub fn with_errors(mut self, errors: Vec<Fault>) -> Self {
        self.errors = errors;
        self
    }
}
