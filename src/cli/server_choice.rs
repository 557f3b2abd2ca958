//! Which server a command speaks with (CONTRACT, Command line): `--server`, `GPULAYER_URL`, the saved one in use, the
//! machine's daemon if it is mine, the own daemon. A configured server that does not answer is an error, never a reason
//! to take another.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::error::CliError;
use super::on_demand::OwnDaemon;
use crate::client::{Client, ClientError, ConnectionString, Endpoint, Trust, connection_string};
use crate::config::Settings;
use crate::config::connections::{self, Connection, Connections};
use crate::credentials::CLIENT_PREFIX;

/// The name by which `--server` means the own daemon, whatever is saved.
pub(super) const LOCAL: &str = "local";
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
    /// Named by a flag, a variable or the file, or saved.
    Configured(Target),
    /// The machine's daemon, run as this user.
    Machine(PathBuf),
    /// The own daemon.
    Own(PathBuf),
}

/// A server that was named, and what is needed to speak with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    pub(super) trust: Trust,
    pub(super) token: Option<String>,
}

impl Target {
    /// What a saved connection says.
    pub(super) fn saved(connection: &Connection) -> Result<Self, CliError> {
        let endpoint = Endpoint::parse(&connection.url).map_err(ClientError::from)?;
        let trust = Trust { pins: connection.pins.clone(), ca_file: connection.ca_file.clone() };
        Ok(Self { endpoint, trust, token: connection.token.clone() })
    }

    /// A client that has not connected yet.
    pub(super) fn client(&self) -> Result<Client, CliError> {
        let client = patient(Client::new(self.endpoint.clone()).with_trust(self.trust.clone()));
        Ok(match &self.token {
            Some(token) => client.with_token(token)?,
            None => client,
        })
    }
}

/// Decides where to connect.
pub(super) fn choose(flag: Option<&str>, settings: &Settings) -> Result<Choice, CliError> {
    if let Some(given) = flag.or(settings.url.as_deref()) {
        if given == LOCAL {
            return Ok(Choice::Own(settings.places.socket()));
        }
        return Ok(Choice::Configured(target(given, settings)?));
    }
    let saved = Connections::load(&settings.places.connections())?;
    if let Some((_, connection)) = saved.current() {
        return Ok(Choice::Configured(Target::saved(connection)?));
    }
    let machine = Path::new(MACHINE_SOCKET);
    let mine = std::fs::symlink_metadata(machine)
        .is_ok_and(|found| found.uid() == rustix::process::getuid().as_raw());
    if mine { Ok(Choice::Machine(machine.to_owned())) } else { Ok(Choice::Own(settings.places.socket())) }
}

/// What a name, a URL, a path or a connection string stands for.
pub(super) fn target(given: &str, settings: &Settings) -> Result<Target, CliError> {
    if given.starts_with(connection_string::SCHEME) {
        let ConnectionString { endpoint, token, pins } =
            ConnectionString::parse(given).map_err(ClientError::from)?;
        if !token.starts_with(CLIENT_PREFIX) {
            return Err(CliError::JoinToken);
        }
        let trust = Trust { pins, ca_file: settings.ca_file.clone() };
        return Ok(Target { endpoint, trust, token: Some(token) });
    }
    if connections::is_name(given) {
        let saved = Connections::load(&settings.places.connections())?;
        return match saved.connections.get(given) {
            Some(connection) => {
                let saved = Target::saved(connection)?;
                Ok(Target { token: saved.token.or_else(|| settings.token.clone()), ..saved })
            }
            None => Err(CliError::NoSuchServer {
                name: given.to_owned(),
                known: saved.connections.into_keys().collect(),
            }),
        };
    }
    let endpoint = if given.starts_with('/') {
        Endpoint::Unix(given.into())
    } else {
        Endpoint::parse(given).map_err(ClientError::from)?
    };
    let trust = Trust { pins: settings.pins.clone(), ca_file: settings.ca_file.clone() };
    let said = Target { endpoint, trust, token: settings.token.clone() };
    if said.token.is_some() || said.trust != Trust::default() {
        return Ok(said);
    }
    // A server that is known does not become a stranger because its address was typed.
    let saved = Connections::load(&settings.places.connections())?;
    let url = said.endpoint.to_string();
    match saved.connections.values().find(|connection| connection.url == url) {
        Some(connection) => Target::saved(connection),
        None => Ok(said),
    }
}

