//! What a submission is told at once of where its jobs could run: a warning of each job that no worker could ever take,
//! or only such as no test covers. Whoever prefers it is refused the first kind instead.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::desk::ask;
use super::refusal::Refusal;
use super::state::EdgeState;
use crate::actors::messages::front_desk::{LookAhead, NewJob};
use crate::contract::error_code::ErrorCode;
use crate::contract::explain::Suggestion;
use crate::contract::problem::{BEYOND_QUOTA, Fault, Warning};
use crate::domain::change::WorkerRecord;
use crate::domain::placement::{Input, Never, Outlook, Placer, Policy, Shape};
use crate::store::StoreError;

/// A submission is accepted without a warning rather than late.
const WITHIN: Duration = Duration::from_secs(1);
/// Shapes that are looked at in one submission; a batch of more kinds is taken as it is.
const MOST_SHAPES: usize = 64;
/// Where a warning points to when no single change would do.
const RESOURCES: &str = "/resources";

/// A project, and what a job of it asks for.
type Asked = (Arc<str>, Arc<Shape>);

/// What can be said of each job, in order; of none when that takes too long.
pub async fn of(state: &EdgeState, jobs: &[NewJob]) -> Result<Vec<Outlook>, Refusal> {
    let mut asked: Vec<Asked> = Vec::new();
    let mut numbers: HashMap<(&str, &str), usize> = HashMap::new();
    // Jobs of a batch are mostly alike.
    let mut number_of = Vec::with_capacity(jobs.len());
    for job in jobs {
        let record = &job.record;
        let number = numbers.entry((&record.project, &record.shape)).or_insert_with(|| {
            asked.push((record.project.as_str().into(), Shape::of(&job.spec).into()));
            asked.len() - 1
        });
        number_of.push(*number);
    }
    asked.truncate(MOST_SHAPES);
    let shapes = asked.clone();
    let answer = ask(|reply| state.ports.desk.look_ahead.do_send(LookAhead { shapes, reply }));
    let Ok(Ok(mut outlooks)) = timeout(WITHIN, answer).await else { return Ok(Vec::new()) };
    if outlooks.iter().any(|outlook| outlook.never.is_some()) {
        ask_the_absent_too(state, &asked, &mut outlooks)?;
    }
    let unknown = Outlook { never: None, untested: None };
    Ok(number_of.into_iter().map(|number| outlooks.get(number).unwrap_or(&unknown).clone()).collect())
}

/// Workers that have not come back since the server started are in the store alone, and may be the ones.
fn ask_the_absent_too(
    state: &EdgeState,
    asked: &[Asked],
    outlooks: &mut [Outlook],
) -> Result<(), StoreError> {
    let known: Vec<_> = state.ports.reads.workers()?.into_iter().filter(|worker| !worker.gone).collect();
    let mut all: Option<Placer> = None;
    for ((project, shape), outlook) in asked.iter().zip(outlooks) {
        if outlook.never.as_ref().is_some_and(|never| never.judged < known.len()) {
            *outlook = all.get_or_insert_with(|| with_all(&known)).outlook(project, shape);
        }
    }
    Ok(())
}

fn with_all(known: &[WorkerRecord]) -> Placer {
    let mut placer = Placer::new(Policy::default());
    for worker in known {
        // Nothing is held there, so the books cannot but balance.
        let _ = placer.apply(Input::WorkerUp {
            worker_id: worker.id,
            name: worker.name.clone(),
            kind: worker.kind,
            incarnation: worker.identity.incarnation,
            capabilities: Box::new(worker.capabilities.clone()),
        });
    }
    placer
}

/// The same for the job's `warnings`; pointers begin with `prefix`.
pub fn warnings(outlook: &Outlook, prefix: &str) -> Vec<Warning> {
    let Outlook { never, untested } = outlook;
    let never = never.iter().map(|never| {
        let waits_for = match never.by_quota {
            true => "its project may not have that much, so it waits until the owner allows it",
            false => "no worker could ever take it as it is, so it waits for one that can",
        };
        let mut detail = format!("{waits_for} · {}", never.reason);
        if let Some(change) = &never.change {
            detail.push_str(&format!(" · this would do: {}", change.change));
        }
        Warning { pointer: format!("{prefix}{}", place(never)), detail }
    });
    let untested = untested.iter().map(|untested| Warning {
        pointer: format!("{prefix}{RESOURCES}"),
        detail: format!("the workers that can take it are of a kind that no test covers · {untested}"),
    });
    never.chain(untested).collect()
}

/// The refusal of what no worker could ever take: each worker's reason, and the smallest change as its only fault.
pub fn refusal(never: &Never) -> Refusal {
    let (detail, code) = match never.by_quota {
        true => (format!("the project may not have that much · {}", never.reason), BEYOND_QUOTA),
        false => {
            (format!("no worker could ever take this job · {}", never.reason), ErrorCode::NoWorkerFits.word())
        }
    };
    let detail_of = |change: &Suggestion| format!("this would do: {}", change.change);
    let detail_of_fault = never.change.as_ref().map(detail_of);
    // What a quota refuses is told by its fault, also when no single change would do.
    let detail_of_fault = detail_of_fault.or_else(|| never.by_quota.then(|| never.reason.clone()));
    let faults = detail_of_fault.into_iter().map(|detail| Fault {
        pointer: place(never).to_owned(),
        code: code.to_owned(),
        detail,
    });
    Refusal::new(ErrorCode::NoWorkerFits, detail).with_faults(faults.collect())
}

fn place(never: &Never) -> &str {
    never.change.as_ref().map_or(RESOURCES, |change| &change.pointer)
}
