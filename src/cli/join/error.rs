//! Why a machine did not join, or is a worker no more, and what to do next.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use crate::cli::error::UNKNOWN_NAME;
use crate::cli::on_demand::process;
use crate::client::ClientError;
use crate::client::worker_channel::{ChannelError, SessionEnd};
use crate::config::ConfigError;
use crate::contract::error_code::ErrorCode;
use crate::contract::problem::Fault;
use crate::worker::{FolderError, WorkerError};

/// A worker that cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// What was typed cannot be used.
    #[error("{}", match faults.as_slice() {
        [only] => format!("{} {}", only.pointer, only.detail),
        faults => format!("{} things cannot be used as given", faults.len()),
    })]
    Faults {
        /// Each with the flag as its pointer.
        faults: Vec<Fault>,
    },
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file of this machine.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// `read`, `write`, …
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file in the worker's folder does not hold what it should.
    #[error("{} cannot be understood", path.display())]
    Garbled {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The server was not found, or is not what it should be.
    #[error("cannot join {server}")]
    Server {
        /// As it is shown.
        server: String,
        /// Why.
        #[source]
        source: ClientError,
    },
    /// The worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The server ended the session.
    #[error("the session with {server} is over: {end}")]
    Over {
        /// As it is shown.
        server: String,
        /// How.
        end: SessionEnd,
    },
    /// The worker in the background ended before it had joined.
    #[error("the worker in the background did not join; the end of {}:\n{tail}", log.display())]
    Ended {
        /// Its log.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// The background could not be had.
    #[error("cannot start a worker in the background")]
    Spawn {
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A worker that was asked to stop.
    #[error("the worker in {} has not stopped ({})", folder.display(), process(*pid))]
    StillThere {
        /// Its folder.
        folder: PathBuf,
        /// Its process.
        pid: Option<u32>,
    },
    /// A service of another worker has the unit's name.
    #[error("{} is there already, for another worker", path.display())]
    UnitThere {
        /// The unit.
        path: PathBuf,
    },
    /// Signals, threads.
    #[error("cannot set up this process")]
    Runtime {
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl JoinError {
    /// Whether it was used wrongly (exit status 2).
    pub(in crate::cli) fn is_usage(&self) -> bool {
        matches!(self, Self::Faults { .. })
    }

    /// Every bad flag, when there are several.
    pub(in crate::cli) fn faults(&self) -> &[Fault] {
        match self {
            Self::Faults { faults } if faults.len() > 1 => faults,
            _ => &[],
        }
    }

    /// What to do next.
    pub(in crate::cli) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Server { source, .. } if source.is_unknown_name() => Some(UNKNOWN_NAME),
            Self::Server { source, .. } if source.is_connection() => {
                Some("check that the server runs there, and that this machine may reach its port")
            }
            Self::Over { end, .. }
            | Self::Worker(WorkerError::NotAccepted(ChannelError::SessionOver(end))) => Some(match end {
                SessionEnd::Revoked => {
                    "the server has revoked this worker or does not know it; its tasks were killed. Join again with a join token: `gpulayer token create --join` on the server prints the line"
                }
                SessionEnd::Unknown => {
                    "its database was lost, or an older one was put back. When the right one is back, start this worker again: what it ran goes on until then. If it is gone for good, join again with the server's new join token (`gpulayer join … --token-file FILE`): what still runs here of the old session is killed then"
                }
                SessionEnd::Superseded => {
                    "another process runs this worker now, with the same folder or a copy of it; one of them is enough"
                }
                SessionEnd::IdentityInUse => {
                    "this folder is a copy of one that another machine works with: join with another --folder, or remove this one's identity.json"
                }
                SessionEnd::Outdated => {
                    "remove its identity.json and join again with a join token; tasks it had are lost, and the server says so"
                }
            }),
            Self::Worker(WorkerError::NotAccepted(ChannelError::Refused(problem))) => match problem.code {
                ErrorCode::ProtocolVersion => {
                    Some("server and worker are too far apart: upgrade the older one")
                }
                ErrorCode::Forbidden => Some(
                    "a worker joins with a join token (glj_…): ~/.gpulayer/join-token on the server's machine, or what `gpulayer token create --join` makes there",
                ),
                ErrorCode::Unauthenticated => Some(
                    "the join token is not, or no more, known there; the server's machine has it in ~/.gpulayer/join-token, and `gpulayer token create --join` makes another",
                ),
                _ => None,
            },
            Self::Worker(WorkerError::Folder(FolderError::InUse { .. })) => Some(
                "it has joined already: `gpulayer worker stop` stops it. A second worker on this machine wants another --folder",
            ),
            Self::UnitThere { .. } => Some(
                "remove that one first, or print the unit with --systemd=- and store it under another name",
            ),
            _ => None,
        }
    }
}

/// What is wrong with one flag.
pub(super) fn fault(flag: &str, detail: impl Into<String>) -> Fault {
    Fault { pointer: flag.to_owned(), code: "invalid".to_owned(), detail: detail.into() }
}

/// What is at the bottom of an error.
pub(super) fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}
