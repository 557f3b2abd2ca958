//! Why GPUs cannot be looked at, and why one cannot be given to a task.

use std::io;
use std::path::PathBuf;

use crate::contract::gpu::GpuStanding;
use crate::contract::worker::StuckProcess;
use crate::process::asked::AskError;

/// Why GPUs cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The child that asks the driver.
    #[error("{what} cannot be asked")]
    Asked {
        /// `the NVIDIA driver`, `rocm-smi`.
        what: &'static str,
        /// Why not.
        #[source]
        source: AskError,
    },
    /// It was asked, and says that it cannot tell.
    #[error("{what}: {why}")]
    Refused {
        /// Who.
        what: &'static str,
        /// In its words.
        why: String,
    },
    /// It hung on one of its devices.
    #[error("{what} does not answer for its device {number}: {source}")]
    Hung {
        /// Who.
        what: &'static str,
        /// Its number there.
        number: u32,
        /// How long.
        source: AskError,
    },
    /// An earlier probe was killed and is still there.
    #[error("the NVIDIA driver does not let go of a probe that was killed: process {process}")]
    Stuck {
        /// The probe.
        process: StuckProcess,
    },
    /// Its answer is none.
    #[error("the answer of {what} cannot be understood")]
    Garbled {
        /// Who.
        what: &'static str,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
}

/// Why a task does not get its GPUs: it is declined with this, and placed elsewhere.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// It is not there, or not any more.
    #[error("GPU {uuid} is not there")]
    Absent {
        /// Which.
        uuid: String,
    },
    /// Its owner keeps it.
    #[error("GPU {uuid} is not among those that this worker offers")]
    NotOffered {
        /// Which.
        uuid: String,
    },
    /// Under its name there is another one now.
    #[error("GPU {uuid} is now a {now}, and was a {told} when this worker joined")]
    Changed {
        /// Which.
        uuid: String,
        /// As the server knows it.
        told: String,
        /// As it is.
        now: String,
    },
    /// Another task of this worker has it.
    #[error("GPU {uuid} is still with task {task_id}")]
    Taken {
        /// Which.
        uuid: String,
        /// Whose.
        task_id: crate::contract::ids::TaskId,
    },
    /// It cannot be granted at the moment.
    #[error("GPU {uuid} {}", said(standing))]
    NotReady {
        /// Which.
        uuid: String,
        /// How it stands.
        standing: GpuStanding,
    },
    /// Another daemon of this host has given it out.
    #[error("GPU {uuid} was given out by another GPUlayer on this host{}", by(*pid))]
    Locked {
        /// Which.
        uuid: String,
        /// The process that holds the lock, where the kernel tells.
        pid: Option<u32>,
    },
    /// The lock cannot be taken.
    #[error("the lock of GPU {uuid} at {} cannot be taken", path.display())]
    Lock {
        /// Of which.
        uuid: String,
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// How they stand cannot be found out.
    #[error("the GPUs cannot be looked at: {why}")]
    Unseen {
        /// Why not.
        why: String,
    },
}

/// How a GPU stands, as the end of a sentence about it.
pub(super) fn said(standing: &GpuStanding) -> String {
    let list = |pids: &[u32]| {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        format!("{} {}", if pids.len() == 1 { "process" } else { "processes" }, pids.join(", "))
    };
    match standing {
        GpuStanding::Ready => "is ready".to_owned(),
        GpuStanding::BusyOutside { pids } => format!("is in use by {} outside of GPUlayer", list(pids)),
        GpuStanding::Wedged { pids } => {
            format!("still has memory of an ended task, held by {}", list(pids))
        }
        GpuStanding::Unhealthy { why } => format!("does not work: {why}"),
    }
}

fn by(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}
