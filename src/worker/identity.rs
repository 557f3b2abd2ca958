//! Who a worker is across restarts: `identity.json` (0600) in its folder, and the lock that keeps a second worker
//! out of it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::actors::task_runner::worker_ballast;
use crate::client::worker_channel::Session;
use crate::contract::ids::WorkerId;
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
    #[error("{} cannot be understood; a worker without it would start as a new one", path.display())]
    Garbled {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
}

impl WorkerFolder {
    /// Makes the folder (0700) if need be, and holds it until this value goes.
    pub(super) fn open(path: &Path) -> Result<Self, FolderError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(failed("make", path))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock_path);
        let lock = lock.map_err(failed("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {
                // For whoever wants to stop it. Without it, on a full disk, the worker works all the same.
                let named = lock
                    .set_len(0)
                    .and_then(|()| (&lock).write_all(std::process::id().to_string().as_bytes()));
                if let Err(error) = named {
                    tracing::debug!(%error, "the lock does not say who holds it");
                }
                Ok(Self { path: path.to_owned(), ballast: worker_ballast(path), _lock: lock })
            }
            Err(TryLockError::WouldBlock) => Err(FolderError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed("lock", &lock_path)(source)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Counts this start; the number, and the session of the start before, if there was one.
    pub(super) fn begin_incarnation(&self) -> Result<(u64, Option<Session>), FolderError> {
        let mut identity = self.read()?;
        identity.incarnation += 1;
        if let Err(error) = self.write(&identity) {
            // A full disk must not keep a worker from coming back to its running tasks.
            if !self.ballast.release() {
                return Err(error);
            }
            self.write(&identity)?;
        }
        let session =
            identity.worker_id.map(|worker_id| Session { worker_id, token: identity.session_token });
        Ok((identity.incarnation, session))
    }

    /// Writes down a new session, or that there is none any more.
    pub(super) fn remember(&self, session: Option<&Session>) -> Result<(), FolderError> {
        let incarnation = self.read()?.incarnation;
        self.write(&IdentityFile {
            worker_id: session.map(|session| session.worker_id),
            session_token: session.map(|session| session.token.clone()).unwrap_or_default(),
            incarnation,
            registration: String::new(),
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

    fn identity_path(&self) -> PathBuf {
        self.path.join("identity.json")
    }

    fn read(&self) -> Result<IdentityFile, FolderError> {
        read(self.identity_path())
    }

    /// Whole or not at all, also when the power goes: without its identity a worker could not answer for its tasks.
    fn write(&self, identity: &IdentityFile) -> Result<(), FolderError> {
        let path = self.identity_path();
        let new = self.path.join("identity.json.new");
        let written = (|| {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec(identity)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        })();
        written.map_err(failed("write", &path))
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

pub(super) fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    move |source| FolderError::File { operation, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn starts_are_counted_and_the_session_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("worker");
        let session = Session { worker_id: WorkerId::from_u128(5), token: "gls_secret".into() };
        {
            let folder = WorkerFolder::open(&path).unwrap();
            assert_eq!(folder.begin_incarnation().unwrap(), (1, None));
            let registration = folder.registration().unwrap();
            assert_eq!(folder.begin_incarnation().unwrap(), (2, None));
            assert_eq!(folder.registration().unwrap(), registration, "the same until there is a session");
            folder.remember(Some(&session)).unwrap();
            assert!(matches!(WorkerFolder::open(&path), Err(FolderError::InUse { .. })));
            assert_eq!(holder(&path).unwrap(), Some(Some(std::process::id())));
        }
        assert_eq!(holder(&path).unwrap(), None);
        assert!(has_session(&path).unwrap() && !has_session(home.path()).unwrap());
        let folder = WorkerFolder::open(&path).unwrap();
        assert_eq!(folder.begin_incarnation().unwrap(), (3, Some(session)));
        let mode = fs::metadata(folder.identity_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        folder.remember(None).unwrap();
        assert_eq!(folder.begin_incarnation().unwrap(), (4, None));
    }
}
