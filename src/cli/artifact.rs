//! `artifact put` and `artifact get`: bytes by their digest.

use std::path::Path;

use super::Context;
use super::args::ArtifactCommand;
use super::carry::{Parcel, Spool, digest_of};
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::screen::{print, print_json, say};
use super::server_choice::OnDemand;
use super::shown::size;
use crate::contract::artifact::Digest;

/// `gpulayer artifact …`.
pub(super) async fn run(context: &Context, command: &ArtifactCommand) -> Result<ExitStatus, CliError> {
    match command {
        ArtifactCommand::Put { path } => put(context, path).await,
        ArtifactCommand::Get { address, output, force } => bring(context, address, output, *force).await,
    }
}

async fn put(context: &Context, path: &Path) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    let (parcel, left_out) = if path.is_dir() {
        let (parcel, remark, left_out) = Parcel::folder(path, &context.settings.places)?;
        say(&remark);
        (parcel, left_out)
    } else {
        (Parcel::file(path)?, Vec::new())
    };
    if !client.missing(&[parcel.digest]).await?.is_empty() {
        parcel.send(&client).await?;
    }
    if context.json {
        print_json(&serde_json::json!({
            "artifact": parcel.digest,
            "size_bytes": parcel.size_bytes,
            "left_out": left_out,
        }))?;
    } else {
        print(&parcel.digest.to_string())?;
    }
    Ok(ExitStatus::SUCCESS)
}

async fn bring(context: &Context, address: &str, output: &Path, force: bool) -> Result<ExitStatus, CliError> {
    let digest: Digest =
        address.parse().or_else(|_| Digest::from_hex(address)).map_err(|_| CliError::Flag {
            flag: "ADDRESS",
            given: address.to_owned(),
            expected: "artifact://sha256/ and 64 lower-case hex digits",
        })?;
    if output == Path::new("-") {
        return to_stdout(context, &digest).await;
    }
    if !force && let Ok(found) = output.symlink_metadata() {
        if found.is_file() && digest_of(output)?.0 == digest {
            say(&format!("{} is there already", output.display()));
            return Ok(ExitStatus::SUCCESS);
        }
        return Err(CliError::OutputThere { path: output.to_owned() });
    }
    let client = context.server(OnDemand::Start)?.client;
    let mut fresh = output.as_os_str().to_owned();
    fresh.push(format!(".gpulayer-{}", hex::encode(rand::random::<[u8; 6]>())));
    let fresh = Path::new(&fresh);
    let downloaded =
        client.download(&digest, fresh, |_| {}).await.map_err(CliError::from).and_then(|bytes| {
            let renamed = std::fs::rename(fresh, output).map(|()| bytes);
            renamed.map_err(|source| CliError::File { operation: "write", path: output.to_owned(), source })
        });
    if downloaded.is_err() {
        drop(std::fs::remove_file(fresh));
    }
    say(&format!("{} brought", size(downloaded?)));
    Ok(ExitStatus::SUCCESS)
}

/// Nothing is written before the digest of all bytes is known to be right.
async fn to_stdout(context: &Context, digest: &Digest) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    let spool = Spool::create()?;
    client.download(digest, spool.path(), |_| {}).await?;
    let mut file = std::fs::File::open(spool.path()).map_err(|source| CliError::File {
        operation: "read",
        path: spool.path().to_owned(),
        source,
    })?;
    let mut stdout = std::io::stdout().lock();
    std::io::copy(&mut file, &mut stdout)
        .and_then(|_| std::io::Write::flush(&mut stdout))
        .map_err(|source| CliError::Stdout { source })?;
    Ok(ExitStatus::SUCCESS)
}
