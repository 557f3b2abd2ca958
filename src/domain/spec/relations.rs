//! What makes more than one job or task of a spec: gangs, dependencies, arrays.

use serde_json::Value;

use super::limits;
use super::reader::{Node, Reader, quoted};
use crate::contract::gang::{Backend, Distributed, Launcher, ProcessesPerNode};
use crate::contract::ids::JobId;
use crate::contract::spec::{Array, Dependency, DependencyEnd};

/// What a fault says is allowed where a job is named.
pub(super) const JOB_ALLOWED: &str =
    "a job's id (`job_` and 26 characters), or in a batch `#index` of an earlier entry";

/// A job's id, or `#index` of an earlier entry of the same batch.
pub(super) fn job_reference(
    reader: &mut Reader,
    node: Node<'_>,
    batch_index: Option<usize>,
) -> Option<String> {
    let given = reader.text(node)?;
    let earlier = match given.strip_prefix('#') {
        Some(index) => index.parse::<usize>().is_ok_and(|index| batch_index.is_some_and(|own| index < own)),
        None => given.parse::<JobId>().is_ok(),
    };
    if earlier {
        return Some(given.to_owned());
    }
    reader.invalid(node.at, format!("{} names no job; expected {JOB_ALLOWED}", quoted(given)))
}

pub(super) fn depends_on(
    reader: &mut Reader,
    node: Node<'_>,
    batch_index: Option<usize>,
) -> Option<Vec<Dependency>> {
    reader.list(node, limits::ENTRIES, |reader, node, _| {
        let fields = reader.fields(node, &["job", "when"])?;
        let job = fields
            .require(reader, "job", JOB_ALLOWED, |reader, node| job_reference(reader, node, batch_index));
        let when = fields.read(reader, "when", |reader, node| {
            reader.word(node, &[("succeeded", DependencyEnd::Succeeded), ("ended", DependencyEnd::Ended)])
        });
        Some(Dependency { job: job?, when: when.unwrap_or_default() })
    })
}

pub(super) fn distributed(reader: &mut Reader, node: Node<'_>) -> Option<Box<Distributed>> {
    let fields = reader.fields(node, &["nodes", "processes_per_node", "launcher", "backend"])?;
    let nodes = fields.require(reader, "nodes", "how many workers take part, at least 1", |reader, node| {
        reader.count(node, 1..=limits::NODES).and_then(|nodes| u32::try_from(nodes).ok())
    });
    let processes_per_node = fields.read(reader, "processes_per_node", |reader, node| {
        if node.value.is_number() {
            let count = reader.count(node, 1..=limits::NODES)?;
            return u32::try_from(count).ok().map(ProcessesPerNode::Count);
        }
        match node.value.as_str() {
            Some("gpu") => Some(ProcessesPerNode::Gpu),
            _ => reader.invalid(node.at, "expected a whole number of at least 1, or `gpu` for one per GPU"),
        }
    });
    let launcher = fields.read(reader, "launcher", |reader, node| {
        let words = [("torchrun", Launcher::Torchrun), ("direct", Launcher::Direct), ("env", Launcher::Env)];
        reader.word(node, &words)
    });
    let backend = fields.read(reader, "backend", |reader, node| {
        reader.word(node, &[("auto", Backend::Auto), ("nccl", Backend::Nccl), ("gloo", Backend::Gloo)])
    });
    Some(Box::new(Distributed { nodes: nodes?, processes_per_node, launcher, backend }))
}

/// It has to fit into one variable of the child's environment.
fn item(reader: &mut Reader, node: Node<'_>) -> Option<Value> {
    let bytes = node.value.as_str().map_or_else(|| node.value.to_string().len(), str::len);
    if bytes > limits::ITEM_BYTES {
        let most = limits::ITEM_BYTES;
        return reader
            .invalid(node.at, format!("{bytes} bytes; an item has at most {most}, put more into a file"));
    }
    if node.value.as_str().is_some_and(|text| text.contains('\0')) {
        return reader.invalid(node.at, "a NUL character cannot be passed to a program; leave it out");
    }
    Some(node.value.clone())
}

pub(super) fn array(reader: &mut Reader, node: Node<'_>) -> Option<Box<Array>> {
    let fields = reader.fields(node, &["start", "count", "items", "indices", "max_running"])?;
    if fields.has("count") == fields.has("items") {
        reader.fault(node.at, "invalid", "exactly one of `count` and `items` is needed");
    }
    let most = limits::ARRAY_JOBS as u64;
    let start = fields.read(reader, "start", |reader, node| reader.count(node, 0..=u32::MAX.into()));
    let count = fields.read(reader, "count", |reader, node| reader.count(node, 1..=most));
    let items = fields.read(reader, "items", |reader, node| {
        if node.value.as_array().is_some_and(Vec::is_empty) {
            return reader.invalid(node.at, "an empty list; give one entry for each job");
        }
        reader.list(node, limits::ARRAY_JOBS, |reader, node, _| item(reader, node))
    });
    let max_running = fields.read(reader, "max_running", |reader, node| reader.count(node, 1..=most));
    let start = start.unwrap_or_default();
    let all = items.as_ref().map_or(count.unwrap_or_default(), |items| items.len() as u64);
    let indices = fields.read(reader, "indices", |reader, node| {
        let indices = reader.list(node, limits::ARRAY_JOBS, |reader, node, _| {
            reader.count(node, start..=start.saturating_add(all.saturating_sub(1)))
        })?;
        if indices.is_empty() || !indices.is_sorted_by(|one, next| one < next) {
            return reader.invalid(node.at, "expected at least one index, ascending, none twice");
        }
        Some(indices)
    });
    Some(Box::new(Array { start, count, items, indices, max_running }))
}
