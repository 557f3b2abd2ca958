//! A worker's edge: who it is, its session, the acquire loop and the heartbeat. What becomes of the tasks is the
//! [`TaskRunner`]'s. The same for the worker inside a daemon and for one far away; only the [`WorkerChannel`]
//! differs.
//!
//! Threads: one with an actor system for the task runner and the acquire loop, one for the heartbeat.

mod disk_watch;
mod gauges;
mod gpus;
mod heartbeat;
mod identity;
pub mod in_process;
mod interpreters;
pub mod machine;
mod passage;
mod secret_names;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::Addr;
use tokio::sync::{mpsc, oneshot, watch};

use crate::actors::messages::task_runner::{
    AbandonTasks, OrdersReceived, SessionOpened, TasksAssigned, TellWhenIdle,
};
use crate::actors::task_runner::{
    DiskRoom, HeldTasks, KeptWorkspaces, Pause, RecoverError, TaskRunner, TaskRunnerOptions,
};
use crate::client::worker_channel::{ChannelError, Session, SessionEnd, WorkerChannel};
use crate::config::{SecretSource, host};
use crate::contract::protocol::{
    AcquireRequest, HeartbeatRequest, Identity, Orders, RegisterRequest, ResumeRequest, Timing,
};
use crate::contract::quantity::{Cpus, Seconds};
use crate::contract::worker::{Capabilities, WorkerKind};
use crate::domain::disk::Watermarks;
use crate::domain::log_budget::LogLimits;
use crate::domain::python::Building;
use crate::gpu::{Devices, GpuOptions};
use crate::process::account::Account;
use crate::process::{ProcessError, ShimPool};

use disk_watch::DiskWatch;
use gauges::Gauges;
use heartbeat::Heartbeat;
use identity::{Beginning, WorkerFolder};
pub use identity::{FolderError, KnownWorker, has_session, holder};
pub use passage::make_folder;

/// How long an acquire parks; the server's limit is 60 s.
const ACQUIRE_PARK: Seconds = Seconds::new(45);
/// How long the server has to take the last word of a worker that was revoked.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(5);
/// How long a worker that leaves waits for what is over to be put away.
const PUT_AWAY_WITHIN: Duration = Duration::from_secs(2);
/// An empty answer that comes sooner was no poll, whoever sent it.
const SHORTEST_PARK: Duration = Duration::from_secs(1);
/// Between two words about a server that does not answer.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// The lease of a server that has not said which it keeps.
const USUAL_LEASE: Duration = Duration::from_secs(20);
/// Beyond two leases, for the server to be sure that another one is gone.
const MARGIN: Duration = Duration::from_secs(5);
/// How long it parks while there is no room for a task.
const FULL_PARK: Seconds = Seconds::new(2);
const TASKS_PER_ACQUIRE: u32 = 256;
/// Shims kept for the next task; more than this many tasks at once start fresh ones.
const IDLE_SHIMS: usize = 16;
/// Shims made before the first task asks for one.
const WARM_SHIMS: usize = 2;

/// How a worker is to be.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Its folder: identity, shims, tasks, kept workspaces. Made when absent (0700).
    pub folder: PathBuf,
    /// What people call it.
    pub name: String,
    /// Whether it is the daemon's own.
    pub kind: WorkerKind,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Cores it offers; `None` = those it may use.
    pub cpus: Option<Cpus>,
    /// Memory it offers, in bytes; `None` = what there is.
    pub memory_bytes: Option<u64>,
    /// Processes and threads one of its tasks may have at once; `None` = half of what the kernel numbers, and at most
    /// 32768.
    pub task_pids_max: Option<u64>,
    /// How long the process of a reusable function waits for its next task; zero = not at all.
    pub reuse_idle: Duration,
    /// What shims are made from; `None` = this program, which then calls `process::run_if_shim` first.
    pub shim_binary: Option<PathBuf>,
    /// Where the secrets of its tasks are found.
    pub secrets: SecretSource,
    /// How long a task may go on while no worker is there.
    pub orphan_timeout: Duration,
    /// How much of its disk stays free.
    pub disk: Watermarks,
    /// How much log a task may make.
    pub log_limits: LogLimits,
    /// Whom tasks run as; `None` = the worker's own user. Another user's wants a worker that runs as root.
    pub task_user: Option<Account>,
    /// How Python environments are built.
    pub building: Building,
    /// How its GPUs are looked for.
    pub gpus: GpuOptions,
    /// Python interpreters it offers, by their paths.
    pub pythons: Vec<String>,
    /// Where other workers reach it.
    pub advertise_address: Option<String>,
    /// Whether it may register anew when the server has revoked it or does not know it. What runs here of the session
    /// before is killed first.
    pub rejoins: bool,
    /// Who the server in the same process says it was last: with it the worker stays itself when its identity file is
    /// lost or damaged.
    pub known: Option<KnownWorker>,
}

