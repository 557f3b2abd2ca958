//! What has to be tidied now and then and hurries nobody: uploads that were begun and never finished, memory that a
//! burst left behind, and after a start the logs of jobs whose purge was cut short.

use std::time::Duration;

use tracing::{debug, info, warn};

use crate::artifacts::ArtifactStore;
use crate::process;
use crate::store::{LogStore, Reads, StoreError};

const UPLOADS_EVERY: Duration = Duration::from_secs(3600);
const MEMORY_EVERY: Duration = Duration::from_secs(1);

/// Starts tidying, until the system ends; the first time at once.
pub(super) fn start(artifacts: ArtifactStore, reads: Reads, logs: LogStore) {
    drop(tokio::task::spawn_blocking(move || match purge_ownerless(&reads, &logs) {
        Ok(0) => {}
        Ok(removed) => info!(removed, "logs are gone whose jobs were purged before an earlier end"),
        Err(error) => {
            warn!(error = &error as &dyn std::error::Error, "logs without a job cannot be looked for")
        }
    }));
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

/// A purge takes the job first and its lines then, in two databases: a daemon that ends in between leaves lines that
/// nobody can ask for.
fn purge_ownerless(reads: &Reads, logs: &LogStore) -> Result<u64, StoreError> {
    let (mut last, mut removed) = (None, 0);
    while let Some(job_id) = logs.next_job(last)? {
        if reads.job_standing(job_id)?.is_none() {
            drop(logs.purge(job_id).blocking_recv());
            removed += 1;
        }
        last = Some(job_id);
    }
    Ok(removed)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ids::{JobId, TaskId};
    use crate::contract::log::{LogRecord, Stream};
    use crate::contract::quantity::Timestamp;
    use crate::store::Store;
    use crate::store::logs::LogQuery;

    #[test]
    fn lines_whose_job_is_gone_go_too() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let logs = store.logs().unwrap();
        let job_id = JobId::from_u128(7);
        let records =
            vec![LogRecord { time: Timestamp::default(), stream: Stream::Stdout, text: "left".to_owned() }];
        logs.append(job_id, TaskId::from_u128(1), 1, records).blocking_recv().unwrap();
        assert_eq!(purge_ownerless(&store.reader(), &logs).unwrap(), 1);
        let query = LogQuery { job_id, after: 0, limit: 10, task_id: None, stream: None };
        assert!(logs.read(&query).unwrap().items.is_empty());
        assert_eq!(purge_ownerless(&store.reader(), &logs).unwrap(), 0);
    }
}
