//! `JobSpec`: what a person asks for. Read from people by `domain::spec` (all faults at once); written here
//! in canonical form (defaults left out) for the store, the worker and the answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use super::array::Array;
use super::artifact::Digest;
use super::gang::Distributed;
use super::quantity::{Cpus, Seconds};

/// The contract version this build speaks.
pub const API_VERSION: &str = "gpulayer.dev/v1alpha1";
/// The project of a spec that names none.
pub const DEFAULT_PROJECT: &str = "default";

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn default_project() -> String {
    DEFAULT_PROJECT.to_owned()
}

fn is_default_project(project: &String) -> bool {
    project == DEFAULT_PROJECT
}

macro_rules! default_seconds {
    ($name:ident, $check:ident, $seconds:literal) => {
        fn $name() -> Seconds {
            Seconds::new($seconds)
        }
        fn $check(value: &Seconds) -> bool {
            *value == Seconds::new($seconds)
        }
    };
}
default_seconds!(default_grace, is_default_grace, 10);
default_seconds!(default_unreachable, is_default_unreachable, 3600);
default_seconds!(default_workspace_ttl, is_default_workspace_ttl, 86_400);

/// One job as asked for. Every field but `workload` is optional on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobSpec {
    /// A name for people; not unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Keys ≤ 63 bytes, values ≤ 255 bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Whose share of the machines it uses.
    #[serde(default = "default_project", skip_serializing_if = "is_default_project")]
    pub project: String,
    /// -100..=100; higher goes first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// What runs.
    pub workload: Workload,
    /// Makes the job a gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distributed: Option<Box<Distributed>>,
    /// Where it may run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub target: Target,
    /// A source bundle, unpacked into the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Digest>,
    /// Data brought into the workspace before the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// Files brought back at every end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output>,
    /// What it needs of a machine.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resources: Resources,
    /// Shorthand for accelerator and frameworks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Added to the task's allow-listed environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Which of `env` came by themselves from the shell that submitted. They hold on the server's own machine; on one
    /// that joined, its worker's own count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shell_env: Vec<String>,
    /// Looked up on the worker, never stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// The Python environment it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<Box<Python>>,
    /// Counts from `executing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<Seconds>,
    /// Counts from the submission until the task starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_timeout_s: Option<Seconds>,
    /// From the stop signal to the kill.
    #[serde(default = "default_grace", skip_serializing_if = "is_default_grace")]
    pub grace_s: Seconds,
    /// Sent first when the task has to stop.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stop_signal: StopSignal,
    /// When to try again by itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: Retry,
    /// What an expired lease does; `None` = by `max_attempts`, see [`JobSpec::on_unreachable`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unreachable: Option<OnUnreachable>,
    /// How long `wait` waits.
    #[serde(default = "default_unreachable", skip_serializing_if = "is_default_unreachable")]
    pub unreachable_timeout_s: Seconds,
    /// Jobs that must end before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Dependency>,
    /// Many jobs from one spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<Box<Array>>,
    /// How long undeclared files are kept.
    #[serde(default = "default_workspace_ttl", skip_serializing_if = "is_default_workspace_ttl")]
    pub workspace_ttl_s: Seconds,
}

impl JobSpec {
    /// A spec with every default, for this workload.
    pub fn new(workload: Workload) -> Self {
        Self {
            name: None,
            labels: BTreeMap::new(),
            project: default_project(),
            priority: 0,
            workload,
            distributed: None,
            target: Target::default(),
            source: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            resources: Resources::default(),
            profile: None,
            env: BTreeMap::new(),
            shell_env: Vec::new(),
            secrets: Vec::new(),
            python: None,
            timeout_s: None,
            queue_timeout_s: None,
            grace_s: default_grace(),
            stop_signal: StopSignal::default(),
            retry: Retry::default(),
            on_unreachable: None,
            unreachable_timeout_s: default_unreachable(),
            depends_on: Vec::new(),
            array: None,
            workspace_ttl_s: default_workspace_ttl(),
        }
    }

