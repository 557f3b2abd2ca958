//! The machine's GPUs: what there is ([`inventory`]), how each of them stands, who has it ([`Devices`]), and that no
//! two daemons of a host give out the same one ([`locks`]). The only home of NVML.
//!
//! Nothing of a driver is called in this process. NVIDIA's library is loaded by a child, this binary under the name
//! [`PROBE_NAME`], which answers one question a line and is killed when it takes too long; `rocm-smi` and macOS' tools
//! are programs anyway. So a driver that hangs or crashes costs the GPUs, with a reason, and never the worker.

pub mod amd;
pub mod apple;
mod devices;
mod error;
pub mod inventory;
pub mod locks;
mod nvidia;
mod probe;
mod remembered;
pub mod sysfs;
mod watch;

use std::path::PathBuf;

use crate::domain::offered_gpus::OfferedGpus;

pub use devices::Devices;
pub use error::{GpuError, GrantError};
pub use probe::{PROBE_NAME, run_if_probe};

/// How the machine's GPUs are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuOptions {
    /// NVIDIA's library.
    pub nvml: Nvml,
    /// What the probe is made from; this program when absent. It must call [`run_if_probe`] first.
    pub binary: Option<PathBuf>,
    /// Where the kernel shows its devices: `/sys`.
    pub sysfs: PathBuf,
    /// Where `rocm-smi` is looked for when there are AMD GPUs; absent: in the usual places.
    pub rocm_smi: Option<PathBuf>,
    /// Which of them are offered.
    pub offered: OfferedGpus,
    /// Where the locks of GPUs lie; see [`locks`].
    pub lock_folders: Vec<PathBuf>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            nvml: Nvml::System,
            binary: None,
            sysfs: "/sys".into(),
            rocm_smi: None,
            offered: OfferedGpus::All,
            lock_folders: locks::PLACES.map(PathBuf::from).into(),
        }
    }
}

/// Which NVML is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Nvml {
    /// The driver's own, where the machine has a device of NVIDIA.
    #[default]
    System,
    /// The library at this path, whatever devices there are.
    Library(PathBuf),
    /// None: NVIDIA's GPUs are left alone.
    Off,
}

impl Nvml {
    /// As the setting `nvml` says it: empty, `off`, or a path.
    pub fn of_setting(text: Option<&str>) -> Self {
        match text {
            None | Some("") => Nvml::System,
            Some("off") => Nvml::Off,
            Some(path) => Nvml::Library(path.into()),
        }
    }
}
