//! A newer command makes an older on-demand daemon hand over: the old one leaves, running tasks stay with their shims,
//! and the new one adopts them. The version rides on every answer, so that the check costs nothing.

use std::path::Path;
use std::time::Duration;

use super::Context;
use super::error::CliError;
use super::on_demand::OwnDaemon;
use super::screen::say;
use super::server_choice::Server;
use crate::client::{Answer, Call, Client, ClientError};
use crate::contract::server::{ServerStatus, StopRequest};

/// For how long a daemon that leaves is waited for.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);

/// Sends a call. When the own daemon is older than this command it is replaced, before what it refused is asked again.
pub(super) async fn answer(context: &Context, server: &Server, call: &Call) -> Result<Answer, CliError> {
    let answered = server.client.answer(call).await;
    let older = server.own && server.client.server_version().is_some_and(is_older);
    if !older || !replace(context, &server.client).await? {
        return Ok(answered?);
    }
    match answered {
        Err(ClientError::Refused(_)) => Ok(server.client.answer(call).await?),
        answered => Ok(answered?),
    }
}

/// Whether a server's version is before this command's.
fn is_older(server: &str) -> bool {
    fn numbers(version: &str) -> Vec<u64> {
        let release = version.split(['-', '+']).next().unwrap_or(version);
        release.split('.').map(|part| part.parse().unwrap_or(0)).collect()
    }
    numbers(server) < numbers(env!("CARGO_PKG_VERSION"))
}

/// Lets the daemon leave and starts this version's; `false` when that is for its owner to do.
async fn replace(context: &Context, client: &Client) -> Result<bool, CliError> {
    let status: ServerStatus = client.get("/v1/server").await?;
    if !status.on_demand {
        say("gpulayer: the daemon is older than this command; `gpulayer up` replaces it");
        return Ok(false);
    }
    let daemon = OwnDaemon::new(context.settings.places.clone());
    let _lock = daemon.lock()?;
    stop(client, &context.settings.places.socket(), StopRequest { cancel_running: false, hand_over: true })
        .await?;
    daemon.spawn(&["--on-demand", "--no-tcp"])?;
    Ok(true)
}

/// Asks a daemon to stop and returns when it has hung up.
pub(super) async fn stop(client: &Client, socket: &Path, request: StopRequest) -> Result<(), CliError> {
    // An idle connection of its own ends when the daemon lets go of it: nothing has to be polled.
    let watch = tokio::net::UnixStream::connect(socket).await.ok();
    client.post::<serde::de::IgnoredAny>("/v1/admin/stop", &request).await?;
    if let Some(watch) = watch {
        let mut byte = [0];
        let gone = async {
            while watch.readable().await.is_ok() {
                match watch.try_read(&mut byte) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    _ => break,
                }
            }
        };
        drop(tokio::time::timeout(LEAVE_WITHIN, gone).await);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_older("0.0.9"));
        assert!(!is_older(env!("CARGO_PKG_VERSION")));
        assert!(!is_older("10.0.0"));
    }
}
