//! Processes that do not die although they are killed.

use std::path::{Path, PathBuf};

/// Kept from dying as a disk that does not answer would keep it.
pub struct Frozen {
    group: PathBuf,
}

impl Frozen {
    /// Where such groups are made.
    pub const ROOT: &str = "/sys/fs/cgroup/freezer";

    /// `None`: this host has no freezer of version 1, the only one that holds even what was killed.
    pub fn freeze(pid: u32) -> Option<Self> {
        let group = Path::new(Self::ROOT).join(format!("gpulayer-test-{pid}"));
        std::fs::create_dir(&group).ok()?;
        let frozen = Self { group };
        std::fs::write(frozen.group.join("cgroup.procs"), pid.to_string()).ok()?;
        std::fs::write(frozen.group.join("freezer.state"), "FROZEN").ok()?;
        Some(frozen)
    }

    /// Lets it go.
    pub fn thaw(&self) {
        std::fs::write(self.group.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::fs::write(self.group.join("freezer.state"), "THAWED");
        let _ = std::fs::remove_dir(&self.group);
    }
}
