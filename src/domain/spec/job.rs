//! The top level of a spec: puts the parts together, and reads the limits and retries that belong to no part.

use serde_json::Value;

use super::nearest::nearest;
use super::reader::{Node, Pointer, Reader, listed, quoted};
use super::{environment, files, function, identity, limits, relations, resources, workload};
use crate::contract::end::EndReason;
use crate::contract::quantity::Seconds;
use crate::contract::spec::{JobSpec, MemoryGrowth, OnUnreachable, Retry, StopSignal, Target};
use crate::domain::placement::vendor_of;

const FIELDS: &[&str] = &[
    "api_version",
    "name",
    "labels",
    "project",
    "priority",
    "workload",
    "distributed",
    "target",
    "source",
    "inputs",
    "outputs",
    "resources",
    "profile",
    "env",
    "shell_env",
    "secrets",
    "python",
    "timeout_s",
    "queue_timeout_s",
    "grace_s",
    "stop_signal",
    "retry",
    "on_unreachable",
    "unreachable_timeout_s",
    "depends_on",
    "array",
    "workspace_ttl_s",
    // Reserved; `supported` says so when one is used.
    "container",
    "run_as",
    "mounts",
    "notify",
    "hold",
];

const TARGETS: &[(&str, Target)] =
    &[("local", Target::Local), ("remote", Target::Remote), ("cloud", Target::Cloud), ("any", Target::Any)];

const SIGNALS: &[(&str, StopSignal)] = &[
    ("TERM", StopSignal::Term),
    ("INT", StopSignal::Int),
    ("HUP", StopSignal::Hup),
    ("QUIT", StopSignal::Quit),
    ("USR1", StopSignal::Usr1),
    ("USR2", StopSignal::Usr2),
    ("KILL", StopSignal::Kill),
];

const RETRY_FIELDS: &[&str] = &["max_attempts", "retry_on", "backoff_s", "avoid_worker", "memory_growth"];

const OWNERS: [&str; 4] = ["user", "infrastructure", "platform", "operator"];

