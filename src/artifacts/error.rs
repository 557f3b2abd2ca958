//! What can go wrong in the store, a full disk told apart from the rest.

use std::io;
use std::path::{Path, PathBuf};

use crate::contract::artifact::Digest;

/// A refused or failed operation of the artifact store.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The disk or the quota is used up; the same call may succeed later.
    #[error("no space left for {}", path.display())]
    StorageFull {
        /// The file that could not grow.
        path: PathBuf,
        /// `ENOSPC` or `EDQUOT`.
        #[source]
        source: io::Error,
    },
    /// Any other trouble with a file.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// A verb.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The bytes are not those the digest names; what was received is removed.
    #[error("the bytes received for {expected} hash to {actual}")]
    DigestMismatch {
        /// What the sender announced.
        expected: Digest,
        /// What came.
        actual: Digest,
    },
    /// More bytes than one artifact may have; what was received is removed.
    #[error("an artifact may have at most {limit_bytes} bytes")]
    TooLarge {
        /// [`super::Limits::max_artifact_bytes`].
        limit_bytes: u64,
    },
    /// Another upload of the same digest is live; worth a retry.
    #[error("another upload of {digest} is under way")]
    UploadBusy {
        /// The digest both want to send.
        digest: Digest,
    },
    /// There is no such artifact.
    #[error("{digest} is not in the store")]
    Absent {
        /// The digest asked for.
        digest: Digest,
    },
    /// The disk lost some of its bytes.
    #[error("the server's copy of {digest} is damaged; send it again")]
    Damaged {
        /// The digest asked for.
        digest: Digest,
    },
    /// Only regular files have bytes to store.
    #[error("{} is not a regular file", path.display())]
    NotRegular {
        /// What it is called.
        path: PathBuf,
    },
}

impl ArtifactError {
    /// For `map_err`: names the operation and the file, and tells a full disk apart.
    pub(super) fn at<E: Into<io::Error>>(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> ArtifactError {
        move |source| {
            let (path, source) = (path.to_owned(), source.into());
            match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    ArtifactError::StorageFull { path, source }
                }
                _ => ArtifactError::Io { operation, path, source },
            }
        }
    }
}
