//! What the edge reads from the stores. Point reads run on the HTTP thread (tens of microseconds); longer ones
//! go through [`blocking`](super::blocking).

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::caller::Client;
use super::desk::ask;
use super::idempotency::{FirstAnswer, Key};
use super::refusal::Refusal;
use super::state::EdgeState;
use crate::actors::messages::front_desk::{
    ExplainQueue, Held, QueueReason, Until, WatchJob, WhoHolds, WhyHeld,
};
use crate::contract::error_code::ErrorCode;
use crate::contract::event::Event;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::job::{Job, JobState};
use crate::contract::protocol::LogsRequest;
use crate::domain::change::JobStanding;
use crate::domain::credentials::{Denied, JobAct, OwnedJob, hiding};
use crate::domain::dependency::named;
use crate::domain::placement::RESERVED;
use crate::domain::time_left::at_most;
use crate::store::{PREEMPTED, StoreError};

/// How long a queue reason may take to be found before the answer goes out without it.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// What an event names the job by for which another had to leave.
const FOR: &str = "for";

/// Characters of an id's end that name a job in a sentence.
const SHOWN_TAIL: usize = 6;

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::internal(error)
    }
}

/// The refusal for a job that is not there.
pub fn no_job(id: JobId) -> Refusal {
    Refusal::not_found(format_args!("job {id}"))
}

fn denial(denied: Denied, act: JobAct, id: JobId, client: &Client) -> Refusal {
    let verb = match act {
        JobAct::See => "see",
        JobAct::Stop => "stop",
        JobAct::Retry => "repeat",
        JobAct::Remove => "remove",
    };
    match denied {
        Denied::Hidden => no_job(id),
        Denied::ReadOnly => Refusal::new(
            ErrorCode::Forbidden,
            format!("role `viewer` only reads; it takes role `submitter` or `admin` to {verb} a job"),
        ),
        Denied::NotTheirs { submitted_by } => Refusal::new(
            ErrorCode::Forbidden,
            format!(
                "job {id} was submitted by `{submitted_by}`, and you are `{}`: only they and admins may {verb} it",
                client.user()
            ),
        ),
    }
}

/// Reads the id in a path; what is no id names nothing.
pub fn job_id_in(text: &str) -> Result<JobId, Refusal> {
    text.parse().map_err(|error| Refusal::not_found(format_args!("such job: {error}")))
}

impl EdgeState {
    /// Whose a job is, if the client may do this to it. One that it may not see is not there.
    pub fn owned(&self, client: &Client, act: JobAct, id: JobId) -> Result<OwnedJob, Refusal> {
        let job = self.ports.reads.job_owner(id)?.ok_or_else(|| no_job(id))?;
        client.grant.judge(act, &job).map_err(|denied| denial(denied, act, id, client))?;
        Ok(job)
    }

    /// Refuses a client that may not see this job. Whoever sees all is not asked, also about a job that is not there.
    pub fn check_seen(&self, client: &Client, id: JobId) -> Result<(), Refusal> {
        if client.grant.sees_all() {
            return Ok(());
        }
        self.owned(client, JobAct::See, id).map(drop)
    }

    /// A job as the client may see it.
    pub fn job(&self, client: &Client, id: JobId) -> Result<Job, Refusal> {
        self.check_seen(client, id)?;
        let job = self.ports.reads.job(id)?.ok_or_else(|| no_job(id))?;
        Ok(self.shown_to(client, job))
    }

    /// A job without what the client is not shown, and with the name of the one that took its place if it is.
    pub fn shown_to(&self, client: &Client, mut job: Job) -> Job {
        if !client.grant.sees_env()
            && let Some(spec) = hiding::hidden(&job.spec)
        {
            job.spec = Arc::from(spec);
        }
        let Some(by) = job.preempted_by else { return job };
        if self.check_seen(client, by).is_err() {
            job.preempted_by = None;
        } else if let Some(rest) = job.queue_reason.as_deref().and_then(|said| said.strip_prefix(PREEMPTED)) {
            job.queue_reason = Some(format!("{PREEMPTED} by {}{rest}", named(by)));
        }
        job
    }

    /// Where a job stands that the client may see.
    pub fn standing(&self, client: &Client, id: JobId) -> Result<JobStanding, Refusal> {
        self.check_seen(client, id)?;
        self.ports.reads.job_standing(id)?.ok_or_else(|| no_job(id))
    }

    /// A job as it is shown: with the reason why it waits, while it does.
    pub async fn shown_job(&self, client: &Client, id: JobId) -> Result<Job, Refusal> {
        let mut job = self.job(client, id)?;
        if job.state == JobState::Queued {
            let reason = self.queue_reason(id, job.is_array() || job.parent.is_some()).await;
            let reason = match reason {
                Some(reason) => {
                    Some(self.naming_the_holder(client, self.naming_the_first(client, reason)).await?)
                }
                None => None,
            };
            let reasons = [job.queue_reason.take(), reason];
            let reasons: Vec<String> = reasons.into_iter().flatten().collect();
            job.queue_reason = (!reasons.is_empty()).then(|| reasons.join(" · "));
        }
        Ok(job)
    }

