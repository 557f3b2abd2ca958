//! From a field of the spec back to what was typed for it, so that a refusal speaks of flags.

use serde_json::{Map, Value};

use super::spec_args::SpecArgs;
use crate::contract::problem::Fault;

/// A field's pointer, the flag that sets it, and whether it was given. The first that fits is meant.
type Row = (&'static str, &'static str, fn(&SpecArgs) -> bool);

const FLAGS: &[Row] = &[
    ("/workload/command/argv", "the command", |args| !args.argv.is_empty()),
    ("/workload/command/shell", "--shell", |args| args.shell.is_some()),
    ("/workload/command/cwd", "--here", |args| args.here),
    ("/source", "--source", |args| args.source.is_some()),
    ("/name", "--name", |args| args.name.is_some()),
    ("/labels", "--label", |args| !args.label.is_empty()),
    ("/project", "--project", |args| args.project.is_some()),
    ("/priority", "--priority", |args| args.priority.is_some()),
    ("/depends_on", "--after", |args| !args.after.is_empty()),
    ("/array", "--array", |args| args.array.is_some()),
    ("/resources/cpus", "--cpus", |args| args.cpus.is_some()),
    ("/resources/memory_bytes", "--memory", |args| args.memory.is_some()),
    ("/resources/disk_bytes", "--disk", |args| args.disk.is_some()),
    ("/resources/gpus/memory_bytes", "--gpu-memory", |args| args.gpu_memory.is_some()),
    ("/resources/gpus/memory_kind", "--gpu-memory-kind", |args| args.gpu_memory_kind.is_some()),
    ("/resources/gpus", "--gpus", |args| args.gpus.is_some()),
    ("/resources/gpus", "--gpu-memory", |args| args.gpu_memory.is_some()),
    ("/resources/gpus", "--gpu-memory-kind", |args| args.gpu_memory_kind.is_some()),
    ("/resources/frameworks", "--framework", |args| !args.framework.is_empty()),
    ("/resources/worker", "--on", |args| !args.on.is_empty()),
    ("/resources/labels", "--on", |args| !args.on.is_empty()),
    ("/profile", "--profile", |args| args.profile.is_some()),
    ("/target", "--target", |args| args.target.is_some()),
    ("/distributed/nodes", "--nodes", |args| args.nodes.is_some()),
    ("/distributed/processes_per_node", "--nproc-per-node", |args| args.nproc_per_node.is_some()),
    ("/distributed", "--distributed", |args| args.distributed.is_some()),
    ("/distributed", "--nodes", |args| args.nodes.is_some()),
    ("/distributed", "--nproc-per-node", |args| args.nproc_per_node.is_some()),
    ("/env", "--env", |args| !args.env.is_empty()),
    ("/env", "--env-file", |args| !args.env_file.is_empty()),
    ("/secrets", "--secret", |args| !args.secret.is_empty()),
    ("/inputs", "--input", |args| !args.input.is_empty()),
    ("/outputs", "--output", |args| !args.output.is_empty()),
    ("/python/interpreter", "--python", |args| args.python.is_some()),
    ("/python/requirements", "--requirements", |args| args.requirements.is_some()),
    ("/python/uv", "--uv", |args| args.uv.is_some()),
    ("/python", "--python", |args| args.python.is_some()),
    ("/python", "--requirements", |args| args.requirements.is_some()),
    ("/python", "--uv", |args| args.uv.is_some()),
    ("/timeout_s", "--timeout", |args| args.timeout.is_some()),
    ("/queue_timeout_s", "--queue-timeout", |args| args.queue_timeout.is_some()),
    ("/grace_s", "--grace", |args| args.grace.is_some()),
    ("/stop_signal", "--stop-signal", |args| args.stop_signal.is_some()),
    ("/retry/max_attempts", "--retries", |args| args.retries.is_some()),
    ("/retry/retry_on", "--retry-on", |args| !args.retry_on.is_empty()),
];

/// What was typed, and what became of it.
pub(super) struct Typed<'a> {
    pub(super) args: &'a SpecArgs,
    pub(super) spec: &'a Map<String, Value>,
}

