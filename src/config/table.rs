//! The one table of settings: key, default, kind and meaning. The file, the variables and `docs/CONFIG.md` all
//! follow it.

use std::ffi::OsString;
use std::path::Path;

use toml::Value;

use super::{ConfigError, Places, Settings, projects, secrets};
use crate::contract::pin::Pin;
use crate::contract::quantity::Seconds;
use crate::domain::disk::Watermarks;
use crate::domain::log_budget::LogLimits;
use crate::domain::offered_gpus::OfferedGpus;
use crate::domain::placement::Policy;
use crate::domain::python::Building;
use crate::domain::spec::{human, nearest};
use crate::short_file;

/// What a setting holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Port,
    Count,
    Few,
    Bytes,
    Seconds,
    SomeSeconds,
    Cpus,
    Switch,
    Names,
    Pins,
    Gpus,
}

impl Kind {
    const fn expected(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Port => "a port from 0 to 65535",
            Kind::Count => "a number from 1 to 256",
            Kind::Few => "a number from 0 to 256",
            Kind::Bytes => "a number of bytes, or a size such as `2GiB`",
            Kind::Seconds => "a number of seconds above 0",
            Kind::SomeSeconds => "a number of seconds from 0",
            Kind::Cpus => "a number of CPUs above 0 with up to 3 decimals",
            Kind::Gpus => {
                "`all`, `none`, how many, or a list of places in PCI order and uuids (as text with commas between)"
            }
            Kind::Switch => "`true` or `false`",
            Kind::Names => "host names or addresses, with commas between",
            Kind::Pins => "pins, each `sha256:` and 64 hex digits, with commas between",
        }
    }
}

/// One line of the table.
#[derive(Debug)]
pub struct Setting {
    /// The key in `config.toml`.
    pub key: &'static str,
    /// The variable that beats the file.
    pub variable: &'static str,
    /// What holds when neither is there, as text.
    pub default: &'static str,
    kind: Kind,
    /// One sentence.
    pub meaning: &'static str,
}

macro_rules! settings {
    ($($key:literal $variable:literal $default:literal $kind:ident $meaning:literal;)*) => {
        /// Every setting, in the order of the page.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            key: $key, variable: $variable, default: $default, kind: Kind::$kind, meaning: $meaning,
        }),*];
    };
}

