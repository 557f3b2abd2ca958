//! A task's program by way of its shim: what to launch, and what the shim says of it until the end.

use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Surroundings;
use super::checkpoint;
use super::folder::{TaskFolder, real_folder};
use super::function::runner;
use super::lost::{lost, warn_of_stuck};
use super::progress::Progress;
use super::scene::explained;
use super::yielded::{self, Yields};
use crate::clock;
use crate::config::secrets::SecretsError;
use crate::contract::ids::TaskId;
use crate::contract::problem::Warning;
use crate::contract::protocol::{Assignment, KeptCheckpoint, StopReason};
use crate::contract::quantity::Seconds;
use crate::contract::spec::{JobSpec, Workload};
pub(super) use crate::domain::causes::said;
use crate::domain::keeping::Keeping;
use crate::domain::python::Recipe;
use crate::domain::task_run::{
    Event, Exit, ExitFacts, StopSent, TaskPlace, command_line, environment, held_back, lines_lost,
    memory_let_loose, outlived_a_kill, reuse_key,
};
use crate::domain::verdict::MemoryFacts;
use crate::process::{
    CpuThrottling, ExitRecord, Launch, Limits, NotStarted, Prelude, ProcessError, ShimEvent, SpoolReader,
    Stay, StopCause, TaskProcess, Wait, is_program,
};

/// How often it is seen to that the shim is not stopped.
const LOOK_AT_SHIM: Duration = Duration::from_secs(5);

/// How often it is looked for a word about progress.
const LOOK_AT_PROGRESS: Duration = Duration::from_secs(1);

/// What the shim needs to run a task.
pub(super) fn launch(around: &Surroundings, assignment: &Assignment, folder: &TaskFolder) -> Launch {
    let spec = &assignment.spec;
    let workspace = folder.root(spec);
    let function = folder.function();
    let place = TaskPlace {
        job_id: assignment.job_id,
        task_id: assignment.task_id,
        attempt: assignment.attempt,
        workspace: &workspace,
        tmp: &folder.tmp(),
        stop_file: &folder.stop_file(),
        progress_file: &folder.progress_file(),
        checkpoint: &folder.checkpoint(),
        function: spec.workload.function().map(|_| &*function),
        array: assignment.array.as_ref(),
        gang: assignment.gang.as_deref(),
        of_shell: around.options.is_servers_own,
        gpus: &around.options.gpus.variables(&assignment.gpus),
    };
    let env = environment(spec, around.options.host_environment.iter().cloned(), place);
    let cwd = match &spec.workload {
        Workload::Command(command) => command.cwd.clone().unwrap_or_default().into(),
        Workload::Function(_) => PathBuf::new(),
    };
    Launch {
        task_id: assignment.task_id,
        task_folder: folder.path().to_owned(),
        workspace,
        cwd,
        argv: command_line(spec, around.bash.as_deref(), &runner(&around.options.folder)),
        env: env.into_iter().collect(),
        secrets: Vec::new(),
        stop_signal: spec.stop_signal,
        grace: spec.grace_s.duration(),
        timeout: spec.timeout_s.map(Seconds::duration),
        prelude: None,
        stay: None,
        orphan_timeout: around.options.orphan_timeout,
        limits: Limits {
            memory_bytes: spec.resources.memory_bytes,
            cpu_millis: Some(spec.resources.cpus.millis()),
            pids: Some(around.options.task_pids_max),
        },
        log: around.options.log_limits,
        gpu_locks: around.options.gpus.lock_paths(&assignment.gpus).into_iter().map(Into::into).collect(),
        run_as: around.options.task_user.as_ref().map(|user| user.ids.clone()),
    }
}

