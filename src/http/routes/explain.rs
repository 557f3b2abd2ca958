//! Why a job waits, and where a spec would run. A job that waits for others first is answered for as a spec would be, with
//! what it waits for.

use actix_web::{HttpRequest, HttpResponse, web};

use crate::actors::messages::front_desk::{Explain, Held, Question, Unexplained};
use crate::clock;
use crate::contract::error_code::ErrorCode;
use crate::contract::explain::{Explanation, PastExplanation, WhatIf};
use crate::contract::ids::JobId;
use crate::contract::job::{Job, JobState};
use crate::contract::problem::Fault;
use crate::contract::spec::JobSpec;
use crate::domain;
use crate::domain::credentials::JobAct;
use crate::domain::dependency::named;
use crate::domain::placement::{QueuedJob, Shape, wish};
use crate::domain::spec;
use crate::http::body::{self, JSON_LIMIT_BYTES};
use crate::http::caller::Client;
use crate::http::desk;
use crate::http::query::Query;
use crate::http::reading::job_id_in;
use crate::http::references;
use crate::http::refusal::Refusal;
use crate::http::routes::submit;
use crate::http::state::EdgeState;
use crate::http::submission::{Bounds, with_project};

/// Workers that may be supposed.
const MOST_SUPPOSED: u32 = 1000;
/// Events of an ended job that are looked through.
const MOST_EVENTS: usize = 2_000;

/// Said of a job that the scheduler was not told of, and of which nobody knows why: its next attempt has its pause, or
/// it was submitted this moment.
const ON_ITS_WAY: &str = "waits until its next attempt is due";

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
    let spec: JobSpec = serde_json::from_str(job.spec.get()).map_err(Refusal::internal)?;
    if job.state == JobState::Queued || held.is_some() {
        // An array waits as the first of its children does that waits.
        let job_id = if let Some(Held::Child(child)) = held { child } else { id };
        let question = Question::Job { job_id, grace_s: spec.grace_s };
        if let Some(mut explanation) = answered(&state, question).await? {
            show_to(&client, &state, &mut explanation);
            return Ok(HttpResponse::Ok().json(explanation));
        }
    }
    // It may have moved since it was read.
    let job = state.job(&client, id)?;
    if job.state.ended() {
        return Ok(HttpResponse::Ok().json(past(&state, &job)?));
    }
    if job.state != JobState::Queued {
        let leaves = job.preempted_by.map(|by| format!(", and leaves for {} (preempted)", named(by)));
        let why = format!(
            "job {id} does not wait for a worker: it is {}{}",
            job.state.word(),
            leaves.unwrap_or_default()
        );
        return Err(Refusal::new(ErrorCode::NotWaiting, why));
    }
    let wish = QueuedJob { submitted_at: job.submitted_at, ..wished(id, &spec) };
    let question = Question::Wish {
        job: Box::new(wish),
        grace_s: spec.grace_s,
        like: None,
        more: 0,
        without: None,
        by: None,
    };
    match answered(&state, question).await? {
        Some(mut explanation) => {
            show_to(&client, &state, &mut explanation);
            let first = if let Some(Held::Reason(reason)) = held { Some(reason) } else { job.queue_reason };
            explanation.held = Some(first.unwrap_or_else(|| ON_ITS_WAY.to_owned()));
            // Of what nobody can know who waits for others first.
            (explanation.starts_by, explanation.suggestions) = (None, Vec::new());
            Ok(HttpResponse::Ok().json(explanation))
        }
        None => Err(Refusal::new(ErrorCode::NotWaiting, format!("job {id} does not wait for a worker yet"))),
    }
}

/// A job of this spec as it would wait now.
fn wished(id: JobId, spec: &JobSpec) -> QueuedJob {
    wish(id, spec.priority, spec.project.as_str().into(), Shape::of(spec).into(), clock::now())
}

/// `Retry-After` where too many ask: until then some questions are answered.
const ASK_AGAIN_AFTER_S: u32 = 1;

