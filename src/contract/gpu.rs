//! GPUs: what a worker says it has, and how each of them stands.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::spec::MemoryKind;

/// One device that can be granted: a whole GPU, or a MIG slice of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// Names it on every machine and after every reboot: `GPU-…`, `MIG-…`, or what its vendor has for that.
    pub uuid: String,
    /// Who made it.
    pub vendor: GpuVendor,
    /// Its place in PCI order on its machine, from 0; a slice has the place of its GPU.
    pub index: u32,
    /// As its driver calls it: `NVIDIA H100 80GB HBM3`.
    pub model: String,
    /// Its memory, in bytes; the machine's own where it is unified.
    pub memory_bytes: u64,
    /// Whether that is its own.
    #[serde(default = "dedicated")]
    pub memory_kind: MemoryKind,
    /// NVIDIA only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<ComputeCapability>,
    /// `00000000:1B:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// The memory node of the machine that it is near to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// GPUs of this machine that it reaches over NVLink (or what its vendor has for that), by uuid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
    /// Of a MIG slice: what it is a slice of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<GpuSlice>,
    /// Its driver's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// How it stood when this was asked.
    #[serde(default)]
    pub standing: GpuStanding,
}

fn dedicated() -> MemoryKind {
    MemoryKind::Dedicated
}

/// What a MIG slice is a slice of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuSlice {
    /// The uuid of the whole GPU.
    pub of: String,
    /// `3g.40gb`.
    pub profile: String,
}

/// Who made a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuVendor {
    /// By NVML.
    Nvidia,
    /// By `rocm-smi` and sysfs.
    Amd,
    /// By the system's tools.
    Apple,
}

impl GpuVendor {
    /// All of them.
    pub const ALL: [GpuVendor; 3] = [GpuVendor::Nvidia, GpuVendor::Amd, GpuVendor::Apple];

    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            GpuVendor::Nvidia => "nvidia",
            GpuVendor::Amd => "amd",
            GpuVendor::Apple => "apple",
        }
    }
}

/// Whether a GPU can be granted now, apart from what was granted already. Changes travel with heartbeats.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GpuStanding {
    /// It can.
    #[default]
    Ready,
    /// Programs that are no tasks use it; it is not offered.
    BusyOutside {
        /// Them.
        pids: Vec<u32>,
    },
    /// Processes of an ended task still hold memory on it; it is not offered until they are gone.
    Wedged {
        /// Them.
        pids: Vec<u32>,
    },
    /// It does not work: lost, a failed memory, a driver that does not answer.
    Unhealthy {
        /// In words.
        why: String,
    },
}

/// A GPU whose standing is news.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuNews {
    /// Which.
    pub uuid: String,
    /// How it stands now.
    pub standing: GpuStanding,
}

/// `major.minor`, ordered as numbers: 10.0 is above 9.0. On the wire a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// 9 of `9.0`.
    pub major: u16,
    /// 0 of `9.0`.
    pub minor: u16,
}

/// Text that is no compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected MAJOR.MINOR, such as 9.0")]
pub struct NoComputeCapability;

impl FromStr for ComputeCapability {
    type Err = NoComputeCapability;

    fn from_str(text: &str) -> Result<Self, NoComputeCapability> {
        let number = |text: &str| match text.as_bytes() {
            [] => Err(NoComputeCapability),
            digits if digits.iter().all(u8::is_ascii_digit) => text.parse().map_err(|_| NoComputeCapability),
            _ => Err(NoComputeCapability),
        };
        let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Self { major: number(major)?, minor: number(minor)? })
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Serialize for ComputeCapability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ComputeCapability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A Python interpreter of a worker, and the frameworks that it can import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Interpreter {
    /// Its path there.
    pub path: String,
    /// `3.12.4`; absent when it did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// By name: `torch`, `jax`, `tensorflow`, `mlx`.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub frameworks: std::collections::BTreeMap<String, Framework>,
    /// Why it could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A framework that an interpreter can import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Framework {
    /// `2.6.0.dev20250101+cu124`.
    pub version: String,
    /// What it can really compute on there: `cuda`, `rocm`, `mps`, `cpu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<String>,
    /// Why it does not work although it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_capabilities_are_ordered_as_numbers() {
        let of = |text: &str| text.parse::<ComputeCapability>().unwrap();
        assert!(of("10.0") > of("9.0") && of("8.9") > of("8.6"));
        assert_eq!(of("9"), of("9.0"));
        assert_eq!(of("12.1").to_string(), "12.1");
        for wrong in ["", "9.", ".0", "sm_90", "+9.0", "9.0.1", "99999.0"] {
            assert!(wrong.parse::<ComputeCapability>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_standing_reads_like_this() {
        let standing = GpuStanding::Wedged { pids: vec![41] };
        assert_eq!(serde_json::to_string(&standing).unwrap(), r#"{"state":"wedged","pids":[41]}"#);
    }
}