/// Why a task could not be handed to a shim.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    /// The shim.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Secrets that are not there.
    #[error("{missing} (on worker {worker})")]
    Secrets {
        /// Which.
        missing: SecretsError,
        /// Where.
        worker: String,
    },
    /// GPUs that it was to have.
    #[error("GPU {uuids}: another GPUlayer on this host took the lock while this worker was restarted")]
    Gpus {
        /// All that it was given.
        uuids: String,
    },
    /// The folder of a task that runs as another user.
    #[error("the task's folder cannot be given to its user")]
    Folder(#[source] std::io::Error),
    /// The folder of Python environments.
    #[error("no Python environment can be ordered")]
    Environments(#[source] std::io::Error),
    /// The search for them, or the work on the folder, was cut short.
    #[error("the launch could not be prepared")]
    Interrupted(#[source] tokio::task::JoinError),
}

/// Hands a task to a shim, with its secrets: looked up now, and nowhere kept.
pub(super) async fn hand_over(
    around: Arc<Surroundings>,
    assignment: &Assignment,
    folder: TaskFolder,
    mut launch: Launch,
) -> Result<TaskProcess, LaunchError> {
    let spec: &Arc<JobSpec> = &assignment.spec;
    if !around.options.gpus.has(assignment.task_id, &assignment.gpus) {
        return Err(LaunchError::Gpus { uuids: assignment.gpus.join(", ") });
    }
    if let Some(user) = launch.run_as.clone() {
        let opened = tokio::task::spawn_blocking(move || folder.open_to(&user)).await;
        opened.map_err(LaunchError::Interrupted)?.map_err(LaunchError::Folder)?;
    }
    if !spec.secrets.is_empty() {
        let (source, spec) = (around.options.secrets.clone(), Arc::clone(spec));
        let resolved = tokio::task::spawn_blocking(move || source.resolve(&spec.secrets)).await;
        launch.secrets = resolved.map_err(LaunchError::Interrupted)?.map_err(|missing| {
            let worker = around.options.capabilities.hostname.clone();
            LaunchError::Secrets { missing, worker }
        })?;
    }
    launch.stay = stay(&around, assignment, &launch);
    // What lies in a person's own folder has no digest, so that an environment made of it is this task's alone.
    let alone = real_folder(spec).map(|_| assignment.task_id.to_string());
    if let Some(recipe) = Recipe::of(spec, alone) {
        let prelude = prelude(&around, recipe, &launch).map_err(LaunchError::Environments)?;
        launch.prelude = Some(Box::new(prelude));
    }
    Ok(around.options.shims.launch(launch).await?)
}

/// Whether the program may go on to serve others.
fn stay(around: &Surroundings, assignment: &Assignment, launch: &Launch) -> Option<Stay> {
    let idle = around.options.reuse_idle;
    if idle.is_zero() || !assignment.gpus.is_empty() || real_folder(&assignment.spec).is_some() {
        return None;
    }
    let key = reuse_key(&assignment.spec, &launch.env, &launch.secrets)?;
    Some(Stay::new(key, idle))
}

/// What the shim runs before the program, so that its Python environment is there.
fn prelude(around: &Surroundings, recipe: Recipe, launch: &Launch) -> std::io::Result<Prelude> {
    let options = &around.options;
    options.room.environments().prelude(
        recipe,
        &launch.workspace,
        launch.run_as.as_ref(),
        &options.building,
        &launch.env,
        &options.host_environment,
    )
}

/// What a program says of itself while it runs, beside its log.
pub(super) struct Sources {
    /// How far it is.
    pub(super) progress: Progress,
    /// What it yields, if it is a function.
    pub(super) yields: Option<Yields>,
    /// What was asked for.
    spec: Arc<JobSpec>,
}

impl Sources {
    /// Of a task.
    pub(super) fn of(around: &Surroundings, assignment: &Assignment, folder: &TaskFolder) -> Self {
        let progress = Progress::of(around, &assignment.spec, folder);
        Self { progress, yields: Yields::of(assignment, folder), spec: Arc::clone(&assignment.spec) }
    }
}

/// Tells what a task's process does until its end, and passes stop orders on to it. `bring` gives the process, and
/// another one when a shim was killed before it took the task: then nothing of it has run. `None` = it has no other.
pub(super) async fn watch(
    task_id: TaskId,
    mut bring: impl AsyncFnMut() -> Option<Result<TaskProcess, LaunchError>>,
    around: &Arc<Surroundings>,
    folder: &TaskFolder,
    Sources { mut progress, yields, spec }: Sources,
    mut stops: mpsc::UnboundedReceiver<(StopReason, bool)>,
    mut tell: impl FnMut(Event),
) {
    let shims = &around.options.shims;
    let mut process = match bring().await {
        Some(Ok(process)) => process,
        Some(Err(error)) => return tell(Event::LaunchFailed { detail: said(&error) }),
        None => {
            let event = lost(shims, task_id, folder, &mut tell).await;
            return tell(event);
        }
    };
    let mut stopped = false;
    let mut checkpoints = Keeping::default();
    let mut keeping: Option<Pin<Box<dyn Future<Output = Kept>>>> = None;
    let mut words = tokio::time::interval_at(Instant::now() + LOOK_AT_PROGRESS, LOOK_AT_PROGRESS);
    let mut looks = tokio::time::interval_at(Instant::now() + LOOK_AT_SHIM, LOOK_AT_SHIM);
    let mut yielding = pin!(yielded::while_it_runs(around, yields));
    loop {
        let event = tokio::select! {
            event = process.recv() => event,
            _ = looks.tick() => {
                process.wake();
                continue;
            }
            _ = words.tick() => {
                if let Some(word) = progress.news().await {
                    checkpoints.counted(word.checkpoint);
                    word.progress.into_iter().for_each(|said| tell(Event::Progressed(said)));
                }
                let due = checkpoints.due(clock::now()).filter(|_| keeping.is_none());
                if let Some(counted) = due.filter(|counted| folder.wants_checkpoint(*counted)) {
                    keeping = Some(Box::pin(keep_checkpoint(around.clone(), spec.clone(), folder.clone(), counted)));
                }
                continue;
            }
            never = &mut yielding => match never {},
            Some(kept) = async { Some(keeping.as_mut()?.await) }, if keeping.is_some() => {
                keeping = None;
                match kept {
                    Ok(kept) => {
                        checkpoints.kept();
                        kept.into_iter().for_each(|kept| tell(Event::CheckpointKept(kept)));
                    }
                    Err(Unkept) => checkpoints.failed(clock::now()),
                }
                continue;
            }
            Some((cause, now)) = stops.recv() => {
                stopped = true;
                // A shim that does not hear it is gone, which the next event says.
                if let Err(error) = process.stop_for(cause, now).await {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a stop order did not arrive");
                }
                continue;
            }
        };
        match event {
            Some(ShimEvent::Preparing) => tell(Event::Preparing),
            Some(ShimEvent::Started { .. }) => tell(Event::Launched),
            Some(ShimEvent::Logged { through_n }) => tell(Event::Logged { through_n }),
            Some(ShimEvent::Stuck(processes)) => {
                warn_of_stuck(task_id, &processes);
                tell(Event::Stuck { processes });
            }
            Some(ShimEvent::Ended(record)) => {
                return tell(Event::Ended(explained(*record, folder).await));
            }
            Some(ShimEvent::ShimLost) | None if !stopped && !folder.was_launched() => match bring().await {
                Some(Ok(another)) => process = another,
                Some(Err(error)) => return tell(Event::LaunchFailed { detail: said(&error) }),
                None => break,
            },
            Some(ShimEvent::ShimLost) | None => break,
        }
    }
    let event = lost(shims, task_id, folder, &mut tell).await;
    tell(event);
}

/// A checkpoint on the server, if there was anything to keep.
type Kept = Result<Option<KeptCheckpoint>, Unkept>;

/// A checkpoint that could not be kept. It is tried again, at the end at the latest.
struct Unkept;

/// Keeps the checkpoint that the program counts as this one.
async fn keep_checkpoint(
    around: Arc<Surroundings>,
    spec: Arc<JobSpec>,
    folder: TaskFolder,
    counted: u64,
) -> Kept {
    match checkpoint::keep(&around, &spec, &folder).await {
        Ok(kept) => {
            if let Err(error) = folder.note_checkpoint(counted) {
                tracing::warn!(%error, "a checkpoint is kept once more at the task's end");
            }
            Ok(kept.checkpoint)
        }
        Err(why) => {
            tracing::warn!(why, "a checkpoint could not be kept");
            Err(Unkept)
        }
    }
}

/// What the user should know of it beside its end.
fn noted(record: &ExitRecord) -> impl Iterator<Item = Warning> {
    let throttling = record.cpu_throttling.and_then(|found| {
        let CpuThrottling { cpu_millis, periods, throttled_periods } = found;
        held_back(cpu_millis, periods, throttled_periods, in_millis(record.duration))
    });
    let kills = record.oom_kills.unwrap_or(0);
    let outlived = (record.wait == Wait::Exited { code: 0 }).then(|| outlived_a_kill(kills)).flatten();
    let loose = record.memory_not_held.then(memory_let_loose);
    [throttling, outlived, loose, lines_lost(record.lost_records, &record.lost_because)].into_iter().flatten()
}

/// Number of the last whole record in the spool.
pub(super) fn last_n(folder: &TaskFolder) -> u64 {
    let mut spool = SpoolReader::open(folder.path());
    spool.last_n().unwrap_or_else(|error| {
        tracing::warn!(error = &error as &dyn std::error::Error, "a spool can be read only in part");
        spool.next_n() - 1
    })
}

/// The shim's record in the words of the decision.
pub(super) fn facts(record: ExitRecord) -> ExitFacts {
    let ran = !matches!(record.wait, Wait::NotStarted { .. });
    let warnings = noted(&record).collect();
    let exit = match record.wait {
        Wait::Exited { code } => Exit::Exited { code },
        Wait::Signalled { name, .. } => Exit::Signalled { signal: name },
        Wait::NotStarted { kind: kind @ (NotStarted::NotFound | NotStarted::NotExecutable), detail } => {
            Exit::NotFound { code: kind.exit_code(), detail }
        }
        Wait::NotStarted { kind: NotStarted::BadCwd | NotStarted::SpawnFailed, detail } => {
            Exit::NotPrepared { detail, disk_full: false }
        }
    };
    let stopping_for = record.stop.map(|stop| record.ended_at.since(stop.sent_at));
    let stop = record.stop.map(|stop| match stop.cause {
        StopCause::Requested => StopSent::Order,
        StopCause::Timeout => StopSent::Timeout,
        StopCause::Orphaned => StopSent::Orphaned,
    });
    ExitFacts {
        exit,
        stop,
        stopping_for,
        in_prelude: record.in_prelude,
        duration: ran.then(|| in_millis(record.duration)),
        peak_memory_bytes: record.peak_memory_bytes,
        last_n: record.last_n,
        lost_records: record.lost_records,
        whole_log: record.whole_log,
        memory: MemoryFacts {
            limit_bytes: record.memory_limit_bytes,
            oom_kills: record.oom_kills,
            oom_killed_after: record.oom_killed_after.map(in_millis),
        },
        scene: None,
        warnings,
    }
}

fn in_millis(span: std::time::Duration) -> Seconds {
    Seconds::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

/// Where a program lies in this environment's `PATH`.
pub(super) fn find_in_path(program: &str, environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let (_, path) = environment.iter().find(|(name, _)| name == "PATH")?;
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|place| is_program(place))
}
