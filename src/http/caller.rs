//! Who is calling: the connection's origin and the token together name the caller, and each route says whom it
//! lets in.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use actix_web::dev::{Extensions, Payload};
use actix_web::http::header;
use actix_web::{FromRequest, HttpMessage, HttpRequest};
use sha2::{Digest, Sha256};

use super::refusal::Refusal;
use super::state::EdgeState;
use crate::actors::messages::front_desk::WorkerRefusal;
use crate::clock;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::WorkerId;
use crate::contract::quantity::Timestamp;
use crate::contract::token::Role;
use crate::credentials::known::{Holder, Pass, Standing};
use crate::domain::credentials::{Author, Grant};

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
#[derive(Debug, Clone)]
pub enum Caller {
    /// Nobody in particular: TCP without a token.
    Anonymous,
    /// A client.
    Client(Client),
    /// A holder of a join or instance token.
    Join(Arc<Pass>),
    /// A worker, by its session.
    Worker(WorkerCaller),
}

/// A client: the local user on the Unix socket, or a token.
#[derive(Debug, Clone)]
pub struct Client {
    /// What it may do, and as whom.
    pub grant: Arc<Grant>,
    /// On the server's own Unix socket.
    pub local: bool,
    /// Tells credentials apart where keys are scoped to them.
    pub credential: [u8; 32],
    /// Its token; none on the Unix socket.
    pub pass: Option<Arc<Pass>>,
    /// Where it calls from.
    pub address: Option<IpAddr>,
}

impl Client {
    /// `submitted_by` of its jobs.
    pub fn user(&self) -> &str {
        &self.grant.user
    }

    /// For the record.
    pub fn author(&self) -> Box<Author> {
        Box::new(Author {
            name: self.grant.name.to_string(),
            role: self.grant.role,
            from: self.address.map_or_else(|| "unix_socket".to_owned(), |address| address.to_string()),
        })
    }

    /// Refuses whoever was let in and is not any more.
    pub fn still_admitted(&self) -> Result<(), Refusal> {
        self.pass.as_ref().map_or(Ok(()), |pass| standing(pass))
    }
}

impl Caller {
    /// Refuses whoever was let in and is not any more; of a worker its session knows.
    pub fn still_admitted(&self) -> Result<(), Refusal> {
        match self {
            Caller::Client(client) => client.still_admitted(),
            Caller::Join(pass) => standing(pass),
            Caller::Anonymous | Caller::Worker(_) => Ok(()),
        }
    }
}

/// A worker, by its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerCaller {
    /// Which.
    pub worker_id: WorkerId,
    /// Its session was ended: it is told so, and nothing else.
    pub over: bool,
}

/// Whom a route lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Everybody, without a token.
    Open,
    /// Clients of every role.
    Client,
    /// Clients that may submit.
    Submitter,
    /// Clients with role `admin`.
    Admin,
    /// Holders of a join or instance token.
    Join,
    /// Workers, by their session.
    Worker,
    /// Workers, also when their session is over.
    WorkerOrFormer,
    /// Clients, and workers for the artifacts of their tasks.
    ClientOrWorker,
    /// Clients that may submit, and workers.
    SubmitterOrWorker,
}

impl Access {
    /// Whether the call is one of the worker protocol.
    pub fn is_of_workers(self) -> bool {
        matches!(self, Access::Worker | Access::WorkerOrFormer | Access::Join)
    }

    fn admits(self, caller: &Caller) -> bool {
        match (self, caller) {
            (Access::Open, _) => true,
            (_, Caller::Anonymous) => false,
            (Access::Client | Access::ClientOrWorker, Caller::Client(_)) => true,
            (Access::Submitter | Access::SubmitterOrWorker, Caller::Client(client)) => {
                client.grant.role != Role::Viewer
            }
            (Access::Admin, Caller::Client(client)) => client.grant.role == Role::Admin,
            (Access::Join, Caller::Join(_)) => true,
            (
                Access::Worker | Access::WorkerOrFormer | Access::ClientOrWorker | Access::SubmitterOrWorker,
                Caller::Worker(_),
            ) => true,
            (_, Caller::Client(_) | Caller::Join(_) | Caller::Worker(_)) => false,
        }
    }

