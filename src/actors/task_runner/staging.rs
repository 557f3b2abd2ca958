//! Brings source and inputs into a task's workspace.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::Surroundings;
use super::cache::Taken;
use super::checkpoint;
use super::folder::{TaskFolder, real_folder};
use super::function;
use super::pause::Pause;
use super::running::said;
use crate::artifacts::{RelativePath, Snapshot, UnpackError, give_contents, place_input};
use crate::client::worker_channel::ChannelError;
use crate::contract::artifact::Digest;
use crate::contract::end::EndReason;
use crate::contract::protocol::Assignment;
use crate::contract::spec::{InputMode, InputOrigin, JobSpec};
use crate::domain::task_run::Event;

/// Bytes that something on the way has changed may come whole the next time.
const TRIES_OF_DAMAGED: u32 = 2;

/// One thing to bring.
struct Piece {
    /// What people know it as.
    shown: String,
    artifact: Option<Digest>,
    path: String,
    unpack: bool,
    mode: InputMode,
}

/// Why something could not be brought.
pub(super) struct Failure {
    pub(super) reason: EndReason,
    pub(super) detail: String,
}

/// Brings everything, or says what could not be brought. Ends early, at the next opportunity, when `stopped`'s
/// other end is dropped.
pub(super) async fn stage(
    around: Arc<Surroundings>,
    assignment: Assignment,
    folder: TaskFolder,
    mut stopped: oneshot::Receiver<()>,
) -> Event {
    match bring_all(&around, &assignment, &folder, &mut stopped).await {
        Ok(()) => Event::Staged,
        Err(Failure { reason: EndReason::DiskFull, detail }) => {
            // Makes room for the next task, and lets the worker say at once that there is too little.
            let room = around.options.room.clone();
            let look = move || {
                let described = room.described();
                room.look_again();
                described
            };
            let there = tokio::task::spawn_blocking(look).await.unwrap_or_default();
            Event::StageFailed { reason: EndReason::DiskFull, detail: format!("{detail} ({there})") }
        }
        Err(Failure { reason, detail }) => Event::StageFailed { reason, detail },
    }
}

async fn bring_all(
    around: &Surroundings,
    assignment: &Assignment,
    folder: &TaskFolder,
    stopped: &mut oneshot::Receiver<()>,
) -> Result<(), Failure> {
    let spec = &assignment.spec;
    let scratch = folder.tmp().join("input");
    for piece in pieces(spec) {
        let artifact = tokio::select! {
            fetched = fetch_piece(around, &piece, &scratch) => fetched?,
            _ = &mut *stopped => return Err(stopped_early()),
        };
        let (folder, spec) = (folder.clone(), Arc::clone(spec));
        off_thread(move || {
            let Piece { shown, path, mode, unpack, .. } = &piece;
            place(shown, path, *mode, *unpack, &artifact, folder.open_root(&spec))
        })
        .await?;
        // Only an error or a dropped sender mean anything.
        if !matches!(stopped.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
            return Err(stopped_early());
        }
    }
    if let Some(digest) = assignment.checkpoint {
        tokio::select! {
            brought = checkpoint::bring(around, folder, digest) => brought?,
            _ = &mut *stopped => return Err(stopped_early()),
        }
    }
    if let Some(called) = spec.workload.function() {
        function::lay_out(around, called, assignment.array.as_ref(), folder, stopped).await?;
    }
    if real_folder(spec).is_some() {
        return Ok(());
    }
    let folder = folder.clone();
    let user = around.options.task_user.as_ref().map(|user| (user.ids.uid, user.ids.gid));
    off_thread(move || {
        let listed = folder.open_workspace().and_then(|root| {
            // Before they are listed: a change of owner is a change.
            user.map_or(Ok(()), |(uid, gid)| give_contents(root.as_fd(), uid, gid))?;
            Snapshot::take(root.as_fd())
        });
        listed.and_then(|before| folder.remember(&before)).map_err(|error| Failure {
            reason: reason_of(&error),
            detail: format!("cannot list the workspace: {error}"),
        })
    })
    .await
}

