//! How the edge says no: one refusal type, rendered as `application/problem+json` from the one table. It also
//! gives actix's own errors a place in that table, so that no answer leaves in another shape.

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};

use super::submission::Unreadable;
use crate::actors::messages::front_desk::{JobNotEnded, SubmitRefusal, TokenRefusal, WorkerRefusal};
use crate::artifacts::ArtifactError;
use crate::contract::error_code::ErrorCode;
use crate::contract::problem::{Fault, Problem};
use crate::contract::protocol::PROTOCOL;
use crate::contract::server::ProtocolRange;
use crate::domain::causes::said;

/// The worker protocols this build speaks.
pub const PROTOCOLS: ProtocolRange = ProtocolRange { min: PROTOCOL, max: PROTOCOL };

/// A refused request: its problem (without the request's id), and headers that go with it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", problem.code.word(), problem.detail)]
pub struct Refusal {
    problem: Box<Problem>,
    headers: Vec<(HeaderName, HeaderValue)>,
    close: bool,
}

impl Refusal {
    /// From the table, with what happened this time.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { problem: Box::new(Problem::new(code, detail)), headers: Vec::new(), close: false }
    }

    /// Every bad field of a request at once.
    pub fn faults(code: ErrorCode, faults: Vec<Fault>) -> Self {
        let detail = match faults.as_slice() {
            [only] if only.pointer.is_empty() => only.detail.clone(),
            [only] => format!("{}: {}", only.pointer, only.detail),
            [first, rest @ ..] => format!("{}: {} (and {} more)", first.pointer, first.detail, rest.len()),
            [] => code.sentence().to_owned(),
        };
        Self::new(code, detail).with_faults(faults)
    }

    /// With what is to be said of its fields.
    pub fn with_faults(mut self, faults: Vec<Fault>) -> Self {
        self.problem.errors = faults;
        self
    }

    /// A spec's faults: `not_supported` when nothing else is wrong with it, `not_found` when its project is none of the
    /// client's and nothing else is wrong, else `invalid_spec`.
    pub fn spec(faults: Vec<Fault>) -> Self {
        let only = |code: ErrorCode| faults.iter().all(|fault| fault.code == code.word());
        let alone = [ErrorCode::NotSupported, ErrorCode::NotFound];
        let code = alone.into_iter().find(|code| only(*code)).unwrap_or(ErrorCode::InvalidSpec);
        Self::faults(code, faults)
    }

    /// `thing` is not there, or not the caller's to see.
    pub fn not_found(thing: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no {thing}"))
    }

    /// The actor that would answer has gone, or the daemon drains.
    pub fn stopping() -> Self {
        Self::new(ErrorCode::NotReady, "the daemon is stopping; try again when it is back")
    }

    /// Whether it is [`Refusal::stopping`].
    pub fn is_stopping(&self) -> bool {
        self.problem.code == ErrorCode::NotReady
    }

    /// A fault of ours: the details go to the log under the request's id, not to the caller.
    pub fn internal(error: impl std::error::Error) -> Self {
        tracing::error!(error = %said(&error), "a request failed");
        Self::new(ErrorCode::Internal, "a fault in the server; its log has the details under this request_id")
    }

    /// No (valid) credential.
    pub fn unauthenticated(detail: &str) -> Self {
        Self::unauthenticated_as(ErrorCode::Unauthenticated, detail)
    }

    /// The same by another code of status 401.
    pub fn unauthenticated_as(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self::new(code, detail)
            .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"gpulayer\""))
    }

    /// The protocol header is missing or names a version this build does not speak.
    pub fn protocol(given: Option<&str>) -> Self {
        let given = given.unwrap_or("none");
        let mut refusal = Self::new(
            ErrorCode::ProtocolVersion,
            format!("the worker speaks protocol {given}, this server {} to {}", PROTOCOLS.min, PROTOCOLS.max),
        );
        refusal.problem.protocol = Some(PROTOCOLS);
        refusal
    }

    /// A part of an upload that does not begin where the upload stands.
    pub fn upload_gap(received_bytes: u64) -> Self {
        let mut refusal = Self::new(
            ErrorCode::UploadGap,
            format!("the upload stands at {received_bytes} bytes; send from there"),
        );
        refusal.problem.received_bytes = Some(received_bytes);
        refusal
    }

    /// With one more header.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Given before, to the first of these calls.
    pub fn replayed(self) -> Self {
        self.header(HeaderName::from_static("idempotency-replayed"), HeaderValue::from_static("true"))
    }

    /// With the seconds after which a repeat is worth it.
    pub fn retry_after(self, seconds: u32) -> Self {
        self.header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// Closes the connection after the answer, so that the rest of the body need not be read.
    pub fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// Which entry of the table it is.
    pub fn code(&self) -> ErrorCode {
        self.problem.code
    }

    /// The answer, naming the request.
    pub fn answer(&self, request_id: &str) -> HttpResponse {
        let mut problem = self.problem.clone();
        request_id.clone_into(&mut problem.request_id);
        let mut response = HttpResponseBuilder::new(self.status_code());
        response.content_type("application/problem+json");
        for (name, value) in &self.headers {
            response.insert_header((name.clone(), value.clone()));
        }
        if self.close {
            response.force_close();
        }
        match serde_json::to_vec(&*problem) {
            Ok(body) => response.body(body),
            Err(_) => response.finish(),
        }
    }

    /// Gives an error of actix itself its place in the table.
    pub fn of_actix(error: &actix_web::Error) -> Self {
        let status = error.as_response_error().status_code();
        let code = match status.as_u16() {
            404 => ErrorCode::NotFound,
            405 => ErrorCode::MethodNotAllowed,
            413 => ErrorCode::BodyTooLarge,
            415 => ErrorCode::UnsupportedMediaType,
            416 => ErrorCode::RangeNotSatisfiable,
            400..=499 => ErrorCode::BadRequest,
            503 => ErrorCode::NotReady,
            _ => ErrorCode::Internal,
        };
        Self::new(code, error.to_string())
    }
}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    // The outermost middleware renders it again with the request's id.
    fn error_response(&self) -> HttpResponse {
        self.answer("")
    }
}

