//! What the server says of itself and of the caller's credential.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::pin::Pin;
use super::quantity::{Seconds, Timestamp};

/// Worker protocol versions a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProtocolRange {
    /// The oldest.
    pub min: u32,
    /// The newest.
    pub max: u32,
}

/// What the server takes at most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// A JSON body, in bytes.
    pub json_body_bytes: u64,
    /// The body of a batch, in bytes.
    pub batch_body_bytes: u64,
    /// Jobs of a batch.
    pub batch_jobs: u32,
    /// Entries of a list's page.
    pub page_limit: u32,
    /// A long poll.
    pub wait_s: Seconds,
    /// One artifact, in bytes.
    pub max_artifact_bytes: u64,
}

/// Live jobs by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveJobs {
    /// Wait for a place.
    pub queued: u64,
    /// Placed, not started.
    pub scheduled: u64,
    /// Started.
    pub running: u64,
}

/// Where a server listens on TCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Listening {
    /// How others reach it, as far as it knows.
    pub url: String,
    /// The address it listens on, such as `[::]:8470`.
    pub address: String,
    /// The key of its certificate, with TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
    /// Whether it made its certificate itself, so that only the pin makes it trustworthy.
    #[serde(default)]
    pub self_signed: bool,
}

/// `GET /v1/server`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServerStatus {
    /// GPUlayer's version there.
    pub version: String,
    /// The contract it speaks.
    pub api_version: String,
    /// The worker protocol it speaks.
    pub protocol: ProtocolRange,
    /// Version of its database schema.
    pub schema: String,
    /// When this daemon started.
    pub started_at: Timestamp,
    /// What its clock said at this answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// Its process id on its host.
    pub pid: u32,
    /// Whether a command started it because none was there; such a daemon leaves when idle and may be replaced.
    #[serde(default)]
    pub on_demand: bool,
    /// Where it listens on TCP; absent = on its Unix socket alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listening: Option<Listening>,
    /// What it takes at most.
    pub limits: Limits,
    /// What it has to do now.
    pub jobs: LiveJobs,
}

/// `GET /v1/whoami`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// The credential's name, or the local user.
    pub name: String,
    /// `submitted_by` of its jobs: the name, unless the credential says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// `admin`, `submitter` or `viewer`.
    pub role: String,
    /// `unix_socket` or `token`.
    pub via: String,
    /// The projects it is confined to; absent = none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<String>,
    /// The highest `priority` it may submit with; absent = no limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<i32>,
    /// From when it is not taken any more; absent = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// `POST /v1/admin/stop`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopRequest {
    /// Cancel what runs (with its grace) before leaving; else it is left for adoption by the next daemon.
    #[serde(default)]
    pub cancel_running: bool,
    /// A newer daemon is about to take over: leave at once.
    #[serde(default)]
    pub hand_over: bool,
}
