//! The HTTP/1.1 client of the command line and of remote workers: JSON calls, transfers and event streams over a
//! Unix socket, TLS or TCP, also through a proxy. Keeps idle connections, tells "unreachable" from "cut", and repeats
//! by itself only what may be repeated. Reads no configuration but the proxy variables that all programs know; never
//! starts anything unless it was given a [`Revive`].

mod connection;
pub mod connection_string;
pub mod dead_peer;
pub mod endpoint;
pub mod error;
pub mod event_stream;
pub mod http_channel;
mod line;
pub mod look;
pub mod proxy;
mod route;
pub mod transfer;
pub mod worker_channel;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::contract::error_code::ErrorCode;
use crate::contract::problem::Problem;
use crate::contract::protocol::START_HEADER;

pub use crate::tls::Trust;
pub use connection::RequestBody;
use connection::{Connection, Exchange, Unsent};
pub use connection_string::ConnectionString;
pub use endpoint::Endpoint;
pub use error::ClientError;
pub use look::TlsLook;
pub use proxy::Proxy;
use route::Route;

/// The header every answer of a server carries: its version.
pub const VERSION_HEADER: &str = "x-gpulayer-version";
/// The header that makes a repeated call harmless.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// An answer larger than this is refused unless it goes to a file (bytes).
const MAX_ANSWER_BYTES: usize = 256 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Brings a server back that does not answer: the per-user daemon, which starts on demand.
pub trait Revive: Send + Sync {
    /// Returns when the server answers, or says why it cannot be started. May block.
    fn revive(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// Speaks with one server. Cheap to clone; clones share the idle connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    route: Route,
    headers: HeaderMap,
    reconnect_for: Duration,
    answer_within: Option<Duration>,
    revive: Option<Arc<dyn Revive>>,
    /// How much of a body the way to the server takes at once, as far as that was met.
    part_bytes: Arc<AtomicU64>,
    idle: Mutex<Vec<Connection>>,
    server_version: OnceLock<String>,
    server_start: Mutex<Option<HeaderValue>>,
}

/// One call: what is asked, and whether it may be sent again after a cut.
#[derive(Debug, Clone)]
pub struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Option<Bytes>,
    repeatable: bool,
}

/// A whole answer with a status below 400.
#[derive(Debug)]
pub struct Answer {
    operation: String,
    /// HTTP status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Call {
    fn new(method: Method, path: impl Into<String>, repeatable: bool) -> Self {
        Self { method, path: path.into(), headers: HeaderMap::new(), body: None, repeatable }
    }

    /// A read; repeated after a cut. `path` begins with `/` and is percent-encoded.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, true)
    }

    /// As [`Call::get`], headers only.
    pub fn head(path: impl Into<String>) -> Self {
        Self::new(Method::HEAD, path, true)
    }

    /// A mutation without an idempotency key: for calls that are harmless to repeat by their own rules
    /// (the worker protocol), when `repeatable`.
    pub fn post(path: impl Into<String>, repeatable: bool) -> Self {
        Self::new(Method::POST, path, repeatable)
    }

    /// A POST under a fresh random idempotency key; repeated after a cut.
    pub fn mutate(path: impl Into<String>) -> Self {
        Self::keyed(Method::POST, path)
    }

    /// A DELETE under a fresh random idempotency key; repeated after a cut.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::keyed(Method::DELETE, path)
    }

    fn keyed(method: Method, path: impl Into<String>) -> Self {
        let key = hex::encode(rand::random::<[u8; 16]>());
        Self::new(method, path, true).header(IDEMPOTENCY_HEADER, &key)
    }

    /// Adds a header, named in lower case; a value with line breaks is left out.
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(HeaderName::from_static(name), value);
        }
        self
    }

    /// Sets a JSON body.
    pub fn json(mut self, body: &impl Serialize) -> Result<Self, ClientError> {
        let body = serde_json::to_vec(body)
            .map_err(|source| ClientError::BadRequest { operation: self.operation(), source })?;
        self.body = Some(body.into());
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(self)
    }

    fn operation(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// How long it asks the server to wait.
    fn wait(&self) -> Duration {
        let asked = self.path.split(['?', '&']).skip(1).find_map(|part| part.strip_prefix("wait_s="));
        let seconds = asked.and_then(|text| text.parse().ok());
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
    }
}

