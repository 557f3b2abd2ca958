//! Small volumes for tests of full disks, and mounts where nobody expects one. Mounting takes root: where that is not
//! to be had, a test fails and says why, unless `GPULAYER_TESTS_WITHOUT_MOUNTS=1` says that this is known.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::FallocateFlags;

/// Something mounted; unmounted when dropped.
pub struct Volume {
    path: PathBuf,
}

impl Volume {
    /// A tmpfs of so many MiB on this folder, which is made. `None` = told to do without.
    #[allow(dead_code, reason = "not every test crate needs both kinds")]
    pub fn tmpfs(path: &Path, size_mib: u64) -> Option<Self> {
        Self::mount(path, &["-t", "tmpfs", "-o", &format!("size={size_mib}m,mode=700"), "tmpfs"])
    }

    /// `source` mounted once more at this folder, which is made.
    #[allow(dead_code, reason = "not every test crate needs both kinds")]
    pub fn bind(source: &Path, path: &Path) -> Option<Self> {
        Self::mount(path, &["--bind", source.to_str().unwrap()])
    }

    fn mount(path: &Path, args: &[&str]) -> Option<Self> {
        if std::env::var_os("GPULAYER_TESTS_WITHOUT_MOUNTS").is_some_and(|value| value == "1") {
            eprintln!("NOT TESTED: told to do without mounts");
            return None;
        }
        std::fs::create_dir_all(path).unwrap();
        let mounted = Command::new("mount").args(args).arg(path).output().unwrap();
        assert!(
            mounted.status.success(),
            "this test needs a mount and cannot have one: {}. Run it as root, or set \
             GPULAYER_TESTS_WITHOUT_MOUNTS=1 to leave such tests out",
            String::from_utf8_lossy(&mounted.stderr).trim()
        );
        Some(Self { path: path.to_owned() })
    }

    #[allow(dead_code, reason = "not every test crate needs both kinds")]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[allow(dead_code, reason = "not every test crate needs both kinds")]
    pub fn free_bytes(&self) -> u64 {
        let room = rustix::fs::statvfs(&self.path).unwrap();
        room.f_bavail * room.f_frsize
    }

    /// Fills it so that this much is left.
    #[allow(dead_code, reason = "not every test crate needs both kinds")]
    pub fn fill(&self, leave_bytes: u64) {
        let file = File::create(self.filler()).unwrap();
        let mut taken = 0;
        // Whoever writes meanwhile takes from the same room.
        for _ in 0..100 {
            let Some(more) = self.free_bytes().checked_sub(leave_bytes).filter(|more| *more > 0) else {
                break;
            };
            if rustix::fs::fallocate(&file, FallocateFlags::empty(), taken, more).is_ok() {
                taken += more;
            }
        }
    }

    /// Makes the room again.
    #[allow(dead_code, reason = "not every test crate needs both kinds")]
    pub fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Lazily: what still runs there is somebody else's to end.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
