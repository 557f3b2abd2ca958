//! Task processes: every task runs under a shim, a process of its own made from the same binary, which holds
//! the task's pipes, keeps its timeout, kills its whole tree, writes its exit status, and outlives the worker.
//!
//! This file is the port: what a worker can ask for, in plain types. The rooms behind it are Linux
//! (`posix_spawn`, subreaper, `/proc`, pidfds); another system brings its own behind the same names.
//!
//! What a shim leaves in the task's folder:
//!
//! | file | meaning |
//! |---|---|
//! | `shim.json` | first line: who holds the task, and the lock on it ([`holder`]); second line, only after the tree is gone and the spool is complete: the [`ExitRecord`] |
//! | `spool` | the log records, numbered from 1; absent while the task is silent |
//! | `overflow.zst` | all bytes from the first line on that the spool leaves out; absent while it leaves out none |
//! | `stop` | one line, the cause in a word, from the moment a stop begins ([`STOP_FILE`]) |

pub mod account;
pub mod asked;
mod cgroup;
pub mod detached;
mod ending;
pub mod foreground;
mod frame;
mod home;
pub mod host_lock;
mod identity;
mod kernel_log;
mod lines;
mod memory;
mod mute;
mod oom_score;
mod open_files;
mod outcomes;
mod overflow;
mod plain_file;
mod pool;
mod pool_link;
pub mod prelude;
pub mod priority;
mod raised;
mod recorder;
mod redacted;
mod remark;
mod resident;
mod resolve;
mod shim;
mod signal_name;
mod spawn_as;
mod spool;
mod spool_reader;
mod spool_tail;
mod stuck;
mod system;
mod tail;
mod task;
mod tree;
mod whole_log;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contract::ids::TaskId;
use crate::contract::quantity::Timestamp;
use crate::contract::spec::StopSignal;
use crate::contract::worker::StuckProcess;
use crate::domain::log_budget::LogLimits;
use crate::domain::secrets::SecretValue;
use crate::domain::task_run::WholeLog;

pub use identity::holder;
pub use kernel_log::kernel_log;
pub use memory::{give_back_free_memory, meminfo_bytes};
pub use oom_score::protect_from_out_of_memory;
pub use open_files::raise_open_files;
pub use outcomes::{OUTCOMES_FILE, has_exception, has_outcome};
pub(crate) use plain_file::read_short;
pub use pool::{Adopted, ShimPool, TaskProcess};
pub use prelude::Prelude;
pub use raised::MOST_RAISED_BYTES;
pub use resident::Stay;
pub use resolve::is_program;
pub use shim::run_if_shim;
pub use spool_reader::{SpoolBatch, SpoolReader};
pub use spool_tail::spool_tail;
pub use stuck::look_at_stuck;
pub use tree::{is_of_a_task, sweep};
pub use whole_log::{WHOLE_LOG_FILE, write_whole_log};

/// Name of the file in the task's folder that appears when a stop begins; `GPULAYER_STOP_FILE` points to it.
pub const STOP_FILE: &str = "stop";
/// The same while it is being written.
const STOP_FILE_UNFINISHED: &str = "stop.unfinished";
/// Name of the file in the task's folder that says which shim took the task and how it ended; there from the
/// moment a shim takes the task. A folder that has it cannot be launched from again.
pub const SHIM_FILE: &str = "shim.json";
/// Name of the log spool in the task's folder.
pub const SPOOL_FILE: &str = "spool";
/// Name of the file in the task's folder that holds what the spool leaves out, as one zstd frame.
pub const OVERFLOW_FILE: &str = "overflow.zst";
/// Name of the file in the worker's folder that lists where its shims' control groups are.
pub const GROUPS_FILE: &str = cgroup::RECORD;
/// Names the folder of a function's call. Whoever launches one sets it in `env`.
pub const FUNCTION_VARIABLE: &str = "GPULAYER_FUNCTION";
/// Name of the file in that folder that says what the function raised.
pub const RAISED_FILE: &str = "raised";
/// Name of the file in that folder with what it returned.
pub const RETURNED_FILE: &str = "returned";
/// The variable by which [`sweep`] knows a task's processes. Whoever launches must set it in `env`.
pub const TASK_ID_VARIABLE: &str = "GPULAYER_TASK_ID";