impl Answer {
    /// Reads the body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body)
            .map_err(|source| ClientError::BadAnswer { operation: self.operation.clone(), source })
    }

    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Client {
    /// A client that has not connected yet.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            shared: Arc::new(Shared {
                route: Route::to(endpoint),
                headers: HeaderMap::new(),
                reconnect_for: Duration::from_secs(10),
                answer_within: None,
                revive: None,
                part_bytes: Arc::new(AtomicU64::new(transfer::LARGEST_PART_BYTES)),
                idle: Mutex::new(Vec::new()),
                server_version: OnceLock::new(),
                server_start: Mutex::new(None),
            }),
        }
    }

    fn rebuilt(self, change: impl FnOnce(&mut Shared)) -> Self {
        let shared = &self.shared;
        let mut shared = Shared {
            route: shared.route.clone(),
            headers: shared.headers.clone(),
            reconnect_for: shared.reconnect_for,
            answer_within: shared.answer_within,
            revive: shared.revive.clone(),
            part_bytes: Arc::clone(&shared.part_bytes),
            idle: Mutex::new(Vec::new()),
            server_version: OnceLock::new(),
            server_start: Mutex::new(None),
        };
        change(&mut shared);
        Self { shared: Arc::new(shared) }
    }

    /// Whom to believe over TLS; by default the system's certificate authorities.
    pub fn with_trust(self, trust: Trust) -> Self {
        self.rebuilt(|shared| shared.route.trust(trust))
    }

    /// Through this proxy or none, instead of what the environment says.
    pub fn with_proxy(self, proxy: Option<Proxy>) -> Self {
        self.rebuilt(|shared| shared.route.through(proxy))
    }

    /// Sends `Authorization: Bearer TOKEN` with every request.
    pub fn with_token(self, token: &str) -> Result<Self, ClientError> {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| ClientError::BadToken)?;
        value.set_sensitive(true);
        Ok(self.rebuilt(|shared| {
            shared.headers.insert(header::AUTHORIZATION, value);
        }))
    }

    /// Sends a fixed header with every request.
    pub fn with_header(self, name: HeaderName, value: HeaderValue) -> Self {
        self.rebuilt(|shared| {
            shared.headers.insert(name, value);
        })
    }

    /// For how long a call that was cut tries to reach the server again (10 s by default).
    pub fn with_reconnect_for(self, span: Duration) -> Self {
        self.rebuilt(|shared| shared.reconnect_for = span)
    }

    /// How long a server that took a call may stay silent, beyond a `wait_s` of the call; without a limit by default.
    /// Uploads are never limited.
    pub fn with_answer_within(self, span: Duration) -> Self {
        self.rebuilt(|shared| shared.answer_within = Some(span))
    }

    /// Starts the server when it does not answer.
    pub fn with_revive(self, revive: Arc<dyn Revive>) -> Self {
        self.rebuilt(|shared| shared.revive = Some(revive))
    }

    /// Where it connects to.
    pub fn endpoint(&self) -> &Endpoint {
        self.shared.route.endpoint()
    }

    /// Whom it believes over TLS.
    pub fn trust(&self) -> &Trust {
        self.shared.route.trusted()
    }

    /// The server's version, as its first answer told it.
    pub fn server_version(&self) -> Option<&str> {
        self.shared.server_version.get().map(String::as_str)
    }

    /// Which start of the server answered last; an older server does not say.
    pub fn server_start(&self) -> Option<HeaderValue> {
        self.shared.server_start.lock().clone()
    }

    /// Reads JSON.
    pub async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        self.answer(&Call::get(path)).await?.json()
    }

    /// Sends JSON under an idempotency key and reads JSON.
    pub async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, ClientError> {
        self.answer(&Call::mutate(path).json(body)?).await?.json()
    }

    /// Deletes under an idempotency key.
    pub async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.answer(&Call::delete(path)).await.map(drop)
    }

    /// Sends a call and reads the whole answer. After a cut a repeatable call is sent again, at once and then with
    /// growing pauses while the server is away, for [`Client::with_reconnect_for`].
    pub async fn answer(&self, call: &Call) -> Result<Answer, ClientError> {
        self.answer_within(call, self.shared.reconnect_for).await
    }

    /// As [`Client::answer`], with a time of its own to reach the server again.
    pub async fn answer_within(&self, call: &Call, reconnect_for: Duration) -> Result<Answer, ClientError> {
        let mut retry = Retry::new(reconnect_for);
        loop {
            let failed = match self.answer_once(call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if !call.repeatable || !retry.pause_after(&failed).await {
                return Err(failed);
            }
        }
    }

    async fn answer_once(&self, call: &Call) -> Result<Answer, ClientError> {
        let operation = call.operation();
        let (head, body, connection) = self.open(call).await?;
        let whole = http_body_util::Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        let body =
            whole.map_err(|source| ClientError::Cut { operation: operation.clone(), source })?.to_bytes();
        self.keep(connection);
        let answer = Answer { operation, status: head.status, headers: head.headers, body };
        if answer.status.as_u16() < 400 && by_gpulayer(&answer.headers) {
            Ok(answer)
        } else {
            Err(refusal(answer))
        }
    }

    /// Sends a call once and hands the answer out unread, whatever its status.
    async fn open(
        &self,
        call: &Call,
    ) -> Result<(hyper::http::response::Parts, hyper::body::Incoming, Connection), ClientError> {
        let operation = call.operation();
        let within = self.shared.answer_within.map(|span| span + call.wait());
        let exchange = self
            .exchange(&operation, within, |client| {
                let body = call.body.clone().map_or_else(RequestBody::empty, RequestBody::whole);
                client.request(call.method.clone(), &call.path, &call.headers, body)
            })
            .await?;
        let (head, body) = exchange.response.into_parts();
        if self.shared.server_version.get().is_none()
            && let Some(version) = head.headers.get(VERSION_HEADER).and_then(|value| value.to_str().ok())
        {
            let _ = self.shared.server_version.set(version.to_owned());
        }
        if let Some(start) = head.headers.get(START_HEADER) {
            let mut known = self.shared.server_start.lock();
            if known.as_ref() != Some(start) {
                *known = Some(start.clone());
            }
        }
        Ok((head, body, exchange.connection))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: RequestBody,
    ) -> Result<Request<RequestBody>, ClientError> {
        let operation = format!("{method} {path}");
        let mut request = Request::new(body);
        *request.method_mut() = method;
        let route = &self.shared.route;
        *request.uri_mut() =
            route.target(path).map_err(|source| ClientError::BadPath { operation, source })?;
        let target = request.headers_mut();
        target.reserve(self.shared.headers.len() + headers.len() + 2);
        target.insert(header::HOST, route.endpoint().host_header());
        if let Some(word) = route.proxy_authorization() {
            target.insert(header::PROXY_AUTHORIZATION, word);
        }
        target.extend(
            self.shared.headers.iter().chain(headers).map(|(name, value)| (name.clone(), value.clone())),
        );
        Ok(request)
    }

    /// Sends a request over an idle connection, or over a new one. A request that an idle connection never took
    /// (the server had closed it) goes over a new one.
    async fn exchange(
        &self,
        operation: &str,
        within: Option<Duration>,
        request: impl Fn(&Self) -> Result<Request<RequestBody>, ClientError>,
    ) -> Result<Exchange, ClientError> {
        let mut next = request(self)?;
        while let Some(connection) = self.idle_connection() {
            match self.send(connection, operation, next, within).await {
                Ok(exchange) => return Ok(exchange),
                Err(unsent) => match unsent.request {
                    Some(request) => next = *request,
                    None => return Err(unsent.error),
                },
            }
        }
        let connection = self.connect().await?;
        match self.send(connection, operation, next, within).await {
            Ok(exchange) => Ok(exchange),
            Err(Unsent { error, .. }) if self.shared.server_version.get().is_none() => {
                Err(self.shared.route.explained(error).await)
            }
            Err(unsent) => Err(unsent.error),
        }
    }

    async fn send(
        &self,
        connection: Connection,
        operation: &str,
        request: Request<RequestBody>,
        within: Option<Duration>,
    ) -> Result<Exchange, Unsent> {
        let sent = connection.send(operation, request);
        let Some(within) = within else { return sent.await };
        tokio::time::timeout(within, sent).await.unwrap_or_else(|_| {
            Err(Unsent { error: self.silent(operation.to_owned(), within), request: None })
        })
    }

    fn silent(&self, operation: String, within: Duration) -> ClientError {
        ClientError::Silent { endpoint: self.endpoint().clone(), operation, within_s: within.as_secs() }
    }

    async fn connect(&self) -> Result<Connection, ClientError> {
        let refused = match self.shared.route.open().await {
            Ok(connection) => return Ok(connection),
            Err(refused) => refused,
        };
        match &self.shared.revive {
            Some(revive) if refused.is_connection() => {
                revive.revive().map_err(|source| ClientError::NotStarted { source })?;
                self.shared.route.open().await
            }
            _ => Err(refused),
        }
    }

    fn idle_connection(&self) -> Option<Connection> {
        let mut idle = self.shared.idle.lock();
        loop {
            let connection = idle.pop()?;
            if connection.usable() {
                return Some(connection);
            }
        }
    }

    /// Lets go of the connections that wait for the next call: what broke one may have broken all.
    pub fn forget_connections(&self) {
        self.shared.idle.lock().clear();
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.shared.idle.lock();
        if idle.len() < 8 {
            idle.push(connection);
        }
    }
}

