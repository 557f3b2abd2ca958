//! With which statuses a call may be refused, and the error codes behind each: from what the call takes and whom it
//! lets in. `scripts/api-check` holds the server to it.

use std::collections::BTreeMap;

use utoipa::openapi::{Ref, ResponseBuilder};

use super::{Call, Content, content};
use crate::contract::error_code::ErrorCode;
use crate::http::caller::Access;

/// The refusals of a call, by status.
pub fn of(call: &Call, access: Access) -> Vec<(String, ResponseBuilder)> {
    let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for code in codes(call, access) {
        let words = by_status.entry(code.status()).or_default();
        if !words.contains(&code.word()) {
            words.push(code.word());
        }
    }
    let described = |(status, words): (u16, Vec<&str>)| {
        let problem = content(Some(Ref::from_schema_name("Problem").into()));
        let meaning = format!("Refused: `{}`", words.join("`, `"));
        let answer = ResponseBuilder::new().description(meaning).content("application/problem+json", problem);
        (status.to_string(), answer)
    };
    by_status.into_iter().map(described).collect()
}

fn codes(call: &Call, access: Access) -> Vec<ErrorCode> {
    use ErrorCode as E;
    // A wrong token is refused wherever it is shown.
    let mut codes =
        vec![E::BadRequest, E::BadHost, E::Unauthenticated, E::RateLimited, E::Internal, E::NotReady];
    if access != Access::Open {
        codes.extend([E::TokenExpired, E::TokenRevoked, E::Forbidden, E::InvalidRequest]);
    }
    let into_a_project = matches!((call.method, call.path), ("POST", "/v1/jobs" | "/v1/jobs/batch"));
    if call.path.contains('{') || into_a_project {
        codes.push(E::NotFound);
    }
    match call.takes {
        Content::Nothing => {}
        Content::Json(_) | Content::Followed(_) => {
            codes.extend([
                E::BadJson,
                E::RequestTimeout,
                E::BodyTooLarge,
                E::UnsupportedMediaType,
                E::Overloaded,
            ]);
        }
        Content::Raw(_) => codes.extend([
            E::RequestTimeout,
            E::UploadGap,
            E::ArtifactTooLarge,
            E::UnsupportedMediaType,
            E::DigestMismatch,
            E::StorageFull,
            E::Overloaded,
        ]),
    }
    if matches!(call.gives, Content::Raw(_)) && call.path.contains('{') && call.method == "GET" {
        codes.push(E::RangeNotSatisfiable);
    }
    let by_worker = matches!(access, Access::Worker | Access::WorkerOrFormer);
    if by_worker || access == Access::Join {
        codes.push(E::ProtocolVersion);
    }
    if access == Access::Join {
        codes.push(E::TokenUsed);
    }
    if by_worker || matches!(access, Access::ClientOrWorker | Access::SubmitterOrWorker) {
        codes.push(E::SessionRevoked);
    }
    if call.path.starts_with("/v1/tokens") {
        codes.extend([
            E::NameTaken,
            E::LastAdmin,
            E::SecretAlreadyShown,
            E::IdempotencyKeyReused,
            E::NotFound,
        ]);
    }
    if by_worker {
        codes.extend([E::StaleEpoch, E::TaskEnded, E::Superseded, E::IdentityInUse]);
    }
    if call.path.ends_with("/explain") {
        codes.extend([E::NotWaiting, E::InvalidSpec, E::NotSupported, E::NotFound]);
    }
    if super::is_keyed(call) {
        codes.extend([
            E::IdempotencyKeyReused,
            E::JobNotEnded,
            E::InvalidSpec,
            E::NotSupported,
            E::StorageFull,
            E::ProjectFull,
        ]);
    }
    codes
}
