//! The task runner: owns every task of one worker and carries out what `domain::task_run` decides about it.
//!
//! Never does: decide, talk to a server by itself (it has a [`WorkerChannel`]), touch a task's processes (their
//! shims do). Told by: the worker's acquire loop and heartbeat (`TasksAssigned`, `OrdersReceived`), and by its own
//! errands as they come back (`Happened`). Tells: the server, in batches; the worker's edge, when the session ends.
//! Survives a restart: everything, by way of the task folders and the shims (see `adoption`).

mod accepting;
mod adoption;
mod cache;
mod checkpoint;
mod collecting;
mod folder;
mod function;
mod held;
mod hidden_names;
mod kept;
mod logs;
mod lost;
mod outbox;
mod pause;
mod progress;
mod reporting;
mod room;
mod running;
mod scene;
mod spares;
mod staging;
mod trash;
mod yielded;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message};
use tokio::sync::{mpsc, oneshot};

use crate::actors::messages::Reply;
use crate::actors::messages::task_runner::{
    AbandonTasks, OrdersReceived, SessionOpened, TasksAssigned, TellWhenIdle,
};
use crate::client::worker_channel::{SessionEnd, WorkerChannel};
use crate::clock;
use crate::config::SecretSource;
use crate::contract::ids::TaskId;
use crate::contract::protocol::{AcquireRequest, Assignment, Orders, ReportItem, StopReason};
use crate::contract::quantity::Seconds;
use crate::contract::worker::{Capabilities, Phase};
use crate::domain::log_budget::LogLimits;
use crate::domain::python::Building;
use crate::domain::task_run::{Collection, Effect, Event, Found, TaskRun, WholeLog, memory_not_held};
use crate::gpu::Devices;
use crate::process::account::Account;
use crate::process::{ProcessError, ShimPool, SpoolReader, TaskProcess};

use adoption::Recovered;
use collecting::Wanted;
use folder::TaskFolder;
pub use held::HeldTasks;
pub use kept::KeptWorkspaces;
use outbox::Outbox;
pub use pause::Pause;
use reporting::{Reported, Unjudged};
pub use room::{DiskRoom, worker_ballast};
use running::LaunchError;
use spares::Spares;
use trash::Trash;

/// Room for the events of a few hundred busy tasks; told by `do_send`, which never refuses.
const MAILBOX: usize = 1024;
/// How often expired workspaces are looked for, and what could not be removed is tried again.
const TIDY_EVERY: Duration = Duration::from_secs(3600);
/// Tasks asked for at once when a report brings new ones along.
const TASKS_PER_ANSWER: u32 = 256;

/// What every task of a worker needs.
pub struct TaskRunnerOptions {
    /// The worker's folder; `tasks/`, `spare/` and `trash/` lie there.
    pub folder: PathBuf,
    /// The room on its disk, and what is kept and cached there.
    pub room: DiskRoom,
    /// This boot of the machine: tasks of another one are gone.
    pub boot_id: String,
    /// The line to the server.
    pub channel: Arc<dyn WorkerChannel>,
    /// Who runs the programs.
    pub shims: ShimPool,
    /// The GPUs that tasks are given.
    pub gpus: Devices,
    /// What the worker has.
    pub capabilities: Arc<Capabilities>,
    /// The worker's own environment, from which tasks get what is allowed.
    pub host_environment: Vec<(OsString, OsString)>,
    /// Whether it is the worker of the server's own machine.
    pub is_servers_own: bool,
    /// Where the secrets of tasks are found.
    pub secrets: SecretSource,
    /// How long a task may run without any worker.
    pub orphan_timeout: Duration,
    /// How much log a task may make.
    pub log_limits: LogLimits,
    /// Processes and threads a task may have at once.
    pub task_pids_max: u64,
    /// How long the process of a reusable function waits for its next task; zero = not at all.
    pub reuse_idle: Duration,
    /// Whom tasks run as; `None` = the worker's own user.
    pub task_user: Option<Account>,
    /// How Python environments are built.
    pub building: Building,
    /// Told once when the server ends the session.
    pub session_over: mpsc::UnboundedSender<SessionEnd>,
}

/// The same, shared with every errand.
struct Surroundings {
    tasks_folder: PathBuf,
    options: TaskRunnerOptions,
    trash: Trash,
    held: HeldTasks,
    bash: Option<PathBuf>,
}

