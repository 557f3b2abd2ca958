//! The per-user daemon, started by the first command that needs it. Two commands at once end with one daemon: the
//! start lock lets one of them start it, and the other finds it running when its turn comes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::screen::say;
use super::standing::Standing;
use crate::client::Revive;
use crate::clock;
use crate::config::readiness::{self, Announced};
use crate::config::{ConfigError, Places, Settings, background_variables, check_projects};
use crate::process::detached;

/// For how long a daemon that does not answer may hold the state folder: it is about to leave, or it puts back a
/// socket that was removed.
const UNHEARD_FOR: Duration = Duration::from_secs(10);
/// A command that waits longer for its turn says so.
const TELL_AFTER: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How much of `daemon.log` an error shows, in lines.
const SHOWN_LINES: usize = 10;

/// The per-user daemon under these places.
#[derive(Debug)]
pub(super) struct OwnDaemon {
    places: Places,
    /// The newest `down` when this command began.
    stopped: Option<String>,
    /// Whether it would be part of a job, and end with it.
    inside_job: bool,
}

/// Who holds a state folder.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    /// Its process, if it has said so.
    pub(super) pid: Option<u32>,
}

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folders it needs.
    #[error(transparent)]
    Places(#[from] ConfigError),
    /// A file of the state folder.
    #[error("cannot {operation} {path}", path = .path.display())]
    File {
        /// `open`, `lock`, …
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A daemon is there and cannot be reached.
    #[error(
        "{} holds {state} but does not answer on {socket}: that file was removed or replaced, or the daemon was started \
         with another --socket. End it with `kill {}`; what runs goes on and is taken up again by the next daemon",
        process(*pid), pid.map_or("PID".to_owned(), |pid| pid.to_string()),
        state = .state.display(), socket = .socket.display()
    )]
    Unheard {
        /// Its process, if it has said so.
        pid: Option<u32>,
        /// The state folder.
        state: PathBuf,
        /// Where it should answer.
        socket: PathBuf,
    },
    /// The process could not be made.
    #[error("cannot start {program}", program = .program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The command runs in a job, whose server is another one.
    #[error(
        "this is part of a job, and a daemon under {} would end with it: name the job's server for this command \
         (GPULAYER_URL and GPULAYER_TOKEN, or --server), or a GPULAYER_HOME if a daemon of its own is meant",
        .home.display()
    )]
    InsideJob {
        /// Where it would live.
        home: PathBuf,
    },
    /// Somebody typed `down` after this command had begun.
    #[error("`gpulayer down` stopped it meanwhile; the next command starts it again")]
    Stopped,
    /// It ended before it answered.
    #[error("it ended before it answered; the end of {log}:\n{tail}", log = .log.display())]
    Ended {
        /// Its log file.
        log: PathBuf,
        /// The last lines there.
        tail: String,
    },
}

impl OwnDaemon {
    pub(super) fn new(places: Places) -> Self {
        let stopped = std::fs::read_to_string(mark(&places)).ok();
        Self { places, stopped, inside_job: false }
    }

    /// That of a command which may need it.
    pub(super) fn of(settings: &Settings) -> Self {
        Self { inside_job: settings.inside_job, ..Self::new(settings.places.clone()) }
    }

    /// Notes that the daemon is stopped on purpose: commands that have begun before this leave it at that.
    pub(super) fn stays_stopped(&self) -> Result<(), StartError> {
        let (path, now) = (mark(&self.places), clock::now().to_string());
        std::fs::write(&path, now).map_err(|source| StartError::File { operation: "write", path, source })
    }

    /// Whether a daemon answers. One that holds the state folder and does not is waited for, and is an error if
    /// it neither leaves nor answers. Only for the holder of the start lock.
    pub(super) fn is_there(&self) -> Result<bool, StartError> {
        let deadline = Instant::now() + UNHEARD_FOR;
        loop {
            let socket = self.places.socket();
            if UnixStream::connect(&socket).is_ok() {
                return Ok(true);
            }
            let Some(holder) = self.holder()? else { return Ok(false) };
            if Instant::now() >= deadline {
                let state = self.places.state.clone();
                return Err(StartError::Unheard { pid: holder.pid, state, socket });
            }
            // A socket that appears and a lock that is let go cannot be waited for in one call.
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Who holds the state folder.
    pub(super) fn holder(&self) -> Result<Option<Holder>, StartError> {
        let Some(mut held) = self.state_lock()? else { return Ok(None) };
        if rustix::fs::flock(&held, FlockOperation::NonBlockingLockShared).is_ok() {
            return Ok(None);
        }
        let mut text = String::new();
        let pid = held.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
        Ok(Some(Holder { pid }))
    }

    /// Returns when no daemon holds the state folder, which is the last that one lets go of.
    pub(super) async fn gone(&self) -> Result<(), StartError> {
        let Some(held) = self.state_lock()? else { return Ok(()) };
        let fault = |source| StartError::File { operation: "wait for", path: self.lock_path(), source };
        let waiting = tokio::task::spawn_blocking(move || {
            rustix::io::retry_on_intr(|| rustix::fs::flock(&held, FlockOperation::LockShared))
        });
        match waiting.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(errno)) => Err(fault(errno.into())),
            Err(lost) => Err(fault(lost.into())),
        }
    }

