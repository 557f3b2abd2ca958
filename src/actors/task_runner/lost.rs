//! Tasks whose shim is gone: what it left is killed, however long that takes, since a task has not ended before its
//! tree is gone.

use std::time::Duration;

use super::folder::TaskFolder;
use super::pause::Pause;
use super::running::last_n;
use super::scene::explained;
use crate::contract::ids::TaskId;
use crate::contract::worker::StuckProcess;
use crate::domain::task_run::Event;
use crate::process::{ExitRecord, ProcessError, ShimPool, look_at_stuck};

/// How long one try to kill what a lost shim left may take; then it is told about.
const SWEEP_PATIENCE: Duration = Duration::from_secs(5);

/// How the task of a lost shim ended: the shim may have written it down; else what it left is killed first. `tell`
/// hears of what does not die, once.
pub(super) async fn lost(
    shims: &ShimPool,
    task_id: TaskId,
    folder: &TaskFolder,
    mut tell: impl FnMut(Event),
) -> Event {
    let mut pause = Pause::new();
    let mut told = false;
    loop {
        match lost_for_now(shims, task_id, folder, SWEEP_PATIENCE).await {
            Ok(event) => return event,
            Err(processes) if !told && !processes.is_empty() => {
                told = true;
                tell(Event::Stuck { processes });
            }
            Err(_) => {}
        }
        pause.wait().await;
    }
}

/// The same with one try of that long. `Err`: who is left, as far as that is known.
pub(super) async fn lost_for_now(
    shims: &ShimPool,
    task_id: TaskId,
    folder: &TaskFolder,
    patience: Duration,
) -> Result<Event, Vec<StuckProcess>> {
    match ExitRecord::read(folder.path()) {
        Ok(Some(record)) => return Ok(Event::Ended(explained(record, folder).await)),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(%task_id, error = &error as &dyn std::error::Error, "an exit record is lost")
        }
    }
    let (shims, path) = (shims.clone(), folder.path().to_owned());
    match tokio::task::spawn_blocking(move || shims.sweep(task_id, &path, patience)).await {
        Ok(Ok(killed)) => {
            tracing::warn!(%task_id, killed, "a shim was lost; what it left was killed");
            Ok(Event::ShimLost { last_n: last_n(folder), timed_out: folder.was_timed_out() })
        }
        Ok(Err(error)) => {
            tracing::error!(%task_id, error = &error as &dyn std::error::Error, "what a lost shim left is still there");
            let ProcessError::Survivors { pids } = error else { return Err(Vec::new()) };
            let left: Vec<StuckProcess> = pids.into_iter().filter_map(look_at_stuck).collect();
            warn_of_stuck(task_id, &left);
            Err(left)
        }
        Err(error) => {
            tracing::error!(%task_id, %error, "the sweep was cut short");
            Err(Vec::new())
        }
    }
}

/// For the worker's log.
pub(super) fn warn_of_stuck(task_id: TaskId, processes: &[StuckProcess]) {
    for process in processes {
        let waits_in = process.waits_in.join(" < ");
        tracing::error!(%task_id, %process, waits_in, "a killed process does not end; what its task holds stays reserved");
    }
}
