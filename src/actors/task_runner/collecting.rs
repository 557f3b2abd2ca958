//! Brings a finished task's outputs to the server and names what else it left.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{self, FutureExt, Shared};
use futures_util::stream::{self, StreamExt};
use tokio::sync::oneshot;

use super::Surroundings;
use super::checkpoint;
use super::folder::{TaskFolder, real_folder};
use super::function;
use super::hidden_names::hide_secrets;
use super::pause::Pause;
use super::progress::Progress;
use super::running::said;
use super::yielded::{self, Yields};
use crate::artifacts::{self, Collected, CollectedContent, CollectedFile};
use crate::client::worker_channel::{ChannelError, Published};
use crate::contract::artifact::{Digest, UndeclaredFile};
use crate::contract::gpu::GpuStanding;
use crate::contract::problem::Warning;
use crate::contract::protocol::Assignment;
use crate::contract::spec::JobSpec;
use crate::domain::task_run::{Collection, Event, UncollectedOutput, WholeLog};
use crate::process::{self, ExitRecord};

/// How long a server that has no room for an output is asked again.
const ROOM_PATIENCE: Duration = Duration::from_secs(60);

/// Files sent at the same time.
const AT_ONCE: usize = 8;
const STOPPED: &str = "the task was ordered to stop at once before it was brought";

/// Done when nothing more is to be brought.
type Stopped = Shared<oneshot::Receiver<()>>;

/// What is looked for beside the files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Where the whole log is.
    pub(super) whole_log: WholeLog,
    /// Whether the checkpoint is kept.
    pub(super) with_checkpoint: bool,
    /// Whether what may take long is left where it is: the checkpoint, and a long result.
    pub(super) in_a_hurry: bool,
}

/// Whether there is nothing to look for.
pub(super) fn nothing_to_collect(spec: &JobSpec, folder: &TaskFolder) -> bool {
    let function = spec.workload.function().is_some();
    let absent = |path| std::fs::symlink_metadata(path).is_err();
    let silent = absent(folder.progress_file()) && absent(folder.checkpoint());
    silent
        && !function
        && spec.outputs.is_empty()
        && (real_folder(spec).is_some() || folder.workspace_is_empty())
}

/// Looks for what the task left, and publishes what its outputs declare. What cannot be brought stays in the kept
/// workspace, and is named. Brings no more once `stopped`'s other end is dropped.
pub(super) async fn collect(
    around: Arc<Surroundings>,
    assignment: Assignment,
    folder: TaskFolder,
    wanted: Wanted,
    stopped: oneshot::Receiver<()>,
) -> Event {
    let stopped = stopped.shared();
    let hurried = {
        let stopped = stopped.clone();
        async move {
            if !wanted.in_a_hurry {
                let _ = stopped.await;
            }
        }
    };
    let hurried = hurried.boxed_local().shared();
    let left = around.options.gpus.take_back(assignment.task_id);
    let mut yielded = Ok(());
    let brought = async {
        yielded = yielded::rest(&around, Yields::of(&assignment, &folder), hurried.clone()).await;
        let log = keep_log(&around, &folder, wanted.whole_log).await;
        (log, collect_files(&around, &assignment, &folder, &stopped).await)
    };
    let ((log, mut collection), left) = future::join(brought, left).await;
    let word = Progress::of(&around, &assignment.spec, &folder).news().await.unwrap_or_default();
    collection.progress = word.progress;
    if wanted.with_checkpoint && folder.wants_checkpoint(word.checkpoint) {
        let kept = tokio::select! {
            biased;
            () = hurried.clone(), if folder.has_checkpoint() => Err(STOPPED.to_owned()),
            kept = checkpoint::keep(&around, &assignment.spec, &folder) => kept,
        };
        match kept {
            Ok(kept) => {
                let details = kept.left_out.into_iter().map(|what| format!("not in the checkpoint: {what}"));
                collection.warnings.extend(details.map(Warning::of_job));
                collection.checkpoint = kept.checkpoint;
            }
            Err(why) => {
                let detail = format!("the checkpoint could not be kept: {why}");
                collection.warnings.push(Warning::of_job(detail));
            }
        }
    }
    if let Err(why) = yielded {
        let detail = format!("what the function yielded last could not be brought back: {why}");
        collection.warnings.push(Warning::of_job(detail));
    }
    if let Some(called) = assignment.spec.workload.function() {
        let with_secrets = !assignment.spec.secrets.is_empty();
        let cleaned = !with_secrets || matches!(ExitRecord::read(folder.path()), Ok(Some(_)));
        // A short one comes without waiting.
        let returned = tokio::select! {
            biased;
            returned = function::bring_back(&around, called, &folder, cleaned) => returned,
            () = hurried => Err(STOPPED.to_owned()),
        };
        match returned {
            Ok(returned) => collection.result = returned,
            Err(why) => {
                let detail = format!("what the function returned or raised could not be brought back: {why}");
                collection.warnings.push(Warning::of_job(detail));
            }
        }
    }
    collection.warnings.extend(left.iter().map(|(uuid, standing)| left_on_gpu(uuid, standing)));
    match log {
        Ok(digest) => collection.log_artifact = digest,
        Err(why) => {
            let detail = format!("the whole log could not be kept: {why}");
            collection.warnings.push(Warning::of_job(detail));
        }
    }
    Event::Collected(collection)
}

