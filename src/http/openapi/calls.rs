//! What the document says of each call. In the order in which a reader meets them.

use utoipa::openapi::schema::Type;

use super::{Call, Content, Parameter, named, of};
use crate::contract::artifact::{MissingAnswer, MissingRequest, OutputFile, PartialUpload};
use crate::contract::event::Event;
use crate::contract::explain::{Explained, Explanation, WhatIf};
use crate::contract::job::{BatchAnswer, BatchRequest, CancelRequest, Job, Page, RetryRequest, Sequence};
use crate::contract::log::LogLine;
use crate::contract::protocol::{
    AcquireAnswer, AcquireRequest, DeclineRequest, EpochRequest, FinishRequest, HeartbeatAnswer,
    HeartbeatRequest, LogsAnswer, LogsRequest, RegisterAnswer, RegisterRequest, ReportAnswer, ReportRequest,
    ResumeAnswer, ResumeRequest, TaskAnswer,
};
use crate::contract::server::{ServerStatus, StopRequest, WhoAmI};
use crate::contract::spec::JobSpec;
use crate::contract::token::{CreateToken, CreatedToken, Token};
use crate::contract::worker::{DrainRequest, EvictRequest, Task, Worker};
use crate::contract::yielded::YieldedValue;

use Content::{Followed, Json, Nothing, Raw};

const BYTES: &str = "application/octet-stream";
const LIMIT: Parameter = ("limit", Type::Integer, "Entries at most: 1 to 500, 50 unless given");
const AFTER: Parameter = ("after", Type::Integer, "Entries after this number (exclusive)");
const WAIT: Parameter =
    ("wait_s", Type::Number, "Park so many seconds (at most 60) when there is nothing yet");

const FOLLOWED: &[Parameter] = &[AFTER, LIMIT, WAIT];
const LOG: &[Parameter] = &[
    AFTER,
    LIMIT,
    WAIT,
    ("task", Type::String, "Only lines of this task"),
    ("stream", Type::String, "Only `stdout`, `stderr` or `system`"),
    ("tail", Type::Integer, "Begin so many lines before the last, unless `after` is given"),
];
const LIST: &[Parameter] = &[
    ("state", Type::String, "In one of these states; may be repeated or separated by commas"),
    ("project", Type::String, "Of this project"),
    ("label", Type::String, "With this label, `KEY` or `KEY=VALUE`; may be repeated"),
    ("name", Type::String, "With exactly this name"),
    ("submitted_by", Type::String, "Submitted by this credential or user"),
    ("worker", Type::String, "Whose newest task was placed on this worker (id or name)"),
    ("parent", Type::String, "Children of this array"),
    ("submitted_after", Type::String, "Submitted after this moment (RFC 3339)"),
    ("cursor", Type::String, "The `next_cursor` of the page before"),
    LIMIT,
    (
        "match",
        Type::String,
        "The jobs that this text may mean, instead of a list: a whole id, a name (its latest job), the beginning \
         of an id, its end (from 4 characters), or `@last` (the caller's latest)",
    ),
];

fn get(path: &'static str, summary: &'static str, query: &'static [Parameter], gives: Content) -> Call {
    Call { method: "GET", path, summary, query, takes: Nothing, status: 200, gives }
}

fn post(path: &'static str, summary: &'static str, takes: Content, status: u16, gives: Content) -> Call {
    Call { method: "POST", path, summary, query: &[], takes, status, gives }
}

fn head(path: &'static str, summary: &'static str) -> Call {
    Call { method: "HEAD", ..get(path, summary, &[], Nothing) }
}

/// Every call.
pub fn all() -> Vec<Call> {
    let mut calls = jobs();
    calls.extend(artifacts());
    calls.extend(workers());
    calls.extend(server());
    calls
}

