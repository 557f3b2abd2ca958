//! The worker's shims: started when needed, kept for the next task, adopted from a worker before.

use std::ffi::CString;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::unix::AsyncFd;

use super::cgroup::Groups;
use super::frame::{FromShim, ToShim, encode};
use super::identity::shim_of;
use super::memory::is_memory_short;
use super::mute;
use super::open_files::restore_open_files;
use super::pool_link::{ShimLink, Stayed};
use super::shim::{SHIM_NAME, WORKER_DESCRIPTOR};
use super::system::{ExecStrings, Spawn, spawn, watched};
use super::{Launch, ProcessError, ShimEvent, tree};
use crate::contract::ids::TaskId;
use crate::contract::protocol::StopReason;
use crate::contract::worker::EnforcedLimits;
use crate::domain::gpus::Whose;

/// Shims that are started for one task, when each is gone before it has the task: more than that die of something that
/// the next would die of, too.
const NEWBORN_TRIES: u32 = 3;
/// Beneath a worker's folder: the links by way of which programs that stay see their workspaces.
const LINKS: &str = "resident";

/// A worker's shims. Cheap to clone. Its methods want the tokio runtime that will also drive the
/// [`TaskProcess`]es; dropping the last clone lets the idle shims exit and leaves the busy ones running.
#[derive(Debug, Clone)]
pub struct ShimPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    binary: PathBuf,
    folder: PathBuf,
    max_idle: usize,
    groups: Groups,
    /// Where the links of programs that stay are.
    links: PathBuf,
    idle: Mutex<Idle>,
}

/// Shims without a task. The last one back is the first to go: its memory is warm.
#[derive(Debug, Default)]
struct Idle {
    /// They take any task.
    free: Vec<ShimLink>,
    /// Their program has stayed.
    stayed: Vec<ShimLink>,
}

impl Idle {
    fn take(&mut self, key: Option<&str>) -> Option<ShimLink> {
        let is_for = |link: &ShimLink, key| link.stayed.as_ref().is_some_and(|stayed| stayed.key == key);
        let serves = |key| self.stayed.iter().rposition(|link| is_for(link, key));
        match key.and_then(serves) {
            Some(at) => Some(self.stayed.remove(at)),
            None => self.free.pop(),
        }
    }

    /// Takes one back. What is too much goes: of those whose program stayed the one that has waited longest.
    fn give(&mut self, link: ShimLink, most: usize) {
        if link.stayed.is_some() {
            self.stayed.push(link);
            self.stayed.drain(..self.stayed.len().saturating_sub(most));
        } else if self.free.len() < most {
            self.free.push(link);
        }
    }
}

/// A task that goes on from before this worker's start.
#[derive(Debug)]
pub struct Adopted {
    /// The task.
    pub task_id: TaskId,
    /// Its folder.
    pub task_folder: PathBuf,
    /// Whether its program has not started yet: its prelude runs.
    pub preparing: bool,
    /// To go on with: `Preparing`, `Started` and `Logged` come again.
    pub process: TaskProcess,
}

impl ShimPool {
    /// For this worker folder, with at most `max_idle` shims kept for later. Their sockets and their own log
    /// (`shim.log`) are in `<worker_folder>/shims`, which is made if it is not there.
    pub fn new(worker_folder: &Path, max_idle: usize) -> Result<Self, ProcessError> {
        Self::with_binary(worker_folder, max_idle, Path::new("/proc/self/exe"))
    }

    /// The same with shims made from another binary than the running one, which must call
    /// [`super::run_if_shim`] as well.
    pub fn with_binary(worker_folder: &Path, max_idle: usize, binary: &Path) -> Result<Self, ProcessError> {
        Self::make(worker_folder, max_idle, binary, Groups::open)
    }

    /// The same without control groups, although the machine may have them: no limit is in force, and trees are killed
    /// by descent.
    pub fn without_groups(
        worker_folder: &Path,
        max_idle: usize,
        binary: &Path,
    ) -> Result<Self, ProcessError> {
        Self::make(worker_folder, max_idle, binary, |_| Groups::default())
    }