/// All a shim needs to run one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The task.
    pub task_id: TaskId,
    /// Absolute; exists; the shim's files go there.
    #[serde(with = "frame::os_path")]
    pub task_folder: PathBuf,
    /// Absolute; what `cwd` is relative to.
    #[serde(with = "frame::os_path")]
    pub workspace: PathBuf,
    /// Relative to the workspace (empty = the workspace itself), or absolute.
    #[serde(with = "frame::os_path")]
    pub cwd: PathBuf,
    /// At least one; the first is looked up in the `PATH` of `env`, or relative to `cwd` when it holds a `/`.
    #[serde(with = "frame::os_list")]
    pub argv: Vec<OsString>,
    /// The whole environment of the task: nothing is added.
    #[serde(with = "frame::os_pairs")]
    pub env: Vec<(OsString, OsString)>,
    /// More of its environment, which is kept out of its log in any form. They go over the shim's socket and
    /// nowhere else; they win over `env`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "frame::secret_pairs")]
    pub secrets: Vec<(String, SecretValue)>,
    /// Sent to the task's process group when it has to stop.
    #[serde(default)]
    pub stop_signal: StopSignal,
    /// From the stop signal to the kill of the tree.
    pub grace: Duration,
    /// From the exec; `None` = none.
    #[serde(default)]
    pub timeout: Option<Duration>,
    /// What runs before: the program is started when it has ended with 0 and its tree is gone. The task has not started
    /// until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prelude: Option<Box<Prelude>>,
    /// How long the task may run without any worker connected to its shim.
    pub orphan_timeout: Duration,
    /// What its processes may use together, as far as this machine can hold them to it.
    #[serde(default)]
    pub limits: Limits,
    /// How much log it may make.
    #[serde(default)]
    pub log: LogLimits,
    /// Files of [`host_lock`] that the shim shares for the life of the task's tree: those of its GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "frame::os_list")]
    pub gpu_locks: Vec<OsString>,
    /// Whether the program may stay after the task, and for which others; `None` = it is gone with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stay: Option<Stay>,
    /// Whose rights the program has; `None` = those of the shim. Another user's want a shim that runs as root, and
    /// folders which that user can reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,
}

/// A user by numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAs {
    /// Its user id.
    pub uid: u32,
    /// Its own group.
    pub gid: u32,
    /// All groups it is in.
    pub groups: Vec<u32>,
}

/// What all processes of a task may use together; `None` = as much as there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory, page cache included. A task that needs more is ended by the kernel.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Thousandths of a core. A task that wants more waits.
    #[serde(default)]
    pub cpu_millis: Option<u32>,
    /// Processes and threads at once. Beyond, `fork` fails.
    #[serde(default)]
    pub pids: Option<u64>,
}

/// How a task's own process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Wait {
    /// By itself.
    Exited {
        /// Its status, 0 to 255.
        code: i32,
    },
    /// By a signal.
    Signalled {
        /// Its number.
        signal: i32,
        /// Its name, such as `SIGKILL`.
        name: String,
    },
    /// It never ran.
    NotStarted {
        /// In what way.
        kind: NotStarted,
        /// One sentence that names the thing.
        detail: String,
    },
}

/// Why a program never ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotStarted {
    /// No such program (a shell would say 127).
    NotFound,
    /// It is there but cannot be run (a shell would say 126).
    NotExecutable,
    /// The working folder is missing or cannot be entered.
    BadCwd,
    /// The system refused: no memory, too many processes, arguments too long, a task folder that is gone.
    SpawnFailed,
}

impl NotStarted {
    /// The exit status a shell would give.
    pub const fn exit_code(self) -> i32 {
        match self {
            NotStarted::NotFound => 127,
            _ => 126,
        }
    }
}

/// Who had a shim stop its task; what the program reads is the order's own word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// The worker asked.
    Requested,
    /// `timeout` passed.
    Timeout,
    /// No worker was connected for `orphan_timeout`.
    Orphaned,
}

/// A stop that was begun; the first cause stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopSent {
    /// Why.
    pub cause: StopCause,
    /// When the first signal went out.
    pub sent_at: Timestamp,
}

