//! A program that stays after its task and gets the next one of its kind, so that what it has loaded is there already.
//!
//! Between two tasks it is stopped (`SIGSTOP`): it computes nothing, writes nothing and starts nothing. Only one that is
//! alone in its tree may stay, for a time that is limited, and its shim takes no other kind of task meanwhile: the
//! shim goes when the program does.
//!
//! The two talk over descriptor 3 of the program, in packets of JSON:
//!
//! | who | says | means |
//! |---|---|---|
//! | program | `{"status": 0}` | the call is over, with this status; streams, folder and files of the task are let go |
//! | shim | `{"env": [[name, value], …]}`, with the new output and error streams | the next task: these variables take the place of all that are of one task |
//!
//! A program that ends, or says nothing, is one that does not stay.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    recv, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::{Deserialize, Serialize};

use super::Launch;
use super::cgroup::Group;
use super::frame::{FromShim, os_pairs, os_path};
use super::memory::meminfo_bytes;
use super::remark::remark;
use super::system::{Reaped, reap_any};
use super::tree::{descendants, kill_descendants};
use crate::domain::task_run::is_of_one_task;

/// Where the program finds its end.
pub(super) const CALLS_DESCRIPTOR: i32 = 3;
/// What the program says is no longer.
const MOST_SAID_BYTES: usize = 256;
/// Between looks at one that was killed.
const KILL_AGAIN: Duration = Duration::from_millis(100);
/// One that has called waits for its shim, and stops at once.
const STOPS_WITHIN: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// That a launch's program may stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stay {
    /// Equal means that a program started for the one launch serves the other as well as a new one would.
    pub key: String,
    /// How long it waits for its next task.
    pub idle: Duration,
    /// Absolute; the shim makes a link there that leads to the workspace of the program's present task, and adds its
    /// path to the program's arguments: modules loaded by way of it are found again in the next task.
    #[serde(with = "os_path")]
    pub(super) links: PathBuf,
}

impl Stay {
    /// For launches with this key, each no longer than `idle` after the one before.
    pub fn new(key: String, idle: Duration) -> Self {
        // The pool says where.
        Self { key, idle, links: PathBuf::new() }
    }
}

#[derive(Serialize)]
struct NextCall<'a> {
    #[serde(with = "os_pairs")]
    env: &'a [(OsString, OsString)],
}

#[derive(Deserialize)]
struct Called {
    status: i32,
}

/// What came from a program.
pub(super) enum Heard {
    Nothing,
    /// It has called, and may stay.
    Called {
        status: i32,
    },
    /// It does not stay.
    Gone,
}

/// The shim's end of the way to a program that may stay.
#[derive(Debug)]
pub(super) struct Calls(OwnedFd);

impl Calls {
    /// Both ends.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(ours), theirs))
    }

    /// Never waits.
    pub(super) fn hear(&self) -> Heard {
        let mut said = [0; MOST_SAID_BYTES];
        match recv(&self.0, &mut said, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
            Ok((length, _)) if length > 0 => match serde_json::from_slice(&said[..length]) {
                Ok(Called { status }) => Heard::Called { status: status & 0xFF },
                Err(_) => Heard::Gone,
            },
            _ => Heard::Gone,
        }
    }

    fn call(&self, env: &[(OsString, OsString)], out: BorrowedFd<'_>, err: BorrowedFd<'_>) -> io::Result<()> {
        let text = serde_json::to_vec(&NextCall { env })?;
        let streams = [out, err];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&streams)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.0, &[IoSlice::new(&text)], &mut control, flags)?;
        Ok(())
    }
}

impl AsFd for Calls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A program between two tasks.
#[derive(Debug)]
pub(super) struct Resident {
    pub(super) main: Pid,
    pub(super) calls: Calls,
    stay: Stay,
    /// What keeps its Python environment, if it has one.
    pub(super) held: Vec<OwnedFd>,
    until: Instant,
    /// When to look again whether it is gone, once it was killed.
    dying: Option<Instant>,
}

impl Resident {
    /// Stops a program that has called. `Err`: it is not alone, and is not stopped any more; whoever it belongs to
    /// kills its tree.
    pub(super) fn settle(
        main: Pid,
        calls: Calls,
        stay: Stay,
        held: Vec<OwnedFd>,
        group: Option<&Group>,
    ) -> Result<Self, Vec<OwnedFd>> {
        let stopped = kill_process(main, Signal::STOP).is_ok() && is_stopped(main);
        // Nobody of its tree can start anybody any more.
        let own = main.as_raw_nonzero().get().unsigned_abs();
        let is_alone = stopped
            && descendants() == [own]
            && group.is_none_or(|group| group.others().iter().all(|pid| *pid == own));
        if !is_alone {
            return Err(held);
        }
        let until = Instant::now() + stay.idle;
        Ok(Self { main, calls, stay, held, until, dying: None })
    }

    /// Whether a launch's program may be this one. A signal that waits for it, as it is stopped, would be the launch's.
    pub(super) fn serves(&self, launch: &Launch) -> bool {
        self.dying.is_none()
            && launch.stay.as_ref().is_some_and(|stay| stay.key == self.stay.key)
            && !has_signals(&status_of(self.main).unwrap_or_default())
    }

