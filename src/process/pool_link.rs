//! The worker's end of the connection to one shim.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::net::UnixStream;

use super::ProcessError;
use super::frame::{Frames, FromShim, Hello, ToShim, encode};
use crate::domain::secrets::wipe;

/// A shim answers at once; one that does not hangs.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct ShimLink {
    pub(super) pid: u32,
    stream: UnixStream,
    frames: Frames,
    /// What stayed of its last task.
    pub(super) stayed: Option<Stayed>,
}

/// A program that waits under a shim.
#[derive(Debug)]
pub(super) struct Stayed {
    /// Of the launches that it waits for: its shim takes no others.
    pub(super) key: String,
    /// Ends it if its shim cannot any more. Absent when it was gone by then.
    process: Option<OwnedFd>,
}

impl Stayed {
    pub(super) fn new(key: String, pid: u32) -> Self {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        Self { key, process: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) }
    }

    /// Kills it.
    pub(super) fn end(&self) {
        // It may have ended with its shim, as it was told to.
        let _ = self.process.as_ref().map(|process| pidfd_send_signal(process, Signal::KILL));
    }
}

impl ShimLink {
    /// Over the socket pair a new shim was born with.
    pub(super) fn born(pid: u32, stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { pid, stream: UnixStream::from_std(stream)?, frames: Frames::default(), stayed: None })
    }

    /// To a shim that is there already. `None`: nobody listens any more.
    pub(super) async fn connect(folder: impl AsFd, name: &str) -> io::Result<Option<(Self, Hello)>> {
        use std::os::fd::AsRawFd;
        // By way of the open folder: the path itself may be longer than a socket's may be.
        let path = format!("/proc/self/fd/{}/{name}", folder.as_fd().as_raw_fd());
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            Err(error) if is_of_one_that_left(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut link = Self { pid: 0, stream, frames: Frames::default(), stayed: None };
        match tokio::time::timeout(HELLO_WITHIN, link.next()).await {
            Ok(Ok(Some(FromShim::Hello(hello)))) => {
                link.pid = hello.identity.pid;
                Ok(Some((link, hello)))
            }
            // It went away between the two.
            Ok(Ok(None)) => Ok(None),
            Ok(Err(error)) if is_of_one_that_left(&error) => Ok(None),
            Ok(Err(error)) => Err(error),
            Ok(Ok(Some(_))) => Err(io::Error::new(io::ErrorKind::InvalidData, "it did not say hello")),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it did not say hello")),
        }
    }

    /// Sends one message; small ones never wait.
    pub(super) async fn send(&self, message: &ToShim) -> Result<(), ProcessError> {
        let failed = |source| ProcessError::Talk { pid: self.pid, source };
        let mut bytes = encode(message).map_err(failed)?;
        let sent = self.send_all(&bytes).await.map_err(failed);
        // A launch may hold secrets.
        wipe(&mut bytes);
        sent
    }

    async fn send_all(&self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message; `None`: the connection has ended. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Option<FromShim>> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.frames.next()? {
                return Ok(Some(message));
            }
            self.stream.readable().await?;
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(length) => self.frames.feed(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Nobody listened, or the listener was closed while this connection waited in its queue: a shim without a task leaves
/// when it has lost its worker, and the next worker may come at that moment.
fn is_of_one_that_left(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(error.kind(), ConnectionRefused | NotFound | ConnectionReset | BrokenPipe)
}
