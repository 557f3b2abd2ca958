//! A running edge on a temporary state folder, with a Unix socket and a TCP port.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};

use gpulayer::artifacts::{ArtifactStore, Limits};
use gpulayer::clock;
use gpulayer::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use gpulayer::contract::protocol::Identity;
use gpulayer::contract::token::{Role, TokenKind};
use gpulayer::contract::worker::WorkerKind;
use gpulayer::credentials;
use gpulayer::credentials::known::Credentials;
use gpulayer::domain::change::{Change, TokenRecord, WorkerRecord};
use gpulayer::domain::credentials::table::TokenTable;
use gpulayer::http::{
    EdgeState, KeptWorkspaces, Measured, NewcomerLimits, Patience, Ports, ServeError, ServeOptions,
    TaskOwners, serve,
};
use gpulayer::journal::Seq;
use gpulayer::store::{LogStore, Store};

use crate::desk::{FakeDesk, Shared};
use crate::wire::{Place, Request};

pub const CLIENT: &str = "glc_test";
/// Submits into `mine`, with priority 10 at most.
pub const SUBMITTER: &str = "glc_submitter";
/// Another one of `mine`.
pub const MATE: &str = "glc_mate";
/// Submits into `theirs`.
pub const STRANGER: &str = "glc_stranger";
/// Sees `mine`.
pub const VIEWER: &str = "glc_viewer";
pub const EXPIRED: &str = "glc_expired";
pub const REVOKED: &str = "glc_revoked";
pub const JOIN: &str = "glj_test";
pub const INSTANCE: &str = "gli_test";
pub const SESSION: &str = "gls_test";
pub const WORKER: WorkerId = WorkerId::from_u128(42);
/// The task that [`WORKER`] holds under epoch 1.
pub const TASK: TaskId = TaskId::from_u128(43);
pub const MAX_ARTIFACT_BYTES: u64 = 4 << 20;

pub struct Stand {
    pub shared: Arc<Shared>,
    pub logs: LogStore,
    pub folder: TempDir,
    pub socket: PathBuf,
    pub tcp: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Owners(Arc<Shared>);

impl TaskOwners for Owners {
    fn owned(&self, worker: WorkerId, task: TaskId, epoch: Epoch) -> Option<JobId> {
        if (worker, task, epoch) == (WORKER, TASK, 1) { *self.0.owner.lock() } else { None }
    }
}

struct Kept(PathBuf);

impl KeptWorkspaces for Kept {
    fn discard(&self, _: JobId) -> std::io::Result<()> {
        Ok(())
    }

    fn open(&self, job_id: JobId, _: Option<TaskId>, path: &str) -> Option<File> {
        File::open(self.0.join(job_id.to_string()).join(path)).ok()
    }
}

impl Stand {
    pub fn start() -> Self {
        Self::start_with(Patience::default(), NewcomerLimits::default())
    }

    /// With other limits on what comes in.
    pub fn start_with(patience: Patience, newcomers: NewcomerLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("state")).unwrap();
        let (durable, follows) = watch::channel(Seq(0));
        let shared = Arc::new(Shared::new(store.writer().unwrap(), durable));
        shared.record(&[Change::WorkerRecorded(Box::new(worker(false)))]);
        let socket = folder.path().join("s.sock");
        let (started, ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let ports = {
            let (shared, folder) = (shared.clone(), folder.path().to_owned());
            move |store: &Store| ports(store, shared, follows, &folder)
        };
        let thread = std::thread::spawn({
            let socket = socket.clone();
            move || {
                actix_web::rt::System::new().block_on(async move {
                    let ports = ports(&store);
                    let logs = ports.logs.clone();
                    let state = EdgeState::new(ports, ["gpu.example".to_owned()]);
                    let state = Arc::new(state.with_limits(patience, newcomers));
                    let tcp = Some(gpulayer::http::listen(([127, 0, 0, 1], 0).into()).unwrap());
                    let options = ServeOptions { unix_socket: Some(socket), tcp, tls: None, threads: 1 };
                    let serving = serve(options, state).unwrap();
                    started.send((serving.tcp.unwrap(), logs)).unwrap();
                    let _ = stopped.await;
                    serving.stop().await;
                });
            }
        });
        let (tcp, logs) = ready.recv().unwrap();
        Self { shared, logs, folder, socket, tcp, stop: Some(stop), thread: Some(thread) }
    }

    /// A request of the local user.
    pub fn unix(&self, method: &str, path: &str) -> Request {
        Request::new(&Place::Unix(self.socket.clone()), method, path)
    }

    /// A request over TCP without a token.
    pub fn tcp(&self, method: &str, path: &str) -> Request {
        Request::new(&Place::Tcp(self.tcp), method, path)
    }

    /// A request of [`WORKER`].
    pub fn worker(&self, path: &str, body: &Value) -> Request {
        self.tcp("POST", path).token(SESSION).json(body)
    }