    fn make(
        worker_folder: &Path,
        max_idle: usize,
        binary: &Path,
        groups: impl FnOnce(&Path) -> Groups,
    ) -> Result<Self, ProcessError> {
        let folder = worker_folder.join("shims");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|source| ProcessError::File { operation: "make", path: folder.clone(), source })?;
        let groups = groups(worker_folder);
        let links = worker_folder.join(LINKS);
        open_links(&links).map_err(|source| ProcessError::File {
            operation: "make",
            path: links.clone(),
            source,
        })?;
        let idle = Mutex::default();
        let inner = Inner { binary: binary.to_owned(), folder, max_idle, groups, links, idle };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// How many processes the tasks of this worker have at the moment, also those of shims it did not start. Reads
    /// `/proc`; may be wrong by what starts or ends meanwhile.
    pub fn task_processes(&self) -> usize {
        let sockets = std::fs::read_dir(&self.inner.folder).into_iter().flatten().flatten();
        let shims = sockets.filter_map(|entry| pid_of(entry.file_name().to_str()?));
        let alive = shims.filter(|pid| is_shim(*pid));
        alive.map(|pid| tree::descendants_of(pid).len()).sum()
    }

    /// Whose a process is, as far as this worker can tell. Reads `/proc`.
    pub fn whose(&self, pid: u32) -> Whose {
        let folder = &self.inner.folder;
        tree::whose(pid, |pid| is_shim(pid) && folder.join(format!("{pid}.sock")).exists())
    }

    /// Which limits its shims can hold a task to.
    pub fn enforced(&self) -> EnforcedLimits {
        self.inner.groups.enforced()
    }

    /// Kills all that a task left whose shim is gone, until none of it is left; returns how many processes there were.
    /// By the shim's group where there is one, which finds every process however it hid; and by the mark in its
    /// environment ([`tree::sweep`]). For tasks with a live shim nothing happens to the group. Blocks, for `patience`
    /// at most; then the error names who is left.
    pub fn sweep(
        &self,
        task_id: TaskId,
        task_folder: &Path,
        patience: Duration,
    ) -> Result<usize, ProcessError> {
        let deadline = Instant::now() + patience;
        let by_group = match shim_of(task_folder)? {
            Some(shim) => self.inner.groups.sweep(&shim, patience),
            None => Ok(0),
        };
        let marked = tree::sweep(&[task_id], deadline.saturating_duration_since(Instant::now()))?;
        match by_group {
            Ok(killed) => Ok(killed + marked),
            Err(pids) => Err(ProcessError::Survivors { pids }),
        }
    }

    /// Kills and removes what shims of earlier starts left that are gone themselves; how many processes. Groups of live
    /// shims stay. Blocks, for `patience` at most.
    pub fn sweep_orphans(&self, patience: Duration) -> Result<usize, ProcessError> {
        self.inner.groups.sweep_orphans(patience).map_err(|pids| ProcessError::Survivors { pids })
    }

    /// Sees to it that so many shims are idle, up to the limit, so that the next launches need not wait for one.
    pub fn prewarm(&self, count: usize) -> Result<(), ProcessError> {
        while self.inner.idle.lock().free.len() < count.min(self.inner.max_idle) {
            let link = self.inner.start_shim()?;
            self.inner.idle.lock().free.push(link);
        }
        Ok(())
    }

    /// Hands a task to a shim. Whatever goes wrong from then on is an event of the [`TaskProcess`].
    pub async fn launch(&self, mut launch: Launch) -> Result<TaskProcess, ProcessError> {
        self.inner.let_go_of_stayed(launch.limits.memory_bytes.unwrap_or(0));
        let key = launch.stay.as_mut().map(|stay| {
            stay.links.clone_from(&self.inner.links);
            stay.key.clone()
        });
        let (task_id, message) = (launch.task_id, ToShim::Launch(Box::new(launch)));
        let mut born = 0;
        loop {
            let idle = self.inner.idle.lock().take(key.as_deref());
            let link = match idle {
                Some(link) => link,
                None => {
                    born += 1;
                    self.inner.start_shim()?
                }
            };
            match link.send(&message).await {
                Ok(()) => {
                    let home = Some(Arc::clone(&self.inner));
                    return Ok(TaskProcess { task_id, link: Some(link), home });
                }
                Err(error) if born >= NEWBORN_TRIES => return Err(error),
                // It was killed: it cannot have begun, as the message did not reach it whole.
                Err(_) => {}
            }
        }
    }

