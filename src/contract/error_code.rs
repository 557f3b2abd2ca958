//! The one table of error codes: word, HTTP status, whether a repeat may succeed, one sentence.
//! `docs/ERRORS.md` is printed from it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! error_codes {
    ($($name:ident $word:literal $status:literal $retryable:literal $sentence:literal),* $(,)?) => {
        /// What went wrong, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        #[schema(rename_all = "snake_case")]
        pub enum ErrorCode {
            $(#[doc = $sentence] #[serde(rename = $word)] $name,)*
            /// One of a newer version: its problem says all the same what happened and whether to try again.
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl ErrorCode {
            /// All that this version gives, by status.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name),*];

            /// The word on the wire.
            pub const fn word(self) -> &'static str {
                match self { $(ErrorCode::$name => $word,)* ErrorCode::Unknown => "unknown" }
            }

            /// The HTTP status that goes with it.
            pub const fn status(self) -> u16 {
                match self { $(ErrorCode::$name => $status,)* ErrorCode::Unknown => 500 }
            }

            /// Whether the same call may succeed later.
            pub const fn retryable(self) -> bool {
                match self { $(ErrorCode::$name => $retryable,)* ErrorCode::Unknown => false }
            }

            /// One sentence for people.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $sentence,)*
                    ErrorCode::Unknown => "This version has no word for it.",
                }
            }
        }
    };
}

error_codes! {
    BadRequest "bad_request" 400 false "The request cannot be read.",
    BadJson "bad_json" 400 false "The body is not valid JSON.",
    BadHost "bad_host" 400 false "The Host header does not name this server.",
    Unauthenticated "unauthenticated" 401 false "A valid token is needed.",
    TokenExpired "token_expired" 401 false "The token's time is over.",
    TokenRevoked "token_revoked" 401 false "The token was revoked.",
    TokenUsed "token_used" 401 false "The instance token has registered its worker.",
    SessionRevoked "session_revoked" 401 false "The worker's session was revoked.",
    Forbidden "forbidden" 403 false "This credential may not do that.",
    NotFound "not_found" 404 false "There is no such thing, or it is not yours to see.",
    MethodNotAllowed "method_not_allowed" 405 false "The path does not take this method.",
    RequestTimeout "request_timeout" 408 true "The request took too long to arrive.",
    StaleEpoch "stale_epoch" 409 false "The message belongs to an earlier placement or contradicts the first answer.",
    TaskEnded "task_ended" 409 false "The task has ended.",
    NotWaiting "not_waiting" 409 false "The job does not wait for a worker.",
    JobNotEnded "job_not_ended" 409 false "The job has not ended.",
    NameTaken "name_taken" 409 false "Another one that is still valid has this name.",
    LastAdmin "last_admin" 409 false "It is the last admin token that is valid.",
    SecretAlreadyShown "secret_already_shown" 409 false "The first answer showed the secret; it is not kept.",
    Superseded "superseded" 409 false "A newer start of this worker has taken over, or this one comes from an older copy of its folder.",
    IdentityInUse "identity_in_use" 409 true "Another machine, or a copy of the folder, answered as this worker a moment ago.",
    UploadGap "upload_gap" 409 true "The part does not begin where the upload stands.",
    BodyTooLarge "body_too_large" 413 false "The body is larger than allowed.",
    ArtifactTooLarge "artifact_too_large" 413 false "The artifact is larger than `max_artifact_bytes`.",
    UnsupportedMediaType "unsupported_media_type" 415 false "The content type is not the one this call takes.",
    RangeNotSatisfiable "range_not_satisfiable" 416 false "The range lies outside the artifact.",
    InvalidSpec "invalid_spec" 422 false "The spec has faults.",
    InvalidRequest "invalid_request" 422 false "The request has faults.",
    NoWorkerFits "no_worker_fits" 422 false "No worker that is known could ever take the job.",
    NotSupported "not_supported" 422 false "This build does not have that yet.",
    DigestMismatch "digest_mismatch" 422 false "The bytes do not have the digest they were sent under.",
    IdempotencyKeyReused "idempotency_key_reused" 422 false "The key was used with another body.",
    ProtocolVersion "protocol_version" 426 false "The server does not speak this protocol version.",
    RateLimited "rate_limited" 429 true "Too many failed log-ins from this address.",
    ProjectFull "project_full" 429 true "The project has as many jobs that have not ended as it may have.",
    Internal "internal" 500 true "A fault in GPUlayer.",
    NotReady "not_ready" 503 true "The daemon is starting or stopping.",
    StorageFull "storage_full" 503 true "The disk is nearly full; finishes and cancels go on.",
    Overloaded "overloaded" 503 true "Too much is waiting; try again shortly.",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_a_newer_version_costs_nothing_but_its_word() {
        assert_eq!(serde_json::from_str::<ErrorCode>("\"moon_phase\"").unwrap(), ErrorCode::Unknown);
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.word());
            assert_eq!(serde_json::from_value::<ErrorCode>(code.word().into()).unwrap(), *code);
        }
    }

    #[test]
    fn the_schema_has_the_words_of_the_wire() {
        use utoipa::PartialSchema;
        let schema = serde_json::to_value(ErrorCode::schema()).unwrap();
        let words: Vec<&str> =
            schema["enum"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let given = ErrorCode::ALL.iter().map(|code| code.word()).chain(["unknown"]);
        assert_eq!(words, given.collect::<Vec<_>>());
    }
}
