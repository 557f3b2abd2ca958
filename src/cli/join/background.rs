//! A worker in the background (`join --detach`): a process of its own with a log in the worker's folder.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::JoinError;
use crate::cli::on_demand::last_lines;
use crate::cli::shown::quoted;
use crate::config::background_variables;
use crate::config::readiness::{self, Announced};
use crate::process::detached;
use crate::worker::{WorkerError, holder};

/// What the worker says, in its folder.
const LOG: &str = "worker.log";

/// How long what this process started may hold the folder after it let go of it.
const HEIRS_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A child that was being born while this process let go of the folder holds it for some milliseconds more.
fn wait_for_heirs(folder: &Path) -> Result<(), JoinError> {
    let give_up_at = Instant::now() + HEIRS_WITHIN;
    let own = Some(Some(std::process::id()));
    while holder(folder).map_err(WorkerError::from)? == own && Instant::now() < give_up_at {
        // The kernel tells nobody but a waiting thread when a lock is free, and that one could not give up.
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Starts it, and returns when it has joined. The folder holds a session already: no token is passed on.
pub(super) fn start(folder: &Path) -> Result<(), JoinError> {
    wait_for_heirs(folder)?;
    let log = folder.join(LOG);
    let failed = |operation, source| JoinError::File { operation, path: log.clone(), source };
    let mut options = OpenOptions::new();
    let output = options.create(true).append(true).mode(0o600).open(&log);
    let output: File = output.map_err(|source| failed("open", source))?;
    let begin = output.metadata().map_err(|source| failed("read", source))?.len();
    let shown = folder.display().to_string();
    let spawned = readiness::pipe().and_then(|(waiting, telling)| {
        let arguments = ["worker", "start", "--folder", &shown, "--tell-ready"];
        let variables = background_variables(&|name| std::env::var_os(name));
        detached::spawn(Path::new("/proc/self/exe"), &arguments, variables, telling, output)?;
        Ok::<_, io::Error>(waiting)
    });
    let waiting = spawned.map_err(|source| JoinError::Spawn { source })?;
    match readiness::wait(waiting).map_err(|source| failed("wait for", source))? {
        Announced::Ready(_) => Ok(()),
        Announced::Gone => {
            let tail = last_lines(&log, begin);
            Err(JoinError::Ended { log, tail })
        }
    }
}

/// What to type next.
pub(super) fn next_commands(folder: &Path) -> String {
    let shown = quoted(&folder.display().to_string());
    let log = quoted(&folder.join(LOG).display().to_string());
    format!(
        "its log:         tail -f {log}\n\
         stop it:         gpulayer worker stop --folder {shown}\n\
         start it again:  gpulayer worker start --detach --folder {shown}"
    )
}
