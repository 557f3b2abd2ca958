//! A standalone worker of a house's daemon: a process of its own, which dies and comes back by itself.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::house::{House, binary};

/// `gpulayer-worker`, in the house's folder `far`; killed when dropped.
pub struct FarWorker(Child);

impl FarWorker {
    /// Starts it, or starts it again, towards this server.
    pub fn start(house: &House, url: &str) -> Self {
        Self::start_with(house, url, &[])
    }

    /// The same with other flags.
    pub fn start_with(house: &House, url: &str, flags: &[&str]) -> Self {
        Self::start_as(house, Self::command(house, url).args(flags))
    }

    /// The same from [`FarWorker::command`] with what else it is to have.
    pub fn start_as(house: &House, command: &mut Command) -> Self {
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(house.path().join("far.log")).unwrap();
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    /// How it is started.
    pub fn command(house: &House, url: &str) -> Command {
        let mut command = Command::new(binary("gpulayer-worker"));
        command
            .args(["--url", url, "--name", "far", "--allow-root-tasks", "--join-token-file"])
            .arg(house.home().join("join-token"));
        command.arg("--folder").arg(Self::folder(house)).stdin(Stdio::null());
        command
    }

    /// Where its identity, shims and tasks lie.
    pub fn folder(house: &House) -> PathBuf {
        house.path().join("far")
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it still runs.
    pub fn is_up(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for FarWorker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
