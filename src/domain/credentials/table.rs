//! All credentials there are, and what may become of them: no two that live share a name, an instance token registers
//! once, and nobody far away takes the last admin's key from the server.

use std::collections::HashMap;

use crate::contract::quantity::Timestamp;
use crate::contract::token::{Role, TokenKind};
use crate::domain::change::TokenRecord;

/// Why a credential is not made or revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// One that lives has this name.
    #[error("a token that is still valid has this name")]
    NameTaken,
    /// None that is not revoked has this name.
    #[error("there is no such token")]
    Unknown,
    /// No other admin token lives, and the caller is not on the server's machine.
    #[error("it is the last admin token")]
    LastAdmin,
    /// It has registered another worker, or was revoked meanwhile.
    #[error("it has been used")]
    Used,
}

/// Credentials by their hash.
#[derive(Debug, Default)]
pub struct TokenTable {
    tokens: HashMap<[u8; 32], TokenRecord>,
}

impl TokenTable {
    /// What the store remembers.
    pub fn remembered(tokens: impl IntoIterator<Item = TokenRecord>) -> Self {
        Self { tokens: tokens.into_iter().map(|token| (token.hash, token)).collect() }
    }

    /// Takes in a new one.
    pub fn create(&mut self, token: TokenRecord, now: Timestamp) -> Result<&TokenRecord, TokenRefusal> {
        if self.tokens.values().any(|other| other.name == token.name && other.lives(now)) {
            return Err(TokenRefusal::NameTaken);
        }
        Ok(self.tokens.entry(token.hash).or_insert(token))
    }

    /// Revokes the one of this name: the one that lives, else one that only expired. From `afar` the last admin token
    /// that lives stays: whoever took it away could lock everybody out.
    pub fn revoke(&mut self, name: &str, afar: bool, now: Timestamp) -> Result<&TokenRecord, TokenRefusal> {
        let named = |token: &&TokenRecord| token.name == name && token.revoked_at.is_none();
        let found =
            self.tokens.values().filter(named).max_by_key(|token| (token.lives(now), token.created_at));
        let (hash, lives) = found.map(|token| (token.hash, token.lives(now))).ok_or(TokenRefusal::Unknown)?;
        if afar && lives && self.is_last_admin(&hash, now) {
            return Err(TokenRefusal::LastAdmin);
        }
        let token = self.tokens.get_mut(&hash).ok_or(TokenRefusal::Unknown)?;
        token.revoked_at = Some(now);
        Ok(token)
    }

    /// Uses an instance token for this registration. `Ok(None)` = it was used for the same one before, or is of a kind
    /// that is not used up.
    pub fn spend(
        &mut self,
        hash: &[u8; 32],
        registration: &str,
        now: Timestamp,
    ) -> Result<Option<&TokenRecord>, TokenRefusal> {
        let token = self.tokens.get_mut(hash).filter(|token| token.lives(now)).ok_or(TokenRefusal::Used)?;
        if token.kind != TokenKind::Instance {
            return Ok(None);
        }
        match &token.used_for {
            Some(used_for) if !registration.is_empty() && used_for == registration => Ok(None),
            Some(_) => Err(TokenRefusal::Used),
            None => {
                token.used_for = Some(registration.to_owned());
                token.last_used_at = Some(now);
                Ok(Some(token))
            }
        }
    }

    /// Notes when some were last used; those whose row changes.
    pub fn note_use(&mut self, used: impl IntoIterator<Item = ([u8; 32], Timestamp)>) -> Vec<TokenRecord> {
        let mut changed = Vec::new();
        for (hash, at) in used {
            if let Some(token) = self.tokens.get_mut(&hash)
                && token.last_used_at.is_none_or(|before| before < at)
            {
                token.last_used_at = Some(at);
                changed.push(token.clone());
            }
        }
        changed
    }

