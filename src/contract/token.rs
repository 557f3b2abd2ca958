//! Credentials as clients see them: who may do what. The secret itself is shown once, when it is made.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::quantity::{Seconds, Timestamp};

/// What a client's credential may do (CONTRACT, Credentials).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything.
    Admin,
    /// Submits into its projects, sees them, and stops its own jobs.
    Submitter,
    /// Sees its projects, but no value of a job's `env`.
    Viewer,
}

impl Role {
    /// All of them, the mightiest first.
    pub const ALL: [Role; 3] = [Role::Admin, Role::Submitter, Role::Viewer];

    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Submitter => "submitter",
            Role::Viewer => "viewer",
        }
    }

    /// Reads the word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.word() == word)
    }
}

/// What a credential is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// `glc_…`: a client.
    #[default]
    Client,
    /// `glj_…`: registers workers, and nothing else.
    Join,
    /// `gli_…`: registers one worker, once.
    Instance,
}

impl TokenKind {
    /// All of them.
    pub const ALL: [TokenKind; 3] = [TokenKind::Client, TokenKind::Join, TokenKind::Instance];

    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            TokenKind::Client => "client",
            TokenKind::Join => "join",
            TokenKind::Instance => "instance",
        }
    }

    /// Reads the word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// A credential, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// What people call it; no two that live share it.
    pub name: String,
    /// What it is for.
    pub kind: TokenKind,
    /// What a client may do; absent for the other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The projects it is confined to; empty = all (of an admin, and of kinds that have none), `*` = all.
    #[serde(default)]
    pub projects: Vec<String>,
    /// The highest `priority` it may submit with; absent = no limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<i32>,
    /// `submitted_by` of its jobs: the token's name, unless another was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
    /// From when it is not taken any more; absent = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to a few minutes; absent = never, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
}

/// `POST /v1/tokens`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateToken {
    /// 1 to 63 of letters, digits, `.`, `_`, `-`, `@`; one is made up if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `client` (default), `join` or `instance`.
    #[serde(default)]
    pub kind: TokenKind,
    /// Of a client: `submitter` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Of a submitter or viewer: `default` if absent; `*` = all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<String>,
    /// Of a submitter: the highest `priority` it may submit with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<i32>,
    /// Of a client: `submitted_by` of its jobs, the name if absent. A second token of the same person names it, so that
    /// it may stop what was submitted with the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Lives so long; absent = until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<Seconds>,
}

/// The answer: the credential, and its secret this once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The credential.
    #[serde(flatten)]
    pub token: Token,
    /// What goes after `Authorization: Bearer`. Never shown again.
    pub secret: String,
}
