//! What runs: a command or a Python function.

use super::reader::{Fields, Node, Reader};
use super::{credentials, function, limits, paths};
use crate::contract::spec::{Command, Run, Workload};

pub(super) fn read(reader: &mut Reader, node: Node<'_>, allow_absolute_cwd: bool) -> Option<Workload> {
    let fields = reader.fields(node, &["command", "function"])?;
    if fields.has("command") == fields.has("function") {
        reader.fault(node.at, "invalid", "exactly one of `command` and `function` is needed");
    }
    let command = fields.read(reader, "command", |reader, node| command(reader, node, allow_absolute_cwd));
    // Beside a command it is no function job, and its faults are not worth telling.
    let function = command.is_none().then(|| fields.read(reader, "function", function::read)).flatten();
    command.map(Workload::Command).or(function.map(|function| Workload::Function(Box::new(function))))
}

fn command(reader: &mut Reader, node: Node<'_>, allow_absolute_cwd: bool) -> Option<Command> {
    let fields = reader.fields(node, &["argv", "shell", "cwd"])?;
    if fields.has("argv") == fields.has("shell") {
        reader.fault(
            node.at,
            "invalid",
            "exactly one of `argv` (a program and its arguments) and `shell` (a shell text) is needed",
        );
    }
    let run = run(reader, &fields);
    let cwd = fields.node("cwd").and_then(|node| paths::cwd(reader, node, allow_absolute_cwd));
    Some(Command { run: run?, cwd })
}

fn run(reader: &mut Reader, fields: &Fields<'_>) -> Option<Run> {
    let argv = fields.read(reader, "argv", |reader, node| {
        let argv = reader.list(node, limits::ARGV_ENTRIES, argument)?;
        if node.value.as_array().is_some_and(Vec::is_empty) {
            return reader.invalid(node.at, "an empty list; it begins with the program to run");
        }
        Some(argv)
    });
    let shell = fields.read(reader, "shell", |reader, node| {
        let text = argument_text(reader, node)?;
        if text.trim().is_empty() {
            return reader.invalid(node.at, "an empty text; give what the shell shall run");
        }
        Some(text)
    });
    argv.map(Run::Argv).or(shell.map(Run::Shell))
}

fn argument(reader: &mut Reader, node: Node<'_>, index: usize) -> Option<String> {
    let text = argument_text(reader, node)?;
    if index == 0 && text.is_empty() {
        return reader.invalid(node.at, "an empty name; the first entry is the program to run");
    }
    if let Some(advice) = credentials::advice_on_argument(&text) {
        reader.warn(node.at, advice);
    }
    Some(text)
}

fn argument_text(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let text = reader.nul_free(node)?;
    if text.len() >= limits::ARGUMENT_BYTES {
        let (most, len) = (limits::ARGUMENT_BYTES - 1, text.len());
        return reader.invalid(node.at, format!("{len} bytes; Linux takes at most {most} in one argument"));
    }
    Some(text.to_owned())
}
