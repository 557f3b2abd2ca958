//! The worker's line over HTTP: the session token and the protocol's header on every call, heartbeats on a
//! connection of their own, so that no upload and no long poll delays them.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::worker_channel::{Calling, ChannelError, Published, Session, SessionEnd, WorkerChannel};
use super::{Call, Client, ClientError, Endpoint, Trust};
use crate::contract::artifact::Digest;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, HeartbeatAnswer, HeartbeatRequest, LogsAnswer, LogsRequest, PROTOCOL,
    RegisterAnswer, RegisterRequest, ReportAnswer, ReportRequest, ResumeAnswer, ResumeRequest,
};

/// How long an answer may take that the server does not park: a commit on a slow disk, not a dead network.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// A heartbeat that takes longer is worth less than the next one.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(5);

/// A worker's line to a server somewhere else.
pub struct HttpChannel {
    bare: Client,
    clients: RwLock<Clients>,
}

#[derive(Clone)]
struct Clients {
    calls: Client,
    heartbeats: Client,
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
        let joining = bare.clone().with_token(join_token)?;
        let clients = RwLock::new(Clients { calls: joining.clone(), heartbeats: joining });
        Ok(Self { bare, clients })
    }

    fn calls(&self) -> Client {
        self.clients.read().calls.clone()
    }

    fn heartbeats(&self) -> Client {
        self.clients.read().heartbeats.clone()
    }
}

async fn post<Q: Serialize, A: DeserializeOwned>(
    client: Client,
    call: &'static str,
    path: &str,
    request: Q,
    within: Duration,
) -> Result<A, ChannelError> {
    let post = Call::post(path, true).json(&request).map_err(|error| failed(call, error))?;
    let answer = timely(call, within, client.answer(&post)).await?;
    answer.json().map_err(|error| failed(call, error))
}

async fn timely<A>(
    call: &'static str,
    within: Duration,
    answer: impl Future<Output = Result<A, ClientError>>,
) -> Result<A, ChannelError> {
    match tokio::time::timeout(within, answer).await {
        Ok(answer) => answer.map_err(|error| failed(call, error)),
        Err(late) => Err(ChannelError::Unreachable { call, source: late.into() }),
    }
}

/// Anything but a clear refusal may be carried out by a repeat: a proxy's page, a cut, an answer in another form.
fn failed(call: &'static str, error: ClientError) -> ChannelError {
    match error {
        ClientError::Refused(problem) => match problem.code {
            ErrorCode::ProtocolVersion => match problem.protocol {
                Some(spoken) => ChannelError::ProtocolVersion { spoken },
                None => ChannelError::Refused(problem),
            },
            ErrorCode::SessionRevoked => ChannelError::SessionOver(SessionEnd::Revoked),
            ErrorCode::Superseded => ChannelError::SessionOver(SessionEnd::Superseded),
            ErrorCode::IdentityInUse => ChannelError::SessionOver(SessionEnd::IdentityInUse),
            _ => ChannelError::Refused(problem),
        },
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
        if let (Ok(calls), Ok(heartbeats)) =
            (self.bare.clone().with_token(&session.token), self.bare.clone().with_token(&session.token))
        {
            *self.clients.write() = Clients { calls, heartbeats };
        }
    }

    fn register(&self, request: RegisterRequest) -> Calling<'_, RegisterAnswer> {
        let client = self.calls();
        Box::pin(async move {
            let answer =
                post(client.clone(), "register", "/v1/workers/register", request, ANSWER_WITHIN).await;
            note_version(&client);
            answer
        })
    }

    fn resume(&self, request: ResumeRequest) -> Calling<'_, ResumeAnswer> {
        let client = self.calls();
        Box::pin(async move {
            let answer = post(client.clone(), "resume", "/v1/worker/resume", request, ANSWER_WITHIN).await;
            note_version(&client);
            answer
        })
    }

    fn heartbeat(&self, request: HeartbeatRequest) -> Calling<'_, HeartbeatAnswer> {
        Box::pin(post(self.heartbeats(), "heartbeat", "/v1/worker/heartbeat", request, HEARTBEAT_WITHIN))
    }

    fn acquire(&self, request: AcquireRequest) -> Calling<'_, AcquireAnswer> {
        let within = request.wait_s.duration() + ANSWER_WITHIN;
        Box::pin(post(self.calls(), "acquire", "/v1/worker/acquire", request, within))
    }

    fn report(&self, request: ReportRequest) -> Calling<'_, ReportAnswer> {
        Box::pin(post(self.calls(), "report", "/v1/worker/report", request, ANSWER_WITHIN))
    }

    fn logs(&self, _job_id: JobId, task_id: TaskId, request: LogsRequest) -> Calling<'_, LogsAnswer> {
        let client = self.calls();
        Box::pin(async move {
            let path = format!("/v1/worker/tasks/{task_id}/logs");
            post(client, "logs", &path, request, ANSWER_WITHIN).await
        })
    }

    fn deregister(&self) -> Calling<'_, ()> {
        let client = self.calls();
        Box::pin(async move {
            let call = Call::post("/v1/worker/deregister", true)
                .json(&serde_json::Map::new())
                .map_err(|error| failed("deregister", error))?;
            timely("deregister", ANSWER_WITHIN, client.answer(&call)).await.map(drop)
        })
    }

    fn fetch<'a>(&'a self, digest: Digest, scratch: &'a Path) -> Calling<'a, File> {
        // No limit in time: it may be large.
        let client = self.calls();
        Box::pin(async move {
            client.download(&digest, scratch, |_| {}).await.map_err(|error| failed("fetch", error))?;
            File::open(scratch).map_err(local_file("read", scratch))
        })
    }

    fn publish<'a>(&'a self, file: File, shown: &'a Path) -> Calling<'a, Published> {
        let client = self.calls();
        Box::pin(async move {
            let hashing = file.try_clone().map_err(local_file("read", shown))?;
            let published = tokio::task::spawn_blocking(move || hash(hashing))
                .await
                .map_err(|gone| local_file("read", shown)(gone.into()))?
                .map_err(local_file("read", shown))?;
            // The same file again, even when its name means another one by now.
            let path = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
            let Published { digest, size_bytes } = published;
            let absent = timely("missing", ANSWER_WITHIN, client.missing(&[digest])).await?;
            if !absent.is_empty() {
                let sent = client.upload(&digest, &path, size_bytes, |_| {}).await;
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
