//! How a daemon tells the command that started it that it answers now. The command holds the reading end of a
//! pipe and waits; the writing end is the daemon's standard input, so that no descriptor number has to be passed
//! and none can leak. One byte means ready; the end of the pipe without one means that the start failed.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

/// The daemon's side.
#[derive(Debug)]
pub struct Readiness(());

impl Readiness {
    /// Standard input is the writing end: true in a daemon that a command started in the background.
    pub fn on_stdin() -> Self {
        Self(())
    }

    /// Says that the server answers, and lets go of the pipe: standard input is at its end afterwards. A starter
    /// that no longer waits is no fault.
    pub fn announce(self) -> io::Result<()> {
        let told = rustix::io::write(rustix::stdio::stdin(), b"r");
        let nothing = File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(nothing)?;
        match told {
            Ok(_) | Err(rustix::io::Errno::PIPE) => Ok(()),
            Err(fault) => Err(fault.into()),
        }
    }
}

/// Makes the pipe: the starter's reading end, and what becomes the daemon's standard input.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Waits on the starter's side; `false` = the daemon went away without being ready.
pub fn wait(reading: OwnedFd) -> io::Result<bool> {
    let mut byte = [0];
    loop {
        match File::from(reading.try_clone()?).read(&mut byte) {
            Ok(read) => return Ok(read == 1),
            Err(again) if again.kind() == io::ErrorKind::Interrupted => {}
            Err(fault) => return Err(fault),
        }
    }
}
