//! Data in and out: `inputs` and `outputs`.

use std::collections::{BTreeMap, HashSet};

use super::reader::{Node, Pointer, Reader, quoted};
use super::{limits, paths, relations};
use crate::contract::spec::{Input, InputFrom, InputMode, InputOrigin, Output};

pub(super) fn inputs(reader: &mut Reader, node: Node<'_>, batch_index: Option<usize>) -> Option<Vec<Input>> {
    let mut taken = Taken::default();
    reader.list(node, limits::ENTRIES, |reader, node, index| {
        let fields = reader.fields(node, &["artifact", "from", "path", "unpack", "mode", "url"])?;
        // `url` is reserved: `supported` refuses it, so it need not also count as a missing origin.
        if !fields.has("url") && fields.has("artifact") == fields.has("from") {
            reader.fault(node.at, "invalid", "exactly one of `artifact` and `from` is needed");
        }
        let artifact = fields.read(reader, "artifact", Reader::digest).map(InputOrigin::Artifact);
        let from = fields.read(reader, "from", |reader, node| from(reader, node, batch_index));
        let path = fields.require(reader, "path", "where it goes in the workspace", |reader, node| {
            let path = paths::below_workspace(reader, node)?;
            match taken.clash(&path, index) {
                Some(other) => {
                    reader.invalid(node.at, format!("this path and that of input {other} lie in one another"))
                }
                None => Some(path),
            }
        });
        let unpack = fields.read(reader, "unpack", Reader::boolean).unwrap_or_default();
        let mode = fields
            .read(reader, "mode", |reader, node| {
                reader.word(node, &[("ro", InputMode::Ro), ("rw", InputMode::Rw)])
            })
            .unwrap_or_default();
        Some(Input { origin: artifact.or(from.map(InputOrigin::From))?, path: path?, unpack, mode })
    })
}

fn from(reader: &mut Reader, node: Node<'_>, batch_index: Option<usize>) -> Option<InputFrom> {
    let fields = reader.fields(node, &["job", "output"])?;
    let job = fields.require(reader, "job", relations::JOB_ALLOWED, |reader, node| {
        relations::job_reference(reader, node, batch_index)
    });
    let output = fields.require(reader, "output", "the name of one of its outputs", |reader, node| {
        reader.line(node, limits::PATH_BYTES)
    });
    Some(InputFrom { job: job?, output: output? })
}

/// Input paths so far, each with its input.
#[derive(Default)]
struct Taken(BTreeMap<String, usize>);

impl Taken {
    /// An earlier input that is the same, above or below; else the path is taken.
    fn clash(&mut self, path: &str, index: usize) -> Option<usize> {
        let same = self.0.get(path);
        let above = || path.match_indices('/').find_map(|(end, _)| self.0.get(&path[..end]));
        let below = || {
            let folder = format!("{path}/");
            let (found, index) = self.0.range(folder.clone()..).next()?;
            found.starts_with(&folder).then_some(index)
        };
        let other = same.or_else(above).or_else(below).copied();
        if other.is_none() {
            self.0.insert(path.to_owned(), index);
        }
        other
    }
}

pub(super) fn outputs(reader: &mut Reader, node: Node<'_>) -> Option<Vec<Output>> {
    let mut names = HashSet::new();
    reader.list(node, limits::ENTRIES, |reader, node, _| {
        let fields = reader.fields(node, &["path", "name", "optional"])?;
        let path = fields.require(reader, "path", "a path or a glob in the workspace", paths::output);
        let name = fields.read(reader, "name", paths::output_name);
        let optional = fields.read(reader, "optional", Reader::boolean).unwrap_or_default();
        let output = Output { path: path?, name, optional };
        if !names.insert(output.shown_name().to_owned()) {
            let field = if output.name.is_some() { "name" } else { "path" };
            let given = quoted(output.shown_name());
            let detail = format!("an earlier output is called {given} too; give each its own `name`");
            reader.fault(Pointer::Field(&node.at, field), "invalid", detail);
        }
        Some(output)
    })
}
