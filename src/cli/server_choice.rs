//! Which server a command speaks with (CONTRACT, Command line): `--server`, `GPULAYER_URL`, the machine's daemon
//! if it is mine, the own daemon. A configured server that does not answer is an error, never a reason to take
//! another.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::error::CliError;
use super::on_demand::OwnDaemon;
use crate::client::{Client, Endpoint};
use crate::config::Settings;

/// The socket of a daemon run by the machine's service manager.
const MACHINE_SOCKET: &str = "/run/gpulayer/gpulayer.sock";
/// For how long a command tries to reach a server again that went away in the middle.
const RECONNECT_FOR: Duration = Duration::from_secs(20);

/// For how long a server may say nothing to a call. Long enough for a disk that stalls; something that accepts
/// connections and is no server of ours ends the command.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// The server a command speaks with.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) client: Client,
    /// Whether it runs on this machine as this user: paths mean the same on both sides.
    pub(super) own: bool,
}

/// Whether a command may start the own daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnDemand {
    /// Start it when it does not answer.
    Start,
    /// Take it as it is.
    Leave,
}

/// Where a command's server listens, before anything is asked of it.
pub(super) enum Choice {
    /// Named by a flag, a variable or the file.
    Configured(Endpoint),
    /// The machine's daemon, run as this user.
    Machine(PathBuf),
    /// The own daemon.
    Own(PathBuf),
}

/// Decides where to connect.
pub(super) fn choose(flag: Option<&str>, settings: &Settings) -> Result<Choice, CliError> {
    if let Some(name) = flag {
        return Ok(Choice::Configured(configured(name)?));
    }
    if let Some(url) = &settings.url {
        return Ok(Choice::Configured(configured(url)?));
    }
    let machine = Path::new(MACHINE_SOCKET);
    let mine = std::fs::symlink_metadata(machine)
        .is_ok_and(|found| found.uid() == rustix::process::getuid().as_raw());
    if mine { Ok(Choice::Machine(machine.to_owned())) } else { Ok(Choice::Own(settings.places.socket())) }
}

fn configured(text: &str) -> Result<Endpoint, CliError> {
    if text.starts_with('/') {
        return Ok(Endpoint::Unix(text.into()));
    }
    if !text.contains(':') {
        return Err(CliError::SavedConnection { name: text.to_owned() });
    }
    Ok(Endpoint::parse(text).map_err(crate::client::ClientError::from)?)
}

/// A client for the own daemon, whatever else is configured; never starts it.
pub(super) fn own_daemon(settings: &Settings) -> Client {
    Client::new(Endpoint::Unix(settings.places.socket())).with_answer_within(ANSWER_WITHIN)
}

/// A client for the chosen server.
pub(super) fn server(
    flag: Option<&str>,
    settings: &Settings,
    on_demand: OnDemand,
) -> Result<Server, CliError> {
    let choice = choose(flag, settings)?;
    let own = matches!(choice, Choice::Machine(_) | Choice::Own(_));
    let client = match choice {
        Choice::Configured(endpoint) => Client::new(endpoint),
        Choice::Machine(socket) => Client::new(Endpoint::Unix(socket)),
        Choice::Own(socket) => {
            let client = Client::new(Endpoint::Unix(socket));
            match on_demand {
                OnDemand::Start => client.with_revive(Arc::new(OwnDaemon::new(settings.places.clone()))),
                OnDemand::Leave => client,
            }
        }
    };
    let client = client.with_reconnect_for(RECONNECT_FOR).with_answer_within(ANSWER_WITHIN);
    let client = match &settings.token {
        Some(token) if !own => client.with_token(token)?,
        _ => client,
    };
    Ok(Server { client, own })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(flag: Option<&str>, url: Option<&str>) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings::under(folder.path()).unwrap();
        settings.url = url.map(str::to_owned);
        match choose(flag, &settings) {
            Ok(Choice::Configured(endpoint)) => Ok(endpoint.to_string()),
            Ok(Choice::Machine(_)) => Ok("machine".to_owned()),
            Ok(Choice::Own(socket)) => {
                assert_eq!(socket, folder.path().join("state/gpulayer.sock"));
                Ok("own".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_flag_beats_the_setting_and_the_setting_beats_the_own_daemon() {
        let flag = Some("http://127.0.0.1:1");
        assert_eq!(chosen(flag, Some("http://127.0.0.1:2")).unwrap(), "http://127.0.0.1:1");
        assert_eq!(chosen(None, Some("http://127.0.0.1:2")).unwrap(), "http://127.0.0.1:2");
        assert_eq!(chosen(Some("/tmp/x.sock"), None).unwrap(), "unix:/tmp/x.sock");
        assert!(chosen(Some("laptop"), None).unwrap_err().contains("saved connections"));
    }
}