settings! {
    "url" "GPULAYER_URL" "" Text "The server to speak with instead of the own daemon: `https://HOST[:PORT]`, `http://HOST[:PORT]`, `unix:/PATH`, or a connection string `gpulayer://…`.";
    "token" "GPULAYER_TOKEN" "" Text "The token for that server.";
    "join_token" "GPULAYER_JOIN_TOKEN" "" Text "The join token with which a worker elsewhere first joins; better in a file.";
    "join_token_file" "GPULAYER_JOIN_TOKEN_FILE" "" Text "A file that holds it.";
    "pin" "GPULAYER_PIN" "" Pins "The key that server must have, or one of several; its certificate counts for nothing else then.";
    "ca_file" "GPULAYER_CA_FILE" "" Text "PEM file with the certificate authorities to believe about that server, instead of the system's.";
    "port" "GPULAYER_PORT" "8470" Port "Port of `gpulayer up` and `gpulayer server start`; 0 = any free one.";
    "advertise_address" "GPULAYER_ADVERTISE_ADDRESS" "" Text "The name or address under which others reach this machine's server; that of the default route when not set.";
    "server_names" "GPULAYER_SERVER_NAMES" "" Names "Further names of this machine's server: its own certificate holds them, and requests may use them.";
    "min_free_bytes" "GPULAYER_MIN_FREE_BYTES" "536870912" Bytes "Below this much free disk under the state folder, submissions are refused (`storage_full`); finishes and cancels go on.";
    "worker_min_free_bytes" "GPULAYER_WORKER_MIN_FREE_BYTES" "536870912" Bytes "Below this much free disk under its folder a worker takes no tasks, and is shown as `unhealthy`.";
    "worker_evict_below_bytes" "GPULAYER_WORKER_EVICT_BELOW_BYTES" "2147483648" Bytes "Below this much a worker removes cached artifacts and Python environments, then kept workspaces, the oldest first.";
    "max_artifact_bytes" "GPULAYER_MAX_ARTIFACT_BYTES" "1099511627776" Bytes "Largest artifact the server takes.";
    "heartbeat_s" "GPULAYER_HEARTBEAT_S" "2" Seconds "Between two heartbeats of a worker.";
    "lease_ttl_s" "GPULAYER_LEASE_TTL_S" "20" Seconds "After this long without a heartbeat a worker's tasks are no longer its own.";
    "start_timeout_s" "GPULAYER_START_TIMEOUT_S" "20" Seconds "A task that its worker has not started by then goes back to the queue.";
    "fair_share_half_life_s" "GPULAYER_FAIR_SHARE_HALF_LIFE_S" "86400" Seconds "After this long what a project used counts half in its fair share.";
    "reservations" "GPULAYER_RESERVATIONS" "8" Few "For so many jobs that find no place workers may be reserved at a time; 0 = none, so that what fits goes first.";
    "scheduling_record_max_bytes" "GPULAYER_SCHEDULING_RECORD_MAX_BYTES" "67108864" Bytes "So much of what the scheduler was told and answered is kept for `gpulayer replay`; the oldest goes first, 0 = nothing is recorded.";
    "idle_exit_s" "GPULAYER_IDLE_EXIT_S" "600" Seconds "An on-demand daemon with nothing queued, running or asked leaves after this long.";
    "http_threads" "GPULAYER_HTTP_THREADS" "1" Count "Threads that serve HTTP.";
    "log_budget_bytes" "GPULAYER_LOG_BUDGET_BYTES" "16777216" Bytes "So much of what a task prints is stored as lines at once; beyond, lines that come too fast are elided and kept in the log artifact.";
    "log_refill_bytes_per_s" "GPULAYER_LOG_REFILL_BYTES_PER_S" "16384" Bytes "What a task's log budget gets back every second.";
    "log_full_max_bytes" "GPULAYER_LOG_FULL_MAX_BYTES" "1073741824" Bytes "So much of a task's whole text is kept as its log artifact.";
    "worker_cpus" "GPULAYER_WORKER_CPUS" "" Cpus "CPUs the daemon's own worker offers; all of the machine's when not set.";
    "worker_gpus" "GPULAYER_WORKER_GPUS" "all" Gpus "GPUs a worker of this machine offers: `all`, `none`, how many (the first in PCI order), or a list of places in PCI order and uuids (`[0, 3]`; as text `0,3`, and `3,` for the one in place 3). `join --gpus` beats it.";
    "nvml" "GPULAYER_NVML" "" Text "The library by which a worker of this machine asks about NVIDIA GPUs: a path, or `off` to leave them alone; the driver's own `libnvidia-ml.so.1` when not set.";
    "uv" "GPULAYER_UV" "" Text "The `uv` by which a worker of this machine builds Python environments: a path; when not set, the one in a task's `PATH`, beside `gpulayer`, or in `~/.local/bin`.";
    "environment_timeout_s" "GPULAYER_ENVIRONMENT_TIMEOUT_S" "3600" Seconds "How long a worker of this machine builds a Python environment; a build that takes longer is ended, and its job with it.";
    "allow_spec_secret_refs" "GPULAYER_ALLOW_SPEC_SECRET_REFS" "false" Switch "Whether jobs may name variables and files of this worker as their secrets (`env:NAME`, `file:/PATH`). A daemon without TCP always allows it: only its own user can submit there.";
    "task_pids_max" "GPULAYER_TASK_PIDS_MAX" "" Count "Processes and threads a task of the daemon's own worker may have at once, where the machine can hold it to that (`docs/OPERATING.md`, Limits); half of what the kernel numbers, and at most 32768, when not set.";
    "reuse_idle_s" "GPULAYER_REUSE_IDLE_S" "60" SomeSeconds "How long the process of a function with `reuse` waits on a worker of this machine for its next call; 0 = not at all, each call has a process of its own.";
}