    /// Submits `/bin/true` and gives its id.
    pub fn submit(&self) -> JobId {
        let job = self.unix("POST", "/v1/jobs").json(&true_spec()).send().ok(201).json();
        job["id"].as_str().unwrap().parse().unwrap()
    }

    /// Submits `spec` with `token` and gives the job's id.
    pub fn submit_as(&self, token: &str, spec: &Value) -> JobId {
        let job = self.tcp("POST", "/v1/jobs").token(token).json(spec).send().ok(201).json();
        job["id"].as_str().unwrap().parse().unwrap()
    }

    /// Begins the stop and returns when the server has left.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Tries to serve on `socket` alone, and stops at once.
pub fn serve_at(socket: &Path) -> Result<(), ServeError> {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("state")).unwrap();
    let socket = socket.to_owned();
    actix_web::rt::System::new().block_on(async move {
        let (durable, follows) = watch::channel(Seq(0));
        let shared = Arc::new(Shared::new(store.writer().unwrap(), durable));
        let ports = ports(&store, shared, follows, folder.path());
        let state = Arc::new(EdgeState::new(ports, []));
        let serving =
            serve(ServeOptions { unix_socket: Some(socket), tcp: None, tls: None, threads: 1 }, state)?;
        serving.stop().await;
        Ok(())
    })
}

fn ports(store: &Store, shared: Arc<Shared>, durable: watch::Receiver<Seq>, folder: &Path) -> Ports {
    let limits = Limits { max_artifact_bytes: MAX_ARTIFACT_BYTES };
    let tokens = tokens();
    let stored: Vec<_> = tokens.iter().map(|token| Change::TokenRecorded(Box::new(token.clone()))).collect();
    shared.record(&stored);
    let credentials =
        Arc::new(Credentials::load(tokens.clone(), [(credentials::hash(SESSION), WORKER, false)]));
    *shared.credentials.lock() = Some(credentials.clone());
    *shared.tokens.lock() = TokenTable::remembered(tokens);
    let stops = shared.clone();
    Ports {
        owners: Arc::new(Owners(shared.clone())),
        desk: FakeDesk::open(shared),
        reads: store.reader(),
        logs: store.logs().unwrap(),
        durable,
        artifacts: ArtifactStore::open(&folder.join("artifacts"), limits).unwrap(),
        credentials,
        kept: Arc::new(Kept(folder.join("kept"))),
        stop: Arc::new(move |asked| stops.stops.lock().push(asked)),
        measured: Arc::new(|| Measured { commits: 3, log_bytes: 5 }),
        schema: "test".to_owned(),
        on_demand: false,
        started_at: clock::now(),
    }
}

/// Every kind of token.
fn tokens() -> Vec<TokenRecord> {
    let now = clock::now();
    let token = |text: &str, kind| {
        let name = text.split_once('_').unwrap().1;
        TokenRecord::unconfined(credentials::hash(text), kind, name, now)
    };
    let client = |text: &str, role, project: &str| TokenRecord {
        role: Some(role),
        projects: vec![project.to_owned()],
        ..token(text, TokenKind::Client)
    };
    let admin = token(CLIENT, TokenKind::Client);
    vec![
        TokenRecord { name: "test-client".to_owned(), ..admin },
        TokenRecord { max_priority: Some(10), ..client(SUBMITTER, Role::Submitter, "mine") },
        client(MATE, Role::Submitter, "mine"),
        client(STRANGER, Role::Submitter, "theirs"),
        client(VIEWER, Role::Viewer, "mine"),
        TokenRecord { expires_at: Some(now), ..token(EXPIRED, TokenKind::Client) },
        TokenRecord { revoked_at: Some(now), ..token(REVOKED, TokenKind::Client) },
        TokenRecord { name: "test-join".to_owned(), ..token(JOIN, TokenKind::Join) },
        TokenRecord { name: "test-instance".to_owned(), ..token(INSTANCE, TokenKind::Instance) },
    ]
}

/// [`WORKER`] as the store has it.
pub fn worker(gone: bool) -> WorkerRecord {
    WorkerRecord {
        id: WORKER,
        name: "box".to_owned(),
        kind: WorkerKind::Remote,
        identity: Identity { machine_id: "m".to_owned(), boot_id: "b".to_owned(), incarnation: 1 },
        capabilities: serde_json::from_value(json!({
            "version": "0.1.0", "hostname": "box", "os": "linux", "arch": "x86_64", "cpus": 2,
            "memory_bytes": 1_000_000
        }))
        .unwrap(),
        session_hash: Some(credentials::hash(SESSION)),
        registered_at: clock::now(),
        registration: None,
        gone,
        drain: None,
    }
}

pub fn true_spec() -> Value {
    json!({ "workload": { "command": { "argv": ["/bin/true"] } } })
}

/// Polls until `holds`, at most for a while.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "never came: {what}");
        // Between looks at a condition that has no sender; never instead of one.
        std::thread::sleep(Duration::from_millis(5));
    }
}
