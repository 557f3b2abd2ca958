//! How things end: the closed list of reasons, who owns each, and which state follows from it
//! (CONTRACT, Words and states).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use super::quantity::Seconds;
use super::worker::TaskState;

/// Who can do something about an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// The one who submitted.
    User,
    /// A machine, a GPU or a network.
    Infrastructure,
    /// GPUlayer itself.
    Platform,
    /// Who runs the machines.
    Operator,
}

macro_rules! end_reasons {
    ($($name:ident $word:literal $owner:ident $doc:literal),* $(,)?) => {
        /// Why a task or job ended. A closed list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum EndReason {
            $(#[doc = $doc] #[serde(rename = $word)] $name,)*
        }

        impl EndReason {
            /// All of them, by owner.
            pub const ALL: &'static [EndReason] = &[$(EndReason::$name),*];

            /// The word on the wire.
            pub const fn word(self) -> &'static str {
                match self { $(EndReason::$name => $word),* }
            }

            /// Who can do something about it.
            pub const fn owner(self) -> Owner {
                match self { $(EndReason::$name => Owner::$owner),* }
            }

            /// A sentence for people, in the style of `detail`: it begins small and has no full stop.
            pub fn sentence(self) -> String {
                let sentence = match self { $(EndReason::$name => $doc),* };
                let (first, rest) = sentence.split_at(1);
                first.to_ascii_lowercase() + rest.trim_end_matches('.')
            }
        }
    };
}

end_reasons! {
    Completed "completed" User "The program exited with status 0 and every declared output is there.",
    ExitNonzero "exit_nonzero" User "The program exited with a status other than 0.",
    Signalled "signalled" User "A signal that GPUlayer did not send ended the program.",
    TimedOut "timed_out" User "The program ran longer than `timeout_s`.",
    QueueTimedOut "queue_timed_out" User "The job did not start within `queue_timeout_s`.",
    Cancelled "cancelled" User "The job was cancelled on request.",
    DependencyFailed "dependency_failed" User "A job it depends on did not end as required.",
    OomKilled "oom_killed" User "The kernel killed a process of the task for lack of memory.",
    CudaOutOfMemory "cuda_out_of_memory" User "The program ran out of GPU memory.",
    ImportError "import_error" User "A Python module could not be imported.",
    ExecutableNotFound "executable_not_found" User "The program to run does not exist or is not executable.",
    EnvironmentFailed "environment_failed" User "The Python environment could not be built.",
    MissingOutput "missing_output" User "The program exited with status 0 but a declared output is missing.",
    WorkerLost "worker_lost" Infrastructure "The worker stopped answering and its lease ran out.",
    WorkerRebooted "worker_rebooted" Infrastructure "The worker's machine restarted while the task ran.",
    GpuError "gpu_error" Infrastructure "A GPU failed.",
    NcclError "nccl_error" Infrastructure "Communication between GPUs failed.",
    RendezvousFailed "rendezvous_failed" Infrastructure "The nodes of a gang did not find each other.",
    DiskFull "disk_full" Infrastructure "A disk of the worker was full.",
    Preempted "preempted" Infrastructure "A job of higher priority took the place.",
    InputUnavailable "input_unavailable" Infrastructure "An input could not be brought to the worker.",
    PrepareFailed "prepare_failed" Platform "The workspace could not be prepared.",
    Internal "internal" Platform "A fault in GPUlayer ended the task.",
    Drained "drained" Operator "The worker was drained and the deadline passed.",
    Evicted "evicted" Operator "An operator evicted the task.",
    Revoked "revoked" Operator "The worker's credential was revoked.",
}

impl EndReason {
    /// The state of a job that ends for this reason.
    pub const fn job_state(self) -> JobState {
        match self {
            EndReason::Completed => JobState::Succeeded,
            EndReason::TimedOut | EndReason::QueueTimedOut => JobState::TimedOut,
            EndReason::Cancelled => JobState::Cancelled,
            _ => JobState::Failed,
        }
    }

    /// The state of a task that ends for this reason.
    pub const fn task_state(self) -> TaskState {
        match self {
            EndReason::Completed => TaskState::Succeeded,
            EndReason::TimedOut | EndReason::QueueTimedOut => TaskState::TimedOut,
            EndReason::Cancelled | EndReason::Preempted => TaskState::Cancelled,
            EndReason::WorkerLost | EndReason::WorkerRebooted => TaskState::Lost,
            _ => TaskState::Failed,
        }
    }
}

/// How sure a reason is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// One of several causes that would look like this.
    Possible,
    /// Read from the program's own last words.
    Likely,
    /// Counted or measured by the kernel, the shim or the server.
    Certain,
}

impl Certainty {
    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Certainty::Possible => "possible",
            Certainty::Likely => "likely",
            Certainty::Certain => "certain",
        }
    }
}

/// Every end: of a task, and of the job it settled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct End {
    /// Why.
    pub reason: EndReason,
    /// Who can do something about it.
    pub owner: Owner,
    /// Exit status, when the program exited by itself.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// One sentence: what happened, on what.
    pub detail: Option<String>,
    /// Up to three lines that show it.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// How sure the reason is; absent where there is nothing to doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certainty: Option<Certainty>,
    /// What the reason was concluded from, in one clause: `the kernel counted 1 OOM kill in the task's group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<String>,
    /// What to try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Largest memory of the whole process tree, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// From `executing` to the end.
    pub duration_s: Option<Seconds>,
}

impl End {
    /// An end without a process behind it.
    pub fn of(reason: EndReason, detail: impl Into<Option<String>>) -> Self {
        Self {
            reason,
            owner: reason.owner(),
            exit_code: None,
            signal: None,
            detail: detail.into(),
            evidence: Vec::new(),
            certainty: None,
            basis: None,
            advice: None,
            peak_memory_bytes: None,
            duration_s: None,
        }
    }
}
