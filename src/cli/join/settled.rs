//! From flags, what the folder remembers and settings to how a worker is to be. All faults at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::{JoinError, fault};
use super::remembered::Remembered;
use crate::cli::shown::harmless;
use crate::cli::worker_args::WorkerArgs;
use crate::client::{ConnectionString, Endpoint, Trust, connection_string};
use crate::config::{Settings, places};
use crate::contract::pin::Pin;
use crate::contract::problem::Fault;
use crate::contract::quantity::Cpus;
use crate::contract::worker::{self, WorkerKind};
use crate::credentials::CLIENT_PREFIX;
use crate::domain::disk::Watermarks;
use crate::domain::log_budget::LogLimits;
use crate::domain::offered_gpus::OfferedGpus;
use crate::domain::spec::human;
use crate::gpu::{GpuOptions, Nvml};
use crate::process::account::Account;
use crate::process::is_program;
use crate::short_file;
use crate::worker::WorkerOptions;

/// The bounds of labels (CONTRACT, The job spec).
const LABEL_KEY_BYTES: usize = 63;
const LABEL_VALUE_BYTES: usize = 255;
/// Where the folders lie of workers whose tasks run as another user, which cannot pass through root's home.
const SYSTEM_ROOT: &str = "/var/lib/gpulayer/joined";

/// A worker that can be started.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) endpoint: Endpoint,
    pub(super) trust: Trust,
    /// `None`: none was given, so the folder must hold a session.
    pub(super) token: Option<String>,
    pub(super) options: WorkerOptions,
    /// What the folder is to remember.
    pub(super) remembered: Remembered,
}

impl Settled {
    pub(super) fn folder(&self) -> &Path {
        &self.options.folder
    }
}

/// Collects what is wrong instead of stopping at the first.
#[derive(Default)]
struct Reader {
    faults: Vec<Fault>,
}

impl Reader {
    fn wrong(&mut self, flag: &str, detail: impl Into<String>) {
        self.faults.push(fault(flag, detail));
    }

    fn read<T, E: std::fmt::Display>(
        &mut self,
        flag: &str,
        given: Option<&String>,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = given?;
        read(text).map_err(|error| self.wrong(flag, format!("{text}: {error}"))).ok()
    }
}

