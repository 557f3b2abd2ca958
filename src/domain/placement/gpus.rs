//! GPUs of a worker: which of them suit a request, and which set of those that are free is the best to give.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::models;
use crate::contract::gpu::{ComputeCapability, Gpu, GpuStanding, GpuVendor};
use crate::contract::spec::{GpuCount, GpuRequest, MemoryKind};

/// Names a GPU, everywhere and for good.
pub type GpuUuid = Arc<str>;

/// What GPUs have in common that suit the same requests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuKind {
    /// In bytes; first, because less of it is given away first.
    pub memory_bytes: u64,
    /// NVIDIA only.
    pub compute_capability: Option<ComputeCapability>,
    /// Who made it.
    pub vendor: GpuVendor,
    /// As its driver calls it.
    pub model: String,
    /// Whether the memory is its own.
    pub unified: bool,
}

/// One GPU of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolGpu {
    /// Its name.
    pub uuid: GpuUuid,
    /// An index of the pool's kinds.
    pub(super) kind: u32,
    /// Whether it can be granted, apart from what holds it.
    pub standing: GpuStanding,
    /// Whether a task holds it.
    pub held: bool,
    /// GPUs that reach each other over links share this number.
    island: u32,
    numa_node: Option<u32>,
}

impl PoolGpu {
    /// Whether it can be granted now.
    pub fn free(&self) -> bool {
        !self.held && self.standing == GpuStanding::Ready
    }
}

/// All kinds of GPUs that were ever in a pool, by number.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<GpuKind>", into = "Vec<GpuKind>")]
pub(super) struct Kinds {
    kinds: Vec<GpuKind>,
    numbers: BTreeMap<GpuKind, u32>,
}

impl From<Vec<GpuKind>> for Kinds {
    fn from(kinds: Vec<GpuKind>) -> Self {
        let numbers = kinds.iter().cloned().zip(0..).collect();
        Self { kinds, numbers }
    }
}

impl From<Kinds> for Vec<GpuKind> {
    fn from(kinds: Kinds) -> Self {
        kinds.kinds
    }
}

impl Kinds {
    fn number_of(&mut self, gpu: &Gpu) -> u32 {
        let kind = GpuKind {
            memory_bytes: gpu.memory_bytes,
            compute_capability: gpu.compute_capability,
            vendor: gpu.vendor,
            model: gpu.model.clone(),
            unified: gpu.memory_kind == MemoryKind::Unified,
        };
        if let Some(number) = self.numbers.get(&kind) {
            return *number;
        }
        let number = u32::try_from(self.kinds.len()).unwrap_or(u32::MAX);
        self.kinds.push(kind.clone());
        self.numbers.insert(kind, number);
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&GpuKind> {
        self.kinds.get(number as usize)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &GpuKind> {
        self.kinds.iter()
    }

    /// For each kind where it stands among those that suit, the least first; `None` = it does not.
    pub(super) fn ranked(&self, request: &GpuRequest) -> Vec<Option<u32>> {
        let mut ranks = vec![None; self.kinds.len()];
        let suiting = self.numbers.iter().filter(|(kind, _)| unsuited(request, kind).is_none());
        for (rank, (_, number)) in (0..).zip(suiting) {
            ranks[*number as usize] = Some(rank);
        }
        ranks
    }
}

/// Why no GPU of a kind suits a request. The order is that of nearness: what comes last would do with the least
/// change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unsuited<'a> {
    /// Of another maker.
    Vendor {
        /// Whose it is.
        has: GpuVendor,
    },
    /// Memory of the other kind.
    MemoryKind {
        /// Whether it shares the machine's.
        has_unified: bool,
        /// Its model.
        model: &'a str,
    },
    /// Another model.
    Model {
        /// Its model.
        has: &'a str,
    },
    /// An older architecture.
    Capability {
        /// Its own.
        has: Option<ComputeCapability>,
        /// Its model.
        model: &'a str,
    },
    /// Less memory.
    Memory {
        /// Its own, in bytes.
        has_bytes: u64,
        /// Its model.
        model: &'a str,
    },
}

pub(super) fn unsuited<'a>(request: &GpuRequest, kind: &'a GpuKind) -> Option<Unsuited<'a>> {
    let model = kind.model.as_str();
    if request.vendor.as_deref().is_some_and(|wanted| wanted != kind.vendor.word()) {
        return Some(Unsuited::Vendor { has: kind.vendor });
    }
    if request.memory_kind.is_some_and(|wanted| (wanted == MemoryKind::Unified) != kind.unified) {
        return Some(Unsuited::MemoryKind { has_unified: kind.unified, model });
    }
    if !request.models.is_empty() && !request.models.iter().any(|wanted| models::is_called(model, wanted)) {
        return Some(Unsuited::Model { has: model });
    }
    let wanted = request.min_compute_capability.as_deref().and_then(|text| text.parse().ok());
    if wanted.is_some_and(|wanted: ComputeCapability| kind.compute_capability.is_none_or(|has| has < wanted))
    {
        return Some(Unsuited::Capability { has: kind.compute_capability, model });
    }
    if request.memory_bytes.is_some_and(|wanted| wanted > kind.memory_bytes) {
        return Some(Unsuited::Memory { has_bytes: kind.memory_bytes, model });
    }
    None
}

