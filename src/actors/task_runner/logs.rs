//! Sends one batch of a task's log from its spool, and says what of it is lost.

use std::time::Duration;

use super::Surroundings;
use super::pause::Pause;
use super::running::said;
use crate::client::worker_channel::ChannelError;
use crate::clock;
use crate::contract::log::{LogRecord, Stream};
use crate::contract::protocol::{Assignment, LogsRequest};
use crate::domain::log_budget::counted_lines;
use crate::domain::task_run::{Event, LogEnd};
use crate::process::{ProcessError, SpoolBatch, SpoolReader};

/// Enough for good compression, small enough to stay smooth.
const BATCH_RECORDS: usize = 1000;
const BATCH_BYTES: usize = 256 << 10;
/// Between two looks through a spool in which nothing can be read.
const STALL: Duration = Duration::from_secs(1);

/// What is to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Number of the first record.
    pub(super) first_n: u64,
    /// Number of the last that should be there.
    pub(super) through_n: u64,
    /// The log's end, once its program is over.
    pub(super) end: Option<LogEnd>,
}

/// Sends records from `first_n` on until they are acknowledged. What cannot be read is looked for; what is not there
/// when the program is over, or lies before what is, is lost, and the log says so in its place.
pub(super) async fn upload(
    around: &Surroundings,
    assignment: &Assignment,
    mut spool: SpoolReader,
    wanted: Wanted,
) -> (SpoolReader, Event) {
    let first_n = wanted.first_n;
    if let Some(LogEnd { lost_records: 1.., .. }) = wanted.end.filter(|end| first_n > end.last_n) {
        let lost = wanted.end.map_or(0, |end| end.lost_records);
        let text = format!("{} missing here: they could not be written on the worker", counted_lines(lost));
        let event = send(around, assignment, None, SpoolBatch { first_n, records: vec![mark(text)] }).await;
        return (spool, event);
    }
    let why = match read(&mut spool, first_n) {
        Ok(batch) if !batch.records.is_empty() => {
            return (spool, send(around, assignment, None, batch).await);
        }
        Ok(_) => "the worker's copy of the log was damaged".to_owned(),
        Err(error) => said(&error),
    };
    // After a restart the server may have them already.
    let asked = send(around, assignment, None, SpoolBatch { first_n, records: Vec::new() }).await;
    if asked != (Event::LogsAcknowledged { next_n: first_n }) {
        return (spool, asked);
    }
    let (mut spool, found) = recover(spool, assignment, first_n).await;
    if !found && wanted.end.is_none() {
        tokio::time::sleep(STALL).await;
        return (spool, Event::LogsStalled);
    }
    let event = send_behind(around, assignment, &mut spool, found, wanted, why).await;
    (spool, event)
}

/// Looks through the spool, which may be long, off this thread. `false` = there is nothing.
async fn recover(mut spool: SpoolReader, assignment: &Assignment, first_n: u64) -> (SpoolReader, bool) {
    let task_id = assignment.task_id;
    let looked = tokio::task::spawn_blocking(move || {
        let found = spool.recover(first_n);
        (spool, found)
    });
    match looked.await {
        Ok((spool, found)) => {
            let found = found.unwrap_or_else(|error| {
                tracing::warn!(%task_id, error = &error as &dyn std::error::Error, "a spool cannot be read");
                false
            });
            (spool, found)
        }
        // Never so: nothing cancels it and a panic aborts. What is read from nowhere is lost, and said to be.
        Err(error) => {
            tracing::error!(%task_id, %error, "the look through a spool was cut short");
            (SpoolReader::open(std::path::Path::new("")), false)
        }
    }
}

/// Sends what was found, with a mark for what lies before it; or the mark alone.
async fn send_behind(
    around: &Surroundings,
    assignment: &Assignment,
    spool: &mut SpoolReader,
    found: bool,
    wanted: Wanted,
    why: String,
) -> Event {
    let first_n = wanted.first_n;
    let batch = if found { spool.read(BATCH_RECORDS, BATCH_BYTES).ok() } else { None };
    let batch = batch.filter(|batch| !batch.records.is_empty());
    let last_n = match &batch {
        Some(batch) if batch.first_n == first_n => {
            return send(around, assignment, None, batch.clone()).await;
        }
        Some(batch) => batch.first_n - 1,
        None => wanted.end.map_or(wanted.through_n, |end| end.last_n),
    };
    let task_id = assignment.task_id;
    tracing::error!(%task_id, first_n, last_n, why, "lines of a log are lost");
    let lines = counted_lines(last_n.saturating_sub(first_n).saturating_add(1));
    let mut records = vec![mark(format!("{lines} lost here: {why}"))];
    records.extend(batch.into_iter().flat_map(|batch| batch.records));
    match send(around, assignment, Some(first_n), SpoolBatch { first_n: last_n, records }).await {
        Event::LogsAcknowledged { next_n } if next_n > last_n => {
            Event::LogsLost { first_n, last_n, why, next_n }
        }
        Event::LogsAcknowledged { .. } => {
            Event::LogsRejected { first_n, why: format!("{why}, and the server takes no log with a gap") }
        }
        unheard => unheard,
    }
}

fn mark(text: String) -> LogRecord {
    LogRecord { time: clock::now(), stream: Stream::System, text }
}

/// In steps of at most 256 KiB from the page cache: less than a hop to another thread and back would cost.
fn read(spool: &mut SpoolReader, first_n: u64) -> Result<SpoolBatch, ProcessError> {
    if spool.next_n() != first_n {
        spool.seek_after(first_n - 1)?;
    }
    // What is not where it should be has no number.
    if spool.next_n() != first_n {
        return Ok(SpoolBatch { first_n, records: Vec::new() });
    }
    spool.read(BATCH_RECORDS, BATCH_BYTES)
}

async fn send(
    around: &Surroundings,
    assignment: &Assignment,
    missing_from_n: Option<u64>,
    batch: SpoolBatch,
) -> Event {
    let Assignment { task_id, job_id, epoch, .. } = *assignment;
    let SpoolBatch { first_n, records } = batch;
    let mut request = LogsRequest { epoch, first_n, missing_from_n, records };
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
                let first_n = missing_from_n.unwrap_or(first_n);
                return Event::LogsRejected { first_n, why: said(&error) };
            }
        }
        pause.wait().await;
    }
}