    /// Refuses whom the route does not let in.
    pub fn check(self, caller: &Caller) -> Result<(), Refusal> {
        if self.admits(caller) {
            return match caller {
                Caller::Worker(worker)
                    if worker.over && !matches!(self, Access::Open | Access::WorkerOrFormer) =>
                {
                    Err(WorkerRefusal::Revoked.into())
                }
                _ => Ok(()),
            };
        }
        let needed = match self {
            Access::Open | Access::Client => "a client token (`glc_…`)",
            Access::Submitter => "a client token with role `submitter` or `admin`",
            Access::Admin => "a client token with role `admin`",
            Access::Join => "a join token (`glj_…`)",
            Access::Worker | Access::WorkerOrFormer => "a worker's session token (`gls_…`)",
            Access::ClientOrWorker => "a client's or a worker's token",
            Access::SubmitterOrWorker => "a worker's token, or a client's with role `submitter` or `admin`",
        };
        match caller {
            Caller::Anonymous => Err(Refusal::unauthenticated(&format!(
                "this call needs {needed} in `Authorization: Bearer …`"
            ))),
            Caller::Client(client) => Err(Refusal::new(
                ErrorCode::Forbidden,
                format!("this call needs {needed}; yours has role `{}`", client.grant.role.word()),
            )),
            Caller::Join(_) | Caller::Worker(_) => {
                Err(Refusal::new(ErrorCode::Forbidden, format!("this call needs {needed}")))
            }
        }
    }
}

/// Refuses a token that is not taken any more.
fn standing(pass: &Pass) -> Result<(), Refusal> {
    match pass.standing(clock::now()) {
        Standing::Valid => Ok(()),
        Standing::Revoked => Err(Refusal::unauthenticated_as(
            ErrorCode::TokenRevoked,
            format!("the token `{}` was revoked; ask for another", pass.name()),
        )),
        Standing::Expired => {
            let when = pass.expires_at().map(|end| format!(" at {end}")).unwrap_or_default();
            Err(Refusal::unauthenticated_as(
                ErrorCode::TokenExpired,
                format!("the token `{}` expired{when}; ask for another", pass.name()),
            ))
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
    let mut given = request.headers().get_all(header::AUTHORIZATION);
    let Some(header) = given.next() else {
        return Ok(match origin {
            Origin::Unix { .. } => Caller::Client(state.local_client()),
            Origin::Tcp => Caller::Anonymous,
        });
    };
    if given.next().is_some() {
        // Which of them counts would be a guess, and whatever stands in between may guess otherwise.
        return Err(Refusal::unauthenticated("`Authorization` was sent more than once"));
    }
    let token = header
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let found = token.and_then(|(_, token)| state.ports.credentials.find(token.trim()));
    let refusal = match found {
        Some(pass) => match admitted(pass, request) {
            Ok(caller) => return Ok(caller),
            Err(refusal) => refusal,
        },
        None => Refusal::unauthenticated(
            "the token is not valid here; was it made by another server, or cut short?",
        ),
    };
    let too_many =
        request.peer_addr().is_some_and(|address| state.failed_logins.record(address.ip(), Instant::now()));
    Err(if too_many {
        Refusal::new(ErrorCode::RateLimited, "too many failed log-ins from this address; wait a minute")
            .retry_after(FORGIVEN_AFTER_S)
    } else {
        refusal
    })
}

/// The caller that a known token stands for.
fn admitted(pass: Arc<Pass>, request: &HttpRequest) -> Result<Caller, Refusal> {
    if let Holder::Session { worker_id } = *pass.holder() {
        // Its heartbeat is answered all the same.
        let over = pass.standing(Timestamp::default()) == Standing::Revoked;
        return Ok(Caller::Worker(WorkerCaller { worker_id, over }));
    }
    standing(&pass)?;
    pass.note_use(clock::now());
    Ok(match pass.holder() {
        Holder::Client(grant) => Caller::Client(Client {
            grant: grant.clone(),
            local: false,
            credential: *pass.hash(),
            // IPv4 looks like IPv4, also on a socket for both.
            address: request.peer_addr().map(|address| address.ip().to_canonical()),
            pass: Some(pass),
        }),
        Holder::Join | Holder::Session { .. } => Caller::Join(pass),
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

/// Tells the local user from tokens, where keys are scoped to credentials.
pub fn local_credential(uid: u32) -> [u8; 32] {
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

/// A holder of a join or instance token.
#[derive(Debug)]
pub struct JoinCaller(pub Arc<Pass>);

impl FromRequest for JoinCaller {
    type Error = Refusal;
    type Future = std::future::Ready<Result<Self, Refusal>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        std::future::ready(match caller_of(request) {
            Caller::Join(pass) => Ok(Self(pass)),
            other => Err(Access::Join.check(&other).err().unwrap_or_else(Refusal::stopping)),
        })
    }
}

impl FromRequest for WorkerCaller {
    type Error = Refusal;
    type Future = std::future::Ready<Result<Self, Refusal>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        std::future::ready(match caller_of(request) {
            Caller::Worker(worker) => Ok(worker),
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