    /// Why the job waits, if that is told in time: a job is shown without it rather than late.
    async fn queue_reason(&self, id: JobId, of_array: bool) -> Option<QueueReason> {
        let asked = match self.held(id, of_array).await {
            Some(Held::Reason(line)) => return Some(QueueReason { line, reserved_for: None }),
            Some(Held::Child(child)) => child,
            None => id,
        };
        let reason =
            ask(|reply| self.ports.desk.explain_queue.do_send(ExplainQueue { job_id: asked, reply }));
        timeout(REASON_WITHIN, reason).await.ok().and_then(Result::ok).flatten()
    }

    /// What keeps a job of an array from being placed, if not the lack of room: the others of its array; for the array
    /// itself, which of its children to ask about.
    pub async fn held(&self, id: JobId, of_array: bool) -> Option<Held> {
        if !of_array {
            return None;
        }
        let held = ask(|reply| self.ports.desk.why_held.do_send(WhyHeld { job_id: id, reply }));
        timeout(REASON_WITHIN, held).await.ok().and_then(Result::ok).flatten()
    }

    /// Whose turn is first, if the client may see that job.
    fn naming_the_first(&self, client: &Client, reason: QueueReason) -> String {
        let QueueReason { line, reserved_for } = reason;
        match reserved_for.filter(|first| self.owned(client, JobAct::See, *first).is_ok()) {
            Some(first) => line.replace(RESERVED, &format!("has room, reserved for {}", named(first))),
            None => line,
        }
    }

    /// Who waits for a single job wants to know which, whose, and how long at most, if they may see it.
    async fn naming_the_holder(&self, client: &Client, reason: String) -> Result<String, Refusal> {
        const ONE: &str = "held by 1 task";
        if !reason.contains(ONE) || reason.contains(" · ") {
            return Ok(reason);
        }
        let holder = ask(|reply| self.ports.desk.who_holds.do_send(WhoHolds { reply }));
        let Ok(Ok(Some(holder))) = timeout(REASON_WITHIN, holder).await else { return Ok(reason) };
        let Ok(job) = self.owned(client, JobAct::See, holder.job_id) else { return Ok(reason) };
        let id = holder.job_id.to_string();
        let tail = &id[id.len() - SHOWN_TAIL..];
        let up_to = holder.at_most.map(|left| format!(", up to {}", at_most(left))).unwrap_or_default();
        Ok(reason.replace(ONE, &format!("held by job …{tail} ({}){up_to}", job.submitted_by)))
    }

    /// Events as the client may read them: the job that took another's place is named to those who may see it.
    pub fn without_foreign_jobs(
        &self,
        client: &Client,
        mut events: Vec<Event>,
    ) -> Result<Vec<Event>, Refusal> {
        if client.grant.sees_all() {
            return Ok(events);
        }
        for event in &mut events {
            let Some(named) = event.data.get(FOR).and_then(Value::as_str) else { continue };
            let seen = named.parse().is_ok_and(|id| self.owned(client, JobAct::See, id).is_ok());
            if !seen && let Some(data) = event.data.as_object_mut() {
                data.remove(FOR);
            }
        }
        Ok(events)
    }

    /// Returns when what is waited for is on disk, or at once for a job that is not live.
    pub async fn watch_job(&self, job_id: JobId, until: Until) -> Result<(), Refusal> {
        ask(|reply| self.ports.desk.watch_job.do_send(WatchJob { job_id, until, reply })).await
    }

    /// A used key's first answer, if the key was used (with the same body).
    pub fn first_answer(&self, key: Option<&Key>) -> Result<Option<FirstAnswer>, Refusal> {
        let Some(key) = key else {
            return Ok(None);
        };
        let used = self.ports.reads.used_key(&key.scope)?;
        used.map(|used| key.first_answer(&used)).transpose()
    }

    /// The first answer, after the supervisor said that there was one.
    pub fn repeated(&self, key: Option<&Key>) -> Result<FirstAnswer, Refusal> {
        self.first_answer(key)?.ok_or_else(|| Refusal::not_found("first answer for this Idempotency-Key"))
    }

    /// The first answer to a request that would be refused now, because something it names has gone since. A key
    /// is looked up only then: the supervisor recognises the repeats of what would be accepted.
    pub fn repeated_or(&self, key: Option<&Key>, refusal: Refusal) -> Result<FirstAnswer, Refusal> {
        self.first_answer(key)?.ok_or(refusal)
    }

    /// Appends log records; the number of the next one, once they are durable.
    pub async fn append_log(&self, job: JobId, task: TaskId, asked: LogsRequest) -> Result<u64, Refusal> {
        let LogsRequest { missing_from_n, first_n, records, .. } = asked;
        let answer = self.ports.logs.append_behind_gap(job, task, missing_from_n, first_n, records);
        answer.await.map_err(|_| Refusal::stopping())
    }
}