/// The scheduler's answer; `None` when that job does not wait.
async fn answered(state: &EdgeState, question: Question) -> Result<Option<Explanation>, Refusal> {
    let answer = desk::ask(|reply| state.ports.desk.explain.do_send(Explain { question, reply })).await?;
    answer.map_err(|unexplained| {
        let detail = unexplained.to_string();
        match unexplained {
            Unexplained::NoSuchWorker(_) => {
                let fault = Fault { pointer: "/like".to_owned(), code: "invalid".to_owned(), detail };
                Refusal::faults(ErrorCode::InvalidRequest, vec![fault])
            }
            Unexplained::TooManyOfOne | Unexplained::TooMany => {
                Refusal::new(ErrorCode::Overloaded, detail).retry_after(ASK_AGAIN_AFTER_S)
            }
        }
    })
}

/// Whose the jobs are that hold what is waited for, that have it reserved, or come before. Those that the client may not
/// see have no name.
fn show_to(client: &Client, state: &EdgeState, explanation: &mut Explanation) {
    let seen = |id: &JobId| state.owned(client, JobAct::See, *id).is_ok();
    let of_workers = explanation.workers.iter_mut().filter_map(|answer| answer.reserved_for.as_mut());
    let waited_for = explanation.waiting_for.iter_mut().filter_map(|waiting| waiting.reserved_for.as_mut());
    for reserved_for in of_workers.chain(waited_for) {
        reserved_for.job = reserved_for.job.filter(seen);
    }
    let holders = explanation.waiting_for.iter_mut().flat_map(|waiting| &mut waiting.held_by);
    for holder in holders.chain(&mut explanation.quota_held_by) {
        let owned = holder.job.and_then(|id| state.owned(client, JobAct::See, id).ok());
        holder.job = holder.job.filter(|_| owned.is_some());
        holder.submitted_by = owned.map(|owned| owned.submitted_by);
    }
    explanation.served_before.retain(seen);
    if let Some(favoured) = &mut explanation.favoured {
        favoured.project = favoured.project.take().filter(|project| client.grant.sees_project(project));
    }
}

/// Tasks and events of one job are few.
fn past(state: &EdgeState, job: &Job) -> Result<PastExplanation, Refusal> {
    let reads = &state.ports.reads;
    let (tasks, events) = (reads.tasks(job.id)?, reads.events(job.id, 0, MOST_EVENTS)?);
    // What another version has written is left out.
    let left_queue = reads.explanation(job.id)?.and_then(|text| serde_json::from_str(&text).ok());
    let left_queue = left_queue.filter(|_| tasks.is_empty());
    let last_began = if job.progress.is_some() { reads.last_child_began(job.id)? } else { None };
    Ok(domain::past::explain(job, &tasks, &events, left_queue, last_began))
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
    let asked: WhatIf = body::parse_strictly(&bytes, &fields)?;
    let options = submit::options(&request, &client);
    let document = with_project(asked.spec, &client);
    let read = spec::read(&document, "/spec", options);
    let mut faults = Bounds::of(&client, &state.ports).faults_of_wish(&document, "/spec");
    faults.extend(references::named(&document, "/spec", &client, &state.ports.reads)?.faults);
    let read = match read {
        Ok(read) if faults.is_empty() => read,
        Ok(_) => return Err(Refusal::faults(ErrorCode::InvalidSpec, faults)),
        Err(mut found) => {
            found.extend(faults);
            return Err(Refusal::spec(found));
        }
    };
    if let Some(without) = asked.without {
        state.check_seen(&client, without)?;
    }
    let refused = match asked.more {
        Some(more) if more > MOST_SUPPOSED => Some(format!("a number from 0 to {MOST_SUPPOSED} is expected")),
        Some(_) if asked.like.is_none() => Some("more workers like which? `like` names one".to_owned()),
        _ => None,
    };
    if let Some(detail) = refused {
        let fault = Fault { pointer: "/more".to_owned(), code: "invalid".to_owned(), detail };
        return Err(Refusal::faults(ErrorCode::InvalidRequest, vec![fault]));
    }
    let more = asked.more.unwrap_or(1);
    let (job, grace_s) = (Box::new(wished(clock::job_id(), &read.spec)), read.spec.grace_s);
    let by = Some(client.credential);
    let question = Question::Wish { job, grace_s, like: asked.like, more, without: asked.without, by };
    let mut explanation = answered(&state, question).await?;
    if let Some(explanation) = &mut explanation {
        show_to(&client, &state, explanation);
        explanation.warnings = read.warnings;
    }
    Ok(HttpResponse::Ok().json(explanation))
}