/// One task and what belongs to it while the worker runs.
struct Task {
    assignment: Assignment,
    folder: TaskFolder,
    run: TaskRun,
    phase: Option<Phase>,
    /// Stop orders on their way to the errand that holds the shim: why, and whether at once.
    stops: Option<mpsc::UnboundedSender<(StopReason, bool)>>,
    /// Dropped to stop the errand that stages.
    staging: Option<oneshot::Sender<()>>,
    /// Dropped to stop the errand that brings outputs.
    collecting: Option<oneshot::Sender<()>>,
    /// Away while a batch of log records is being sent.
    spool: Option<SpoolReader>,
}

/// The actor.
pub struct TaskRunner {
    around: Arc<Surroundings>,
    tasks: HashMap<TaskId, Task>,
    /// Assignments whose GPUs are being looked at.
    granting: HashSet<TaskId>,
    recovered: Vec<Recovered>,
    spares: Spares,
    outbox: Outbox,
    flush_is_queued: bool,
    idle: Vec<Reply<()>>,
}

/// Something happened to a task.
#[derive(Message)]
#[rtype(result = "()")]
struct Happened {
    task_id: TaskId,
    event: Event,
}

/// A batch of log records came back, or could not be sent.
#[derive(Message)]
#[rtype(result = "()")]
struct LogsSent {
    task_id: TaskId,
    spool: SpoolReader,
    event: Event,
}

/// Send what is due. Runs after everything that was in the mailbox with it.
#[derive(Message)]
#[rtype(result = "()")]
struct Flush;

impl TaskRunner {
    /// Finds what an earlier start of this worker left. The tasks go on when the actor starts, and nothing is
    /// reported before `SessionOpened`.
    pub async fn recover(options: TaskRunnerOptions) -> Result<Self, RecoverError> {
        let tasks_folder = options.folder.join("tasks");
        std::fs::create_dir_all(&tasks_folder)
            .map_err(|source| RecoverError::Folder { path: tasks_folder.clone(), source })?;
        options.room.cache().clear_unfinished();
        let trash = Trash::new(options.folder.join("trash"));
        let recovered = adoption::recover(&tasks_folder, &options.boot_id, &options.shims, &trash).await?;
        let spares = Spares::open(&options.folder.join("spare"));
        let spares = spares.unwrap_or_else(|error| {
            // Without any a task only costs a little more; a full disk must not keep the worker from starting.
            tracing::warn!(%error, "no emptied task folders can be kept");
            Spares::default()
        });
        // A folder that was another user's is not used again.
        let spares = if options.task_user.is_some() { Spares::default() } else { spares };
        if let Err(error) = function::install_runner(&options.folder) {
            // The first function tries again, and says so if there still is no room.
            tracing::warn!(%error, "the runner of functions could not be put in place");
        } else if recovered.is_empty()
            && let Err(error) = function::remove_other_runners(&options.folder)
        {
            tracing::warn!(%error, "the runner of another build could not be removed");
        }
        let environments = options.room.environments().clone();
        off_thread(move || environments.tidy());
        let bash = running::find_in_path("bash", &options.host_environment);
        let around = Surroundings { tasks_folder, options, trash, held: HeldTasks::default(), bash };
        for task in &recovered {
            let Assignment { task_id, epoch, ref spec, ref gpus, .. } = task.assignment;
            around.held.insert(task_id, epoch, None, &spec.resources);
            around.options.gpus.adopt(task_id, gpus, task.found != Found::Unlaunched);
        }
        Ok(Self {
            around: Arc::new(around),
            tasks: HashMap::new(),
            granting: HashSet::new(),
            recovered,
            spares,
            outbox: Outbox::default(),
            flush_is_queued: false,
            idle: Vec::new(),
        })
    }

    /// Starts it on this thread's arbiter.
    pub fn go(self) -> Addr<Self> {
        self.start()
    }

    /// What the worker holds, for whoever renews leases.
    pub fn held(&self) -> HeldTasks {
        self.around.held.clone()
    }
}

/// Why a worker cannot go on with what an earlier start left.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The folder of its tasks.
    #[error("cannot use {}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The shims that are there.
    #[error("cannot adopt the shims of an earlier start")]
    Shims(#[source] ProcessError),
}

impl Actor for TaskRunner {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        for recovered in std::mem::take(&mut self.recovered) {
            self.go_on(recovered, ctx);
        }
        self.tidy(true);
        ctx.run_interval(TIDY_EVERY, |runner, _| runner.tidy(false));
    }
}

