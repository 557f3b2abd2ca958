//! Floor 5: the HTTP edge. Checks who calls and what they say, turns it into a message to the front desk or a
//! read of the store, and gives back JSON, a stream or a problem. It decides nothing about jobs.

pub mod body;
mod body_room;
pub mod caller;
pub mod desk;
mod document;
mod documents;
mod edge;
mod failed_logins;
mod files;
mod follow;
mod idempotency;
mod incoming;
mod knowledge;
mod metrics;
mod newcomers;
mod openapi;
mod outlook;
mod query;
mod reading;
mod references;
mod refusal;
mod retry;
pub mod routes;
mod server;
pub mod small_forms;
mod socket_file;
pub mod state;
mod submission;
mod tcp;
mod vain;

use actix_web::web;

pub use desk::Desk;
pub use documents::errors as errors_document;
pub use incoming::Patience;
pub use metrics::Metrics;
pub use newcomers::NewcomerLimits;
pub use openapi::printed as openapi_document;
use refusal::Refusal;
pub use server::{ServeError, ServeOptions, Serving, listen, serve};
pub use state::{EdgeState, KeptWorkspaces, Measured, Ports, TaskOwners};

/// Runs what blocks (disk, a long computation) off the HTTP threads.
async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, Refusal>
where
    T: Send + 'static,
    E: Send + 'static,
    Refusal: From<E>,
{
    Ok(web::block(work).await.map_err(|_| Refusal::stopping())??)
}
