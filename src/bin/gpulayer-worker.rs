//! A worker in the foreground: joins a server and runs its tasks, until it is told to stop. Also its tasks' shim.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use gpulayer::client::http_channel::HttpChannel;
use gpulayer::client::worker_channel::SessionEnd;
use gpulayer::client::{Endpoint, Trust};
use gpulayer::config::{ConfigError, SecretSource, Settings};
use gpulayer::contract::quantity::Cpus;
use gpulayer::contract::worker::WorkerKind;
use gpulayer::domain::disk::Watermarks;
use gpulayer::domain::spec::human;
use gpulayer::process;
use gpulayer::worker::{Farewell, Worker, WorkerEnd, WorkerOptions};
use tokio::signal::unix::{SignalKind, signal};

/// Joins this machine to a GPUlayer server.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// The server: http://HOST[:PORT] or unix:/PATH.
    #[arg(long, env = "GPULAYER_URL")]
    url: String,
    /// File with the join token; needed for the first start in a folder only.
    #[arg(long, env = "GPULAYER_JOIN_TOKEN_FILE")]
    join_token_file: Option<PathBuf>,
    /// Where identity, tasks and workspaces live; not on a network file system.
    #[arg(long)]
    folder: PathBuf,
    /// What people call this worker; the machine's name if absent.
    #[arg(long)]
    name: Option<String>,
    /// A label that jobs can ask for; may be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Cores to offer, with up to 3 decimals; all it may use if absent.
    #[arg(long, value_parser = cpus)]
    cpus: Option<Cpus>,
    /// With less free disk than this under the folder it takes no tasks.
    #[arg(long, env = "GPULAYER_WORKER_MIN_FREE_BYTES", default_value = "512MiB", value_parser = human::bytes)]
    min_free: u64,
    /// With less than this it removes cached artifacts and kept workspaces.
    #[arg(long, env = "GPULAYER_WORKER_EVICT_BELOW_BYTES", default_value = "2GiB", value_parser = human::bytes)]
    evict_below: u64,
}

fn label(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("a label is given as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn cpus(text: &str) -> Result<Cpus, serde_json::Error> {
    serde_json::from_str(text)
}

fn main() -> anyhow::Result<()> {
    process::run_if_shim();
    gpulayer::telemetry::init();
    let flags = Flags::parse();
    let endpoint = Endpoint::parse(&flags.url)?;
    let token = match &flags.join_token_file {
        Some(path) => {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
        }
        None => std::env::var("GPULAYER_JOIN_TOKEN").unwrap_or_default(),
    };
    let channel = HttpChannel::new(endpoint, Trust::default(), token.trim())?;
    let name =
        flags.name.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let folder = std::path::absolute(&flags.folder).context("cannot tell where --folder is")?;
    // A service may run without a home; it has no table of secrets then.
    let secrets = match Settings::load() {
        Ok(settings) => settings.secret_source(false),
        Err(ConfigError::NoHome) => SecretSource::default(),
        Err(error) => return Err(error.into()),
    };
    let options = WorkerOptions {
        secrets,
        labels: flags.labels.into_iter().collect(),
        cpus: flags.cpus,
        disk: Watermarks { min_free_bytes: flags.min_free, evict_below_bytes: flags.evict_below },
        ..WorkerOptions::new(folder, name, WorkerKind::Remote)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = runtime.block_on(async {
        anyhow::Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
    })?;
    let (mut interrupt, mut terminate) = signals;
    let worker = Worker::start(options, Arc::new(channel))?;
    // A service manager restarts its workers, and they come back; a person who interrupts one means it.
    let farewell = runtime.block_on(async {
        tokio::select! {
            _ = interrupt.recv() => Farewell::IfIdle,
            _ = terminate.recv() => Farewell::Silent,
            () = worker.ended() => Farewell::Silent,
        }
    });
    match worker.stop(farewell)? {
        WorkerEnd::Stopped => Ok(()),
        WorkerEnd::SessionOver(SessionEnd::Revoked) => {
            anyhow::bail!(
                "the server revoked this worker; its tasks were killed. Join again with a join token"
            )
        }
        WorkerEnd::SessionOver(end) => anyhow::bail!("the session is over: {end}"),
    }
}