impl Handler<SessionOpened> for TaskRunner {
    type Result = ();

    fn handle(&mut self, _: SessionOpened, ctx: &mut Self::Context) {
        self.outbox.open();
        self.flush_soon(ctx);
    }
}

impl Handler<TasksAssigned> for TaskRunner {
    type Result = ();

    fn handle(&mut self, message: TasksAssigned, ctx: &mut Self::Context) {
        for assignment in message.assignments {
            self.accept(assignment, ctx);
        }
    }
}

impl Handler<OrdersReceived> for TaskRunner {
    type Result = ();

    fn handle(&mut self, message: OrdersReceived, ctx: &mut Self::Context) {
        self.obey(message.orders, ctx);
    }
}

impl Handler<Happened> for TaskRunner {
    type Result = ();

    fn handle(&mut self, message: Happened, ctx: &mut Self::Context) {
        self.on(message.task_id, message.event, ctx);
    }
}

impl Handler<LogsSent> for TaskRunner {
    type Result = ();

    fn handle(&mut self, message: LogsSent, ctx: &mut Self::Context) {
        if let Some(task) = self.tasks.get_mut(&message.task_id) {
            task.spool = Some(message.spool);
        }
        self.on(message.task_id, message.event, ctx);
    }
}

impl Handler<Flush> for TaskRunner {
    type Result = ();

    fn handle(&mut self, _: Flush, ctx: &mut Self::Context) {
        self.flush_is_queued = false;
        while let Some(items) = self.outbox.next_batch() {
            let acquire = outbox::frees_a_place(&items).then(|| AcquireRequest {
                wait_s: Seconds::default(),
                free: self.around.held.free(&self.around.options.capabilities),
                max_tasks: if self.around.options.room.unhealthy().is_some() { 0 } else { TASKS_PER_ANSWER },
                have: self.around.held.list_for_acquire(),
                leaving: false,
            });
            self.send(items, acquire, ctx.address());
        }
    }
}

impl Handler<Reported> for TaskRunner {
    type Result = ();

    fn handle(&mut self, message: Reported, ctx: &mut Self::Context) {
        let Reported { items, outcome } = message;
        let tasks = items.iter().map(|item| item.task_id);
        match outcome {
            Ok(answer) => {
                self.outbox.answered(tasks);
                for (task_id, event) in reporting::events(&items, &answer.results) {
                    self.on(task_id, event, ctx);
                }
                for assignment in answer.assignments {
                    self.accept(assignment, ctx);
                }
                self.obey(answer.orders, ctx);
            }
            Err(Unjudged::SessionOver(end)) => {
                self.outbox.answered(tasks);
                // Whoever hears this ends the worker; nobody may hear it any more when it is ending already.
                let _ = self.around.options.session_over.send(end);
            }
            Err(Unjudged::TooLarge) => {
                for items in self.outbox.parted(items) {
                    self.send(items, None, ctx.address());
                }
            }
        }
        self.flush_soon(ctx);
    }
}

impl Handler<AbandonTasks> for TaskRunner {
    type Result = ();

    fn handle(&mut self, message: AbandonTasks, ctx: &mut Self::Context) {
        self.idle.push(message.reply);
        self.granting.clear();
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        for task_id in tasks {
            self.on(task_id, Event::Abandoned, ctx);
        }
        self.answer_if_empty();
    }
}

impl Handler<TellWhenIdle> for TaskRunner {
    type Result = ();

    fn handle(&mut self, message: TellWhenIdle, _: &mut Self::Context) {
        self.idle.push(message.reply);
        self.answer_if_empty();
    }
}

impl TaskRunner {
    /// A task of an earlier start.
    fn go_on(&mut self, recovered: Recovered, ctx: &mut Context<Self>) {
        let Recovered { assignment, folder, found, process } = recovered;
        let task_id = assignment.task_id;
        tracing::info!(%task_id, ?found, "a task of an earlier start goes on");
        let runs = matches!(found, Found::Running | Found::Preparing);
        let mut effects = Vec::new();
        let mut run = TaskRun::adopt(&assignment.spec, found, &mut effects);
        if assignment.checkpoint.is_some() {
            run.begins_with_a_checkpoint();
        }
        self.note_what_is_not_held(&assignment, &mut run);
        self.tasks.insert(task_id, Task::new(assignment, folder, run));
        if runs {
            // Without a process, what a lost shim left is still being killed.
            let mut adopted = process;
            self.watch(task_id, async move || adopted.take().map(Ok), ctx);
        }
        self.carry_out(task_id, effects, ctx);
    }

