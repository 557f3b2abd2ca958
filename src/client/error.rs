//! What can go wrong between a client and its server.

use std::io;
use std::path::PathBuf;

use super::connection_string::ConnectionStringError;
use super::endpoint::{Endpoint, EndpointError};
use super::proxy::ProxyError;
use crate::contract::artifact::Digest;
use crate::contract::problem::Problem;
use crate::tls::TlsFault;

/// A boxed cause whose type is the HTTP library's.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A call that did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The connection string cannot be used.
    #[error(transparent)]
    ConnectionString(#[from] ConnectionStringError),
    /// It answers, and is not who it should be, or the line is not encrypted as it should be. Nothing was sent.
    #[error("no safe connection to {endpoint}")]
    Tls {
        /// The server.
        endpoint: Endpoint,
        /// What failed and what was seen.
        source: Box<TlsFault>,
    },
    /// The proxy on the way does not let the connection through.
    #[error("no way to {endpoint} through the proxy {proxy}")]
    Proxy {
        /// The server.
        endpoint: Endpoint,
        /// Scheme, host and port, never its password.
        proxy: String,
        /// What the proxy said, or why it cannot be used.
        source: ProxyError,
    },
    /// The token holds characters no header may hold.
    #[error("the token cannot be sent: it holds characters other than visible ASCII")]
    BadToken,
    /// Nothing listens there, or it cannot be reached.
    #[error("no answer from {endpoint}")]
    Unreachable {
        /// The server.
        endpoint: Endpoint,
        /// What the connection attempt said.
        source: io::Error,
    },
    /// The server took the call and said nothing: it may have been carried out.
    #[error("{endpoint} took {operation}, and has not answered for {within_s} s")]
    Silent {
        /// The server.
        endpoint: Endpoint,
        /// Method and path.
        operation: String,
        /// How long it was waited for.
        within_s: u64,
    },
    /// The per-user daemon did not start.
    #[error("the daemon could not be started")]
    NotStarted {
        /// Why.
        source: Cause,
    },
    /// The connection broke after the request was sent: it may have been carried out.
    #[error("the connection was cut during {operation}")]
    Cut {
        /// Method and path.
        operation: String,
        /// What broke.
        source: Cause,
    },
    /// The server refused.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    /// An error answer that is not problem+json: something else listens there.
    #[error("{operation} was answered with status {status}, but not by a GPUlayer server: {body}")]
    Unexpected {
        /// Method and path.
        operation: String,
        /// HTTP status.
        status: u16,
        /// The beginning of the body.
        body: String,
    },
    /// A good answer whose body does not have the expected shape.
    #[error("the answer to {operation} cannot be read")]
    BadAnswer {
        /// Method and path.
        operation: String,
        /// Where it differs.
        source: serde_json::Error,
    },
    /// A request body that cannot be written as JSON.
    #[error("the request {operation} cannot be written")]
    BadRequest {
        /// Method and path.
        operation: String,
        /// What cannot be written.
        source: serde_json::Error,
    },
    /// A path that is no URI.
    #[error("{operation} is not a valid request path")]
    BadPath {
        /// Method and path.
        operation: String,
        /// Why.
        source: hyper::http::uri::InvalidUri,
    },
    /// A file of this side could not be read or written.
    #[error("cannot {operation} {path}", path = .path.display())]
    File {
        /// `read`, `write`, …
        operation: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What arrived does not have the digest it was asked by.
    #[error("the bytes received for {expected} have the digest {received}")]
    DigestMismatch {
        /// Asked for.
        expected: Digest,
        /// Received.
        received: Digest,
    },
}

impl ClientError {
    /// The server's refusal, when it was one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            ClientError::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the server's name has no address here. The system's word for that has no kind of its own.
    pub fn is_unknown_name(&self) -> bool {
        matches!(self, ClientError::Unreachable { source, .. } if source.to_string().contains("lookup address"))
    }

    /// Whether the server was not there, went away, or fell silent.
    pub fn is_connection(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } | ClientError::Cut { .. } | ClientError::Silent { .. } => true,
            ClientError::Proxy { source, .. } => source.may_pass(),
            _ => false,
        }
    }
}
