//! What happens to every request, outermost first: it gets an id, its `Host` is checked, its caller named, its
//! route opened or refused; every error leaves as `application/problem+json`; and it is counted.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::ConnectionType;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};

use super::caller::{Access, Caller, Origin, identify};
use super::incoming;
use super::newcomers::Newcomer;
use super::refusal::Refusal;
use super::routes::RouteEntry;
use super::state::EdgeState;
use crate::contract::error_code::ErrorCode;
use crate::contract::protocol::{PROTOCOL, PROTOCOL_HEADER, START_HEADER};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// On every answer, so that a worker tells a server that was restarted from a network that cut its poll.
const START: HeaderName = HeaderName::from_static(START_HEADER);
/// On every answer, so that a client of another version notices.
const VERSION: HeaderName = HeaderName::from_static("x-gpulayer-version");

/// Names a request, unique within this daemon's life and unlikely to repeat in another.
#[derive(Debug)]
pub struct RequestIds {
    start: u32,
    next: AtomicU64,
}

impl RequestIds {
    /// Begins at a random point.
    pub fn new() -> Self {
        Self { start: rand::random(), next: AtomicU64::new(1) }
    }

    fn next(&self) -> String {
        format!("req_{:08x}{:08x}", self.start, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for RequestIds {
    fn default() -> Self {
        Self::new()
    }
}

/// The outermost layer.
pub async fn outermost(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let begun = Instant::now();
    let Some(state) = request.app_data::<web::Data<EdgeState>>().cloned() else {
        return next.call(request).await.map(ServiceResponse::map_into_boxed_body);
    };
    let request_id = state.request_ids.next();
    let admitted = check_host(request.request(), &state).and_then(|()| identify(request.request(), &state));
    let held = incoming::paced(&mut request, state.patience.body);
    // Strangers get one answer per connection: actix has no clock for the heads of further requests.
    let stranger = matches!(admitted, Ok(Caller::Anonymous) | Err(_));
    if !stranger && let Some(newcomer) = request.conn_data::<Arc<Newcomer>>() {
        newcomer.is_known();
    }
    let response = match admitted {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.call(request).await?.map_into_boxed_body()
        }
        Err(refusal) => ServiceResponse::from_err(refusal, request.into_parts().0),
    };
    let mut response = held.until_answered(name_problem(response, &request_id));
    if stranger {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    response.headers_mut().insert(START, state.start.clone());
    response.headers_mut().insert(VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let route =
        response.request().extensions().get::<&'static RouteEntry>().map_or("unmatched", |entry| entry.path);
    state.metrics.answered(route, response.status().as_u16(), begun.elapsed());
    Ok(response)
}

fn name_problem(response: ServiceResponse<BoxBody>, request_id: &str) -> ServiceResponse<BoxBody> {
    let Some(error) = response.response().error() else {
        return response;
    };
    let answer = match error.as_error::<Refusal>() {
        Some(refusal) => refusal.answer(request_id),
        None => Refusal::of_actix(error).answer(request_id),
    };
    if answer.status().is_server_error() {
        tracing::warn!(
            request_id,
            status = answer.status().as_u16(),
            path = response.request().path(),
            "refused"
        );
    }
    response.into_response(answer)
}

/// TCP checks `Host`, so that a web page cannot reach the daemon through a name of its own (CONTRACT, Requests
/// and answers). That takes a name: an address is never a stranger's.
fn check_host(request: &HttpRequest, state: &EdgeState) -> Result<(), Refusal> {
    if matches!(request.conn_data::<Origin>(), Some(Origin::Unix { .. })) {
        return Ok(());
    }
    let given = request.headers().get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("");
    // A target that is a whole URL names a host too; whatever stands in between may have gone by either.
    let target = request.uri().authority().map(|authority| authority.as_str());
    let known = |name: &str| {
        let name = name.strip_suffix('.').unwrap_or(name);
        name.parse::<IpAddr>().is_ok() || state.hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
    };
    let is_ours = |given: &str| named_host(given).is_some_and(known);
    let given = target.filter(|target| !is_ours(target)).unwrap_or(given);
    if is_ours(given) {
        return Ok(());
    }
    Err(Refusal::new(
        ErrorCode::BadHost,
        format!(
            "`{}` is not a name of this server; it answers to {} and to its addresses: use one of these. Another name \
             has to be in `server_names` of its configuration (or GPULAYER_SERVER_NAMES)",
            given.escape_debug(),
            state.hosts.join(", ")
        ),
    ))
}

/// The name in a `Host`: `name`, `name:port`, `[address]` or `[address]:port`, and nothing else.
pub(super) fn named_host(given: &str) -> Option<&str> {
    let (name, rest) = match given.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            (Some(address).filter(|address| address.parse::<Ipv6Addr>().is_ok())?, rest)
        }
        None => given.split_at(given.find(':').unwrap_or(given.len())),
    };
    let port = rest.is_empty()
        || rest.strip_prefix(':').is_some_and(|port| !port.is_empty() && port.parse::<u16>().is_ok());
    port.then_some(name)
}

/// The layer around one route: notes which it is and lets in whom it admits.
pub async fn at_route(
    entry: &'static RouteEntry,
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let verdict = {
        let mut extensions = request.extensions_mut();
        extensions.insert(entry);
        entry.access.check(extensions.get::<Caller>().unwrap_or(&Caller::Anonymous))
    };
    let verdict = verdict.and_then(|()| match entry.access.is_of_workers() {
        true => check_protocol(request.request()),
        false => Ok(()),
    });
    match verdict {
        Ok(()) => next.call(request).await,
        Err(refusal) => Ok(ServiceResponse::from_err(refusal, request.into_parts().0)),
    }
}

fn check_protocol(request: &HttpRequest) -> Result<(), Refusal> {
    let given = request.headers().get(PROTOCOL_HEADER).and_then(|value| value.to_str().ok());
    match given.and_then(|text| text.trim().parse::<u32>().ok()) {
        Some(PROTOCOL) => Ok(()),
        Some(_) | None => Err(Refusal::protocol(given)),
    }
}

/// A path that leads nowhere.
pub async fn no_such_path(request: HttpRequest, caller: Caller) -> Result<HttpResponse, Refusal> {
    signed_in(&caller)?;
    Err(Refusal::new(ErrorCode::NotFound, format!("there is no call at `{}`", request.path().escape_debug())))
}

/// A path that does not take this method; `allowed` is the `Allow` header.
pub async fn no_such_method(
    allowed: String,
    request: HttpRequest,
    caller: Caller,
) -> Result<HttpResponse, Refusal> {
    signed_in(&caller)?;
    let refusal = Refusal::new(
        ErrorCode::MethodNotAllowed,
        format!("`{}` takes {allowed}, not {}", request.path().escape_debug(), request.method()),
    );
    Err(match HeaderValue::from_str(&allowed) {
        Ok(value) => refusal.header(header::ALLOW, value),
        Err(_) => refusal,
    })
}

fn signed_in(caller: &Caller) -> Result<(), Refusal> {
    match caller {
        Caller::Anonymous => Access::Client.check(caller),
        Caller::Client(_) | Caller::Join(_) | Caller::Worker(_) => Ok(()),
    }
}
