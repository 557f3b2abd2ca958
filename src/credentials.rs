//! Tokens: 256 random bits behind a prefix that names the kind. The store keeps their SHA-256, nobody keeps the
//! token itself but its owner. `known` are all that open a door, in memory; `seed` is the file that brings the first
//! ones to a server.

pub mod known;
pub mod seed;

use rand::TryRng;
use sha2::{Digest, Sha256};

use crate::contract::token::TokenKind;

/// `glc_…`: a client.
pub const CLIENT_PREFIX: &str = "glc_";
/// `glj_…`: can only register workers.
pub const JOIN_PREFIX: &str = "glj_";
/// `gls_…`: a worker's session.
pub const SESSION_PREFIX: &str = "gls_";
/// `gli_…`: registers one worker, once.
pub const INSTANCE_PREFIX: &str = "gli_";

/// How a token of this kind begins.
pub const fn prefix(kind: TokenKind) -> &'static str {
    match kind {
        TokenKind::Client => CLIENT_PREFIX,
        TokenKind::Join => JOIN_PREFIX,
        TokenKind::Instance => INSTANCE_PREFIX,
    }
}

/// The system has no randomness to give.
#[derive(Debug, thiserror::Error)]
#[error("the system's random source failed")]
pub struct RandomError(#[source] rand::rngs::SysError);

/// A new token of this kind. Show it once.
pub fn mint(prefix: &str) -> Result<String, RandomError> {
    let mut secret = [0_u8; 32];
    rand::rngs::SysRng.try_fill_bytes(&mut secret).map_err(RandomError)?;
    Ok(format!("{prefix}{}", hex::encode(secret)))
}

/// What the store keeps of a token.
pub fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}
