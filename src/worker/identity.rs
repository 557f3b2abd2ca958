//! Who a worker is across restarts: `identity.json` (0600) in its folder, and the lock that keeps a second worker
//! out of it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::passage::make_folder;
use crate::actors::task_runner::worker_ballast;
use crate::client::worker_channel::Session;
use crate::contract::ids::WorkerId;
use crate::short_file;
use crate::store::lock::{NotTaken, take_from_the_dead};
use crate::store::space::Ballast;

/// A worker's folder, held by this process alone.
#[derive(Debug)]
pub(super) struct WorkerFolder {
    path: PathBuf,
    ballast: Ballast,
    _lock: File,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct IdentityFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker_id: Option<WorkerId>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    session_token: String,
    /// How often a worker was started here.
    #[serde(default)]
    incarnation: u64,
    /// What it is registering under, until there is a session.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    registration: String,
    /// Where the folder lay at its newest start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
    /// The lease that its server keeps, in milliseconds, when it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_ttl_ms: Option<u64>,
}

/// Tells a folder from a copy of it. Device numbers may change with a boot, so it says nothing beyond that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    boot_id: String,
    device: u64,
    inode: u64,
}

impl Place {
    fn of(folder: &Path, boot_id: &str) -> io::Result<Self> {
        let metadata = fs::metadata(folder)?;
        Ok(Self { boot_id: boot_id.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }

    fn is_copy_of(&self, before: &Self) -> bool {
        self.boot_id == before.boot_id && self != before
    }
}

/// What a start of a worker begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Beginning {
    /// Its number.
    pub(super) incarnation: u64,
    /// Of the start before, if there was one.
    pub(super) session: Option<Session>,
    /// The folder is not the one that the start before ran in, on this boot: a copy of it.
    pub(super) moved: bool,
    /// The start before was on another boot, or on another machine.
    pub(super) other_boot: bool,
    /// How long the server may need to be sure that another one is gone.
    pub(super) lease_ttl: Option<Duration>,
}

/// What a server remembers of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownWorker {
    /// Who it is.
    pub worker_id: WorkerId,
    /// Its last start that the server heard of.
    pub incarnation: u64,
}

impl From<KnownWorker> for IdentityFile {
    fn from(known: KnownWorker) -> Self {
        let KnownWorker { worker_id, incarnation } = known;
        Self { worker_id: Some(worker_id), incarnation, ..Self::default() }
    }
}

/// Why a folder cannot be a worker's.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process is a worker there.
    #[error("another worker runs in {}", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// A file in it.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another user's tasks cannot come to their workspaces.
    #[error(
        "user {uid}, whom tasks are to run as, cannot pass through {}; put the worker's folder elsewhere, or let others pass (`chmod o+x`)",
        path.display()
    )]
    Closed {
        /// The first folder on the way that keeps it out.
        path: PathBuf,
        /// Who.
        uid: u32,
    },
    /// The identity is there but cannot be read.
    #[error(
        "{} cannot be understood: put back a good copy of it, or, if the tasks of this worker may be given up, \
         `gpulayer worker revoke` it on the server, remove the file and let the worker register anew",
        path.display()
    )]
    Garbled {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
}