/// The source first: inputs may lie in its folders.
fn pieces(spec: &JobSpec) -> impl Iterator<Item = Piece> {
    let source = spec.source.map(|digest| Piece {
        shown: "the source".to_owned(),
        artifact: Some(digest),
        path: String::new(),
        unpack: true,
        mode: InputMode::Rw,
    });
    let inputs = spec.inputs.iter().map(|input| Piece {
        shown: format!("input `{}`", input.path),
        artifact: match input.origin {
            InputOrigin::Artifact(digest) => Some(digest),
            InputOrigin::From(_) => None,
        },
        path: input.path.clone(),
        unpack: input.unpack,
        mode: input.mode,
    });
    source.into_iter().chain(inputs)
}

async fn fetch_piece(around: &Surroundings, piece: &Piece, scratch: &Path) -> Result<Taken, Failure> {
    match piece.artifact {
        Some(digest) => fetch(around, &piece.shown, digest, scratch).await,
        None => {
            let detail = format!("{}: the output it comes from was not resolved", piece.shown);
            Err(Failure { reason: EndReason::InputUnavailable, detail })
        }
    }
}

/// The bytes: the server's own file where that is on this machine, else the cache's. `shown` is what people know them as.
pub(super) async fn fetch(
    around: &Surroundings,
    shown: &str,
    digest: Digest,
    scratch: &Path,
) -> Result<Taken, Failure> {
    let unavailable = |reason, why: &str| Failure { reason, detail: format!("{shown}: {why}") };
    let channel = &*around.options.channel;
    let mut pause = Pause::new();
    let mut may_make_room = true;
    let mut tries = 0;
    loop {
        let taken = if channel.artifacts_are_near() {
            channel.fetch(digest, scratch).await.map(Taken::uncached)
        } else {
            around.options.room.cache().take(channel, digest).await
        };
        match taken {
            Ok(taken) => return Ok(taken),
            Err(ChannelError::LocalFile { source, .. })
                if may_make_room && reason_of(&source) == EndReason::DiskFull =>
            {
                may_make_room = false;
                let room = around.options.room.clone();
                drop(tokio::task::spawn_blocking(move || room.look_again()).await);
            }
            Err(ChannelError::Damaged { .. }) if tries < TRIES_OF_DAMAGED => {
                tries += 1;
                pause.wait().await;
            }
            Err(error) if error.may_repeat() => pause.wait().await,
            Err(ChannelError::LocalFile { source, path, .. }) => {
                let reason = reason_of(&source);
                return Err(unavailable(reason, &format!("{}: {source}", path.display())));
            }
            Err(error) => return Err(unavailable(EndReason::InputUnavailable, &said(&error))),
        }
    }
}

pub(super) fn place(
    shown: &str,
    path: &str,
    mode: InputMode,
    unpack: bool,
    artifact: &Taken,
    root: io::Result<OwnedFd>,
) -> Result<(), Failure> {
    let failed = |reason, why: String| Failure { reason, detail: format!("{shown}: {why}") };
    let path =
        RelativePath::new(path).map_err(|error| failed(EndReason::PrepareFailed, error.to_string()))?;
    let workspace = root.map_err(|error| failed(EndReason::PrepareFailed, error.to_string()))?;
    place_input(&artifact.file, workspace.as_fd(), &path, mode, unpack)
        .map_err(|error| not_placed(shown, &error))
}

pub(super) fn not_placed(shown: &str, error: &UnpackError) -> Failure {
    let reason = match error {
        UnpackError::StorageFull { .. } => EndReason::DiskFull,
        UnpackError::Io { .. } => EndReason::PrepareFailed,
        _ => EndReason::InputUnavailable,
    };
    Failure { reason, detail: format!("{shown}: {}", said(error)) }
}

pub(super) async fn off_thread(
    work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(gone) => Err(Failure { reason: EndReason::Internal, detail: gone.to_string() }),
    }
}

pub(super) fn reason_of(error: &std::io::Error) -> EndReason {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => EndReason::DiskFull,
        _ => EndReason::PrepareFailed,
    }
}

pub(super) fn stopped_early() -> Failure {
    Failure { reason: EndReason::Cancelled, detail: "stopped while its inputs were brought".to_owned() }
}