    fn lock_path(&self) -> PathBuf {
        self.places.state.join("lock")
    }

    /// The file whose lock a daemon holds for as long as it lives; none before the first.
    fn state_lock(&self) -> Result<Option<File>, StartError> {
        match File::open(self.lock_path()) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StartError::File { operation: "open", path: self.lock_path(), source }),
        }
    }

    /// Returns when a daemon answers on the socket: one that runs already, or one started now with these arguments.
    /// Holds the start lock meanwhile.
    pub(super) fn start(&self, arguments: &[&str]) -> Result<(), StartError> {
        let _lock = self.lock()?;
        if self.is_there()? {
            return Ok(());
        }
        if self.inside_job {
            return Err(StartError::InsideJob { home: self.places.home.clone() });
        }
        if std::fs::read_to_string(mark(&self.places)).ok() != self.stopped {
            return Err(StartError::Stopped);
        }
        self.spawn(arguments).map(drop)
    }

    /// Makes the folders and waits for the right to start a daemon here; the right goes with the file.
    pub(super) fn lock(&self) -> Result<File, StartError> {
        self.places.make()?;
        let path = self.places.state.join("start.lock");
        let fault = |operation, source| StartError::File { operation, path: path.clone(), source };
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|source| fault("open", source))?;
        // Starting takes a moment; stopping may take as long as a grace.
        let tell_at = Instant::now() + TELL_AFTER;
        while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= tell_at {
                let pid = self.holder().ok().flatten().and_then(|holder| holder.pid);
                say(&format!(
                    "gpulayer: waiting for another command, which starts or stops the daemon here ({})",
                    process(pid)
                ));
                break;
            }
            // The kernel waits for a lock without an end, and two seconds from now somebody has to be told.
            std::thread::sleep(LOOK_AGAIN);
        }
        loop {
            match rustix::fs::flock(&lock, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(lock),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(fault("lock", errno.into())),
            }
        }
    }

    /// Starts a daemon in the background, where none is, and waits until it answers; its TCP address.
    pub(super) fn spawn(&self, arguments: &[&str]) -> Result<Option<SocketAddr>, StartError> {
        check_projects(&self.places)?;
        let log = self.places.daemon_log();
        let fault = |operation, source| StartError::File { operation, path: log.clone(), source };
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log)
            .map_err(|source| fault("open", source))?;
        let begin = output.metadata().map_err(|source| fault("read", source))?.len();
        let program = PathBuf::from("/proc/self/exe");
        let spawned = readiness::pipe().and_then(|(waiting, telling)| {
            let mut all = vec!["server", "start", "--tell-ready"];
            all.extend_from_slice(arguments);
            let variables = background_variables(&|name| std::env::var_os(name));
            detached::spawn(&program, &all, variables, telling, output)?;
            Ok::<OwnedFd, io::Error>(waiting)
        });
        let waiting = spawned.map_err(|source| StartError::Spawn { program, source })?;
        match readiness::wait(waiting).map_err(|source| fault("wait for", source))? {
            Announced::Ready(tcp) => Ok(tcp),
            Announced::Gone => Err(StartError::Ended { tail: last_lines(&log, begin), log }),
        }
    }
}

/// The one that `up` started comes back as it was, for its workers elsewhere; without `up` one that leaves when idle.
impl Revive for OwnDaemon {
    fn revive(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match Standing::read(&self.places.state)? {
            Some(standing) => {
                let arguments = standing.arguments();
                let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
                Ok(self.start(&arguments)?)
            }
            None => Ok(self.start(&["--on-demand", "--no-tcp"])?),
        }
    }
}

/// Where the newest `down` is noted.
fn mark(places: &Places) -> PathBuf {
    places.state.join("down")
}

/// Names a process whose id may be unknown.
pub(super) fn process(pid: Option<u32>) -> String {
    pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"))
}

/// The last lines written to a file since `begin`.
pub(super) fn last_lines(path: &Path, begin: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(begin.max(end.saturating_sub(8 << 10))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    if shown.is_empty() { "(nothing was written)".to_owned() } else { shown.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_only_what_this_start_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("daemon.log");
        std::fs::write(&log, "old\n").unwrap();
        assert_eq!(last_lines(&log, 4), "(nothing was written)");
        std::fs::write(&log, "old\nnew 1\nnew 2\n").unwrap();
        assert_eq!(last_lines(&log, 4), "new 1\nnew 2");
    }
}
