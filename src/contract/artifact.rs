//! Artifacts: immutable bytes addressed as `artifact://sha256/<hex>`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// What every artifact address begins with.
pub const ARTIFACT_PREFIX: &str = "artifact://sha256/";

/// A SHA-256 digest; on the wire an artifact address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A digest or address that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not an artifact address: expected `{ARTIFACT_PREFIX}` and 64 lower-case hex digits")]
pub struct DigestError {
    given: String,
}

impl Digest {
    /// From the 32 bytes of a SHA-256.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// 64 lower-case hex digits, the form used in paths and URLs.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Reads 64 lower-case hex digits.
    pub fn from_hex(text: &str) -> Result<Self, DigestError> {
        let refuse = || DigestError { given: text.chars().take(100).collect() };
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(refuse());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| refuse())?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ARTIFACT_PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let hex = text
            .strip_prefix(ARTIFACT_PREFIX)
            .ok_or_else(|| DigestError { given: text.chars().take(100).collect() })?;
        Self::from_hex(hex)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// `POST /v1/artifacts/missing`: which of these does the server not have?
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MissingRequest {
    /// Addresses to look for, at most 10,000.
    #[schema(max_items = 10_000)]
    pub artifacts: Vec<Digest>,
}

/// The answer: those that have to be sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MissingAnswer {
    /// The subset of the question that is absent.
    pub missing: Vec<Digest>,
}

/// The answer to a part of an upload that is not the last (202), or to a gap (409).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PartialUpload {
    /// Bytes received and durable from the start of the artifact.
    pub received_bytes: u64,
}

/// One collected file of a task: a regular file by its bytes, or a link by its target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputFile {
    /// The declared output's name it belongs to.
    pub name: String,
    /// Relative to the workspace, `/` between parts.
    pub path: String,
    /// The bytes, for a regular file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Digest>,
    /// Where it points, for a link inside the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// Size in bytes; 0 for links.
    pub size_bytes: u64,
    /// Permission bits, such as 420 (0644).
    pub mode: u32,
}

/// A file the task wrote that no output declares; kept on the worker until the workspace goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UndeclaredFile {
    /// Relative to the workspace.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
}
