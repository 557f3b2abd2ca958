//! A small layer over JSON values that reads on after a fault, so that one answer names them all. A value comes
//! as a [`Node`] with its place; a read that fails has left a fault and gives `None`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::nearest::nearest;
use super::{ReadSpec, limits};
use crate::contract::artifact::Digest;
use crate::contract::problem::{Fault, Warning};
use crate::contract::quantity::Seconds;
use crate::contract::spec::JobSpec;

/// A place in the document (RFC 6901): a chain on the stack, written out only when there is something to say.
#[derive(Clone, Copy)]
pub(super) enum Pointer<'a> {
    /// The document itself, below this prefix.
    Root(&'a str),
    /// A field of an object.
    Field(&'a Pointer<'a>, &'a str),
    /// An element of a list.
    Item(&'a Pointer<'a>, usize),
}

impl fmt::Display for Pointer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pointer::Root(prefix) => f.write_str(prefix),
            Pointer::Field(parent, name) => {
                write!(f, "{parent}/{}", name.replace('~', "~0").replace('/', "~1"))
            }
            Pointer::Item(parent, index) => write!(f, "{parent}/{index}"),
        }
    }
}

/// A value and its place.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) value: &'a Value,
    pub(super) at: Pointer<'a>,
}

/// What was found so far.
pub(super) struct Reader {
    strict: bool,
    faults: Vec<Fault>,
    warnings: Vec<Warning>,
    unlisted: bool,
}

impl Reader {
    pub(super) fn new(strict: bool) -> Self {
        Self { strict, faults: Vec::new(), warnings: Vec::new(), unlisted: false }
    }

    /// The spec if there is no fault, else all of them.
    pub(super) fn finish(mut self, root: Node<'_>, spec: Option<JobSpec>) -> Result<ReadSpec, Vec<Fault>> {
        match spec {
            Some(spec) if self.faults.is_empty() => Ok(ReadSpec { spec, warnings: self.warnings }),
            _ => {
                if self.unlisted || self.faults.is_empty() {
                    self.faults.push(Fault {
                        pointer: root.at.to_string(),
                        code: "invalid".to_owned(),
                        detail: "there are more faults than are listed here".to_owned(),
                    });
                }
                Err(self.faults)
            }
        }
    }

    pub(super) fn fault(&mut self, at: Pointer<'_>, code: &str, detail: impl Into<String>) {
        if self.faults.len() < limits::REMARKS {
            let (pointer, code, detail) = (at.to_string(), code.to_owned(), detail.into());
            self.faults.push(Fault { pointer, code, detail });
        } else {
            self.unlisted = true;
        }
    }

    /// The commonest end of a failed read.
    pub(super) fn invalid<T>(&mut self, at: Pointer<'_>, detail: impl Into<String>) -> Option<T> {
        self.fault(at, "invalid", detail);
        None
    }

    pub(super) fn warn(&mut self, at: Pointer<'_>, detail: impl Into<String>) {
        if self.warnings.len() < limits::REMARKS {
            self.warnings.push(Warning { pointer: at.to_string(), detail: detail.into() });
        }
    }

    fn wrong_type<T>(&mut self, node: Node<'_>, expected: &str) -> Option<T> {
        self.invalid(node.at, format!("expected {expected}, got {}", described(node.value)))
    }

