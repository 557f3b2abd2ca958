//! The flags that say what a job is. They follow the JobSpec of the contract, field by field.

use std::path::PathBuf;

use clap::Args;

use super::args::{integer, whole};

/// Everything `run` and `submit` can say about a job.
#[derive(Debug, Default, Args)]
pub(super) struct SpecArgs {
    /// The command and its arguments: all after `--`, or from the first word that is no option
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) argv: Vec<String>,
    /// A shell text instead of a command: bash -o pipefail -c TEXT
    #[arg(long, value_name = "TEXT", help_heading = "What runs")]
    pub(super) shell: Option<String>,
    /// Read the job spec from a JSON, YAML or TOML file; `-` = JSON or YAML on standard input; flags override it
    #[arg(long, value_name = "FILE", help_heading = "What runs")]
    pub(super) spec: Option<PathBuf>,
    /// Folder to send along; `auto`: the nearest folder upwards with .git, pyproject.toml or .gpulayerignore, else this
    /// one when the command names a file in it; never your home or a folder above it [default: auto]
    #[arg(long, value_name = "auto|DIR|none", help_heading = "What runs")]
    pub(super) source: Option<String>,
    /// Run in this folder itself instead of a copy (own daemon only)
    #[arg(long, conflicts_with = "source", help_heading = "What runs")]
    pub(super) here: bool,
    /// Print the job spec, the curl command and the Python, and submit nothing
    #[arg(long, help_heading = "What runs")]
    pub(super) dry_run: bool,

    /// A name for people; need not be unique
    #[arg(long, value_name = "NAME", help_heading = "Identity and order")]
    pub(super) name: Option<String>,
    /// Label; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Identity and order")]
    pub(super) label: Vec<String>,
    /// Whose share of the machines it uses [default: default]
    #[arg(long, value_name = "NAME", help_heading = "Identity and order")]
    pub(super) project: Option<String>,
    /// From -100 to 100; higher goes first [default: 0]
    #[arg(long, value_parser = integer, value_name = "N", allow_negative_numbers = true, help_heading = "Identity and order")]
    pub(super) priority: Option<i64>,
    /// Start after this job has succeeded, or has ended; may be repeated
    #[arg(long, value_name = "JOB[:ended]", help_heading = "Identity and order")]
    pub(super) after: Vec<String>,
    /// Many jobs from one: a count, FIRST-LAST, items a,b,c or @FILE with one a line; `%N` = at most N at once
    #[arg(
        long,
        value_name = "COUNT|FIRST-LAST|ITEMS[%N]",
        allow_negative_numbers = true,
        help_heading = "Identity and order"
    )]
    pub(super) array: Option<String>,

    /// Cores, with up to 3 decimals [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Resources")]
    pub(super) cpus: Option<String>,
    /// Main memory, such as 16GiB (1024³ bytes each) or 16GB (1000³)
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, help_heading = "Resources")]
    pub(super) memory: Option<String>,
    /// Disk, such as 100GB
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, help_heading = "Resources")]
    pub(super) disk: Option<String>,
    /// GPUs: how many, of which model, or all of one worker
    #[arg(long, value_name = "[MODEL:]N|all", allow_negative_numbers = true, help_heading = "Resources")]
    pub(super) gpus: Option<String>,
    /// Memory of each GPU, such as 40GB
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, help_heading = "Resources")]
    pub(super) gpu_memory: Option<String>,
    /// Whether GPU memory is its own or shared with the CPU
    #[arg(long, value_name = "KIND", value_parser = ["dedicated", "unified"], help_heading = "Resources")]
    pub(super) gpu_memory_kind: Option<String>,
    /// Shorthand for accelerator and frameworks: pytorch-cuda, mlx, cpu, …
    #[arg(long, value_name = "NAME", help_heading = "Resources")]
    pub(super) profile: Option<String>,
    /// A framework with a version range, such as torch>=2.3; may be repeated
    #[arg(long, value_name = "NAME[RANGE]", help_heading = "Resources")]
    pub(super) framework: Vec<String>,
    /// A worker by id or name, or any with a label
    #[arg(long, value_name = "WORKER|KEY=VALUE", help_heading = "Resources")]
    pub(super) on: Vec<String>,
    /// local, remote, cloud or any [default: any]
    #[arg(long, value_name = "WHERE", help_heading = "Resources")]
    pub(super) target: Option<String>,
    /// One gang over several nodes, started by torchrun, direct or env
    #[arg(
        long, value_name = "LAUNCHER", num_args = 0..=1, require_equals = true, default_missing_value = "torchrun",
        help_heading = "Resources"
    )]
    pub(super) distributed: Option<String>,
    /// Nodes of the gang
    #[arg(long, value_parser = whole::<u32>, value_name = "N", allow_negative_numbers = true, help_heading = "Resources")]
    pub(super) nodes: Option<u32>,
    /// Processes on each node: a count, or `gpu`
    #[arg(long, value_name = "N|gpu", allow_negative_numbers = true, help_heading = "Resources")]
    pub(super) nproc_per_node: Option<String>,

    /// Environment variable; without a value, the one of this shell; may be repeated
    #[arg(long, short = 'e', value_name = "NAME[=VALUE]", help_heading = "Environment and files")]
    pub(super) env: Vec<String>,
    /// Read NAME=VALUE lines from a file; may be repeated
    #[arg(long, value_name = "FILE", help_heading = "Environment and files")]
    pub(super) env_file: Vec<PathBuf>,
    /// Secret by reference, such as HF_TOKEN=name:HF_TOKEN (or env:VARIABLE, file:PATH); may be repeated
    #[arg(long, value_name = "NAME=REF", help_heading = "Environment and files")]
    pub(super) secret: Vec<String>,
    /// File, folder or artifact to bring along, and where it goes [default: where it is here]; may be repeated
    #[arg(long, short = 'i', value_name = "SRC[:PATH]", help_heading = "Environment and files")]
    pub(super) input: Vec<String>,
    /// File or glob to bring back; may be repeated
    #[arg(long, short = 'o', value_name = "PATH", help_heading = "Environment and files")]
    pub(super) output: Vec<String>,
    /// Python interpreter: a version such as 3.11, or a path on the worker
    #[arg(long, value_name = "VERSION|PATH", help_heading = "Environment and files")]
    pub(super) python: Option<String>,
    /// Give it an environment with the packages of this requirements file
    #[arg(long, value_name = "FILE", help_heading = "Environment and files")]
    pub(super) requirements: Option<PathBuf>,
    /// Give it the environment of the source's uv project, by its uv.lock
    #[arg(
        long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = ".",
        help_heading = "Environment and files"
    )]
    pub(super) uv: Option<String>,

    /// Stop it after running this long, such as 90m
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = "Limits")]
    pub(super) timeout: Option<String>,
    /// Give up when it has not started after this long
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = "Limits")]
    pub(super) queue_timeout: Option<String>,
    /// From the stop signal to the kill [default: 10s]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = "Limits")]
    pub(super) grace: Option<String>,
    /// Sent first when it has to stop [default: TERM]
    #[arg(long, value_name = "SIGNAL", help_heading = "Limits")]
    pub(super) stop_signal: Option<String>,
    /// Try again by itself up to N times
    #[arg(long, value_parser = whole::<u32>, value_name = "N", allow_negative_numbers = true, help_heading = "Limits")]
    pub(super) retries: Option<u32>,
    /// With --retries, for which ends: reasons, owners or any; may be repeated [default: worker_lost]
    #[arg(long, value_name = "REASON", value_delimiter = ',', help_heading = "Limits")]
    pub(super) retry_on: Vec<String>,
}