/// Decides everything, or says all that is wrong. `server` stands in for a missing SERVER.
pub(super) fn settle(
    args: &WorkerArgs,
    server: Option<&str>,
    settings: &Settings,
) -> Result<Settled, JoinError> {
    let mut reader = Reader::default();
    let task_user = args.task_user.as_deref().and_then(|name| {
        Account::named(name).map_err(|error| reader.wrong("--task-user", error.to_string())).ok()
    });
    let roots = roots(settings, task_user.is_some());
    let server = args.server.as_deref().or(server);
    let Given { endpoint: given, token: in_string, pins } =
        server.map(|text| address(&mut reader, text)).unwrap_or_default();
    let token = in_string.or_else(|| token(&mut reader, args, settings));
    if token.as_deref().is_some_and(|token| token.starts_with(CLIENT_PREFIX)) {
        reader.wrong("--token-file", "holds the token of a client (glc_…), which `gpulayer connect` takes; a worker joins with a join token (glj_…): ~/.gpulayer/join-token on the server's machine, or what `gpulayer token create --join` makes there");
    }
    let folder = match (&args.folder, &given) {
        (Some(folder), _) => std::path::absolute(folder)
            .map_err(|error| reader.wrong("--folder", format!("{}: {error}", folder.display())))
            .ok(),
        (None, Some(endpoint)) => roots.first().map(|root| root.join(folder_name(endpoint))),
        (None, None) if server.is_none() => only_one(&mut reader, &roots),
        (None, None) => None,
    };
    let known = folder.as_deref().map(Remembered::read).transpose()?.flatten();
    let endpoint = match (given, known.as_ref()) {
        (Some(given), Some(known)) if !is_its_server(known, &given, args, &pins) => {
            let told =
                "one folder has one server: give another folder, or the pin of this server if it has moved";
            reader.wrong("--folder", format!("belongs to a worker of {}; {told}", known.url));
            None
        }
        (Some(given), _) => Some(given),
        (None, Some(known)) => Endpoint::parse(&known.url)
            .map_err(|error| reader.wrong("SERVER", format!("as the folder remembers it: {error}")))
            .ok(),
        (None, None) if server.is_none() && folder.is_some() => {
            reader.wrong("SERVER", "is needed: nobody has joined with this folder before");
            None
        }
        (None, None) => None,
    };
    let mut remembered = known.unwrap_or_default();
    remember(&mut reader, args, &mut remembered);
    believe(&mut reader, args, pins, endpoint.as_ref(), &mut remembered);
    believe_settings(settings, endpoint.as_ref(), &mut remembered);
    if let Some(folder) = &folder
        && places::on_network_file_system(folder)
    {
        reader.wrong(
            "--folder",
            format!(
                "{} is on a network file system; it has to be on a disk of this machine",
                folder.display()
            ),
        );
    }
    // A user that does not exist was said above.
    let task_user = match (task_user, &args.task_user) {
        (None, Some(_)) => None,
        (found, _) => found.or_else(|| rights(&mut reader, &remembered)),
    };
    let (Some(folder), Some(endpoint), true) = (folder, endpoint, reader.faults.is_empty()) else {
        return Err(JoinError::Faults { faults: reader.faults });
    };
    remembered.url = endpoint.to_string();
    let trust = Trust { pins: remembered.pins.clone(), ca_file: remembered.ca_file.clone() };
    let mut options = options(&remembered, folder, task_user, settings);
    options.rejoins = token.is_some();
    Ok(Settled { endpoint, trust, token, options, remembered })
}

/// The folder of a worker that has joined before: this one, that of this server, or the only one.
pub(super) fn folder_of(
    folder: Option<&Path>,
    server: Option<&str>,
    settings: &Settings,
) -> Result<PathBuf, JoinError> {
    let mut reader = Reader::default();
    let roots = roots(settings, false);
    let found = match (folder, server) {
        (Some(folder), _) => Some(folder.to_owned()),
        (None, Some(server)) => address(&mut reader, server).endpoint.and_then(|endpoint| {
            let name = folder_name(&endpoint);
            let found = roots.iter().map(|root| root.join(&name)).find(|folder| folder.exists());
            if found.is_none() {
                reader.wrong("SERVER", format!("{endpoint}: this machine has not joined it"));
            }
            found
        }),
        (None, None) => only_one(&mut reader, &roots),
    };
    found.ok_or(JoinError::Faults { faults: reader.faults })
}

/// Whom the worker of this machine that joined there believes to be that server; `None` = none joined.
pub(in crate::cli) fn joined_trust(settings: &Settings, endpoint: &Endpoint) -> Option<Trust> {
    let url = endpoint.to_string();
    let folders =
        roots(settings, false).into_iter().filter_map(|root| std::fs::read_dir(root).ok()).flatten();
    let known = folders.flatten().filter_map(|folder| Remembered::read(&folder.path()).ok().flatten());
    known
        .filter(|known| known.url == url)
        .map(|known| Trust { pins: known.pins, ca_file: known.ca_file })
        .next()
}

/// Where folders lie that nobody named: the first is for new ones.
fn roots(settings: &Settings, other_user: bool) -> Vec<PathBuf> {
    let own = settings.places.state.join("joined");
    if !rustix::process::geteuid().is_root() {
        return vec![own];
    }
    // Somebody who said where state goes means it.
    let usual = settings.places.home.ends_with(".gpulayer") && own.starts_with(&settings.places.home);
    if other_user && usual { vec![SYSTEM_ROOT.into(), own] } else { vec![own, SYSTEM_ROOT.into()] }
}