    /// An object with these fields; others are noted with the nearest known name.
    pub(super) fn fields<'a>(&mut self, node: Node<'a>, known: &[&str]) -> Option<Fields<'a>> {
        let Some(map) = node.value.as_object() else {
            return self.wrong_type(node, &format!("an object with {}", listed(known.iter().copied())));
        };
        let fields = Fields { map, at: node.at };
        let mut unknown = map.keys().filter(|name| !known.contains(&name.as_str()));
        for name in unknown.by_ref().take(limits::UNKNOWN_FIELDS) {
            let at = Pointer::Field(&fields.at, name);
            let meant = match nearest(name, known.iter().copied()) {
                Some(word) => format!("did you mean `{word}`?"),
                None => format!("known are {}", listed(known.iter().copied())),
            };
            if self.strict {
                self.fault(at, "unknown_field", format!("{} is not known here; {meant}", quoted(name)));
            } else {
                self.warn(at, format!("{} is not known here and was ignored; {meant}", quoted(name)));
            }
        }
        self.unlisted |= unknown.next().is_some();
        Some(fields)
    }

    pub(super) fn text<'a>(&mut self, node: Node<'a>) -> Option<&'a str> {
        match node.value.as_str() {
            Some(text) => Some(text),
            None => self.wrong_type(node, "a string"),
        }
    }

    /// Text that a program or the kernel will see: without NUL.
    pub(super) fn nul_free<'a>(&mut self, node: Node<'a>) -> Option<&'a str> {
        let text = self.text(node)?;
        if text.contains('\0') {
            return self.invalid(node.at, "a NUL character cannot be passed to a program; leave it out");
        }
        Some(text)
    }

    /// A name for people: one line, not empty, at most `most` bytes.
    pub(super) fn line(&mut self, node: Node<'_>, most: usize) -> Option<String> {
        let text = self.text(node)?;
        if text.is_empty() || text.len() > most || text.chars().any(char::is_control) {
            return self.invalid(node.at, format!("expected 1 to {most} bytes without control characters"));
        }
        Some(text.to_owned())
    }

    /// One of a closed list of words.
    pub(super) fn word<T: Copy>(&mut self, node: Node<'_>, words: &[(&str, T)]) -> Option<T> {
        let known = || words.iter().map(|(word, _)| *word);
        let Some(given) = node.value.as_str() else {
            return self.wrong_type(node, &format!("one of {}", listed(known())));
        };
        match words.iter().find(|(word, _)| *word == given) {
            Some((_, meaning)) => Some(*meaning),
            None => {
                let meant =
                    nearest(given, known()).map_or(String::new(), |word| format!("; did you mean `{word}`?"));
                self.invalid(node.at, format!("{} is not one of {}{meant}", quoted(given), listed(known())))
            }
        }
    }

    pub(super) fn boolean(&mut self, node: Node<'_>) -> Option<bool> {
        match node.value {
            Value::Bool(value) => Some(*value),
            _ => self.wrong_type(node, "true or false"),
        }
    }

    /// A whole number; `80e9` counts as one.
    pub(super) fn integer(&mut self, node: Node<'_>, allowed: RangeInclusive<i64>) -> Option<i64> {
        let expected = format!("a whole number from {} to {}", allowed.start(), allowed.end());
        let Value::Number(number) = node.value else {
            return self.wrong_type(node, &expected);
        };
        let whole = number.as_i64().or_else(|| {
            let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15)?;
            Some(float as i64)
        });
        match whole {
            Some(whole) if allowed.contains(&whole) => Some(whole),
            _ => self.wrong_type(node, &expected),
        }
    }

    /// A whole number that counts things.
    pub(super) fn count(&mut self, node: Node<'_>, allowed: RangeInclusive<u64>) -> Option<u64> {
        let bound = |end: u64| i64::try_from(end).unwrap_or(i64::MAX);
        let count = self.integer(node, bound(*allowed.start())..=bound(*allowed.end()))?;
        u64::try_from(count).ok()
    }

    /// A size in bytes, above zero.
    pub(super) fn bytes(&mut self, node: Node<'_>) -> Option<u64> {
        match node.value.is_number() {
            true => self.count(node, 1..=(1 << 53)),
            false => self.wrong_type(node, "a whole number of bytes above 0"),
        }
    }

    /// A span of at least `least` and at most ten years.
    pub(super) fn seconds(&mut self, node: Node<'_>, least: Seconds) -> Option<Seconds> {
        let expected = match least.millis() {
            0 => "a number of seconds from 0 to ten years",
            _ => "a number of seconds above 0 (at least 0.001), at most ten years",
        };
        let seconds = node.value.as_f64().and_then(Seconds::from_f64).filter(|seconds| *seconds >= least);
        seconds.or_else(|| self.wrong_type(node, expected))
    }

    pub(super) fn digest(&mut self, node: Node<'_>) -> Option<Digest> {
        let text = self.text(node)?;
        text.parse().map_or_else(
            |_| {
                self.invalid(
                    node.at,
                    format!("{} is no `artifact://sha256/` with 64 lower-case hex digits", quoted(text)),
                )
            },
            Some,
        )
    }

    /// A list of at most `most`, each element read by `each`. A longer one is not looked into.
    pub(super) fn list<T>(
        &mut self,
        node: Node<'_>,
        most: usize,
        mut each: impl FnMut(&mut Self, Node<'_>, usize) -> Option<T>,
    ) -> Option<Vec<T>> {
        let Some(values) = node.value.as_array() else {
            return self.wrong_type(node, "a list");
        };
        if values.len() > most {
            return self.invalid(
                node.at,
                format!("{} entries are too many; at most {most} are allowed", values.len()),
            );
        }
        let read = |(index, value)| each(self, Node { value, at: Pointer::Item(&node.at, index) }, index);
        Some(values.iter().enumerate().filter_map(read).collect())
    }

    /// A map with free keys of at most `most` entries, each read by `each`.
    pub(super) fn map<T>(
        &mut self,
        node: Node<'_>,
        most: usize,
        mut each: impl FnMut(&mut Self, &str, Node<'_>) -> Option<T>,
    ) -> Option<BTreeMap<String, T>> {
        let Some(map) = node.value.as_object() else {
            return self.wrong_type(node, "an object");
        };
        if map.len() > most {
            return self
                .invalid(node.at, format!("{} entries are too many; at most {most} are allowed", map.len()));
        }
        let read = |(key, value): (&String, _)| {
            let node = Node { value, at: Pointer::Field(&node.at, key) };
            Some((key.clone(), each(self, key, node)?))
        };
        Some(map.iter().filter_map(read).collect())
    }
}

/// An object whose fields are known by name. `null` counts as absent.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    at: Pointer<'a>,
}

