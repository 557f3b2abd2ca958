//! Sends one batch of a task's log from its spool.

use super::Surroundings;
use super::pause::Pause;
use super::running::said;
use crate::client::worker_channel::ChannelError;
use crate::clock;
use crate::contract::log::{LogRecord, Stream};
use crate::contract::protocol::{Assignment, LogsRequest};
use crate::domain::log_budget::counted_lines;
use crate::domain::task_run::Event;
use crate::process::{ProcessError, SpoolBatch, SpoolReader};

/// Enough for good compression, small enough to stay smooth.
const BATCH_RECORDS: usize = 1000;
const BATCH_BYTES: usize = 256 << 10;

/// Sends records from `first_n` on until they are acknowledged. A spool that ends before `through_n`, or cannot be read,
/// leaves a gap: the log says so in place of the lines, as its last record.
pub(super) async fn upload(
    around: &Surroundings,
    assignment: &Assignment,
    mut spool: SpoolReader,
    (first_n, through_n): (u64, u64),
) -> (SpoolReader, Event) {
    let task_id = assignment.task_id;
    let why = match read(&mut spool, first_n) {
        Ok(batch) if !batch.records.is_empty() => {
            let event = send(around, assignment, batch, through_n).await;
            return (spool, event);
        }
        Ok(_) => "the worker's spool ends before them".to_owned(),
        Err(error) => said(&error),
    };
    tracing::error!(%task_id, first_n, through_n, why, "the rest of a log is lost");
    let lines = counted_lines(through_n.saturating_sub(first_n).saturating_add(1));
    let text = format!("{lines} lost here: {why}");
    let records = vec![LogRecord { time: clock::now(), stream: Stream::System, text }];
    let event = match send(around, assignment, SpoolBatch { first_n, records }, through_n).await {
        Event::LogsAcknowledged { .. } => Event::LogsLost { first_n, last_n: through_n, why },
        unheard => unheard,
    };
    (spool, event)
}

/// In steps of at most 256 KiB from the page cache: less than a hop to another thread and back would cost.
fn read(spool: &mut SpoolReader, first_n: u64) -> Result<SpoolBatch, ProcessError> {
    if spool.next_n() != first_n {
        spool.seek_after(first_n - 1)?;
    }
    // Numbered by its place: what is not where it should be has no number.
    if spool.next_n() != first_n {
        return Ok(SpoolBatch { first_n, records: Vec::new() });
    }
    spool.read(BATCH_RECORDS, BATCH_BYTES)
}

async fn send(around: &Surroundings, assignment: &Assignment, batch: SpoolBatch, through_n: u64) -> Event {
    let Assignment { task_id, job_id, epoch, .. } = *assignment;
    let first_n = batch.first_n;
    let mut request = LogsRequest { epoch, first_n: batch.first_n, records: batch.records };
    let mut pause = Pause::new();
    loop {
        match around.options.channel.logs(job_id, task_id, request.clone()).await {
            Ok(answer) => return Event::LogsAcknowledged { next_n: answer.next_n },
            Err(ChannelError::TooLarge { .. }) if request.records.len() > 1 => {
                // The answer says how far it came; the rest follows.
                request.records.truncate(request.records.len() / 2);
                continue;
            }
            Err(error) if error.may_repeat() => {}
            Err(ChannelError::SessionOver(end)) => {
                // Nobody may hear it any more when the worker is ending already.
                let _ = around.options.session_over.send(end);
                return Event::LogsRefused;
            }
            Err(error) => {
                tracing::warn!(%task_id, error = &error as &dyn std::error::Error, "the server takes no more of a log");
                return Event::LogsLost { first_n, last_n: through_n, why: said(&error) };
            }
        }
        pause.wait().await;
    }
}