impl WorkerFolder {
    /// Makes the folder (0700) if need be, and holds it until this value goes. `passed_by_others`: tasks run as another
    /// user.
    pub(super) fn open(path: &Path, passed_by_others: bool) -> Result<Self, FolderError> {
        make_folder(path, passed_by_others)?;
        let lock_path = path.join("lock");
        let mut asked = OpenOptions::new();
        let asked = asked.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = asked.open(&lock_path).map_err(failed("open", &lock_path))?;
        match take_from_the_dead(&mut lock) {
            Ok(()) => {
                // For whoever wants to stop it. Without it, on a full disk, the worker works all the same.
                let named = lock
                    .set_len(0)
                    .and_then(|()| lock.rewind())
                    .and_then(|()| (&lock).write_all(std::process::id().to_string().as_bytes()));
                if let Err(error) = named {
                    tracing::debug!(%error, "the lock does not say who holds it");
                }
                Ok(Self { path: path.to_owned(), ballast: worker_ballast(path), _lock: lock })
            }
            Err(NotTaken::Held { .. }) => Err(FolderError::InUse { path: path.to_owned() }),
            Err(NotTaken::Failed(source)) => Err(failed("lock", &lock_path)(source)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Counts this start. `known`: who the server in the same process says this worker was last, in case the file was
    /// lost or is no whole one.
    pub(super) fn begin_incarnation(
        &self,
        boot_id: &str,
        known: Option<KnownWorker>,
    ) -> Result<Beginning, FolderError> {
        let mut identity = self.read_or(known)?;
        identity.incarnation += 1;
        let place = Place::of(&self.path, boot_id).map_err(failed("look at", &self.path))?;
        let moved = identity.place.as_ref().is_some_and(|before| place.is_copy_of(before));
        let other_boot = identity.place.as_ref().is_some_and(|before| before.boot_id != place.boot_id);
        if !moved {
            // A copy stays one until the server has taken it for the worker.
            identity.place = Some(place);
        }
        if let Err(error) = self.write(&identity) {
            // A full disk must not keep a worker from coming back to its running tasks.
            if !self.ballast.release() {
                return Err(error);
            }
            self.write(&identity)?;
        }
        let session =
            identity.worker_id.map(|worker_id| Session { worker_id, token: identity.session_token });
        Ok(Beginning {
            incarnation: identity.incarnation,
            session,
            moved,
            other_boot,
            lease_ttl: identity.lease_ttl_ms.map(Duration::from_millis),
        })
    }

    /// A copy has the tasks of the original in it, whose processes are alive elsewhere: they are none of its business.
    pub(super) fn leave_tasks_to_the_original(&self) -> Result<(), FolderError> {
        for name in ["tasks", "shims"] {
            let path = self.path.join(name);
            present(fs::remove_dir_all(&path)).map_err(failed("empty", &path))?;
        }
        self.forget_groups()
    }

    /// The control groups of another boot are gone, or another machine's.
    pub(super) fn forget_groups(&self) -> Result<(), FolderError> {
        let path = self.path.join(crate::process::GROUPS_FILE);
        present(fs::remove_file(&path)).map_err(failed("remove", &path))
    }

    /// The server took this start for the worker: this is its folder, and these are the times it keeps.
    pub(super) fn accepted(&self, boot_id: &str, lease_ttl: Duration) -> Result<(), FolderError> {
        let before = self.read()?;
        let place = Place::of(&self.path, boot_id).map_err(failed("look at", &self.path))?;
        let lease_ttl_ms = u64::try_from(lease_ttl.as_millis()).ok();
        if before.place.as_ref() != Some(&place) || before.lease_ttl_ms != lease_ttl_ms {
            self.write(&IdentityFile { place: Some(place), lease_ttl_ms, ..before })?;
        }
        Ok(())
    }

    /// Writes down a new session, or that there is none any more.
    pub(super) fn remember(&self, session: Option<&Session>) -> Result<(), FolderError> {
        let before = self.read()?;
        self.write(&IdentityFile {
            worker_id: session.map(|session| session.worker_id),
            session_token: session.map(|session| session.token.clone()).unwrap_or_default(),
            registration: String::new(),
            ..before
        })
    }

    /// What to register under: the same, also after a crash, until the session is written down.
    pub(super) fn registration(&self) -> Result<String, FolderError> {
        let mut identity = self.read()?;
        if identity.registration.is_empty() {
            identity.registration = hex::encode(rand::random::<[u8; 16]>());
            self.write(&identity)?;
        }
        Ok(identity.registration)
    }

    fn read_or(&self, known: Option<KnownWorker>) -> Result<IdentityFile, FolderError> {
        let lost = || !self.identity_path().exists();
        match (self.read(), known) {
            (Ok(identity), Some(known)) if identity.worker_id.is_none() && lost() => Ok(known.into()),
            (Err(error @ FolderError::Garbled { .. }), Some(known)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    worker_id = %known.worker_id,
                    "the daemon's own worker goes on as the one in the daemon's database"
                );
                Ok(known.into())
            }
            (read, _) => read,
        }
    }

    fn identity_path(&self) -> PathBuf {
        self.path.join("identity.json")
    }

    fn read(&self) -> Result<IdentityFile, FolderError> {
        read(self.identity_path())
    }

    /// Whole or not at all, also when the power goes: without its identity a worker could not answer for its tasks.
    fn write(&self, identity: &IdentityFile) -> Result<(), FolderError> {
        let path = self.identity_path();
        let written = serde_json::to_vec(identity).map_err(io::Error::from);
        written.and_then(|text| short_file::replace(&path, &text)).map_err(failed("write", &path))
    }
}

/// Whether a worker of this folder has a session to take up again.
pub fn has_session(folder: &Path) -> Result<bool, FolderError> {
    Ok(read(folder.join("identity.json"))?.worker_id.is_some())
}

/// The process that is a worker in this folder now; `None` = there is none. `Some(None)`: it has not said who it is.
pub fn holder(folder: &Path) -> Result<Option<Option<u32>>, FolderError> {
    let path = folder.join("lock");
    let lock = match File::open(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed("open", &path)(source)),
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let text = fs::read_to_string(&path).map_err(failed("read", &path))?;
            Ok(Some(text.trim().parse().ok()))
        }
        Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
    }
}

