//! The worker's line over HTTP: the session token and the protocol's header on every call; heartbeats, transfers and
//! all other calls each on connections of their own, so that none delays another. What is on its way when the line
//! dies is asked again over a fresh connection as soon as heartbeats are answered again.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::{HeaderName, HeaderValue};
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::line::{CameBack, Line, poll_end};
use super::worker_channel::{Calling, ChannelError, Published, Session, SessionEnd, WorkerChannel};
use super::{Answer, Call, Client, ClientError, Endpoint, Trust};
use crate::contract::artifact::Digest;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, HeartbeatAnswer, HeartbeatRequest, LogsAnswer, LogsRequest, PROTOCOL,
    RegisterAnswer, RegisterRequest, ReportAnswer, ReportRequest, ResumeAnswer, ResumeRequest,
};
use crate::domain::poll_limit::PollEnd;

/// How long an answer may take that the server does not park: a commit on a slow disk, not a dead network.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// A heartbeat that takes longer is worth less than the next one.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(5);
/// What a poll may take beyond the time it parks.
const POLL_MARGIN: Duration = Duration::from_secs(10);
/// How long a transfer that was cut tries to go on where it stood, before it begins anew.
const TRANSFER_PATIENCE: Duration = Duration::from_secs(60);

const REGISTER: &str = "register";

/// A worker's line to a server somewhere else.
pub struct HttpChannel {
    bare: Client,
    join_token: String,
    clients: RwLock<Clients>,
    line: Arc<Line>,
}

#[derive(Clone)]
struct Clients {
    calls: Client,
    heartbeats: Client,
    transfers: Client,
}

impl Clients {
    fn new(bare: &Client, token: &str) -> Result<Self, ClientError> {
        let client = || bare.clone().with_token(token);
        Ok(Self {
            calls: client()?,
            heartbeats: client()?,
            transfers: client()?.with_reconnect_for(TRANSFER_PATIENCE).with_answer_within(TRANSFER_PATIENCE),
        })
    }
}

impl HttpChannel {
    /// A line to `endpoint` that can do nothing but `register` until it was told whom to speak as. `trust` counts for
    /// https only.
    pub fn new(endpoint: Endpoint, trust: Trust, join_token: &str) -> Result<Self, ClientError> {
        let bare = Client::new(endpoint)
            .with_trust(trust)
            .with_header(HeaderName::from_static("x-gpulayer-protocol"), HeaderValue::from(PROTOCOL))
            // The worker repeats by itself, for longer and with its own pauses.
            .with_reconnect_for(Duration::ZERO);
        let clients = RwLock::new(Clients::new(&bare, join_token)?);
        Ok(Self { bare, join_token: join_token.to_owned(), clients, line: Arc::default() })
    }

    fn clients(&self) -> Clients {
        self.clients.read().clone()
    }

    /// A call that is not a heartbeat.
    async fn post<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        request: Q,
        within: Duration,
    ) -> Result<A, Lost> {
        let client = self.clients().calls;
        let post = Call::post(path, true).json(&request)?;
        self.unless_it_comes_back(&client, async { within_reason(&client, &post, within).await?.json() })
            .await
    }

    /// Gives up on an answer when the line was dead meanwhile: the connection may be, and nobody says so.
    async fn unless_it_comes_back<A>(
        &self,
        client: &Client,
        answer: impl Future<Output = Result<A, ClientError>>,
    ) -> Result<A, Lost> {
        let outcome = tokio::select! {
            answer = answer => answer.map_err(Lost::Client),
            () = self.line.comeback() => Err(Lost::CameBack(CameBack)),
        };
        if matches!(&outcome, Err(Lost::CameBack(_))) || outcome.as_ref().is_err_and(Lost::is_connection) {
            client.forget_connections();
        }
        outcome
    }
}

/// Why a call brought no answer.
#[derive(Debug)]
enum Lost {
    CameBack(CameBack),
    Client(ClientError),
}

impl Lost {
    fn is_connection(&self) -> bool {
        match self {
            Lost::CameBack(_) => true,
            Lost::Client(error) => error.is_connection(),
        }
    }

