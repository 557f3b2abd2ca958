//! Log lines: of the program, in the order the worker saw them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::TaskId;
use super::quantity::Timestamp;

/// Which pipe a line came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// GPUlayer's own remarks, such as elision marks.
    System,
}

impl Stream {
    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
            Stream::System => "system",
        }
    }
}

/// One line as a client reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    /// Numbered by the server from 1, per job.
    pub seq: u64,
    /// When the worker read it, on the worker's clock.
    pub time: Timestamp,
    /// The task that wrote it.
    pub task_id: TaskId,
    /// Rank in a gang; 0 otherwise.
    pub rank: u32,
    /// Which pipe.
    pub stream: Stream,
    /// Without its line end.
    pub text: String,
}

/// One record as a worker sends it; numbered `n` from 1 per task by its place in the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogRecord {
    /// When the shim read it.
    pub time: Timestamp,
    /// Which pipe.
    pub stream: Stream,
    /// Without its line end.
    pub text: String,
}
