//! What the contract names and this build does not have yet: one table. A row goes when its feature comes.
//! It looks at the document as sent, so that a field is refused even where it is faulty too.

use serde_json::Value;

use super::reader::{Node, Pointer, Reader};

struct NotYet {
    /// From the root; `*` is every element of a list.
    path: &'static [&'static str],
    /// Whether a value asks for nothing.
    default: fn(&Value) -> bool,
    /// What it would be, for people.
    what: &'static str,
    /// Whether it is also what a document means that does not name the field.
    absent: bool,
    /// What to do meanwhile.
    instead: &'static str,
}

const fn row(path: &'static [&'static str], default: fn(&Value) -> bool, what: &'static str) -> NotYet {
    NotYet { path, default, what, absent: false, instead: "leave it out" }
}

const NOT_YET: &[NotYet] = &[
    NotYet {
        absent: true,
        instead: "the launcher `env` (`--distributed=env`) starts the command once per node, with its rank and peers in the \
                  environment",
        ..row(
            &["distributed", "launcher"],
            |value| !(value.is_null() || value == "torchrun" || value == "direct"),
            "the launchers `torchrun` (which is meant when none is named) and `direct`",
        )
    },
    row(&["target"], |value| value != "cloud", "provider instances"),
    row(&["inputs", "*", "url"], blank, "inputs by URL"),
    row(&["resources", "gpus", "share"], blank, "shares of a GPU"),
    row(&["resources", "disk_bytes"], blank, "disk space as a resource"),
    row(&["container"], blank, "containers"),
    row(&["run_as"], blank, "running as another user"),
    row(&["mounts"], blank, "mounts"),
    row(&["notify"], blank, "notifications"),
    row(&["hold"], blank, "held jobs"),
];

/// Leaves a `not_supported` fault at every field that asks for something not built yet.
pub(super) fn check(reader: &mut Reader, root: Node<'_>) {
    for not_yet in NOT_YET {
        walk(reader, root, not_yet.path, not_yet);
    }
}

/// As deep as the table's paths, never as deep as the document.
fn walk(reader: &mut Reader, node: Node<'_>, path: &[&str], not_yet: &NotYet) {
    match path {
        [] if (not_yet.default)(node.value) => {}
        [] => {
            let NotYet { what, instead, .. } = not_yet;
            let told = format!("this build does not have {what} yet; {instead}");
            reader.fault(node.at, "not_supported", told);
        }
        ["*", rest @ ..] => {
            for (index, value) in node.value.as_array().into_iter().flatten().enumerate() {
                walk(reader, Node { value, at: Pointer::Item(&node.at, index) }, rest, not_yet);
            }
        }
        [name, rest @ ..] => {
            let unnamed =
                (not_yet.absent && rest.is_empty() && node.value.is_object()).then_some(&Value::Null);
            if let Some(value) = node.value.get(name).or(unnamed) {
                walk(reader, Node { value, at: Pointer::Field(&node.at, name) }, rest, not_yet);
            }
        }
    }
}

/// Null, false, or nothing in it.
fn blank(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
