//! The worker's line inside the daemon's own process: calls go to the front desk's mailbox, log records straight
//! to the log store, artifacts straight to the artifact store. Bytes pass no mailbox and no socket.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

use actix::Recipient;
use parking_lot::RwLock;
use tokio::sync::oneshot;

use crate::actors::messages::Reply;
use crate::actors::messages::front_desk::{
    Acquire, DeregisterWorker, Heartbeat, RegisterWorker, ReportTasks, ResumeWorker, WorkerRefusal,
};
use crate::artifacts::{ArtifactError, ArtifactStore};
use crate::client::worker_channel::{Calling, ChannelError, Published, Session, SessionEnd, WorkerChannel};
use crate::contract::artifact::Digest;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::problem::Problem;
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, HeartbeatAnswer, HeartbeatRequest, LogsAnswer, LogsRequest, Orders,
    RegisterAnswer, RegisterRequest, ReportAnswer, ReportRequest, ResumeAnswer, ResumeRequest,
};
use crate::store::logs::LogStore;

/// The front desk, as far as a worker talks to it.
#[derive(Clone)]
pub struct DeskRecipients {
    /// Introductions.
    pub register: Recipient<RegisterWorker>,
    /// Returns.
    pub resume: Recipient<ResumeWorker>,
    /// Signs of life.
    pub heartbeat: Recipient<Heartbeat>,
    /// Long polls for tasks.
    pub acquire: Recipient<Acquire>,
    /// Reports.
    pub report: Recipient<ReportTasks>,
    /// Farewells.
    pub deregister: Recipient<DeregisterWorker>,
}

/// A worker's line to the server in its own process.
pub struct InProcessChannel {
    desk: DeskRecipients,
    logs: LogStore,
    artifacts: ArtifactStore,
    worker_id: RwLock<Option<WorkerId>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the daemon is stopping")]
struct Stopping;

impl InProcessChannel {
    /// A line that can do nothing but `register` until it was told whom to speak as.
    pub fn new(desk: DeskRecipients, logs: LogStore, artifacts: ArtifactStore) -> Self {
        Self { desk, logs, artifacts, worker_id: RwLock::new(None) }
    }

    /// Puts a worker's message into a mailbox and awaits the answer to it.
    fn ask<M, A>(
        &self,
        call: &'static str,
        to: &Recipient<M>,
        message: impl FnOnce(WorkerId, Reply<Result<A, WorkerRefusal>>) -> M,
    ) -> Calling<'static, A>
    where
        M: actix::Message<Result = ()> + Send + 'static,
        A: Send + 'static,
    {
        let Some(worker_id) = *self.worker_id.read() else {
            return Box::pin(async { Err(ChannelError::SessionOver(SessionEnd::Revoked)) });
        };
        let (reply, answer) = oneshot::channel();
        to.do_send(message(worker_id, reply));
        Box::pin(async move { answer.await.map_err(|_| unreachable(call, Stopping))?.map_err(refused) })
    }
}

fn unreachable(call: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> ChannelError {
    ChannelError::Unreachable { call, source: source.into() }
}

fn refused(refusal: WorkerRefusal) -> ChannelError {
    ChannelError::SessionOver(match refusal {
        WorkerRefusal::Revoked => SessionEnd::Revoked,
        WorkerRefusal::Superseded => SessionEnd::Superseded,
        WorkerRefusal::IdentityInUse => SessionEnd::IdentityInUse,
    })
}

/// A failing disk may be cured, like a server that cannot be reached; the rest is a refusal.
fn artifact_failed(call: &'static str, error: ArtifactError) -> ChannelError {
    let code = match &error {
        ArtifactError::StorageFull { .. } => ErrorCode::StorageFull,
        ArtifactError::TooLarge { .. } => ErrorCode::ArtifactTooLarge,
        ArtifactError::Absent { .. } | ArtifactError::Damaged { .. } => ErrorCode::NotFound,
        ArtifactError::NotRegular { .. } => ErrorCode::InvalidRequest,
        _ => return unreachable(call, error),
    };
    ChannelError::Refused(Box::new(Problem::new(code, error.to_string())))
}

async fn off_thread<T: Send + 'static>(
    call: &'static str,
    work: impl FnOnce() -> Result<T, ArtifactError> + Send + 'static,
) -> Result<T, ChannelError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| artifact_failed(call, error)),
        Err(gone) => Err(unreachable(call, gone)),
    }
}

impl WorkerChannel for InProcessChannel {
    fn speak_as(&self, session: Session) {
        *self.worker_id.write() = Some(session.worker_id);
    }

    fn register(&self, request: RegisterRequest) -> Calling<'_, RegisterAnswer> {
        let (reply, answer) = oneshot::channel();
        self.desk.register.do_send(RegisterWorker { request, with_token: false, reply });
        Box::pin(async { answer.await.map_err(|_| unreachable("register", Stopping)) })
    }

    fn resume(&self, request: ResumeRequest) -> Calling<'_, ResumeAnswer> {
        self.ask("resume", &self.desk.resume, |worker_id, reply| ResumeWorker { worker_id, request, reply })
    }

    fn heartbeat(&self, request: HeartbeatRequest) -> Calling<'_, HeartbeatAnswer> {
        self.ask("heartbeat", &self.desk.heartbeat, |worker_id, reply| Heartbeat {
            worker_id,
            request,
            reply,
        })
    }

    fn acquire(&self, request: AcquireRequest) -> Calling<'_, AcquireAnswer> {
        self.ask("acquire", &self.desk.acquire, |worker_id, reply| Acquire { worker_id, request, reply })
    }

    fn report(&self, request: ReportRequest) -> Calling<'_, ReportAnswer> {
        self.ask("report", &self.desk.report, |worker_id, reply| ReportTasks { worker_id, request, reply })
    }

    fn logs(&self, job_id: JobId, task_id: TaskId, request: LogsRequest) -> Calling<'_, LogsAnswer> {
        let LogsRequest { missing_from_n, first_n, records, .. } = request;
        let answer = self.logs.append_behind_gap(job_id, task_id, missing_from_n, first_n, records);
        Box::pin(async {
            let next_n = answer.await.map_err(|_| unreachable("logs", Stopping))?;
            Ok(LogsAnswer { next_n, orders: Orders::default() })
        })
    }

    fn deregister(&self) -> Calling<'_, ()> {
        self.ask("deregister", &self.desk.deregister, |worker_id, reply| DeregisterWorker {
            worker_id,
            reply,
        })
    }

    fn fetch<'a>(&'a self, digest: Digest, _scratch: &'a Path) -> Calling<'a, File> {
        let artifacts = self.artifacts.clone();
        Box::pin(off_thread("fetch", move || {
            let found = artifacts.open_whole(digest)?;
            found.map(|(file, _)| file).ok_or(ArtifactError::Absent { digest })
        }))
    }

    fn artifacts_are_near(&self) -> bool {
        true
    }

    fn publish<'a>(&'a self, file: File, shown: &'a Path) -> Calling<'a, Published> {
        let artifacts = self.artifacts.clone();
        let shown: PathBuf = shown.to_owned();
        Box::pin(off_thread("publish", move || {
            let imported = artifacts.import(&file, &shown)?;
            Ok(Published { digest: imported.digest, size_bytes: imported.size_bytes })
        }))
    }
}
