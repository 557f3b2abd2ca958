//! What a task finds around it: variables, secrets, the Python environment, the profile.

use std::collections::{BTreeMap, HashSet};

use super::reader::{Node, Pointer, Reader, quoted};
use super::{credentials, limits, paths};
use crate::contract::spec::{JobSpec, Python, Resources, Run, Secret, Workload};
use crate::domain::placement::{PROFILES, vendor_of};
use crate::domain::python::lock_kind;
use crate::domain::secrets::SecretRef;

/// Which GPUs a program sees is GPUlayer's to say: it grants them.
const DEVICE_VARIABLES: [&str; 5] = [
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
];

/// In which order CUDA counts; the indices it is given hold in one of them alone.
const ORDER_VARIABLE: &str = "CUDA_DEVICE_ORDER";
const PCI_ORDER: &str = "PCI_BUS_ID";

/// What every task is given besides: without it, or with something else in it, programs fail in odd ways.
const OF_THE_WORKER: [&str; 6] = ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", ORDER_VARIABLE];

/// What the worker sets itself.
const RESERVED_PREFIX: &str = "GPULAYER_";

pub(super) fn env(reader: &mut Reader, node: Node<'_>, with_gpus: bool) -> Option<BTreeMap<String, String>> {
    reader.map(node, limits::ENV_ENTRIES, |reader, name, node| {
        check_name(reader, node.at, name);
        let value = reader.nul_free(node)?;
        if name.len() + value.len() + 2 > limits::ARGUMENT_BYTES {
            let most = limits::ARGUMENT_BYTES - 2;
            return reader.invalid(node.at, format!("Linux takes at most {most} bytes in one name and value"));
        }
        if DEVICE_VARIABLES.contains(&name) && (with_gpus || !value.is_empty()) {
            return reader.invalid(
                node.at,
                "set by GPUlayer to the GPUs it grants; leave it out and ask with `resources.gpus` (an empty value is allowed without GPUs)",
            );
        }
        if name == ORDER_VARIABLE && with_gpus && value != PCI_ORDER {
            return reader.invalid(
                node.at,
                "set by GPUlayer to `PCI_BUS_ID`: the GPUs it grants are counted in that order; leave it out",
            );
        }
        if let Some(advice) = credentials::advice(name, value) {
            reader.warn(node.at, advice);
        }
        Some(value.to_owned())
    })
}

/// Names of `env`.
pub(super) fn shell_env(
    reader: &mut Reader,
    node: Node<'_>,
    env: &BTreeMap<String, String>,
) -> Option<Vec<String>> {
    reader.list(node, limits::ENV_ENTRIES, |reader, node, _| {
        let name = reader.text(node)?;
        if !env.contains_key(name) {
            let detail =
                format!("{} is not in `env`; this names the ones that came from a shell", quoted(name));
            return reader.invalid(node.at, detail);
        }
        Some(name.to_owned())
    })
}

fn check_name(reader: &mut Reader, at: Pointer<'_>, name: &str) {
    if name.is_empty() || name.contains(['=', '\0']) {
        reader.fault(at, "invalid", "a variable's name is not empty and has no `=` and no NUL character");
    } else if name.starts_with(RESERVED_PREFIX) {
        reader.fault(at, "invalid", "names that begin with `GPULAYER_` are reserved; the worker sets them");
    }
}

/// Arguments and variables share one bound of the kernel, so they are counted together.
pub(super) fn check_size(reader: &mut Reader, at: Pointer<'_>, spec: &JobSpec) {
    let run = match &spec.workload {
        Workload::Command(command) => match &command.run {
            Run::Argv(argv) => argv.iter().map(|argument| argument.len() + 1).sum(),
            Run::Shell(text) => text.len() + 1,
        },
        Workload::Function(_) => 0,
    };
    let env: usize = spec.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    if run + env > limits::ARGUMENTS_BYTES {
        let most = limits::ARGUMENTS_BYTES;
        let detail = format!(
            "the command has {run} bytes and `env` {env}; together at most {most} are allowed. Put large values into an input"
        );
        reader.fault(Pointer::Field(&at, if run > env { "workload" } else { "env" }), "invalid", detail);
    }
}