    fn of(self, call: &'static str) -> ChannelError {
        match self {
            Lost::CameBack(source) => ChannelError::Unreachable { call, source: source.into() },
            Lost::Client(error) => failed(call, error),
        }
    }
}

impl From<ClientError> for Lost {
    fn from(error: ClientError) -> Self {
        Lost::Client(error)
    }
}

/// Sends a call and reads the answer, or takes the server for silent.
async fn within_reason(client: &Client, call: &Call, within: Duration) -> Result<Answer, ClientError> {
    let late = |_| client.silent(call.operation(), within);
    tokio::time::timeout(within, client.answer(call)).await.map_err(late)?
}

/// Anything but a clear refusal may be carried out by a repeat: a proxy's page, a cut, an answer in another form.
fn failed(call: &'static str, error: ClientError) -> ChannelError {
    match error {
        ClientError::Refused(problem) => match problem.code {
            ErrorCode::ProtocolVersion => match problem.protocol {
                Some(spoken) => ChannelError::ProtocolVersion { spoken },
                None => ChannelError::Refused(problem),
            },
            // A join token is no session.
            ErrorCode::Unauthenticated if call != REGISTER => ChannelError::UnknownSession,
            ErrorCode::SessionRevoked => ChannelError::SessionOver(SessionEnd::Revoked),
            ErrorCode::Superseded => ChannelError::SessionOver(SessionEnd::Superseded),
            ErrorCode::IdentityInUse => ChannelError::SessionOver(SessionEnd::IdentityInUse),
            _ => ChannelError::Refused(problem),
        },
        ClientError::Unexpected { status: 413, .. } => ChannelError::TooLarge { call },
        ClientError::DigestMismatch { expected, received } => ChannelError::Damaged { expected, received },
        ClientError::File { operation, path, source } => ChannelError::LocalFile { operation, path, source },
        other => ChannelError::Unreachable { call, source: other.into() },
    }
}

/// Two versions are no fault, as long as both speak one protocol; but good to know when something is odd.
fn note_version(client: &Client) {
    const OWN: &str = env!("CARGO_PKG_VERSION");
    if let Some(server) = client.server_version().filter(|server| *server != OWN) {
        tracing::info!(server, own = OWN, "the server is of another version than this worker");
    }
}

impl WorkerChannel for HttpChannel {
    fn speak_as(&self, session: Session) {
        // A token the server made holds nothing that a header could not.
        if let Ok(clients) = Clients::new(&self.bare, &session.token) {
            *self.clients.write() = clients;
        }
    }

