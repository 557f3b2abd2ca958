//! What a worker can be told: `join`, `worker start` and `gpulayer-worker` take the same.

use std::path::PathBuf;

use clap::{Args, Parser};

/// How a worker is to be. What was given once is kept in its folder, so that a restart needs no flag.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct WorkerArgs {
    /// The server, as it prints it: https://HOST[:PORT] or gpulayer://… (or http://… on this machine)
    #[arg(value_name = "SERVER")]
    pub(super) server: Option<String>,
    /// File with the join token, or `-` for standard input; or the token in GPULAYER_JOIN_TOKEN
    #[arg(long, alias = "join-token-file", value_name = "FILE", help_heading = "Server")]
    pub(super) token_file: Option<PathBuf>,
    /// The server's key, as it prints it; may be repeated while keys change
    #[arg(long, value_name = "sha256:HEX", help_heading = "Server")]
    pub(super) pin: Vec<String>,
    /// Trust the certificates that these sign, and no others
    #[arg(long, value_name = "FILE", conflicts_with = "pin", help_heading = "Server")]
    pub(super) ca_file: Option<PathBuf>,
    /// Let the token cross a network in the open, to an http:// server on another machine
    #[arg(long, help_heading = "Server")]
    pub(super) allow_insecure_remote: bool,
    /// Where identity, tasks and workspaces live; on a disk of this machine [default: one for each server, under
    /// $GPULAYER_STATE/joined]
    #[arg(long, value_name = "DIR", help_heading = "Server")]
    pub(super) folder: Option<PathBuf>,

    /// What people call it [default: the machine's name]
    #[arg(long, value_name = "NAME", help_heading = "What it offers")]
    pub(super) name: Option<String>,
    /// A label that jobs can ask for with --on; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", help_heading = "What it offers")]
    pub(super) labels: Vec<String>,
    /// Cores, with up to 3 decimals [default: those it may use]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "What it offers")]
    pub(super) cpus: Option<String>,
    /// Main memory, such as 16GiB [default: what there is]
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, help_heading = "What it offers")]
    pub(super) memory: Option<String>,
    /// GPUs: `all`, `none`, how many, or places in PCI order and uuids with commas between; `3,` is the one in place 3
    /// [default: the setting `worker_gpus`, all]
    #[arg(long, value_name = "N|LIST|none", help_heading = "What it offers")]
    pub(super) gpus: Option<String>,
    /// A Python interpreter, first for jobs that ask for its version; may be repeated
    #[arg(long = "python", value_name = "PATH", help_heading = "What it offers")]
    pub(super) pythons: Vec<PathBuf>,
    /// Where other workers reach it, when it has several addresses
    #[arg(long, value_name = "ADDRESS", help_heading = "What it offers")]
    pub(super) advertise_address: Option<String>,

    /// Run tasks as this user; for a worker that runs as root
    #[arg(
        long,
        value_name = "USER",
        conflicts_with = "allow_root_tasks",
        help_heading = "Whom tasks run as"
    )]
    pub(super) task_user: Option<String>,
    /// Run tasks as root: whoever may submit jobs then owns this machine
    #[arg(long, help_heading = "Whom tasks run as")]
    pub(super) allow_root_tasks: bool,

    /// With less free disk under its folder it takes no tasks [default: 512MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Disk and logs")]
    pub(super) min_free: Option<String>,
    /// With less it removes cached artifacts and kept workspaces [default: 2GiB]
    #[arg(long, value_name = "SIZE", help_heading = "Disk and logs")]
    pub(super) evict_below: Option<String>,
    /// So much of what a task prints is stored as lines at once [default: 16MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Disk and logs")]
    pub(super) log_budget: Option<String>,
    /// What a task's log budget gets back every second [default: 16KiB]
    #[arg(long, value_name = "SIZE", help_heading = "Disk and logs")]
    pub(super) log_refill: Option<String>,
    /// So much of a task's whole text is kept [default: 1GiB]
    #[arg(long, value_name = "SIZE", help_heading = "Disk and logs")]
    pub(super) log_full_max: Option<String>,
    /// Standard input is a pipe to whoever waits for the worker to have joined
    #[arg(long, hide = true)]
    pub(super) tell_ready: bool,
}

/// `gpulayer join`.
#[derive(Debug, Args)]
pub(super) struct JoinArgs {
    #[command(flatten)]
    pub(super) worker: WorkerArgs,
    /// Go on in the background once it has joined
    #[arg(long, short = 'd', conflicts_with = "systemd")]
    pub(super) detach: bool,
    /// Join, and write a systemd unit that keeps it running; `-` prints the unit and does nothing else
    #[arg(long, value_name = "-", num_args = 0..=1, require_equals = true, default_missing_value = "write", value_parser = ["write", "-"], hide_possible_values = true)]
    pub(super) systemd: Option<String>,
}

/// `gpulayer worker start`.
#[derive(Debug, Args)]
pub(super) struct StartWorkerArgs {
    #[command(flatten)]
    pub(super) worker: WorkerArgs,
    /// Go on in the background
    #[arg(long, short = 'd', conflicts_with = "tell_ready")]
    pub(super) detach: bool,
}

/// Joins this machine to a GPUlayer server, as `gpulayer join` does, in the foreground.
#[derive(Debug, Parser)]
#[command(name = "gpulayer-worker", version)]
pub(super) struct Standalone {
    /// The same as SERVER; also GPULAYER_URL
    #[arg(long, value_name = "SERVER", conflicts_with = "server")]
    pub(super) url: Option<String>,
    #[command(flatten)]
    pub(super) worker: WorkerArgs,
}

/// `gpulayer worker stop`.
#[derive(Debug, Args)]
pub(super) struct StopWorkerArgs {
    /// The server it has joined, when there are several
    #[arg(value_name = "SERVER")]
    pub(super) server: Option<String>,
    /// The worker's folder
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    pub(super) folder: Option<PathBuf>,
}