/// The task has ended; whoever it started elsewhere has not.
fn left_on_gpu(uuid: &str, standing: &GpuStanding) -> Warning {
    let detail = match standing {
        GpuStanding::Wedged { pids } => {
            format!(
                "its memory on GPU {uuid} is still held by {pids:?}; the GPU is kept back until they are gone"
            )
        }
        _ => format!(
            "whether its memory on GPU {uuid} is free cannot be seen; the GPU is kept back until then"
        ),
    };
    Warning::of_job(detail)
}

/// Puts the whole log together and publishes it, when the stored lines say less.
async fn keep_log(
    around: &Surroundings,
    folder: &TaskFolder,
    whole_log: WholeLog,
) -> Result<Option<Digest>, String> {
    if whole_log == WholeLog::InLines {
        return Ok(None);
    }
    let task_folder = folder.path().to_owned();
    let path = task_folder.join(process::WHOLE_LOG_FILE);
    let written =
        tokio::task::spawn_blocking(move || process::write_whole_log(&task_folder, whole_log)).await;
    let Some(_) = written.map_err(|gone| gone.to_string())?.map_err(|error| said(&error))? else {
        return Ok(None);
    };
    let published = publish(around, &path, || File::open(&path), &RoomPatience::default()).await;
    published.map(|published| Some(published.digest))
}

async fn collect_files(
    around: &Surroundings,
    assignment: &Assignment,
    folder: &TaskFolder,
    stopped: &Stopped,
) -> Collection {
    if nothing_to_collect(&assignment.spec, folder) {
        return Collection::default();
    }
    let (spec, looked_in) = (Arc::clone(&assignment.spec), folder.clone());
    let looked = tokio::task::spawn_blocking(move || look(&spec, &looked_in)).await;
    let looked = looked.unwrap_or_else(|gone| Err(gone.to_string()));
    let collection = match looked {
        Ok((collected, root)) => publish_all(around, &assignment.spec, collected, &root, stopped).await,
        Err(why) => nothing(&assignment.spec, &why),
    };
    hide_secrets(around, &assignment.spec, collection).await
}

fn look(spec: &JobSpec, folder: &TaskFolder) -> Result<(Collected, OwnedFd), String> {
    let root = folder.open_root(spec).map_err(|error| format!("the workspace cannot be opened: {error}"))?;
    let collected = if real_folder(spec).is_some() {
        let collected = artifacts::collect_in_real_folder(root.as_fd(), &spec.outputs);
        // What lies in a person's own folder is theirs, and stays.
        collected.map(|collected| Collected { undeclared: Vec::new(), ..collected })
    } else {
        artifacts::collect(root.as_fd(), &spec.outputs, &folder.before())
    };
    Ok((collected.map_err(|error| said(&error))?, root))
}

/// The program removed its workspace, put something else in its place, or made it unreadable. What it left stays on the
/// worker for a while: it may be what somebody wants, under another name.
fn nothing(spec: &JobSpec, why: &str) -> Collection {
    let required = spec.outputs.iter().filter(|output| !output.optional);
    let uncollected = required
        .map(|output| UncollectedOutput { name: output.shown_name().to_owned(), why: why.to_owned() })
        .collect();
    let detail = format!("no file of this task was collected: {why}");
    let warnings = vec![Warning { pointer: "/outputs".to_owned(), detail }];
    Collection { uncollected, warnings, set_aside: true, ..Collection::default() }
}

