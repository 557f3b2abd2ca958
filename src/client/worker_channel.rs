//! How a worker talks to its server: one trait, two ways (inside the daemon's process, over HTTP). All calls may
//! be repeated: the server gives an identical repeat the first answer.

use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use crate::contract::artifact::Digest;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::problem::Problem;
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, HeartbeatAnswer, HeartbeatRequest, LogsAnswer, LogsRequest, PROTOCOL,
    RegisterAnswer, RegisterRequest, ReportAnswer, ReportRequest, ResumeAnswer, ResumeRequest,
};
use crate::contract::server::ProtocolRange;

/// The answer to one call, on its way. Boxed so that the trait can be used as an object.
pub type Calling<'a, T> = Pin<Box<dyn Future<Output = Result<T, ChannelError>> + Send + 'a>>;

/// Who is speaking: set once after `register`, or from the worker's own file before `resume`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The worker.
    pub worker_id: WorkerId,
    /// `gls_…`; empty over the in-process channel.
    pub token: String,
}

/// Why a call brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The server answered and said no; the same call will not succeed (unless the problem says `retryable`).
    #[error("the server refused: {}", .0.detail)]
    Refused(Box<Problem>),
    /// No answer came; the call may or may not have been carried out. Repeat it.
    #[error("the server cannot be reached for {call}")]
    Unreachable {
        /// Which call.
        call: &'static str,
        /// What went wrong underneath.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The two speak no protocol in common. Nothing was carried out; the same call may be, once one was upgraded.
    #[error(
        "the server speaks worker protocol {}, this worker {PROTOCOL}: {}",
        range(spoken),
        to_upgrade(spoken)
    )]
    ProtocolVersion {
        /// What the server speaks.
        spoken: ProtocolRange,
    },
    /// Something on the way takes no bodies as large as this one; less at once may go through.
    #[error("something between here and the server takes no {call} as large as this one")]
    TooLarge {
        /// Which call.
        call: &'static str,
    },
    /// The server has to be sure of something first.
    #[error("the server does not take this worker yet: {why}, or was a moment ago")]
    NotYet {
        /// What would end the session if it stayed so.
        why: SessionEnd,
    },
    /// The server does not know the session's token. Its database may be back in a moment, so nothing is given up for it.
    #[error(
        "the server there does not know this worker: its database was lost, or an older one was put back, or it is another server"
    )]
    UnknownSession,
    /// The worker's session is over.
    #[error("the session is over: {0}")]
    SessionOver(SessionEnd),
    /// What came are not the bytes that were asked for: the server's are damaged, or something on the way changes them.
    #[error("the bytes that came for {expected} have the digest {received}")]
    Damaged {
        /// Asked for.
        expected: Digest,
        /// Received.
        received: Digest,
    },
    /// A file on this side could not be read or written.
    #[error("cannot {operation} {}", .path.display())]
    LocalFile {
        /// `read`, `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn range(spoken: &ProtocolRange) -> String {
    if spoken.min == spoken.max {
        spoken.min.to_string()
    } else {
        format!("{} to {}", spoken.min, spoken.max)
    }
}

fn to_upgrade(spoken: &ProtocolRange) -> &'static str {
    if spoken.min > PROTOCOL {
        "upgrade GPUlayer on this machine to the server's version"
    } else {
        "upgrade GPUlayer on the server, or use the server's version here"
    }
}

impl ChannelError {
    /// Whether the same call may succeed later.
    pub fn may_repeat(&self) -> bool {
        match self {
            Self::Refused(problem) => problem.retryable,
            Self::Unreachable { .. } | Self::TooLarge { .. } | Self::NotYet { .. } | Self::UnknownSession => {
                true
            }
            Self::SessionOver(_)
            | Self::LocalFile { .. }
            | Self::Damaged { .. }
            | Self::ProtocolVersion { .. } => false,
        }
    }
}

/// How a session ended, which decides what becomes of the running tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// Revoked, or unknown to the server: kill everything and leave.
    #[error("it was revoked")]
    Revoked,
    /// At its start the server does not know the worker: leave without touching anything, or, with a join token, kill
    /// everything and join anew.
    #[error("the server there does not know this worker")]
    Unknown,
    /// A newer start of this worker has taken over, tasks included: leave without touching them.
    #[error("a newer start of this worker has taken over")]
    Superseded,
    /// Another machine, or a copy of the folder, lives under this identity: leave without touching anything.
    #[error("another machine, or a copy of this worker's folder, is live under its identity")]
    IdentityInUse,
    /// The folder is older than the worker it belongs to: leave without touching anything.
    #[error(
        "this worker's folder is older than the server's knowledge of it: restored from a snapshot, or copied"
    )]
    Outdated,
}

/// A worker's line to its server.
pub trait WorkerChannel: Send + Sync + 'static {
    /// From now on every call speaks for this worker.
    fn speak_as(&self, session: Session);

    /// Introduces a worker that has no identity yet.
    fn register(&self, request: RegisterRequest) -> Calling<'_, RegisterAnswer>;

    /// Takes the session up again after a restart of the worker.
    fn resume(&self, request: ResumeRequest) -> Calling<'_, ResumeAnswer>;

    /// Renews the leases of the tasks listed. Must not wait behind other calls.
    fn heartbeat(&self, request: HeartbeatRequest) -> Calling<'_, HeartbeatAnswer>;

    /// Long poll for tasks.
    fn acquire(&self, request: AcquireRequest) -> Calling<'_, AcquireAnswer>;

    /// Reports what happened to tasks; one result per item.
    fn report(&self, request: ReportRequest) -> Calling<'_, ReportAnswer>;

    /// Sends log records of one task; answered when they are durable.
    fn logs(&self, job_id: JobId, task_id: TaskId, request: LogsRequest) -> Calling<'_, LogsAnswer>;

    /// Leaves for good.
    fn deregister(&self) -> Calling<'_, ()>;

    /// The bytes of one artifact, verified, as an open file. They are written to `scratch` when they have to come
    /// from elsewhere; the caller removes it.
    fn fetch<'a>(&'a self, digest: Digest, scratch: &'a Path) -> Calling<'a, File>;

    /// Whether `fetch` opens what lies on this machine anyway: then nothing is gained by keeping a copy.
    fn artifacts_are_near(&self) -> bool {
        false
    }

    /// Makes an artifact of an open file's bytes; `shown` names it in errors.
    fn publish<'a>(&'a self, file: File, shown: &'a Path) -> Calling<'a, Published>;
}

/// What became of a published file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Its address.
    pub digest: Digest,
    /// How many bytes were published; the file may have changed since.
    pub size_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_do_not_fit_say_which_one_to_upgrade() {
        let told =
            |min, max| ChannelError::ProtocolVersion { spoken: ProtocolRange { min, max } }.to_string();
        assert_eq!(
            told(2, 3),
            "the server speaks worker protocol 2 to 3, this worker 1: upgrade GPUlayer on this machine to the server's version"
        );
        assert!(told(0, 0).contains("protocol 0, this worker 1: upgrade GPUlayer on the server"));
    }
}