fn jobs() -> Vec<Call> {
    vec![
        post(
            "/v1/jobs",
            "Submit a job; answered when it is on disk",
            Json(of::<JobSpec>()),
            201,
            Json(of::<Job>()),
        ),
        get("/v1/jobs", "List jobs, newest first", LIST, Json(named::<Page<Job>, Job>("JobPage"))),
        post(
            "/v1/jobs/batch",
            "Submit up to 10,000 jobs, all or none",
            Json(of::<BatchRequest>()),
            201,
            Json(of::<BatchAnswer>()),
        ),
        get("/v1/jobs/{job_id}", "Show a job; with `wait_s`, wait for its end", &[WAIT], Json(of::<Job>())),
        Call {
            method: "DELETE",
            path: "/v1/jobs/{job_id}",
            summary: "Remove an ended job and all that belongs to it",
            query: &[],
            takes: Nothing,
            status: 204,
            gives: Nothing,
        },
        post("/v1/jobs/{job_id}/cancel", "Stop a job", Json(of::<CancelRequest>()), 200, Json(of::<Job>())),
        post(
            "/v1/jobs/{job_id}/retry",
            "Repeat an ended job as a new one",
            Json(of::<RetryRequest>()),
            201,
            Json(of::<Job>()),
        ),
        get(
            "/v1/jobs/{job_id}/explain",
            "Why a job waits, and what would let it run; of an ended job, what it had waited for",
            &[],
            Json(of::<Explained>()),
        ),
        post(
            "/v1/explain",
            "Where a spec would run, without submitting it",
            Json(of::<WhatIf>()),
            200,
            Json(of::<Explanation>()),
        ),
        get(
            "/v1/jobs/{job_id}/tasks",
            "The job's placements, oldest first",
            &[],
            Json(named::<Page<Task>, Task>("TaskPage")),
        ),
        get(
            "/v1/jobs/{job_id}/events",
            "The job's events: a page, or a stream",
            FOLLOWED,
            Followed(named::<Sequence<Event>, Event>("EventSequence")),
        ),
        get(
            "/v1/jobs/{job_id}/yielded",
            "The values that the job's generator yielded: a page, or a stream",
            FOLLOWED,
            Followed(named::<Sequence<YieldedValue>, YieldedValue>("YieldedValueSequence")),
        ),
        get(
            "/v1/jobs/{job_id}/logs",
            "The job's log lines: a page, or a stream",
            LOG,
            Followed(named::<Sequence<LogLine>, LogLine>("LogLineSequence")),
        ),
        get(
            "/v1/jobs/{job_id}/outputs",
            "The job's collected files",
            &[],
            Json(named::<Page<OutputFile>, OutputFile>("OutputFilePage")),
        ),
        get("/v1/jobs/{job_id}/undeclared/{path:.+}", "A kept file that no output declares", &[], Raw(BYTES)),
        get(
            "/v1/events",
            "Events of all jobs by `position`: a page, or a stream",
            FOLLOWED,
            Followed(named::<Sequence<Event>, Event>("EventSequence")),
        ),
    ]
}

fn artifacts() -> Vec<Call> {
    let artifact = "/v1/artifacts/sha256/{hex}";
    vec![
        get(artifact, "An artifact's bytes, or a range of them", &[], Raw(BYTES)),
        head(artifact, "An artifact's length; of an unfinished upload, 404 with `Upload-Offset`"),
        Call {
            method: "PUT",
            path: artifact,
            summary: "Send an artifact, or a part of one by `Content-Range` (202 while more is to come)",
            query: &[],
            takes: Raw(BYTES),
            status: 201,
            gives: Json(of::<PartialUpload>()),
        },
        post(
            "/v1/artifacts/missing",
            "Which of these does the server not have",
            Json(of::<MissingRequest>()),
            200,
            Json(of::<MissingAnswer>()),
        ),
    ]
}

