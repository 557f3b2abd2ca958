//! What a program finds around it: its command line and its allow-listed environment (CONTRACT, On the
//! worker).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use crate::contract::array::ArrayPlace;
use crate::contract::gang::{Backend, GangPlace, ProcessesPerNode};
use crate::contract::ids::{JobId, TaskId};
use crate::contract::spec::{JobSpec, Run, Workload};
use crate::domain::gpus::GRANTED;
use crate::domain::spec::item_call;

/// What a task sees of the worker's own environment; `LC_*` too.
const ALLOWED: [&str; 7] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ"];

/// What calls a function when the spec names no interpreter: the first of this name in the task's `PATH`.
const PYTHON: &str = "python3";

/// Where a task runs and which one it is.
#[derive(Debug, Clone, Copy)]
pub struct TaskPlace<'a> {
    /// The job.
    pub job_id: JobId,
    /// The task.
    pub task_id: TaskId,
    /// The job's attempt.
    pub attempt: u32,
    /// The task's workspace, absolute.
    pub workspace: &'a Path,
    /// Its folder for temporary files, absolute.
    pub tmp: &'a Path,
    /// A file that appears when the task should stop, absolute.
    pub stop_file: &'a Path,
    /// Where the program may say how far it is, absolute.
    pub progress_file: &'a Path,
    /// A folder that its next attempt finds as it left it, absolute; it need not be there.
    pub checkpoint: &'a Path,
    /// Where a function's call lies, absolute.
    pub function: Option<&'a Path>,
    /// Which child of an array it is.
    pub array: Option<&'a ArrayPlace>,
    /// Which task of a gang it is.
    pub gang: Option<&'a GangPlace>,
    /// Whether it is on the machine of the shell that submitted, whose `PATH` and the like hold here.
    pub of_shell: bool,
    /// What it is told of its GPUs, see [`crate::domain::gpus::variables`].
    pub gpus: &'a [(&'static str, String)],
}

/// The whole environment of a task. `host` is the worker's own; the spec's `env` comes last and wins, save over what
/// tells a task which GPUs are its own.
///
/// A task without GPUs gets an empty `CUDA_VISIBLE_DEVICES`: that hides every GPU, where an absent one would show them
/// all.
pub fn environment(
    spec: &JobSpec,
    host: impl IntoIterator<Item = (OsString, OsString)>,
    place: TaskPlace<'_>,
) -> BTreeMap<OsString, OsString> {
    let mut variables: BTreeMap<OsString, OsString> =
        host.into_iter().filter(|(name, _)| name.to_str().is_some_and(allowed)).collect();
    let mut set = |name: &str, value: OsString| {
        variables.insert(OsString::from(name), value);
    };
    set("PYTHONUNBUFFERED", "1".into());
    for (name, value) in place.gpus {
        set(name, value.into());
    }
    set("TMPDIR", place.tmp.into());
    set("GPULAYER_JOB_ID", place.job_id.to_string().into());
    set("GPULAYER_TASK_ID", place.task_id.to_string().into());
    set("GPULAYER_ATTEMPT", place.attempt.to_string().into());
    set("GPULAYER_WORKSPACE", place.workspace.into());
    set("GPULAYER_OUTPUTS", place.workspace.into());
    set("GPULAYER_STOP_FILE", place.stop_file.into());
    set("GPULAYER_PROGRESS_FILE", place.progress_file.into());
    set("GPULAYER_CHECKPOINT_DIR", place.checkpoint.into());
    if let Some(function) = place.function {
        set("GPULAYER_FUNCTION", function.into());
    }
    if let Some(array) = place.array {
        set("GPULAYER_ARRAY_INDEX", array.index.to_string().into());
        set("GPULAYER_ARRAY_COUNT", array.count.to_string().into());
        // What is the call of a child is for its runner.
        let call = place.function.and(array.item.as_ref()).and_then(item_call);
        if let Some(item) = array.item.as_ref().filter(|_| call.is_none()) {
            set("GPULAYER_ARRAY_ITEM", item.as_str().map_or_else(|| item.to_string(), str::to_owned).into());
        }
    }
    if let Some(gang) = place.gang {
        for (name, value) in gang_variables(spec, gang, place.gpus) {
            set(name, value.into());
        }
    }
    let holds = |name: &String| place.of_shell || !spec.shell_env.contains(name);
    for (name, value) in spec.env.iter().filter(|(name, _)| holds(name)) {
        variables.insert(name.into(), value.into());
    }
    let granted = place.gpus.iter().any(|(name, _)| *name == GRANTED);
    for (name, value) in place.gpus.iter().filter(|_| granted) {
        variables.insert(name.into(), value.into());
    }
    variables
}

/// What a task of a gang is told of itself and its peers. The port they meet at is the program's own choice.
fn gang_variables(
    spec: &JobSpec,
    gang: &GangPlace,
    gpus: &[(&'static str, String)],
) -> [(&'static str, String); 5] {
    let granted = gpus.iter().find(|(name, _)| *name == GRANTED);
    let granted = granted.map_or(0, |(_, uuids)| uuids.split(',').filter(|uuid| !uuid.is_empty()).count());
    let asked = spec.distributed.as_deref();
    let processes = match asked.and_then(|asked| asked.processes_per_node) {
        Some(ProcessesPerNode::Count(count)) => count as usize,
        Some(ProcessesPerNode::Gpu) | None => granted.max(1),
    };
    let backend = match asked.and_then(|asked| asked.backend) {
        Some(Backend::Nccl) => "nccl",
        Some(Backend::Gloo) => "gloo",
        Some(Backend::Auto) | None if granted > 0 => "nccl",
        Some(Backend::Auto) | None => "gloo",
    };
    let addresses: Vec<&str> = gang.peers.iter().map(|peer| peer.address.as_str()).collect();
    [
        ("GPULAYER_RANK", gang.rank.to_string()),
        ("GPULAYER_NODES", gang.peers.len().to_string()),
        ("GPULAYER_PEERS", addresses.join(",")),
        ("GPULAYER_PROCESSES_PER_NODE", processes.to_string()),
        ("GPULAYER_BACKEND", backend.to_owned()),
    ]
}

/// Whether a variable of a task is about that task alone. All others are the same for every task of a job's kind on one
/// worker.
pub fn is_of_one_task(name: &str) -> bool {
    name == "TMPDIR" || name.starts_with("GPULAYER_")
}

fn allowed(name: &str) -> bool {
    ALLOWED.contains(&name) || name.starts_with("LC_")
}

/// The program and its arguments. `bash` is where the worker found it, `runner` the program that calls functions.
pub fn command_line(spec: &JobSpec, bash: Option<&Path>, runner: &Path) -> Vec<OsString> {
    let command = match &spec.workload {
        Workload::Function(_) => return vec![PYTHON.into(), runner.into()],
        Workload::Command(command) => command,
    };
    match (&command.run, bash) {
        (Run::Argv(argv), _) => argv.iter().map(OsString::from).collect(),
        (Run::Shell(text), Some(bash)) => {
            vec![bash.into(), "-o".into(), "pipefail".into(), "-c".into(), text.into()]
        }
        (Run::Shell(text), None) => vec!["sh".into(), "-c".into(), text.into()],
    }
}
