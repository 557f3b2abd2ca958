//! What is looked at when a task did not end well: its last lines, the kernel log, disks without room. Nothing is
//! read for a task that succeeded or was stopped.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::folder::{FUNCTION, TaskFolder};
use super::running::facts;
use crate::artifacts::{RelativePath, open_beneath};
use crate::domain::task_run::{Exit, ExitFacts};
use crate::domain::verdict::{LastLine, Raised, Scene};
use crate::process::{ExitRecord, MOST_RAISED_BYTES, RAISED_FILE, kernel_log, spool_tail};

/// Lines of either stream that are read.
const LAST_LINES: usize = 200;
/// A file system with less than this cannot take what programs write.
const NO_ROOM_BYTES: u64 = 1 << 20;

/// The facts of an end, with all that explains it.
pub(super) async fn explained(record: ExitRecord, folder: &TaskFolder) -> ExitFacts {
    let (started_at, pids, task_id) = (record.started_at, record.pids.clone(), record.task_id);
    let mut facts = facts(record);
    let ran = matches!(facts.exit, Exit::Exited { .. } | Exit::Signalled { .. });
    if facts.exit == (Exit::Exited { code: 0 }) || facts.stop.is_some() || !ran {
        return facts;
    }
    let asks_the_kernel = is_a_kernel_matter(&facts);
    let folder = folder.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let mut scene = look(&folder);
        let speaks_of_gpus =
            scene.lines.iter().any(|line| line.text.contains("CUDA") || line.text.contains("GPU"));
        if asks_the_kernel || speaks_of_gpus {
            scene.kernel = kernel_log(started_at);
        }
        scene
    });
    match looked.await {
        Ok(scene) => {
            facts.scene = Some(Box::new(Scene { pids, group: task_id.to_string(), ..scene }));
        }
        Err(error) => tracing::warn!(%task_id, %error, "what a task left could not be looked at"),
    }
    facts
}

/// A signal, a shell's word for one, or a kill that was counted.
fn is_a_kernel_matter(facts: &ExitFacts) -> bool {
    let signalled = match &facts.exit {
        Exit::Exited { code } => *code > 128,
        _ => true,
    };
    signalled || facts.memory.oom_kills.is_some_and(|kills| kills > 0)
}

fn look(folder: &TaskFolder) -> Scene {
    let records = spool_tail(folder.path(), LAST_LINES).unwrap_or_else(|error| {
        tracing::warn!(error = &error as &dyn std::error::Error, "the last lines of a task cannot be read");
        Vec::new()
    });
    let line = |record: crate::contract::log::LogRecord| LastLine {
        stream: record.stream,
        time: record.time,
        text: record.text,
    };
    let volumes: [(&str, &Path); 3] = [
        ("the worker's disk", folder.path()),
        ("/tmp", Path::new("/tmp")),
        ("/dev/shm", Path::new("/dev/shm")),
    ];
    let full = volumes.iter().filter(|(_, path)| has_no_room(path)).map(|(name, _)| (*name).to_owned());
    let raised = raised(folder).unwrap_or_else(|error| {
        tracing::warn!(%error, "what a function raised cannot be read");
        None
    });
    Scene { lines: records.into_iter().map(line).collect(), full: full.collect(), raised, ..Scene::default() }
}

/// What the function raised, if that was one. Its secrets are gone: that is done before an end is written down.
fn raised(folder: &TaskFolder) -> io::Result<Option<Raised>> {
    let path = RelativePath::new(&format!("{FUNCTION}/{RAISED_FILE}")).map_err(io::Error::other)?;
    let file = match open_beneath(folder.open()?.as_fd(), &path) {
        Ok(file) => file,
        Err(absent) if absent.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    // Of what a function raised the pickle may be long; what is longer than any is told by the log alone.
    // Under another name too it may be a file of somebody else, whom the task cannot read.
    if found.nlink() != 1 || found.len() > MOST_RAISED_BYTES {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MOST_RAISED_BYTES).read_to_end(&mut bytes)?;
    Ok(Raised::read(&bytes))
}

/// What cannot be measured is not called full.
fn has_no_room(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|room| {
        let bytes = room.f_bavail.saturating_mul(room.f_frsize);
        (room.f_blocks > 0 && bytes < NO_ROOM_BYTES) || (room.f_files > 0 && room.f_favail == 0)
    })
}
