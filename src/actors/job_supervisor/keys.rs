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
    pub fn remembered(scopes: impl IntoIterator<Item = ([u8; 32], Timestamp)>) -> Self {
        Self { used: scopes.into_iter().map(|(scope, used_at)| (half(&scope), used_at)).collect() }
    }

    /// Whether the key was taken before: for calls that may be refused after that is asked, which leaves the key free.
    pub fn is_taken(&self, key: &UsedKey) -> bool {
        let before = self.used.get(&half(&key.scope));
        before.is_some_and(|before| key.used_at.since(*before) < KEPT)
    }

    /// Takes the key; `false` when it was taken before and is still remembered.
    pub fn take(&mut self, key: &UsedKey) -> bool {
        if self.is_taken(key) {
            return false;
        }
        self.used.insert(half(&key.scope), key.used_at);
        true
    }

    /// Forgets those older than [`KEPT`].
    pub fn prune(&mut self, now: Timestamp) {
        self.used.retain(|_, used_at| now.since(*used_at) < KEPT);
    }
}
