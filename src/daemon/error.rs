//! Why a daemon cannot run.

use crate::actors::job_supervisor::restore::RestoreError;
use crate::artifacts::ArtifactError;
use crate::config::ConfigError;
use crate::credentials::RandomError;
use crate::credentials::seed::SeedError;
use crate::http::ServeError;
use crate::store::{StoreError, space};
use crate::tls::ServerTlsError;
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
    /// Key or certificate.
    #[error(transparent)]
    Tls(#[from] ServerTlsError),
    /// This host's worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// Making tokens.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The file with the first credentials.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// A token of the server's own.
    #[error("the token `{name}` cannot be made")]
    TokenNotMade {
        /// What it is called.
        name: String,
    },
    /// The state folder's disk is full.
    #[error(
        "there is no room left on the disk of {} ({free_bytes} bytes free); everything acknowledged is there. \
         Free some megabytes, then start the daemon again",
        state.display()
    )]
    NoRoom {
        /// The state folder.
        state: std::path::PathBuf,
        /// What is left.
        free_bytes: u64,
        /// What could not be done for it.
        #[source]
        source: Box<DaemonError>,
    },
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

impl DaemonError {
    /// Says that the disk is full when it is: what failed for it may be called anything.
    pub(super) fn with_room_of(self, state: &std::path::Path) -> Self {
        match space::free_bytes(state) {
            Ok(free_bytes) if free_bytes < space::NEXT_TO_NOTHING_BYTES => {
                Self::NoRoom { state: state.to_owned(), free_bytes, source: Box::new(self) }
            }
            _ => self,
        }
    }
}
