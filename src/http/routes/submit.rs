//! `POST /v1/jobs` and `POST /v1/jobs/batch`. The answer leaves after the jobs are on disk.

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;

use crate::actors::messages::front_desk::{Keyed, NewJob, SubmitJobs};
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::JobId;
use crate::contract::job::{BatchAnswer, Job};
use crate::contract::problem::{Fault, Warning};
use crate::domain::spec::ReadOptions;
use crate::http::body::{self, BATCH_LIMIT_BYTES, JSON_LIMIT_BYTES};
use crate::http::caller::Client;
use crate::http::desk;
use crate::http::idempotency::{Key, REPLAYED_HEADER};
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;
use crate::http::submission::{Unreadable, as_submitted, read_job, rewound};

/// Jobs of a batch at most.
pub const BATCH_JOBS: usize = 10_000;
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
    let value = body::parse_value(&bytes)?;
    let key = Key::of(&request, &client, &bytes)?;
    let job = read_job(&value, "", options(&request, &client), &client.name, &state.ports.artifacts)?;
    let id = job.record.id;
    let shown = as_submitted(&job).map_err(Refusal::internal)?;
    match submit(&state, vec![job], key.as_ref(), 201).await? {
        Keyed::Done(()) => Ok(created(id, &shown, false)),
        Keyed::Repeat => first_job(&state, key.as_ref()),
    }
}

/// The answer to a repeated submission: the first one's job, as it was then.
pub fn first_job(state: &EdgeState, key: Option<&Key>) -> Result<HttpResponse, Refusal> {
    let id = *state.first_jobs(key)?.first().ok_or_else(|| Refusal::not_found("first answer"))?;
    let job = state.job(id)?;
    Ok(created(id, &rewound(job), true))
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
    jobs: Vec<NewJob>,
    key: Option<&Key>,
    status: u16,
) -> Result<Keyed<()>, Refusal> {
    let key = key.map(|key| {
        let ids: Vec<JobId> = jobs.iter().map(|job| job.record.id).collect();
        key.used(status, &ids)
    });
    let verdict =
        desk::ask(|reply| state.ports.desk.submit_jobs.do_send(SubmitJobs { jobs, key, reply })).await?;
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
    let reader = state.clone();
    // Up to a second of CPU: not on a thread that others wait for.
    let (jobs, warnings) = web::block(move || read_batch(&bytes, options, &client, &reader))
        .await
        .map_err(|_| Refusal::stopping())??;
    let ids = jobs.iter().map(|job| job.record.id).collect();
    match submit(&state, jobs, key.as_ref(), 201).await? {
        Keyed::Done(()) => Ok(HttpResponse::Created().json(BatchAnswer { ids, warnings })),
        Keyed::Repeat => {
            let ids = state.first_jobs(key.as_ref())?;
            let mut answer = HttpResponse::Created();
            answer.insert_header((REPLAYED_HEADER, "true"));
            Ok(answer.json(BatchAnswer { ids, warnings }))
        }
    }
}

fn read_batch(
    bytes: &[u8],
    options: ReadOptions,
    client: &Client,
    state: &EdgeState,
) -> Result<(Vec<NewJob>, Vec<Warning>), Refusal> {
    let entries = entries(body::parse_value(bytes)?)?;
    let mut jobs = Vec::with_capacity(entries.len());
    let mut warnings = Vec::new();
    let mut faults = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let prefix = format!("/jobs/{index}");
        match read_job(entry, &prefix, options, &client.name, &state.ports.artifacts) {
            Ok(job) => {
                warnings.extend(job.record.warnings.iter().cloned());
                jobs.push(job);
            }
            Err(Unreadable::Faults(found)) => faults.extend(found),
            Err(other) => return Err(other.into()),
        }
        if faults.len() > LISTED_FAULTS {
            break;
        }
    }
    faults.truncate(LISTED_FAULTS);
    if faults.is_empty() { Ok((jobs, warnings)) } else { Err(Refusal::spec(faults)) }
}

fn entries(batch: Value) -> Result<Vec<Value>, Refusal> {
    let Value::Object(mut object) = batch else {
        return Err(one_fault("", "invalid", "an object with the field `jobs` is expected"));
    };
    let Some(Value::Array(entries)) = object.remove("jobs") else {
        return Err(one_fault("/jobs", "invalid", "a list of specs is expected"));
    };
    if let Some(unknown) = object.keys().next() {
        return Err(one_fault(&format!("/{unknown}"), "unknown_field", "a batch has the field `jobs` alone"));
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

fn options(request: &HttpRequest, client: &Client) -> ReadOptions {
    let strict = request
        .headers()
        .get_all("Prefer")
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']))
        .any(|preference| preference.trim().eq_ignore_ascii_case("handling=strict"));
    ReadOptions { strict, allow_absolute_cwd: client.local }
}
