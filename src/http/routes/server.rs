//! The server about itself: probes, status, who am I, metrics, OpenAPI, and its orderly stop.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};

use crate::actors::messages::front_desk::{Act, CountJobs, JobCounts, RecordAct};
use crate::clock;
use crate::contract::server::{Limits, LiveJobs, ServerStatus, StopRequest, WhoAmI};
use crate::contract::spec::API_VERSION;
use crate::contract::worker::WorkerState;
use crate::http::body::{self, BATCH_LIMIT_BYTES, JSON_LIMIT_BYTES};
use crate::http::caller::Client;
use crate::http::desk;
use crate::http::metrics::{Gauges, METRICS_CONTENT_TYPE};
use crate::http::openapi;
use crate::http::query::{MAX_WAIT, PAGE_LIMIT, Query};
use crate::http::refusal::{PROTOCOLS, Refusal};
use crate::http::routes::fleet::workers;
use crate::http::routes::submit::BATCH_JOBS;
use crate::http::state::EdgeState;

/// How long a stop waits until it is on record.
const RECORD_WITHIN: Duration = Duration::from_secs(2);

/// The process answers.
pub async fn healthz() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body("ok\n")
}

/// The front desk answers, and the daemon is not leaving: 200, else 503.
pub async fn readyz(state: web::Data<EdgeState>) -> Result<HttpResponse, Refusal> {
    if state.stopping() {
        return Err(Refusal::stopping());
    }
    count(&state).await?;
    Ok(healthz().await)
}

async fn count(state: &EdgeState) -> Result<JobCounts, Refusal> {
    desk::ask(|reply| state.ports.desk.count_jobs.do_send(CountJobs { reply })).await
}

/// Versions, limits, and what there is to do.
pub async fn status(request: HttpRequest, state: web::Data<EdgeState>) -> Result<HttpResponse, Refusal> {
    Query::none(&request)?;
    let counts = count(&state).await?;
    Ok(HttpResponse::Ok().json(ServerStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api_version: API_VERSION.to_owned(),
        protocol: PROTOCOLS,
        schema: state.ports.schema.clone(),
        started_at: state.ports.started_at,
        time: Some(clock::now()),
        pid: std::process::id(),
        on_demand: state.ports.on_demand,
        listening: state.listening.clone(),
        limits: Limits {
            json_body_bytes: JSON_LIMIT_BYTES as u64,
            batch_body_bytes: BATCH_LIMIT_BYTES as u64,
            batch_jobs: BATCH_JOBS as u32,
            page_limit: PAGE_LIMIT,
            wait_s: MAX_WAIT,
            max_artifact_bytes: state.ports.artifacts.limits().max_artifact_bytes,
        },
        jobs: LiveJobs {
            queued: counts.queued as u64,
            scheduled: counts.scheduled as u64,
            running: counts.running as u64,
        },
    }))
}

/// The caller's credential.
pub async fn whoami(request: HttpRequest, client: Client) -> Result<HttpResponse, Refusal> {
    Query::none(&request)?;
    Ok(HttpResponse::Ok().json(WhoAmI {
        name: client.grant.name.to_string(),
        user: (client.grant.user != client.grant.name).then(|| client.user().to_owned()),
        role: client.grant.role.word().to_owned(),
        via: if client.local { "unix_socket" } else { "token" }.to_owned(),
        projects: client.grant.projects.names().unwrap_or_default().to_vec(),
        max_priority: client.grant.max_priority,
        expires_at: client.pass.as_ref().and_then(|pass| pass.expires_at()),
    }))
}

/// Begins an orderly stop: 202 at once, the daemon leaves when what it was asked for is done.
pub async fn stop(
    request: HttpRequest,
    payload: web::Payload,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let bytes = body::read_json_bytes(&request, payload, JSON_LIMIT_BYTES).await?;
    let asked = body::parse_object::<StopRequest>(&request, &bytes, &["cancel_running", "hand_over"])?.asked;
    let with = serde_json::to_value(asked).unwrap_or_default();
    let recorded = desk::ask(|reply| {
        state.ports.desk.record_act.do_send(RecordAct {
            by: client.author(),
            act: Act::ServerStop,
            target: "server".to_owned(),
            with,
            reply,
        });
    });
    // A disk that takes no record keeps nobody from stopping the server.
    let _ = tokio::time::timeout(RECORD_WITHIN, recorded).await;
    state.announce_stop();
    (state.ports.stop)(asked);
    Ok(HttpResponse::Accepted().json(asked))
}

/// Prometheus' text form.
pub async fn metrics(state: web::Data<EdgeState>) -> Result<HttpResponse, Refusal> {
    let jobs = count(&state).await?;
    let workers = workers(&state).await?;
    let states: Vec<WorkerState> = workers.iter().map(|worker| worker.state).collect();
    let journal_seq = state.ports.durable.borrow().0;
    let gauges = Gauges { jobs, workers: &states, journal_seq, measured: (state.ports.measured)() };
    let text = state.metrics.encode(&gauges).map_err(Refusal::internal)?;
    Ok(HttpResponse::Ok().content_type(METRICS_CONTENT_TYPE).body(text))
}

/// The OpenAPI 3.1 document of this build.
pub async fn openapi() -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(openapi::printed())
}
