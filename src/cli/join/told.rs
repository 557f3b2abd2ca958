//! The worker's line to its server with somebody who listens in: what a person wants to know of a worker can be read
//! off its calls. Also where a worker that is about to leave stops asking for tasks.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::client::worker_channel::{Calling, ChannelError, Published, Session, WorkerChannel};
use crate::contract::artifact::Digest;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, HeartbeatAnswer, HeartbeatRequest, LogsAnswer, LogsRequest,
    RegisterAnswer, RegisterRequest, Report, ReportAnswer, ReportRequest, ReportResult, ResumeAnswer,
    ResumeRequest,
};

use super::error::innermost;

/// Failures in a row after which contact counts as lost; one alone is a hiccup.
const LOST_AFTER: u32 = 2;

/// Something that a person wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    /// The server has taken the worker in, or again.
    Joined { worker_id: WorkerId, again: bool },
    /// The server does not answer, and why.
    Lost { why: String },
    /// It does again.
    Found,
    /// So many tasks run, and so many have ended since the start.
    Tasks { running: usize, ended: u64 },
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
    running: usize,
    ended: u64,
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
            Err(error @ ChannelError::Unreachable { .. }) => {
                known.failures = known.failures.saturating_add(1);
                if known.failures == LOST_AFTER {
                    self.tell(News::Lost { why: innermost(error) });
                }
            }
            _ => {
                if std::mem::take(&mut known.failures) >= LOST_AFTER {
                    self.tell(News::Found);
                }
            }
        }
    }

    fn count(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock();
        let before = (known.running, known.ended);
        change(&mut known);
        if (known.running, known.ended) != before {
            self.tell(News::Tasks { running: known.running, ended: known.ended });
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
        let (worker_id, running) = (request.worker_id, request.tasks.len());
        let call = self.inner.resume(request);
        Box::pin(async move {
            let outcome = call.await;
            self.note(&outcome);
            if outcome.is_ok() {
                self.tell(News::Joined { worker_id, again: true });
                self.count(|known| known.running = running);
            }
            outcome
        })
    }

    fn heartbeat(&self, request: HeartbeatRequest) -> Calling<'_, HeartbeatAnswer> {
        self.count(|known| known.running = request.tasks.len());
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
            return self.inner.acquire(request);
        }
        let call = self.inner.acquire(request);
        let mut leaving = self.leaving.clone();
        Box::pin(async move {
            tokio::select! {
                answer = call => answer,
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
        }
        let finishes: Vec<bool> =
            request.items.iter().map(|item| matches!(item.report, Report::Finish(_))).collect();
        let call = self.inner.report(request);
        Box::pin(async move {
            let outcome = call.await;
            if let Ok(answer) = &outcome {
                let settled = answer.results.iter().zip(finishes);
                let ended =
                    settled.filter(|(result, finish)| *finish && matches!(result, ReportResult::Ok { .. }));
                let ended = ended.count();
                self.count(|known| {
                    known.ended += ended as u64;
                    known.running = known.running.saturating_sub(ended);
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
