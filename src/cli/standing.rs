//! How the daemon was told to listen by the last `up`, for as long as that holds: until `down`. A daemon that was
//! killed comes back like that, so that workers elsewhere find it again.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::on_demand::StartError;
use super::server_args::UpArgs;
use crate::config::Settings;

/// What `up` was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Standing {
    /// Where it listens.
    pub(super) host: IpAddr,
    /// On which port; the one that was free, when it was told to take any.
    pub(super) port: u16,
    /// How others are told to reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) advertise_address: Option<String>,
    /// Whether this host's worker runs inside.
    pub(super) with_worker: bool,
}

fn path(state: &Path) -> PathBuf {
    state.join("up.json")
}

fn fault(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::File { operation, path: path.to_owned(), source }
}

impl Standing {
    /// What this `up` asks for: its flags, for the rest what holds already, else the defaults.
    pub(super) fn asked(args: &UpArgs, before: Option<&Self>, settings: &Settings) -> Self {
        let all = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        // "Any free one" is content with the one it has.
        let port = args.port.filter(|port| *port != 0 || before.is_none());
        Self {
            host: args.host.or(before.map(|before| before.host)).unwrap_or(all),
            port: port.or(before.map(|before| before.port)).unwrap_or(settings.port),
            advertise_address: args
                .advertise_address
                .clone()
                .or_else(|| before.and_then(|before| before.advertise_address.clone())),
            with_worker: !args.no_worker && before.is_none_or(|before| before.with_worker),
        }
    }

    /// What holds; `None` after `down`.
    pub(super) fn read(state: &Path) -> Result<Option<Self>, StartError> {
        let path = path(state);
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(fault("read", &path))?,
        };
        // Half a file is what a full disk leaves; the next `up` writes it anew.
        Ok(serde_json::from_slice(&text).ok())
    }

    /// From now on this holds.
    pub(super) fn remember(&self, state: &Path) -> Result<(), StartError> {
        let path = path(state);
        let beside = path.with_extension("new");
        let written =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside).and_then(
                |mut file| {
                    file.write_all(&serde_json::to_vec(self)?)?;
                    file.sync_all()?;
                    std::fs::rename(&beside, &path)
                },
            );
        written.map_err(fault("write", &path))
    }

    /// Whether whoever reaches a server that listens on `now` would not find it as this says.
    pub(super) fn leaves(&self, now: SocketAddr) -> bool {
        self.port != now.port() || self.host != now.ip() && !self.host.is_unspecified()
    }

    /// For `server start`.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "--self-signed".to_owned(),
            "--host".to_owned(),
            self.host.to_string(),
            "--port".to_owned(),
            self.port.to_string(),
        ];
        if let Some(address) = &self.advertise_address {
            arguments.extend(["--advertise-address".to_owned(), address.clone()]);
        }
        if !self.with_worker {
            arguments.push("--no-worker".to_owned());
        }
        arguments
    }
}

/// From now on nothing holds.
pub(super) fn forget(state: &Path) -> Result<(), StartError> {
    let path = path(state);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fault("remove", &path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> UpArgs {
        UpArgs { port: None, host: None, advertise_address: None, no_worker: false, yes: false }
    }

    #[test]
    fn what_was_said_once_holds_until_something_else_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::under(folder.path()).unwrap();
        let first = Standing::asked(&args(), None, &settings);
        assert_eq!((first.host.to_string(), first.port, first.with_worker), ("::".into(), 8470, true));
        let given = UpArgs { port: Some(9000), host: Some([127, 0, 0, 1].into()), no_worker: true, ..args() };
        let second = Standing::asked(&given, Some(&first), &settings);
        assert_eq!(Standing::asked(&args(), Some(&second), &settings), second);
        let any = UpArgs { port: Some(0), ..args() };
        assert_eq!(Standing::asked(&any, Some(&second), &settings), second);
        assert_eq!(Standing::asked(&any, None, &settings).port, 0);
    }

    #[test]
    fn a_server_leaves_a_place_with_its_port_or_for_a_narrower_host() {
        let at = |host: &str, port| Standing {
            host: host.parse().unwrap(),
            port,
            advertise_address: None,
            with_worker: true,
        };
        let now = |text: &str| text.parse::<SocketAddr>().unwrap();
        for stays in ["[::]:8470", "10.0.0.7:8470", "127.0.0.1:8470"] {
            assert!(!at("::", 8470).leaves(now(stays)), "{stays}");
        }
        assert!(!at("10.0.0.7", 8470).leaves(now("10.0.0.7:8470")));
        assert!(at("::", 8471).leaves(now("[::]:8470")));
        assert!(at("127.0.0.1", 8470).leaves(now("[::]:8470")));
        assert!(at("10.0.0.8", 8470).leaves(now("10.0.0.7:8470")));
    }

    #[test]
    fn it_is_kept_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::under(folder.path()).unwrap();
        let standing = Standing::asked(&args(), None, &settings);
        assert_eq!(Standing::read(folder.path()).unwrap(), None);
        forget(folder.path()).unwrap();
        standing.remember(folder.path()).unwrap();
        assert_eq!(Standing::read(folder.path()).unwrap(), Some(standing));
        std::fs::write(path(folder.path()), "{\"ho").unwrap();
        assert_eq!(Standing::read(folder.path()).unwrap(), None);
        forget(folder.path()).unwrap();
        assert!(!path(folder.path()).exists());
    }
}
