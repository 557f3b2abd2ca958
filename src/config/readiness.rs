//! How a daemon tells the command that started it that it answers now. The command holds the reading end of a
//! pipe and waits; the writing end is the daemon's standard input, so that no descriptor number has to be passed
//! and none can leak. A line means ready: it holds the TCP address, or is empty without one. The end of the pipe before
//! a line means that the start failed.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// The daemon's side.
#[derive(Debug)]
pub struct Readiness(());

impl Readiness {
    /// Standard input is the writing end: true in a daemon that a command started in the background.
    pub fn on_stdin() -> Self {
        Self(())
    }

    /// Says that the server answers, and where on TCP, and lets go of the pipe: standard input is at its end
    /// afterwards. A starter that no longer waits is no fault.
    pub fn announce(self, tcp: Option<SocketAddr>) -> io::Result<()> {
        let line = tcp.map_or_else(|| "\n".to_owned(), |address| format!("{address}\n"));
        let told = rustix::io::write(rustix::stdio::stdin(), line.as_bytes());
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

/// What a daemon said to the one who waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// It answers, on this TCP address if it has one.
    Ready(Option<SocketAddr>),
    /// It went away without a word.
    Gone,
}

/// Waits on the starter's side.
pub fn wait(reading: OwnedFd) -> io::Result<Announced> {
    let mut line = String::new();
    BufReader::new(File::from(reading)).read_line(&mut line)?;
    Ok(match line.strip_suffix('\n') {
        Some(address) => Announced::Ready(address.parse().ok()),
        None => Announced::Gone,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn heard(said: &str) -> Announced {
        let (reading, telling) = pipe().unwrap();
        File::from(telling).write_all(said.as_bytes()).unwrap();
        wait(reading).unwrap()
    }

    #[test]
    fn a_line_means_ready_and_silence_means_gone() {
        assert_eq!(heard("127.0.0.1:8470\n"), Announced::Ready(Some(([127, 0, 0, 1], 8470).into())));
        assert_eq!(heard("\n"), Announced::Ready(None));
        assert_eq!(heard(""), Announced::Gone);
        assert_eq!(heard("127.0"), Announced::Gone);
    }
}
