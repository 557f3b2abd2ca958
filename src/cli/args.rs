//! The command line as typed. What it means is decided by the module of each command.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use super::server_args::{ConnectArgs, DoctorArgs, DownArgs, ServerCommand, UpArgs};
use super::spec_args::SpecArgs;
use super::worker_args::{JoinArgs, StartWorkerArgs, StopWorkerArgs};
use crate::contract::job::JobState;
use crate::contract::token::Role;

/// Runs a command on any machine that can run it, and brings back logs, outputs and the result.
#[derive(Debug, Parser)]
#[command(name = "gpulayer", version, after_help = "Start with:  gpulayer run -- python train.py")]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(super) struct Global {
    /// Server to speak with: https://HOST[:PORT], unix:/PATH, or the name of a saved one (`gpulayer connect`);
    /// `local` = the own daemon [default: the saved one in use, else the own daemon, started on demand]
    #[arg(long, alias = "url", global = true, value_name = "NAME|URL", help_heading = "Global options")]
    pub(super) server: Option<String>,
    /// Print JSON; streams as one object a line
    #[arg(long, global = true, help_heading = "Global options")]
    pub(super) json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a command as a job, follow it, and exit like it
    Run(RunArgs),
    /// Submit a job and print its id
    Submit(SubmitArgs),
    /// Follow a job that is already there, and exit like it
    Attach(OneJob),
    /// List jobs: the active ones and the last ten that ended
    Ps(PsArgs),
    /// Show all about a job
    Show(Jobs),
    /// Say why a job waits, or where a spec would run, and what would help
    #[command(alias = "why")]
    Explain(ExplainArgs),
    /// Print a job's log
    Logs(LogsArgs),
    /// Wait until jobs have ended, and exit like the first that did not succeed
    Wait(Jobs),
    /// Bring a job's outputs here
    #[command(alias = "get")]
    Fetch(FetchArgs),
    /// Stop jobs
    Cancel(CancelArgs),
    /// Submit ended jobs again as new jobs
    Retry(RetryArgs),
    /// Remove ended jobs with their logs and outputs
    Rm(Jobs),
    /// Print what happened to a job
    Events(EventsArgs),
    /// Make this machine a worker of a server
    Join(Box<JoinArgs>),
    /// Look after workers; without a verb, list them
    #[command(alias = "workers")]
    Worker {
        #[command(subcommand)]
        command: Option<WorkerCommand>,
    },
    /// Look at what this machine has
    #[command(subcommand)]
    Resources(ResourcesCommand),
    /// Store and bring back files by their digest
    #[command(subcommand)]
    Artifact(ArtifactCommand),
    /// Start the daemon in the background and let other machines reach it
    Up(UpArgs),
    /// Stop the daemon
    Down(DownArgs),
    /// Run the daemon
    #[command(subcommand)]
    Server(ServerCommand),
    /// Save a server on another machine and use it from now on
    Connect(ConnectArgs),
    /// Make, list and revoke credentials
    #[command(subcommand, alias = "tokens")]
    Token(TokenCommand),
    /// Show the credential in use
    Whoami,
    /// Check this installation; with --server, the way to that server
    Doctor(DoctorArgs),
    /// Make the recorded scheduling passes of this machine's server again, and say whether the same comes out
    Replay(ReplayArgs),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// `gpulayer resources`.
#[derive(Debug, Subcommand)]
pub(super) enum ResourcesCommand {
    /// Show CPUs, memory, disk, GPUs, Python frameworks and limits as a worker here would see them
    Detect(DetectArgs),
}

/// `gpulayer resources detect`.
#[derive(Debug, Args)]
pub(super) struct DetectArgs {
    /// Python interpreter to look into; repeat for more [default: the python3 of PATH]
    #[arg(long = "python", value_name = "PATH")]
    pub(super) pythons: Vec<PathBuf>,
}

/// `gpulayer run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) spec: SpecArgs,
    /// Fetch the outputs into this folder at the end
    #[arg(long, value_name = "DIR")]
    pub(super) to: Option<PathBuf>,
    /// Do not follow: print the id and leave the job running
    #[arg(long, short = 'd')]
    pub(super) detach: bool,
}

/// `gpulayer submit`.
#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    #[command(flatten)]
    pub(super) spec: SpecArgs,
}

/// One job.
#[derive(Debug, Args)]
pub(super) struct OneJob {
    /// Id, its beginning or tail (4 characters or more), a name, or @last
    #[arg(value_name = "JOB")]
    pub(super) job: String,
}

/// `gpulayer explain`.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// Id, its beginning or tail (4 characters or more), a name, or @last
    #[arg(value_name = "JOB", required_unless_present = "spec", conflicts_with = "spec")]
    pub(super) job: Option<String>,
    /// Explain this spec (JSON, YAML, TOML) instead, without submitting it; `-` = JSON or YAML on standard input
    #[arg(long, value_name = "FILE")]
    pub(super) spec: Option<PathBuf>,
    /// With --spec: as if there were more idle workers like this one
    #[arg(long, value_name = "WORKER")]
    pub(super) like: Option<String>,
    /// So many more [default: 1]
    #[arg(long, value_name = "N", requires = "like")]
    pub(super) more: Option<u32>,
    /// With --spec: as if this job neither waited nor ran
    #[arg(long, value_name = "JOB")]
    pub(super) without: Option<String>,
}

