//! The two credentials `gpulayer up` provides: one admin client token and one join token, each in a file that
//! only the owner can read. The store keeps their hashes. A file that is there and known is kept as it is.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::DaemonError;
use super::house::House;
use crate::clock;
use crate::config::Places;
use crate::credentials::{self, CLIENT_PREFIX, JOIN_PREFIX};
use crate::domain::change::{Change, TokenKind, TokenRecord};

/// Makes sure that both files hold valid tokens.
pub(super) async fn provide(places: &Places, house: &House) -> Result<(), DaemonError> {
    let known: Vec<[u8; 32]> = house.reads.tokens()?.into_iter().map(|token| token.hash).collect();
    let wanted = [
        (places.client_token(), TokenKind::AdminClient, CLIENT_PREFIX, "admin"),
        (places.join_token(), TokenKind::Join, JOIN_PREFIX, "join"),
    ];
    for (path, kind, prefix, name) in wanted {
        let present = std::fs::read_to_string(&path).unwrap_or_default();
        if known.contains(&credentials::hash(present.trim())) {
            continue;
        }
        let token = credentials::mint(prefix)?;
        let record = TokenRecord {
            hash: credentials::hash(&token),
            kind,
            name: name.to_owned(),
            created_at: clock::now(),
        };
        let seq = house.journal.append(vec![Change::TokenRecorded(Box::new(record))]);
        house.durability.clone().reached(seq).await;
        write_private(&path, &token)?;
    }
    Ok(())
}

fn write_private(path: &Path, token: &str) -> Result<(), DaemonError> {
    let write = || {
        let beside = path.with_extension("new");
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        writeln!(file, "{token}")?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|source| DaemonError::TokenFile { path: path.to_owned(), source })
}
