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

impl Reported {
    /// What the answer means for each task.
    pub(super) fn events(&self) -> Vec<(TaskId, Event)> {
        let Ok(answer) = &self.outcome else {
            return Vec::new();
        };
        let judged = self.items.iter().zip(&answer.results);
        judged.filter_map(|(item, result)| Some((item.task_id, event(&item.report, *result)?))).collect()
    }
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
    let mut pause = Pause::new();
    let mut warned = false;
    loop {
        let request = ReportRequest { items: items.clone(), acquire: acquire.clone() };
        match channel.report(request).await {
            Ok(answer) if answer.results.len() == items.len() => {
                return Reported { items, outcome: Ok(answer) };
            }
            Ok(answer) => {
                tracing::error!(
                    sent = items.len(),
                    judged = answer.results.len(),
                    "not every report was judged"
                );
            }
            Err(ChannelError::SessionOver(end)) => {
                return Reported { items, outcome: Err(Unjudged::SessionOver(end)) };
            }
            Err(ChannelError::TooLarge { .. }) => match items.as_slice() {
                [item] if !std::mem::replace(&mut warned, true) => warn_of_size(item),
                [_] => {}
                [first, rest @ ..] if rest.iter().all(|item| item.task_id == first.task_id) => {
                    return one_by_one(channel, items).await;
                }
                _ => return Reported { items, outcome: Err(Unjudged::TooLarge) },
            },
            Err(ChannelError::Refused(problem)) if !problem.retryable => {
                return refused(channel, items, *problem).await;
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "a report brought no answer")
            }
        }
        pause.wait().await;
    }
}

/// What cannot pass waits until it can: an end without its files would lose them.
fn warn_of_size(item: &ReportItem) {
    let size_bytes = serde_json::to_vec(item).map_or(0, |text| text.len());
    tracing::error!(
        task_id = %item.task_id,
        size_bytes,
        "something between here and the server takes no report of this size, such as an end with many outputs: raise its limit \
         (in nginx `client_max_body_size 0`); until then this one is tried again every few seconds"
    );
}

/// A whole batch was refused, though single items would have been judged: some item cannot be read there. Each
/// goes alone, so that the others do not suffer; what is refused alone will never be taken.
async fn refused(channel: Arc<dyn WorkerChannel>, items: Vec<ReportItem>, problem: Problem) -> Reported {
    if let [item] = items.as_slice() {
        tracing::error!(task_id = %item.task_id, code = problem.code.word(), detail = problem.detail, "a report was refused");
        let results = vec![ReportResult::Refused { code: ErrorCode::InvalidRequest }];
        return Reported { items, outcome: Ok(ReportAnswer { results, ..ReportAnswer::default() }) };
    }
    one_by_one(channel, items).await
}

async fn one_by_one(channel: Arc<dyn WorkerChannel>, items: Vec<ReportItem>) -> Reported {
    let mut together = ReportAnswer::default();
    for item in &items {
        let alone = Box::pin(report(Arc::clone(&channel), vec![item.clone()], None)).await;
        match alone.outcome {
            Ok(answer) => {
                together.results.extend(answer.results);
                together.orders.stops.extend(answer.orders.stops);
                together.orders.cancel_task_ids.extend(answer.orders.cancel_task_ids);
                together.orders.kill_task_ids.extend(answer.orders.kill_task_ids);
                together.orders.revoked |= answer.orders.revoked;
            }
            Err(unjudged) => return Reported { items, outcome: Err(unjudged) },
        }
    }
    Reported { items, outcome: Ok(together) }
}
