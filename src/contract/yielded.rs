//! What a function job's generator yielded.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::artifact::Digest;

/// One value as a worker reports it, coded as the job's serializer says: `text` or `artifact`, or neither when its bytes
/// never came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Yielded {
    /// JSON, or the base64 of cloudpickle's bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The bytes, when they are many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Digest>,
    /// How many bytes there are, before any base64.
    pub size_bytes: u64,
}

impl Yielded {
    /// One whose bytes are lost.
    pub const fn lost(size_bytes: u64) -> Self {
        Self { text: None, artifact: None, size_bytes }
    }
}

/// The same as clients read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct YieldedValue {
    /// Numbered from 1 per job, in the order in which they were yielded.
    pub n: u64,
    /// The value.
    #[serde(flatten)]
    pub value: Yielded,
}