/// The settings that say which server is asked, and how it is known.
const WHO_IS_ASKED: [&str; 4] = ["url", "token", "pin", "ca_file"];

/// Reads `config.toml`; an absent file is an empty one.
pub(super) fn read_file(path: &Path) -> Result<toml::Table, ConfigError> {
    let text = text_of(path)?;
    let table = text.parse().map_err(|error| ConfigError::not_toml(path, &text, &error))?;
    checked(path, table)
}

/// The same for whoever only asks a server. Of a file that is not TOML throughout this is what says which one, and the
/// fault; nobody is asked in its place when just that cannot be read.
pub(super) fn read_to_ask(path: &Path) -> Result<(toml::Table, Option<ConfigError>), ConfigError> {
    let text = text_of(path)?;
    let fault = match text.parse::<toml::Table>() {
        Ok(table) => return checked(path, table).map(|table| (table, None)),
        Err(error) => ConfigError::not_toml(path, &text, &error),
    };
    let mut asked = toml::Table::new();
    for line in text.lines().take_while(|line| !line.trim_start().starts_with('[')) {
        let begins = |key: &&str| {
            let rest = line.trim_start().trim_start_matches(['"', '\'']).strip_prefix(*key);
            rest.is_some_and(|rest| rest.starts_with(['=', ' ', '\t', '"', '\'']))
        };
        if !WHO_IS_ASKED.iter().any(begins) {
            continue;
        }
        let Ok(own) = line.parse::<toml::Table>() else { return Err(fault) };
        asked.extend(own);
    }
    Ok((asked, Some(fault)))
}

fn text_of(path: &Path) -> Result<String, ConfigError> {
    match short_file::read_text(path, short_file::SETTINGS_BYTES) {
        Ok(text) => Ok(text),
        Err(absent) if absent.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(ConfigError::Unreadable { path: path.to_owned(), source }),
    }
}

fn checked(path: &Path, table: toml::Table) -> Result<toml::Table, ConfigError> {
    let keys = || SETTINGS.iter().map(|setting| setting.key).chain([secrets::TABLE, projects::TABLE]);
    if let Some(key) = table.keys().find(|key| keys().all(|known| known != *key)) {
        let near = nearest(key, keys());
        let hint = near.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        return Err(ConfigError::UnknownKey { path: path.to_owned(), key: key.clone(), hint });
    }
    check_secrets(path, &table)?;
    Ok(table)
}

/// The values themselves are read when a task needs them.
fn check_secrets(path: &Path, file: &toml::Table) -> Result<(), ConfigError> {
    let bad = |key: &str, expected| {
        Err(ConfigError::BadSecret { path: path.to_owned(), key: key.to_owned(), expected })
    };
    match file.get(secrets::TABLE) {
        None => Ok(()),
        Some(Value::Table(table)) => match table.iter().find(|(_, entry)| !secrets::is_entry(entry)) {
            Some((key, _)) => bad(key, secrets::ENTRY),
            None => Ok(()),
        },
        Some(_) => bad(secrets::TABLE, "a table of names and values"),
    }
}

