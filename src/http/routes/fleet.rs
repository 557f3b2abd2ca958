//! The fleet: workers as clients see them, and what operators ask of them.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::de::DeserializeOwned;

use crate::actors::messages::front_desk::{
    Author, ChangeDrain, DrainOrder, EvictRefusal, EvictTask, Keyed, ListWorkers, RevokeWorker, UnknownWorker,
};
use crate::clock;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::WorkerId;
use crate::contract::job::Page;
use crate::contract::problem::Warning;
use crate::contract::worker::{DrainRequest, EvictRequest, Worker, WorkerKind, WorkerState};
use crate::domain::change::UsedKey;
use crate::http::blocking;
use crate::http::body::{self, Asked, JSON_LIMIT_BYTES};
use crate::http::caller::Client;
use crate::http::desk;
use crate::http::idempotency::{Key, REPLAYED_HEADER};
use crate::http::query::Query;
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;
use crate::store::StoreError;

/// All workers, newest first.
pub async fn list(
    request: HttpRequest,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    Query::none(&request)?;
    let items = seen_by(&client, &state, workers(&state).await?).await?;
    Ok(HttpResponse::Ok().json(Page { items, next_cursor: None }))
}

/// One worker.
pub async fn show(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let id = worker_id_in(&path)?;
    Query::none(&request)?;
    let shown = seen_by(&client, &state, vec![worker(&state, id).await?]).await?;
    Ok(HttpResponse::Ok().json(shown.into_iter().next()))
}

/// The workers without the tasks of jobs that the client may not see.
async fn seen_by(
    client: &Client,
    state: &EdgeState,
    mut workers: Vec<Worker>,
) -> Result<Vec<Worker>, Refusal> {
    let Some(projects) = client.grant.projects.names().map(<[String]>::to_vec) else {
        return Ok(workers);
    };
    let reads = state.ports.reads.clone();
    blocking(move || {
        for worker in &mut workers {
            worker.tasks = reads.tasks_of_projects(&worker.tasks, &projects)?;
        }
        Ok::<_, StoreError>(workers)
    })
    .await
}

/// Ends the worker's session for good: its next call is refused, it kills its tasks and leaves, and they end `revoked`.
/// Answers with the worker as it last was.
pub async fn revoke(
    request: HttpRequest,
    payload: web::Payload,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let call = Call::<serde_json::Value>::read(&request, payload, &path, &client, &[]).await?;
    let (id, used, by) = (call.worker, call.used(), Some(call.by.clone()));
    let last = match worker(&state, id).await {
        Ok(last) => last,
        Err(gone) => {
            // The first call took it off the list, and its repeat is answered all the same.
            state.repeated_or(call.key.as_ref(), gone)?;
            return Ok(revoked(id, None, true));
        }
    };
    if last.kind == WorkerKind::Local {
        return Err(Refusal::new(
            ErrorCode::Forbidden,
            format!("worker {id} is the server's own and has no session to revoke; drain it instead"),
        ));
    }
    let outcome = desk::ask(|reply| {
        state.ports.desk.revoke_worker.do_send(RevokeWorker { worker_id: id, by, key: used, reply });
    })
    .await?;
    match outcome {
        Ok(Keyed::Done(())) => Ok(revoked(id, Some(last), false)),
        Ok(Keyed::Repeat) => {
            state.repeated(call.key.as_ref())?;
            Ok(revoked(id, Some(last), true))
        }
        Err(UnknownWorker) => {
            state.repeated_or(call.key.as_ref(), no_worker(id))?;
            Ok(revoked(id, None, true))
        }
    }
}

fn revoked(id: WorkerId, last: Option<Worker>, replayed: bool) -> HttpResponse {
    let mut answer = HttpResponse::Ok();
    if replayed {
        answer.insert_header((REPLAYED_HEADER, "true"));
    }
    match last {
        Some(last) => answer.json(Worker { state: WorkerState::Offline, ..last }),
        None => answer.json(serde_json::json!({ "id": id })),
    }
}

/// No new tasks for this worker; what still runs at the deadline, if one is given, is stopped with its grace. Answers
/// with the worker as it stands then. A second drain sets the deadline anew.
pub async fn drain(
    request: HttpRequest,
    payload: web::Payload,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let call = Call::<DrainRequest>::read(&request, payload, &path, &client, &["deadline_s"]).await?;
    change(&state, DrainOrder::Drain { deadline: call.asked.deadline_s }, call).await
}

/// The worker takes tasks again. Tasks that were told to stop stay told.
pub async fn resume(
    request: HttpRequest,
    payload: web::Payload,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let call = Call::<serde_json::Value>::read(&request, payload, &path, &client, &[]).await?;
    change(&state, DrainOrder::Resume, call).await
}