    /// The spec for one argv and nothing else.
    pub fn command<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        let argv = argv.into_iter().map(Into::into).collect();
        Self::new(Workload::Command(Command { run: Run::Argv(argv), cwd: None }))
    }

    /// `wait` when the job has one attempt, else `replace` (CONTRACT, The job spec).
    pub fn on_unreachable(&self) -> OnUnreachable {
        self.on_unreachable.unwrap_or(if self.retry.max_attempts == 1 {
            OnUnreachable::Wait
        } else {
            OnUnreachable::Replace
        })
    }
}

/// What runs. Exactly one of the kinds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// A program and its arguments, or a shell text.
    Command(Command),
    /// A Python function.
    Function(Box<Function>),
}

impl Workload {
    /// The function, if it is one.
    pub fn function(&self) -> Option<&Function> {
        match self {
            Workload::Function(function) => Some(function),
            Workload::Command(_) => None,
        }
    }
}

/// A command: `{argv[] | shell, cwd}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Command {
    /// `argv` or `shell`.
    #[serde(flatten)]
    pub run: Run,
    /// Relative to the workspace; absolute only on the own daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// How a command is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Run {
    /// Program and arguments, passed as they are.
    Argv(Vec<String>),
    /// `bash -o pipefail -c TEXT`, else `sh -c TEXT`.
    Shell(String),
}

/// A Python function call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// Its arguments, and perhaps its code: the address of an artifact, or inline: JSON (`{"args": […], "kwargs": {…}}`),
    /// of cloudpickle's bytes their base64.
    pub payload: String,
    /// How payload and result are coded.
    pub serializer: Serializer,
    /// `module:function`, when the payload does not carry the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    /// Large arguments that a cloudpickle payload names by digest, for its runner alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Digest>,
    /// Whether the process may go on to serve other tasks like this one, with what it has loaded. Only without GPUs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reuse: bool,
}

/// The call of one child of an array: what an item is that has a `payload`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ItemCall {
    /// As [`Function::payload`]; the code is the array's.
    pub payload: String,
    /// As [`Function::values`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Digest>,
}

/// How a function's payload and result are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Serializer {
    /// Plain JSON.
    Json,
    /// Python's cloudpickle.
    Cloudpickle,
}

/// Where a job may run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The server's own host.
    Local,
    /// Joined workers.
    Remote,
    /// Instances of a provider.
    Cloud,
    /// Anywhere.
    #[default]
    Any,
}

/// Data brought into the workspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Input {
    /// An artifact, or another job's output.
    #[serde(flatten)]
    pub origin: InputOrigin,
    /// Where it goes, relative to the workspace.
    pub path: String,
    /// Whether it is a bundle to unpack at `path`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unpack: bool,
    /// Whether the task may write to it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: InputMode,
}

/// Where an input comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputOrigin {
    /// Bytes by digest.
    Artifact(Digest),
    /// An output of another job, which implies the dependency.
    From(InputFrom),
}

/// An output of another job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputFrom {
    /// The job's id.
    pub job: String,
    /// The output's name.
    pub output: String,
}

/// Whether a task may write to an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputMode {
    /// Read only.
    #[default]
    Ro,
    /// A private, writable copy.
    Rw,
}

/// Files brought back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Output {
    /// A path or a glob, relative to the workspace.
    pub path: String,
    /// What `outputs` lists it as; the path when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether its absence is no fault.
    #[serde(default, skip_serializing_if = "is_default")]
    pub optional: bool,
}

impl Output {
    /// The name it is listed under.
    pub fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.path)
    }
}

/// What a job needs of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Resources {
    /// Cores, in thousandths.
    #[serde(default = "one_cpu", skip_serializing_if = "is_one_cpu")]
    pub cpus: Cpus,
    /// Main memory in bytes; `None` = not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Disk in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// GPUs; `None` = none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Box<GpuRequest>>,
    /// Framework name → version range.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub frameworks: BTreeMap<String, String>,
    /// `linux`, `macos`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// `x86_64`, `aarch64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Labels the worker must carry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A worker's id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

fn one_cpu() -> Cpus {
    Cpus::ONE
}

