//! The smallest changes of a spec that would let its job start now: tried one at a time, each held against the workers
//! before it is said.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::budget::{Budget, checks};
use super::fit::{Cores, Wants};
use super::sizes::{AtMost, Bytes};
use super::{Amount, Pool, PoolWorker, Shape};
use crate::contract::explain::Suggestion;
use crate::contract::quantity::Cpus;
use crate::contract::spec::{GpuCount, GpuRequest, Target};

/// A change that may help.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) said: Suggestion,
    pub(super) shape: Arc<Shape>,
}

/// Which room is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// What is free now.
    Now,
    /// All that there is, whoever has it.
    Ever,
}

impl Room {
    fn of(self, worker: &PoolWorker) -> Amount {
        match self {
            Room::Now => worker.free(),
            Room::Ever => worker.total,
        }
    }

    fn is_for(self, wants: &Wants, worker: &PoolWorker) -> bool {
        match self {
            Room::Now => wants.lack(worker).is_none(),
            Room::Ever => worker.introduced() && wants.lasting_lack(worker).is_none(),
        }
    }
}

/// Changes after which there is room, the smallest of each kind, as far as the workers and its `quota` decide: whether
/// the project may have a shape. None is tried any more when the budget is spent.
pub(super) fn changes(
    shape: &Arc<Shape>,
    pool: &Pool,
    room: Room,
    quota: impl Fn(&Shape) -> bool,
    budget: &mut Budget,
) -> Vec<Change> {
    let workers = checks(pool.workers().count());
    let mut fits = |shape: &Arc<Shape>| {
        if budget.left() < workers || !quota(shape) {
            return false;
        }
        budget.spend(workers);
        let wants = Wants::of(shape, pool);
        pool.workers().filter(|worker| room.is_for(&wants, worker)).count() >= shape.nodes()
    };
    let kinds = kinds(shape, pool, room).into_iter();
    kinds.filter_map(|mut kind| kind.find(|change| fits(&change.shape))).collect()
}

/// Changes of one kind, from the smallest on, each made when it is looked at.
type Kind<'a> = Box<dyn Iterator<Item = Change> + 'a>;

/// Labels and frameworks that are tried at most: who names more of them will not look for the one that is too many here.
const TRIED_NAMES: usize = 16;

fn one<'a>(change: Change) -> Kind<'a> {
    Box::new(std::iter::once(change))
}

fn change(
    shape: &Shape,
    said: impl Into<String>,
    pointer: impl Into<String>,
    value: Value,
    act: impl FnOnce(&mut Shape),
) -> Change {
    let mut changed = shape.clone();
    act(&mut changed);
    let said = Suggestion { change: said.into(), pointer: pointer.into(), value };
    Change { said, shape: Arc::new(changed) }
}

/// Each kind of change, from the smallest on.
fn kinds<'a>(shape: &'a Arc<Shape>, pool: &'a Pool, room: Room) -> Vec<Kind<'a>> {
    let mut kinds: Vec<Kind<'a>> = vec![cpus(shape, pool, room), memory(shape, pool, room)];
    if let Some(request) = shape.resources.gpus.as_deref() {
        kinds.extend(gpus(shape, request, pool));
    }
    kinds.extend(nodes(shape, pool, room).map(one));
    let wants = &shape.resources;
    if wants.worker.is_some() {
        kinds.push(one(change(shape, "any worker", "/resources/worker", Value::Null, |shape| {
            shape.resources.worker = None;
        })));
    }
    if shape.target != Target::Any {
        kinds.push(one(change(shape, "any target", "/target", json!("any"), |shape| {
            shape.target = Target::Any
        })));
    }
    for (key, value) in wants.labels.iter().take(TRIED_NAMES) {
        let pointer = format!("/resources/labels/{}", key.replace('~', "~0").replace('/', "~1"));
        let said = format!("without the label {key}={value}");
        kinds.push(one(change(shape, said, pointer, Value::Null, |shape| {
            shape.resources.labels.remove(key);
        })));
    }
    for (what, set, pointer) in [
        ("operating system", wants.os.is_some(), "/resources/os"),
        ("processor", wants.arch.is_some(), "/resources/arch"),
    ] {
        if set {
            kinds.push(one(change(shape, format!("any {what}"), pointer, Value::Null, |shape| {
                let field =
                    if pointer.ends_with("os") { &mut shape.resources.os } else { &mut shape.resources.arch };
                *field = None;
            })));
        }
    }
    for (name, range) in wants.frameworks.iter().take(TRIED_NAMES) {
        let pointer = format!("/resources/frameworks/{name}");
        kinds.push(one(change(shape, format!("without {name}{range}"), pointer, Value::Null, |shape| {
            shape.resources.frameworks.remove(name);
            shape.backends.remove(name);
        })));
    }
    kinds
}

