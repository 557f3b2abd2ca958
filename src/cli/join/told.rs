//! The worker's line to its server with somebody who listens in: what a person wants to know of a worker can be read
//! off its calls. Also where a worker that is about to leave stops asking for tasks.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::client::ClientError;
use crate::client::worker_channel::{Calling, ChannelError, Published, Session, SessionEnd, WorkerChannel};
use crate::contract::artifact::Digest;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::pin::Pin;
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, HeartbeatAnswer, HeartbeatRequest, LogsAnswer, LogsRequest,
    RegisterAnswer, RegisterRequest, Report, ReportAnswer, ReportItem, ReportRequest, ReportResult,
    ResumeAnswer, ResumeRequest,
};
use crate::tls::{Distrust, TlsFault};

use super::error::innermost;
use super::holding::Holding;

/// Failures in a row after which contact counts as lost; one alone is a hiccup.
const LOST_AFTER: u32 = 2;

/// Something that a person wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    /// The server has taken the worker in, or again.
    Joined { worker_id: WorkerId, again: bool },
    /// The server is not sure yet that no other one is live under the same identity.
    Awaited,
    /// The server does not know the session, or has revoked it, at a start with so many tasks.
    Forgotten { running: usize },
    /// The server does not answer, and why, and what may help.
    Lost { why: String, hint: Option<Hint> },
    /// It does again.
    Found,
    /// So many tasks run, and so many have ended since the start.
    Tasks { running: usize, ended: u64 },
}

/// What may be done about a server that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hint {
    /// It has another key than was pinned: this one.
    NewKey(Pin),
    /// It does not know the session.
    Unknown,
}

impl Hint {
    fn of(error: &ChannelError) -> Option<Self> {
        match error {
            ChannelError::UnknownSession => Some(Self::Unknown),
            ChannelError::Unreachable { source, .. } => match source.downcast_ref() {
                Some(ClientError::Tls { source, .. }) => match source.as_ref() {
                    TlsFault::Distrust(Distrust::WrongKey { seen, .. }) => Some(Self::NewKey(*seen)),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        }
    }
}

/// See the module.
pub(super) struct Told {
    inner: Arc<dyn WorkerChannel>,
    news: mpsc::UnboundedSender<News>,
    leaving: watch::Receiver<bool>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    failures: u32,
    /// What was said to help, since contact was lost.
    hint: Option<Hint>,
    awaited: bool,
    holding: Holding,
}

impl Told {
    pub(super) fn new(
        inner: Arc<dyn WorkerChannel>,
        news: mpsc::UnboundedSender<News>,
        leaving: watch::Receiver<bool>,
    ) -> Self {
        Self { inner, news, leaving, known: Mutex::default() }
    }

    /// Nobody may listen any more.
    fn tell(&self, news: News) {
        let _ = self.news.send(news);
    }

    /// Notes what became of a call that is answered at once.
    fn note<A>(&self, outcome: &Result<A, ChannelError>) {
        let mut known = self.known.lock();
        match outcome {
            Err(error @ (ChannelError::Unreachable { .. } | ChannelError::UnknownSession)) => {
                known.failures = known.failures.saturating_add(1);
                let hint = Hint::of(error);
                let news = hint.is_some() && known.hint != hint;
                if known.failures == LOST_AFTER || (news && known.failures > LOST_AFTER) {
                    known.hint = hint;
                    self.tell(News::Lost { why: innermost(error), hint });
                }
            }
            _ => {
                known.hint = None;
                if std::mem::take(&mut known.failures) >= LOST_AFTER {
                    self.tell(News::Found);
                }
            }
        }
    }

    fn count(&self, change: impl FnOnce(&mut Holding)) {
        let holding = &mut self.known.lock().holding;
        let before = holding.counts();
        change(holding);
        let (running, ended) = holding.counts();
        if (running, ended) != before {
            self.tell(News::Tasks { running, ended });
        }
    }

    fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }
}

impl WorkerChannel for Told {
    fn speak_as(&self, session: Session) {
        self.inner.speak_as(session);
    }

