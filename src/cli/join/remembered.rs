//! What a worker's folder remembers of how it was started: `server.json` (0600). A restart needs no flag, and a second
//! `join` knows its server.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::JoinError;
use crate::contract::pin::Pin;
use crate::contract::quantity::Cpus;
use crate::short_file;
use crate::worker::{WorkerError, make_folder};

const FILE: &str = "server.json";

/// All that was given once. What newer versions add is kept out of the way of older ones by defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Remembered {
    /// Where the server is.
    pub(super) url: String,
    /// Its keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) pins: Vec<Pin>,
    /// Who signs its certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ca_file: Option<PathBuf>,
    /// Whether the line may be plain HTTP to another machine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) allow_insecure_remote: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpus: Option<Cpus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpus: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) pythons: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advertise_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) task_user: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) allow_root_tasks: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) min_free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) evict_below_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) log_budget_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) log_refill_bytes_per_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) log_full_max_bytes: Option<u64>,
}

impl Remembered {
    /// What this folder remembers; `None` = nobody ever joined there.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, JoinError> {
        let path = folder.join(FILE);
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|source| JoinError::Garbled { path, source })
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(source) => Err(JoinError::File { operation: "read", path, source }),
        }
    }

    /// Forgets it again. That it stays is no fault: it only would be remembered.
    pub(super) fn forget(folder: &Path) {
        drop(fs::remove_file(folder.join(FILE)));
    }

    /// Writes it down, whole or not at all, in a folder that is made for this user alone.
    pub(super) fn write(&self, folder: &Path) -> Result<(), JoinError> {
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| JoinError::File { operation, path, source }
        };
        make_folder(folder, self.task_user.is_some()).map_err(WorkerError::from)?;
        if Self::read(folder).is_ok_and(|known| known.as_ref() == Some(self)) {
            return Ok(());
        }
        let path = folder.join(FILE);
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|source| JoinError::Garbled { path: path.clone(), source })?;
        text.push(b'\n');
        short_file::replace(&path, &text).map_err(failed("write", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_once_is_there_again() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("deep/box-8470");
        assert_eq!(Remembered::read(&folder).unwrap(), None);
        let given = Remembered {
            url: "http://box:8470".into(),
            cpus: Some(Cpus::from_millis(1500)),
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            allow_root_tasks: true,
            ..Remembered::default()
        };
        given.write(&folder).unwrap();
        assert_eq!(Remembered::read(&folder).unwrap(), Some(given));
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(FILE))), (0o700, 0o600));
        fs::write(folder.join(FILE), "{\"url\":").unwrap();
        assert!(matches!(Remembered::read(&folder), Err(JoinError::Garbled { .. })));
        fs::write(folder.join(FILE), "{\"url\":\"x\",\"newer\":1}").unwrap();
        assert_eq!(Remembered::read(&folder).unwrap().unwrap().url, "x");
    }
}
