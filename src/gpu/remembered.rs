//! The last inventory that was whole, in the worker's folder: when the driver does not answer at a later start, its
//! GPUs are listed as not working instead of not at all.

use std::path::{Path, PathBuf};

use crate::contract::gpu::{Gpu, GpuStanding, GpuVendor};

const FILE: &str = "gpus.json";

/// That file.
#[derive(Debug, Clone)]
pub(super) struct Remembered {
    path: Option<PathBuf>,
}

impl Remembered {
    /// In this folder; without one nothing is remembered.
    pub(super) fn in_folder(folder: Option<&Path>) -> Self {
        Self { path: folder.map(|folder| folder.join(FILE)) }
    }

    /// Writes it anew when it differs. What cannot be written, is not remembered.
    pub(super) fn keep(&self, gpus: &[Gpu]) {
        let Some(path) = &self.path else { return };
        let Ok(bytes) = serde_json::to_vec(gpus) else { return };
        if std::fs::read(path).ok().is_some_and(|there| there == bytes) || (gpus.is_empty() && !path.exists())
        {
            return;
        }
        let unfinished = path.with_extension("unfinished");
        let written = std::fs::write(&unfinished, &bytes).and_then(|()| std::fs::rename(&unfinished, path));
        if let Err(error) = written {
            tracing::debug!(%error, "the list of GPUs is not remembered");
        }
    }

    /// NVIDIA's GPUs as they were, all of them out of order for this reason.
    pub(super) fn broken(&self, why: &str) -> Vec<Gpu> {
        let read = self.path.as_ref().and_then(|path| std::fs::read(path).ok());
        let gpus: Vec<Gpu> = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let standing = GpuStanding::Unhealthy { why: why.to_owned() };
        let nvidia = gpus.into_iter().filter(|gpu| gpu.vendor == GpuVendor::Nvidia);
        nvidia.map(|gpu| Gpu { standing: standing.clone(), ..gpu }).collect()
    }
}