impl WorkerOptions {
    /// With the machine's own limits.
    pub fn new(folder: impl Into<PathBuf>, name: impl Into<String>, kind: WorkerKind) -> Self {
        Self {
            folder: folder.into(),
            name: name.into(),
            kind,
            labels: BTreeMap::new(),
            cpus: None,
            memory_bytes: None,
            task_pids_max: None,
            reuse_idle: Duration::from_secs(60),
            shim_binary: None,
            secrets: SecretSource::default(),
            orphan_timeout: Duration::from_secs(86_400),
            disk: Watermarks::default(),
            log_limits: LogLimits::default(),
            task_user: None,
            building: Building::default(),
            gpus: GpuOptions::default(),
            pythons: Vec::new(),
            advertise_address: None,
            // The daemon's own worker, and a database that does not know it: both are the daemon's.
            rejoins: kind == WorkerKind::Local,
            known: None,
        }
    }
}

/// Why a worker cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Its folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// What it wants to know of its machine.
    #[error("cannot find out about this machine")]
    Machine(#[source] io::Error),
    /// A thread of it.
    #[error("cannot start the worker's threads")]
    Thread(#[source] io::Error),
    /// Its shims.
    #[error("cannot have shims")]
    Shims(#[source] ProcessError),
    /// What an earlier start left.
    #[error("cannot go on with the tasks of an earlier start")]
    Recover(#[from] RecoverError),
    /// The server does not take it.
    #[error("the server does not accept this worker")]
    NotAccepted(#[source] ChannelError),
    /// Its thread ended without a word.
    #[error("the worker's thread ended unexpectedly")]
    Gone,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerEnd {
    /// It was told to stop; its running tasks go on for the next start.
    Stopped,
    /// It left for good, and the server knows.
    Left,
    /// It was to leave for good, and the server did not answer: to the server it is still a worker.
    NotTold,
    /// The server ended its session. When it was revoked, its tasks were killed first.
    SessionOver(SessionEnd),
}

/// What a worker that is told to stop says to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// Nothing: it comes back, and answers for its running tasks then.
    Silent,
    /// That it leaves for good, if it holds no task.
    IfIdle,
}

/// A worker; see [`Worker::start`].
#[derive(Debug)]
pub struct Worker;

/// A running worker. Dropping it stops it and leaves its tasks running.
#[derive(Debug)]
pub struct WorkerHandle {
    stop: watch::Sender<Option<Farewell>>,
    ended: watch::Receiver<bool>,
    thread: JoinHandle<Result<WorkerEnd, WorkerError>>,
    kept: KeptWorkspaces,
    _disk: DiskWatch,
}

impl Worker {
    /// Starts a worker on threads of its own. Tasks of an earlier start go on at once; the session is taken up, or
    /// made, as soon as the server answers.
    pub fn start(
        options: WorkerOptions,
        channel: Arc<dyn WorkerChannel>,
    ) -> Result<WorkerHandle, WorkerError> {
        let folder = WorkerFolder::open(&options.folder, options.task_user.is_some())?;
        if let Some(user) = &options.task_user {
            passage::open(folder.path(), &user.ids)?;
        }
        let boot_id = machine::boot_id().map_err(WorkerError::Machine)?;
        let beginning = folder.begin_incarnation(&boot_id, options.known)?;
        if beginning.moved {
            folder.leave_tasks_to_the_original()?;
        } else if beginning.other_boot {
            folder.forget_groups()?;
        }
        let identity = Identity {
            machine_id: machine::machine_id(folder.path()).map_err(WorkerError::Machine)?,
            boot_id,
            incarnation: beginning.incarnation,
        };
        let room = DiskRoom::new(folder.path(), options.disk);
        let kept = room.kept();
        let disk = DiskWatch::start(room.clone()).map_err(WorkerError::Thread)?;
        let (stop, stopped) = watch::channel(None);
        let (end, ended) = watch::channel(false);
        if !crate::process::protect_from_out_of_memory() {
            tracing::debug!(
                "the system does not let the worker protect itself; its tasks are put forward instead"
            );
        }
        let shims = shims(folder.path(), options.shim_binary.as_deref()).map_err(WorkerError::Shims)?;
        let mut capabilities = machine::capabilities(
            options.cpus,
            options.memory_bytes,
            options.labels.clone(),
            shims.enforced(),
        );
        capabilities.secrets = options.secrets.names();
        capabilities.spec_secret_refs = options.secrets.allows_spec_refs();
        capabilities.pythons = interpreters::offered(&options);
        let outward = || host::outward_address().map(|address| address.to_string());
        capabilities.advertise_address = options.advertise_address.clone().or_else(outward);
        let binary = options.gpus.binary.clone().or_else(|| options.shim_binary.clone());
        let gpus = gpus::start(GpuOptions { binary, ..options.gpus.clone() }, folder.path(), &shims)?;
        let capabilities = Arc::new(capabilities);
        let life = Life { options, folder, shims, identity, capabilities, gpus, room, channel, stopped };
        let thread = std::thread::Builder::new().name("worker".to_owned()).spawn(move || {
            let outcome = actix_rt::System::new().block_on(async {
                let outcome = life.live(beginning).await;
                crate::actors::let_them_start().await;
                outcome
            });
            if let Err(error) = &outcome {
                tracing::error!(error = error as &dyn std::error::Error, "the worker ended");
            }
            // The handle may be gone.
            let _ = end.send(true);
            outcome
        });
        Ok(WorkerHandle { stop, ended, thread: thread.map_err(WorkerError::Thread)?, kept, _disk: disk })
    }
}

impl WorkerHandle {
    /// The workspaces it keeps, for whoever hands their files out.
    pub fn kept(&self) -> KeptWorkspaces {
        self.kept.clone()
    }

    /// Returns when it has ended, by itself or because it was told to.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            // The sender's end is an end too.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// Stops it, without stopping its running tasks, and waits for its thread.
    pub fn stop(self, farewell: Farewell) -> Result<WorkerEnd, WorkerError> {
        let _ = self.stop.send(Some(farewell));
        self.thread.join().map_err(|_| WorkerError::Gone)?
    }
}

/// One start of a worker, from its thread's beginning to its end.
struct Life {
    options: WorkerOptions,
    folder: WorkerFolder,
    shims: ShimPool,
    identity: Identity,
    capabilities: Arc<Capabilities>,
    gpus: Devices,
    room: DiskRoom,
    channel: Arc<dyn WorkerChannel>,
    stopped: watch::Receiver<Option<Farewell>>,
}

impl Life {
    async fn live(mut self, beginning: Beginning) -> Result<WorkerEnd, WorkerError> {
        tokio::select! {
            gpus = self.gpus.inventory() => Arc::make_mut(&mut self.capabilities).gpus = gpus,
            _ = self.stop_ordered() => return Ok(WorkerEnd::Stopped),
        }
        let shims = self.shims.clone();
        let (session_over, mut over) = mpsc::unbounded_channel();
        let runner = TaskRunner::recover(TaskRunnerOptions {
            folder: self.folder.path().to_owned(),
            room: self.room.clone(),
            boot_id: self.identity.boot_id.clone(),
            channel: Arc::clone(&self.channel),
            shims: shims.clone(),
            gpus: self.gpus.clone(),
            capabilities: Arc::clone(&self.capabilities),
            host_environment: self.host_environment(),
            is_servers_own: self.options.kind == WorkerKind::Local,
            secrets: self.options.secrets.clone(),
            orphan_timeout: self.options.orphan_timeout,
            log_limits: self.options.log_limits,
            task_pids_max: self.options.task_pids_max.unwrap_or_else(machine::task_pids_max),
            reuse_idle: self.options.reuse_idle,
            task_user: self.options.task_user.clone(),
            building: Building {
                pythons: self.options.pythons.iter().map(PathBuf::from).collect(),
                ..self.options.building.clone()
            },
            session_over: session_over.clone(),
        })
        .await?;
        let held = runner.held();
        let runner = runner.go();
        let Some(timing) = self.open_session(beginning, &held, &runner).await? else {
            return Ok(WorkerEnd::Stopped);
        };
        self.folder.accepted(&self.identity.boot_id, timing.lease_ttl_s.duration())?;
        runner.do_send(SessionOpened);
        // Only a head start: a launch that finds none makes its own.
        if let Err(error) = shims.prewarm(WARM_SHIMS) {
            tracing::warn!(error = &error as &dyn std::error::Error, "no shim could be made ahead");
        }
        let (stop_heartbeat, heartbeat_stopped) = watch::channel(false);
        let gauges = Gauges::default();
        let _measuring =
            gauges.start(held.clone(), shims.clone(), self.room.clone()).map_err(WorkerError::Thread)?;
        let heartbeat = Heartbeat {
            channel: Arc::clone(&self.channel),
            held: held.clone(),
            room: self.room.clone(),
            gauges,
            gpus: self.gpus.clone(),
            gpus_at_first: self.capabilities.gpus.clone(),
            interpreters: interpreters::found(
                &self.options,
                self.folder.path(),
                self.capabilities.gpus.clone(),
            )
            .map_err(WorkerError::Thread)?,
            secret_names: secret_names::followed(
                self.options.secrets.clone(),
                self.capabilities.secrets.clone(),
            ),
            incarnation: self.identity.incarnation,
            every: timing.heartbeat_s,
            orders: runner.clone().recipient(),
            session_over,
        };
        let heartbeat = heartbeat.start(heartbeat_stopped).map_err(WorkerError::Thread)?;
        let end = tokio::select! {
            farewell = self.stop_ordered() => self.leave(farewell, &held, &runner).await,
            Some(end) = over.recv() => self.session_over(end, &runner).await?,
            end = self.acquire(&held, &runner) => self.session_over(end, &runner).await?,
        };
        let _ = stop_heartbeat.send(true);
        drop(tokio::task::spawn_blocking(|| heartbeat.join()).await);
        Ok(end)
    }

    /// Of which tasks get what is allowed: the worker's own, with its tasks' user in it.
    fn host_environment(&self) -> Vec<(OsString, OsString)> {
        let user = self.options.task_user.iter().flat_map(Account::variables).collect::<Vec<_>>();
        let own = std::env::vars_os().filter(|(name, _)| user.iter().all(|(set, _)| name != set));
        let own: Vec<_> = own.collect();
        own.into_iter().chain(user.into_iter().map(|(name, value)| (name.into(), value))).collect()
    }

    async fn stop_ordered(&self) -> Farewell {
        let mut stopped = self.stopped.clone();
        match stopped.wait_for(Option::is_some).await.map(|farewell| *farewell) {
            Ok(Some(farewell)) => farewell,
            // The handle was dropped.
            Ok(None) | Err(_) => Farewell::Silent,
        }
    }

    /// Takes the session up again, or makes one; `None` = it was told to stop before the server answered.
    async fn open_session(
        &self,
        beginning: Beginning,
        held: &HeldTasks,
        runner: &Addr<TaskRunner>,
    ) -> Result<Option<Timing>, WorkerError> {
        let opening = async {
            if let Some(session) = beginning.session.clone() {
                match self.resume(session, &beginning, held, runner).await {
                    Err(WorkerError::NotAccepted(ChannelError::SessionOver(
                        SessionEnd::Revoked | SessionEnd::Unknown,
                    ))) if self.options.rejoins => {}
                    resumed => return resumed,
                }
            }
            self.register().await
        };
        tokio::select! {
            opened = opening => opened.map(Some),
            _ = self.stop_ordered() => Ok(None),
        }
    }

    async fn resume(
        &self,
        session: Session,
        beginning: &Beginning,
        held: &HeldTasks,
        runner: &Addr<TaskRunner>,
    ) -> Result<Timing, WorkerError> {
        let worker_id = session.worker_id;
        self.channel.speak_as(session);
        let process = hex::encode(rand::random::<[u8; 16]>());
        // A reboot looks like a copy until the server is sure that nobody else is there.
        let refused_until = Instant::now() + beginning.lease_ttl.unwrap_or(USUAL_LEASE) * 2 + MARGIN;
        let resumed = until_answered("resume", || {
            let resume = self.channel.resume(ResumeRequest {
                worker_id,
                identity: self.identity.clone(),
                name: Some(self.options.name.clone()),
                capabilities: (*self.capabilities).clone(),
                tasks: held.list(),
                process: Some(process.clone()),
                moved: beginning.moved,
            });
            let patient = Instant::now() < refused_until;
            async move {
                resume.await.map_err(|error| match error {
                    ChannelError::SessionOver(why @ SessionEnd::IdentityInUse) if patient => {
                        ChannelError::NotYet { why }
                    }
                    ChannelError::UnknownSession => ChannelError::SessionOver(SessionEnd::Unknown),
                    // Before it was ever accepted, no newer start can have taken over from it.
                    ChannelError::SessionOver(SessionEnd::Superseded) => {
                        ChannelError::SessionOver(SessionEnd::Outdated)
                    }
                    other => other,
                })
            }
        });
        match resumed.await {
            Ok(answer) => {
                pass_on(answer.orders, runner);
                Ok(answer.timing)
            }
            Err(error) => {
                if let ChannelError::SessionOver(end) = &error {
                    self.session_over(*end, runner).await?;
                }
                Err(WorkerError::NotAccepted(error))
            }
        }
    }

    async fn register(&self) -> Result<Timing, WorkerError> {
        let registration = self.folder.registration()?;
        let registered = until_answered("register", || {
            self.channel.register(RegisterRequest {
                name: self.options.name.clone(),
                identity: self.identity.clone(),
                capabilities: (*self.capabilities).clone(),
                kind: self.options.kind,
                registration: Some(registration.clone()),
            })
        });
        let answer = registered.await.map_err(WorkerError::NotAccepted)?;
        let session = Session { worker_id: answer.worker_id, token: answer.session_token };
        self.folder.remember(Some(&session))?;
        self.channel.speak_as(session);
        Ok(answer.timing)
    }

    /// Asks for tasks, one long poll after the other, until the session ends.
    async fn acquire(&self, held: &HeldTasks, runner: &Addr<TaskRunner>) -> SessionEnd {
        let mut pause = Pause::new();
        loop {
            // A full disk takes none, and asks again soon: room comes back without a word.
            let full = self.room.unhealthy().is_some();
            let answer = self.channel.acquire(AcquireRequest {
                wait_s: if full { FULL_PARK } else { ACQUIRE_PARK },
                free: held.free(&self.capabilities),
                max_tasks: if full { 0 } else { TASKS_PER_ACQUIRE },
                have: held.list_for_acquire(),
                leaving: false,
            });
            let asked_at = Instant::now();
            match answer.await {
                Ok(answer) => {
                    let empty = answer.assignments.is_empty() && answer.orders == Orders::default();
                    if empty && asked_at.elapsed() < SHORTEST_PARK {
                        pause.wait().await;
                        continue;
                    }
                    pause = Pause::new();
                    if !answer.assignments.is_empty() {
                        // Awaited, so that the next poll already says that it has them.
                        let _ = runner.send(TasksAssigned { assignments: answer.assignments }).await;
                    }
                    pass_on(answer.orders, runner);
                }
                Err(ChannelError::SessionOver(end)) => return end,
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "asking for tasks brought no answer"
                    );
                    pause.wait().await;
                }
            }
        }
    }

    /// Revoked, or about to be another worker: no process of any task is left afterwards. Otherwise the tasks are
    /// somebody else's now, or wait for a server that knows them.
    async fn session_over(
        &self,
        end: SessionEnd,
        runner: &Addr<TaskRunner>,
    ) -> Result<WorkerEnd, WorkerError> {
        tracing::debug!(%end, "the session is over");
        let given_up = end == SessionEnd::Revoked || end == SessionEnd::Unknown && self.options.rejoins;
        if given_up {
            let (reply, gone) = oneshot::channel();
            runner.do_send(AbandonTasks { reply });
            let _ = gone.await;
            if end == SessionEnd::Revoked {
                self.say_they_are_gone().await;
            }
            self.folder.remember(None)?;
        }
        Ok(WorkerEnd::SessionOver(end))
    }

    /// The last word of a revoked worker: until it came, the server takes what its tasks held for taken.
    async fn say_they_are_gone(&self) {
        let last = HeartbeatRequest {
            // After all that are still on their way.
            seq: u64::MAX,
            incarnation: self.identity.incarnation,
            ..HeartbeatRequest::default()
        };
        if tokio::time::timeout(LAST_WORD_WITHIN, self.channel.heartbeat(last)).await.is_err() {
            tracing::warn!("the server was not told that the tasks are gone");
        }
    }

    async fn leave(&self, farewell: Farewell, held: &HeldTasks, runner: &Addr<TaskRunner>) -> WorkerEnd {
        if farewell == Farewell::Silent {
            return WorkerEnd::Stopped;
        }
        // One whose end the server has just heard of is put away at any moment.
        let (reply, idle) = oneshot::channel();
        runner.do_send(TellWhenIdle { reply });
        drop(tokio::time::timeout(PUT_AWAY_WITHIN, idle).await);
        if !held.list().is_empty() {
            return WorkerEnd::Stopped;
        }
        let left = tokio::time::timeout(Duration::from_secs(5), self.channel.deregister()).await;
        if !left.is_ok_and(|left| left.is_ok()) {
            return WorkerEnd::NotTold;
        }
        if let Err(error) = self.folder.remember(None) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the identity stays although it is over"
            );
        }
        WorkerEnd::Left
    }
}