/// What SERVER says.
#[derive(Default)]
struct Given {
    endpoint: Option<Endpoint>,
    token: Option<String>,
    pins: Vec<Pin>,
}

fn address(reader: &mut Reader, text: &str) -> Given {
    if !text.starts_with(connection_string::SCHEME) {
        let endpoint = Endpoint::parse(text).map_err(|error| reader.wrong("SERVER", error.to_string())).ok();
        return Given { endpoint, ..Given::default() };
    }
    match ConnectionString::parse(text) {
        Ok(ConnectionString { token, .. }) if !token.starts_with("glj_") => {
            reader.wrong("SERVER", "holds the token of a client (glc_…), which `gpulayer connect` takes; a worker joins with a join token (glj_…)");
            Given::default()
        }
        Ok(ConnectionString { endpoint, token, pins }) => {
            Given { endpoint: Some(endpoint), token: Some(token), pins }
        }
        Err(error) => {
            reader.wrong("SERVER", error.to_string());
            Given::default()
        }
    }
}

/// Whether a folder's worker may say its session token there: at the address it knows, at another of this machine, or
/// to a server that has to prove to have the key that was pinned.
fn is_its_server(known: &Remembered, given: &Endpoint, args: &WorkerArgs, pins: &[Pin]) -> bool {
    let near = |url: &str| Endpoint::parse(url).is_ok_and(|endpoint| endpoint.is_loopback());
    let mut told = pins.iter().copied().chain(args.pin.iter().filter_map(|text| text.parse().ok()));
    known.url == given.to_string()
        || (known.pins.is_empty() && near(&known.url) && given.is_loopback())
        || (matches!(given, Endpoint::Https { .. }) && told.any(|pin| known.pins.contains(&pin)))
}

/// Whom to believe to be the server: what was given last.
fn believe(
    reader: &mut Reader,
    args: &WorkerArgs,
    mut pins: Vec<Pin>,
    endpoint: Option<&Endpoint>,
    to: &mut Remembered,
) {
    for text in &args.pin {
        match text.parse() {
            Ok(pin) => pins.push(pin),
            Err(_) => reader.wrong("--pin", format!("{text}: expected sha256: and 64 hex digits")),
        }
    }
    if let Some(path) = &args.ca_file {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        if let Err(error) = std::fs::File::open(&path) {
            reader.wrong("--ca-file", format!("{} cannot be read: {error}", path.display()));
        }
        (to.ca_file, to.pins) = (Some(path), Vec::new());
    }
    if !pins.is_empty() {
        (to.ca_file, to.pins) = (None, pins);
    }
    to.allow_insecure_remote |= args.allow_insecure_remote;
    if let Some(endpoint @ Endpoint::Tcp { .. }) = endpoint {
        if !to.pins.is_empty() || to.ca_file.is_some() {
            reader.wrong("SERVER", format!("{endpoint}: --pin and --ca-file are for https://"));
        }
        if !endpoint.is_loopback() && !to.allow_insecure_remote {
            reader.wrong(
                "SERVER",
                format!("{endpoint}: over http:// the token crosses the network in the open; use https://, or say --allow-insecure-remote"),
            );
        }
    }
}

/// `GPULAYER_PIN` and `GPULAYER_CA_FILE`, if nothing else was ever said and they are not for another server.
fn believe_settings(settings: &Settings, endpoint: Option<&Endpoint>, to: &mut Remembered) {
    let Some(endpoint @ Endpoint::Https { .. }) = endpoint else { return };
    let of_another = settings.url.as_deref().and_then(|url| Endpoint::parse(url).ok());
    if to.pins.is_empty() && to.ca_file.is_none() && of_another.is_none_or(|other| other == *endpoint) {
        (to.pins, to.ca_file) = (settings.pins.clone(), settings.ca_file.clone());
    }
}

