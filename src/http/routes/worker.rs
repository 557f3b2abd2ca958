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
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::{Epoch, TaskId, WorkerId};
use crate::contract::problem::Fault;
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, DeclineRequest, EpochRequest, FinishRequest, HeartbeatAnswer,
    HeartbeatRequest, LogsAnswer, LogsRequest, Orders, RegisterRequest, Report, ReportItem, ReportRequest,
    ReportResult, ResumeRequest, TaskAnswer,
};
use crate::contract::worker::{Phase, WorkerKind};
use crate::credentials;
use crate::http::body::{self, BATCH_LIMIT_BYTES};
use crate::http::caller::{JoinCaller, WorkerCaller};
use crate::http::desk;
use crate::http::query::MAX_WAIT;
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;

/// What a parked acquire may take longer than it asked for, before the edge answers in the session's place.
const GRACE: Duration = Duration::from_secs(1);

// A worker's finish may list many files, and its log lines may be long.
async fn read<T: DeserializeOwned>(request: &HttpRequest, payload: web::Payload) -> Result<T, Refusal> {
    body::parse(&body::read_json_bytes(request, payload, BATCH_LIMIT_BYTES).await?)
}

/// Characters of a worker's name at most.
const NAME_CHARACTERS: usize = 63;

/// A worker's name is printed in tables and typed after `--on`.
fn check_name(name: &str) -> Result<(), Refusal> {
    let characters = name.chars().count();
    if (1..=NAME_CHARACTERS).contains(&characters)
        && !name.chars().any(char::is_control)
        && name.trim() == name
    {
        return Ok(());
    }
    let detail = format!(
        "1 to {NAME_CHARACTERS} characters are expected, without control characters or space around them"
    );
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

/// A worker reports; answered once durable.
pub async fn report(
    request: HttpRequest,
    payload: web::Payload,
    worker: WorkerCaller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let asked: ReportRequest = read(&request, payload).await?;
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
    let item = ReportItem { task_id, epoch, report };
    let answer = desk::ask(|reply| {
        state.ports.desk.report_tasks.do_send(ReportTasks {
            worker_id: worker,
            request: ReportRequest { items: vec![item], acquire: None },
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
