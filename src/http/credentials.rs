//! Who may call: tokens by their SHA-256, never the tokens themselves. Loaded from the store at start, extended
//! when a worker registers. The limiter on failed log-ins stands beside them and never sees a valid token.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use subtle::ConstantTimeEq;

use crate::contract::ids::WorkerId;
use crate::credentials::hash;
use crate::domain::change::{TokenKind, TokenRecord};

/// What a valid token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// `glc_…`: a client with role `admin`; its name is `submitted_by` of its jobs.
    Client {
        /// What people call it.
        name: Arc<str>,
    },
    /// `glj_…`: can only register workers.
    Join,
    /// `gls_…`: one worker's session.
    Session {
        /// Whose.
        worker_id: WorkerId,
    },
}

/// All valid tokens.
#[derive(Debug, Default)]
pub struct Credentials {
    // By the first 8 bytes of the hash, so that the comparison of the rest takes the same time for all.
    known: RwLock<HashMap<[u8; 8], Known>>,
}

#[derive(Debug)]
struct Known {
    hash: [u8; 32],
    credential: Credential,
}

impl Credentials {
    /// The stored client and join tokens, and the sessions of workers that have one.
    pub fn load(
        tokens: impl IntoIterator<Item = TokenRecord>,
        sessions: impl IntoIterator<Item = ([u8; 32], WorkerId)>,
    ) -> Self {
        let credentials = Self::default();
        for token in tokens {
            credentials.admit(&token);
        }
        for (hash, worker_id) in sessions {
            credentials.admit_session(hash, worker_id);
        }
        credentials
    }

    /// From now on this token is valid.
    pub fn admit(&self, token: &TokenRecord) {
        let credential = match token.kind {
            TokenKind::AdminClient => Credential::Client { name: Arc::from(token.name.as_str()) },
            TokenKind::Join => Credential::Join,
        };
        self.insert(token.hash, credential);
    }

    /// From now on this session is valid. An ended session stays known: the front desk says `session_revoked`.
    pub fn admit_session(&self, hash: [u8; 32], worker_id: WorkerId) {
        self.insert(hash, Credential::Session { worker_id });
    }

    fn insert(&self, hash: [u8; 32], credential: Credential) {
        self.known.write().insert(key_of(&hash), Known { hash, credential });
    }

    /// What `token` stands for.
    pub fn find(&self, token: &str) -> Option<(Credential, [u8; 32])> {
        let given = hash(token);
        let known = self.known.read();
        let found = known.get(&key_of(&given))?;
        bool::from(found.hash.ct_eq(&given)).then(|| (found.credential.clone(), given))
    }
}

fn key_of(hash: &[u8; 32]) -> [u8; 8] {
    let mut key = [0; 8];
    key.copy_from_slice(&hash[..8]);
    key
}

/// Failed log-ins that an address may make at once.
const BURST: u32 = 20;
/// Milliseconds after which one more is forgiven.
const REFILL_MS: u64 = 1000;
/// Addresses remembered at most; when full, all are forgiven rather than memory spent.
const ADDRESSES: usize = 10_000;

/// A token bucket per address, emptied by failed log-ins only.
#[derive(Debug, Default)]
pub struct FailedLogins {
    failures: Mutex<HashMap<IpAddr, (u32, Instant)>>,
}

impl FailedLogins {
    /// Records one more; whether the address made too many of late.
    pub fn record(&self, address: IpAddr, now: Instant) -> bool {
        let mut failures = self.failures.lock();
        if failures.len() >= ADDRESSES && !failures.contains_key(&address) {
            failures.clear();
        }
        let (count, since) = failures.entry(address).or_insert((0, now));
        let forgiven = now.duration_since(*since).as_millis() as u64 / REFILL_MS;
        if forgiven > 0 {
            *count = count.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
            *since = now;
        }
        *count = count.saturating_add(1).min(BURST + 1);
        *count > BURST
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::contract::quantity::Timestamp;

    #[test]
    fn a_token_is_found_by_its_text_and_by_nothing_near_it() {
        let credentials = Credentials::load(
            [TokenRecord {
                hash: hash("glc_abc"),
                kind: TokenKind::AdminClient,
                name: "up".into(),
                created_at: Timestamp::default(),
            }],
            [(hash("gls_s"), WorkerId::from_u128(7))],
        );
        assert_eq!(credentials.find("glc_abc").unwrap().0, Credential::Client { name: "up".into() });
        assert_eq!(
            credentials.find("gls_s").unwrap().0,
            Credential::Session { worker_id: WorkerId::from_u128(7) }
        );
        assert!(credentials.find("glc_abd").is_none());
        assert!(credentials.find("").is_none());
    }

    #[test]
    fn too_many_failures_are_limited_and_forgiven_with_time() {
        let logins = FailedLogins::default();
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let start = Instant::now();
        assert!((0..BURST).all(|_| !logins.record(address, start)));
        assert!(logins.record(address, start));
        assert!(!logins.record("10.0.0.2".parse().unwrap(), start), "another address is not affected");
        assert!(!logins.record(address, start + Duration::from_secs(60)));
    }
}
