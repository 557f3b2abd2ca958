//! Settings: flags, then `GPULAYER_*`, then `$GPULAYER_HOME/config.toml`, then defaults. Read once at the start of
//! the process and passed on; nothing else reads the environment for settings. `docs/CONFIG.md` is printed from here.

mod background;
pub mod connections;
mod error;
pub mod host;
pub mod places;
mod projects;
pub mod readiness;
pub mod secrets;
mod table;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::contract::pin::Pin;
use crate::contract::quantity::Seconds;
use crate::domain::disk::Watermarks;
use crate::domain::log_budget::LogLimits;
use crate::domain::offered_gpus::OfferedGpus;
use crate::domain::placement::Policy;
use crate::domain::python::Building;

pub use background::background_variables;
pub use error::ConfigError;
pub use places::Places;
pub use readiness::Readiness;
pub use secrets::SecretSource;
pub use table::{SETTINGS, Setting, is_host, markdown};

/// Everything the daemon and the command line can be told from outside.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where configuration, credentials and state live.
    pub places: Places,
    /// The server to speak with instead of the own daemon.
    pub url: Option<String>,
    /// The token for it.
    pub token: Option<String>,
    /// The join token of a worker elsewhere.
    pub join_token: Option<String>,
    /// A file with it; `-` = standard input.
    pub join_token_file: Option<PathBuf>,
    /// The keys that server may have.
    pub pins: Vec<Pin>,
    /// The certificate authorities to ask about it instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Port of `gpulayer up` and `server start`.
    pub port: u16,
    /// Where others are told to reach this machine's server; a name or an address.
    pub advertise_address: Option<String>,
    /// Further names of this machine's server.
    pub server_names: Vec<String>,
    /// Below this much free disk under the state folder, submissions are refused (bytes).
    pub min_free_bytes: u64,
    /// How much of its disk the daemon's own worker leaves free.
    pub worker_disk: Watermarks,
    /// Largest artifact the server takes (bytes).
    pub max_artifact_bytes: u64,
    /// Between two heartbeats of a worker.
    pub heartbeat_s: Seconds,
    /// After which a silent task's lease runs out.
    pub lease_ttl_s: Seconds,
    /// After which a task that its worker has not started goes back to the queue.
    pub start_timeout_s: Seconds,
    /// How the machines are shared.
    pub placement: Policy,
    /// How much of what the scheduler is told is kept (bytes); 0 = nothing is recorded.
    pub scheduling_record_max_bytes: u64,
    /// After which an idle per-user daemon leaves.
    pub idle_exit_s: Seconds,
    /// Threads that serve HTTP.
    pub http_threads: usize,
    /// How much log a task of the local worker may make.
    pub log_limits: LogLimits,
    /// Cores the local worker offers, in thousandths; `None` = all it finds.
    pub worker_cpus_millis: Option<u32>,
    /// Whether jobs may name variables and files of this worker as secrets.
    pub allow_spec_secret_refs: bool,
    /// Which GPUs a worker of this machine offers.
    pub worker_gpus: OfferedGpus,
    /// The library that is asked about NVIDIA GPUs; `off` = none.
    pub nvml: Option<String>,
    /// How a worker of this machine builds Python environments.
    pub building: Building,
    /// Processes and threads a task of the local worker may have; `None` = a part of what the kernel has.
    pub task_pids_max: Option<u64>,
    /// Whether this is part of a job that names no home of its own.
    pub inside_job: bool,
    /// How long the process of a reusable function waits on a worker of this machine; zero = not at all.
    pub reuse_idle: Duration,
}

/// How one daemon process is meant to run. Made by the command line, carried out by the daemon.
#[derive(Debug)]
pub struct DaemonOptions {
    /// What it was told from outside.
    pub settings: Settings,
    /// Started by a command that found no daemon: leaves when idle, has no TCP.
    pub on_demand: bool,
    /// Where to listen on TCP; `None` = not at all. Port 0 = any free one.
    pub tcp: Option<SocketAddr>,
    /// What to show there; `None` = plain HTTP.
    pub certificate: Option<ServerCertificate>,
    /// The Unix socket.
    pub unix_socket: PathBuf,
    /// Whoever waits for this daemon to answer; `None` in the foreground.
    pub readiness: Option<Readiness>,
    /// Whether this host's own worker runs inside.
    pub with_worker: bool,
    /// Whether to write `client-token` and `join-token` under the home folder (`up`, `server start`).
    pub write_tokens: bool,
}

/// Which certificate a server shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerCertificate {
    /// One it makes itself, under the key in `$GPULAYER_HOME/tls`.
    SelfSigned,
    /// One that was given.
    Given {
        /// PEM: the server's own first.
        certificate: PathBuf,
        /// PEM.
        key: PathBuf,
    },
}