/// Decides every setting.
pub(super) fn settle(
    places: Places,
    env: &dyn Fn(&str) -> Option<OsString>,
    file: &toml::Table,
) -> Result<Settings, ConfigError> {
    let file_name = places.home.join("config.toml").display().to_string();
    let given = Given { env, file, file_name: &file_name };
    Ok(Settings {
        url: given.text("url")?,
        token: given.text("token")?,
        join_token: given.text("join_token")?,
        join_token_file: given.text("join_token_file")?.map(std::path::PathBuf::from),
        pins: given.optional("pin", pins)?.unwrap_or_default(),
        ca_file: given.text("ca_file")?.map(Into::into),
        advertise_address: given.optional("advertise_address", |value| {
            value.as_str().filter(|address| is_host(address)).map(str::to_owned)
        })?,
        server_names: given.optional("server_names", names)?.unwrap_or_default(),
        port: given.required("port", |value| u16::try_from(whole(value)?).ok())?,
        min_free_bytes: given.required("min_free_bytes", bytes)?,
        worker_disk: Watermarks {
            min_free_bytes: given.required("worker_min_free_bytes", bytes)?,
            evict_below_bytes: given.required("worker_evict_below_bytes", bytes)?,
        },
        max_artifact_bytes: given.required("max_artifact_bytes", bytes)?,
        heartbeat_s: given.required("heartbeat_s", seconds)?,
        lease_ttl_s: given.required("lease_ttl_s", seconds)?,
        start_timeout_s: given.required("start_timeout_s", seconds)?,
        idle_exit_s: given.required("idle_exit_s", seconds)?,
        http_threads: given.required("http_threads", |value| {
            usize::try_from(whole(value)?).ok().filter(|count| (1..=256).contains(count))
        })?,
        log_limits: LogLimits {
            budget_bytes: given.required("log_budget_bytes", bytes)?,
            refill_bytes_per_s: given.required("log_refill_bytes_per_s", bytes)?,
            full_max_bytes: given.required("log_full_max_bytes", bytes)?,
        },
        worker_cpus_millis: given.optional("worker_cpus", |value| {
            let millis = (number(value)? * 1000.0).round();
            (1.0..=4e9).contains(&millis).then_some(millis as u32)
        })?,
        worker_gpus: given.required("worker_gpus", offered_gpus)?,
        nvml: given.text("nvml")?,
        building: Building {
            uv: given.text("uv")?.map(Into::into),
            timeout: given.required("environment_timeout_s", seconds)?,
            pythons: Vec::new(),
        },
        allow_spec_secret_refs: given.required("allow_spec_secret_refs", |value| match value {
            Value::Boolean(set) => Some(*set),
            Value::String(text) => text.parse().ok(),
            _ => None,
        })?,
        placement: Policy {
            projects: projects::read(&places.home.join("config.toml"), file)?,
            half_life_s: given.required("fair_share_half_life_s", seconds)?,
            reservations: given.required("reservations", |value| {
                u32::try_from(whole(value)?).ok().filter(|count| *count <= 256)
            })?,
            ..Policy::default()
        },
        scheduling_record_max_bytes: given.required("scheduling_record_max_bytes", bytes)?,
        task_pids_max: given
            .optional("task_pids_max", |value| u64::try_from(whole(value)?).ok().filter(|most| *most > 0))?,
        reuse_idle: given.required("reuse_idle_s", some_seconds)?.duration(),
        inside_job: env("GPULAYER_JOB_ID").is_some()
            && ["GPULAYER_HOME", "GPULAYER_STATE"].iter().all(|name| env(name).is_none()),
        places,
    })
}

struct Given<'a> {
    env: &'a dyn Fn(&str) -> Option<OsString>,
    file: &'a toml::Table,
    file_name: &'a str,
}

impl Given<'_> {
    fn optional<T>(
        &self,
        key: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else { return Ok(None) };
        let variable = (self.env)(setting.variable).filter(|text| !text.is_empty());
        let (origin, value) = if let Some(text) = variable {
            (setting.variable, Value::String(text.to_string_lossy().into_owned()))
        } else if let Some(value) = self.file.get(key) {
            (self.file_name, value.clone())
        } else if setting.default.is_empty() {
            return Ok(None);
        } else {
            ("default", Value::String(setting.default.to_owned()))
        };
        let bad = || ConfigError::BadValue {
            origin: origin.to_owned(),
            key,
            given: value.as_str().map_or_else(|| value.to_string(), str::to_owned),
            expected: setting.kind.expected(),
        };
        read(&value).map(Some).ok_or_else(bad)
    }

    fn required<T>(&self, key: &'static str, read: impl Fn(&Value) -> Option<T>) -> Result<T, ConfigError> {
        self.optional(key, read)?.ok_or(ConfigError::BadValue {
            origin: "default".to_owned(),
            key,
            given: String::new(),
            expected: "a value",
        })
    }

    fn text(&self, key: &'static str) -> Result<Option<String>, ConfigError> {
        self.optional(key, |value| value.as_str().map(str::to_owned))
    }
}

