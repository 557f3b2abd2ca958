//! The shim's own program: one thread, one poll loop, one task at a time, one worker connection at a time.
//!
//! It is born idle, connected to the worker that started it. Idle and without a worker it exits. Busy and
//! without a worker it carries on, finishes, writes the task's files and exits then, unless a restarted worker
//! has connected to its socket meanwhile. Only SIGKILL ends a busy one: every other signal is blocked.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{geteuid, set_child_subreaper, umask};

use super::frame::{Frames, FromShim, HeldTask, Hello, ToShim, WIRE_VERSION, encode};
use super::home::Home;
use super::identity::Identity;
use super::remark::remark;
use super::resident::{Resident, WorkspaceLink};
use super::system::{child_signals, inherited_descriptor};
use super::task::Task;
use super::{Launch, StopCause};
use crate::contract::protocol::StopReason;
use crate::domain::secrets::wipe;

/// The name under which the binary is a shim.
pub(super) const SHIM_NAME: &str = "gpulayer-shim";
/// Where a shim finds its first worker connection.
pub(super) const WORKER_DESCRIPTOR: i32 = 3;
/// How long after the exec nothing is said of it: most short tasks have ended by then, and one message does.
const QUIET_AT_FIRST: Duration = Duration::from_millis(3);
/// Between two words on new log records.
const QUIET_BETWEEN_LOGS: Duration = Duration::from_millis(20);
/// A shim that cannot even begin says so with this status (`EX_OSERR`).
const CANNOT_BEGIN: i32 = 71;

/// Is this process to be a shim? Then does that and never returns. Must be the first thing in `main`, before
/// any thread or runtime exists.
pub fn run_if_shim() {
    let name = std::env::args_os().next().map(PathBuf::from);
    if name.as_deref().and_then(Path::file_name).is_none_or(|name| name != SHIM_NAME) {
        return;
    }
    let status = match Shim::begin().and_then(Shim::run) {
        Ok(()) => 0,
        Err(error) => {
            remark(format_args!("shim {}: {error}", std::process::id()));
            CANNOT_BEGIN
        }
    };
    // The binary's own `main` must not go on: this process is a shim and nothing else.
    std::process::exit(status);
}

/// A connection to a worker.
struct Link {
    stream: UnixStream,
    frames: Frames,
    unsent: Vec<u8>,
}

impl Told {
    fn nothing(quiet_until: Instant) -> Self {
        Self { preparing: false, started: false, through_n: 0, stuck: false, quiet_until }
    }

    /// What is to be said of which program runs.
    fn news_of(&self, task: &Task) -> Option<FromShim> {
        match (task.is_preparing(), self.preparing, self.started) {
            (true, false, _) => Some(FromShim::Preparing),
            (false, _, false) => Some(FromShim::Started { pid: task.pid() }),
            _ => None,
        }
    }
}

