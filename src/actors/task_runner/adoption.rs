//! What an earlier start of the worker left: every folder in `tasks/` becomes a task that goes on, or goes away.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use super::RecoverError;
use super::folder::TaskFolder;
use super::lost::{lost_for_now, warn_of_stuck};
use super::running::last_n;
use super::trash::{Trash, tell};
use crate::contract::ids::TaskId;
use crate::contract::protocol::Assignment;
use crate::domain::task_run::{Event, Found};
use crate::process::{self, Adopted, ExitRecord, ProcessError, ShimEvent, ShimPool, TaskProcess};

/// Tries at shims that are there but do not answer; each takes seconds by itself.
const ADOPTION_TRIES: u32 = 3;

/// How long one try to kill what is left may hold up a start; what does not die by then is tried again behind it.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// A task of an earlier start.
pub(super) struct Recovered {
    pub(super) assignment: Assignment,
    pub(super) folder: TaskFolder,
    pub(super) found: Found,
    /// `None` and `Found::Running`: the shim is gone, and what it left does not die.
    pub(super) process: Option<TaskProcess>,
}

/// Looks at every task folder. Afterwards no process of a task is left that is not in the list, save those that do not
/// die; what these belong to is tried again at the next start.
pub(super) async fn recover(
    tasks_folder: &Path,
    boot_id: &str,
    shims: &ShimPool,
    trash: &Trash,
) -> Result<Vec<Recovered>, RecoverError> {
    let unusable = |source| RecoverError::Folder { path: tasks_folder.to_owned(), source };
    let mut living = adopt(shims).await.map_err(RecoverError::Shims)?;
    let (mut recovered, mut strays) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(tasks_folder).map_err(unusable)? {
        let path = entry.map_err(unusable)?.path();
        let Some(task_id) = path.file_name().and_then(|name| name.to_str()?.parse::<TaskId>().ok()) else {
            strays.push(path);
            continue;
        };
        let (folder, file) = TaskFolder::found(path);
        let Some(file) = file.filter(|file| file.boot_id == boot_id && file.assignment.task_id == task_id)
        else {
            let process = living.remove(&task_id).map(|adopted| adopted.process);
            discard(shims, task_id, &folder, process, trash).await;
            continue;
        };
        let adopted = living.remove(&task_id);
        let found = match &adopted {
            Some(Adopted { preparing: true, .. }) => Found::Preparing,
            Some(_) => Found::Running,
            None => look(shims, task_id, &folder).await,
        };
        if found == Found::Unlaunched {
            // A workspace that cannot be emptied, or made again on a full disk, fails the task when it is staged or
            // launched.
            if let Err(error) = folder.empty() {
                tracing::warn!(%task_id, %error, "a workspace cannot be prepared anew");
            }
        }
        let process = adopted.map(|adopted| adopted.process);
        recovered.push(Recovered { assignment: file.assignment, folder, found, process });
    }
    for (task_id, Adopted { process, .. }) in living {
        tracing::warn!(%task_id, "a task without a folder is killed");
        kill(task_id, process).await;
    }
    sweep_orphans(shims).await;
    // Only now: what they belong to was found by its processes, not by its folder.
    for stray in strays {
        tracing::warn!(path = %stray.display(), "what is not called like a task is removed");
        if let Err(error) = trash.throw(&stray) {
            tell(&error);
        }
    }
    Ok(recovered)
}

/// Groups of shims that are gone, and whose task is settled or unknown.
async fn sweep_orphans(shims: &ShimPool) {
    let shims = shims.clone();
    match tokio::task::spawn_blocking(move || shims.sweep_orphans(START_PATIENCE)).await {
        Ok(Ok(0)) => {}
        Ok(Ok(killed)) => tracing::warn!(killed, "processes of no task were killed"),
        Ok(Err(error)) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "what earlier starts left is still there"
            );
        }
        Err(error) => tracing::error!(%error, "the sweep was cut short"),
    }
}

async fn adopt(shims: &ShimPool) -> Result<HashMap<TaskId, Adopted>, ProcessError> {
    let mut tries = 1;
    loop {
        match shims.adopt().await {
            Ok(adopted) => return Ok(adopted.into_iter().map(|task| (task.task_id, task)).collect()),
            Err(error) if tries == ADOPTION_TRIES => return Err(error),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a shim could not be adopted, trying again"
                );
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        tries += 1;
    }
}

/// A task whose shim does not answer: it has ended, or never had one, or lost it.
async fn look(shims: &ShimPool, task_id: TaskId, folder: &TaskFolder) -> Found {
    let ended = matches!(ExitRecord::read(folder.path()), Ok(Some(_)));
    if !ended && !folder.was_launched() && matches!(process::holder(folder.path()), Ok(None)) {
        return Found::Unlaunched;
    }
    match lost_for_now(shims, task_id, folder, START_PATIENCE).await {
        Ok(Event::Ended(facts)) => Found::Ended(facts),
        Ok(Event::ShimLost { last_n, timed_out }) => Found::Lost { last_n, timed_out },
        Ok(_) => Found::Lost { last_n: last_n(folder), timed_out: false },
        Err(_) => Found::Running,
    }
}

/// Nothing is known of the task that could be reported: a half-written file, or another boot of the machine.
async fn discard(
    shims: &ShimPool,
    task_id: TaskId,
    folder: &TaskFolder,
    process: Option<TaskProcess>,
    trash: &Trash,
) {
    tracing::info!(%task_id, "the remains of a task are removed");
    let gone = match process {
        Some(process) => kill(task_id, process).await,
        None => lost_for_now(shims, task_id, folder, START_PATIENCE).await.is_ok(),
    };
    if !gone {
        return;
    }
    if let Err(error) = trash.throw(folder.path()) {
        tell(&error);
    }
}

/// Whether it is gone; what does not die is not waited for.
async fn kill(task_id: TaskId, mut process: TaskProcess) -> bool {
    if let Err(error) = process.stop(true).await {
        tracing::warn!(%task_id, error = &error as &dyn std::error::Error, "a shim does not listen");
    }
    while let Some(event) = process.recv().await {
        if let ShimEvent::Stuck(processes) = event {
            warn_of_stuck(task_id, &processes);
            return false;
        }
    }
    true
}
