//! One job: show it, wait for it, stop it, repeat it, remove it, and what belongs to it.

use actix_web::{HttpRequest, HttpResponse, web};
use tokio::time::timeout;

use crate::actors::messages::front_desk::{CancelJob, Keyed, NewJob, PurgeJob, Until};
use crate::artifacts::{ArtifactError, ArtifactStore};
use crate::clock;
use crate::contract::artifact::Digest;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::JobId;
use crate::contract::job::{CancelRequest, Page, RetryRequest};
use crate::contract::problem::Fault;
use crate::domain::credentials::JobAct;
use crate::domain::dependency;
use crate::http::body::{self, Asked, JSON_LIMIT_BYTES};
use crate::http::caller::Client;
use crate::http::desk;
use crate::http::idempotency::{Key, REPLAYED_HEADER};
use crate::http::query::Query;
use crate::http::reading::{job_id_in, no_job};
use crate::http::references;
use crate::http::refusal::Refusal;
use crate::http::retry;
use crate::http::routes::submit::{created, first_job, named_only, submit};
use crate::http::state::EdgeState;
use crate::http::submission::{Bounds, as_submitted, new_job};
use crate::http::{blocking, files};
use crate::store::Reads;

/// Shows a job; with `wait_s`, parks until its end or the time is over.
pub async fn show(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let id = job_id_in(&path)?;
    let mut query = Query::of(&request);
    let wait = query.wait();
    query.finish()?;
    if wait.millis() > 0 {
        state.check_seen(&client, id)?;
        // A job that is not live answers at once, so the store is read only once, afterwards.
        let parked = timeout(wait.duration(), state.watch_job(id, Until::Ended));
        match state.while_admitted(&client, parked).await {
            Ok(Ok(watched)) => watched?,
            Ok(Err(_)) => {}
            // The end that a stopping daemon caused is told; what has not ended is asked of the next one.
            Err(refusal) if refusal.is_stopping() && state.standing(&client, id)?.state.ended() => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(HttpResponse::Ok().json(state.shown_job(&client, id).await?))
}

/// Stops a job: at once if it has not started, else with its grace. Answers with the job as it stands then.
pub async fn cancel(
    request: HttpRequest,
    payload: web::Payload,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let job_id = job_id_in(&path)?;
    let bytes = body::read_json_bytes(&request, payload, JSON_LIMIT_BYTES).await?;
    let key = Key::of(&request, &client, &bytes)?;
    let read = Query::none(&request)
        .and_then(|()| body::parse_object::<CancelRequest>(&request, &bytes, &["now"]))
        .and_then(|read| state.owned(&client, JobAct::Stop, job_id).map(|job| (read, job)));
    let (Asked { asked, warnings }, job) = match read {
        Ok(read) => read,
        Err(refusal) => {
            state.repeated_or(key.as_ref(), refusal)?;
            return cancelled_before(&state, &client, job_id).await;
        }
    };
    let by = (job.submitted_by != client.user()).then(|| client.author());
    let used = key.map(|key| key.used(200, &[job_id], clock::now()));
    let outcome = desk::ask(|reply| {
        state.ports.desk.cancel_job.do_send(CancelJob { job_id, now: asked.now, by, key: used, reply });
    })
    .await?;
    if matches!(outcome, Keyed::Repeat) {
        state.repeated(key.as_ref())?;
        return cancelled_before(&state, &client, job_id).await;
    }
    let mut job = state.shown_job(&client, job_id).await?;
    job.warnings.extend(warnings);
    Ok(HttpResponse::Ok().json(job))
}

/// The answer to a repeated cancel: the job as it stands now, if it is still there.
async fn cancelled_before(
    state: &EdgeState,
    client: &Client,
    job_id: JobId,
) -> Result<HttpResponse, Refusal> {
    if state.ports.reads.job_standing(job_id)?.is_none() {
        return Ok(named_only(HttpResponse::Ok(), job_id));
    }
    let job = state.shown_job(client, job_id).await?;
    Ok(HttpResponse::Ok().insert_header((REPLAYED_HEADER, "true")).json(job))
}

/// Repeats an ended job as a new one with `retry_of`: 201 with the new job.
pub async fn retry(
    request: HttpRequest,
    payload: web::Payload,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let first = job_id_in(&path)?;
    let bytes = body::read_json_bytes(&request, payload, JSON_LIMIT_BYTES).await?;
    let key = Key::of(&request, &client, &bytes)?;
    let job = match Query::none(&request).and_then(|()| repeated(&request, &bytes, &state, &client, first)) {
        Ok(job) => job,
        Err(refusal) => return first_job(&state, &state.repeated_or(key.as_ref(), refusal)?, |_, _| None),
    };
    let id = job.record.id;
    let shown = as_submitted(&job).map_err(Refusal::internal)?;
    match submit(&state, &client, vec![job], key.as_ref(), 201).await? {
        Keyed::Done(()) => Ok(created(id, &shown, false)),
        Keyed::Repeat => first_job(&state, &state.repeated(key.as_ref())?, |_, _| None),
    }
}

/// The new job that repeats `first`.
fn repeated(
    request: &HttpRequest,
    bytes: &[u8],
    state: &EdgeState,
    client: &Client,
    first: JobId,
) -> Result<NewJob, Refusal> {
    let Asked { asked, warnings: strange } = body::parse_object::<RetryRequest>(request, bytes, &["failed"])?;
    if let Some(field) = strange.into_iter().next() {
        let detail = "this call takes `failed` alone".to_owned();
        let fault = Fault { pointer: field.pointer, code: "unknown_field".to_owned(), detail };
        return Err(Refusal::faults(ErrorCode::InvalidRequest, vec![fault]));
    }
    state.owned(client, JobAct::Retry, first)?;
    let before = state.job(client, first)?;
    if !before.state.ended() {
        return Err(Refusal::new(
            ErrorCode::JobNotEnded,
            format!("job {first} is {}; it can be repeated after its end", before.state.word()),
        ));
    }
    let spec = retry::spec(&state.ports.reads, &before, asked.failed)?;
    let document = serde_json::to_value(&spec).map_err(Refusal::internal)?;
    let bounds = Bounds::of(client, &state.ports);
    let faults = bounds.faults(&document, "");
    if !faults.is_empty() {
        return Err(Refusal::spec(faults));
    }
    let artifacts = bounds.pin_named(&document, "")?;
    // What a child waited for was its array's to wait for.
    let begun = match before.parent {
        Some(parent) => {
            state.ports.reads.job_standing(parent)?.is_some_and(|parent| parent.started_at.is_some())
        }
        None => before.started_at.is_some(),
    };
    let waits = if begun {
        // What it waited for was over as it should be, and may be gone by now.
        Vec::new()
    } else {
        let named = references::named(&document, "", client, &state.ports.reads)?;
        if !named.faults.is_empty() {
            return Err(Refusal::spec(named.faults));
        }
        dependency::waits(&spec, |id| named.names.get(&id).cloned())
    };
    let left = retry::checkpoints(&state.ports.reads, &before, spec.array.as_deref())?;
    let asked = left.len();
    let checkpoints = bounds.pin_checkpoints(left).map_err(Refusal::internal)?;
    let gone = (checkpoints.len() < asked).then(|| retry::checkpoints_gone(asked - checkpoints.len()));
    let warnings = gone.into_iter().collect();
    let job = new_job(spec, warnings, artifacts, client.user(), Some(first)).map_err(Refusal::internal)?;
    Ok(NewJob { waits, checkpoints, ..job })
}

/// Removes an ended job, its log and the artifacts that nothing else names: 204.
pub async fn purge(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let job_id = job_id_in(&path)?;
    Query::none(&request)?;
    let key = Key::of(&request, &client, &[])?;
    let gone = |replayed: bool| {
        let mut answer = HttpResponse::NoContent();
        if replayed {
            answer.insert_header((REPLAYED_HEADER, "true"));
        }
        Ok(answer.finish())
    };
    if state.ports.reads.job_standing(job_id)?.is_none() {
        return match state.first_answer(key.as_ref())? {
            Some(_) => gone(true),
            None => Err(no_job(job_id)),
        };
    }
    state.owned(&client, JobAct::Remove, job_id)?;
    let parent = state.ports.reads.parent_of(job_id)?;
    let mut named = state.ports.reads.artifacts_of(job_id)?;
    // Of an array everything goes, and what has never been placed has left nothing behind.
    named.extend(state.ports.reads.artifacts_of_children(job_id)?);
    let children = state.ports.reads.children(job_id)?;
    let family: Vec<JobId> = std::iter::once(job_id)
        .chain(children.into_iter().filter(|(_, _, placed)| *placed).map(|(child, ..)| child))
        .collect();
    let used = key.map(|key| key.used(204, &[job_id], clock::now()));
    let outcome = desk::ask(|reply| {
        state.ports.desk.purge_job.do_send(PurgeJob {
            job_id,
            parent,
            by: Some(client.author()),
            key: used,
            reply,
        })
    })
    .await??;
    let replayed = matches!(outcome, Keyed::Repeat);
    if replayed {
        state.repeated(key.as_ref())?;
    } else {
        // Lines that a stop in between leaves behind belong to no job and go with the next clean-up.
        for id in &family {
            let _ = state.ports.logs.purge(*id).await;
        }
        let (reads, artifacts) = (state.ports.reads.clone(), state.ports.artifacts.clone());
        let kept = state.ports.kept.clone();
        blocking(move || {
            for job_id in family {
                if let Err(error) = kept.discard(job_id) {
                    tracing::warn!(%job_id, %error, "a kept workspace cannot be removed");
                }
            }
            remove_unnamed(&named, &reads, &artifacts)
        })
        .await?;
    }
    gone(replayed)
}

fn remove_unnamed(named: &[Digest], reads: &Reads, artifacts: &ArtifactStore) -> Result<(), Refusal> {
    for digest in named {
        if !reads.artifact_referenced(digest, None)? {
            let removed: Result<bool, ArtifactError> = artifacts.remove_if_unpinned(*digest);
            removed?;
        }
    }
    Ok(())
}

/// The job's placements, oldest first.
pub async fn tasks(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    Query::none(&request)?;
    let id = job_id_in(&path)?;
    state.standing(&client, id)?;
    Ok(page(state.ports.reads.tasks(id)?))
}

/// The job's collected files.
pub async fn outputs(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    Query::none(&request)?;
    Ok(page(state.job(&client, job_id_in(&path)?)?.outputs))
}

fn page<T: serde::Serialize>(items: Vec<T>) -> HttpResponse {
    HttpResponse::Ok().json(Page { items, next_cursor: None })
}

/// The bytes of a file that no output declares, while its workspace is kept.
pub async fn undeclared(
    request: HttpRequest,
    path: web::Path<(String, String)>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let (job, file) = path.into_inner();
    let id: JobId = job_id_in(&job)?;
    let ended = state.standing(&client, id)?.state.ended();
    // Undeclared files are those of rank 0.
    let tasks = if ended { state.ports.reads.tasks(id)? } else { Vec::new() };
    let ended = tasks.iter().rfind(|task| task.rank == 0).map(|task| task.id);
    let kept = state.ports.kept.clone();
    let shown = file.clone();
    let opened = blocking(move || {
        let Some(file) = kept.open(id, ended, &file) else { return Ok(Err(kept.gone(id))) };
        let size_bytes = file.metadata()?.len();
        Ok::<_, std::io::Error>(Ok((file, size_bytes)))
    })
    .await?;
    let (file, size_bytes) = opened.map_err(|gone| {
        let why = gone.map(|gone| format!("; {gone}")).unwrap_or_default();
        Refusal::not_found(format_args!("kept file `{}` of job {id}{why}", shown.escape_debug()))
    })?;
    files::answer(&request, file, size_bytes)
}
