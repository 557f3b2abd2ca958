//! Why a job waits, and where a spec would run.

use actix_web::{HttpRequest, HttpResponse, web};

use crate::actors::messages::front_desk::{Explain, Held, NoSuchWorker, Question};
use crate::clock;
use crate::contract::error_code::ErrorCode;
use crate::contract::explain::{Explanation, PastExplanation, WhatIf};
use crate::contract::job::{Job, JobState};
use crate::contract::problem::Fault;
use crate::domain;
use crate::domain::credentials::JobAct;
use crate::domain::placement::{Shape, wish};
use crate::domain::spec;
use crate::http::body::{self, Asked, JSON_LIMIT_BYTES};
use crate::http::caller::Client;
use crate::http::desk;
use crate::http::query::Query;
use crate::http::reading::job_id_in;
use crate::http::refusal::Refusal;
use crate::http::routes::submit;
use crate::http::state::EdgeState;
use crate::http::submission::{Bounds, with_project};

/// Workers that may be supposed.
const MOST_SUPPOSED: u32 = 1000;
/// Events of an ended job that are looked through.
const MOST_EVENTS: usize = 2_000;

/// Why a job waits, or what an ended one had waited for. One that runs is refused with where it stands.
pub async fn job(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let id = job_id_in(&path)?;
    Query::none(&request)?;
    let job = state.job(&client, id)?;
    let of_array = job.is_array() || job.parent.is_some();
    let held = if job.state.ended() { None } else { state.held(id, of_array).await };
    if let Some(Held::Reason(reason)) = &held {
        return Err(Refusal::new(
            ErrorCode::NotWaiting,
            format!("job {id} does not wait for a worker yet: {reason}"),
        ));
    }
    if job.state == JobState::Queued || held.is_some() {
        // An array waits as the first of its children does that waits.
        let asked = if let Some(Held::Child(child)) = held { child } else { id };
        let question = Question::Job(asked);
        let answer = answered(&state, question).await?;
        if let Ok(Some(mut explanation)) = answer {
            name_holders(&mut explanation, &client, &state);
            return Ok(HttpResponse::Ok().json(explanation));
        }
    }
    if job.state.ended() {
        return Ok(HttpResponse::Ok().json(past(&state, &job)?));
    }
    let waits_for = job.queue_reason.filter(|_| job.state == JobState::Queued);
    let why = waits_for.map_or_else(
        || format!("job {id} does not wait for a worker: it is {}", job.state.word()),
        |reason| format!("job {id} does not wait for a worker yet: {reason}"),
    );
    Err(Refusal::new(ErrorCode::NotWaiting, why))
}

type Answer = Result<Option<Explanation>, NoSuchWorker>;

/// The scheduler's answer. It drops questions when too many wait.
async fn answered(state: &EdgeState, question: Question) -> Result<Answer, Refusal> {
    let asked = desk::ask(|reply| state.ports.desk.explain.do_send(Explain { question, reply }));
    asked.await.map_err(|_| {
        Refusal::new(ErrorCode::Overloaded, "too many ask for explanations; try again shortly".to_owned())
    })
}

/// Whose the jobs are that hold what is waited for, or come before. Those that the client may not see have no name.
fn name_holders(explanation: &mut Explanation, client: &Client, state: &EdgeState) {
    let holders = explanation.waiting_for.iter_mut().flat_map(|waiting| &mut waiting.held_by);
    for holder in holders {
        let owned = holder.job.and_then(|id| state.owned(client, JobAct::See, id).ok());
        holder.job = holder.job.filter(|_| owned.is_some());
        holder.submitted_by = owned.map(|owned| owned.submitted_by);
    }
    explanation.served_before.retain(|id| state.owned(client, JobAct::See, *id).is_ok());
}

/// Tasks and events of one job are few.
fn past(state: &EdgeState, job: &Job) -> Result<PastExplanation, Refusal> {
    let reads = &state.ports.reads;
    let (tasks, events) = (reads.tasks(job.id)?, reads.events(job.id, 0, MOST_EVENTS)?);
    // What another version has written is left out.
    let left_queue = reads.explanation(job.id)?.and_then(|text| serde_json::from_str(&text).ok());
    Ok(domain::past::explain(job, &tasks, &events, left_queue.filter(|_| tasks.is_empty())))
}

/// Where a spec would run, without submitting it.
pub async fn what_if(
    request: HttpRequest,
    payload: web::Payload,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let bytes = body::read_json_bytes(&request, payload, JSON_LIMIT_BYTES).await?;
    Query::none(&request)?;
    let fields = ["spec", "like", "more", "without"];
    let Asked { asked, .. } = body::parse_object::<WhatIf>(&request, &bytes, &fields)?;
    let options = submit::options(&request, &client);
    let document = with_project(asked.spec, &client);
    let faults = Bounds::of(&client, &state.ports).faults_of_wish(&document, "/spec");
    if !faults.is_empty() {
        return Err(Refusal::faults(ErrorCode::InvalidSpec, faults));
    }
    let read = spec::read(&document, "/spec", options).map_err(Refusal::spec)?;
    if let Some(without) = asked.without {
        state.check_seen(&client, without)?;
    }
    let more = asked.more.unwrap_or(1);
    if more > MOST_SUPPOSED {
        let detail = format!("a number from 0 to {MOST_SUPPOSED} is expected");
        let fault = Fault { pointer: "/more".to_owned(), code: "invalid".to_owned(), detail };
        return Err(Refusal::faults(ErrorCode::InvalidRequest, vec![fault]));
    }
    let (now, shape) = (clock::now(), Shape::of(&read.spec).into());
    let job = wish(clock::job_id(), read.spec.priority, read.spec.project.as_str().into(), shape, now);
    let question = Question::Wish { job: Box::new(job), like: asked.like, more, without: asked.without };
    let answer = answered(&state, question).await?;
    match answer {
        Ok(mut explanation) => {
            if let Some(explanation) = &mut explanation {
                name_holders(explanation, &client, &state);
                explanation.warnings = read.warnings;
            }
            Ok(HttpResponse::Ok().json(explanation))
        }
        Err(unknown) => {
            let fault = Fault {
                pointer: "/like".to_owned(),
                code: "invalid".to_owned(),
                detail: unknown.to_string(),
            };
            Err(Refusal::faults(ErrorCode::InvalidRequest, vec![fault]))
        }
    }
}
