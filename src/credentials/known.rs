//! Who may call: tokens by their SHA-256, never the tokens themselves. Loaded from the store at start; from then on the
//! owner of the token table says what is new and what is over, and it holds from that moment, also for a call that is
//! parked or a stream that is being read.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use parking_lot::RwLock;
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use super::hash;
use crate::contract::ids::WorkerId;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::domain::change::TokenRecord;
use crate::domain::credentials::Grant;

/// `last_used_at` is as fine as this, so that a busy token is not written down at every call.
const USE_GRAIN: Seconds = Seconds::new(300);

/// What a token opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// `glc_…`: a client and what it may do.
    Client(Arc<Grant>),
    /// `glj_…` or `gli_…`: can only register workers.
    Join,
    /// `gls_…`: one worker's session.
    Session {
        /// Whose.
        worker_id: WorkerId,
    },
}

/// A token that is known, valid or not.
#[derive(Debug)]
pub struct Pass {
    hash: [u8; 32],
    holder: Holder,
    name: Arc<str>,
    expires_at: Option<Timestamp>,
    revoked: AtomicBool,
    /// Microseconds; the newest use, and the newest that was handed on to be stored.
    used_at: AtomicI64,
    noted_at: AtomicI64,
}

/// Whether a token is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Valid,
    /// Its time is over.
    Expired,
    /// Somebody took it back; of a session, also that its worker left.
    Revoked,
}

impl Pass {
    fn new(hash: [u8; 32], holder: Holder, name: &str, expires_at: Option<Timestamp>, revoked: bool) -> Self {
        Self {
            hash,
            holder,
            name: Arc::from(name),
            expires_at,
            revoked: AtomicBool::new(revoked),
            used_at: AtomicI64::new(0),
            noted_at: AtomicI64::new(0),
        }
    }

    /// Its SHA-256.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// What it opens.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// What people call it; empty for a session.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// From when it is not taken any more.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at
    }

    /// Whether it is taken at `now`.
    pub fn standing(&self, now: Timestamp) -> Standing {
        if self.revoked.load(Ordering::Acquire) {
            Standing::Revoked
        } else if self.expires_at.is_some_and(|end| end <= now) {
            Standing::Expired
        } else {
            Standing::Valid
        }
    }

    /// Notes that it was used, if that is news.
    pub fn note_use(&self, now: Timestamp) {
        let before = Timestamp::from_micros(self.used_at.load(Ordering::Relaxed));
        if now.since(before) >= USE_GRAIN {
            self.used_at.store(now.micros(), Ordering::Relaxed);
        }
    }
}

/// All tokens.
#[derive(Debug)]
pub struct Credentials {
    // By the first 8 bytes of the hash, so that the comparison of the rest takes the same time for all.
    known: RwLock<HashMap<[u8; 8], Arc<Pass>>>,
    /// Counts revocations, so that who is parked looks again.
    revocations: watch::Sender<u64>,
}

impl Default for Credentials {
    fn default() -> Self {
        Self { known: RwLock::default(), revocations: watch::Sender::new(0) }
    }
}

impl Credentials {
    /// The stored tokens, and the sessions of workers that have one, each with whether it is over.
    pub fn load(
        tokens: impl IntoIterator<Item = TokenRecord>,
        sessions: impl IntoIterator<Item = ([u8; 32], WorkerId, bool)>,
    ) -> Self {
        let credentials = Self::default();
        for token in tokens {
            credentials.admit(&token);
        }
        for (hash, worker_id, over) in sessions {
            credentials.insert(Pass::new(hash, Holder::Session { worker_id }, "", None, over));
        }
        credentials
    }

    /// From now on this token is known as it stands in its record.
    pub fn admit(&self, token: &TokenRecord) {
        let holder = Grant::of(token).map_or(Holder::Join, |grant| Holder::Client(Arc::new(grant)));
        let revoked = token.revoked_at.is_some();
        self.insert(Pass::new(token.hash, holder, &token.name, token.expires_at, revoked));
    }

    /// From now on this session is valid.
    pub fn admit_session(&self, hash: [u8; 32], worker_id: WorkerId) {
        self.insert(Pass::new(hash, Holder::Session { worker_id }, "", None, false));
    }

    /// From now on this token is not taken, and whoever is parked with it is told.
    pub fn revoke(&self, hash: &[u8; 32]) {
        if let Some(pass) = self.known.read().get(&key_of(hash)) {
            pass.revoked.store(true, Ordering::Release);
        }
        self.revocations.send_modify(|count| *count += 1);
    }

    /// From now on this worker's session is over. It stays known, so that its worker is told what became of it.
    pub fn end_session(&self, worker_id: WorkerId) {
        for pass in self.known.read().values() {
            if matches!(pass.holder, Holder::Session { worker_id: of } if of == worker_id) {
                pass.revoked.store(true, Ordering::Release);
            }
        }
        self.revocations.send_modify(|count| *count += 1);
    }

