//! Servers that were connected to once and are known by name: `$GPULAYER_HOME/connections.toml` (0600, because it
//! holds tokens). Written as a whole, by one command at a time.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use crate::contract::pin::Pin;
use crate::short_file;

/// The longest name, in bytes.
const NAME_BYTES: usize = 63;

/// One saved server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// `https://HOST:PORT`, or another form that `--server` takes.
    pub url: String,
    /// The client token for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The server's keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<Pin>,
    /// Certificate authorities to ask instead of the system's; absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// Without the token: this may end in a log.
impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("url", &self.url).field("pins", &self.pins).finish_non_exhaustive()
    }
}

/// All saved servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// The one that commands speak with when nothing else is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// By name.
    #[serde(default)]
    pub connections: BTreeMap<String, Connection>,
}

impl Connections {
    /// Reads the file; none is an empty one.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        match short_file::read_text(path, short_file::SETTINGS_BYTES) {
            // The line itself may hold a token.
            Ok(text) => text
                .parse::<toml::Table>()
                .and_then(toml::Table::try_into)
                .map_err(|error| ConfigError::not_toml(path, &text, &error)),
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(ConfigError::Unreadable { path: path.to_owned(), source }),
        }
    }

    /// Reads, changes and writes the file while no other command does; what `change` gives back.
    pub fn change<T>(path: &Path, change: impl FnOnce(&mut Self) -> T) -> Result<T, ConfigError> {
        let fault = |source| ConfigError::Unwritable { path: path.to_owned(), source };
        let lock = path.with_extension("lock");
        let lock = private(&lock).map_err(fault)?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
            .map_err(|errno| fault(errno.into()))?;
        let mut connections = Self::load(path)?;
        let given = change(&mut connections);
        connections.write(path).map_err(fault)?;
        Ok(given)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let text = toml::to_string(self).map_err(io::Error::other)?;
        let front = "# Written by `gpulayer connect`. It holds tokens: keep it to yourself.\n";
        short_file::replace(path, [front, &text].concat().as_bytes())
    }

    /// The current one.
    pub fn current(&self) -> Option<(&str, &Connection)> {
        let name = self.current.as_deref()?;
        self.connections.get_key_value(name).map(|(name, connection)| (name.as_str(), connection))
    }
}

fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Whether a server may be called this: `--server` must be able to tell it from a URL and a path.
pub fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text.len() <= NAME_BYTES && text.chars().all(allowed) && !text.starts_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn connection(host: &str) -> Connection {
        Connection {
            url: format!("https://{host}:8470"),
            token: Some("glc_secret".into()),
            pins: vec![Pin::from_bytes([7; 32])],
            ca_file: None,
        }
    }

    #[test]
    fn what_was_saved_is_read_again_and_only_its_owner_can() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("connections.toml");
        assert_eq!(Connections::load(&path).unwrap(), Connections::default());
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        Connections::change(&path, |saved| {
            saved.connections.insert("box".into(), connection("box"));
            saved.current = Some("box".into());
        })
        .unwrap();
        let saved = Connections::load(&path).unwrap();
        assert_eq!(saved.current(), Some(("box", &connection("box"))));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!format!("{saved:?}").contains("secret"));
    }

    #[test]
    fn two_at_once_both_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("connections.toml");
        std::thread::scope(|scope| {
            for number in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    let name = format!("box{number}");
                    Connections::change(path, |saved| {
                        saved.connections.insert(name.clone(), connection(&name))
                    })
                    .unwrap();
                });
            }
        });
        assert_eq!(Connections::load(&path).unwrap().connections.len(), 8);
    }

    #[test]
    fn a_fault_in_the_file_names_the_line_and_shows_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("connections.toml");
        std::fs::write(&path, "[connections.a]\nurl = \"x\"\ntoken = glc_secret\n").unwrap();
        let fault = Connections::load(&path).unwrap_err().to_string();
        assert!(fault.contains(":3:") && !fault.contains("secret"), "{fault}");
    }

    #[test]
    fn a_name_is_no_url_and_no_path() {
        for good in ["box", "lab-2", "gpu.example"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-", "--list", "a b", "http://x", "/x", ".x", "x:1", &"a".repeat(64)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