fn shims(folder: &Path, binary: Option<&Path>) -> Result<ShimPool, ProcessError> {
    match binary {
        Some(binary) => ShimPool::with_binary(folder, IDLE_SHIMS, binary),
        None => ShimPool::new(folder, IDLE_SHIMS),
    }
}

fn pass_on(orders: Orders, runner: &Addr<TaskRunner>) {
    if orders != Orders::default() {
        runner.do_send(OrdersReceived { orders });
    }
}

/// Repeats a call until the server says yes or no. Tells people why it takes long: whenever that is news, and every
/// minute.
async fn until_answered<A, F>(call: &'static str, mut ask: impl FnMut() -> F) -> Result<A, ChannelError>
where
    F: Future<Output = Result<A, ChannelError>>,
{
    let mut pause = Pause::new();
    let mut said: Option<(String, Instant)> = None;
    loop {
        match ask().await {
            Err(error) if error.may_repeat() => {
                let what = error.to_string();
                let news = said.as_ref().is_none_or(|(said, at)| *said != what || at.elapsed() > SAY_EVERY);
                let error = &error as &dyn std::error::Error;
                if news {
                    said = Some((what, Instant::now()));
                    tracing::warn!(error, "no good answer to {call} yet, trying again");
                } else {
                    tracing::debug!(error, "no good answer to {call} yet, trying again");
                }
            }
            answered => return answered,
        }
        pause.wait().await;
    }
}
