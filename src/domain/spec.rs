//! Reads a `JobSpec` from JSON as a person sent it: every fault at once, each with its pointer and with what is
//! allowed there. `reader` is the layer that collects faults; the other rooms each read one part of a spec;
//! `supported` is the one list of what this build does not have yet; `human` takes `80GB` and `90m`.

mod credentials;
mod environment;
mod files;
mod function;
pub mod human;
mod identity;
mod job;
mod limits;
mod nearest;
mod paths;
mod reader;
mod relations;
mod resources;
mod supported;
mod versions;
mod workload;

use serde_json::Value;

use crate::contract::artifact::Digest;
use crate::contract::problem::{Fault, Warning};
use crate::contract::spec::{InputOrigin, JobSpec};
use reader::{Node, Pointer, Reader};

pub use function::item_call;
pub use nearest::nearest;
pub use paths::is_glob;

/// What the reader may be told about its caller and its server.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOptions {
    /// Unknown fields are faults, not warnings (`Prefer: handling=strict`).
    pub strict: bool,
    /// `cwd` may be absolute (the own daemon's Unix socket).
    pub allow_absolute_cwd: bool,
}

/// A spec that was read: with what was noticed on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadSpec {
    /// The spec.
    pub spec: JobSpec,
    /// Unknown fields with the nearest known name, and the like.
    pub warnings: Vec<Warning>,
}

/// Reads one spec. `prefix` goes before every pointer: `""`, or `/jobs/17` in a batch, where `#index` may name
/// an entry before that one. On refusal there is at least one fault; their codes are `invalid`, `missing`,
/// `unknown_field` (strict only) and `not_supported`.
pub fn read(value: &Value, prefix: &str, options: ReadOptions) -> Result<ReadSpec, Vec<Fault>> {
    let mut reader = Reader::new(options.strict);
    let root = Node { value, at: Pointer::Root(prefix) };
    let spec = job::read(&mut reader, root, options.allow_absolute_cwd, batch_index(prefix));
    supported::check(&mut reader, root);
    reader.finish(root, spec)
}

/// The canonical text of a spec: what is at its default is left out. [`read`] gives the same spec back.
pub fn to_json(spec: &JobSpec) -> String {
    match serde_json::to_string(spec) {
        Ok(text) => text,
        // invariant: every map in a spec has text keys, the only thing that can fail to become JSON in memory.
        Err(error) => unreachable!("a spec is always JSON: {error}"),
    }
}

/// The artifacts a spec names, each once, in ascending order: they are kept as long as its job is.
pub fn artifacts(spec: &JobSpec) -> Vec<Digest> {
    let function = spec.workload.function();
    let called = function.map(|function| function::artifacts(function, spec.array.as_deref()));
    let inputs = spec.inputs.iter().filter_map(|input| match input.origin {
        InputOrigin::Artifact(digest) => Some(digest),
        InputOrigin::From(_) => None,
    });
    let mut digests: Vec<Digest> =
        spec.source.into_iter().chain(called.into_iter().flatten()).chain(inputs).collect();
    digests.sort_unstable();
    digests.dedup();
    digests
}

/// The artifacts that a child of an array needs: `spec` is what each child runs, `item` its own.
pub fn child_artifacts(spec: &JobSpec, item: Option<&Value>) -> Vec<Digest> {
    let mut digests = artifacts(spec);
    let call = spec.workload.function().and(item).and_then(item_call);
    digests
        .extend(call.into_iter().flat_map(|call| call.payload.parse().ok().into_iter().chain(call.values)));
    digests
}

fn batch_index(prefix: &str) -> Option<usize> {
    prefix.strip_prefix("/jobs/")?.parse().ok()
}
