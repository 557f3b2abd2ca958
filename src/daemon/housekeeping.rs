//! What has to be tidied now and then and hurries nobody: uploads that were begun and never finished, and memory that
//! a burst left behind.

use std::time::Duration;

use tracing::{debug, info, warn};

use crate::artifacts::ArtifactStore;
use crate::process;

const UPLOADS_EVERY: Duration = Duration::from_secs(3600);
const MEMORY_EVERY: Duration = Duration::from_secs(1);

/// Starts tidying, until the system ends; the first time at once.
pub(super) fn start(artifacts: ArtifactStore) {
    actix_rt::spawn(async move {
        let mut interval = tokio::time::interval(UPLOADS_EVERY);
        loop {
            interval.tick().await;
            sweep_uploads(artifacts.clone()).await;
        }
    });
    actix_rt::spawn(async {
        let mut interval = tokio::time::interval(MEMORY_EVERY);
        loop {
            interval.tick().await;
            // Off this thread, on which every job step is decided.
            if let Ok(true) = tokio::task::spawn_blocking(process::give_back_free_memory).await {
                debug!("gave free memory back");
            }
        }
    });
}

async fn sweep_uploads(artifacts: ArtifactStore) {
    match tokio::task::spawn_blocking(move || artifacts.sweep_partials()).await {
        Ok(Ok(0)) | Err(_) => {}
        Ok(Ok(removed)) => info!(removed, "unfinished uploads older than a day are gone"),
        Ok(Err(error)) => {
            warn!(error = &error as &dyn std::error::Error, "unfinished uploads cannot be looked at");
        }
    }
}
