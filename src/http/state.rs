//! What every request handler can reach: the ports that the daemon fills, and what the edge keeps for itself.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::http::header::HeaderValue;
use tokio::sync::watch;

use super::body_room::BodyRoom;
use super::caller::{Client, local_credential, user_name};
use super::desk::Desk;
use super::edge::RequestIds;
use super::failed_logins::FailedLogins;
use super::incoming::Patience;
use super::metrics::Metrics;
use super::newcomers::{NewcomerLimits, Newcomers};
use super::refusal::Refusal;
use crate::artifacts::ArtifactStore;
use crate::clock;
use crate::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use crate::contract::quantity::Timestamp;
use crate::contract::server::{Listening, StopRequest};
use crate::credentials::known::Credentials;
use crate::domain::credentials::Grant;
use crate::journal::Seq;
use crate::store::{LogStore, Reads};

/// Tells whether a task is a worker's to write logs for.
pub trait TaskOwners: Send + Sync {
    /// The job of `task`, if `worker` holds it under `epoch`.
    fn owned(&self, worker: WorkerId, task: TaskId, epoch: Epoch) -> Option<JobId>;
}

/// Files that ended tasks left in workspaces of this host and no output declares.
pub trait KeptWorkspaces: Send + Sync {
    /// Opens `path` (relative to the workspace, never leaving it) of the job's newest kept workspace, or of that of its
    /// `ended` task, which is about to be kept.
    fn open(&self, job_id: JobId, ended: Option<TaskId>, path: &str) -> Option<File>;

    /// When and why the kept workspace of a job went; `None` = nothing is known of it.
    fn gone(&self, _job_id: JobId) -> Option<String> {
        None
    }

    /// Drops what is kept of a job. Blocks.
    fn discard(&self, job_id: JobId) -> std::io::Result<()>;
}

/// Numbers the daemon counts, for `/metrics`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Transactions of the main database.
    pub commits: u64,
    /// Bytes of log text taken in.
    pub log_bytes: u64,
}

/// What the daemon gives the edge.
pub struct Ports {
    /// Where requests that change something go.
    pub desk: Desk,
    /// What is committed.
    pub reads: Reads,
    /// Log lines.
    pub logs: LogStore,
    /// Follows the journal: its newest durable batch.
    pub durable: watch::Receiver<Seq>,
    /// Artifacts' bytes.
    pub artifacts: ArtifactStore,
    /// Valid tokens.
    pub credentials: Arc<Credentials>,
    /// Checks log uploads.
    pub owners: Arc<dyn TaskOwners>,
    /// Serves undeclared files.
    pub kept: Arc<dyn KeptWorkspaces>,
    /// Begins the daemon's orderly stop and returns at once.
    pub stop: Arc<dyn Fn(StopRequest) + Send + Sync>,
    /// Reads the daemon's counters.
    pub measured: Arc<dyn Fn() -> Measured + Send + Sync>,
    /// Version of the database schema.
    pub schema: String,
    /// When the daemon started.
    pub started_at: Timestamp,
    /// Whether a command started this daemon because none was there.
    pub on_demand: bool,
}

/// Shared by all handlers.
pub struct EdgeState {
    /// From the daemon.
    pub ports: Ports,
    /// The only user the Unix socket admits.
    pub own_uid: u32,
    /// What that user may do: everything.
    local_grant: Arc<Grant>,
    local_credential: [u8; 32],
    /// Names that TCP requests may use in `Host`.
    pub hosts: Vec<String>,
    /// Where it listens on TCP, for those who ask.
    pub listening: Option<Listening>,
    /// What is counted.
    pub metrics: Metrics,
    /// How long is waited for what clients send.
    pub patience: Patience,
    pub(super) newcomers: Arc<Newcomers>,
    pub(super) request_ids: RequestIds,
    /// Names this start of the server.
    pub(super) start: HeaderValue,
    pub(super) failed_logins: FailedLogins,
    pub(super) bodies: Arc<BodyRoom>,
    drain: watch::Sender<bool>,
    stopping: AtomicBool,
}

impl EdgeState {
    /// For a server that answers to `hosts` over TCP (besides `localhost` and all addresses).
    pub fn new(ports: Ports, hosts: impl IntoIterator<Item = String>) -> Self {
        let own_uid = rustix::process::geteuid().as_raw();
        let mut names = vec!["localhost".to_owned()];
        names.extend(hosts);
        Self {
            ports,
            own_uid,
            local_grant: Arc::new(Grant::admin(&user_name(own_uid))),
            local_credential: local_credential(own_uid),
            hosts: names,
            listening: None,
            metrics: Metrics::new(),
            patience: Patience::default(),
            newcomers: Newcomers::new(NewcomerLimits::default()),
            request_ids: RequestIds::new(),
            start: HeaderValue::from(rand::random::<u64>()),
            failed_logins: FailedLogins::default(),
            bodies: Arc::default(),
            drain: watch::Sender::new(false),
            stopping: AtomicBool::new(false),
        }
    }

    /// With other limits on what comes in.
    pub fn with_limits(mut self, patience: Patience, newcomers: NewcomerLimits) -> Self {
        self.patience = patience;
        self.newcomers = Newcomers::new(newcomers);
        self
    }

    /// The user at the other end of the Unix socket.
    pub fn local_client(&self) -> Client {
        Client {
            grant: self.local_grant.clone(),
            local: true,
            credential: self.local_credential,
            pass: None,
            address: None,
        }
    }

    /// From now on every parked request ends and every stream is cut.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }

    /// From now on the daemon is not ready for anything new.
    pub fn announce_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether [`EdgeState::announce_stop`] was called.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Returns when [`EdgeState::drain`] was or is called.
    pub async fn drained(&self) {
        // The sender lives as long as `self`, so waiting cannot fail before the value is there.
        let _ = self.drain.subscribe().wait_for(|draining| *draining).await;
    }

    /// Awaits `wait` unless the daemon drains first, or the client's token is over.
    pub async fn while_admitted<T>(
        &self,
        client: &Client,
        wait: impl Future<Output = T>,
    ) -> Result<T, Refusal> {
        let Some(pass) = &client.pass else {
            return self.unless_draining(wait).await;
        };
        let left = pass.expires_at().map(|end| end.since(clock::now()).duration());
        let expired = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            outcome = self.unless_draining(wait) => outcome,
            () = self.ports.credentials.revoked(pass) => {
                client.still_admitted()?;
                Err(Refusal::stopping())
            }
            () = expired => {
                client.still_admitted()?;
                Err(Refusal::stopping())
            }
        }
    }

    /// Awaits `wait` unless the daemon drains first.
    pub async fn unless_draining<T>(&self, wait: impl Future<Output = T>) -> Result<T, Refusal> {
        tokio::select! {
            outcome = wait => Ok(outcome),
            () = self.drained() => Err(Refusal::stopping()),
        }
    }
}