/// `gpulayer replay`.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// This segment
    #[arg(long, value_name = "FILE", conflicts_with_all = ["last", "all"])]
    pub(super) segment: Option<PathBuf>,
    /// The newest segment
    #[arg(long, conflicts_with = "all")]
    pub(super) last: bool,
    /// Every segment; so it is without --segment and --last
    #[arg(long)]
    pub(super) all: bool,
    /// Show this pass of the segment (of the newest without --segment): what it placed and reserved, and why others wait
    #[arg(long, value_name = "N", conflicts_with = "all")]
    pub(super) pass: Option<u64>,
    /// List the passes that placed or preempted this job: its id, its beginning or tail; while the server runs, also a name
    /// or @last
    #[arg(long, value_name = "JOB", conflicts_with = "pass")]
    pub(super) job: Option<String>,
}

/// Several jobs.
#[derive(Debug, Args)]
pub(super) struct Jobs {
    /// Ids, their beginnings or tails (4 characters or more), names, or @last
    #[arg(value_name = "JOB", required_unless_present = "label")]
    pub(super) jobs: Vec<String>,
    /// All jobs with this label; repeat to narrow
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(super) label: Vec<String>,
}

/// `gpulayer retry`.
#[derive(Debug, Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    pub(super) jobs: Jobs,
    /// Of arrays, only the children that did not succeed
    #[arg(long)]
    pub(super) failed: bool,
}

/// `KEY=VALUE`.
fn label(text: &str) -> Result<String, &'static str> {
    match text.split_once('=') {
        Some((key, _)) if !key.is_empty() => Ok(text.to_owned()),
        _ => Err("expected KEY=VALUE"),
    }
}

/// A count. What the standard library says of a bad one (`invalid digit found in string`) helps nobody.
pub(super) fn whole<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 0 or more, such as 20")
}

/// A number that may be below zero.
pub(super) fn integer(text: &str) -> Result<i64, &'static str> {
    text.parse().map_err(|_| "expected a whole number, such as 10 or -10")
}

/// `gpulayer ps`.
#[derive(Debug, Args)]
pub(super) struct PsArgs {
    /// All jobs, ended ones too
    #[arg(long, short = 'a')]
    pub(super) all: bool,
    /// Only jobs in this state; may be repeated
    #[arg(long, value_name = "STATE", value_parser = PossibleValuesParser::new(JobState::ALL.map(JobState::word)))]
    pub(super) state: Vec<String>,
    /// Only jobs of this project
    #[arg(long, value_name = "NAME")]
    pub(super) project: Option<String>,
    /// Only jobs with this label; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(super) label: Vec<String>,
    /// Only jobs I submitted
    #[arg(long)]
    pub(super) mine: bool,
    /// The children of this array
    #[arg(long, value_name = "JOB")]
    pub(super) parent: Option<String>,
}

/// `gpulayer logs`.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// Id, its beginning or tail, a name, or @last
    #[arg(value_name = "JOB", default_value = "@last")]
    pub(super) job: String,
    /// Go on until the job has ended
    #[arg(long, short = 'f')]
    pub(super) follow: bool,
    /// Only lines of this attempt
    #[arg(long, value_parser = whole::<u32>, value_name = "N", allow_negative_numbers = true)]
    pub(super) attempt: Option<u32>,
    /// Only lines of this task
    #[arg(long, value_name = "TASK")]
    pub(super) task: Option<String>,
    /// Only lines of this rank
    #[arg(long, value_parser = whole::<u32>, value_name = "N", allow_negative_numbers = true)]
    pub(super) rank: Option<u32>,
    /// Only lines of this stream
    #[arg(long, value_name = "STREAM", value_parser = ["stdout", "stderr", "system"])]
    pub(super) stream: Option<String>,
    /// Only the last N lines
    #[arg(long, value_parser = whole::<usize>, short = 'n', value_name = "N", allow_negative_numbers = true)]
    pub(super) tail: Option<usize>,
    /// Only lines written since: a time (RFC 3339) or how long ago (10m)
    #[arg(long, value_name = "TIME|AGO")]
    pub(super) since: Option<String>,
    /// Only lines that contain this text
    #[arg(long, value_name = "TEXT")]
    pub(super) grep: Option<String>,
    /// Begin each line with its time
    #[arg(long, short = 't')]
    pub(super) timestamps: bool,
    /// All that was written, byte for byte, also what was too much for the lines
    #[arg(long, conflicts_with_all = ["follow", "rank", "stream", "tail", "since", "grep", "timestamps"])]
    pub(super) full: bool,
}

