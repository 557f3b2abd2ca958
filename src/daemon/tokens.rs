//! The first credentials of a server: those of the seed file, which are taken in once each, and the two that
//! `gpulayer up` provides, an admin client token and a join token, each in a file that only the owner can read. The
//! store keeps hashes. A file whose token is known and not revoked is kept as it is.

use std::path::Path;

use tokio::sync::oneshot;
use tracing::info;

use super::DaemonError;
use super::house::House;
use crate::actors::messages::front_desk::{MakeToken, TokenRefusal};
use crate::clock;
use crate::config::Places;
use crate::contract::token::TokenKind;
use crate::credentials::{self, seed};
use crate::domain::change::TokenRecord;
use crate::short_file;

/// Who made the tokens that the server makes for itself.
const SERVER: &str = "server";

/// Takes in what the seed file has and the store does not know yet.
pub(super) async fn take_seed(places: &Places, house: &House) -> Result<(), DaemonError> {
    let path = places.server_credentials();
    for record in seed::read(&path)? {
        if house.credentials.knows(&record.hash) {
            continue;
        }
        info!(name = record.name, file = %path.display(), "a credential was taken in");
        make(house, record).await?;
    }
    Ok(())
}

/// Makes sure that both files hold valid tokens.
pub(super) async fn provide(places: &Places, house: &House) -> Result<(), DaemonError> {
    let wanted =
        [(places.client_token(), TokenKind::Client, "admin"), (places.join_token(), TokenKind::Join, "join")];
    for (path, kind, name) in wanted {
        let present = short_file::read_text(&path, short_file::TOKEN_BYTES).unwrap_or_default();
        if house.credentials.takes(present.trim(), clock::now()) {
            continue;
        }
        let token = credentials::mint(credentials::prefix(kind))?;
        let plain = TokenRecord::unconfined(credentials::hash(&token), kind, name, clock::now());
        make(house, TokenRecord { created_by: SERVER.to_owned(), ..plain }).await?;
        write_private(&path, &token)?;
    }
    Ok(())
}

/// Makes it valid, under the next name that is free.
async fn make(house: &House, record: TokenRecord) -> Result<(), DaemonError> {
    let wanted = record.name.clone();
    let mut number = 1_u32;
    loop {
        let name = if number == 1 { wanted.clone() } else { format!("{wanted}-{number}") };
        let (reply, made) = oneshot::channel();
        let record = Box::new(TokenRecord { name, ..record.clone() });
        house.desk.do_send(MakeToken { record, by: None, key: None, reply });
        match made.await {
            Ok(Err(TokenRefusal::NameTaken)) => number += 1,
            Ok(Ok(_)) => return Ok(()),
            // Nothing else is refused of a token that somebody makes here, and the desk lives as long as the house.
            Ok(Err(_)) | Err(_) => return Err(DaemonError::TokenNotMade { name: wanted }),
        }
    }
}

fn write_private(path: &Path, token: &str) -> Result<(), DaemonError> {
    short_file::replace(path, format!("{token}\n").as_bytes())
        .map_err(|source| DaemonError::TokenFile { path: path.to_owned(), source })
}
