//! What a shim runs before a task's own program, in the same groups and under the same rules: it makes what the program
//! needs, and ends with 0 when that is there. Over a socket it is told what to make, says how the program's environment
//! differs for it, and hands over the files whose locks keep it: the shim holds them until the task's tree is gone.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::frame::{os_list, os_pairs, os_path};
use super::oom_score::OomScore;
use super::resolve::{self, Refusal};
use super::system::inherited_descriptor;
use super::{Launch, NotStarted};
use crate::domain::python::OF_UV;

/// Where it finds its end of the socket.
pub(super) const TOLD_DESCRIPTOR: i32 = 3;
/// What either side says is no longer: it waits in the socket, which takes little more on some machines.
pub const MOST_BYTES: usize = 160 << 10;
/// It hands over no more files.
const MOST_FILES: usize = 4;

/// A program that runs before the task's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prelude {
    /// Absolute.
    #[serde(with = "os_path")]
    pub program: PathBuf,
    /// Its own name first.
    #[serde(with = "os_list")]
    pub argv: Vec<OsString>,
    /// Its whole environment, save the secrets of the task that begin with `UV_`.
    #[serde(with = "os_pairs")]
    pub env: Vec<(OsString, OsString)>,
    /// What it reads first of its socket, up to [`MOST_BYTES`].
    pub input: String,
}

/// How the program's environment differs for what was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Variables with their values.
    #[serde(with = "os_pairs")]
    pub set: Vec<(OsString, OsString)>,
    /// Variables that it is to do without.
    #[serde(with = "os_list")]
    pub unset: Vec<OsString>,
}

impl Prepared {
    /// The environment with that.
    pub(super) fn apply(self, env: &mut Vec<(OsString, OsString)>) {
        let gone = |name: &OsString| self.unset.contains(name) || self.set.iter().any(|(set, _)| set == name);
        env.retain(|(name, _)| !gone(name));
        env.extend(self.set);
    }
}

/// A prelude's own end of the socket.
#[derive(Debug)]
pub struct Telling(OwnedFd);

impl Telling {
    /// Only once, as the first thing in a process that a shim started as a prelude: closes whatever else it inherited,
    /// and nothing that it starts inherits the socket.
    pub fn inherited() -> io::Result<Self> {
        inherited_descriptor(TOLD_DESCRIPTOR).map(Self)
    }

    /// What the worker had for it to read.
    pub fn asked(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; MOST_BYTES];
        let mut control = RecvAncillaryBuffer::default();
        let received =
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty())?;
        bytes.truncate(received.bytes);
        Ok(bytes)
    }

    /// Says it, and hands the files over: what is locked stays locked when this process has ended.
    pub fn tell(&self, prepared: &Prepared, held: &[File]) -> io::Result<()> {
        let bytes = serde_json::to_vec(prepared)?;
        if bytes.len() > MOST_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the environment is too large to tell"));
        }
        let files: Vec<_> = held.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// A prelude as its shim sees it, from its start until its tree is gone.
#[derive(Debug)]
pub(super) struct Preparing {
    told: OwnedFd,
    /// The program's ends of the pipes, which the prelude has as well.
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
    /// Whether it ended with 0, and only what it left is waited for.
    pub(super) done: bool,
}

impl Preparing {
    /// Starts it.
    pub(super) fn begin(
        prelude: &Prelude,
        launch: &Launch,
        oom_score: &OomScore,
        (out, err): (OwnedFd, OwnedFd),
    ) -> Result<(Pid, Self), Refusal> {
        let (told, telling) = asked(prelude.input.as_bytes()).map_err(|error| {
            Refusal::new(
                NotStarted::SpawnFailed,
                format!("the prelude could not be told what to make: {error}"),
            )
        })?;
        // They open package indexes.
        let secrets = launch.secrets.iter().filter(|(name, _)| name.starts_with(OF_UV));
        let streams = [(out.as_fd(), 1), (err.as_fd(), 2), (telling.as_fd(), TOLD_DESCRIPTOR)];
        let main = oom_score.for_task(|| resolve::start_exactly(prelude, launch, secrets, &streams))?;
        Ok((main, Self { told, out, err, done: false }))
    }

    /// What it said; nothing when it said nothing. Never waits.
    pub(super) fn heard(&self) -> io::Result<(Prepared, Vec<OwnedFd>)> {
        let mut bytes = vec![0; MOST_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut hear = || recvmsg(&self.told, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        let heard = match hear() {
            // It did not read what it was told, which is said first, and once.
            Err(rustix::io::Errno::CONNRESET) => hear(),
            heard => heard,
        };
        let received = match heard {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut held = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                held.extend(files);
            }
        }
        if received == 0 {
            return Ok((Prepared::default(), held));
        }
        Ok((serde_json::from_slice(&bytes[..received])?, held))
    }
}

/// Both ends of the socket, with what the prelude is to read in it.
fn asked(input: &[u8]) -> io::Result<(OwnedFd, OwnedFd)> {
    // One message is one packet.
    let (told, telling) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    if input.len() > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is too much"));
    }
    send(&told, input, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok((told, telling))
}

/// The path of this very program, for preludes and others that are made of it: what it was started from may have been
/// replaced since.
pub fn own_binary() -> &'static Path {
    Path::new("/proc/self/exe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_before_gives_way() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let mut env = vec![pair("PATH", "/bin"), pair("PYTHONHOME", "/x"), pair("KEPT", "1")];
        Prepared { set: vec![pair("PATH", "/env/bin:/bin")], unset: vec!["PYTHONHOME".into()] }
            .apply(&mut env);
        assert_eq!(env, [pair("KEPT", "1"), pair("PATH", "/env/bin:/bin")]);
    }
}