/// `gpulayer events`.
#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Id, its beginning or tail, a name, or @last
    #[arg(value_name = "JOB", default_value = "@last", conflicts_with = "all")]
    pub(super) job: String,
    /// Of all jobs, and for an admin of the server itself: who used which power
    #[arg(long, short = 'a')]
    pub(super) all: bool,
    /// Go on until the job has ended
    #[arg(long, short = 'f')]
    pub(super) follow: bool,
}

/// `gpulayer fetch`.
#[derive(Debug, Args)]
pub(super) struct FetchArgs {
    /// Id, its beginning or tail, a name, or @last
    #[arg(value_name = "JOB", default_value = "@last")]
    pub(super) job: String,
    /// Into this folder
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) to: PathBuf,
    /// The files that no output declares, while the workspace is kept
    #[arg(long)]
    pub(super) undeclared: bool,
    /// Overwrite files that are there
    #[arg(long)]
    pub(super) force: bool,
}

/// `gpulayer cancel`.
#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    #[command(flatten)]
    pub(super) jobs: Jobs,
    /// Kill at once, without the time to finish
    #[arg(long)]
    pub(super) now: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum WorkerCommand {
    /// List workers
    List,
    /// Show all about workers, with their tasks
    Show {
        /// Ids, their beginnings or tails (4 characters or more), or names
        #[arg(value_name = "WORKER", required = true)]
        workers: Vec<String>,
    },
    /// Give workers no new tasks; what runs there may end, until the deadline
    Drain {
        /// Ids, their beginnings or tails (4 characters or more), or names
        #[arg(value_name = "WORKER", required = true)]
        workers: Vec<String>,
        /// Stop what still runs after this time (10m), with its grace; it ends `drained`
        #[arg(long, value_name = "DURATION")]
        deadline: Option<String>,
    },
    /// Stop tasks with their grace, because their place is needed; they end `evicted`
    Evict {
        /// Tasks or jobs: ids, their beginnings or tails (4 characters or more), or job names
        #[arg(value_name = "TASK|JOB", required = true)]
        tasks: Vec<String>,
    },
    /// Let drained workers take tasks again
    Resume {
        /// Ids, their beginnings or tails (4 characters or more), or names
        #[arg(value_name = "WORKER", required = true)]
        workers: Vec<String>,
    },
    /// Run this machine's worker as it has joined before; Ctrl-C stops it, and it stays joined
    Start(Box<StartWorkerArgs>),
    /// Stop this machine's worker; what it runs goes on, and the next start takes it up again
    Stop(StopWorkerArgs),
    /// Throw workers out: their tasks are killed and end `revoked`; only a join token lets them in again
    Revoke {
        /// Ids, their beginnings or tails (4 characters or more), or names
        #[arg(value_name = "WORKER", required = true)]
        workers: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Make a credential and print its secret, which is shown this once
    Create(TokenCreateArgs),
    /// List credentials
    List {
        /// Revoked and expired ones too
        #[arg(long, short = 'a')]
        all: bool,
    },
    /// Revoke credentials: from then on they open nothing
    Revoke {
        /// Their names
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
}

/// `gpulayer token create`.
#[derive(Debug, Args)]
pub(super) struct TokenCreateArgs {
    /// What to call it [default: one is made up]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// What it may do [default: submitter]
    #[arg(long, value_name = "ROLE", value_parser = PossibleValuesParser::new(Role::ALL.map(Role::word)))]
    pub(super) role: Option<String>,
    /// A project it is confined to; may be repeated; `*` = all [default: default]
    #[arg(long, value_name = "NAME")]
    pub(super) project: Vec<String>,
    /// The highest priority it may submit with
    #[arg(long, value_name = "N", value_parser = integer, allow_negative_numbers = true)]
    pub(super) max_priority: Option<i64>,
    /// Whose jobs it submits, when a person has more than one token [default: the name]
    #[arg(long, value_name = "NAME")]
    pub(super) user: Option<String>,
    /// How long it lives (30d) [default: until it is revoked]
    #[arg(long, value_name = "DURATION")]
    pub(super) expires: Option<String>,
    /// For workers to join with; says what to type on their machines
    #[arg(long, conflicts_with_all = ["role", "project", "max_priority", "user", "instance"])]
    pub(super) join: bool,
    /// For one worker to join with, once
    #[arg(long, conflicts_with_all = ["role", "project", "max_priority", "user"])]
    pub(super) instance: bool,
    /// Write the secret into this new file (0600), not to standard output
    #[arg(long, value_name = "FILE")]
    pub(super) to: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum ArtifactCommand {
    /// Store a file, or a folder as a bundle, and print its address
    Put {
        /// File or folder
        #[arg(value_name = "PATH")]
        path: PathBuf,
    },
    /// Bring an artifact's bytes here
    Get {
        /// artifact://sha256/HEX
        #[arg(value_name = "ADDRESS")]
        address: String,
        /// Into this file; `-` = standard output
        #[arg(long, short = 'o', value_name = "FILE")]
        output: PathBuf,
        /// Overwrite a file that is there
        #[arg(long)]
        force: bool,
    },
}
