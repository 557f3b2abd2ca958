//! Idempotency keys that were used in the last seven days: enough to tell a new one from a repeat without asking
//! the store on every submission.

use std::collections::HashMap;

use crate::contract::quantity::{Seconds, Timestamp};
use crate::domain::change::UsedKey;

/// How long a key is remembered (CONTRACT, Requests and answers).
pub const KEPT: Seconds = Seconds::new(7 * 86_400);

/// Half of a scope's hash → when it was used. A collision of halves sends the caller to the store, which knows
/// the whole hash; at 64 bits and millions of keys that does not happen by accident.
#[derive(Debug, Default)]
pub struct Keys {
    used: HashMap<u64, Timestamp>,
}

fn half(scope: &[u8; 32]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&scope[..8]);
    u64::from_be_bytes(bytes)
}

impl Keys {
    /// With the keys the store remembers.
    pub fn remembered(scopes: impl IntoIterator<Item = [u8; 32]>, now: Timestamp) -> Self {
        Self { used: scopes.into_iter().map(|scope| (half(&scope), now)).collect() }
    }

    /// Takes the key; `false` when it was taken before.
    pub fn take(&mut self, key: &UsedKey) -> bool {
        match self.used.entry(half(&key.scope)) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(key.used_at);
                true
            }
        }
    }

    /// Forgets those older than [`KEPT`].
    pub fn prune(&mut self, now: Timestamp) {
        self.used.retain(|_, used_at| now.since(*used_at) < KEPT);
    }
}
