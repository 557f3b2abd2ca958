//! `POST /v1/jobs` and `POST /v1/jobs/batch`. The answer leaves after the jobs are on disk.

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, web};
use serde_json::Value;

use crate::actors::messages::front_desk::{Keyed, NewJob, SubmitJobs};
use crate::clock;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::JobId;
use crate::contract::job::{BatchAnswer, Job};
use crate::contract::problem::{Fault, Warning};
use crate::contract::quantity::Timestamp;
use crate::domain::spec::{self, ReadOptions};
use crate::domain::verdict::left_out;
use crate::http::body::{self, BATCH_LIMIT_BYTES, JSON_LIMIT_BYTES, REFUSE_IMPOSSIBLE};
use crate::http::caller::Client;
use crate::http::desk;
use crate::http::document::escaped;
use crate::http::idempotency::{FirstAnswer, Key, REPLAYED_HEADER};
use crate::http::outlook;
use crate::http::query::Query;
use crate::http::references::Earlier;
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;
use crate::http::submission::{Unreadable, as_submitted, read_job, resubmitted, rewound, with_project};
use crate::http::vain;

/// Jobs of a batch at most.
pub const BATCH_JOBS: usize = 10_000;
/// Children that all arrays of a batch may have together.
const BATCH_CHILDREN: usize = 100_000;
/// Faults of a batch that are listed; one bad generator makes the same one 10,000 times.
const LISTED_FAULTS: usize = 1000;

/// Submits one job: 201 with the job and its `Location`.
pub async fn one(
    request: HttpRequest,
    payload: web::Payload,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let bytes = body::read_json_bytes(&request, payload, JSON_LIMIT_BYTES).await?;
    let key = Key::of(&request, &client, &bytes)?;
    let options = options(&request, &client);
    let again = |id, at| {
        let (value, _) = body::read_value(&bytes).ok()?;
        resubmitted(&with_project(value, &client), options, client.user(), id, at)
    };
    let job = match Query::none(&request).and_then(|()| read_one(&bytes, options, &client, &state)) {
        Ok(mut job) => {
            job.record.warnings.extend(left_out::warnings(&body::left_out(&request)));
            job
        }
        Err(refusal) => return first_job(&state, &state.repeated_or(key.as_ref(), refusal)?, again),
    };
    let mut jobs = vec![job];
    let outlooks = outlook::of(&state, &jobs).await?;
    if let Some(never) = outlooks.first().and_then(|outlook| outlook.never.as_ref())
        && body::prefers(&request, REFUSE_IMPOSSIBLE)
    {
        return first_job(&state, &state.repeated_or(key.as_ref(), outlook::refusal(never))?, again);
    }
    for (job, outlook) in jobs.iter_mut().zip(&outlooks) {
        job.record.warnings.extend(outlook::warnings(outlook, ""));
    }
    if let Some(vain) = vain::of(&state, &jobs)?.pop().flatten() {
        if body::prefers(&request, REFUSE_IMPOSSIBLE) {
            return first_job(&state, &state.repeated_or(key.as_ref(), vain.refusal())?, again);
        }
        jobs.iter_mut().for_each(|job| job.record.warnings.push(vain.warning("")));
    }
    let Some(job) = jobs.pop() else { return Err(Refusal::stopping()) };
    let id = job.record.id;
    let shown = as_submitted(&job).map_err(Refusal::internal)?;
    match submit(&state, &client, vec![job], key.as_ref(), 201).await? {
        Keyed::Done(()) => Ok(created(id, &shown, false)),
        Keyed::Repeat => first_job(&state, &state.repeated(key.as_ref())?, again),
    }
}

fn read_one(
    bytes: &[u8],
    options: ReadOptions,
    client: &Client,
    state: &EdgeState,
) -> Result<NewJob, Refusal> {
    let (value, mut faults) = body::read_value(bytes)?;
    match read_job(&with_project(value, client), "", options, client, &state.ports, &[]) {
        Ok(job) if faults.is_empty() => Ok(job),
        Ok(_) => Err(Refusal::spec(faults)),
        Err(Unreadable::Faults(found)) => {
            faults.extend(found);
            Err(Refusal::spec(faults))
        }
        Err(other) => Err(other.into()),
    }
}