/// Stops one task of this worker with its grace; one that has not started goes elsewhere. Answers with the worker.
pub async fn evict(
    request: HttpRequest,
    payload: web::Payload,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let call = Call::<EvictRequest>::read(&request, payload, &path, &client, &["task_id"]).await?;
    let (id, asked, used, by) = (call.worker, &call.asked, call.used(), Some(call.by.clone()));
    let outcome = desk::ask(|reply| {
        state.ports.desk.evict_task.do_send(EvictTask {
            worker_id: id,
            task_id: asked.task_id,
            by,
            key: used,
            reply,
        });
    })
    .await?;
    match outcome {
        Ok(Keyed::Done(_)) => call.answer(&state, false).await,
        Ok(Keyed::Repeat) => call.repeat(&state).await,
        Err(EvictRefusal::UnknownWorker) => Err(no_worker(id)),
        // The first call may have ended it, and then its repeat is still answered.
        Err(EvictRefusal::NotThere) => match state.first_answer(call.key.as_ref())? {
            Some(_) => call.answer(&state, true).await,
            None => Err(gone(&state, id, asked)?),
        },
    }
}

/// Why a task that is not there cannot be evicted: it has ended, or was never this worker's.
fn gone(state: &EdgeState, worker: WorkerId, asked: &EvictRequest) -> Result<Refusal, Refusal> {
    let task = asked.task_id;
    Ok(match state.ports.reads.task_record(task)? {
        Some(record) if record.worker == worker => {
            Refusal::new(ErrorCode::TaskEnded, format!("task {task} has ended"))
        }
        _ => Refusal::not_found(format_args!("task {task} on worker {worker}")),
    })
}

async fn change<T>(state: &EdgeState, order: DrainOrder, call: Call<T>) -> Result<HttpResponse, Refusal> {
    let (worker_id, key, by) = (call.worker, call.used(), Some(call.by.clone()));
    let outcome = desk::ask(|reply| {
        state.ports.desk.change_drain.do_send(ChangeDrain { worker_id, order, by, key, reply })
    })
    .await?;
    match outcome {
        Ok(Keyed::Done(())) => call.answer(state, false).await,
        Ok(Keyed::Repeat) => call.repeat(state).await,
        Err(UnknownWorker) => Err(no_worker(worker_id)),
    }
}

/// What an operator asks of one worker.
struct Call<T> {
    worker: WorkerId,
    asked: T,
    by: Box<Author>,
    key: Option<Key>,
    warnings: Vec<Warning>,
}

impl<T: DeserializeOwned> Call<T> {
    async fn read(
        request: &HttpRequest,
        payload: web::Payload,
        path: &str,
        client: &Client,
        known: &[&str],
    ) -> Result<Self, Refusal> {
        let worker = worker_id_in(path)?;
        let bytes = body::read_json_bytes(request, payload, JSON_LIMIT_BYTES).await?;
        let key = Key::of(request, client, &bytes)?;
        Query::none(request)?;
        let Asked { asked, warnings } = body::parse_object(request, &bytes, known)?;
        Ok(Self { worker, asked, by: client.author(), key, warnings })
    }
}

impl<T> Call<T> {
    fn used(&self) -> Option<Box<UsedKey>> {
        self.key.as_ref().map(|key| key.used(200, &[], clock::now()))
    }

    /// The answer to a repeat: the worker as it stands now.
    async fn repeat(self, state: &EdgeState) -> Result<HttpResponse, Refusal> {
        state.repeated(self.key.as_ref())?;
        self.answer(state, true).await
    }

    async fn answer(self, state: &EdgeState, replayed: bool) -> Result<HttpResponse, Refusal> {
        let worker = Worker { warnings: self.warnings, ..worker(state, self.worker).await? };
        let mut answer = HttpResponse::Ok();
        if replayed {
            answer.insert_header((REPLAYED_HEADER, "true"));
        }
        Ok(answer.json(worker))
    }
}

async fn worker(state: &EdgeState, id: WorkerId) -> Result<Worker, Refusal> {
    workers(state).await?.into_iter().find(|worker| worker.id == id).ok_or_else(|| no_worker(id))
}

/// All workers, as their sessions describe them.
pub(super) async fn workers(state: &EdgeState) -> Result<Vec<Worker>, Refusal> {
    desk::ask(|reply| state.ports.desk.list_workers.do_send(ListWorkers { reply })).await
}

fn no_worker(id: WorkerId) -> Refusal {
    Refusal::not_found(format_args!("worker {id}"))
}

/// Reads the id in a path; what is no id names nothing.
fn worker_id_in(text: &str) -> Result<WorkerId, Refusal> {
    text.parse().map_err(|error: crate::contract::ids::IdError| {
        Refusal::not_found(format_args!("such worker: {error}"))
    })
}