async fn publish_all(
    around: &Surroundings,
    spec: &JobSpec,
    collected: Collected,
    root: &OwnedFd,
    stopped: &Stopped,
) -> Collection {
    let mut collection = Collection {
        undeclared: collected.undeclared,
        warnings: collected.warnings,
        ..Collection::default()
    };
    for name in collected.missing {
        let output = spec.outputs.iter().find(|output| output.shown_name() == name);
        let why = output.map_or_else(String::new, |output| format!("nothing matches `{}`", output.path));
        collection.uncollected.push(UncollectedOutput { name, why });
    }
    let published = publish_files(around, &collected.files, root, stopped).await;
    for file in collected.files {
        if file.content != CollectedContent::Regular {
            collection.outputs.push(file.listed(None));
            continue;
        }
        match published.get(&file.path) {
            Some(Ok(done)) => collection.outputs.push(file.listed(Some((done.digest, done.size_bytes)))),
            Some(Err(why)) => left_behind(&mut collection, spec, file, why),
            None => left_behind(&mut collection, spec, file, STOPPED),
        }
    }
    collection
}

/// Publishes every file once, several at a time: what takes long is the wait for the server's disk. What is not in the
/// answer was not brought before `stopped`.
async fn publish_files(
    around: &Surroundings,
    files: &[CollectedFile],
    root: &OwnedFd,
    stopped: &Stopped,
) -> HashMap<String, Result<Published, String>> {
    let room = RoomPatience::default();
    let regular = files.iter().filter(|file| file.content == CollectedContent::Regular);
    let unique: HashMap<&str, &CollectedFile> = regular.map(|file| (file.path.as_str(), file)).collect();
    let mut on_their_way = stream::iter(unique.into_values())
        .map(async |file| {
            let open = || file.open(root.as_fd()).and_then(|open| readable_by_task(around, open));
            let sent = publish(around, file.path.as_ref(), open, &room).await;
            (file.path.clone(), sent)
        })
        .buffer_unordered(AT_ONCE);
    let mut published = HashMap::new();
    loop {
        tokio::select! {
            done = on_their_way.next() => match done {
                Some((path, done)) => drop(published.insert(path, done)),
                None => return published,
            },
            _ = stopped.clone() => return published,
        }
    }
}

/// A worker that runs tasks as another user may read more than they do: what the task itself may not read, such as
/// another user's file behind a hard link, is not its output.
pub(super) fn readable_by_task(around: &Surroundings, file: File) -> io::Result<File> {
    let Some(user) = &around.options.task_user else { return Ok(file) };
    let found = file.metadata()?;
    let of_its_group = user.ids.gid == found.gid() || user.ids.groups.contains(&found.gid());
    let may_read = found.uid() == user.ids.uid
        || found.mode() & 0o004 != 0
        || (of_its_group && found.mode() & 0o040 != 0);
    if may_read {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it belongs to a user whose files the task cannot read",
    ))
}

/// How long a server without room is asked: together, not once more for every file.
#[derive(Default)]
pub(super) struct RoomPatience {
    refused_since: Cell<Option<Instant>>,
}

impl RoomPatience {
    fn served(&self) {
        self.refused_since.set(None);
    }

    /// Whether it has refused for long enough.
    fn refused(&self) -> bool {
        let since = self.refused_since.get().unwrap_or_else(Instant::now);
        self.refused_since.set(Some(since));
        since.elapsed() > ROOM_PATIENCE
    }
}

/// It stays in the workspace, which is kept for it.
fn left_behind(collection: &mut Collection, spec: &JobSpec, file: CollectedFile, why: &str) {
    let optional = spec.outputs.iter().any(|output| output.optional && output.shown_name() == file.name);
    let detail = format!("`{}` could not be brought back: {why}", file.path);
    collection.warnings.push(Warning::of_job(detail));
    if !optional {
        collection
            .uncollected
            .push(UncollectedOutput { name: file.name, why: format!("{}: {why}", file.path) });
    }
    if collection.undeclared.iter().all(|left| left.path != file.path) {
        collection.undeclared.push(UndeclaredFile { path: file.path, size_bytes: file.size_bytes });
    }
}

/// Until the server has it. A server that cannot be reached is waited for; one without room for it only so long.
pub(super) async fn publish<E: std::fmt::Display>(
    around: &Surroundings,
    shown: &Path,
    open: impl Fn() -> Result<File, E>,
    room: &RoomPatience,
) -> Result<Published, String> {
    let mut pause = Pause::new();
    loop {
        let file = open().map_err(|error| format!("it cannot be read: {error}"))?;
        match around.options.channel.publish(file, shown).await {
            Ok(published) => {
                room.served();
                return Ok(published);
            }
            Err(ChannelError::Refused(problem)) if problem.retryable => {
                if room.refused() {
                    return Err(problem.detail);
                }
            }
            Err(error) if error.may_repeat() => room.served(),
            Err(error) => return Err(said(&error)),
        }
        pause.wait().await;
    }
}