/// `box-8470`.
fn folder_name(endpoint: &Endpoint) -> String {
    let shown = endpoint.to_string();
    let authority = shown.split_once("://").or_else(|| shown.split_once(':')).map_or("", |(_, rest)| rest);
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = authority.trim_matches('/').chars().map(plain).collect();
    name.trim_matches('-').to_owned()
}

/// The folder of the only worker that was joined before.
fn only_one(reader: &mut Reader, roots: &[PathBuf]) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = roots
        .iter()
        .filter_map(|root| std::fs::read_dir(root).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| matches!(Remembered::read(folder), Ok(Some(_))))
        .collect();
    found.sort();
    match found.as_slice() {
        [only] => return Some(only.clone()),
        [] => reader.wrong("SERVER", "is needed: this machine has joined no server yet"),
        several => {
            let shown: Vec<_> = several.iter().map(|folder| folder.display().to_string()).collect();
            reader.wrong("SERVER", format!("or --folder is needed: there are {}", shown.join(", ")));
        }
    }
    None
}

fn token(reader: &mut Reader, args: &WorkerArgs, settings: &Settings) -> Option<String> {
    let (flag, path) = match (&args.token_file, &settings.join_token_file) {
        (Some(path), _) => ("--token-file", path),
        (None, _) if settings.join_token.is_some() => return settings.join_token.clone(),
        (None, Some(path)) => ("GPULAYER_JOIN_TOKEN_FILE", path),
        (None, None) => return None,
    };
    let text = if path == Path::new("-") {
        short_file::take_text(std::io::stdin().lock(), short_file::TOKEN_BYTES)
    } else {
        short_file::read_text(path, short_file::TOKEN_BYTES)
    };
    match text {
        Ok(text) if text.trim().is_empty() => {
            reader.wrong(flag, format!("{} holds no token", path.display()));
            None
        }
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) => {
            reader.wrong(flag, format!("{} cannot be read: {error}", path.display()));
            None
        }
    }
}

/// What was given goes over what was given before.
fn remember(reader: &mut Reader, args: &WorkerArgs, to: &mut Remembered) {
    fn set<T>(to: &mut Option<T>, value: Option<T>) {
        if value.is_some() {
            *to = value;
        }
    }
    if let Some(name) = &args.name {
        if !worker::is_name(name) {
            reader.wrong("--name", format!("{}: expected {}", harmless(name, false), worker::NAME_RULE));
        }
        to.name = Some(name.clone());
    }
    if !args.labels.is_empty() {
        to.labels = labels(reader, &args.labels);
    }
    set(
        &mut to.cpus,
        reader.read("--cpus", args.cpus.as_ref(), |text| {
            serde_json::from_str::<Cpus>(text)
                .ok()
                .filter(|cpus| cpus.millis() > 0)
                .ok_or("expected a number above 0 with up to 3 decimals")
        }),
    );
    set(&mut to.memory_bytes, reader.read("--memory", args.memory.as_ref(), human::bytes));
    set(
        &mut to.gpus,
        reader.read("--gpus", args.gpus.as_ref(), |text| {
            text.parse::<OfferedGpus>().map(|choice| choice.to_string())
        }),
    );
    if !args.pythons.is_empty() {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        to.pythons = args.pythons.iter().map(absolute).collect();
    }
    // Remembered ones too: a restart after an interpreter went says so instead of offering it.
    for path in &to.pythons {
        if !is_program(path) {
            reader.wrong("--python", format!("{}: there is no program there", path.display()));
        }
    }
    if let Some(address) = &args.advertise_address {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_');
        if address.is_empty() || address.len() > 253 || !address.chars().all(plain) {
            reader.wrong("--advertise-address", format!("{address}: expected an address or a name"));
        }
        to.advertise_address = Some(address.clone());
    }
    if args.allow_root_tasks {
        (to.allow_root_tasks, to.task_user) = (true, None);
    }
    if args.task_user.is_some() {
        (to.allow_root_tasks, to.task_user) = (false, args.task_user.clone());
    }
    set(&mut to.min_free_bytes, reader.read("--min-free", args.min_free.as_ref(), human::bytes));
    set(&mut to.evict_below_bytes, reader.read("--evict-below", args.evict_below.as_ref(), human::bytes));
    set(&mut to.log_budget_bytes, reader.read("--log-budget", args.log_budget.as_ref(), human::bytes));
    set(&mut to.log_refill_bytes_per_s, reader.read("--log-refill", args.log_refill.as_ref(), human::bytes));
    set(&mut to.log_full_max_bytes, reader.read("--log-full-max", args.log_full_max.as_ref(), human::bytes));
}