    fn is_last_admin(&self, hash: &[u8; 32], now: Timestamp) -> bool {
        let admin = |token: &TokenRecord| token.role == Some(Role::Admin) && token.lives(now);
        self.tokens.get(hash).is_some_and(admin)
            && !self.tokens.values().any(|other| other.hash != *hash && admin(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn token(number: u8, name: &str, kind: TokenKind, expires: Option<i64>) -> TokenRecord {
        TokenRecord {
            expires_at: expires.map(at),
            ..TokenRecord::unconfined([number; 32], kind, name, at(i64::from(number)))
        }
    }

    #[test]
    fn a_name_is_free_again_when_its_token_expired_or_was_revoked() {
        let mut table = TokenTable::default();
        table.create(token(1, "ci", TokenKind::Join, Some(100)), at(10)).unwrap();
        let second = || token(2, "ci", TokenKind::Join, None);
        assert_eq!(table.create(second(), at(99)).err(), Some(TokenRefusal::NameTaken));
        table.create(second(), at(100)).unwrap();
        let revoked = table.revoke("ci", true, at(101)).unwrap();
        assert_eq!(
            (revoked.hash, revoked.revoked_at),
            ([2; 32], Some(at(101))),
            "the one that lives goes first"
        );
        assert_eq!(table.revoke("ci", true, at(102)).unwrap().hash, [1; 32], "then the one that expired");
        assert_eq!(table.revoke("ci", true, at(103)).err(), Some(TokenRefusal::Unknown));
        table.create(token(3, "ci", TokenKind::Join, None), at(104)).unwrap();
    }

    #[test]
    fn the_last_admin_token_is_revoked_only_on_the_servers_machine() {
        let admin = |number, name: &str, expires| token(number, name, TokenKind::Client, expires);
        let submitter = TokenRecord { role: Some(Role::Submitter), ..admin(9, "s", None) };
        let mut table = TokenTable::remembered([admin(1, "a", None), admin(2, "b", Some(50)), submitter]);
        assert_eq!(table.revoke("a", true, at(60)).err(), Some(TokenRefusal::LastAdmin), "`b` has expired");
        assert!(table.revoke("s", true, at(60)).is_ok());
        table.create(admin(3, "c", None), at(60)).unwrap();
        assert!(table.revoke("a", true, at(60)).is_ok());
        assert!(table.revoke("b", true, at(60)).is_ok(), "one that expired opens nothing");
        assert_eq!(table.revoke("c", true, at(60)).err(), Some(TokenRefusal::LastAdmin));
        assert!(table.revoke("c", false, at(60)).is_ok());
    }

    #[test]
    fn an_instance_token_registers_one_worker_and_may_repeat_itself() {
        let mut table = TokenTable::remembered([
            token(1, "i", TokenKind::Instance, None),
            token(2, "j", TokenKind::Join, None),
        ]);
        let spent = table.spend(&[1; 32], "reg-1", at(9)).unwrap().unwrap();
        assert_eq!(spent.used_for.as_deref(), Some("reg-1"));
        assert_eq!(table.spend(&[1; 32], "reg-1", at(10)), Ok(None), "its answer was lost");
        assert_eq!(table.spend(&[1; 32], "reg-2", at(10)), Err(TokenRefusal::Used));
        assert_eq!(table.spend(&[2; 32], "reg-3", at(10)), Ok(None), "join tokens are not used up");
        table.revoke("j", true, at(11)).unwrap();
        assert_eq!(table.spend(&[2; 32], "reg-4", at(12)), Err(TokenRefusal::Used), "revoked in between");
        let mut unnamed = TokenTable::remembered([token(1, "i", TokenKind::Instance, None)]);
        assert!(unnamed.spend(&[1; 32], "", at(9)).unwrap().is_some());
        assert_eq!(
            unnamed.spend(&[1; 32], "", at(9)),
            Err(TokenRefusal::Used),
            "nothing tells a repeat apart"
        );
    }

    #[test]
    fn only_news_of_use_is_written_down() {
        let mut table = TokenTable::remembered([token(1, "a", TokenKind::Client, None)]);
        assert_eq!(table.note_use([([1; 32], at(50)), ([8; 32], at(50))]).len(), 1);
        assert!(table.note_use([([1; 32], at(50))]).is_empty());
    }
}