    fn register(&self, request: RegisterRequest) -> Calling<'_, RegisterAnswer> {
        Box::pin(async {
            // It may have spoken for a session that is over.
            let clients =
                Clients::new(&self.bare, &self.join_token).map_err(|error| failed(REGISTER, error))?;
            *self.clients.write() = clients;
            let answer = self.post("/v1/workers/register", request, ANSWER_WITHIN).await;
            note_version(&self.clients().calls);
            answer.map_err(|lost| lost.of(REGISTER))
        })
    }

    fn resume(&self, request: ResumeRequest) -> Calling<'_, ResumeAnswer> {
        Box::pin(async {
            let answer = self.post("/v1/worker/resume", request, ANSWER_WITHIN).await;
            note_version(&self.clients().calls);
            answer.map_err(|lost| lost.of("resume"))
        })
    }

    fn heartbeat(&self, request: HeartbeatRequest) -> Calling<'_, HeartbeatAnswer> {
        Box::pin(async move {
            let Clients { heartbeats, calls, .. } = self.clients();
            let post = Call::post("/v1/worker/heartbeat", true).json(&request);
            let post = post.map_err(|error| failed("heartbeat", error))?;
            let answer = within_reason(&heartbeats, &post, HEARTBEAT_WITHIN).await;
            match answer.and_then(|answer| answer.json()) {
                Ok(answer) => {
                    if self.line.pulse() {
                        calls.forget_connections();
                    }
                    Ok(answer)
                }
                Err(error) => {
                    if error.problem().is_none() {
                        self.line.pulse_lost();
                        heartbeats.forget_connections();
                    }
                    Err(failed("heartbeat", error))
                }
            }
        })
    }

    fn acquire(&self, mut request: AcquireRequest) -> Calling<'_, AcquireAnswer> {
        Box::pin(async move {
            let asked = self.line.poll_for(request.wait_s);
            request.wait_s = asked;
            let begun = Instant::now();
            let answer = self.post("/v1/worker/acquire", request, asked.duration() + POLL_MARGIN).await;
            let end = match &answer {
                Ok(_) => Some(PollEnd::Answered),
                Err(Lost::CameBack(_)) => Some(PollEnd::Interrupted),
                Err(Lost::Client(error)) => poll_end(error),
            };
            if end == Some(PollEnd::Answered) {
                self.line.answered_by(self.clients().calls.server_start());
            }
            let empty = end.is_some_and(|end| self.line.poll_ended(asked, begun.elapsed(), end));
            match answer {
                Ok(answer) => Ok(answer),
                Err(_) if empty => Ok(AcquireAnswer::default()),
                Err(lost) => Err(lost.of("acquire")),
            }
        })
    }

    fn report(&self, request: ReportRequest) -> Calling<'_, ReportAnswer> {
        Box::pin(async {
            let answer = self.post("/v1/worker/report", request, ANSWER_WITHIN).await;
            answer.map_err(|lost| lost.of("report"))
        })
    }

    fn logs(&self, _job_id: JobId, task_id: TaskId, request: LogsRequest) -> Calling<'_, LogsAnswer> {
        Box::pin(async move {
            let path = format!("/v1/worker/tasks/{task_id}/logs");
            self.post(&path, request, ANSWER_WITHIN).await.map_err(|lost| lost.of("logs"))
        })
    }

    fn deregister(&self) -> Calling<'_, ()> {
        Box::pin(async {
            let client = self.clients().calls;
            let call = Call::post("/v1/worker/deregister", true)
                .json(&serde_json::Map::new())
                .map_err(|error| failed("deregister", error))?;
            let answer = within_reason(&client, &call, ANSWER_WITHIN).await;
            answer.map(drop).map_err(|error| failed("deregister", error))
        })
    }

    fn fetch<'a>(&'a self, digest: Digest, scratch: &'a Path) -> Calling<'a, File> {
        // No limit in time: it may be large. It is given up when nothing comes for long.
        let client = self.clients().transfers;
        Box::pin(async move {
            client.download(&digest, scratch, |_| {}).await.map_err(|error| failed("fetch", error))?;
            File::open(scratch).map_err(local_file("read", scratch))
        })
    }

    fn publish<'a>(&'a self, file: File, shown: &'a Path) -> Calling<'a, Published> {
        Box::pin(async move {
            let hashing = file.try_clone().map_err(local_file("read", shown))?;
            let published = tokio::task::spawn_blocking(move || hash(hashing))
                .await
                .map_err(|gone| local_file("read", shown)(gone.into()))?
                .map_err(local_file("read", shown))?;
            // The same file again, even when its name means another one by now.
            let path = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
            let Published { digest, size_bytes } = published;
            let Clients { calls, transfers, .. } = self.clients();
            let asked = [digest];
            let absent = self.unless_it_comes_back(&calls, calls.missing(&asked));
            let absent = tokio::time::timeout(ANSWER_WITHIN, absent).await;
            let absent =
                absent.map_err(|late| ChannelError::Unreachable { call: "missing", source: late.into() })?;
            if !absent.map_err(|lost| lost.of("missing"))?.is_empty() {
                let sent = transfers.upload(&digest, &path, size_bytes, |_| {}).await;
                sent.map_err(|error| failed("publish", error))?;
            }
            Ok(published)
        })
    }
}

fn local_file(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ChannelError {
    move |source| ChannelError::LocalFile { operation, path: path.to_owned(), source }
}

/// Digest and length of what the file holds now.
fn hash(mut file: File) -> std::io::Result<Published> {
    let mut sha256 = Sha256::new();
    let mut piece = vec![0; 256 << 10];
    let mut size_bytes = 0;
    loop {
        match file.read(&mut piece)? {
            0 => break,
            length => {
                sha256.update(&piece[..length]);
                size_bytes += length as u64;
            }
        }
    }
    Ok(Published { digest: Digest::from_bytes(sha256.finalize().into()), size_bytes })
}