fn is_one_cpu(cpus: &Cpus) -> bool {
    *cpus == Cpus::ONE
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpus: Cpus::ONE,
            memory_bytes: None,
            disk_bytes: None,
            gpus: None,
            frameworks: BTreeMap::new(),
            os: None,
            arch: None,
            labels: BTreeMap::new(),
            worker: None,
        }
    }
}

/// GPUs asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
pub struct GpuRequest {
    /// How many.
    pub count: GpuCount,
    /// `nvidia`, `amd`, `apple`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Memory of each, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Own memory, or shared with the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_kind: Option<MemoryKind>,
    /// Any of these models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// `major.minor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_compute_capability: Option<String>,
    /// A share of one GPU (reserved name).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
}

impl GpuRequest {
    /// So many, whatever they are.
    pub const fn of(count: GpuCount) -> Self {
        Self {
            count,
            vendor: None,
            memory_bytes: None,
            memory_kind: None,
            models: Vec::new(),
            min_compute_capability: None,
            share: None,
        }
    }
}

/// `n` or `"all"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GpuCount {
    /// So many.
    Count(u32),
    /// All of one worker.
    #[serde(with = "all_word")]
    All,
}

mod all_word {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("all")
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        let word = String::deserialize(deserializer)?;
        if word == "all" { Ok(()) } else { Err(serde::de::Error::custom("`all` or a count is expected")) }
    }
}

/// Whether GPU memory is its own or shared with the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// The GPU's own.
    Dedicated,
    /// Shared with the CPU.
    Unified,
}

/// A secret by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    /// The variable the task sees.
    pub name: String,
    /// `name:X`, `env:X` or `file:PATH`.
    #[serde(rename = "ref")]
    pub reference: String,
}

/// A Python environment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Python {
    /// `3.11` or a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    /// Requirement lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<String>,
    /// A lock file in the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lockfile: Option<String>,
    /// A uv project in the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uv: Option<String>,
}

/// The signal a task gets first when it has to stop; `TERM` unless asked otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum StopSignal {
    /// SIGTERM.
    #[default]
    Term,
    /// SIGINT.
    Int,
    /// SIGHUP.
    Hup,
    /// SIGQUIT.
    Quit,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGKILL: no grace.
    Kill,
}

/// When a job is tried again by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Retry {
    /// Attempts in all, ≥ 1.
    #[serde(default = "one_attempt")]
    pub max_attempts: u32,
    /// Reasons, owners or `any`.
    #[serde(default = "default_retry_on")]
    pub retry_on: Vec<String>,
    /// Pause before the next attempt.
    #[serde(default)]
    pub backoff_s: Seconds,
    /// Whether the next attempt prefers another worker.
    #[serde(default = "yes")]
    pub avoid_worker: bool,
    /// Ask for more memory after running out of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_growth: Option<MemoryGrowth>,
}

fn one_attempt() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn default_retry_on() -> Vec<String> {
    vec!["worker_lost".to_owned()]
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 1,
            retry_on: default_retry_on(),
            backoff_s: Seconds::default(),
            avoid_worker: true,
            memory_growth: None,
        }
    }
}

/// How the memory request grows after `oom_killed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryGrowth {
    /// The request is multiplied by this each time: a number above 1, at most 100, with up to 3 decimals.
    pub factor: f64,
    /// Never more than this; above `resources.memory_bytes`.
    pub max_bytes: u64,
}

impl MemoryGrowth {
    /// The factor in thousandths: decisions are made in integers.
    pub fn factor_millis(&self) -> u64 {
        (self.factor * 1000.0).round() as u64
    }
}

/// What an expired lease does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnUnreachable {
    /// The task is lost at once.
    Replace,
    /// The task may come back until `unreachable_timeout_s`.
    Wait,
}

/// A job that must end before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Dependency {
    /// A job id, or `#index` of an earlier entry of the same batch.
    pub job: String,
    /// Which end counts.
    #[serde(default)]
    pub when: DependencyEnd,
}

/// Which end of a dependency counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DependencyEnd {
    /// Only success.
    #[default]
    Succeeded,
    /// Any end.
    Ended,
}