    fn note_what_is_not_held(&self, assignment: &Assignment, run: &mut TaskRun) {
        let limits = self.around.options.capabilities.limits;
        memory_not_held(&assignment.spec.resources, limits).into_iter().for_each(|warning| run.note(warning));
    }

    fn on(&mut self, task_id: TaskId, event: Event, ctx: &mut Context<Self>) {
        let Some(task) = self.tasks.get_mut(&task_id) else {
            return;
        };
        let mut effects = Vec::new();
        task.run.on(event, &task.assignment.spec, &mut effects);
        self.carry_out(task_id, effects, ctx);
    }

    fn carry_out(&mut self, task_id: TaskId, effects: Vec<Effect>, ctx: &mut Context<Self>) {
        let Some(task) = self.tasks.get_mut(&task_id) else {
            return;
        };
        let phase = task.run.phase();
        if task.phase != phase {
            task.phase = phase;
            self.around.held.moved(task_id, phase);
        }
        for effect in effects {
            self.carry_out_one(task_id, effect, ctx);
        }
    }

    fn carry_out_one(&mut self, task_id: TaskId, effect: Effect, ctx: &mut Context<Self>) {
        let around = &self.around;
        let Some(task) = self.tasks.get_mut(&task_id) else {
            return;
        };
        match effect {
            Effect::Report(report) => {
                let epoch = task.assignment.epoch;
                self.report(ReportItem { task_id, epoch, report }, ctx);
            }
            Effect::Stage => {
                let (stop, stopped) = oneshot::channel();
                task.staging = Some(stop);
                let errand =
                    staging::stage(Arc::clone(around), task.assignment.clone(), task.folder.clone(), stopped);
                send_back(task_id, errand, ctx.address());
            }
            Effect::StopStaging => drop(task.staging.take()),
            Effect::StopCollecting => drop(task.collecting.take()),
            Effect::Launch => {
                let launch = running::launch(around, &task.assignment, &task.folder);
                let (around, assignment) = (Arc::clone(around), task.assignment.clone());
                let folder = task.folder.clone();
                let launch = async move || {
                    let around = Arc::clone(&around);
                    Some(running::hand_over(around, &assignment, folder.clone(), launch.clone()).await)
                };
                self.watch(task_id, launch, ctx);
            }
            Effect::StopShim { cause, now } => {
                // The errand is gone only when the task has ended.
                let _ = task.stops.as_ref().map(|stops| stops.send((cause, now)));
            }
            Effect::UploadLogs { first_n, through_n, end } => {
                let Some(spool) = task.spool.take() else {
                    return;
                };
                let (around, assignment) = (Arc::clone(around), task.assignment.clone());
                let runner = ctx.address();
                actix::spawn(async move {
                    let wanted = logs::Wanted { first_n, through_n, end };
                    let (spool, event) = logs::upload(&around, &assignment, spool, wanted).await;
                    runner.do_send(LogsSent { task_id, spool, event });
                });
            }
            Effect::Collect { whole_log, with_checkpoint, in_a_hurry } => {
                let silent = whole_log == WholeLog::InLines && task.assignment.gpus.is_empty();
                if silent && collecting::nothing_to_collect(&task.assignment.spec, &task.folder) {
                    self.on(task_id, Event::Collected(Collection::default()), ctx);
                } else {
                    let (stop, stopped) = oneshot::channel();
                    task.collecting = Some(stop);
                    let (assignment, folder) = (task.assignment.clone(), task.folder.clone());
                    let wanted = Wanted { whole_log, with_checkpoint, in_a_hurry };
                    let errand = collecting::collect(Arc::clone(around), assignment, folder, wanted, stopped);
                    send_back(task_id, errand, ctx.address());
                }
            }
            Effect::RemoveFolder => {
                if let Some(task) = self.forget(task_id) {
                    self.remove_folder(task.folder);
                }
            }
            Effect::KeepWorkspace => {
                if let Some(task) = self.forget(task_id) {
                    self.keep_workspace(task);
                }
            }
        }
    }