    fn insert(&self, pass: Pass) {
        self.known.write().insert(key_of(&pass.hash), Arc::new(pass));
    }

    /// What is known of `token`, valid or not.
    pub fn find(&self, token: &str) -> Option<Arc<Pass>> {
        let given = hash(token);
        let known = self.known.read();
        let found = known.get(&key_of(&given))?;
        bool::from(found.hash.ct_eq(&given)).then(|| found.clone())
    }

    /// Whether this token is known, valid or not.
    pub fn knows(&self, hash: &[u8; 32]) -> bool {
        self.known.read().get(&key_of(hash)).is_some_and(|pass| pass.hash == *hash)
    }

    /// Whether `token` is taken at `now`.
    pub fn takes(&self, token: &str, now: Timestamp) -> bool {
        self.find(token).is_some_and(|pass| pass.standing(now) == Standing::Valid)
    }

    /// Returns when `pass` is revoked. Its expiry is the caller's to watch.
    pub async fn revoked(&self, pass: &Pass) {
        let mut revocations = self.revocations.subscribe();
        // The sender lives as long as `self`.
        while !pass.revoked.load(Ordering::Acquire) {
            if revocations.changed().await.is_err() {
                return;
            }
        }
    }

    /// When tokens were used since this was last asked; those that were.
    pub fn used(&self) -> Vec<([u8; 32], Timestamp)> {
        let mut used = Vec::new();
        for pass in self.known.read().values() {
            let at = pass.used_at.load(Ordering::Relaxed);
            let is_token = !matches!(pass.holder, Holder::Session { .. });
            if is_token && pass.noted_at.swap(at, Ordering::Relaxed) < at {
                used.push((pass.hash, Timestamp::from_micros(at)));
            }
        }
        used
    }
}

fn key_of(hash: &[u8; 32]) -> [u8; 8] {
    let mut key = [0; 8];
    key.copy_from_slice(&hash[..8]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::token::TokenKind;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn loaded() -> Credentials {
        let token = TokenRecord {
            expires_at: Some(at(100)),
            ..TokenRecord::unconfined(hash("glc_abc"), TokenKind::Client, "up", at(1))
        };
        let worker = WorkerId::from_u128(7);
        Credentials::load([token], [(hash("gls_s"), worker, false), (hash("gls_old"), worker, true)])
    }

    #[test]
    fn a_token_is_found_by_its_text_and_by_nothing_near_it() {
        let credentials = loaded();
        assert_eq!(
            *credentials.find("glc_abc").unwrap().holder(),
            Holder::Client(Arc::new(Grant::admin("up")))
        );
        let session = Holder::Session { worker_id: WorkerId::from_u128(7) };
        assert_eq!(*credentials.find("gls_s").unwrap().holder(), session);
        assert!(credentials.find("glc_abd").is_none() && credentials.find("").is_none());
    }

    #[test]
    fn what_is_over_stays_known() {
        let credentials = loaded();
        let pass = credentials.find("glc_abc").unwrap();
        assert_eq!((pass.standing(at(99)), pass.standing(at(100))), (Standing::Valid, Standing::Expired));
        credentials.revoke(&hash("glc_abc"));
        assert_eq!(pass.standing(at(99)), Standing::Revoked);
        assert_eq!(credentials.find("gls_old").unwrap().standing(at(0)), Standing::Revoked);
        credentials.end_session(WorkerId::from_u128(7));
        assert_eq!(credentials.find("gls_s").unwrap().standing(at(0)), Standing::Revoked);
    }

    #[tokio::test]
    async fn who_is_parked_learns_of_a_revocation() {
        let credentials = Arc::new(loaded());
        let pass = credentials.find("glc_abc").unwrap();
        let parked = tokio::spawn({
            let (credentials, pass) = (credentials.clone(), pass.clone());
            async move { credentials.revoked(&pass).await }
        });
        tokio::task::yield_now().await;
        credentials.revoke(&[9; 32]);
        tokio::task::yield_now().await;
        assert!(!parked.is_finished(), "somebody else's");
        credentials.revoke(pass.hash());
        parked.await.unwrap();
    }

    #[test]
    fn use_is_noted_coarsely_and_told_once() {
        let credentials = loaded();
        let pass = credentials.find("glc_abc").unwrap();
        assert!(credentials.used().is_empty());
        pass.note_use(at(1000));
        pass.note_use(at(1299));
        assert_eq!(credentials.used(), [(hash("glc_abc"), at(1000))]);
        assert!(credentials.used().is_empty());
        pass.note_use(at(1300));
        assert_eq!(credentials.used(), [(hash("glc_abc"), at(1300))]);
    }
}