/// The saved server whose token a command used, by its name and address.
pub(super) fn saved_token(flag: Option<&str>, settings: &Settings) -> Option<(String, String)> {
    let saved = Connections::load(&settings.places.connections()).ok()?;
    let given = flag.or(settings.url.as_deref());
    let (name, connection) = match given {
        None => saved.current()?,
        Some(given) => {
            let named = saved.connections.get_key_value(given).or_else(|| {
                // A token that was given goes before the one that is saved for an address.
                let by_address =
                    settings.token.is_none().then(|| Endpoint::parse(given).ok()).flatten()?.to_string();
                saved.connections.iter().find(|(_, connection)| connection.url == by_address)
            });
            named.map(|(name, connection)| (name.as_str(), connection))?
        }
    };
    connection.token.as_ref().map(|_| (name.to_owned(), connection.url.clone()))
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
    let client = match choose(flag, settings)? {
        Choice::Configured(target) => return Ok(Server { client: target.client()?, own: false }),
        Choice::Machine(socket) => Client::new(Endpoint::Unix(socket)),
        Choice::Own(socket) => {
            let client = Client::new(Endpoint::Unix(socket));
            match on_demand {
                OnDemand::Start => client.with_revive(Arc::new(OwnDaemon::of(settings))),
                OnDemand::Leave => client,
            }
        }
    };
    Ok(Server { client: patient(client), own: true })
}

/// With the times that suit a person who waits.
fn patient(client: Client) -> Client {
    client.with_reconnect_for(RECONNECT_FOR).with_answer_within(ANSWER_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::pin::Pin;

    fn chosen(flag: Option<&str>, url: Option<&str>) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings::under(folder.path()).unwrap();
        settings.url = url.map(str::to_owned);
        match choose(flag, &settings) {
            Ok(Choice::Configured(target)) => Ok(target.endpoint.to_string()),
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
        assert!(chosen(Some("laptop"), None).unwrap_err().contains("no server is saved as `laptop`"));
        assert_eq!(chosen(Some("local"), Some("http://127.0.0.1:2")).unwrap(), "own");
    }

    #[test]
    fn a_saved_server_brings_its_token_and_its_keys() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings::under(folder.path()).unwrap();
        std::fs::create_dir_all(&settings.places.home).unwrap();
        let (url, pins) = ("https://box:8470".to_owned(), vec![Pin::from_bytes([7; 32])]);
        let saved = Connection { url: url.clone(), token: Some("glc_0f".into()), pins, ca_file: None };
        Connections::change(&settings.places.connections(), |all| {
            all.connections.insert("box".into(), saved.clone());
        })
        .unwrap();
        let whole = Target::saved(&saved).unwrap();
        assert_eq!(target("box", &settings).unwrap(), whole);
        assert_eq!(target("https://box", &settings).unwrap(), whole, "by its address");
        assert_eq!(target("https://other", &settings).unwrap().token, None);
        assert!(matches!(choose(None, &settings).unwrap(), Choice::Own(_)), "saved, and not in use");
        Connections::change(&settings.places.connections(), |all| all.current = Some("box".into())).unwrap();
        assert!(matches!(choose(None, &settings).unwrap(), Choice::Configured(target) if target == whole));
        settings.token = Some("glc_other".into());
        assert_eq!(target("https://box", &settings).unwrap().token.as_deref(), Some("glc_other"));
        assert_eq!(target("box", &settings).unwrap(), whole);
    }

    #[test]
    fn a_connection_string_is_a_server() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::under(folder.path()).unwrap();
        let given = target("gpulayer://glc_0f@box", &settings).unwrap();
        assert_eq!(
            (given.endpoint.to_string(), given.token),
            ("https://box:8470".into(), Some("glc_0f".into()))
        );
        assert!(matches!(target("gpulayer://glj_0f@box", &settings), Err(CliError::JoinToken)));
    }
}