/// Decides whether a failed call is sent again: at once after the first cut, then with growing pauses, and only
/// while there is reason to believe that the server comes back.
pub struct Retry {
    deadline: Instant,
    pause: Duration,
    was_cut: bool,
}

impl Retry {
    /// For one call: a server that was never reached is not waited for.
    pub fn new(span: Duration) -> Self {
        Self { deadline: Instant::now() + span, pause: Duration::ZERO, was_cut: false }
    }

    /// For following something that is known to be there: a server that does not answer is waited for.
    pub fn patient(span: Duration) -> Self {
        Self { was_cut: true, ..Self::new(span) }
    }

    /// Waits before the next try; `false` when there is none.
    pub async fn pause_after(&mut self, failed: &ClientError) -> bool {
        match failed {
            ClientError::Cut { .. } => self.was_cut = true,
            // It is leaving, or not there yet: what comes after it answers.
            ClientError::Refused(problem) if problem.code == ErrorCode::NotReady => self.was_cut = true,
            // Somebody else sends the same artifact, or too much is waiting.
            ClientError::Refused(problem) if problem.code == ErrorCode::Overloaded => {}
            failed if failed.is_connection() && self.was_cut => {}
            _ => return false,
        }
        if Instant::now() + self.pause > self.deadline {
            return false;
        }
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        true
    }
}

/// Whether our server answered: a proxy or a captive portal may answer in its place, also with 200.
fn by_gpulayer(headers: &HeaderMap) -> bool {
    headers.contains_key(VERSION_HEADER)
}

/// What an answer of 400 and above means, or one that is not our server's.
fn refusal(answer: Answer) -> ClientError {
    match serde_json::from_slice::<Problem>(&answer.body) {
        Ok(problem) => ClientError::Refused(Box::new(problem)),
        Err(_) => ClientError::Unexpected {
            operation: answer.operation,
            status: answer.status.as_u16(),
            body: String::from_utf8_lossy(&answer.body).chars().take(300).collect(),
        },
    }
}

/// Reads a refused answer that was left unread.
async fn refusal_of(operation: String, response: Response<hyper::body::Incoming>) -> ClientError {
    let (head, body) = response.into_parts();
    match http_body_util::Limited::new(body, 1 << 20).collect().await {
        Ok(whole) => {
            refusal(Answer { operation, status: head.status, headers: head.headers, body: whole.to_bytes() })
        }
        Err(source) => ClientError::Cut { operation, source },
    }
}