impl From<SubmitRefusal> for Refusal {
    fn from(refusal: SubmitRefusal) -> Self {
        match refusal {
            SubmitRefusal::StorageFull => Self::new(
                ErrorCode::StorageFull,
                "the server's disk is nearly full; free some space and submit again",
            ),
            SubmitRefusal::ProjectFull(full) if full.never_fits() => {
                let most = full.most;
                let detail = format!(
                    "{full}, however long you wait: submit at most {most} at a time (`--array` of at most {most}), or have the \
                     limit raised"
                );
                Self::new(ErrorCode::ProjectFull, detail)
            }
            SubmitRefusal::ProjectFull(full) => Self::new(
                ErrorCode::ProjectFull,
                format!("{full}: wait until some have ended, cancel some, or have the limit raised"),
            ),
            SubmitRefusal::Stopping => Self::stopping(),
            SubmitRefusal::Revoked => Self::unauthenticated_as(
                ErrorCode::TokenRevoked,
                "the token was revoked while this request was on its way",
            ),
        }
    }
}

impl From<Unreadable> for Refusal {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Faults(faults) => Self::spec(faults),
            Unreadable::Artifacts(error) => Self::from(error),
            Unreadable::Owners(error) => Self::internal(error),
            Unreadable::Write(error) => Self::internal(error),
        }
    }
}

impl From<ArtifactError> for Refusal {
    fn from(error: ArtifactError) -> Self {
        match error {
            ArtifactError::StorageFull { .. } => Self::new(
                ErrorCode::StorageFull,
                "the server's disk is full; what was received is kept for 24 h",
            ),
            ArtifactError::DigestMismatch { .. } => Self::new(ErrorCode::DigestMismatch, error.to_string()),
            ArtifactError::TooLarge { .. } => Self::new(ErrorCode::ArtifactTooLarge, error.to_string()),
            ArtifactError::UploadBusy { .. } => {
                Self::new(ErrorCode::Overloaded, error.to_string()).retry_after(1).closing()
            }
            ArtifactError::Absent { .. } | ArtifactError::Damaged { .. } => {
                Self::new(ErrorCode::NotFound, error.to_string())
            }
            ArtifactError::Io { .. } | ArtifactError::NotRegular { .. } => Self::internal(error),
        }
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::internal(error)
    }
}

impl From<JobNotEnded> for Refusal {
    fn from(refusal: JobNotEnded) -> Self {
        Self::new(
            ErrorCode::JobNotEnded,
            format!("the job is {}; cancel it, or wait for its end", refusal.state.word()),
        )
    }
}

impl From<TokenRefusal> for Refusal {
    fn from(refusal: TokenRefusal) -> Self {
        match refusal {
            TokenRefusal::NameTaken => Self::new(ErrorCode::NameTaken, refusal.to_string()),
            TokenRefusal::Unknown => Self::new(ErrorCode::NotFound, refusal.to_string()),
            TokenRefusal::LastAdmin => Self::new(
                ErrorCode::LastAdmin,
                "without it nobody could administer this server from afar; make another admin token first, or revoke \
                 it on the server's own machine",
            ),
            TokenRefusal::Used => Self::unauthenticated_as(
                ErrorCode::TokenUsed,
                "the token has registered another worker already, or was revoked; ask for another",
            ),
        }
    }
}

impl From<WorkerRefusal> for Refusal {
    fn from(refusal: WorkerRefusal) -> Self {
        let code = match refusal {
            WorkerRefusal::Revoked => ErrorCode::SessionRevoked,
            WorkerRefusal::Superseded => ErrorCode::Superseded,
            WorkerRefusal::IdentityInUse => ErrorCode::IdentityInUse,
        };
        Self::new(code, refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbuilt_fields_alone_are_not_supported_else_the_spec_is_invalid() {
        let fault = |code: &str| Fault { pointer: "/x".into(), code: code.into(), detail: "d".into() };
        assert_eq!(Refusal::spec(vec![fault("not_supported")]).code(), ErrorCode::NotSupported);
        assert_eq!(
            Refusal::spec(vec![fault("not_supported"), fault("invalid")]).code(),
            ErrorCode::InvalidSpec
        );
    }

    #[test]
    fn a_refusal_carries_its_headers_and_the_request_id() {
        let answer = Refusal::unauthenticated("no token").answer("req_1");
        assert_eq!(answer.status(), 401);
        assert!(answer.headers().contains_key("www-authenticate"));
        assert_eq!(answer.headers().get("content-type").unwrap(), "application/problem+json");
    }
}