fn workers() -> Vec<Call> {
    vec![
        get(
            "/v1/workers",
            "All workers, newest first",
            &[],
            Json(named::<Page<Worker>, Worker>("WorkerPage")),
        ),
        get("/v1/workers/{worker_id}", "Show a worker", &[], Json(of::<Worker>())),
        post(
            "/v1/workers/{worker_id}/drain",
            "No new tasks for this worker; at the deadline, if one is given, what still runs is stopped",
            Json(of::<DrainRequest>()),
            200,
            Json(of::<Worker>()),
        ),
        post(
            "/v1/workers/{worker_id}/evict",
            "Stop one task of this worker with its grace",
            Json(of::<EvictRequest>()),
            200,
            Json(of::<Worker>()),
        ),
        post(
            "/v1/workers/{worker_id}/resume",
            "The worker takes tasks again",
            Nothing,
            200,
            Json(of::<Worker>()),
        ),
        post(
            "/v1/workers/{worker_id}/revoke",
            "End this worker's session for good; its tasks are killed and end `revoked`",
            Nothing,
            200,
            Json(of::<Worker>()),
        ),
        post(
            "/v1/workers/register",
            "A machine joins",
            Json(of::<RegisterRequest>()),
            201,
            Json(of::<RegisterAnswer>()),
        ),
        post(
            "/v1/worker/resume",
            "A restarted agent takes its session up again",
            Json(of::<ResumeRequest>()),
            200,
            Json(of::<ResumeAnswer>()),
        ),
        post(
            "/v1/worker/heartbeat",
            "A worker is alive and holds these tasks",
            Json(of::<HeartbeatRequest>()),
            200,
            Json(of::<HeartbeatAnswer>()),
        ),
        post(
            "/v1/worker/acquire",
            "A worker wants tasks (long poll)",
            Json(of::<AcquireRequest>()),
            200,
            Json(of::<AcquireAnswer>()),
        ),
        post(
            "/v1/worker/report",
            "A worker reports, each item judged alone, all in one commit",
            Json(of::<ReportRequest>()),
            200,
            Json(of::<ReportAnswer>()),
        ),
        post("/v1/worker/deregister", "A worker leaves for good", Nothing, 204, Nothing),
        task("/v1/worker/tasks/{task_id}/start", "A worker starts a task", Json(of::<EpochRequest>())),
        task("/v1/worker/tasks/{task_id}/executing", "A task's program runs", Json(of::<EpochRequest>())),
        task(
            "/v1/worker/tasks/{task_id}/decline",
            "A worker does not take a task",
            Json(of::<DeclineRequest>()),
        ),
        task("/v1/worker/tasks/{task_id}/finish", "A task ended on its worker", Json(of::<FinishRequest>())),
        post(
            "/v1/worker/tasks/{task_id}/logs",
            "A task's log records; answered when they are on disk",
            Json(of::<LogsRequest>()),
            200,
            Json(of::<LogsAnswer>()),
        ),
    ]
}

fn task(path: &'static str, summary: &'static str, takes: Content) -> Call {
    post(path, summary, takes, 200, Json(of::<TaskAnswer>()))
}

fn server() -> Vec<Call> {
    vec![
        get("/v1/server", "Versions, limits, and what there is to do", &[], Json(of::<ServerStatus>())),
        get("/v1/whoami", "The caller's credential", &[], Json(of::<WhoAmI>())),
        get(
            "/v1/tokens",
            "All credentials, newest first, without their secrets",
            &[],
            Json(named::<Page<Token>, Token>("TokenPage")),
        ),
        post(
            "/v1/tokens",
            "Make a credential; its secret is shown this once",
            Json(of::<CreateToken>()),
            201,
            Json(of::<CreatedToken>()),
        ),
        Call {
            method: "DELETE",
            path: "/v1/tokens/{name}",
            summary: "Revoke a credential",
            query: &[],
            takes: Nothing,
            status: 204,
            gives: Nothing,
        },
        post(
            "/v1/admin/stop",
            "Begin an orderly stop",
            Json(of::<StopRequest>()),
            202,
            Json(of::<StopRequest>()),
        ),
        get("/v1/openapi.json", "This document", &[], Raw("application/json")),
        get("/metrics", "Prometheus' text form", &[], Raw("application/openmetrics-text")),
        get("/healthz", "The process answers", &[], Raw("text/plain")),
        get("/readyz", "The daemon takes requests", &[], Raw("text/plain")),
        head("/healthz", "The process answers"),
        head("/readyz", "The daemon takes requests"),
    ]
}
