//! Gangs: the tasks of one attempt of a distributed job, one per worker.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::WorkerId;

/// Makes a job a gang of `nodes` tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Distributed {
    /// Tasks, one per worker.
    pub nodes: u32,
    /// Processes on each node: a count, or one per GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_per_node: Option<ProcessesPerNode>,
    /// Who starts the ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// Collective library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
}

/// `n` or `"gpu"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ProcessesPerNode {
    /// So many.
    Count(u32),
    /// One per GPU of the node.
    #[serde(with = "gpu_word")]
    Gpu,
}

mod gpu_word {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("gpu")
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        let word = String::deserialize(deserializer)?;
        if word == "gpu" { Ok(()) } else { Err(serde::de::Error::custom("`gpu` or a count is expected")) }
    }
}

/// Who starts the ranks of a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Launcher {
    /// PyTorch's launcher.
    Torchrun,
    /// The worker itself.
    Direct,
    /// argv once per node, with rank and peers in its environment.
    Env,
}

/// Collective library of a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// By what the machine can do.
    Auto,
    /// NVIDIA GPUs.
    Nccl,
    /// CPUs.
    Gloo,
}

/// Which task of a gang it is, and with whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GangPlace {
    /// Its place among the peers, from 0.
    pub rank: u32,
    /// All of them, by rank, itself too.
    pub peers: Vec<Peer>,
}

/// A worker as others of a gang reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Peer {
    /// Which worker.
    pub worker: WorkerId,
    /// What people call it.
    pub name: String,
    /// An address or a host name: the one that it advertises, else its machine's name.
    pub address: String,
}
