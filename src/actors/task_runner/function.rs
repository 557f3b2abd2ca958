//! A Python function on its worker: its call is laid out for the runner in a folder beside the workspace, and what it
//! returned or raised is brought to the server from there.
//!
//! | name in the folder | meaning |
//! |---|---|
//! | `call.json`, `payload`, `item` | the call (`domain::task_run::called`) |
//! | `values/` | large arguments, by digest; never written to |
//! | `returned` or `raised` | the runner's last word |
//! | `outcomes` | of several calls, those that were through when the process ended |
//!
//! The runner itself, of Python's standard library alone, lies in the worker's folder: there Python keeps it compiled,
//! which is half of what a short call costs beside the interpreter's own start.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, statat, unlinkat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::Surroundings;
use super::cache::Taken;
use super::collecting::{RoomPatience, publish, readable_by_task};
use super::folder::{FUNCTION, TaskFolder, write_private};
use super::staging::{Failure, fetch, off_thread, place, reason_of, stopped_early};
use crate::artifacts::{
    RelativePath, give_contents, open_beneath, open_folder, open_folder_beneath, place_reflink,
};
use crate::contract::array::ArrayPlace;
use crate::contract::artifact::Digest;
use crate::contract::end::EndReason;
use crate::contract::function::{MOST_INLINE_BYTES, Returned};
use crate::contract::spec::{Function, InputMode, Serializer};
use crate::domain::task_run::called;
use crate::process::{OUTCOMES_FILE, RAISED_FILE, RETURNED_FILE, has_exception, has_outcome};

/// Where the runner lies in a worker's folder, in one of its own for each build: what runs imports parts of it late, and
/// must find those of its own.
const RUNNER_FOLDER: &str = "runner";
/// The program. It is short, since Python compiles it anew at each start.
const RUN: &str = "run.py";
/// Its package.
const PACKAGE: &str = "_gpulayer_runner";
const FILES: [(&str, &str); 13] = [
    (RUN, include_str!("../../../python/src/gpulayer/_runner/run.py")),
    ("_gpulayer_runner/__init__.py", include_str!("../../../python/src/gpulayer/_runner/__init__.py")),
    ("_gpulayer_runner/faults.py", include_str!("../../../python/src/gpulayer/_runner/faults.py")),
    ("_gpulayer_runner/leaving.py", include_str!("../../../python/src/gpulayer/_runner/leaving.py")),
    ("_gpulayer_runner/main.py", include_str!("../../../python/src/gpulayer/_runner/main.py")),
    ("_gpulayer_runner/modules.py", include_str!("../../../python/src/gpulayer/_runner/modules.py")),
    ("_gpulayer_runner/process.py", include_str!("../../../python/src/gpulayer/_runner/process.py")),
    ("_gpulayer_runner/reading.py", include_str!("../../../python/src/gpulayer/_runner/reading.py")),
    ("_gpulayer_runner/serving.py", include_str!("../../../python/src/gpulayer/_runner/serving.py")),
    ("_gpulayer_runner/several.py", include_str!("../../../python/src/gpulayer/_runner/several.py")),
    ("_gpulayer_runner/stops.py", include_str!("../../../python/src/gpulayer/_runner/stops.py")),
    ("_gpulayer_runner/work.py", include_str!("../../../python/src/gpulayer/_runner/work.py")),
    ("_gpulayer_runner/yielding.py", include_str!("../../../python/src/gpulayer/_runner/yielding.py")),
];
/// The folder of this build's runner: the first digits of the SHA-256 of its files.
static BUILD: LazyLock<String> = LazyLock::new(|| {
    let files = FILES.iter().flat_map(|(name, text)| [*name, "\0", *text, "\0"]);
    let hashed = files.fold(Sha256::new(), |hash, part| hash.chain_update(part));
    hex::encode(&hashed.finalize()[..8])
});
/// Held by whoever puts the runner in place, as several calls at once do where it was tidied away.
static INSTALLING: Mutex<()> = Mutex::new(());
const CALL_FILE: &str = "call.json";
/// The mode of its folders: the task's own user, to whom they are given, is alone with them.
const PRIVATE: u32 = 0o700;

/// The program that calls functions, in this worker's folder.
pub(super) fn runner(worker_folder: &Path) -> PathBuf {
    worker_folder.join(RUNNER_FOLDER).join(&*BUILD).join(RUN)
}

/// Puts it there as this build has it. Any task's user may read it, whatever this process' umask is.
pub(super) fn install_runner(worker_folder: &Path) -> io::Result<()> {
    let _alone = INSTALLING.lock();
    let mut folder = worker_folder.to_owned();
    for name in [RUNNER_FOLDER, &BUILD, PACKAGE] {
        folder.push(name);
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    }
    let folder = worker_folder.join(RUNNER_FOLDER).join(&*BUILD);
    for (name, text) in FILES {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
            continue;
        }
        // A task that starts at this moment finds the one or the other whole.
        let new = path.with_extension("new");
        fs::write(&new, text)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        fs::rename(&new, &path)?;
    }
    Ok(())
}