fn labels(reader: &mut Reader, given: &[String]) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for text in given {
        let (key, value) = text.split_once('=').unwrap_or_default();
        let fits = (1..=LABEL_KEY_BYTES).contains(&key.len()) && value.len() <= LABEL_VALUE_BYTES;
        if !fits || text.chars().any(worker::is_unseen) {
            reader.wrong(
                "--label",
                format!(
                    "{}: expected KEY=VALUE, the key of 1 to 63 bytes, the value of at most 255, all of which is seen",
                    harmless(text, false)
                ),
            );
        }
        labels.insert(key.to_owned(), value.to_owned());
    }
    labels
}

/// Whom tasks run as, which root has to say.
fn rights(reader: &mut Reader, remembered: &Remembered) -> Option<Account> {
    let is_root = rustix::process::geteuid().is_root();
    match &remembered.task_user {
        Some(_) if !is_root => {
            reader.wrong("--task-user", "only a worker that runs as root can run tasks as another user");
            None
        }
        Some(name) => {
            Account::named(name).map_err(|error| reader.wrong("--task-user", error.to_string())).ok()
        }
        None => {
            if is_root && !remembered.allow_root_tasks {
                reader.wrong(
                    "--task-user USER",
                    "or --allow-root-tasks is needed for a worker that runs as root: with the first, tasks run as USER and cannot touch the worker; with the second they run as root, so that whoever may submit jobs owns this machine",
                );
            }
            None
        }
    }
}

fn options(
    from: &Remembered,
    folder: PathBuf,
    task_user: Option<Account>,
    settings: &Settings,
) -> WorkerOptions {
    // The system takes one character more than a worker's name may have.
    let machine = || rustix::system::uname().nodename().to_string_lossy().chars().take(63).collect();
    let (disk, log) = (settings.worker_disk, settings.log_limits);
    WorkerOptions {
        labels: from.labels.clone(),
        cpus: from.cpus,
        memory_bytes: from.memory_bytes,
        secrets: settings.secret_source(false),
        disk: Watermarks {
            min_free_bytes: from.min_free_bytes.unwrap_or(disk.min_free_bytes),
            evict_below_bytes: from.evict_below_bytes.unwrap_or(disk.evict_below_bytes),
        },
        log_limits: LogLimits {
            budget_bytes: from.log_budget_bytes.unwrap_or(log.budget_bytes),
            refill_bytes_per_s: from.log_refill_bytes_per_s.unwrap_or(log.refill_bytes_per_s),
            full_max_bytes: from.log_full_max_bytes.unwrap_or(log.full_max_bytes),
        },
        task_pids_max: settings.task_pids_max,
        reuse_idle: settings.reuse_idle,
        building: settings.building.clone(),
        task_user,
        gpus: GpuOptions {
            nvml: Nvml::of_setting(settings.nvml.as_deref()),
            // Read when it was given, or in a file that a person may have changed.
            offered: from
                .gpus
                .as_deref()
                .and_then(|text| text.parse().ok())
                .unwrap_or_else(|| settings.worker_gpus.clone()),
            ..GpuOptions::default()
        },
        pythons: from.pythons.iter().map(|path| path.display().to_string()).collect(),
        advertise_address: from.advertise_address.clone(),
        ..WorkerOptions::new(folder, from.name.clone().unwrap_or_else(machine), WorkerKind::Remote)
    }
}

#[cfg(test)]
mod tests;