    fn register(&self, request: RegisterRequest) -> Calling<'_, RegisterAnswer> {
        let call = self.inner.register(request);
        Box::pin(async {
            let outcome = call.await;
            self.note(&outcome);
            if let Ok(answer) = &outcome {
                self.tell(News::Joined { worker_id: answer.worker_id, again: false });
            }
            outcome
        })
    }

    fn resume(&self, request: ResumeRequest) -> Calling<'_, ResumeAnswer> {
        let worker_id = request.worker_id;
        let held: Vec<TaskId> = request.tasks.iter().map(|held| held.task_id).collect();
        let call = self.inner.resume(request);
        Box::pin(async move {
            let outcome = call.await;
            match &outcome {
                Ok(_) => {
                    self.note(&outcome);
                    // Whoever hears that it has joined knows what it came back with.
                    self.count(|holding| holding.listed(held.into_iter()));
                    self.tell(News::Joined { worker_id, again: true });
                }
                Err(ChannelError::SessionOver(SessionEnd::IdentityInUse)) => {
                    if !std::mem::replace(&mut self.known.lock().awaited, true) {
                        self.tell(News::Awaited);
                    }
                }
                // A start says it in its own way.
                Err(ChannelError::UnknownSession | ChannelError::SessionOver(SessionEnd::Revoked)) => {
                    self.tell(News::Forgotten { running: held.len() });
                }
                Err(_) => self.note(&outcome),
            }
            outcome
        })
    }

    fn heartbeat(&self, mut request: HeartbeatRequest) -> Calling<'_, HeartbeatAnswer> {
        request.leaving = self.is_leaving();
        self.count(|holding| holding.listed(request.tasks.iter().map(|held| held.task_id)));
        let call = self.inner.heartbeat(request);
        Box::pin(async {
            let outcome = call.await;
            self.note(&outcome);
            outcome
        })
    }

    fn acquire(&self, mut request: AcquireRequest) -> Calling<'_, AcquireAnswer> {
        if self.is_leaving() {
            request.max_tasks = 0;
            request.leaving = true;
            return self.inner.acquire(request);
        }
        let call = self.inner.acquire(request);
        let mut leaving = self.leaving.clone();
        Box::pin(async move {
            tokio::select! {
                answer = call => {
                    if let Ok(answer) = &answer {
                        self.count(|holding| answer.assignments.iter().for_each(|given| holding.given(given.task_id)));
                    }
                    answer
                }
                // A dropped poll changes nothing; the next one asks for no task.
                Ok(_) = leaving.wait_for(|leaving| *leaving) => {
                    Err(ChannelError::Unreachable { call: "acquire", source: "the worker is leaving".into() })
                }
            }
        })
    }

    fn report(&self, mut request: ReportRequest) -> Calling<'_, ReportAnswer> {
        if self.is_leaving()
            && let Some(acquire) = &mut request.acquire
        {
            acquire.max_tasks = 0;
            acquire.leaving = true;
        }
        let ends = |item: &ReportItem| matches!(item.report, Report::Finish(_)).then_some(item.task_id);
        let ends: Vec<Option<TaskId>> = request.items.iter().map(ends).collect();
        let call = self.inner.report(request);
        Box::pin(async move {
            let outcome = call.await;
            if let Ok(answer) = &outcome {
                self.count(|holding| {
                    for (result, end) in answer.results.iter().zip(ends) {
                        if let (ReportResult::Ok { .. }, Some(task)) = (result, end) {
                            holding.ended(task);
                        }
                    }
                    answer.assignments.iter().for_each(|given| holding.given(given.task_id));
                });
            }
            outcome
        })
    }

    fn logs(&self, job_id: JobId, task_id: TaskId, request: LogsRequest) -> Calling<'_, LogsAnswer> {
        self.inner.logs(job_id, task_id, request)
    }

    fn deregister(&self) -> Calling<'_, ()> {
        self.inner.deregister()
    }

    fn fetch<'a>(&'a self, digest: Digest, scratch: &'a Path) -> Calling<'a, File> {
        self.inner.fetch(digest, scratch)
    }

    fn artifacts_are_near(&self) -> bool {
        self.inner.artifacts_are_near()
    }

    fn publish<'a>(&'a self, file: File, shown: &'a Path) -> Calling<'a, Published> {
        self.inner.publish(file, shown)
    }
}
