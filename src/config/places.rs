//! Where things live: `GPULAYER_HOME` (configuration, credentials; may be on NFS) and `GPULAYER_STATE` (database,
//! artifacts, sockets, workspaces; must not be).

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use super::ConfigError;

/// Room in `sockaddr_un` without the closing zero.
const SOCKET_PATH_BYTES: usize = 107;
/// The longest socket path under the state folder: a process id has at most seven digits.
const LONGEST_SOCKET: &str = "worker/shims/4194304.sock";

/// The two folders everything lives in, absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// `GPULAYER_HOME`.
    pub home: PathBuf,
    /// `GPULAYER_STATE`.
    pub state: PathBuf,
}

impl Places {
    /// Decides both from the environment (`docs/CONFIG.md`). Makes nothing.
    pub fn resolve(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        let named = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = match named("GPULAYER_HOME") {
            Some(home) => home,
            None => named("HOME").ok_or(ConfigError::NoHome)?.join(".gpulayer"),
        };
        let home = absolute(&home)?;
        if let Some(state) = named("GPULAYER_STATE") {
            let state = absolute(&state)?;
            let bytes = longest_socket_bytes(&state);
            if bytes > SOCKET_PATH_BYTES {
                return Err(ConfigError::TooLong { path: state, bytes, limit: SOCKET_PATH_BYTES });
            }
            return Ok(Self { home, state });
        }
        let state = home.join("state");
        if longest_socket_bytes(&state) <= SOCKET_PATH_BYTES && !on_network_file_system(&state) {
            return Ok(Self { home, state });
        }
        let mine = PathBuf::from(format!("/var/tmp/gpulayer-{}", rustix::process::getuid().as_raw()));
        refuse_unless_mine(&mine)?;
        let name = hex::encode(&Sha256::digest(resolved(&home).as_os_str().as_encoded_bytes())[..8]);
        Ok(Self { home, state: mine.join(name) })
    }

    /// Makes both folders, only for this user. One that is there keeps its mode, except that others lose
    /// access to the home folder.
    pub fn make(&self) -> Result<(), ConfigError> {
        if let Some(parent) = self.state.parent().filter(|parent| parent.starts_with("/var/tmp")) {
            make_private(parent)?;
            refuse_unless_mine(parent)?;
        }
        make_private(&self.home)?;
        make_private(&self.state)
    }

    /// The daemon's Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.state.join("gpulayer.sock")
    }

    /// What an on-demand or background daemon writes to.
    pub fn daemon_log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }

    /// The admin token `up` writes.
    pub fn client_token(&self) -> PathBuf {
        self.home.join("client-token")
    }

    /// Hashes of the credentials that a server begins with, when it was set up by `server init`.
    pub fn server_credentials(&self) -> PathBuf {
        self.home.join("server-credentials.json")
    }

    /// Saved servers.
    pub fn connections(&self) -> PathBuf {
        self.home.join("connections.toml")
    }

    /// Key and certificate of this machine's server.
    pub fn tls(&self) -> PathBuf {
        self.home.join("tls")
    }

    /// The join token `up` writes.
    pub fn join_token(&self) -> PathBuf {
        self.home.join("join-token")
    }
}

fn absolute(path: &Path) -> Result<PathBuf, ConfigError> {
    let path = std::path::absolute(path).map_err(|source| ConfigError::Folder {
        operation: "read",
        path: path.to_owned(),
        source,
    })?;
    Ok(path.components().filter(|part| *part != Component::CurDir).collect())
}

fn longest_socket_bytes(state: &Path) -> usize {
    state.as_os_str().len() + 1 + LONGEST_SOCKET.len()
}

/// The path with links resolved as far as it exists, so that two spellings of one home give one state folder.
fn resolved(path: &Path) -> PathBuf {
    let mut rest = Vec::new();
    for ancestor in path.ancestors() {
        if let Ok(found) = ancestor.canonicalize() {
            return rest.into_iter().rev().fold(found, |path: PathBuf, part| path.join(part));
        }
        rest.extend(ancestor.file_name());
    }
    path.to_owned()
}

fn make_private(path: &Path) -> Result<(), ConfigError> {
    let fault = |source| ConfigError::Folder { operation: "make", path: path.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fault)
}

/// `/var/tmp` is everybody's, so what stands there may be a trap.
fn refuse_unless_mine(path: &Path) -> Result<(), ConfigError> {
    match std::fs::symlink_metadata(path) {
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(ConfigError::Folder { operation: "read", path: path.to_owned(), source }),
        Ok(found) => {
            let (owner, mode) = (found.uid(), found.mode() & 0o777);
            let mine = found.is_dir() && owner == rustix::process::getuid().as_raw() && mode & 0o077 == 0;
            if mine { Ok(()) } else { Err(ConfigError::NotMine { path: path.to_owned(), owner, mode }) }
        }
    }
}