/// Whether a daemon with this home folder would take its projects: it is asked before one is started in the background,
/// so that whoever starts it is told what is wrong there.
pub fn check_projects(places: &Places) -> Result<(), ConfigError> {
    let path = places.home.join("config.toml");
    projects::read(&path, &table::read_file(&path)?).map(drop)
}

impl Settings {
    /// Reads the environment of this process and `config.toml`.
    pub fn load() -> Result<Self, ConfigError> {
        Self::load_from(&|name| std::env::var_os(name))
    }

    /// The same for a command that only speaks with a server: what the owner decided about projects is the daemon's to
    /// read, and a fault there keeps nobody from asking or stopping it. Nor does a file that is not TOML throughout: that
    /// is to be told to the user, and all but the server to ask is as if the file said nothing.
    pub fn load_to_ask() -> Result<(Self, Option<ConfigError>), ConfigError> {
        Self::load_to_ask_from(&|name| std::env::var_os(name))
    }

    /// As [`Settings::load_to_ask`] with the environment given.
    pub fn load_to_ask_from(
        env: &dyn Fn(&str) -> Option<std::ffi::OsString>,
    ) -> Result<(Self, Option<ConfigError>), ConfigError> {
        let places = Places::resolve(env)?;
        let (mut file, fault) = table::read_to_ask(&places.home.join("config.toml"))?;
        file.remove(projects::TABLE);
        Ok((table::settle(places, env, &file)?, fault))
    }

    /// As [`Settings::load`] with the environment given.
    pub fn load_from(env: &dyn Fn(&str) -> Option<std::ffi::OsString>) -> Result<Self, ConfigError> {
        let places = Places::resolve(env)?;
        let file = table::read_file(&places.home.join("config.toml"))?;
        table::settle(places, env, &file)
    }

    /// Where this machine's worker finds secrets. `own_user_only`: nobody but this user can submit jobs to it.
    pub fn secret_source(&self, own_user_only: bool) -> SecretSource {
        let allow = self.allow_spec_secret_refs || own_user_only;
        SecretSource::new(self.places.home.join("config.toml"), allow)
    }

    /// The default values, with everything under one folder: for tests and tools.
    pub fn under(folder: &Path) -> Result<Self, ConfigError> {
        let places = Places { home: folder.join("home"), state: folder.join("state") };
        table::settle(places, &|_| None, &toml::Table::new())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn load(home: &Path, env: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let mut env: HashMap<_, _> =
            env.iter().map(|(name, value)| (name.to_string(), value.into())).collect();
        env.insert("GPULAYER_HOME".to_owned(), home.as_os_str().to_owned());
        Settings::load_from(&|name| env.get(name).cloned())
    }

    #[test]
    fn a_variable_beats_the_file_and_the_file_beats_the_default() {
        let home = tempfile::tempdir().unwrap();
        let defaults = load(home.path(), &[]).unwrap();
        assert_eq!((defaults.port, defaults.lease_ttl_s), (8470, Seconds::new(20)));
        std::fs::write(home.path().join("config.toml"), "port = 9000\nlease_ttl_s = 1.5\n").unwrap();
        let filed = load(home.path(), &[]).unwrap();
        assert_eq!((filed.port, filed.lease_ttl_s), (9000, Seconds::from_millis(1500)));
        let both = load(home.path(), &[("GPULAYER_PORT", "9001")]).unwrap();
        assert_eq!((both.port, both.lease_ttl_s), (9001, Seconds::from_millis(1500)));
    }

    #[test]
    fn a_fault_among_the_projects_is_the_daemons_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("config.toml");
        std::fs::write(&file, "port = 9000\n[projects.vision]\nshares = 2\n").unwrap();
        let fault = load(home.path(), &[]).unwrap_err().to_string();
        assert!(fault.contains("projects.vision.shares"), "{fault}");
        let places = Places { home: home.path().to_owned(), state: home.path().join("state") };
        assert_eq!(check_projects(&places).unwrap_err().to_string(), fault);
        let at_home = |name: &str| (name == "GPULAYER_HOME").then(|| home.path().as_os_str().to_owned());
        let (asks, fault) = Settings::load_to_ask_from(&at_home).unwrap();
        assert_eq!((asks.port, asks.placement.projects.len()), (9000, 0), "the rest is read");
        assert!(fault.is_none());
        std::fs::write(&file, "prot = 9000\n").unwrap();
        assert!(Settings::load_to_ask_from(&at_home).is_err(), "other faults are told as ever");
    }

