//! What has to be tidied now and then and hurries nobody: uploads that were begun and never finished.

use std::time::Duration;

use tracing::{info, warn};

use crate::artifacts::ArtifactStore;

const EVERY: Duration = Duration::from_secs(3600);

/// Starts tidying, until the system ends; the first time at once.
pub(super) fn start(artifacts: ArtifactStore) {
    actix_rt::spawn(async move {
        let mut interval = tokio::time::interval(EVERY);
        loop {
            interval.tick().await;
            let artifacts = artifacts.clone();
            match tokio::task::spawn_blocking(move || artifacts.sweep_partials()).await {
                Ok(Ok(0)) | Err(_) => {}
                Ok(Ok(removed)) => info!(removed, "unfinished uploads older than a day are gone"),
                Ok(Err(error)) => {
                    warn!(error = &error as &dyn std::error::Error, "unfinished uploads cannot be looked at");
                }
            }
        }
    });
}