/// The answer to a repeated submission: the first one's job, as it was then. One that has been removed since is
/// read `again` from the request, which is the same.
pub fn first_job(
    state: &EdgeState,
    first: &FirstAnswer,
    again: impl FnOnce(JobId, Timestamp) -> Option<Job>,
) -> Result<HttpResponse, Refusal> {
    let id = *first.jobs.first().ok_or_else(|| Refusal::not_found("first answer"))?;
    let job = match state.ports.reads.job(id)? {
        Some(job) => Some(rewound(job)),
        None => again(id, first.given_at),
    };
    Ok(match job {
        Some(job) => created(id, &job, true),
        None => named_only(HttpResponse::Created(), id),
    })
}

/// The answer to the repeat of a call whose job is gone and cannot be shown again.
pub fn named_only(mut answer: HttpResponseBuilder, id: JobId) -> HttpResponse {
    answer
        .insert_header((REPLAYED_HEADER, "true"))
        .insert_header((header::LOCATION, format!("/v1/jobs/{id}")))
        .json(serde_json::json!({ "id": id }))
}

/// 201 with a job.
pub fn created(id: JobId, job: &Job, replayed: bool) -> HttpResponse {
    let mut answer = HttpResponse::Created();
    answer.insert_header((header::LOCATION, format!("/v1/jobs/{id}")));
    if replayed {
        answer.insert_header((REPLAYED_HEADER, "true"));
    }
    answer.json(job)
}

/// Hands jobs over and waits until they are on disk.
pub async fn submit(
    state: &EdgeState,
    client: &Client,
    jobs: Vec<NewJob>,
    key: Option<&Key>,
    status: u16,
) -> Result<Keyed<()>, Refusal> {
    let key = key.map(|key| {
        let ids: Vec<JobId> = jobs.iter().map(|job| job.record.id).collect();
        // A job's own time, so that a repeat can tell it.
        let submitted_at = jobs.first().map_or_else(clock::now, |job| job.record.submitted_at);
        key.used(status, &ids, submitted_at)
    });
    let verdict = desk::ask(|reply| {
        state.ports.desk.submit_jobs.do_send(SubmitJobs { jobs, pass: client.pass.clone(), key, reply })
    })
    .await?;
    Ok(verdict?)
}

/// Submits many jobs, all or none: 201 with their ids in order.
pub async fn batch(
    request: HttpRequest,
    payload: web::Payload,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let bytes = body::read_json_bytes(&request, payload, BATCH_LIMIT_BYTES).await?;
    let key = Key::of(&request, &client, &bytes)?;
    let options = options(&request, &client);
    let strange = Query::none(&request);
    let (reader, submitter) = (state.clone(), client.clone());
    // Up to a second of CPU: not on a thread that others wait for.
    let read = web::block(move || {
        let read = strange.and_then(|()| read_batch(&bytes, options, &submitter, &reader));
        read.map_err(|refusal| (refusal, batch_warnings(&bytes, options)))
    });
    let (mut jobs, mut warnings) = match read.await.map_err(|_| Refusal::stopping())? {
        Ok(read) => read,
        Err((refusal, warnings)) => {
            let ids = state.repeated_or(key.as_ref(), refusal)?.jobs;
            return Ok(accepted(ids, warnings, true));
        }
    };
    for (index, outlook) in outlook::of(&state, &jobs).await?.iter().enumerate() {
        let of_it = outlook::warnings(outlook, &format!("/jobs/{index}"));
        jobs[index].record.warnings.extend(of_it.iter().cloned());
        warnings.extend(of_it);
    }
    for (index, vain) in vain::of(&state, &jobs)?.into_iter().enumerate() {
        let of_it = vain.map(|vain| vain.warning(&format!("/jobs/{index}")));
        jobs[index].record.warnings.extend(of_it.clone());
        warnings.extend(of_it);
    }
    let ids = jobs.iter().map(|job| job.record.id).collect();
    match submit(&state, &client, jobs, key.as_ref(), 201).await? {
        Keyed::Done(()) => Ok(accepted(ids, warnings, false)),
        Keyed::Repeat => Ok(accepted(state.repeated(key.as_ref())?.jobs, warnings, true)),
    }
}

