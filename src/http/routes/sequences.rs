//! Events and log lines of a job, and the server-wide feed.

use std::collections::HashMap;

use actix_web::{HttpRequest, HttpResponse, web};
use tokio::sync::{oneshot, watch};

use crate::actors::messages::front_desk::{Until, WatchJob};
use crate::contract::event::Event;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::job::Sequence;
use crate::contract::log::{LogLine, Stream};
use crate::contract::token::Role;
use crate::http::blocking;
use crate::http::caller::Client;
use crate::http::follow::{Asked, Follow};
use crate::http::query::Query;
use crate::http::reading::job_id_in;
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;
use crate::journal::Seq;
use crate::store::FeedScope;
use crate::store::logs::LogQuery;

struct JobEvents {
    state: web::Data<EdgeState>,
    client: Client,
    job_id: JobId,
}

impl Follow for JobEvents {
    type Item = Event;
    const EVENT: &'static str = "event";

    fn gapless(&self) -> bool {
        true
    }

    fn number(event: &Event) -> u64 {
        event.seq
    }

    async fn read(&mut self, after: u64, limit: usize) -> Result<Sequence<Event>, Refusal> {
        // Standing first: what it counts is there when the events are read.
        let standing = self.state.standing(&self.client, self.job_id)?;
        let items = self.state.ports.reads.events(self.job_id, after, limit)?;
        let items = self.state.without_foreign_jobs(&self.client, items)?;
        let next_after = items.last().map_or(after, |event| event.seq);
        let ended = standing.state.ended() && next_after >= standing.event_seq;
        Ok(Sequence { items, next_after, ended })
    }

    async fn wait(&mut self, after: u64) -> Result<(), Refusal> {
        self.state.watch_job(self.job_id, Until::EventAfter(after)).await
    }
}

/// The job's events.
pub async fn events(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let job_id = job_id_in(&path)?;
    let mut query = Query::of(&request);
    let asked = Asked::of(&request, &mut query);
    query.finish()?;
    let follow = JobEvents { state: state.clone(), client: client.clone(), job_id };
    asked.answer(state, client, follow).await
}

struct JobLog {
    state: web::Data<EdgeState>,
    client: Client,
    job_id: JobId,
    task_id: Option<TaskId>,
    stream: Option<Stream>,
    ranks: HashMap<TaskId, u32>,
    lines: watch::Receiver<u64>,
    end: oneshot::Receiver<()>,
    ended: bool,
}

impl JobLog {
    /// The lines with the ranks of their tasks.
    async fn ranked(&mut self, mut lines: Vec<LogLine>) -> Result<Vec<LogLine>, Refusal> {
        if lines.iter().any(|line| !self.ranks.contains_key(&line.task_id)) {
            let (reads, job_id) = (self.state.ports.reads.clone(), self.job_id);
            self.ranks.extend(blocking(move || reads.ranks(job_id)).await?);
        }
        for line in &mut lines {
            line.rank = *self.ranks.entry(line.task_id).or_default();
        }
        Ok(lines)
    }

    fn gather(&self, after: u64, limit: usize) -> LogQuery {
        LogQuery { job_id: self.job_id, after, limit, task_id: self.task_id, stream: self.stream }
    }
}

impl Follow for JobLog {
    type Item = LogLine;
    const EVENT: &'static str = "log";

    fn gapless(&self) -> bool {
        self.task_id.is_none() && self.stream.is_none()
    }

    fn number(line: &LogLine) -> u64 {
        line.seq
    }

    async fn read(&mut self, after: u64, limit: usize) -> Result<Sequence<LogLine>, Refusal> {
        // No end is recorded before the last line is: once the job has ended, all its lines are there.
        self.ended = self.state.standing(&self.client, self.job_id)?.state.ended();
        let last = *self.lines.borrow_and_update();
        let mut next_after = after;
        loop {
            let (logs, query) = (self.state.ports.logs.clone(), self.gather(next_after, limit));
            let page = blocking(move || logs.read(&query)).await?;
            next_after = page.next_after;
            if !page.items.is_empty() || next_after >= last {
                let ended = self.ended && next_after >= last;
                let items = self.ranked(page.items).await?;
                return Ok(Sequence { items, next_after, ended });
            }
        }
    }

    async fn wait(&mut self, _: u64) -> Result<(), Refusal> {
        tokio::select! {
            more = self.lines.changed() => more.map_err(|_| Refusal::stopping()),
            end = &mut self.end, if !self.ended => {
                self.ended = true;
                end.map_err(|_| Refusal::stopping())
            }
        }
    }
}

/// The job's log lines. `task` and `stream` filter, `tail` begins so many lines before the last.
pub async fn logs(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let job_id = job_id_in(&path)?;
    let mut query = Query::of(&request);
    let mut asked = Asked::of(&request, &mut query);
    let task_id = query.parsed("task", "a task id");
    let stream = query.read("stream", "`stdout`, `stderr` or `system`", |text| {
        [Stream::Stdout, Stream::Stderr, Stream::System].into_iter().find(|stream| stream.word() == text)
    });
    let tail = query.tail();
    query.finish()?;
    state.check_seen(&client, job_id)?;
    let logs = state.ports.logs.clone();
    let lines = blocking(move || logs.watch(job_id)).await?;
    if let Some(tail) = tail {
        asked.begin_before(*lines.borrow(), tail);
    }
    let (reply, end) = oneshot::channel();
    state.ports.desk.watch_job.do_send(WatchJob { job_id, until: Until::Ended, reply });
    let (reader, asker) = (state.clone(), client.clone());
    let ranks = HashMap::new();
    let follow =
        JobLog { state: reader, client: asker, job_id, task_id, stream, ranks, lines, end, ended: false };
    asked.answer(state, client, follow).await
}

struct Feed {
    state: web::Data<EdgeState>,
    client: Client,
    scope: FeedScope,
    durable: watch::Receiver<Seq>,
}

impl Follow for Feed {
    type Item = Event;
    const EVENT: &'static str = "event";

    fn gapless(&self) -> bool {
        false
    }

    fn number(event: &Event) -> u64 {
        event.position
    }

    async fn read(&mut self, after: u64, limit: usize) -> Result<Sequence<Event>, Refusal> {
        self.durable.borrow_and_update();
        let (reads, scope) = (self.state.ports.reads.clone(), self.scope.clone());
        let (items, next_after) = blocking(move || reads.feed(after, limit, &scope)).await?;
        let items = self.state.without_foreign_jobs(&self.client, items)?;
        Ok(Sequence { items, next_after, ended: false })
    }

    async fn wait(&mut self, _: u64) -> Result<(), Refusal> {
        self.durable.changed().await.map_err(|_| Refusal::stopping())
    }
}

/// Events of all jobs that the client may see, and for an admin those of the server itself, by their server-wide
/// position. It has no end.
pub async fn feed(
    request: HttpRequest,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let mut query = Query::of(&request);
    let asked = Asked::of(&request, &mut query);
    query.finish()?;
    let scope = match (client.grant.role, client.grant.projects.names()) {
        (Role::Admin, _) => FeedScope::All,
        (Role::Submitter | Role::Viewer, None) => FeedScope::Jobs,
        (Role::Submitter | Role::Viewer, Some(names)) => FeedScope::Projects(names.to_vec()),
    };
    let (durable, asker) = (state.ports.durable.clone(), client.clone());
    let feed = Feed { durable, state: state.clone(), client: asker, scope };
    asked.answer(state, client, feed).await
}
