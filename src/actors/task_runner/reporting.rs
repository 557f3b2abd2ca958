//! Sends one batch of reports, again and again until the server has judged it.

use std::sync::Arc;

use actix::Message;

use super::pause::Pause;
use crate::client::worker_channel::{ChannelError, SessionEnd, WorkerChannel};
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::TaskId;
use crate::contract::problem::Problem;
use crate::contract::protocol::{
    AcquireRequest, Report, ReportAnswer, ReportItem, ReportRequest, ReportResult,
};
use crate::domain::task_run::Event;

/// A batch came back.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Reported {
    /// What was reported.
    pub(super) items: Vec<ReportItem>,
    /// One result per item, or why there is none.
    pub(super) outcome: Result<ReportAnswer, Unjudged>,
}

/// Why a batch has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unjudged {
    /// The session ended first.
    SessionOver(SessionEnd),
    /// Something on the way takes no bodies of this size: its tasks are to be reported one by one, so that what is too
    /// large alone holds up no other.
    TooLarge,
}

/// What the results mean for each task.
pub(super) fn events(items: &[ReportItem], results: &[ReportResult]) -> Vec<(TaskId, Event)> {
    let judged = items.iter().zip(results);
    judged.filter_map(|(item, result)| Some((item.task_id, event(&item.report, *result)?))).collect()
}

fn event(report: &Report, result: ReportResult) -> Option<Event> {
    match (report, result) {
        (Report::Start, ReportResult::Ok { .. }) => Some(Event::StartAccepted),
        (Report::Start, ReportResult::Refused { .. }) => Some(Event::StartRefused),
        // A refused finish is one that came too late: the server keeps it as an event and wants no more.
        (Report::Finish(_), _) => Some(Event::FinishAnswered),
        (
            Report::Phase { .. }
            | Report::Decline { .. }
            | Report::Stuck { .. }
            | Report::Progress { .. }
            | Report::Checkpoint { .. }
            | Report::Yielded { .. },
            _,
        ) => None,
    }
}

/// Reports until there is an answer. Results of finished work are never given up while the session lasts.
pub(super) async fn report(
    channel: Arc<dyn WorkerChannel>,
    items: Vec<ReportItem>,
    acquire: Option<AcquireRequest>,
) -> Reported {
    let outcome = match items.as_slice() {
        [item] => report_one(&*channel, item, acquire).await.map_err(Unjudged::SessionOver),
        _ => report_several(&*channel, &items, acquire).await,
    };
    Reported { items, outcome }
}

/// The same of a single one. What is too large for something on the way waits until it can pass: an end without its files
/// would lose them. What is refused will never be taken.
pub(super) async fn report_one(
    channel: &dyn WorkerChannel,
    item: &ReportItem,
    acquire: Option<AcquireRequest>,
) -> Result<ReportAnswer, SessionEnd> {
    let (mut pause, mut warned) = (Pause::new(), false);
    loop {
        match try_once(channel, std::slice::from_ref(item), acquire.as_ref()).await {
            Tried::Judged(answer) => return Ok(answer),
            Tried::SessionOver(end) => return Err(end),
            Tried::Refused(problem) => {
                tracing::error!(task_id = %item.task_id, code = problem.code.word(), detail = problem.detail, "a report was refused");
                let results = vec![ReportResult::Refused { code: ErrorCode::InvalidRequest }];
                return Ok(ReportAnswer { results, ..ReportAnswer::default() });
            }
            Tried::TooLarge if !std::mem::replace(&mut warned, true) => warn_of_size(item),
            Tried::TooLarge | Tried::Unheard => {}
        }
        pause.wait().await;
    }
}

async fn report_several(
    channel: &dyn WorkerChannel,
    items: &[ReportItem],
    acquire: Option<AcquireRequest>,
) -> Result<ReportAnswer, Unjudged> {
    let mut pause = Pause::new();
    loop {
        match try_once(channel, items, acquire.as_ref()).await {
            Tried::Judged(answer) => return Ok(answer),
            Tried::SessionOver(end) => return Err(Unjudged::SessionOver(end)),
            // Single items would have been judged: some item cannot be read there, and the others do not suffer.
            Tried::Refused(_) => return one_by_one(channel, items).await,
            Tried::TooLarge if items.iter().all(|item| item.task_id == items[0].task_id) => {
                return one_by_one(channel, items).await;
            }
            Tried::TooLarge => return Err(Unjudged::TooLarge),
            Tried::Unheard => {}
        }
        pause.wait().await;
    }
}

async fn one_by_one(channel: &dyn WorkerChannel, items: &[ReportItem]) -> Result<ReportAnswer, Unjudged> {
    let mut together = ReportAnswer::default();
    for item in items {
        let answer = report_one(channel, item, None).await.map_err(Unjudged::SessionOver)?;
        together.results.extend(answer.results);
        together.orders.stops.extend(answer.orders.stops);
        together.orders.cancel_task_ids.extend(answer.orders.cancel_task_ids);
        together.orders.kill_task_ids.extend(answer.orders.kill_task_ids);
        together.orders.revoked |= answer.orders.revoked;
    }
    Ok(together)
}

/// What came of one call.
enum Tried {
    Judged(ReportAnswer),
    SessionOver(SessionEnd),
    Refused(Box<Problem>),
    TooLarge,
    /// Nothing that says anything of the items.
    Unheard,
}

async fn try_once(
    channel: &dyn WorkerChannel,
    items: &[ReportItem],
    acquire: Option<&AcquireRequest>,
) -> Tried {
    match channel.report(ReportRequest { items: items.to_vec(), acquire: acquire.cloned() }).await {
        Ok(answer) if answer.results.len() == items.len() => Tried::Judged(answer),
        Ok(answer) => {
            tracing::error!(sent = items.len(), judged = answer.results.len(), "not every report was judged");
            Tried::Unheard
        }
        Err(ChannelError::SessionOver(end)) => Tried::SessionOver(end),
        Err(ChannelError::TooLarge { .. }) => Tried::TooLarge,
        Err(ChannelError::Refused(problem)) if !problem.retryable => Tried::Refused(problem),
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "a report brought no answer");
            Tried::Unheard
        }
    }
}

fn warn_of_size(item: &ReportItem) {
    let size_bytes = serde_json::to_vec(item).map_or(0, |text| text.len());
    tracing::error!(
        task_id = %item.task_id,
        size_bytes,
        "something between here and the server takes no report of this size, such as an end with many outputs: raise its limit \
         (in nginx `client_max_body_size 0`); until then this one is tried again every few seconds"
    );
}
