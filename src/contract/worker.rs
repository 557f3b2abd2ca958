//! Workers and tasks, as the server and its clients see them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::artifact::{Digest, OutputFile};
use super::end::End;
use super::gpu::{Gpu, Interpreter};
use super::ids::{Epoch, JobId, TaskId, WorkerId};
use super::problem::Warning;
use super::quantity::{Cpus, Seconds, Timestamp};
use super::telemetry::{ClockOffset, Telemetry};

/// What [`is_name`] asks for, in words.
pub const NAME_RULE: &str = "1 to 63 characters, without `=`, control characters, characters that turn or hide text, or space \
    around them; not like a worker's id, and not with `-` or `@` at the beginning";
/// Characters of a worker's name at most.
const NAME_CHARACTERS: usize = 63;

/// Whether a worker can be called so: names are printed in tables and typed after `--on`, where `zone=a` is a label, and
/// a worker's id is that worker's.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_CHARACTERS).contains(&name.chars().count())
        && !name.chars().any(|c| c == '=' || is_unseen(c))
        && !name.starts_with(['-', '@'])
        && !name.starts_with("wkr_")
        && name.trim() == name
}

/// Whether a character is not seen where it stands: control characters, and those that turn the direction of the text
/// around them, hide in it, or break its line.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A task's state (CONTRACT, Words and states).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Placed; the worker has not started it.
    Assigned,
    /// Started.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Stopped, or preempted.
    Cancelled,
    /// Ran too long.
    TimedOut,
    /// Its lease ran out or its machine restarted.
    Lost,
    /// The worker did not take it.
    Declined,
}

impl TaskState {
    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            TaskState::Assigned => "assigned",
            TaskState::Running => "running",
            TaskState::Succeeded => "succeeded",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
            TaskState::TimedOut => "timed_out",
            TaskState::Lost => "lost",
            TaskState::Declined => "declined",
        }
    }

    /// Whether nothing follows.
    pub const fn ended(self) -> bool {
        !matches!(self, TaskState::Assigned | TaskState::Running)
    }
}

/// Where a started task stands on its worker; reported as events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Source and inputs are brought in.
    Staging,
    /// The Python environment is built.
    Environment,
    /// The program runs; `timeout_s` counts.
    Executing,
    /// Outputs and the last log lines are sent.
    Finishing,
}

impl Phase {
    /// All of them, in the order in which a task passes them.
    pub const ALL: [Phase; 4] = [Phase::Staging, Phase::Environment, Phase::Executing, Phase::Finishing];

    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Phase::Staging => "staging",
            Phase::Environment => "environment",
            Phase::Executing => "executing",
            Phase::Finishing => "finishing",
        }
    }
}

/// One placement of a job, as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// The job.
    pub job_id: JobId,
    /// The job's attempt it belongs to.
    pub attempt: u32,
    /// Fences late messages.
    pub epoch: Epoch,
    /// Rank in a gang; 0 otherwise.
    pub rank: u32,
    /// Where it was placed.
    pub worker: WorkerId,
    /// The GPUs it was given there, by uuid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// Where it stands.
    pub state: TaskState,
    /// When it was placed.
    pub assigned_at: Timestamp,
    /// When the worker started it.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub end: Option<End>,
    /// All that it wrote as one artifact (zstd), when the stored lines differ from it.
    #[serde(default)]
    pub log_artifact: Option<Digest>,
    /// Files that a task which was given up brought back all the same: kept as long as the job, never its outputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late_outputs: Vec<OutputFile>,
}

/// How a worker reaches the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// Inside the daemon, on its host.
    Local,
    /// Joined from elsewhere.
    Remote,
}

/// How a worker kills a task's whole tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TreeKill {
    /// By descent from the task's shim, and by a mark in the environment.
    #[default]
    Walk,
    /// By the list of a control group that nobody can leave by forking.
    Group,
    /// The same, and the kernel kills them all at once.
    Cgroup,
}

/// Which limits a worker can really hold a task to. What is `false` is asked for in vain there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct EnforcedLimits {
    /// `resources.memory_bytes`: a task that needs more is ended as `oom_killed`.
    #[serde(default)]
    pub memory: bool,
    /// `resources.cpus`: a task gets no more CPU time.
    #[serde(default)]
    pub cpu: bool,
    /// The worker's limit on processes per task.
    #[serde(default)]
    pub pids: bool,
    /// How the tree of a task is killed.
    #[serde(default)]
    pub tree_kill: TreeKill,
}

