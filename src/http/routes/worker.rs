//! What workers say. The single task calls are a report of one item; their refusals come back as 409.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::actors::messages::front_desk::{
    Acquire, DeregisterWorker, Heartbeat, RegisterWorker, ReportTasks, ResumeWorker, SpendToken,
    WorkerRefusal,
};
use crate::clock;
use crate::contract::artifact::Digest;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::{Epoch, TaskId, WorkerId};
use crate::contract::problem::{Fault, Warning};
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, DeclineRequest, EpochRequest, Finish, FinishRequest, HeartbeatAnswer,
    HeartbeatRequest, LogsAnswer, LogsRequest, Orders, RegisterRequest, Report, ReportItem, ReportRequest,
    ReportResult, ResumeRequest, TaskAnswer,
};
use crate::contract::worker::{self, Phase, WorkerKind};
use crate::contract::yielded::Yielded;
use crate::credentials;
use crate::http::blocking;
use crate::http::body::{self, BATCH_LIMIT_BYTES};
use crate::http::caller::{JoinCaller, WorkerCaller};
use crate::http::desk;
use crate::http::knowledge::Knowledge;
use crate::http::query::MAX_WAIT;
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;
use crate::store::StoreError;

/// What a parked acquire may take longer than it asked for, before the edge answers in the session's place.
const GRACE: Duration = Duration::from_secs(1);

// A worker's finish may list many files, and its log lines may be long.
async fn read<T: DeserializeOwned>(request: &HttpRequest, payload: web::Payload) -> Result<T, Refusal> {
    body::parse(&body::read_json_bytes(request, payload, BATCH_LIMIT_BYTES).await?)
}

/// A worker's name is printed in tables and typed after `--on`.
fn check_name(name: &str) -> Result<(), Refusal> {
    if worker::is_name(name) {
        return Ok(());
    }
    let detail = format!("{} are expected", worker::NAME_RULE);
    let fault = Fault { pointer: "/name".to_owned(), code: "invalid".to_owned(), detail };
    Err(Refusal::faults(ErrorCode::InvalidRequest, vec![fault]))
}

/// A machine joins: 201 with its id and its session token, which is shown this once.
pub async fn register(
    request: HttpRequest,
    payload: web::Payload,
    JoinCaller(pass): JoinCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let mut asked: RegisterRequest = read(&request, payload).await?;
    check_name(&asked.name)?;
    asked.kind = WorkerKind::Remote;
    let registration = asked.registration.clone().unwrap_or_default();
    let hash = *pass.hash();
    desk::ask(|reply| state.ports.desk.spend_token.do_send(SpendToken { hash, registration, reply }))
        .await??;
    let answer = desk::ask(|reply| {
        state.ports.desk.register_worker.do_send(RegisterWorker { request: asked, with_token: true, reply })
    })
    .await?;
    state.ports.credentials.admit_session(credentials::hash(&answer.session_token), answer.worker_id);
    Ok(HttpResponse::Created().json(answer))
}

/// A restarted agent takes its session up again.
pub async fn resume(
    request: HttpRequest,
    payload: web::Payload,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let asked: ResumeRequest = read(&request, payload).await?;
    asked.name.as_deref().map_or(Ok(()), check_name)?;
    if asked.worker_id != worker.worker_id {
        return Err(Refusal::new(
            ErrorCode::Forbidden,
            format!("this session is {}'s, not {}'s", worker.worker_id, asked.worker_id),
        ));
    }
    let answer = desk::ask(|reply| {
        state.ports.desk.resume_worker.do_send(ResumeWorker {
            worker_id: worker.worker_id,
            request: asked,
            reply,
        })
    })
    .await??;
    Ok(HttpResponse::Ok().json(answer))
}