/// Reads a whole spec. `batch_index` is its place in a batch.
pub(super) fn read(
    reader: &mut Reader,
    node: Node<'_>,
    allow_absolute_cwd: bool,
    batch_index: Option<usize>,
) -> Option<JobSpec> {
    let fields = reader.fields(node, FIELDS)?;
    fields.read(reader, "api_version", identity::api_version);
    let workload = fields.require(
        reader,
        "workload",
        "an object with `command` or `function`, such as `{\"command\": {\"argv\": [\"python\", \"train.py\"]}}`",
        |reader, node| workload::read(reader, node, allow_absolute_cwd),
    );
    // Without a workload there is no spec, but the rest is read for its faults all the same.
    let has_workload = workload.is_some();
    let mut spec = workload.map_or_else(|| JobSpec::command::<String>([]), JobSpec::new);

    spec.name = fields.read(reader, "name", identity::name);
    fields.set(reader, "labels", &mut spec.labels, identity::labels);
    fields.set(reader, "project", &mut spec.project, identity::project);
    fields.set(reader, "priority", &mut spec.priority, identity::priority);
    spec.distributed = fields.read(reader, "distributed", relations::distributed);
    fields.set(reader, "target", &mut spec.target, |reader, node| reader.word(node, TARGETS));
    spec.source = fields.read(reader, "source", Reader::digest);
    fields.set(reader, "inputs", &mut spec.inputs, |reader, node| files::inputs(reader, node, batch_index));
    fields.set(reader, "outputs", &mut spec.outputs, files::outputs);
    let named = node.value.get("profile").and_then(Value::as_str);
    let one_gpu = named.is_some_and(|name| vendor_of(name).is_some());
    fields
        .set(reader, "resources", &mut spec.resources, |reader, node| resources::read(reader, node, one_gpu));
    let asked = &spec.resources;
    spec.profile = fields.read(reader, "profile", |reader, node| environment::profile(reader, node, asked));
    let with_gpus =
        asked.gpus.is_some() || spec.profile.as_deref().is_some_and(|name| vendor_of(name).is_some());
    fields.set(reader, "env", &mut spec.env, |reader, node| environment::env(reader, node, with_gpus));
    environment::check_size(reader, node.at, &spec);
    let env = &spec.env;
    fields.set(reader, "shell_env", &mut spec.shell_env, |reader, node| {
        environment::shell_env(reader, node, env)
    });
    fields.set(reader, "secrets", &mut spec.secrets, |reader, node| environment::secrets(reader, node, env));
    spec.python = fields.read(reader, "python", environment::python);
    spec.timeout_s = fields.read(reader, "timeout_s", above_zero);
    spec.queue_timeout_s = fields.read(reader, "queue_timeout_s", above_zero);
    fields.set(reader, "grace_s", &mut spec.grace_s, from_zero);
    fields.set(reader, "stop_signal", &mut spec.stop_signal, stop_signal);
    let asked = spec.resources.memory_bytes;
    fields.set(reader, "retry", &mut spec.retry, |reader, node| retry(reader, node, asked));
    spec.on_unreachable = fields.read(reader, "on_unreachable", |reader, node| {
        reader.word(node, &[("replace", OnUnreachable::Replace), ("wait", OnUnreachable::Wait)])
    });
    fields.set(reader, "unreachable_timeout_s", &mut spec.unreachable_timeout_s, from_zero);
    fields.set(reader, "depends_on", &mut spec.depends_on, |reader, node| {
        relations::depends_on(reader, node, batch_index)
    });
    spec.array = fields.read(reader, "array", relations::array);
    if let Some(function) = spec.workload.function() {
        if let Some(array) = &spec.array {
            function::check_items(reader, Pointer::Field(&node.at, "array"), array, function.serializer);
        }
        if function.reuse && with_gpus {
            let at = Pointer::Field(&node.at, "workload");
            let at = Pointer::Field(&at, "function");
            let allowed = "false with GPUs: a process that waits for its next task would keep theirs";
            reader.fault(Pointer::Field(&at, "reuse"), "invalid", allowed);
        }
        if spec.distributed.is_some() {
            let at = Pointer::Field(&node.at, "distributed");
            reader.fault(
                at,
                "not_supported",
                "this build does not have distributed functions yet; leave it out",
            );
        }
    }
    fields.set(reader, "workspace_ttl_s", &mut spec.workspace_ttl_s, from_zero);
    has_workload.then_some(spec)
}

fn above_zero(reader: &mut Reader, node: Node<'_>) -> Option<Seconds> {
    reader.seconds(node, Seconds::from_millis(1))
}

fn from_zero(reader: &mut Reader, node: Node<'_>) -> Option<Seconds> {
    reader.seconds(node, Seconds::default())
}

fn stop_signal(reader: &mut Reader, node: Node<'_>) -> Option<StopSignal> {
    let given = reader.text(node)?;
    let upper = given.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    match SIGNALS.iter().find(|(word, _)| *word == bare) {
        Some((_, signal)) => Some(*signal),
        None => {
            let known = listed(SIGNALS.iter().map(|(word, _)| *word));
            reader.invalid(node.at, format!("{} is not one of {known}", quoted(given)))
        }
    }
}

