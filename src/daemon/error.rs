//! Why a daemon cannot run.

use crate::actors::job_supervisor::restore::RestoreError;
use crate::artifacts::ArtifactError;
use crate::config::ConfigError;
use crate::credentials::RandomError;
use crate::http::ServeError;
use crate::store::StoreError;
use crate::worker::WorkerError;

/// What failed, by part.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Settings or folders.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database, or its lock.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the database remembers.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The artifact store.
    #[error(transparent)]
    Artifacts(#[from] ArtifactError),
    /// The sockets.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// This host's worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// Making tokens.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// Keeping a token where its owner finds it.
    #[error("cannot write the token file {}", path.display())]
    TokenFile {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}