    /// Connects to every shim of a worker before this one. Idle ones are told to exit, dead ones' sockets are
    /// removed. A task whose shim ended while this ran is not in the list: look for exit records afterwards.
    pub async fn adopt(&self) -> Result<Vec<Adopted>, ProcessError> {
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| ProcessError::File { operation, path, source }
        };
        let path = &self.inner.folder;
        let folder = File::open(path).map_err(failed("open", path))?;
        let mut adopted = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed("list", path))? {
            let entry = entry.map_err(failed("list", path))?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let own = self.inner.idle.lock().free.iter().any(|link| name == format!("{}.sock", link.pid));
            if own || !name.ends_with(".sock") {
                continue;
            }
            let mut connected = ShimLink::connect(&folder, &name).await;
            if let (Err(error), Some(pid)) = (&connected, pid_of(&name))
                && error.kind() == io::ErrorKind::TimedOut
            {
                let was_stopped = mute::wake(pid);
                tracing::warn!(pid, was_stopped, "a shim does not answer");
                connected = ShimLink::connect(&folder, &name).await;
                if connected.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
                    // Nobody could ever stop its task.
                    tracing::error!(pid, "a shim that does not answer is killed, and its task with it");
                    mute::end(pid);
                    continue;
                }
            }
            match connected.map_err(failed("adopt the shim behind", &entry.path()))? {
                None => match std::fs::remove_file(entry.path()) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(failed("remove", &entry.path())(error));
                    }
                    _ => {}
                },
                Some((link, hello)) => match hello.task {
                    Some(task) => {
                        // Not taken into the pool afterwards: it may be of an older build.
                        let process = TaskProcess { task_id: task.task_id, link: Some(link), home: None };
                        adopted.push(Adopted {
                            task_id: task.task_id,
                            task_folder: task.task_folder,
                            preparing: task.preparing,
                            process,
                        });
                    }
                    // The end of the connection tells an idle shim as much.
                    None => drop(link),
                },
            }
        }
        Ok(adopted)
    }
}

/// Whether this is a shim now: a socket may have outlived its own, and another program have the number by now.
pub(super) fn is_shim(pid: u32) -> bool {
    let said = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    said.split(|byte| *byte == 0).next() == Some(SHIM_NAME.as_bytes())
}

/// The shim behind a socket.
fn pid_of(socket: &str) -> Option<u32> {
    socket.strip_suffix(".sock")?.parse().ok()
}

/// Makes the folder of links, which tasks of other users can pass through, and removes what shims that are gone left.
fn open_links(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o711).create(folder)?;
    // Whatever this process' umask took from it.
    std::fs::set_permissions(folder, Permissions::from_mode(0o711))?;
    for entry in std::fs::read_dir(folder)?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if !pid.is_some_and(is_shim) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl Inner {
    /// Programs that only wait give way to a task that needs so much memory, and to anybody when there is little.
    fn let_go_of_stayed(&self, needed_bytes: u64) {
        let mut idle = self.idle.lock();
        if !idle.stayed.is_empty() && is_memory_short(needed_bytes) {
            // The end of the connection tells the shim.
            idle.stayed.clear();
        }
    }

    fn start_shim(self: &Arc<Self>) -> Result<ShimLink, ProcessError> {
        let failed = |source| ProcessError::Spawn { binary: self.binary.clone(), source };
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed(error.into()))?;
        let pid = self.spawn_shim(&theirs).map_err(failed)?;
        let ours = UnixStream::from(ours);
        if let Some(plan) = self.groups.plan() {
            // Before any launch. It fits into an empty socket; a shim that is gone already is found so by that launch.
            let settle = encode(&ToShim::Settle { groups: plan.clone() }).map_err(failed)?;
            let _ = (&ours).write_all(&settle);
        }
        ShimLink::born(pid, ours).map_err(failed)
    }

    fn spawn_shim(self: &Arc<Self>, socket: &OwnedFd) -> io::Result<u32> {
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
        let nowhere = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        let mut log = OpenOptions::new();
        let log = log.append(true).create(true).mode(0o600).open(self.folder.join("shim.log"))?;
        let (path, cwd) = (text(&self.binary)?, text(&self.folder)?);
        let argv = ExecStrings::new(vec![CString::new(SHIM_NAME)?]);
        // Nothing of the worker's environment, which may hold tokens, is to be seen in a shim.
        let env = ExecStrings::new(Vec::new());
        let descriptors = [
            (nowhere.as_fd(), 0),
            (nowhere.as_fd(), 1),
            (log.as_fd(), 2),
            (socket.as_fd(), WORKER_DESCRIPTOR),
        ];
        let pid =
            spawn(&Spawn { path: &path, argv: &argv, env: &env, cwd: &cwd, descriptors: &descriptors })?;
        restore_open_files(pid);
        let process = watched(pidfd_open(pid, PidfdFlags::empty())?)?;
        let number = pid.as_raw_nonzero().get().unsigned_abs();
        tokio::spawn(reap(Arc::downgrade(self), number, process));
        Ok(number)
    }
}

