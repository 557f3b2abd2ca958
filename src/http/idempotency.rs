//! `Idempotency-Key` (CONTRACT, Requests and answers): a key is used once per credential, method
//! and path; the same body gets the same answer again, another body is refused.

use actix_web::HttpRequest;
use sha2::{Digest, Sha256};

use super::caller::Client;
use super::refusal::Refusal;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::JobId;
use crate::contract::problem::Fault;
use crate::contract::quantity::Timestamp;
use crate::domain::change::UsedKey;

/// The header that carries the key.
pub const KEY_HEADER: &str = "Idempotency-Key";
/// On an answer that was given before.
pub const REPLAYED_HEADER: &str = "Idempotency-Replayed";
const LONGEST_KEY_BYTES: usize = 255;

/// What was answered when a key was first used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstAnswer {
    /// The jobs it was about, in order.
    pub jobs: Vec<JobId>,
    /// When; of a submission, the moment at which its jobs were submitted.
    pub given_at: Timestamp,
}

/// A client's key with what it is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// SHA-256 over credential, method, path and key.
    pub scope: [u8; 32],
    /// SHA-256 of the request body.
    pub body: [u8; 32],
}

impl Key {
    /// The request's key, if it carries one.
    pub fn of(request: &HttpRequest, client: &Client, body: &[u8]) -> Result<Option<Self>, Refusal> {
        let Some(value) = request.headers().get(KEY_HEADER) else {
            return Ok(None);
        };
        let key = value.as_bytes();
        if key.is_empty() || key.len() > LONGEST_KEY_BYTES {
            return Err(Refusal::faults(
                ErrorCode::InvalidRequest,
                vec![Fault {
                    pointer: format!("/headers/{KEY_HEADER}"),
                    code: "invalid".to_owned(),
                    detail: format!("a key has 1 to {LONGEST_KEY_BYTES} bytes"),
                }],
            ));
        }
        let mut scope = Sha256::new();
        for part in
            [&client.credential[..], request.method().as_str().as_bytes(), request.path().as_bytes(), key]
        {
            scope.update((part.len() as u64).to_be_bytes());
            scope.update(part);
        }
        Ok(Some(Self { scope: scope.finalize().into(), body: Sha256::digest(body).into() }))
    }

    /// What the store keeps of it: the answer's status, and the jobs it was about.
    pub fn used(&self, status: u16, jobs: &[JobId], used_at: Timestamp) -> Box<UsedKey> {
        Box::new(UsedKey {
            scope: self.scope,
            body: self.body,
            status,
            answer: serde_json::to_string(jobs).unwrap_or_default(),
            used_at,
        })
    }

    /// The first answer, unless the key was used with another body.
    pub fn first_answer(&self, used: &UsedKey) -> Result<FirstAnswer, Refusal> {
        if used.body != self.body {
            return Err(Refusal::new(
                ErrorCode::IdempotencyKeyReused,
                "this Idempotency-Key was used with another body; use a new key for a new request",
            ));
        }
        let jobs = serde_json::from_str(&used.answer).map_err(Refusal::internal)?;
        Ok(FirstAnswer { jobs, given_at: used.used_at })
    }
}
