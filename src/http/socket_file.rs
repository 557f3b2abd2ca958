//! The file of the Unix socket: private from its first moment, never taken from a living daemon, put back when somebody
//! removes it, and removed at the end if it is still ours.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Weak;
use std::time::Duration;

use tracing::warn;

use super::ServeError;

/// How often the daemon looks whether its socket is still there.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A socket that this process listens on, under its path.
pub(super) struct SocketFile {
    path: PathBuf,
    /// A second name of the same socket: a listening socket without a name cannot get one again. None where the file
    /// system has no such links.
    kept: Option<PathBuf>,
    identity: (u64, u64),
}

/// What is found at a socket's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Ours,
    /// It was not there, and is again.
    PutBack,
    /// It is not there, and cannot be put back.
    Missing,
    /// Something that is not ours.
    Foreign,
}

impl SocketFile {
    // Bound beside its final name and moved there: nobody can connect before the mode is set, and a stale
    // socket is replaced without a moment in which none is there.
    pub(super) fn bind(path: &Path) -> Result<(Self, UnixListener), ServeError> {
        let failed = |source| ServeError::Socket { path: path.to_owned(), source };
        if let Ok(present) = path.symlink_metadata() {
            if !present.file_type().is_socket() {
                return Err(ServeError::NotASocket { path: path.to_owned() });
            }
            if UnixStream::connect(path).is_ok() {
                return Err(ServeError::SocketInUse { path: path.to_owned() });
            }
        }
        let beside = path.with_file_name(format!(".s{}", std::process::id()));
        let _ = std::fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside).map_err(failed)?;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let kept = kept_name(path).filter(|kept| {
            let _ = std::fs::remove_file(kept);
            std::fs::hard_link(&beside, kept).is_ok()
        });
        std::fs::rename(&beside, path).map_err(failed)?;
        let identity = identity(path).map_err(failed)?;
        Ok((Self { path: path.to_owned(), kept, identity }, listener))
    }

    /// Looks after the file for as long as it is in use.
    pub(super) async fn keep(socket: Weak<Self>) {
        let mut interval = tokio::time::interval(LOOK_EVERY);
        let mut before = Found::Ours;
        loop {
            interval.tick().await;
            let Some(socket) = socket.upgrade() else { return };
            let found = socket.look();
            if found != before {
                socket.tell(found);
                before = found;
            }
        }
    }

    fn look(&self) -> Found {
        match identity(&self.path) {
            Ok(present) if present == self.identity => Found::Ours,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let kept = self.kept.as_ref().filter(|kept| self.is_ours(kept));
                if kept.is_some_and(|kept| std::fs::hard_link(kept, &self.path).is_ok()) {
                    Found::PutBack
                } else {
                    Found::Missing
                }
            }
            Ok(_) | Err(_) => Found::Foreign,
        }
    }

    fn tell(&self, found: Found) {
        let socket = self.path.display();
        match found {
            Found::Ours => {}
            Found::PutBack => warn!(%socket, "the socket was removed; it is put back"),
            Found::Missing => {
                warn!(%socket, "the socket was removed and cannot be put back; restart this daemon")
            }
            Found::Foreign => {
                warn!(%socket, "something else is in the socket's place; remove it, and the socket comes back");
            }
        }
    }

    fn is_ours(&self, path: &Path) -> bool {
        identity(path).is_ok_and(|present| present == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        for path in [Some(&self.path), self.kept.as_ref()].into_iter().flatten() {
            if self.is_ours(path) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// `.NAME.kept` beside the socket.
fn kept_name(path: &Path) -> Option<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name()?);
    name.push(".kept");
    Some(path.with_file_name(name))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    path.symlink_metadata().map(|present| (present.dev(), present.ino()))
}