/// Waits for one shim's end, whenever that is, so that no zombie stays and no dead one is taken for idle.
async fn reap(pool: Weak<Inner>, pid: u32, process: AsyncFd<OwnedFd>) {
    let _ = process.readable().await;
    // Readable means ended; an error means that somebody else has reaped it.
    let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    if let Some(pool) = pool.upgrade() {
        let mut idle = pool.idle.lock();
        idle.free.retain(|link| link.pid != pid);
        // A program outlives a shim that was killed, if it has forgotten that it should not.
        let ended = idle.stayed.extract_if(.., |link| link.pid == pid);
        ended.filter_map(|link| link.stayed).for_each(|stayed| stayed.end());
        drop(idle);
        pool.groups.remove_of(pid);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.groups.close();
    }
}

/// A task under a shim. Dropping it leaves the task running, for another worker to adopt.
#[derive(Debug)]
pub struct TaskProcess {
    task_id: TaskId,
    /// `None` after the end.
    link: Option<ShimLink>,
    /// Where the shim goes afterwards.
    home: Option<Arc<Inner>>,
}

impl TaskProcess {
    /// The task.
    pub fn task_id(&self) -> TaskId {
        self.task_id
    }

    /// Asks the shim to stop the task: with its stop signal and grace, or at once. A second, harder stop
    /// shortens the first. After the end this does nothing; how the task ended is said by [`Self::recv`] alone.
    pub async fn stop(&self, now: bool) -> Result<(), ProcessError> {
        self.stop_for(StopReason::Stopped, now).await
    }

    /// The same with the reason that the program reads in its stop file; the first one stays.
    pub async fn stop_for(&self, reason: StopReason, now: bool) -> Result<(), ProcessError> {
        self.wake();
        match &self.link {
            Some(link) => link.send(&ToShim::Stop { now, reason }).await,
            None => Ok(()),
        }
    }

    /// Lets the shim go on if somebody stopped it: while it is stopped it keeps no time and hears no order.
    pub fn wake(&self) {
        if let Some(link) = &self.link
            && mute::wake(link.pid)
        {
            tracing::warn!(task_id = %self.task_id, pid = link.pid, "a shim was stopped; it goes on");
        }
    }

    /// What happens next; `None` after [`ShimEvent::Ended`] and [`ShimEvent::ShimLost`]. Dropping the future
    /// loses nothing.
    pub async fn recv(&mut self) -> Option<ShimEvent> {
        loop {
            let link = self.link.as_mut()?;
            return Some(match link.next().await {
                Ok(Some(FromShim::Hello(_) | FromShim::Unknown)) => continue,
                Ok(Some(FromShim::Retiring)) => {
                    self.retire();
                    continue;
                }
                Ok(Some(FromShim::Staying { key, pid })) => {
                    link.stayed = Some(Stayed::new(key, pid));
                    continue;
                }
                Ok(Some(FromShim::Stuck { processes })) => ShimEvent::Stuck(processes),
                Ok(Some(FromShim::Preparing)) => ShimEvent::Preparing,
                Ok(Some(FromShim::Started { pid })) => ShimEvent::Started { pid },
                Ok(Some(FromShim::Logged { through_n })) => ShimEvent::Logged { through_n },
                Ok(Some(FromShim::Ended(record))) => {
                    self.give_back();
                    ShimEvent::Ended(record)
                }
                Ok(None) | Err(_) => {
                    self.link = None;
                    ShimEvent::ShimLost
                }
            });
        }
    }

    /// The shim takes no other task; another is made in its place, now that nobody waits for one.
    fn retire(&mut self) {
        let Some(home) = self.home.take() else { return };
        if home.idle.lock().free.is_empty()
            && home.max_idle > 0
            && let Ok(link) = home.start_shim()
        {
            home.idle.lock().free.push(link);
        }
    }

    fn give_back(&mut self) {
        let (Some(link), Some(home)) = (self.link.take(), self.home.take()) else { return };
        home.idle.lock().give(link, home.max_idle);
        home.let_go_of_stayed(0);
    }
}