fn read(path: PathBuf) -> Result<IdentityFile, FolderError> {
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|source| FolderError::Garbled { path, source }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(IdentityFile::default()),
        Err(source) => Err(failed("read", &path)(source)),
    }
}

/// What is not there need not be removed.
fn present(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

pub(super) fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    move |source| FolderError::File { operation, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn begun(folder: &WorkerFolder) -> (u64, Option<Session>) {
        begun_as(folder, None)
    }

    fn begun_as(folder: &WorkerFolder, known: Option<KnownWorker>) -> (u64, Option<Session>) {
        let beginning = folder.begin_incarnation("boot", known).unwrap();
        (beginning.incarnation, beginning.session)
    }

    #[test]
    fn starts_are_counted_and_the_session_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("worker");
        let session = Session { worker_id: WorkerId::from_u128(5), token: "gls_secret".into() };
        {
            let folder = WorkerFolder::open(&path, false).unwrap();
            assert_eq!(begun(&folder), (1, None));
            let registration = folder.registration().unwrap();
            assert_eq!(begun(&folder), (2, None));
            assert_eq!(folder.registration().unwrap(), registration, "the same until there is a session");
            folder.remember(Some(&session)).unwrap();
            assert!(matches!(WorkerFolder::open(&path, false), Err(FolderError::InUse { .. })));
            assert_eq!(holder(&path).unwrap(), Some(Some(std::process::id())));
        }
        assert_eq!(holder(&path).unwrap(), None);
        assert!(has_session(&path).unwrap() && !has_session(home.path()).unwrap());
        let folder = WorkerFolder::open(&path, false).unwrap();
        assert_eq!(begun(&folder), (3, Some(session)));
        let mode = fs::metadata(folder.identity_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        folder.remember(None).unwrap();
        assert_eq!(begun(&folder), (4, None));
    }

    #[test]
    fn a_copy_is_told_from_the_folder_until_it_is_accepted_and_on_the_same_boot_only() {
        let home = tempfile::tempdir().unwrap();
        let (path, copy) = (home.path().join("worker"), home.path().join("copy"));
        let folder = WorkerFolder::open(&path, false).unwrap();
        assert!(!folder.begin_incarnation("boot", None).unwrap().moved);
        assert!(!folder.begin_incarnation("boot", None).unwrap().moved, "a restart");
        fs::create_dir(&copy).unwrap();
        fs::copy(folder.identity_path(), copy.join("identity.json")).unwrap();
        let copied = WorkerFolder::open(&copy, false).unwrap();
        assert!(copied.begin_incarnation("boot", None).unwrap().moved);
        assert!(copied.begin_incarnation("boot", None).unwrap().moved, "it does not become one by trying");
        assert!(!copied.begin_incarnation("another", None).unwrap().moved, "then the boot tells");
        drop(folder);
        fs::remove_dir_all(&path).unwrap();
        fs::rename(&copy, &path).unwrap();
        let renamed = WorkerFolder::open(&path, false);
        assert!(matches!(renamed, Err(FolderError::InUse { .. })), "the lock moves along");
        drop(copied);
        let renamed = WorkerFolder::open(&path, false).unwrap();
        renamed.accepted("boot", Duration::from_secs(7)).unwrap();
        let beginning = renamed.begin_incarnation("boot", None).unwrap();
        assert_eq!((beginning.moved, beginning.lease_ttl), (false, Some(Duration::from_secs(7))));
    }

    #[test]
    fn a_lost_or_garbled_identity_is_that_of_the_worker_the_server_knows() {
        let home = tempfile::tempdir().unwrap();
        let folder = WorkerFolder::open(&home.path().join("worker"), false).unwrap();
        let known = KnownWorker { worker_id: WorkerId::from_u128(5), incarnation: 7 };
        let as_known = Session { worker_id: known.worker_id, token: String::new() };
        for garbled in [None, Some(""), Some("{\"worker_id\":\"wkr_0"), Some("\0\0\0")] {
            let _ = fs::remove_file(folder.identity_path());
            if let Some(text) = garbled {
                fs::write(folder.identity_path(), text).unwrap();
                let error = folder.begin_incarnation("boot", None).unwrap_err();
                assert!(error.to_string().contains("worker revoke"), "{error}");
            }
            let begun = begun_as(&folder, Some(known));
            assert_eq!(begun, (8, Some(as_known.clone())), "{garbled:?}");
            assert_eq!(begun_as(&folder, Some(known)).0, 9, "the file is whole again and counts");
        }
        // One that gave its session up is nobody, whatever the server remembers.
        folder.remember(None).unwrap();
        assert_eq!(begun_as(&folder, Some(known)).1, None);
    }
}
