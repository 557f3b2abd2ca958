//! A program's checkpoint: a folder that its next attempt finds as it was. Kept when the program says that it is whole,
//! and at an end that is no success.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::AsFd;
use std::sync::Arc;

use super::Surroundings;
use super::collecting::{RoomPatience, publish, readable_by_task};
use super::folder::{CHECKPOINT, TaskFolder};
use super::hidden_names::hide_secrets;
use super::running::said;
use super::staging::{Failure, fetch, not_placed, off_thread, reason_of};
use crate::artifacts::{self, Packed, give_contents, unpack_packed};
use crate::contract::artifact::Digest;
use crate::contract::problem::Warning;
use crate::contract::protocol::KeptCheckpoint;
use crate::contract::spec::JobSpec;
use crate::domain::task_run::Collection;

/// Of what cannot be kept no more is named.
const MOST_NAMED: usize = 20;

/// The next attempt's folder as the last checkpoint left it.
pub(super) async fn bring(around: &Surroundings, folder: &TaskFolder, digest: Digest) -> Result<(), Failure> {
    const SHOWN: &str = "the checkpoint";
    let artifact = fetch(around, SHOWN, digest, &folder.tmp().join("input")).await?;
    let (folder, user) =
        (folder.clone(), around.options.task_user.as_ref().map(|user| (user.ids.uid, user.ids.gid)));
    off_thread(move || {
        let failed = |error: io::Error, what| Failure {
            reason: reason_of(&error),
            detail: format!("{SHOWN} {what}: {error}"),
        };
        let tmp = folder.open_tmp().map_err(|error| failed(error, "has no place"))?;
        unpack_packed(&artifact.file, tmp.as_fd()).map_err(|error| not_placed(SHOWN, &error))?;
        let given = user.map_or(Ok(()), |(uid, gid)| give_contents(tmp.as_fd(), uid, gid));
        given.map_err(|error| failed(error, "cannot be given to the task's user"))
    })
    .await
}

/// A checkpoint on the server, and what is not in it.
pub(super) struct Kept {
    /// `None` = there was nothing to keep.
    pub(super) checkpoint: Option<KeptCheckpoint>,
    /// By name and reason.
    pub(super) left_out: Vec<String>,
}

/// Keeps the folder as it is now.
pub(super) async fn keep(
    around: &Arc<Surroundings>,
    spec: &Arc<JobSpec>,
    folder: &TaskFolder,
) -> Result<Kept, String> {
    if !folder.has_checkpoint() {
        return Ok(Kept { checkpoint: None, left_out: Vec::new() });
    }
    let (at, host) = (folder.clone(), Arc::clone(around));
    let packed = tokio::task::spawn_blocking(move || pack(&at, |open| readable_by_task(&host, open))).await;
    let (tar, packed) = packed.map_err(|gone| gone.to_string())?.map_err(|error| said(&error))?;
    let left_out = named(around, spec, packed.left_out).await;
    if packed.entries == 0 {
        return Ok(Kept { checkpoint: None, left_out });
    }
    let again = || tar.try_clone().and_then(|mut file| file.rewind().map(|()| file));
    let sent = publish(around, "the checkpoint".as_ref(), again, &RoomPatience::default()).await?;
    let (artifact, size_bytes) = (sent.digest, sent.size_bytes);
    let checkpoint = Some(KeptCheckpoint { artifact, size_bytes, left_out: left_out.clone() });
    Ok(Kept { checkpoint, left_out })
}

/// As they are shown: without the secrets that names may hold, and not too many.
async fn named(around: &Surroundings, spec: &Arc<JobSpec>, mut left_out: Vec<String>) -> Vec<String> {
    let more = left_out.len().saturating_sub(MOST_NAMED);
    left_out.truncate(MOST_NAMED);
    let warnings = left_out.into_iter().map(Warning::of_job).collect();
    let hidden = hide_secrets(around, spec, Collection { warnings, ..Collection::default() }).await;
    let mut named: Vec<String> = hidden.warnings.into_iter().map(|warning| warning.detail).collect();
    named.extend((more > 0).then(|| format!("{more} more")));
    named
}

/// Into a file without a name: one that is given up in the middle, because its task has ended, may still be written when
/// the next one is packed. `admit` judges each file that was opened.
fn pack(folder: &TaskFolder, admit: impl Fn(File) -> io::Result<File>) -> io::Result<(File, Packed)> {
    let to = folder.nameless_file()?;
    let packed = artifacts::pack(folder.open_tmp()?.as_fd(), CHECKPOINT, admit, &to)?;
    Ok((to, packed))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Read;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::actors::task_runner::folder::assignment;
    use crate::actors::task_runner::spares::Spares;

    fn write(folder: &TaskFolder, text: &str) {
        for name in ["a", "b", "c"] {
            fs::write(folder.checkpoint().join(name), text).unwrap();
        }
    }

    fn read(mut packed: File) -> BTreeMap<String, String> {
        packed.rewind().unwrap();
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(packed).entries().unwrap() {
            let mut entry = entry.unwrap();
            if entry.header().entry_type().is_dir() {
                continue;
            }
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            files.insert(name, text);
        }
        files
    }

    #[test]
    fn one_that_is_given_up_in_the_middle_goes_into_no_other() {
        let tasks = tempfile::tempdir().unwrap();
        let folder = TaskFolder::create(tasks.path(), "boot", &assignment(), &mut Spares::default()).unwrap();
        fs::create_dir(folder.checkpoint()).unwrap();
        write(&folder, "the first");
        let (opens, opened) = channel();
        let (goes_on, go_on) = channel::<()>();
        let given_up = std::thread::spawn({
            let folder = folder.clone();
            move || {
                // It stands still at each file, whose bytes it has not read.
                let held = move |file| {
                    opens.send(()).unwrap();
                    go_on.recv().unwrap();
                    Ok(file)
                };
                pack(&folder, held).unwrap().0
            }
        });
        opened.recv().unwrap();
        goes_on.send(()).unwrap();
        opened.recv().unwrap();
        // Its task ends, and what it left is packed while the other one is in the middle.
        write(&folder, "the second, which is longer");
        let kept = pack(&folder, Ok).unwrap().0;
        goes_on.send(()).unwrap();
        goes_on.send(()).unwrap();
        let given_up = read(given_up.join().unwrap());
        let kept = read(kept);
        assert_eq!(kept.len(), 3);
        assert!(kept.values().all(|text| text == "the second, which is longer"), "{kept:?}");
        let first = given_up.values().filter(|text| *text == "the first").count();
        assert_eq!((given_up.len(), first), (3, 1), "it was in the middle: {given_up:?}");
        // Neither leaves a file behind.
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with("packed-")));
    }
}