/// `asked` is the memory request.
fn retry(reader: &mut Reader, node: Node<'_>, asked: Option<u64>) -> Option<Retry> {
    let fields = reader.fields(node, RETRY_FIELDS)?;
    let mut retry = Retry::default();
    fields.set(reader, "max_attempts", &mut retry.max_attempts, |reader, node| {
        reader.count(node, 1..=limits::ATTEMPTS).and_then(|attempts| u32::try_from(attempts).ok())
    });
    fields.set(reader, "retry_on", &mut retry.retry_on, |reader, node| {
        reader.list(node, limits::ENTRIES, |reader, node, _| retry_cause(reader, node))
    });
    fields.set(reader, "backoff_s", &mut retry.backoff_s, from_zero);
    fields.set(reader, "avoid_worker", &mut retry.avoid_worker, Reader::boolean);
    retry.memory_growth = fields.read(reader, "memory_growth", |reader, node| {
        let growth = memory_growth(reader, node)?;
        let asked = match asked {
            Some(asked) => asked,
            None => {
                return reader
                    .invalid(node.at, "needs `resources.memory_bytes`: there is no request that could grow");
            }
        };
        if growth.max_bytes <= asked {
            let at = Pointer::Field(&node.at, "max_bytes");
            return reader
                .invalid(at, format!("expected more than `resources.memory_bytes`, which is {asked}"));
        }
        Some(growth)
    });
    if fields.has("retry_on") && retry.max_attempts <= 1 {
        let at = Pointer::Field(&node.at, "retry_on");
        reader.warn(at, "acts only with `max_attempts` above 1 (`--retries`): nothing is retried");
    }
    let acts = retry.max_attempts > 1
        && retry.retry_on.iter().any(|cause| ["any", "user", "oom_killed"].contains(&cause.as_str()));
    if retry.memory_growth.is_some() && !acts {
        reader.warn(
            node.at,
            "`memory_growth` acts only with `max_attempts` above 1 and `oom_killed` (or `user`, `any`) in `retry_on`",
        );
    }
    Some(retry)
}

/// A reason, an owner, or `any`.
fn retry_cause(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let given = reader.text(node)?;
    let known = || EndReason::ALL.iter().map(|reason| reason.word()).chain(OWNERS).chain(["any"]);
    if known().any(|word| word == given) {
        return Some(given.to_owned());
    }
    let part = || known().find(|word| given.len() >= 3 && word.contains(given));
    let meant = nearest(given, known())
        .or_else(part)
        .map_or(String::new(), |word| format!("did you mean `{word}`? "));
    let reasons = EndReason::ALL.iter().filter(|reason| **reason != EndReason::Completed);
    let reasons = listed(reasons.map(|reason| reason.word()));
    let allowed = format!("allowed are `any`, the owners {}, and the end reasons {reasons}", listed(OWNERS));
    reader.invalid(node.at, format!("{} is no cause to retry; {meant}{allowed}", quoted(given)))
}

fn memory_growth(reader: &mut Reader, node: Node<'_>) -> Option<MemoryGrowth> {
    let fields = reader.fields(node, &["factor", "max_bytes"])?;
    let factor = fields.require(
        reader,
        "factor",
        "a number above 1, at most 100, with up to 3 decimals",
        |reader, node| {
            let exact = |factor: &f64| (factor * 1000.0 - (factor * 1000.0).round()).abs() < 1e-5;
            let factor =
                node.value.as_f64().filter(|factor| *factor >= 1.001 && *factor <= 100.0 && exact(factor));
            factor.or_else(|| {
                reader.invalid(node.at, "expected a number above 1, at most 100, with up to 3 decimals")
            })
        },
    );
    let max_bytes = fields.require(reader, "max_bytes", "the most memory to ask for", Reader::bytes);
    Some(MemoryGrowth { factor: factor?, max_bytes: max_bytes? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::domain::spec::{ReadOptions, read};

    #[test]
    fn causes_to_retry_without_retries_are_warned_about() {
        let warned_at = |retry| {
            let spec = json!({"workload": {"command": {"argv": ["true"]}}, "retry": retry});
            let read = read(&spec, "", ReadOptions::default()).unwrap();
            read.warnings.into_iter().map(|warning| warning.pointer).collect::<Vec<_>>()
        };
        assert_eq!(warned_at(json!({"retry_on": ["oom_killed"]})), ["/retry/retry_on"]);
        assert!(warned_at(json!({"max_attempts": 2, "retry_on": ["oom_killed"]})).is_empty());
    }
}