/// A list, or a text with commas or spaces between.
fn words(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        Value::String(text) => {
            let words = text.split([',', ' ']).filter(|word| !word.is_empty());
            Some(words.map(str::to_owned).collect())
        }
        _ => None,
    }
}

fn offered_gpus(value: &Value) -> Option<OfferedGpus> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Integer(count) => u32::try_from(*count).ok().map(OfferedGpus::First),
        Value::Array(items) => {
            let word = |item: &Value| match item {
                Value::String(word) => Some(word.clone()),
                Value::Integer(place) => Some(place.to_string()),
                _ => None,
            };
            let words: Option<Vec<String>> = items.iter().map(word).collect();
            OfferedGpus::these(words?.iter().map(String::as_str)).ok()
        }
        _ => None,
    }
}

fn names(value: &Value) -> Option<Vec<String>> {
    words(value)?.into_iter().map(|name| is_host(&name).then(|| name.to_lowercase())).collect()
}

fn pins(value: &Value) -> Option<Vec<Pin>> {
    words(value)?.iter().map(|pin| pin.parse().ok()).collect()
}

/// Whether this may be the name or the address of a machine.
pub fn is_host(text: &str) -> bool {
    let of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    text.parse::<std::net::IpAddr>().is_ok()
        || (!text.is_empty() && text.len() <= 253 && text.chars().all(of_name))
}

fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Integer(whole) => Some(*whole),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(whole) => Some(*whole as f64),
        Value::Float(number) => Some(*number),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn bytes(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => human::bytes(text).ok(),
        value => u64::try_from(whole(value)?).ok(),
    }
}

fn seconds(value: &Value) -> Option<Seconds> {
    some_seconds(value).filter(|seconds| seconds.millis() > 0)
}

fn some_seconds(value: &Value) -> Option<Seconds> {
    match value {
        Value::String(text) => human::seconds(text).ok(),
        value => Seconds::from_f64(number(value)?),
    }
}

const SECRETS_PAGE: &str = r#"
## Secrets

A worker looks up the secrets that jobs ask for by name in the `[secrets]` table of its own `config.toml`. For the
daemon's own worker that is the daemon's file; `gpulayer-worker` reads the one under its `GPULAYER_HOME`.

```toml
[secrets]
HF_TOKEN = "hf_…"                              # the value itself: the file must have mode 0600
WANDB_API_KEY = { file = "/run/secrets/wandb" } # a file; line ends behind the value are left out
DB_PASSWORD = { env = "DB_PASSWORD" }           # a variable of the worker's own environment
```

`gpulayer run --secret HF_TOKEN=name:HF_TOKEN …` gives a job one of them as a variable. The table is read anew for
every task, so a changed value counts from the next task on; a new name is known to the scheduler after one heartbeat.
A value has 8 bytes to 16 KiB. A table that `gpulayer` cannot read is an error that names the key and the line, never
the value.
"#;

/// The page `docs/CONFIG.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         <!-- Printed from src/config/table.rs; a test compares. `UPDATE=1 cargo nextest run config` rewrites it. -->\n\n\
         A flag beats a `GPULAYER_*` variable, a variable beats `$GPULAYER_HOME/config.toml`, the file beats the default.\n\
         A key the file should not hold is an error that names the nearest one. Sizes may be written as `2GiB`, times as `90m`.\n\n\
         | variable | default | meaning |\n|---|---|---|\n\
         | `GPULAYER_HOME` | `~/.gpulayer` | Configuration and credentials (0700). May be on a network file system. |\n\
         | `GPULAYER_STATE` | `$GPULAYER_HOME/state` | Database, artifacts, socket, workspaces. `/var/tmp/gpulayer-<uid>/<hash of the home folder>` when the default is on a network file system or too long for a socket path. |\n\n\
         | key | variable | default | meaning |\n|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let default =
            if setting.default.is_empty() { "–".to_owned() } else { format!("`{}`", setting.default) };
        page +=
            &format!("| `{}` | `{}` | {default} | {} |\n", setting.key, setting.variable, setting.meaning);
    }
    page += SECRETS_PAGE;
    page += projects::PAGE;
    page
}