    #[test]
    fn what_is_no_toml_keeps_nobody_from_asking_the_server_that_is_named_and_no_other() {
        let home = tempfile::tempdir().unwrap();
        let at_home = |name: &str| (name == "GPULAYER_HOME").then(|| home.path().as_os_str().to_owned());
        let asks = |text: &str| {
            std::fs::write(home.path().join("config.toml"), text).unwrap();
            let fault = load(home.path(), &[]).unwrap_err().to_string();
            (Settings::load_to_ask_from(&at_home).map_err(|error| error.to_string()), fault)
        };
        let (read, fault) = asks("port = 9000\nurl = \"https://box\"\n[projects.vision\nshare = 2\n");
        assert!(fault.contains("config.toml:3:17: "), "{fault}");
        let (settings, told) = read.unwrap();
        assert_eq!((settings.url.as_deref(), settings.port), (Some("https://box"), 8470));
        assert_eq!(told.unwrap().to_string(), fault);
        // Below a table it is no setting.
        let (read, _) = asks("[secrets]\nurl = hunter2hunter2\n");
        assert_eq!(read.unwrap().0.url, None);
        for unclear in ["url = \"https://box\nport = 1\n", "port = = 1\n 'pin' = [\n\"sha256:00\"]\n"] {
            let (read, fault) = asks(unclear);
            assert_eq!(read.unwrap_err(), fault, "{unclear}");
        }
    }

    #[test]
    fn names_and_pins_are_lists_in_the_file_and_in_one_line_in_a_variable() {
        let home = tempfile::tempdir().unwrap();
        let pin = |byte| Pin::from_bytes([byte; 32]);
        let text = format!("pin = \"{}\"\nserver_names = [\"a.example\", \"b\"]\n", pin(1));
        std::fs::write(home.path().join("config.toml"), text).unwrap();
        let filed = load(home.path(), &[]).unwrap();
        assert_eq!((filed.pins, filed.server_names), (vec![pin(1)], vec!["a.example".into(), "b".into()]));
        let two = format!("{}, {}", pin(2), pin(3));
        let given = load(home.path(), &[("GPULAYER_PIN", &two), ("GPULAYER_SERVER_NAMES", "c d")]).unwrap();
        assert_eq!((given.pins, given.server_names), (vec![pin(2), pin(3)], vec!["c".into(), "d".into()]));
        let bad = load(home.path(), &[("GPULAYER_PIN", "sha256:ab")]).unwrap_err().to_string();
        assert!(bad.contains("GPULAYER_PIN") && bad.contains("sha256:"), "{bad}");
    }

    #[test]
    fn sizes_and_times_may_be_written_as_people_do() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config.toml"), "min_free_bytes = \"2GiB\"\nidle_exit_s = \"5m\"\n")
            .unwrap();
        let settings = load(home.path(), &[]).unwrap();
        assert_eq!((settings.min_free_bytes, settings.idle_exit_s), (2 << 30, Seconds::new(300)));
    }

    #[test]
    fn faults_name_the_key_the_place_and_the_nearest_key() {
        let home = tempfile::tempdir().unwrap();
        let fault = |text: &str| {
            std::fs::write(home.path().join("config.toml"), text).unwrap();
            load(home.path(), &[]).unwrap_err().to_string()
        };
        let unknown = fault("prot = 1\n");
        assert!(unknown.contains("`prot`") && unknown.contains("did you mean `port`"), "{unknown}");
        let kind = fault("port = \"x\"\n");
        assert!(kind.contains("`port`") && kind.contains("config.toml"), "{kind}");
        std::fs::remove_file(home.path().join("config.toml")).unwrap();
        let variable = load(home.path(), &[("GPULAYER_LEASE_TTL_S", "-1")]).unwrap_err().to_string();
        assert!(variable.contains("GPULAYER_LEASE_TTL_S"), "{variable}");
    }

    #[test]
    fn the_secrets_table_is_checked_and_its_values_are_not_shown() {
        let home = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            std::fs::write(home.path().join("config.toml"), text).unwrap();
            load(home.path(), &[]).map_err(|error| error.to_string())
        };
        assert!(read("port = 1\n[secrets]\nA = \"hunter2hunter2\"\nB = { file = \"/x\" }\n").is_ok());
        let unquoted = read("port = 1\n[secrets]\nA = hunter2hunter2\n").unwrap_err();
        assert!(unquoted.contains("config.toml:3:5: ") && !unquoted.contains("hunter2"), "{unquoted}");
        let odd = read("[secrets]\nA = { path = \"hunter2hunter2\" }\n").unwrap_err();
        assert!(odd.contains("`A`") && odd.contains("file") && !odd.contains("hunter2"), "{odd}");
        let whole = read("secrets = \"hunter2hunter2\"\n").unwrap_err();
        assert!(whole.contains("a table") && !whole.contains("hunter2"), "{whole}");
        let near = read("[secret]\nA = \"x\"\n").unwrap_err();
        assert!(near.contains("did you mean `secrets`"), "{near}");
    }

    #[test]
    fn the_config_page_is_printed_from_the_table() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/CONFIG.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(page.parent().unwrap()).unwrap();
            std::fs::write(&page, markdown()).unwrap();
        }
        let found = std::fs::read_to_string(&page).unwrap_or_default();
        assert_eq!(found, markdown(), "docs/CONFIG.md is out of date: run the tests with UPDATE=1");
    }
}