pub(super) fn secrets(
    reader: &mut Reader,
    node: Node<'_>,
    env: &BTreeMap<String, String>,
) -> Option<Vec<Secret>> {
    let mut names = HashSet::new();
    reader.list(node, limits::ENTRIES, |reader, node, _| {
        let fields = reader.fields(node, &["name", "ref"])?;
        let name = fields.require(reader, "name", "the variable the task sees", |reader, node| {
            let name = reader.text(node)?;
            if !is_identifier(name) {
                return reader.invalid(
                    node.at,
                    "the name of a secret is a variable's: letters, digits and `_`, not beginning with a digit",
                );
            }
            check_name(reader, node.at, name);
            if DEVICE_VARIABLES.contains(&name) || OF_THE_WORKER.contains(&name) {
                return reader.invalid(node.at, format!("{} is no secret; the worker sets it", quoted(name)));
            }
            if env.contains_key(name) {
                return reader
                    .invalid(node.at, format!("{} is in `env` too; keep one of them", quoted(name)));
            }
            if !names.insert(name.to_owned()) {
                return reader.invalid(node.at, format!("an earlier secret is called {} too", quoted(name)));
            }
            Some(name.to_owned())
        });
        let reference = fields.require(reader, "ref", SECRET_ALLOWED, secret_reference);
        Some(Secret { name: name?, reference: reference? })
    })
}

const SECRET_ALLOWED: &str =
    "`name:NAME` (from the worker's own [secrets] table), `env:NAME` or `file:/PATH` (absolute)";

fn secret_reference(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let given = reader.line(node, limits::PATH_BYTES)?;
    if SecretRef::parse(&given).is_some() {
        return Some(given);
    }
    // What was given may be the secret itself, so it is not repeated.
    let hint = match given.split_once(':') {
        Some(("file", _)) => "; a file is given by its absolute path on the worker",
        _ => "; a value itself is never part of a spec",
    };
    reader.invalid(node.at, format!("expected {SECRET_ALLOWED}{hint}"))
}

fn is_identifier(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(letter) && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

pub(super) fn python(reader: &mut Reader, node: Node<'_>) -> Option<Box<Python>> {
    let fields = reader.fields(node, &["interpreter", "requirements", "lockfile", "uv"])?;
    let ways = ["requirements", "lockfile", "uv"].into_iter().filter(|name| fields.has(name)).count();
    if ways > 1 {
        reader.fault(node.at, "invalid", "at most one of `requirements`, `lockfile` and `uv` is allowed");
    }
    let interpreter = fields.read(reader, "interpreter", interpreter);
    let requirements = fields.read(reader, "requirements", |reader, node| {
        let lines = reader.list(node, limits::ENTRIES, requirement)?;
        let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
        if bytes > limits::REQUIREMENTS_BYTES {
            let most = limits::REQUIREMENTS_BYTES;
            return reader.invalid(
                node.at,
                format!(
                    "has {bytes} bytes; at most {most} are allowed. Send a lock file with the source instead"
                ),
            );
        }
        Some(lines)
    });
    let lockfile = fields.read(reader, "lockfile", lockfile);
    let uv = fields.read(reader, "uv", |reader, node| match node.value.as_str() {
        // The source's own root, which no other path may be.
        Some("." | "./") => Some(".".to_owned()),
        _ => paths::below_workspace(reader, node),
    });
    Some(Box::new(Python { interpreter, requirements: requirements.unwrap_or_default(), lockfile, uv }))
}

fn interpreter(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let text = reader.line(node, limits::PATH_BYTES)?;
    if (text.contains('/') && !text.starts_with('/')) || text.starts_with('-') {
        return reader.invalid(
            node.at,
            "expected a version such as `3.11`, which uv finds or downloads, or the absolute path of an interpreter on the worker",
        );
    }
    Some(text)
}

fn requirement(reader: &mut Reader, node: Node<'_>, _: usize) -> Option<String> {
    let line = reader.line(node, limits::PATH_BYTES)?;
    if line.starts_with("-e") || line.starts_with("--editable") {
        return reader.invalid(
            node.at,
            "an editable install points into the workspace, which goes away; name the folder without `-e`, or put it on PYTHONPATH with `env`",
        );
    }
    Some(line)
}

fn lockfile(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let path = paths::below_workspace(reader, node)?;
    if lock_kind(&path).is_none() {
        return reader.invalid(
            node.at,
            "expected `uv.lock`, `pylock.toml`, `pylock.NAME.toml` or a `.txt` file with exact versions; other tools export one (`poetry export`, `pip freeze`, `uv export`)",
        );
    }
    Some(path)
}

/// What it adds must not contradict what `resources` asks for.
pub(super) fn profile(reader: &mut Reader, node: Node<'_>, asked: &Resources) -> Option<String> {
    let words: Vec<(&str, &str)> = PROFILES.iter().map(|word| (*word, *word)).collect();
    let profile = reader.word(node, &words)?;
    let wanted = asked.gpus.as_ref().and_then(|gpus| gpus.vendor.as_deref());
    if let (Some(own), Some(wanted)) = (vendor_of(profile), wanted)
        && own != wanted
    {
        return reader.invalid(
            node.at,
            format!(
                "is for GPUs of `{own}`, and `resources.gpus.vendor` asks for `{wanted}`; keep one of them"
            ),
        );
    }
    Some(profile.to_owned())
}
