//! `GET /v1/jobs`: a page of jobs by filters, or those a person may mean by a piece of text.

use actix_web::{HttpRequest, HttpResponse, web};

use crate::actors::messages::front_desk::ListWorkers;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::job::{Job, JobState, Page};
use crate::contract::problem::Fault;
use crate::http::blocking;
use crate::http::caller::Client;
use crate::http::desk;
use crate::http::query::{PAGE_LIMIT, Query};
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;
use crate::store::{JobFilter, LabelFilter};

const PAGE_DEFAULT: u32 = 50;

/// What a list request asks for.
struct Asked {
    filter: JobFilter,
    worker: Option<String>,
    cursor: Option<JobId>,
    limit: u32,
    meant: Option<String>,
}

fn read(request: &HttpRequest) -> Result<Asked, Refusal> {
    let mut query = Query::of(request);
    let mut states = Vec::new();
    for text in query.all("state").iter().flat_map(|text| text.split(',')) {
        match JobState::ALL.into_iter().find(|state| state.word() == text.trim()) {
            Some(state) => states.push(state),
            None => {
                let words = JobState::ALL.map(JobState::word).join("`, `");
                query.fault("state", format!("`{text}` given, one of `{words}` is expected"));
            }
        }
    }
    let labels = query.all("label").iter().map(|text| label(text)).collect();
    let asked = Asked {
        filter: JobFilter {
            states,
            project: query.text("project"),
            among: None,
            labels,
            name: query.text("name"),
            submitted_by: query.text("submitted_by"),
            worker: None,
            parent: query.parsed("parent", "a job id"),
            submitted_after: query.parsed("submitted_after", "an RFC 3339 time"),
        },
        worker: query.text("worker"),
        cursor: query.parsed("cursor", "the `next_cursor` of the page before"),
        limit: query.limit(PAGE_DEFAULT, PAGE_LIMIT),
        meant: query.text("match"),
    };
    let filtered = asked.filter != JobFilter::default() || asked.worker.is_some() || asked.cursor.is_some();
    if asked.meant.is_some() && filtered {
        query.fault("match", "cannot be combined with filters".to_owned());
    }
    query.finish()?;
    Ok(asked)
}

fn label(text: &str) -> LabelFilter {
    match text.split_once('=') {
        Some((key, value)) => LabelFilter { key: key.to_owned(), value: Some(value.to_owned()) },
        None => LabelFilter { key: text.to_owned(), value: None },
    }
}

/// Lists jobs, newest first. `match=TEXT` lists those that TEXT may mean instead: a whole id, a name (its latest
/// job), the beginning of an id, its end (from 4 characters), or `@last` (the caller's latest).
pub async fn list(
    request: HttpRequest,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let mut asked = read(&request)?;
    if let Some(worker) = asked.worker.take() {
        asked.filter.worker = Some(worker_meant(&worker, &state).await?);
    }
    let reads = state.ports.reads.clone();
    let seen = client.grant.projects.names().map(<[String]>::to_vec);
    let user = client.grant.user.clone();
    let mut page: Page<Job> = blocking(move || match asked.meant {
        Some(text) => {
            let ids = reads.resolve(&text, Some(&user), seen.as_deref())?;
            let jobs: Result<Vec<Option<Job>>, _> = ids.into_iter().map(|id| reads.job(id)).collect();
            jobs.map(|jobs| Page { items: jobs.into_iter().flatten().collect(), next_cursor: None })
        }
        None => {
            let filter = JobFilter { among: seen, ..asked.filter };
            reads.jobs(&filter, asked.cursor, asked.limit as usize)
        }
    })
    .await?;
    page.items = page.items.into_iter().map(|job| state.shown_to(&client, job)).collect();
    Ok(HttpResponse::Ok().json(page))
}

async fn worker_meant(text: &str, state: &EdgeState) -> Result<WorkerId, Refusal> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let workers = desk::ask(|reply| state.ports.desk.list_workers.do_send(ListWorkers { reply })).await?;
    workers.iter().find(|worker| worker.name == text).map(|worker| worker.id).ok_or_else(|| {
        Refusal::faults(
            ErrorCode::InvalidRequest,
            vec![Fault {
                pointer: "/query/worker".to_owned(),
                code: "invalid".to_owned(),
                detail: format!("`{text}` given, the id or name of a known worker is expected"),
            }],
        )
    })
}