    /// Brings a task's process to life, or takes a living one, and tells what it does until its end.
    fn watch(
        &mut self,
        task_id: TaskId,
        bring: impl AsyncFnMut() -> Option<Result<TaskProcess, LaunchError>> + 'static,
        ctx: &mut Context<Self>,
    ) {
        let Some(task) = self.tasks.get_mut(&task_id) else {
            return;
        };
        let (stops, ordered) = mpsc::unbounded_channel();
        task.stops = Some(stops);
        let (folder, runner, around) = (task.folder.clone(), ctx.address(), Arc::clone(&self.around));
        let sources = running::Sources::of(&around, &task.assignment, &folder);
        actix::spawn(async move {
            let tell = |event| runner.do_send(Happened { task_id, event });
            running::watch(task_id, bring, &around, &folder, sources, ordered, tell).await;
        });
    }

    fn report(&mut self, item: ReportItem, ctx: &mut Context<Self>) {
        self.outbox.push(item);
        self.flush_soon(ctx);
    }

    fn send(&self, items: Vec<ReportItem>, acquire: Option<AcquireRequest>, runner: Addr<Self>) {
        let channel = Arc::clone(&self.around.options.channel);
        actix::spawn(async move { runner.do_send(reporting::report(channel, items, acquire).await) });
    }

    fn flush_soon(&mut self, ctx: &mut Context<Self>) {
        if !self.flush_is_queued {
            self.flush_is_queued = true;
            ctx.notify(Flush);
        }
    }

    fn obey(&mut self, orders: Orders, ctx: &mut Context<Self>) {
        // The cause comes with `stops`; an older server says only which. An order that was given already is no news.
        let said = orders.stops.into_iter().map(|order| (order.task_id, order.cause, order.now));
        let gently = orders.cancel_task_ids.into_iter().map(|task_id| (task_id, StopReason::Stopped, false));
        let at_once = orders.kill_task_ids.into_iter().map(|task_id| (task_id, StopReason::Stopped, true));
        for (task_id, cause, now) in said.chain(gently).chain(at_once) {
            self.around.held.stopping(task_id);
            self.on(task_id, Event::StopOrdered { cause, now }, ctx);
        }
        if orders.revoked {
            let _ = self.around.options.session_over.send(SessionEnd::Revoked);
        }
    }

    /// The task is over for this worker.
    fn forget(&mut self, task_id: TaskId) -> Option<Task> {
        let task = self.tasks.remove(&task_id);
        self.around.held.remove(task_id);
        if let Some(task) = &task {
            self.take_gpus_back(&task.assignment);
        }
        self.answer_if_empty();
        task
    }

    fn answer_if_empty(&mut self) {
        if self.tasks.is_empty() {
            for reply in self.idle.drain(..) {
                let _ = reply.send(());
            }
        }
    }

    fn remove_folder(&mut self, folder: TaskFolder) {
        if let Ok(true) = folder.remove_usual(&mut self.spares) {
            return;
        }
        let trash = self.around.trash.clone();
        off_thread(move || {
            if let Err(error) = trash.throw(folder.path()) {
                trash::tell(&error);
            }
        });
    }

    fn keep_workspace(&self, task: Task) {
        let kept = self.around.options.room.kept();
        let ttl = task.assignment.spec.workspace_ttl_s;
        off_thread(move || {
            // Then it stays where it is, and the next start of the worker tries again.
            if let Err(error) = kept.keep(&task.folder, task.assignment.job_id, clock::now(), ttl) {
                tracing::warn!(path = %task.folder.path().display(), %error, "a workspace cannot be kept");
            }
        });
    }

    fn tidy(&self, first: bool) {
        let (kept, trash) = (self.around.options.room.kept(), self.around.trash.clone());
        off_thread(move || {
            trash.empty(first);
            let count = kept.remove_expired(clock::now());
            if count > 0 {
                tracing::info!(count, "removed workspaces that were kept long enough");
            }
        });
    }
}

impl Task {
    fn new(assignment: Assignment, folder: TaskFolder, run: TaskRun) -> Self {
        let spool = Some(SpoolReader::open(folder.path()));
        Self { assignment, folder, run, phase: None, stops: None, staging: None, collecting: None, spool }
    }
}

/// Runs an errand beside the actor; its event comes back as a message.
fn send_back(task_id: TaskId, errand: impl Future<Output = Event> + 'static, runner: Addr<TaskRunner>) {
    actix::spawn(async move { runner.do_send(Happened { task_id, event: errand.await }) });
}

/// Runs what may block for long on a thread for such things; nobody waits for it.
fn off_thread(work: impl FnOnce() + Send + 'static) {
    drop(tokio::task::spawn_blocking(work));
}
