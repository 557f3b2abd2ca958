//! Who is calling: the connection's origin and the token together name the caller, and each route says whom it
//! lets in.

use std::sync::Arc;
use std::time::Instant;

use actix_web::dev::{Extensions, Payload};
use actix_web::http::header;
use actix_web::{FromRequest, HttpMessage, HttpRequest};
use sha2::{Digest, Sha256};

use super::credentials::Credential;
use super::refusal::Refusal;
use super::state::EdgeState;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::WorkerId;

/// Where a connection comes from; kept with the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The Unix socket, and the user at its other end; `None` when the kernel did not say.
    Unix {
        /// Its user id.
        uid: Option<u32>,
    },
    /// TCP.
    Tcp,
}

/// Notes a new connection's origin.
pub fn note_origin(connection: &dyn std::any::Any, extensions: &mut Extensions) {
    let origin = match connection.downcast_ref::<tokio::net::UnixStream>() {
        Some(socket) => Origin::Unix { uid: socket.peer_cred().ok().map(|peer| peer.uid()) },
        None => Origin::Tcp,
    };
    extensions.insert(origin);
}

/// Who is calling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Nobody in particular: TCP without a token.
    Anonymous,
    /// A client with role `admin`.
    Client(Client),
    /// A holder of the join token.
    Join,
    /// A worker, by its session.
    Worker(WorkerId),
}

/// A client: the local user on the Unix socket, or a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// `submitted_by` of its jobs.
    pub name: Arc<str>,
    /// On the server's own Unix socket.
    pub local: bool,
    /// Tells credentials apart where keys are scoped to them.
    pub credential: [u8; 32],
}

/// Whom a route lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Everybody, without a token.
    Open,
    /// Clients.
    Client,
    /// Clients with role `admin` (all there are so far).
    Admin,
    /// Holders of the join token.
    Join,
    /// Workers, by their session.
    Worker,
    /// Clients, and workers for the artifacts of their tasks.
    ClientOrWorker,
}

impl Access {
    /// Refuses whom the route does not let in.
    pub fn check(self, caller: &Caller) -> Result<(), Refusal> {
        let admitted = match self {
            Access::Open => true,
            Access::Client | Access::Admin => matches!(caller, Caller::Client(_)),
            Access::Join => matches!(caller, Caller::Join),
            Access::Worker => matches!(caller, Caller::Worker(_)),
            Access::ClientOrWorker => matches!(caller, Caller::Client(_) | Caller::Worker(_)),
        };
        if admitted {
            return Ok(());
        }
        let needed = match self {
            Access::Open | Access::Client => "a client token (`glc_…`)",
            Access::Admin => "a client token with role `admin`",
            Access::Join => "a join token (`glj_…`)",
            Access::Worker => "a worker's session token (`gls_…`)",
            Access::ClientOrWorker => "a client's or a worker's token",
        };
        match caller {
            Caller::Anonymous => Err(Refusal::unauthenticated(&format!(
                "this call needs {needed} in `Authorization: Bearer …`"
            ))),
            Caller::Client(_) | Caller::Join | Caller::Worker(_) => {
                Err(Refusal::new(ErrorCode::Forbidden, format!("this call needs {needed}")))
            }
        }
    }
}

/// `Retry-After` of a refused log-in: until then all failures of an address are forgiven.
const FORGIVEN_AFTER_S: u32 = 60;

/// Names the caller of a request; a wrong token is refused here, a missing one by the route.
pub fn identify(request: &HttpRequest, state: &EdgeState) -> Result<Caller, Refusal> {
    let origin = request.conn_data::<Origin>().copied().unwrap_or(Origin::Tcp);
    // Before any token: on the socket a stolen one is of no use to another user.
    admit_origin(origin, state.own_uid)?;
    if let Some(header) = request.headers().get(header::AUTHORIZATION) {
        let token = header
            .to_str()
            .ok()
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        if let Some((credential, hash)) =
            token.and_then(|(_, token)| state.ports.credentials.find(token.trim()))
        {
            return Ok(match credential {
                Credential::Client { name } => {
                    Caller::Client(Client { name, local: false, credential: hash })
                }
                Credential::Join => Caller::Join,
                Credential::Session { worker_id } => Caller::Worker(worker_id),
            });
        }
        let too_many = request
            .peer_addr()
            .is_some_and(|address| state.failed_logins.record(address.ip(), Instant::now()));
        return Err(if too_many {
            Refusal::new(ErrorCode::RateLimited, "too many failed log-ins from this address; wait a minute")
                .retry_after(FORGIVEN_AFTER_S)
        } else {
            Refusal::unauthenticated(
                "the token is not valid here; was it made by another server, or revoked?",
            )
        });
    }
    Ok(match origin {
        Origin::Unix { .. } => Caller::Client(Client {
            name: state.local_user.clone(),
            local: true,
            credential: local_credential(state.own_uid),
        }),
        Origin::Tcp => Caller::Anonymous,
    })
}

/// The Unix socket admits its own user alone, whatever else a request brings.
fn admit_origin(origin: Origin, own_uid: u32) -> Result<(), Refusal> {
    match origin {
        Origin::Tcp => Ok(()),
        Origin::Unix { uid: Some(uid) } if uid == own_uid => Ok(()),
        Origin::Unix { .. } => Err(Refusal::new(
            ErrorCode::Forbidden,
            format!("this socket admits only the user with id {own_uid}"),
        )),
    }
}

fn local_credential(uid: u32) -> [u8; 32] {
    Sha256::digest(format!("unix:{uid}").as_bytes()).into()
}

/// The name of a local user: from `/etc/passwd`, else `$USER`, else `uid-N`.
pub fn user_name(uid: u32) -> String {
    let listed = std::fs::read_to_string("/etc/passwd").ok().and_then(|users| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let id = fields.nth(1)?;
            (id.parse() == Ok(uid)).then(|| name.to_owned())
        })
    });
    listed.or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| format!("uid-{uid}"))
}

fn caller_of(request: &HttpRequest) -> Caller {
    request.extensions().get::<Caller>().cloned().unwrap_or(Caller::Anonymous)
}

impl FromRequest for Caller {
    type Error = Refusal;
    type Future = std::future::Ready<Result<Self, Refusal>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        std::future::ready(Ok(caller_of(request)))
    }
}

impl FromRequest for Client {
    type Error = Refusal;
    type Future = std::future::Ready<Result<Self, Refusal>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        std::future::ready(match caller_of(request) {
            Caller::Client(client) => Ok(client),
            other => Err(Access::Client.check(&other).err().unwrap_or_else(Refusal::stopping)),
        })
    }
}

/// A worker, by its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerCaller(pub WorkerId);

impl FromRequest for WorkerCaller {
    type Error = Refusal;
    type Future = std::future::Ready<Result<Self, Refusal>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        std::future::ready(match caller_of(request) {
            Caller::Worker(worker_id) => Ok(Self(worker_id)),
            other => Err(Access::Worker.check(&other).err().unwrap_or_else(Refusal::stopping)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_admits_its_own_user_alone() {
        assert!(admit_origin(Origin::Tcp, 7).is_ok());
        assert!(admit_origin(Origin::Unix { uid: Some(7) }, 7).is_ok());
        for uid in [Some(0), Some(8), None] {
            let refused = admit_origin(Origin::Unix { uid }, 7).unwrap_err();
            assert_eq!(refused.code(), ErrorCode::Forbidden);
        }
    }
}
