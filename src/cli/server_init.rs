//! `server init`: the first credentials of a server, made before it runs. The server is given their hashes; the tokens
//! are shown once, or written where they were asked for.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Context;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::screen::{print, print_json, say};
use super::server_args::ServerInitArgs;
use crate::clock;
use crate::contract::token::TokenKind;
use crate::credentials::seed::{SeedFile, SeedToken};
use crate::credentials::{self, prefix};
use crate::domain::change::TokenRecord;

/// Where each token went: into the answer, or into a file.
#[derive(Serialize)]
struct Made {
    #[serde(skip_serializing_if = "Option::is_none")]
    client_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    join_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    join_token_file: Option<PathBuf>,
    credentials: PathBuf,
}

/// `gpulayer server init`. Nothing that is there is overwritten.
pub(super) fn run(context: &Context, args: &ServerInitArgs) -> Result<ExitStatus, CliError> {
    let places = &context.settings.places;
    places.make()?;
    let seed_path = places.server_credentials();
    let files = [args.client_token_file.as_deref(), args.join_token_file.as_deref()];
    for path in files.into_iter().flatten().chain([seed_path.as_path()]) {
        if path.symlink_metadata().is_ok() {
            return Err(CliError::NotOverwritten { path: path.to_owned() });
        }
    }
    let client = make(TokenKind::Client, "admin")?;
    let join = make(TokenKind::Join, "join")?;
    let seed = SeedFile { tokens: vec![SeedToken::of(&client.1), SeedToken::of(&join.1)] };
    let mut text = serde_json::to_vec_pretty(&seed).unwrap_or_default();
    text.push(b'\n');
    // The tokens first: hashes of tokens that nobody has would lock everybody out.
    for (path, token) in files.into_iter().zip([&client.0, &join.0]) {
        if let Some(path) = path {
            write_new(path, format!("{token}\n").as_bytes())?;
        }
    }
    write_new(&seed_path, &text)?;
    let shown = |path: Option<&Path>, token: String| path.is_none().then_some(token);
    let made = Made {
        client_token: shown(files[0], client.0),
        client_token_file: args.client_token_file.clone(),
        join_token: shown(files[1], join.0),
        join_token_file: args.join_token_file.clone(),
        credentials: seed_path,
    };
    tell(context, &made)?;
    Ok(ExitStatus::SUCCESS)
}

fn make(kind: TokenKind, name: &str) -> Result<(String, TokenRecord), CliError> {
    let token = credentials::mint(prefix(kind)).map_err(|source| CliError::Random { source })?;
    let record = TokenRecord::unconfined(credentials::hash(&token), kind, name, clock::now());
    Ok((token, record))
}

/// A file for this user alone, which must not be there yet.
fn write_new(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|source| CliError::File { operation: "write", path: path.to_owned(), source })
}

fn tell(context: &Context, made: &Made) -> Result<(), CliError> {
    if context.json {
        return print_json(made);
    }
    for (whose, token, file) in [
        ("client (admin)", &made.client_token, &made.client_token_file),
        ("workers", &made.join_token, &made.join_token_file),
    ] {
        match (token, file) {
            (Some(token), _) => print(&format!("{whose:<16}{token}"))?,
            (None, Some(file)) => print(&format!("{whose:<16}in {}", file.display()))?,
            (None, None) => {}
        }
    }
    say(&format!(
        "the tokens are not kept and not shown again; their hashes are in {}, from where the server takes them in\n\
         when it starts: gpulayer server start --host :: --self-signed (or --tls-cert and --tls-key)",
        made.credentials.display()
    ));
    Ok(())
}