/// Removes the runners of other builds, which no task needs any more.
pub(super) fn remove_other_runners(worker_folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(worker_folder.join(RUNNER_FOLDER))? {
        let entry = entry?;
        if entry.file_name().to_str() != Some(&BUILD) {
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

/// Makes the folder, and brings what the call names.
pub(super) async fn lay_out(
    around: &Surroundings,
    function: &Function,
    array: Option<&ArrayPlace>,
    folder: &TaskFolder,
    stopped: &mut oneshot::Receiver<()>,
) -> Result<(), Failure> {
    let call = called(function, array);
    let at = folder.function();
    let with_values = call.pieces.iter().any(|(name, _)| name.starts_with("values/"));
    off_thread({
        let (at, worker_folder) = (at.clone(), around.options.folder.clone());
        move || {
            let made = make(&at, &call.file, with_values);
            // It may have been tidied away with other files of that age.
            let folder = worker_folder.join(RUNNER_FOLDER).join(&*BUILD);
            let is_there = || FILES.iter().all(|(name, _)| folder.join(name).exists());
            let made = made.and_then(|()| if is_there() { Ok(()) } else { install_runner(&worker_folder) });
            made.map_err(|error| not_prepared(&error))
        }
    })
    .await?;
    for (name, digest) in call.pieces {
        let shown = format!("the function's `{name}`");
        let scratch = at.join("scratch");
        let artifact = tokio::select! {
            fetched = fetch(around, &shown, digest, &scratch) => fetched?,
            _ = &mut *stopped => return Err(stopped_early()),
        };
        // The item of an array is nobody else's.
        let is_shared = around.options.task_user.is_none() && name != "item";
        let artifact = match is_shared {
            false => Some(artifact),
            true => tokio::select! {
                left = share(around, &at, &name, digest, artifact) => left?,
                _ = &mut *stopped => return Err(stopped_early()),
            },
        };
        if let Some(artifact) = artifact {
            let at = at.clone();
            off_thread(move || place(&shown, &name, InputMode::Ro, false, &artifact, open_folder(&at)))
                .await?;
        }
    }
    let Some(user) = around.options.task_user.as_ref().map(|user| (user.ids.uid, user.ids.gid)) else {
        return Ok(());
    };
    off_thread(move || give_away(&at, user).map_err(|error| not_prepared(&error))).await
}

fn make(at: &Path, call: &str, with_values: bool) -> io::Result<()> {
    let make = |path: &Path| fs::DirBuilder::new().mode(PRIVATE).create(path);
    make(at)?;
    if with_values {
        make(&at.join("values"))?;
    }
    write_private(&at.join(CALL_FILE), call.as_bytes())
}

/// Gives the call one that many calls may read, without a copy for each: a reflink, else a second name of the file in
/// the worker's cache. Never one of the server's own file: its mode keeps neither root nor its owner from writing, and
/// the server does not look at its bytes again. Gives back what is to be copied.
async fn share(
    around: &Surroundings,
    at: &Path,
    name: &str,
    digest: Digest,
    artifact: Taken,
) -> Result<Option<Taken>, Failure> {
    let (to, path) = (at.to_owned(), RelativePath::new(name).ok());
    let reflinked = tokio::task::spawn_blocking(move || {
        let folder = open_folder(&to);
        let shares = folder.ok().zip(path).is_some_and(|(folder, path)| {
            place_reflink(&artifact.file, folder.as_fd(), &path).unwrap_or(false)
        });
        (!shares).then_some(artifact)
    });
    let reflinked = reflinked.await;
    let left = reflinked.map_err(|gone| Failure { reason: EndReason::Internal, detail: gone.to_string() })?;
    let Some(artifact) = left else { return Ok(None) };
    let artifact = if around.options.channel.artifacts_are_near() {
        match around.options.room.cache().take_copy(digest, &artifact.file).await {
            Ok(copy) => copy,
            Err(error) => {
                tracing::debug!(%digest, error = &error as &dyn std::error::Error, "calls share no copy of it");
                return Ok(Some(artifact));
            }
        }
    } else {
        artifact
    };
    let linked = open_folder(at).is_ok_and(|folder| link(&artifact, folder.as_fd(), name));
    Ok((!linked).then_some(artifact))
}

/// A second name of a file of the cache; whether it could be made.
fn link(artifact: &Taken, folder: BorrowedFd<'_>, name: &str) -> bool {
    let opened = PathBuf::from(format!("/proc/self/fd/{}", artifact.file.as_raw_fd()));
    rustix::fs::linkat(rustix::fs::CWD, &opened, folder, name, AtFlags::SYMLINK_FOLLOW).is_ok()
}

fn give_away(at: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    give_contents(open_folder(at)?.as_fd(), uid, gid)?;
    std::os::unix::fs::lchown(at, Some(uid), Some(gid))
}

fn not_prepared(error: &io::Error) -> Failure {
    Failure { reason: reason_of(error), detail: format!("the function's folder cannot be made: {error}") }
}

/// Removes the folder of a call that left no more than every call leaves; fails on any other.
pub(super) fn remove_small(task: BorrowedFd<'_>) -> io::Result<()> {
    let path = RelativePath::new(FUNCTION).map_err(io::Error::other)?;
    let folder = open_folder_beneath(task, &path)?;
    for name in [CALL_FILE, RETURNED_FILE, RAISED_FILE, OUTCOMES_FILE] {
        let large = |size: u64| size > MOST_INLINE_BYTES as u64;
        match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            // To free its blocks may take long.
            Ok(found) if name != CALL_FILE && large(found.st_size.unsigned_abs()) => {
                return Err(ErrorKind::FileTooLarge.into());
            }
            Ok(_) => unlinkat(&folder, name, AtFlags::empty())?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(unlinkat(task, FUNCTION, AtFlags::REMOVEDIR)?)
}

/// Brings what the function returned or raised to the server, or what came of several calls before the process ended;
/// `None` when there is nothing of it. Its text is in line when it is short. `cleaned`: the task's secrets, if it has any,
/// are no longer in what was raised.
pub(super) async fn bring_back(
    around: &Surroundings,
    function: &Function,
    folder: &TaskFolder,
    cleaned: bool,
) -> Result<Option<Returned>, String> {
    for name in [RETURNED_FILE, RAISED_FILE, OUTCOMES_FILE] {
        let (raised, partial) = (name == RAISED_FILE, name == OUTCOMES_FILE);
        let path = format!("{FUNCTION}/{name}");
        let open = || {
            let file = RelativePath::new(&path).map_err(io::Error::other);
            open_beneath(folder.open()?.as_fd(), &file?).and_then(|file| readable_by_task(around, file))
        };
        let mut file = match open() {
            Ok(file) => file,
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    || error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) =>
            {
                continue;
            }
            Err(error) => return Err(format!("`{name}` cannot be opened: {error}")),
        };
        let unreadable = |error: io::Error| format!("`{name}` cannot be read: {error}");
        if partial && !has_outcome(&file).map_err(unreadable)? {
            continue;
        }
        if !cleaned && (raised || one_raised(&file).await.map_err(unreadable)?) {
            return Err("its shim is lost, which takes the secrets out of it".to_owned());
        }
        let size_bytes = file.metadata().map_err(|error| error.to_string())?.len();
        let returned = |text, artifact| Returned {
            serializer: function.serializer,
            raised,
            partial,
            text,
            artifact,
            size_bytes,
        };
        if size_bytes > MOST_INLINE_BYTES as u64 {
            let sent = publish(around, path.as_ref(), open, &RoomPatience::default()).await?;
            return Ok(Some(returned(None, Some(sent.digest))));
        }
        let is_json = raised || function.serializer == Serializer::Json;
        let text = read_text(&mut file, is_json).map_err(unreadable)?;
        return Ok(Some(returned(Some(text), None)));
    }
    Ok(None)
}

/// Whether one of several calls did.
async fn one_raised(file: &File) -> io::Result<bool> {
    let file = file.try_clone()?;
    tokio::task::spawn_blocking(move || has_exception(&file)).await?
}

fn read_text(file: &mut File, is_json: bool) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(MOST_INLINE_BYTES as u64).read_to_end(&mut bytes)?;
    if !is_json {
        return Ok(STANDARD.encode(bytes));
    }
    // What is not JSON would not be shown at all.
    serde_json::from_slice::<serde::de::IgnoredAny>(&bytes)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runner_is_everybodys_to_read_and_each_builds_own() {
        let worker = tempfile::tempdir().unwrap();
        let others = worker.path().join(RUNNER_FOLDER);
        fs::create_dir_all(others.join("0123456789abcdef")).unwrap();
        fs::write(others.join(RUN), "of a build that had no folders").unwrap();
        let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let installed = install_runner(worker.path());
        rustix::process::umask(umask);
        installed.unwrap();
        let run = runner(worker.path());
        for path in [run.as_path(), run.parent().unwrap(), &run.with_file_name(PACKAGE), &others] {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o044, 0o044, "{}: {mode:o}", path.display());
        }
        remove_other_runners(worker.path()).unwrap();
        let left: Vec<_> = fs::read_dir(&others).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [run.parent().unwrap()]);
        install_runner(worker.path()).unwrap();
        assert_eq!(fs::read_to_string(&run).unwrap(), FILES[0].1);
    }
}