/// How a task ended: written to `shim.json` and sent to the worker when its tree is gone and its spool complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The task.
    pub task_id: TaskId,
    /// How its own process ended.
    pub wait: Wait,
    /// The stop that was begun before, if any. An exit before the stop signal leaves this empty.
    #[serde(default)]
    pub stop: Option<StopSent>,
    /// Whether the exit came after the stop signal was sent.
    #[serde(default)]
    pub after_stop: bool,
    /// Just before the exec.
    pub started_at: Timestamp,
    /// When its own process was seen to have ended.
    pub ended_at: Timestamp,
    /// Whether that process was the prelude, so that the program never ran.
    #[serde(default)]
    pub in_prelude: bool,
    /// Between the two, on the monotonic clock.
    pub duration: Duration,
    /// With a memory limit, the most the whole tree used at once, page cache included. Without, the largest resident
    /// memory of any one process of the tree that the shim reaped, in bytes; never below the shim's own few MiB, which
    /// the kernel counts until the exec.
    #[serde(default)]
    pub peak_memory_bytes: Option<u64>,
    /// What the tree was really held to, in bytes; `None` = no memory limit was in force.
    #[serde(default)]
    pub memory_limit_bytes: Option<u64>,
    /// Processes of the tree that the kernel killed for want of memory, whichever they were: the task's own process may
    /// have exited by itself. `None` = this machine cannot tell.
    #[serde(default)]
    pub oom_kills: Option<u64>,
    /// From the exec to when the first of them was noticed.
    #[serde(default)]
    pub oom_killed_after: Option<Duration>,
    /// How the tree fared against its CPU limit; `None` = none was in force.
    #[serde(default)]
    pub cpu_throttling: Option<CpuThrottling>,
    /// Whether a memory limit was asked for that the task's group did not take.
    #[serde(default)]
    pub memory_not_held: bool,
    /// Log records at the end that could not be written: nothing in the spool says so.
    #[serde(default)]
    pub lost_records: u64,
    /// Why, in one clause; empty = none were lost, or the shim is of a build that did not say.
    #[serde(default)]
    pub lost_because: String,
    /// Number of the last log record; 0 = the task was silent.
    #[serde(default)]
    pub last_n: u64,
    /// Where all that it wrote is.
    #[serde(default)]
    pub whole_log: WholeLog,
    /// The task's own process, and those of its tree that a signal ended which the shim did not send, as far as the
    /// shim reaped them: by these the kernel log speaks of the task.
    #[serde(default)]
    pub pids: Vec<u32>,
}

/// How often a CPU limit was felt. The kernel gives the tree its share once per period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuThrottling {
    /// The limit, in thousandths of a core.
    pub cpu_millis: u32,
    /// Periods in which the tree wanted to run.
    pub periods: u64,
    /// Those in which it used up its share and had to wait.
    pub throttled_periods: u64,
}

/// What a shim says about its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShimEvent {
    /// The prelude runs. Left out when it takes no more than a few milliseconds.
    Preparing,
    /// The program runs. Held back for a few milliseconds and left out when the task has ended by then.
    Started {
        /// Of the task's own process.
        pid: u32,
    },
    /// Records up to this number can be read from the spool. Not sent for every line, and not for the last
    /// ones: those come with [`ShimEvent::Ended`] as `last_n`.
    Logged {
        /// Number of the newest record.
        through_n: u64,
    },
    /// These were killed seconds ago and do not end: they wait in the kernel, or are frozen. The task has not ended as
    /// long as they are there.
    Stuck(Vec<StuckProcess>),
    /// The tree is gone, the spool complete, the record written.
    Ended(Box<ExitRecord>),
    /// The shim is gone without an end (killed). Look for the record ([`ExitRecord::read`]), and [`sweep`] if there is
    /// none.
    ShimLost,
}

/// What can go wrong between a worker and its shims.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A shim could not be started.
    #[error("could not start a shim from {}", binary.display())]
    Spawn {
        /// What was to be run.
        binary: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A shim did not take what it was sent.
    #[error("could not talk to shim {pid}")]
    Talk {
        /// Its pid.
        pid: u32,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file or folder.
    #[error("could not {operation} {}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file of a shim does not hold what it should.
    #[error("{} cannot be understood", path.display())]
    Garbled {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// Processes that do not end although they were killed.
    #[error("processes {pids:?} do not end although they were killed")]
    Survivors {
        /// Which.
        pids: Vec<u32>,
    },
}
