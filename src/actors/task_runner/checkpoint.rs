//! A program's checkpoint: a folder that its next attempt finds as it was. Kept when the program says that it is whole,
//! and at an end that is no success.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::AsFd;
use std::sync::Arc;

use super::Surroundings;
use super::collecting::{RoomPatience, publish, readable_by_task};
use super::folder::{CHECKPOINT, TaskFolder};
use super::running::said;
use super::staging::{Failure, fetch, off_thread, place};
use crate::artifacts::{self, give_contents};
use crate::contract::artifact::Digest;
use crate::contract::protocol::KeptCheckpoint;
use crate::contract::spec::{InputMode, Output};

/// The next attempt's folder as the last checkpoint left it.
pub(super) async fn bring(around: &Surroundings, folder: &TaskFolder, digest: Digest) -> Result<(), Failure> {
    const SHOWN: &str = "the checkpoint";
    let artifact = fetch(around, SHOWN, digest, &folder.tmp().join("input")).await?;
    let (folder, user) =
        (folder.clone(), around.options.task_user.as_ref().map(|user| (user.ids.uid, user.ids.gid)));
    off_thread(move || {
        place(SHOWN, "", InputMode::Rw, true, &artifact, folder.open_tmp())?;
        let given = user.map_or(Ok(()), |(uid, gid)| give_contents(folder.open_tmp()?.as_fd(), uid, gid));
        given.map_err(|error| Failure {
            reason: super::staging::reason_of(&error),
            detail: format!("{SHOWN} cannot be given to the task's user: {error}"),
        })
    })
    .await
}

/// Keeps the folder as it is now; `None` when nothing is in it.
pub(super) async fn keep(
    around: &Arc<Surroundings>,
    folder: &TaskFolder,
) -> Result<Option<KeptCheckpoint>, String> {
    let (at, host) = (folder.clone(), Arc::clone(around));
    let packed = tokio::task::spawn_blocking(move || pack(&host, &at)).await;
    let packed = packed.map_err(|gone| gone.to_string())?.map_err(|error| said(&error))?;
    let Some(packed) = packed else { return Ok(None) };
    let again = || packed.try_clone().and_then(|mut file| file.rewind().map(|()| file));
    let sent = publish(around, "the checkpoint".as_ref(), again, &RoomPatience::default()).await;
    sent.map(|sent| Some(KeptCheckpoint { artifact: sent.digest, size_bytes: sent.size_bytes }))
}

/// Into a file without a name: one that is given up in the middle, because its task has ended, may still be written when
/// the next one is packed.
fn pack(around: &Surroundings, folder: &TaskFolder) -> io::Result<Option<File>> {
    let tmp = folder.open_tmp()?;
    let everything = Output { path: CHECKPOINT.to_owned(), name: None, optional: true };
    let collected =
        artifacts::collect_in_real_folder(tmp.as_fd(), &[everything]).map_err(io::Error::other)?;
    if collected.files.is_empty() {
        return Ok(None);
    }
    let to = folder.nameless_file()?;
    let open = |file: &artifacts::CollectedFile, tmp: std::os::fd::BorrowedFd<'_>| {
        file.open(tmp).and_then(|open| readable_by_task(around, open))
    };
    artifacts::pack(&collected.files, tmp.as_fd(), open, &to)?;
    Ok(Some(to))
}