    /// What is told of it.
    pub(super) fn told(&self) -> FromShim {
        FromShim::Staying { key: self.stay.key.clone(), pid: self.main.as_raw_nonzero().get().unsigned_abs() }
    }

    /// Hands it a task and lets it go on: from then on it is the task's.
    pub(super) fn call(&self, launch: &Launch, out: BorrowedFd<'_>, err: BorrowedFd<'_>) -> io::Result<()> {
        let of_task = |(name, _): &&(OsString, OsString)| name.to_str().is_some_and(is_of_one_task);
        let env: Vec<_> = launch.env.iter().filter(of_task).cloned().collect();
        self.calls.call(&env, out, err)?;
        forget_peak_memory(self.main);
        Ok(kill_process(self.main, Signal::CONT)?)
    }

    /// The next moment at which there is something to do.
    pub(super) fn deadline(&self) -> Instant {
        self.dying.unwrap_or(self.until)
    }

    /// Whether it has waited long enough.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Whether somebody has let it go on.
    pub(super) fn is_woken(&self) -> bool {
        let options = WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(self.main), options), Ok(Some(_)))
    }

    /// Whether it was killed, and is only waited for.
    pub(super) fn is_dying(&self) -> bool {
        self.dying.is_some()
    }

    /// Kills it, with whoever else is in its tree all the same.
    pub(super) fn end(&mut self, group: Option<&mut Group>) {
        if let Some(group) = group {
            group.kill_others();
        }
        kill_descendants();
        self.dying = Some(Instant::now() + KILL_AGAIN);
    }

    /// Whether the whole tree is gone, however that came. One that was killed and is not is killed again.
    pub(super) fn is_gone(&mut self, mut group: Option<&mut Group>) -> bool {
        loop {
            match reap_any() {
                Ok(Reaped::Child { .. }) => {}
                Ok(Reaped::NoChild) if group.as_ref().is_none_or(|group| group.is_clear()) => return true,
                Ok(Reaped::NoChild | Reaped::AllAlive) => break,
                Err(error) => {
                    remark(format_args!("a program that stayed cannot be reaped: {error}"));
                    break;
                }
            }
        }
        if self.dying.is_some_and(|at| Instant::now() >= at) {
            self.end(group.take());
        }
        false
    }
}

/// Waits until a process that was sent `SIGSTOP` has stopped, which is a moment; `false` = it has ended, or somebody keeps
/// it from stopping: a debugger, or a process of its own that wakes it.
fn is_stopped(main: Pid) -> bool {
    // Left to be reaped, if it has ended.
    let options =
        WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let until = Instant::now() + STOPS_WITHIN;
    loop {
        match waitid(WaitId::Pid(main), options) {
            // The signal was sent; that it has come is told to nobody who does not wait.
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
            found => return matches!(found, Ok(Some(status)) if status.stopped()),
        }
    }
}

/// The most memory this process has had, in bytes, since [`forget_peak_memory`] or its start.
pub(super) fn peak_memory_bytes(main: Pid) -> Option<u64> {
    meminfo_bytes(&status_of(main)?, "VmHWM:")
}

fn status_of(main: Pid) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{}/status", main.as_raw_nonzero())).ok()
}

/// Whether a process with this `status` has signals to come, sent to it or to its first thread.
fn has_signals(status: &str) -> bool {
    let mut sets =
        status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    sets.any(|set| set.trim().bytes().any(|digit| digit != b'0'))
}

fn forget_peak_memory(main: Pid) {
    let path = format!("/proc/{}/clear_refs", main.as_raw_nonzero());
    // Otherwise its next task shows the peak of all.
    if let Ok(mut file) = std::fs::OpenOptions::new().write(true).open(path) {
        let _ = file.write_all(b"5");
    }
}

/// The link by way of which a shim's resident program sees its workspace.
#[derive(Debug)]
pub(super) struct WorkspaceLink(PathBuf);

impl WorkspaceLink {
    /// In this folder; each shim has one.
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self(folder.join(std::process::id().to_string()))
    }

    /// Its path.
    pub(super) fn path(&self) -> &OsStr {
        self.0.as_os_str()
    }

    /// Lets it lead there from now on.
    pub(super) fn lead_to(&self, workspace: &Path) -> io::Result<()> {
        let new = self.0.with_extension("new");
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::os::unix::fs::symlink(workspace, &new)?;
        std::fs::rename(&new, &self.0)
    }
}

impl Drop for WorkspaceLink {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_to_come_is_seen_in_either_set() {
        let status = |thread: &str, process: &str| {
            format!("Threads:\t1\nSigPnd:\t{thread}\nShdPnd:\t{process}\nSigBlk:\t0000000000004000\n")
        };
        let none = "0000000000000000";
        assert!(!has_signals(&status(none, none)), "what it blocks has not come");
        assert!(has_signals(&status("0000000000000200", none)));
        assert!(has_signals(&status(none, "0000000000004000")));
    }
}