impl<'a> Fields<'a> {
    pub(super) fn node(&self, name: &'a str) -> Option<Node<'_>> {
        let value = self.map.get(name).filter(|value| !value.is_null())?;
        Some(Node { value, at: Pointer::Field(&self.at, name) })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Reads a field that may be absent.
    pub(super) fn read<T>(
        &self,
        reader: &mut Reader,
        name: &'a str,
        read: impl FnOnce(&mut Reader, Node<'_>) -> Option<T>,
    ) -> Option<T> {
        read(reader, self.node(name)?)
    }

    /// Reads a field over its default.
    pub(super) fn set<T>(
        &self,
        reader: &mut Reader,
        name: &'a str,
        default: &mut T,
        read: impl FnOnce(&mut Reader, Node<'_>) -> Option<T>,
    ) {
        if let Some(value) = self.read(reader, name, read) {
            *default = value;
        }
    }

    /// Reads a field that must be there; `allowed` says what belongs there.
    pub(super) fn require<T>(
        &self,
        reader: &mut Reader,
        name: &'a str,
        allowed: &str,
        read: impl FnOnce(&mut Reader, Node<'_>) -> Option<T>,
    ) -> Option<T> {
        match self.node(name) {
            Some(node) => read(reader, node),
            None => {
                reader.fault(
                    Pointer::Field(&self.at, name),
                    "missing",
                    format!("`{name}` is required: {allowed}"),
                );
                None
            }
        }
    }
}

/// Words in backticks.
pub(super) fn listed<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// What a person sent, in backticks, cut short and without control characters.
pub(super) fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    if text.chars().nth(64).is_some() { format!("`{shown}…`") } else { format!("`{shown}`") }
}

fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the text {}", quoted(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