/// A worker is alive. An ended session is told so with 200, so that its worker stops its tasks.
pub async fn heartbeat(
    request: HttpRequest,
    payload: web::Payload,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let asked: HeartbeatRequest = read(&request, payload).await?;
    let answer = desk::ask(|reply| {
        state.ports.desk.heartbeat.do_send(Heartbeat { worker_id: worker.worker_id, request: asked, reply })
    })
    .await?;
    let answer = match answer {
        Err(WorkerRefusal::Revoked) => HeartbeatAnswer {
            server_time: clock::now(),
            orders: Orders { revoked: true, ..Orders::default() },
        },
        other => other?,
    };
    Ok(HttpResponse::Ok().json(answer))
}

/// A worker wants tasks; parked until there are some, its `wait_s` is over or the daemon leaves.
pub async fn acquire(
    request: HttpRequest,
    payload: web::Payload,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let mut asked: AcquireRequest = read(&request, payload).await?;
    asked.wait_s = asked.wait_s.min(MAX_WAIT);
    let at_most = asked.wait_s.duration() + GRACE;
    let answer = desk::ask(|reply| {
        state.ports.desk.acquire.do_send(Acquire { worker_id: worker.worker_id, request: asked, reply })
    });
    let answer = match state.unless_draining(timeout(at_most, answer)).await? {
        Ok(answer) => answer??,
        Err(_) => AcquireAnswer::default(),
    };
    Ok(HttpResponse::Ok().json(answer))
}