fn accepted(ids: Vec<JobId>, warnings: Vec<Warning>, replayed: bool) -> HttpResponse {
    let mut answer = HttpResponse::Created();
    if replayed {
        answer.insert_header((REPLAYED_HEADER, "true"));
    }
    answer.json(BatchAnswer { ids, warnings })
}

fn read_batch(
    bytes: &[u8],
    options: ReadOptions,
    client: &Client,
    state: &EdgeState,
) -> Result<(Vec<NewJob>, Vec<Warning>), Refusal> {
    let (value, mut faults) = body::read_value(bytes)?;
    let entries = entries(value)?;
    let mut jobs = Vec::with_capacity(entries.len());
    let mut earlier = Vec::with_capacity(entries.len());
    let mut warnings = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let entry = with_project(entry, client);
        let prefix = format!("/jobs/{index}");
        match read_job(&entry, &prefix, options, client, &state.ports, &earlier) {
            Ok(job) => {
                earlier.push(Some(Earlier::of(&job)));
                warnings.extend(job.record.warnings.iter().cloned());
                jobs.push(job);
            }
            Err(Unreadable::Faults(found)) => {
                earlier.push(None);
                faults.extend(found);
            }
            Err(other) => return Err(other.into()),
        }
        if faults.len() > LISTED_FAULTS {
            break;
        }
    }
    let children: usize = jobs.iter().filter_map(|job| Some(job.array.as_ref()?.layout.len())).sum();
    if children > BATCH_CHILDREN {
        let detail = format!(
            "its arrays have {children} children together, at most {BATCH_CHILDREN} are taken at once"
        );
        faults.push(Fault { pointer: "/jobs".to_owned(), code: "invalid".to_owned(), detail });
    }
    faults.truncate(LISTED_FAULTS);
    if faults.is_empty() { Ok((jobs, warnings)) } else { Err(Refusal::spec(faults)) }
}

/// What was noticed of a batch that was accepted before.
fn batch_warnings(bytes: &[u8], options: ReadOptions) -> Vec<Warning> {
    let entries = body::read_value(bytes).and_then(|(value, _)| entries(value)).unwrap_or_default();
    let read = |(index, entry)| spec::read(entry, &format!("/jobs/{index}"), options).ok();
    entries.iter().enumerate().filter_map(read).flat_map(|read| read.warnings).collect()
}

fn entries(batch: Value) -> Result<Vec<Value>, Refusal> {
    let Value::Object(mut object) = batch else {
        return Err(one_fault("", "invalid", "an object with the field `jobs` is expected"));
    };
    let Some(Value::Array(entries)) = object.remove("jobs") else {
        return Err(one_fault("/jobs", "invalid", "a list of specs is expected"));
    };
    if let Some(unknown) = object.keys().next() {
        return Err(one_fault(
            &format!("/{}", escaped(unknown)),
            "unknown_field",
            "a batch has the field `jobs` alone",
        ));
    }
    if entries.is_empty() || entries.len() > BATCH_JOBS {
        let detail = format!("{} specs given, 1 to {BATCH_JOBS} are expected", entries.len());
        return Err(one_fault("/jobs", "invalid", &detail));
    }
    Ok(entries)
}

fn one_fault(pointer: &str, code: &str, detail: &str) -> Refusal {
    Refusal::faults(
        ErrorCode::InvalidRequest,
        vec![Fault { pointer: pointer.to_owned(), code: code.to_owned(), detail: detail.to_owned() }],
    )
}

pub fn options(request: &HttpRequest, client: &Client) -> ReadOptions {
    let strict = body::wants_strict(request);
    ReadOptions { strict, allow_absolute_cwd: client.local }
}