/// As many nodes as there are workers with room for one.
fn nodes(shape: &Arc<Shape>, pool: &Pool, room: Room) -> Option<Change> {
    let nodes = shape.nodes();
    let wants = Wants::of(shape, pool);
    let fewer = pool.workers().filter(|worker| room.is_for(&wants, worker)).count();
    let fewer = u32::try_from(fewer).ok().filter(|fewer| (1..nodes).contains(&(*fewer as usize)))?;
    let said = format!("{fewer} {} instead of {nodes}", if fewer == 1 { "node" } else { "nodes" });
    Some(change(shape, said, "/distributed/nodes", json!(fewer), |shape| shape.nodes = Some(fewer)))
}

fn cpus<'a>(shape: &'a Shape, pool: &Pool, room: Room) -> Kind<'a> {
    let asked = shape.amount().cpu_millis;
    let free: BTreeSet<u64> = pool
        .workers()
        .map(|worker| room.of(worker).cpu_millis)
        .filter(|free| (1..asked).contains(free))
        .collect();
    let said = |millis: u64| Cpus::from_millis(u32::try_from(millis).unwrap_or(u32::MAX));
    Box::new(free.into_iter().rev().map(move |millis| {
        let (now, then) = (said(asked), said(millis));
        change(
            shape,
            format!("{} instead of {now}", Cores(millis)),
            "/resources/cpus",
            json!(then),
            |shape| {
                shape.resources.cpus = then;
            },
        )
    }))
}

fn memory<'a>(shape: &'a Shape, pool: &Pool, room: Room) -> Kind<'a> {
    let asked = shape.amount().memory_bytes;
    let free: BTreeSet<u64> = pool
        .workers()
        .map(|worker| room.of(worker).memory_bytes)
        .filter(|free| (1..asked).contains(free))
        .collect();
    Box::new(free.into_iter().rev().map(move |bytes| {
        let said = format!("{} of memory instead of {}", AtMost(bytes), Bytes(asked));
        change(shape, said, "/resources/memory_bytes", json!(bytes), |shape| {
            shape.resources.memory_bytes = Some(bytes);
        })
    }))
}

fn gpus<'a>(shape: &'a Shape, request: &'a GpuRequest, pool: &Pool) -> Vec<Kind<'a>> {
    let with = move |said: String, field: &str, value: Value, act: &dyn Fn(&mut GpuRequest)| {
        change(shape, said, format!("/resources/gpus/{field}"), value, |shape| {
            if let Some(request) = shape.resources.gpus.as_deref_mut() {
                act(request);
            }
        })
    };
    let most = pool.workers().map(|worker| worker.gpus().len()).max().unwrap_or(0);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let (below, now) = match request.count {
        GpuCount::Count(count) => (count.min(most.saturating_add(1)), count.to_string()),
        GpuCount::All => (most, "all".to_owned()),
    };
    let fewer = (1..below).rev().map(move |count| {
        let words = if count == 1 { "GPU" } else { "GPUs" };
        with(format!("{count} {words} instead of {now}"), "count", json!(count), &|request| {
            request.count = GpuCount::Count(count);
        })
    });
    let mut kinds: Vec<Kind<'a>> = vec![Box::new(fewer)];
    if let Some(asked) = request.memory_bytes {
        let less: BTreeSet<u64> =
            pool.kinds().all().map(|kind| kind.memory_bytes).filter(|has| *has < asked).collect();
        let less = less.into_iter().rev().map(move |bytes| {
            let said = format!("GPUs with ≥ {} instead of {}", AtMost(bytes), Bytes(asked));
            with(said, "memory_bytes", json!(bytes), &|request| request.memory_bytes = Some(bytes))
        });
        kinds.push(Box::new(less));
    }
    if let Some(asked) = request.min_compute_capability.as_deref() {
        let asked_number = asked.parse().ok();
        let lower: BTreeSet<_> = pool
            .kinds()
            .all()
            .filter_map(|kind| kind.compute_capability)
            .filter(|has| asked_number.is_some_and(|asked| *has < asked))
            .collect();
        let lower = lower.into_iter().rev().map(move |capability| {
            let said = format!("compute capability ≥ {capability} instead of {asked}");
            with(said, "min_compute_capability", json!(capability), &|request| {
                request.min_compute_capability = Some(capability.to_string());
            })
        });
        kinds.push(Box::new(lower));
    }
    if !request.models.is_empty() {
        kinds.push(one(with("any model".to_owned(), "models", Value::Null, &|request| {
            request.models.clear()
        })));
    }
    if request.vendor.is_some() {
        kinds.push(one(with("any vendor".to_owned(), "vendor", Value::Null, &|request| {
            request.vendor = None
        })));
    }
    if request.memory_kind.is_some() {
        kinds.push(one(with("memory of any kind".to_owned(), "memory_kind", Value::Null, &|request| {
            request.memory_kind = None;
        })));
    }
    kinds
}