impl Typed<'_> {
    /// The same faults, each at what was typed.
    pub(super) fn faults(&self, faults: Vec<Fault>) -> Vec<Fault> {
        let typed = |fault: Fault| Fault { pointer: self.place(&fault.pointer), ..fault };
        faults.into_iter().map(typed).collect()
    }

    /// `--env A B`, `--cpus`, `job.yaml: /priority`, or the pointer itself.
    pub(super) fn place(&self, pointer: &str) -> String {
        for (field, flag, given) in FLAGS {
            let Some(rest) = pointer.strip_prefix(field) else { continue };
            if !(rest.is_empty() || rest.starts_with('/')) || !given(self.args) {
                continue;
            }
            match self.which(flag, field, rest.trim_start_matches('/')) {
                Which::Whole => return (*flag).to_owned(),
                Which::One(text) => return format!("{flag} {text}"),
                Which::FromFile => {}
            }
        }
        match &self.args.spec {
            Some(path) => format!("{}: {pointer}", path.display()),
            None => pointer.to_owned(),
        }
    }

    /// Of a flag that may be repeated, the one that is meant.
    fn which(&self, flag: &str, field: &str, rest: &str) -> Which {
        let first = rest.split('/').next().unwrap_or_default();
        let args = self.args;
        match flag {
            "--input" => self.nth(&args.input, field, first),
            "--output" => self.nth(&args.output, field, first),
            // Behind the name may stand the secret itself.
            "--secret" => match self.nth(&args.secret, field, first) {
                Which::One(text) => Which::One(text.split('=').next().unwrap_or_default().to_owned()),
                which => which,
            },
            "--after" => self.nth(&args.after, field, first),
            "--env" => keyed(&args.env, first),
            "--label" => keyed(&args.label, first),
            "--on" if field == "/resources/labels" => keyed(&args.on, first),
            "--framework" | "--env-file" if !first.is_empty() => Which::One(unescaped(first)),
            _ => Which::Whole,
        }
    }

    /// What flags add to a list stands behind what the file has.
    fn nth(&self, given: &[String], field: &str, index: &str) -> Which {
        let Ok(index) = index.parse::<usize>() else { return Which::Whole };
        let in_all = self.spec.get(&field[1..]).and_then(Value::as_array).map_or(0, Vec::len);
        match index.checked_sub(in_all.saturating_sub(given.len())) {
            Some(index) => given.get(index).map_or(Which::Whole, |text| Which::One(text.clone())),
            None => Which::FromFile,
        }
    }
}

/// A key that no flag gave came from the file.
fn keyed(given: &[String], first: &str) -> Which {
    let key = unescaped(first);
    let is_it = |text: &String| text.split_once('=').map_or(text.as_str(), |(key, _)| key) == key;
    match first {
        "" => Which::Whole,
        _ if given.iter().any(is_it) => Which::One(key),
        _ => Which::FromFile,
    }
}

/// One segment of a JSON pointer.
fn unescaped(segment: &str) -> String {
    segment.replace("~1", "/").replace("~0", "~")
}

enum Which {
    Whole,
    One(String),
    FromFile,
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        spec: SpecArgs,
    }

    #[test]
    fn a_field_is_named_as_it_was_typed() {
        let words = [
            "run",
            "--spec",
            "job.yaml",
            "--cpus",
            "0",
            "--env",
            "A/B=x",
            "--label",
            "k=",
            "-o",
            "../x",
            "-i",
            "a:/b",
            "--gpu-memory",
            "1GB",
            "--retries",
            "500",
            "--",
            "true",
        ];
        let args = Line::try_parse_from(words).unwrap().spec;
        let spec = json!({"outputs": [{"path": "m"}, {"path": "../x"}], "inputs": [{"path": "/b"}]});
        let Value::Object(spec) = spec else { unreachable!() };
        let typed = Typed { args: &args, spec: &spec };
        for (pointer, place) in [
            ("/resources/cpus", "--cpus"),
            ("/env/A~1B", "--env A/B"),
            ("/env/OTHER", "job.yaml: /env/OTHER"),
            ("/labels/k", "--label k"),
            ("/outputs/1/path", "--output ../x"),
            ("/outputs/0/path", "job.yaml: /outputs/0/path"),
            ("/inputs/0/path", "--input a:/b"),
            ("/resources/gpus", "--gpu-memory"),
            ("/retry/max_attempts", "--retries"),
            ("/workload/command/argv/0", "the command"),
            ("/priority", "job.yaml: /priority"),
            ("/names", "job.yaml: /names"),
        ] {
            assert_eq!(typed.place(pointer), place, "{pointer}");
        }
    }
}
