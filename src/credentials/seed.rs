//! The seed file: hashes of the first credentials of a server that is set up without ever running there. The server
//! takes each in once; one that was revoked since stays revoked.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::contract::quantity::Timestamp;
use crate::contract::token::{Role, TokenKind};
use crate::domain::change::TokenRecord;
use crate::domain::credentials::request::is_name;
use crate::short_file;

/// `$GPULAYER_HOME/server-credentials.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedFile {
    /// The credentials.
    pub tokens: Vec<SeedToken>,
}

/// One credential, never the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedToken {
    /// What people call it.
    pub name: String,
    /// What it is for.
    pub kind: TokenKind,
    /// Of a client; `admin` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Of a submitter or viewer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<String>,
    /// SHA-256 of the secret, 64 hex digits.
    pub sha256: String,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Why a seed file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// It cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is no seed file.
    #[error("{} is no list of credentials as `gpulayer server init` writes it", .path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// An entry says what cannot be.
    #[error("{}: entry {index} needs a name, a hash of 64 hex digits, and projects for any role but admin", .path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// Counted from 0.
        index: usize,
    },
}

impl SeedToken {
    /// For the file.
    pub fn of(record: &TokenRecord) -> Self {
        Self {
            name: record.name.clone(),
            kind: record.kind,
            role: record.role,
            projects: record.projects.clone(),
            sha256: hex::encode(record.hash),
            created_at: record.created_at,
        }
    }

    fn record(&self) -> Option<TokenRecord> {
        let mut hash = [0; 32];
        hex::decode_to_slice(&self.sha256, &mut hash).ok()?;
        let plain = TokenRecord::unconfined(hash, self.kind, self.name.as_str(), self.created_at);
        let role = plain.role.map(|admin| self.role.unwrap_or(admin));
        let confined = role.is_some_and(|role| role != Role::Admin);
        (is_name(&self.name) && confined != self.projects.is_empty()).then(|| TokenRecord {
            role,
            projects: self.projects.clone(),
            created_by: "server init".to_owned(),
            ..plain
        })
    }
}

/// The records of a seed file; none when there is no file.
pub fn read(path: &Path) -> Result<Vec<TokenRecord>, SeedError> {
    let text = match short_file::read(path, short_file::SETTINGS_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(SeedError::Read { path: path.to_owned(), source }),
    };
    let file: SeedFile =
        serde_json::from_slice(&text).map_err(|source| SeedError::Form { path: path.to_owned(), source })?;
    let entry = |(index, token): (usize, &SeedToken)| {
        token.record().ok_or_else(|| SeedError::Entry { path: path.to_owned(), index })
    };
    file.tokens.iter().enumerate().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_file_is_read_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server-credentials.json");
        assert_eq!(read(&path).unwrap(), []);
        let made = Timestamp::from_micros(1_000_000);
        let admin = TokenRecord::unconfined([7; 32], TokenKind::Client, "admin", made);
        let join = TokenRecord::unconfined([8; 32], TokenKind::Join, "join", made);
        let file = SeedFile { tokens: vec![SeedToken::of(&admin), SeedToken::of(&join)] };
        std::fs::write(&path, serde_json::to_vec(&file).unwrap()).unwrap();
        let made_by = |record: TokenRecord| TokenRecord { created_by: "server init".into(), ..record };
        assert_eq!(read(&path).unwrap(), [made_by(admin), made_by(join)]);
    }

    #[test]
    fn a_file_that_cannot_be_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server-credentials.json");
        let entry = |name: &str, extra: &str, hash: &str| {
            format!(
                r#"{{"tokens": [{{"name": "{name}", "kind": "client"{extra}, "sha256": "{hash}",
                    "created_at": "2026-01-01T00:00:00Z"}}]}}"#
            )
        };
        let good = "ab".repeat(32);
        std::fs::write(&path, entry("a", "", &good)).unwrap();
        assert_eq!(read(&path).unwrap()[0].role, Some(Role::Admin));
        for bad in [
            entry("a b", "", &good),
            entry("a", "", "ab"),
            entry("a", r#", "role": "viewer""#, &good),
            entry("a", r#", "projects": ["x"]"#, &good),
        ] {
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(read(&path), Err(SeedError::Entry { index: 0, .. })));
        }
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(read(&path), Err(SeedError::Form { .. })));
    }
}
