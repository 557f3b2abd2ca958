//! Warm caches: which workers had a job with the same source, the same inputs or the same Python environment, and may
//! have them still. A hint that
//! decides between workers that are equal in all else; nobody waits for it, and it may be wrong.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::contract::artifact::Digest;
use crate::contract::ids::WorkerId;
use crate::contract::spec::{InputOrigin, JobSpec};
use crate::domain::python::Recipe;

/// Luggage that is remembered of one worker, the newest.
const REMEMBERED: usize = 16;
/// Workers that are looked at for each piece of luggage, the lowest ids.
const LOOKED_AT: usize = 4;

/// What a job brings along or has made, told apart in four bytes each; 0 = nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Luggage {
    /// Its source bundle.
    #[serde(default)]
    pub source: u32,
    /// Its artifact inputs together, in any order.
    #[serde(default)]
    pub inputs: u32,
    /// What its Python environment is made of.
    #[serde(default, skip_serializing_if = "is_none")]
    pub environment: u32,
}

fn is_none(mark: &u32) -> bool {
    *mark == 0
}

impl Luggage {
    /// What a spec names by digest.
    pub fn of(spec: &JobSpec) -> Self {
        let inputs = spec.inputs.iter().filter_map(|input| match &input.origin {
            InputOrigin::Artifact(digest) => Some(digest),
            InputOrigin::From(_) => None,
        });
        Self {
            source: spec.source.as_ref().map_or(0, mark),
            inputs: inputs.map(mark).reduce(u32::wrapping_add).map_or(0, |sum| sum.max(1)),
            environment: Recipe::of(spec, None).map_or(0, |recipe| recipe.mark()),
        }
    }

    /// Whether there is nothing to bring.
    pub const fn is_empty(&self) -> bool {
        self.source == 0 && self.inputs == 0 && self.environment == 0
    }

    fn pieces(self) -> impl Iterator<Item = u32> {
        [self.source, self.inputs, self.environment].into_iter().filter(|piece| *piece != 0)
    }
}

fn mark(digest: &Digest) -> u32 {
    let [a, b, c, d, ..] = *digest.bytes();
    u32::from_be_bytes([a, b, c, d]).max(1)
}

/// What jobs brought to each worker of late.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Warmth {
    /// The newest last.
    by_worker: BTreeMap<WorkerId, VecDeque<u32>>,
    by_piece: BTreeSet<(u32, WorkerId)>,
}

impl Warmth {
    /// A job with this luggage was placed there.
    pub(super) fn note(&mut self, worker_id: WorkerId, luggage: Luggage) {
        for piece in luggage.pieces() {
            let pieces = self.by_worker.entry(worker_id).or_default();
            if let Some(known) = pieces.iter().position(|known| *known == piece) {
                pieces.remove(known);
            } else if pieces.len() >= REMEMBERED
                && let Some(oldest) = pieces.pop_front()
            {
                self.by_piece.remove(&(oldest, worker_id));
            }
            pieces.push_back(piece);
            self.by_piece.insert((piece, worker_id));
        }
    }

    /// A worker left for good.
    pub(super) fn forget(&mut self, worker_id: WorkerId) {
        for piece in self.by_worker.remove(&worker_id).into_iter().flatten() {
            self.by_piece.remove(&(piece, worker_id));
        }
    }

    /// How many pieces of this luggage a worker may have.
    pub(super) fn degree(&self, worker_id: WorkerId, luggage: Luggage) -> usize {
        luggage.pieces().filter(|piece| self.by_piece.contains(&(*piece, worker_id))).count()
    }

    /// Workers that may have some of it, a few for each piece.
    pub(super) fn holders(&self, luggage: Luggage) -> impl Iterator<Item = WorkerId> {
        luggage.pieces().flat_map(|piece| {
            let (first, last) = (WorkerId::from_u128(0), WorkerId::from_u128(u128::MAX));
            let holders = self.by_piece.range((piece, first)..=(piece, last));
            holders.take(LOOKED_AT).map(|(_, worker_id)| *worker_id)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_known_for_what_came_last_and_for_no_more_than_that() {
        let (mut warmth, worker) = (Warmth::default(), WorkerId::from_u128(1));
        let brings = |source| Luggage { source, ..Luggage::default() };
        let both = |source| Luggage { inputs: 1_000, ..brings(source) };
        warmth.note(worker, both(1));
        for source in 2..=REMEMBERED as u32 {
            warmth.note(worker, brings(source));
        }
        assert_eq!(warmth.degree(worker, brings(1)), 0, "the oldest is forgotten");
        assert_eq!(warmth.degree(worker, both(2)), 2);
        // What comes again is new again.
        warmth.note(worker, both(0));
        warmth.note(worker, brings(99));
        assert_eq!(warmth.degree(worker, both(2)), 1);
        assert_eq!(warmth.by_piece.len(), REMEMBERED);
        warmth.forget(worker);
        assert!(warmth.by_piece.is_empty() && warmth.by_worker.is_empty());
        assert_eq!(warmth.degree(worker, Luggage::default()), 0);
    }

    #[test]
    fn an_environment_is_luggage_whose_lock_file_lies_in_the_source() {
        let of = |python: serde_json::Value, source: &str| {
            let source = format!("artifact://sha256/{source:0<64}");
            let spec = serde_json::json!({
                "workload": {"command": {"argv": ["true"]}}, "python": python, "source": source});
            Luggage::of(&serde_json::from_value(spec).unwrap()).environment
        };
        let lines = serde_json::json!({"requirements": ["numpy==2"]});
        assert_ne!(of(lines.clone(), "1"), 0);
        assert_eq!(of(lines.clone(), "1"), of(lines.clone(), "2"), "it is made of its lines alone");
        assert_ne!(of(lines, "1"), of(serde_json::json!({"requirements": ["numpy==1"]}), "1"));
        let lock = serde_json::json!({"lockfile": "uv.lock"});
        assert_ne!(of(lock.clone(), "1"), of(lock, "2"));
        assert_eq!(of(serde_json::json!({"interpreter": "3.11"}), "1"), 0, "nothing is built");
    }

    #[test]
    fn luggage_is_what_a_spec_names_by_digest_in_any_order() {
        let read = |inputs: &[&str]| -> JobSpec {
            let digest = |start: &str| format!("artifact://sha256/{start:0<64}");
            let inputs: Vec<_> = inputs
                .iter()
                .map(|start| serde_json::json!({"artifact": digest(start), "path": format!("in/{start}")}))
                .collect();
            serde_json::from_value(serde_json::json!({
                "workload": {"command": {"argv": ["true"]}}, "source": digest("00"), "inputs": inputs,
            }))
            .unwrap()
        };
        let luggage = Luggage::of(&read(&["0a", "ff"]));
        assert_eq!(luggage.source, 1, "a digest that begins with zeroes is one all the same");
        assert_eq!(luggage, Luggage::of(&read(&["ff", "0a"])));
        assert_ne!(luggage.inputs, Luggage::of(&read(&["ff"])).inputs);
        assert_eq!(Luggage::of(&read(&[])).inputs, 0);
    }
}