/// A worker's GPUs as it listed them. What tasks hold stays held.
pub(super) fn taken_in(gpus: &[Gpu], held: impl Fn(&str) -> bool, kinds: &mut Kinds) -> Vec<PoolGpu> {
    let mut islands: Vec<u32> = (0..u32::try_from(gpus.len()).unwrap_or(u32::MAX)).collect();
    for (index, gpu) in gpus.iter().enumerate() {
        for link in &gpu.links {
            if let Some(peer) = gpus.iter().position(|gpu| gpu.uuid == *link) {
                let (one, other) = (islands[index], islands[peer]);
                islands
                    .iter_mut()
                    .filter(|island| **island == one.max(other))
                    .for_each(|island| *island = one.min(other));
            }
        }
    }
    let mut all: Vec<(u32, PoolGpu)> = gpus
        .iter()
        .zip(islands)
        .map(|(gpu, island)| {
            let pool_gpu = PoolGpu {
                uuid: gpu.uuid.as_str().into(),
                kind: kinds.number_of(gpu),
                standing: gpu.standing.clone(),
                held: held(&gpu.uuid),
                island,
                numa_node: gpu.numa_node,
            };
            (gpu.index, pool_gpu)
        })
        .collect();
    all.sort_by(|one, other| (one.0, &one.1.uuid).cmp(&(other.0, &other.1.uuid)));
    all.into_iter().map(|(_, gpu)| gpu).collect()
}

/// How many GPUs a request takes of a worker that has so many.
pub(super) fn wanted(count: GpuCount, has: usize) -> usize {
    match count {
        GpuCount::Count(count) => count as usize,
        GpuCount::All => has.max(1),
    }
}

/// The best set of `count` out of `candidates`, in their order; `None` when there are too few.
///
/// In this order: GPUs of the least kind that has enough, so that large ones stay for whom needs them; one island of
/// links; one memory node; where several would do the smallest, so that large ones stay whole; the lowest indexes.
pub(super) fn choose<'a>(
    candidates: &[&'a PoolGpu],
    count: usize,
    rank: impl Fn(&PoolGpu) -> Option<u32>,
) -> Option<Vec<&'a PoolGpu>> {
    if candidates.len() < count {
        return None;
    }
    let of_a_kind = grouped(candidates, rank);
    let mut chosen = match of_a_kind.into_values().find(|group| group.len() >= count) {
        Some(group) => close_together(&group, count),
        None => close_together(candidates, count),
    };
    chosen.sort_by_key(|gpu| candidates.iter().position(|candidate| candidate.uuid == gpu.uuid));
    Some(chosen)
}

fn grouped<'a, K: Ord>(gpus: &[&'a PoolGpu], key: impl Fn(&PoolGpu) -> K) -> BTreeMap<K, Vec<&'a PoolGpu>> {
    let mut groups: BTreeMap<K, Vec<&PoolGpu>> = BTreeMap::new();
    for gpu in gpus {
        groups.entry(key(gpu)).or_default().push(gpu);
    }
    groups
}

/// How far apart GPUs of one worker are: on how many islands, and on how many memory nodes.
pub(super) fn spread(gpus: &[&PoolGpu]) -> (usize, usize) {
    let islands: BTreeSet<u32> = gpus.iter().map(|gpu| gpu.island).collect();
    let nodes: BTreeSet<Option<u32>> = gpus.iter().map(|gpu| gpu.numa_node).collect();
    (islands.len(), nodes.len())
}

fn close_together<'a>(gpus: &[&'a PoolGpu], count: usize) -> Vec<&'a PoolGpu> {
    from_groups(grouped(gpus, |gpu| gpu.island), count, |island, count| {
        from_groups(grouped(island, |gpu| gpu.numa_node), count, |node, count| {
            node[..count.min(node.len())].to_vec()
        })
    })
}

/// From the smallest group that is large enough; else the largest ones whole, and the rest from what is left.
fn from_groups<'a, K: Ord>(
    groups: BTreeMap<K, Vec<&'a PoolGpu>>,
    count: usize,
    within: impl Fn(&[&'a PoolGpu], usize) -> Vec<&'a PoolGpu>,
) -> Vec<&'a PoolGpu> {
    let mut groups: Vec<Vec<&PoolGpu>> = groups.into_values().collect();
    // Stable: of two of one size the one with the lower index stays first.
    groups.sort_by_key(Vec::len);
    let mut chosen = Vec::with_capacity(count);
    while chosen.len() < count {
        let left = count - chosen.len();
        let fitting = groups.iter().position(|group| group.len() >= left);
        let largest = groups.last().map_or(0, Vec::len);
        let first_of_the_largest = || groups.iter().position(|group| group.len() == largest);
        let Some(index) = fitting.or_else(first_of_the_largest) else { break };
        let group = groups.remove(index);
        chosen.extend(within(&group, left.min(group.len())));
    }
    chosen
}
