//! Which artifacts a caller may know of. A digest is no permission: to whoever has no claim to an artifact it is not
//! there, and sending it looks and takes the same whether it is or not.

use super::caller::{Caller, WorkerCaller};
use crate::artifacts::Sender;
use crate::contract::artifact::Digest;
use crate::contract::ids::WorkerId;
use crate::domain::change::Uploader;
use crate::store::{Reads, StoreError};

/// What a caller may know.
#[derive(Debug, Clone)]
pub enum Knowledge {
    /// Of every artifact.
    All,
    /// Of those that these projects sent, named or produced.
    Projects {
        /// Their names.
        names: Vec<String>,
        /// Tells this client's unfinished uploads from those of others.
        number: u64,
    },
    /// Of those that a job names of which the worker holds a task, and of those it sent.
    Worker(WorkerId),
}

impl Knowledge {
    /// This caller's.
    pub fn of(caller: &Caller) -> Self {
        match caller {
            Caller::Worker(WorkerCaller { worker_id, .. }) => Self::Worker(*worker_id),
            Caller::Client(client) => match client.grant.projects.names() {
                None => Self::All,
                Some(names) => Self::Projects {
                    names: names.to_vec(),
                    number: client
                        .credential
                        .iter()
                        .take(8)
                        .fold(0, |number, byte| number << 8 | u64::from(*byte)),
                },
            },
            // No route of artifacts lets these in.
            Caller::Anonymous | Caller::Join(_) => Self::Projects { names: Vec::new(), number: 0 },
        }
    }

    /// Whether the caller may read it.
    pub fn may_read(&self, digest: &Digest, reads: &Reads) -> Result<bool, StoreError> {
        match self {
            Self::All => Ok(true),
            Self::Projects { names, .. } => reads.artifact_of_projects(digest, names),
            Self::Worker(id) => reads.artifact_of_worker(digest, *id),
        }
    }

    /// Whether the caller need not send it: it has done so, or may read it anyway.
    pub fn has_sent(&self, digest: &Digest, reads: &Reads) -> Result<bool, StoreError> {
        match self {
            Self::All => Ok(true),
            // A job may be submitted into any of them.
            Self::Projects { names, .. } => {
                for name in names {
                    if !reads.artifact_of_projects(digest, std::slice::from_ref(name))? {
                        return Ok(false);
                    }
                }
                Ok(!names.is_empty())
            }
            Self::Worker(id) => {
                Ok(reads.artifact_of_worker(digest, *id)? || reads.artifact_sent_by(digest, *id)?)
            }
        }
    }

    /// As whom the caller sends it.
    pub fn sender(&self, digest: &Digest, reads: &Reads) -> Result<Sender, StoreError> {
        if self.may_read(digest, reads)? || self.has_sent(digest, reads)? {
            return Ok(Sender::Knowing);
        }
        Ok(Sender::Blind(match self {
            Self::All => 0,
            Self::Projects { number, .. } => *number,
            Self::Worker(id) => {
                id.to_bytes().iter().skip(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
            }
        }))
    }

    /// On whose behalf it counts as sent; none when that need not be written down.
    pub fn uploaders(&self) -> Vec<Uploader> {
        match self {
            Self::All => Vec::new(),
            Self::Projects { names, .. } => names.iter().cloned().map(Uploader::Project).collect(),
            Self::Worker(id) => vec![Uploader::Worker(*id)],
        }
    }
}