/// Leaves out of a finish what its worker never sent and no job of its tasks names: else a worker could make any
/// artifact whose digest it knows a result of its own job, and so readable there.
async fn leave_out_unsent(
    worker: WorkerId,
    items: &mut Vec<ReportItem>,
    state: &EdgeState,
) -> Result<(), Refusal> {
    let brings = |item: &ReportItem| match &item.report {
        Report::Finish(finish) => {
            let returned = finish.result.as_ref().and_then(|result| result.artifact);
            !finish.outputs.is_empty() || finish.log_artifact.or(returned).is_some()
        }
        Report::Checkpoint { kept } => kept.is_some(),
        Report::Yielded { values, .. } => values.iter().any(|value| value.artifact.is_some()),
        _ => false,
    };
    if !items.iter().any(brings) {
        return Ok(());
    }
    let (mut checked, reads) = (std::mem::take(items), state.ports.reads.clone());
    *items = blocking(move || {
        let knowledge = Knowledge::Worker(worker);
        for item in &mut checked {
            match &mut item.report {
                Report::Finish(finish) => keep_sent(finish, |digest| knowledge.has_sent(digest, &reads))?,
                Report::Checkpoint { kept: Some(sent) } if !knowledge.has_sent(&sent.artifact, &reads)? => {
                    item.report = Report::Checkpoint { kept: None };
                }
                Report::Yielded { values, .. } => {
                    for value in values {
                        let Some(digest) = &value.artifact else { continue };
                        if !knowledge.has_sent(digest, &reads)? {
                            *value = Yielded::lost(value.size_bytes);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok::<_, StoreError>(checked)
    })
    .await?;
    Ok(())
}

fn keep_sent(
    finish: &mut Finish,
    sent: impl Fn(&Digest) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let mut outputs = Vec::with_capacity(finish.outputs.len());
    for file in finish.outputs.drain(..) {
        match &file.artifact {
            Some(digest) if !sent(digest)? => {
                let detail = format!("output `{}` was left out: its worker never sent its bytes", file.path);
                finish.warnings.push(Warning { pointer: String::new(), detail });
            }
            _ => outputs.push(file),
        }
    }
    finish.outputs = outputs;
    if let Some(digest) = &finish.log_artifact
        && !sent(digest)?
    {
        finish.log_artifact = None;
        let detail = "the whole log was left out: its worker never sent its bytes".to_owned();
        finish.warnings.push(Warning { pointer: String::new(), detail });
    }
    if let Some(digest) = finish.result.as_ref().and_then(|result| result.artifact)
        && !sent(&digest)?
    {
        finish.result = None;
        let detail = "what the function returned was left out: its worker never sent its bytes".to_owned();
        finish.warnings.push(Warning { pointer: String::new(), detail });
    }
    Ok(())
}

/// A worker reports; answered once durable.
pub async fn report(
    request: HttpRequest,
    payload: web::Payload,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let mut asked: ReportRequest = read(&request, payload).await?;
    leave_out_unsent(worker.worker_id, &mut asked.items, &state).await?;
    let answer = desk::ask(|reply| {
        state.ports.desk.report_tasks.do_send(ReportTasks {
            worker_id: worker.worker_id,
            request: asked,
            reply,
        })
    })
    .await??;
    Ok(HttpResponse::Ok().json(answer))
}

/// A worker leaves for good: 204.
pub async fn deregister(worker: WorkerCaller, state: web::Data<EdgeState>) -> Result<HttpResponse, Refusal> {
    desk::ask(|reply| {
        state.ports.desk.deregister_worker.do_send(DeregisterWorker { worker_id: worker.worker_id, reply })
    })
    .await??;
    Ok(HttpResponse::NoContent().finish())
}

fn task_in(path: &web::Path<String>) -> Result<TaskId, Refusal> {
    path.parse()
        .map_err(|error: crate::contract::ids::IdError| Refusal::not_found(format_args!("task: {error}")))
}

type Incoming = (HttpRequest, web::Payload, web::Path<String>);

async fn report_one<T: DeserializeOwned>(
    (request, payload, path): Incoming,
    worker: WorkerId,
    state: &EdgeState,
    told: impl FnOnce(T) -> (Epoch, Report),
) -> Result<HttpResponse, Refusal> {
    let task_id = task_in(&path)?;
    let (epoch, report) = told(read(&request, payload).await?);
    let mut items = vec![ReportItem { task_id, epoch, report }];
    leave_out_unsent(worker, &mut items, state).await?;
    let answer = desk::ask(|reply| {
        state.ports.desk.report_tasks.do_send(ReportTasks {
            worker_id: worker,
            request: ReportRequest { items, acquire: None },
            reply,
        })
    })
    .await??;
    match answer.results.first() {
        Some(ReportResult::Ok { job_state }) => {
            Ok(HttpResponse::Ok().json(TaskAnswer { job_state: *job_state, orders: answer.orders }))
        }
        Some(ReportResult::Refused { code }) => Err(Refusal::new(*code, code.sentence())),
        None => Err(Refusal::new(ErrorCode::Internal, "the report was not judged")),
    }
}

/// A worker starts a task; nothing executes before this answer.
pub async fn start(
    incoming: Incoming,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    report_one(incoming, worker.worker_id, &state, |told: EpochRequest| (told.epoch, Report::Start)).await
}

/// A task's program runs; its timeout counts from here.
pub async fn executing(
    incoming: Incoming,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    report_one(incoming, worker.worker_id, &state, |told: EpochRequest| {
        (told.epoch, Report::Phase { phase: Phase::Executing })
    })
    .await
}

/// A worker does not take a task.
pub async fn decline(
    incoming: Incoming,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    report_one(incoming, worker.worker_id, &state, |told: DeclineRequest| {
        (told.epoch, Report::Decline { detail: told.detail })
    })
    .await
}

/// A task ended on its worker.
pub async fn finish(
    incoming: Incoming,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    report_one(incoming, worker.worker_id, &state, |told: FinishRequest| {
        (told.epoch, Report::Finish(Box::new(told.finish)))
    })
    .await
}

/// A task's log records; answered once they are durable.
pub async fn logs(
    (request, payload, path): Incoming,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let task_id = task_in(&path)?;
    let asked: LogsRequest = read(&request, payload).await?;
    let job_id = state.ports.owners.owned(worker.worker_id, task_id, asked.epoch).ok_or_else(|| {
        Refusal::new(
            ErrorCode::StaleEpoch,
            format!("{task_id} is not this worker's under epoch {}", asked.epoch),
        )
    })?;
    let next_n = state.append_log(job_id, task_id, asked).await?;
    Ok(HttpResponse::Ok().json(LogsAnswer { next_n, orders: Orders::default() }))
}
