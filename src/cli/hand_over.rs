//! A newer command makes an older on-demand daemon hand over: the old one leaves, running tasks stay with their shims,
//! and the new one adopts them. The version rides on every answer, so that the check costs nothing.

use std::time::Duration;

use super::Context;
use super::error::CliError;
use super::job_choice::all;
use super::on_demand::{OwnDaemon, process};
use super::screen::say;
use super::server_choice::Server;
use super::shown::tail;
use crate::client::{Answer, Call, Client, ClientError};
use crate::contract::server::{ServerStatus, StopRequest};

/// For how long a daemon that leaves is waited for in silence.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// How many of the jobs that it waits for are shown.
const SHOWN_JOBS: usize = 10;

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
    stop(&daemon, client, StopRequest { cancel_running: false, hand_over: true }).await?;
    daemon.spawn(&["--on-demand", "--no-tcp"])?;
    Ok(true)
}

/// Asks a daemon to stop and returns when its process has let go of the state folder, however long its tasks take to
/// end. What it waits for is shown after a while; an interrupt ends the waiting, not the stop.
pub(super) async fn stop(daemon: &OwnDaemon, client: &Client, request: StopRequest) -> Result<(), CliError> {
    let not_stopped = |source| CliError::NotStopped { source };
    match client.post::<serde::de::IgnoredAny>("/v1/admin/stop", &request).await {
        Ok(_) => {}
        // It was leaving already.
        Err(error) if error.is_connection() && !daemon.is_there().map_err(not_stopped)? => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let (gone, interrupted) = (daemon.gone(), tokio::signal::ctrl_c());
    tokio::pin!(gone, interrupted);
    let mut told = false;
    loop {
        tokio::select! {
            gone = &mut gone => return gone.map_err(not_stopped),
            Ok(()) = &mut interrupted => {
                let holder = daemon.holder().map_err(not_stopped)?;
                return Err(CliError::StillStopping { pid: holder.and_then(|holder| holder.pid) });
            }
            () = tokio::time::sleep(TELL_AFTER), if !told => {
                told = true;
                tell_what_stops(daemon, client).await;
            }
        }
    }
}

/// Says what a leaving daemon waits for.
async fn tell_what_stops(daemon: &OwnDaemon, client: &Client) {
    let pid = daemon.holder().ok().flatten().and_then(|holder| holder.pid);
    say(&format!("gpulayer: waiting for the daemon ({}) to leave", process(pid)));
    let running = tokio::time::timeout(TELL_AFTER, all(client, "&state=running", SHOWN_JOBS)).await;
    for job in running.into_iter().flatten().flatten() {
        let name = job.name.as_deref().unwrap_or_default();
        say(&format!("gpulayer: …{} {name} is still stopping", tail(job.id)));
    }
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