impl Link {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, frames: Frames::default(), unsent: Vec::new() })
    }

    fn say(&mut self, message: &FromShim) -> io::Result<()> {
        self.unsent.extend(encode(message)?);
        Ok(())
    }

    /// Sends what it can; the rest waits for the worker to read.
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what is there; the end of the connection is an error.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self.stream.read(buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.frames.feed(&buffer[..length]);
                // A launch may have held secrets.
                wipe(&mut buffer[..length]);
                Ok(())
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// What the worker at the other end has been told of the task.
struct Told {
    preparing: bool,
    started: bool,
    through_n: u64,
    stuck: bool,
    quiet_until: Instant,
}

struct Busy {
    task: Task,
    told: Told,
    /// Since when no worker has been connected.
    orphan_since: Option<Instant>,
}

struct Shim {
    home: Home,
    socket: PathBuf,
    listener: UnixListener,
    signals: OwnedFd,
    link: Option<Link>,
    busy: Option<Busy>,
    leaving: bool,
    buffer: Vec<u8>,
}

/// What a wait for events found ready.
#[derive(Default)]
struct Ready {
    worker: bool,
    worker_gone: bool,
    newcomer: bool,
    children: bool,
    calls: bool,
    oom: bool,
    pipes: Vec<usize>,
}

impl Shim {
    /// The working folder is the folder of sockets: a relative name fits the 108 bytes that a socket's path
    /// may have, however deep the folder is.
    fn begin() -> io::Result<Self> {
        let worker = UnixStream::from(inherited_descriptor(WORKER_DESCRIPTOR)?);
        // Started through `/proc/self/exe`, it would be listed as `exe`.
        rustix::thread::set_name(c"gpulayer-shim")?;
        let signals = child_signals()?;
        // Whoever loses its parent below becomes a child of this process, and so can be found and reaped.
        set_child_subreaper(Some(rustix::process::getpid()))?;
        let identity = Identity::of_this_process()?;
        let socket = PathBuf::from(format!("{}.sock", identity.pid));
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(&socket)?;
        // What the tasks inherit.
        umask(Mode::from_raw_mode(0o022));
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let link = Some(Link::new(worker)?);
        let buffer = vec![0; 16 << 10];
        let home = Home::new(identity);
        Ok(Self { home, socket, listener, signals, link, busy: None, leaving: false, buffer })
    }

    fn run(mut self) -> io::Result<()> {
        while self.busy.is_some() || self.home.resident.is_some() || (self.link.is_some() && !self.leaving) {
            let ready = self.wait()?;
            if let Some(busy) = &mut self.busy {
                if !ready.pipes.is_empty() {
                    busy.task.read(&ready.pipes);
                }
                if ready.children {
                    drain_signals(&self.signals, &mut self.buffer)?;
                }
                if ready.children || ready.calls {
                    busy.task.reap();
                }
                if ready.oom {
                    busy.task.note_out_of_memory();
                }
            } else if ready.children {
                drain_signals(&self.signals, &mut self.buffer)?;
            }
            if ready.worker {
                self.hear_worker(ready.worker_gone);
            }
            if ready.newcomer {
                self.welcome();
            }
            self.keep_time();
            self.settle();
            self.look_after_resident();
            self.tell();
        }
        // The socket last: when it is gone, so is everything.
        drop(self.home);
        std::fs::remove_file(&self.socket)
    }

    fn deadline(&self) -> Option<Instant> {
        let Some(busy) = &self.busy else { return self.home.resident.as_ref().map(Resident::deadline) };
        let orphaned = busy.orphan_since.and_then(|since| since.checked_add(busy.task.launch.orphan_timeout));
        let stuck = !busy.told.stuck && busy.task.stuck().is_some();
        let news =
            busy.told.news_of(&busy.task).is_some() || busy.told.through_n < busy.task.last_n() || stuck;
        let link = self.link.as_ref().filter(|link| news && link.unsent.is_empty());
        [busy.task.deadline(), orphaned, link.map(|_| busy.told.quiet_until)].into_iter().flatten().min()
    }

    fn wait(&self) -> io::Result<Ready> {
        let timeout = self.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = Vec::with_capacity(6);
        polled.push(PollFd::new(&self.signals, PollFlags::IN));
        polled.push(PollFd::new(&self.listener, PollFlags::IN));
        if let Some(link) = &self.link {
            let interest =
                if link.unsent.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            polled.push(PollFd::new(&link.stream, interest));
        }
        let calls = self.busy.as_ref().and_then(|busy| busy.task.calls());
        let calls_at = calls.map(|calls| {
            polled.push(PollFd::from_borrowed_fd(calls, PollFlags::IN));
            polled.len() - 1
        });
        let oom = self.busy.as_ref().and_then(|busy| busy.task.oom_event());
        let oom_at = oom.map(|(event, interest)| {
            polled.push(PollFd::from_borrowed_fd(event, interest));
            polled.len() - 1
        });
        let before_pipes = polled.len();
        let pipes: Vec<(usize, _)> = self.busy.iter().flat_map(|busy| busy.task.open_pipes()).collect();
        polled.extend(pipes.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let is_ready = |index: usize| polled.get(index).is_some_and(|one| !one.revents().is_empty());
        let gone = |index: usize| polled.get(index).is_some_and(|one| one.revents().contains(PollFlags::HUP));
        let pipes = pipes.iter().enumerate().filter(|(place, _)| is_ready(before_pipes + place));
        Ok(Ready {
            children: is_ready(0),
            calls: calls_at.is_some_and(is_ready),
            oom: oom_at.is_some_and(is_ready),
            newcomer: is_ready(1),
            worker: self.link.is_some() && is_ready(2),
            worker_gone: self.link.is_some() && gone(2),
            pipes: pipes.map(|(_, (index, _))| *index).collect(),
        })
    }

    fn hear_worker(&mut self, gone: bool) {
        let Some(link) = &mut self.link else { return };
        if link.fill(&mut self.buffer).is_err() {
            self.lose_worker();
            return;
        }
        loop {
            let Some(link) = &mut self.link else { return };
            match link.frames.next() {
                Ok(Some(message)) => self.obey(message, gone),
                Ok(None) => return,
                Err(error) => {
                    remark(format_args!(
                        "shim {}: the worker cannot be understood: {error}",
                        self.home.identity.pid
                    ));
                    self.lose_worker();
                }
            }
        }
    }

    fn obey(&mut self, message: ToShim, gone: bool) {
        match (message, &mut self.busy) {
            // Its worker was gone before the task began. This shim may have been too young for the next worker to
            // see its socket, so that one launches the task again.
            (ToShim::Launch(_), None) if gone => self.leaving = true,
            (ToShim::Settle { groups }, None) => self.home.settle(groups),
            // The worker launches it again elsewhere: nothing of it has begun.
            (ToShim::Launch(mut launch), None) => match self.prepare(&mut launch) {
                false => self.leaving = true,
                true => self.start(launch),
            },
            (ToShim::Launch(launch), Some(_)) => {
                remark(format_args!(
                    "shim {}: launch of {} while busy",
                    self.home.identity.pid, launch.task_id
                ));
            }
            (ToShim::Stop { now, reason }, Some(busy)) => busy.task.stop(StopCause::Requested, reason, now),
            (ToShim::Leave, _) => self.leaving = true,
            (ToShim::Stop { .. }, None) | (ToShim::Settle { .. }, Some(_)) | (ToShim::Unknown, _) => {}
        }
    }

    /// Whether a launch can begin here. A shim whose program stayed takes only what that serves.
    fn prepare(&mut self, launch: &mut Launch) -> bool {
        // It may have died since the last look.
        self.look_after_resident();
        let stayed = self.home.resident.is_some();
        if self.leaving || self.home.resident.as_ref().is_some_and(|resident| !resident.serves(launch)) {
            return false;
        }
        let Some(stay) = &launch.stay else { return true };
        let link = self.home.workspace.get_or_insert_with(|| WorkspaceLink::in_folder(&stay.links));
        match link.lead_to(&launch.workspace) {
            Ok(()) => launch.argv.push(link.path().to_owned()),
            Err(_) if stayed => return false,
            Err(error) => {
                remark(format_args!("no program stays: the link to its workspace cannot be made: {error}"));
                launch.stay = None;
            }
        }
        true
    }

    fn start(&mut self, launch: Box<Launch>) {
        let stayed = self.home.resident.is_some();
        match Task::start(launch, &mut self.home) {
            Ok(task) => {
                let told = Told::nothing(Instant::now() + QUIET_AT_FIRST);
                self.busy = Some(Busy { task, told, orphan_since: None });
            }
            Err(record) => {
                // A program that was not called is none that stays, whether or not all of it is gone.
                self.leaving |= stayed;
                self.say(&FromShim::Ended(record));
            }
        }
    }

    /// One whose shim goes, or whose time is up, goes: and the shim with it, so that nobody takes it for one that
    /// has its program still.
    fn look_after_resident(&mut self) {
        let Some(resident) = &mut self.home.resident else { return };
        let group = &mut self.home.group;
        let is_wanted = !self.leaving && self.link.is_some();
        let goes = !is_wanted || resident.is_overdue(Instant::now()) || resident.is_woken();
        if goes && !resident.is_dying() {
            resident.end(group.as_mut());
        }
        if resident.is_gone(group.as_mut()) {
            self.home.resident = None;
            self.leaving = true;
        }
    }

    /// A worker came through the socket: it takes the place of the one before.
    fn welcome(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd());
        if !peer.is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root()) {
            return;
        }
        let Ok(mut link) = Link::new(stream) else { return };
        let task = self.busy.as_mut().map(|busy| {
            busy.told = Told::nothing(Instant::now());
            busy.orphan_since = None;
            let (launch, preparing) = (&busy.task.launch, busy.task.is_preparing());
            HeldTask { task_id: launch.task_id, task_folder: launch.task_folder.clone(), preparing }
        });
        let hello = Hello { version: WIRE_VERSION, identity: self.home.identity.clone(), task };
        if link.say(&FromShim::Hello(hello)).is_ok() {
            self.link = Some(link);
        }
    }

    fn lose_worker(&mut self) {
        self.link = None;
        if let Some(busy) = &mut self.busy {
            busy.orphan_since = Some(Instant::now());
        }
    }

    fn keep_time(&mut self) {
        let Some(busy) = &mut self.busy else { return };
        let now = Instant::now();
        busy.task.on_time(now);
        if busy.orphan_since.is_some_and(|since| now.duration_since(since) >= busy.task.launch.orphan_timeout)
        {
            busy.orphan_since = None;
            busy.task.stop(StopCause::Orphaned, StopReason::Orphaned, false);
        }
    }

    /// An ended task is written down, and only then told; the shim is idle afterwards.
    fn settle(&mut self) {
        if let Some(busy) = self.busy.take_if(|busy| busy.task.is_over()) {
            let (record, group, resident) = busy.task.finish();
            if let Some(resident) = resident {
                // What it holds in memory is meant to be there.
                self.say(&resident.told());
                self.home.resident = Some(resident);
            } else if group.as_ref().is_some_and(|group| group.is_outside() || group.is_charged()) {
                // Moving back in costs more than a new shim, which can be made while nobody waits. What a task left in
                // memory is not to count for the next one.
                self.leaving = true;
                self.say(&FromShim::Retiring);
            }
            self.home.group = group;
            self.say(&FromShim::Ended(Box::new(record)));
        }
    }

    /// Says what is new, when it is time to; a worker that does not read is told less often.
    fn tell(&mut self) {
        if let (Some(busy), Some(link)) = (&mut self.busy, &self.link) {
            let now = Instant::now();
            if link.unsent.is_empty() && now >= busy.told.quiet_until {
                let (runs, last_n) = (busy.told.news_of(&busy.task), busy.task.last_n());
                match &runs {
                    Some(FromShim::Preparing) => busy.told.preparing = true,
                    Some(_) => busy.told.started = true,
                    None => {}
                }
                let logged = std::mem::replace(&mut busy.told.through_n, last_n) < last_n;
                if runs.is_some() || logged {
                    busy.told.quiet_until = now + QUIET_BETWEEN_LOGS;
                }
                if let Some(runs) = runs {
                    self.say(&runs);
                }
                if logged {
                    self.say(&FromShim::Logged { through_n: last_n });
                }
                self.tell_stuck();
            }
        }
        if self.link.as_mut().is_some_and(|link| link.flush().is_err()) {
            self.lose_worker();
        }
    }

    fn tell_stuck(&mut self) {
        let Some(busy) = self.busy.as_mut().filter(|busy| !busy.told.stuck) else { return };
        if let Some(processes) = busy.task.stuck().map(<[_]>::to_vec) {
            busy.told.stuck = true;
            self.say(&FromShim::Stuck { processes });
        }
    }

    fn say(&mut self, message: &FromShim) {
        if let Some(Err(error)) = self.link.as_mut().map(|link| link.say(message)) {
            remark(format_args!("shim {}: a message cannot be written: {error}", self.home.identity.pid));
        }
    }
}

/// Several ended children may be behind one signal: what counts is what reaping finds.
fn drain_signals(signals: &OwnedFd, buffer: &mut [u8]) -> io::Result<()> {
    match rustix::io::read(signals, buffer) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
