//! Sends one batch of a task's log from its spool.

use super::Surroundings;
use super::pause::Pause;
use crate::client::worker_channel::ChannelError;
use crate::contract::protocol::{Assignment, LogsRequest};
use crate::domain::task_run::Event;
use crate::process::{ProcessError, SpoolBatch, SpoolReader};

/// Enough for good compression, small enough to stay smooth.
const BATCH_RECORDS: usize = 1000;
const BATCH_BYTES: usize = 256 << 10;

/// Sends records from `first_n` on until they are acknowledged.
pub(super) async fn upload(
    around: &Surroundings,
    assignment: &Assignment,
    mut spool: SpoolReader,
    first_n: u64,
) -> (SpoolReader, Event) {
    let task_id = assignment.task_id;
    let batch = match read(&mut spool, first_n) {
        Ok(batch) if !batch.records.is_empty() => batch,
        Ok(_) => {
            tracing::error!(%task_id, first_n, "the spool ends before the shim's word on it");
            return (spool, Event::LogsRefused);
        }
        Err(error) => {
            tracing::error!(%task_id, error = &error as &dyn std::error::Error, "the rest of a log is lost");
            return (spool, Event::LogsRefused);
        }
    };
    let event = send(around, assignment, batch).await;
    (spool, event)
}

/// In steps of at most 256 KiB from the page cache: less than a hop to another thread and back would cost.
fn read(spool: &mut SpoolReader, first_n: u64) -> Result<SpoolBatch, ProcessError> {
    if spool.next_n() != first_n {
        spool.seek_after(first_n - 1)?;
    }
    spool.read(BATCH_RECORDS, BATCH_BYTES)
}

async fn send(around: &Surroundings, assignment: &Assignment, batch: SpoolBatch) -> Event {
    let Assignment { task_id, job_id, epoch, .. } = *assignment;
    let request = LogsRequest { epoch, first_n: batch.first_n, records: batch.records };
    let mut pause = Pause::new();
    loop {
        match around.options.channel.logs(job_id, task_id, request.clone()).await {
            Ok(answer) => return Event::LogsAcknowledged { next_n: answer.next_n },
            Err(error) if error.may_repeat() => {}
            Err(ChannelError::SessionOver(end)) => {
                // Nobody may hear it any more when the worker is ending already.
                let _ = around.options.session_over.send(end);
                return Event::LogsRefused;
            }
            Err(error) => {
                tracing::warn!(%task_id, error = &error as &dyn std::error::Error, "the server takes no more of a log");
                return Event::LogsRefused;
            }
        }
        pause.wait().await;
    }
}