/// A process that was sent SIGKILL and is still there: it waits in the kernel for something that does not come (a disk,
/// a network file system, a driver), or is frozen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StuckProcess {
    /// Its pid.
    pub pid: u32,
    /// Its name, as the kernel has it (15 bytes at most).
    #[serde(default)]
    pub command: String,
    /// The letter of `/proc/<pid>/stat`, such as `D`.
    #[serde(default)]
    pub state: String,
    /// Where it waits: the innermost kernel functions, or the one the kernel names to everybody. Empty when it says
    /// nothing.
    #[serde(default)]
    pub waits_in: Vec<String>,
}

impl std::fmt::Display for StuckProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}) in state {}", self.pid, self.command, self.state)?;
        match self.waits_in.first() {
            Some(function) => write!(f, ", in {function}"),
            None => Ok(()),
        }
    }
}

/// What a machine has to offer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Capabilities {
    /// GPUlayer's version there.
    pub version: String,
    /// The machine's name.
    pub hostname: String,
    /// `linux`, `macos`.
    pub os: String,
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// Cores it offers.
    pub cpus: Cpus,
    /// Memory it offers, in bytes.
    pub memory_bytes: u64,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The GPUs it offers, in PCI order.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// Names of the secrets in its table, never their values.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// Whether jobs may name variables and files of it as secrets.
    #[serde(default)]
    pub spec_secret_refs: bool,
    /// Which limits are real there.
    #[serde(default)]
    pub limits: EnforcedLimits,
    /// Python interpreters it offers, by their paths there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pythons: Vec<String>,
    /// What those interpreters can import, as far as they were asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interpreters: Vec<Interpreter>,
    /// Where other workers reach it: an address or a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise_address: Option<String>,
}

/// A worker's state (CONTRACT, Words and states).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Has no task.
    Idle,
    /// Has tasks.
    Busy,
    /// Takes no new ones.
    Draining,
    /// Something is wrong with it.
    Unhealthy,
    /// Does not answer.
    Offline,
}

/// A worker as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Its id.
    pub id: WorkerId,
    /// Its name.
    pub name: String,
    /// How it reaches the server.
    pub kind: WorkerKind,
    /// Where it stands.
    pub state: WorkerState,
    /// What it has.
    pub capabilities: Capabilities,
    /// Tasks it holds.
    pub tasks: Vec<TaskId>,
    /// When the server last heard of it.
    pub last_seen: Option<Timestamp>,
    /// Why it is `unhealthy`, in its own words; absent when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Set while it takes no new tasks because an operator said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// It said that it leaves when its tasks are over, and takes no new ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// Longest silence between two heartbeats since the server started or the worker came back, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_silence_s: Option<Seconds>,
    /// How its machine is doing, as its newest heartbeat said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
    /// How far its clock is ahead of the server's, in seconds; negative: behind. Nothing is decided by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_s: Option<ClockOffset>,
    /// What is odd about it although it works, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What was noticed in the call that this answers: fields that do not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

/// A worker that is being emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drain {
    /// Since when it takes no new tasks.
    pub since: Timestamp,
    /// When what still runs is stopped; none: never, its tasks end by themselves.
    pub deadline: Option<Timestamp>,
}

/// `POST /v1/workers/{id}/drain`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainRequest {
    /// From now until what still runs is stopped with its grace; none: it may end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<Seconds>,
}

/// `POST /v1/workers/{id}/evict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvictRequest {
    /// The task to stop with its grace.
    pub task_id: TaskId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_seen_as_it_is_and_typed_as_nothing_else() {
        for good in ["far", "box 7", "zürich-2", "a.b_c", "東京"] {
            assert!(is_name(good), "{good}");
        }
        let long = "x".repeat(64);
        for bad in [
            "",
            " far",
            "far\n",
            &long,
            "n=1",
            "@last",
            "-x",
            "wkr_01hf7yat00e2g0000000a7kq2b",
            "a\u{202e}b",
            "a\u{200b}b",
            "\u{feff}a",
        ] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