/// Whether the nearest existing folder is on a file system shared between machines, where neither locks nor
/// sockets nor SQLite's WAL can be relied on.
pub fn on_network_file_system(path: &Path) -> bool {
    file_system_magic(path).is_some_and(is_network)
}

/// The kind of the file system under the nearest existing folder, as `statfs` names it.
#[cfg(target_os = "linux")]
pub fn file_system_magic(path: &Path) -> Option<u32> {
    path.ancestors().find_map(|ancestor| rustix::fs::statfs(ancestor).ok()).map(|found| found.f_type as u32)
}

/// Unknown here.
#[cfg(not(target_os = "linux"))]
pub fn file_system_magic(_: &Path) -> Option<u32> {
    None
}

fn is_network(magic: u32) -> bool {
    matches!(
        magic,
        0x6969             // NFS
        | 0xFF53_4D42      // CIFS
        | 0xFE53_4D42      // SMB2
        | 0x517B           // SMB
        | 0x6573_5546      // FUSE: sshfs, s3fs, gcsfuse and the like
        | 0x0BD0_0BD0      // Lustre
        | 0x4750_4653      // GPFS
        | 0x00C3_6400      // Ceph
        | 0x5346_414F      // AFS
        | 0x7375_7245      // Coda
        | 0x1983_0326      // BeeGFS
        | 0x0102_1997      // 9P
        | 0x2003_0528      // OrangeFS
        | 0x0116_1970      // GFS2
        | 0x7461_636F      // OCFS2
        | 0x786F_4256 // VirtualBox shared folders
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(pairs: &[(&str, &str)]) -> Result<Places, ConfigError> {
        Places::resolve(&|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.into()))
    }

    #[test]
    fn state_is_under_home_unless_told_otherwise() {
        let places = resolve(&[("HOME", "/tmp/u")]).unwrap();
        assert_eq!((places.home, places.state), ("/tmp/u/.gpulayer".into(), "/tmp/u/.gpulayer/state".into()));
        let places =
            resolve(&[("HOME", "/tmp/u"), ("GPULAYER_HOME", "/tmp/./h"), ("GPULAYER_STATE", "/tmp/s")]);
        let places = places.unwrap();
        assert_eq!((places.home, places.state), ("/tmp/h".into(), "/tmp/s".into()));
        assert!(matches!(resolve(&[]), Err(ConfigError::NoHome)));
        assert!(matches!(resolve(&[("HOME", "")]), Err(ConfigError::NoHome)));
    }

    #[test]
    fn a_long_home_moves_the_state_and_a_long_state_is_refused() {
        let long = format!("/tmp/{}", "x".repeat(90));
        let places = resolve(&[("GPULAYER_HOME", &long)]).unwrap();
        let uid = rustix::process::getuid().as_raw();
        let name = places.state.file_name().unwrap().to_str().unwrap();
        assert_eq!(places.state.parent().unwrap(), Path::new(&format!("/var/tmp/gpulayer-{uid}")));
        assert_eq!(name, &hex::encode(&Sha256::digest(&long)[..8]));
        assert!(longest_socket_bytes(&places.state) <= SOCKET_PATH_BYTES);
        let refused = resolve(&[("GPULAYER_HOME", "/tmp/h"), ("GPULAYER_STATE", &long)]);
        assert!(matches!(refused, Err(ConfigError::TooLong { .. })));
    }

    #[test]
    fn links_to_one_home_give_one_state() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
        let real = real.canonicalize().unwrap();
        assert_eq!(resolved(&folder.path().join("link/not/there")), real.join("not/there"));
    }

    #[test]
    fn a_folder_others_can_enter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(folder.path(), closed).unwrap();
        assert!(refuse_unless_mine(folder.path()).is_ok());
        assert!(refuse_unless_mine(&folder.path().join("absent")).is_ok());
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        assert!(matches!(refuse_unless_mine(folder.path()), Err(ConfigError::NotMine { .. })));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/root", &link).unwrap();
        assert!(matches!(refuse_unless_mine(&link), Err(ConfigError::NotMine { .. })));
    }

    #[test]
    fn network_file_systems_are_known_by_number() {
        assert!(is_network(0x6969) && is_network(0x6573_5546) && is_network(0x0BD0_0BD0));
        assert!(!is_network(0xEF53) && !is_network(0x0102_1994));
    }

    #[test]
    fn folders_are_made_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places { home: folder.path().join("a/home"), state: folder.path().join("a/home/state") };
        places.make().unwrap();
        places.make().unwrap();
        assert_eq!(std::fs::metadata(&places.state).unwrap().mode() & 0o777, 0o700);
    }
}
