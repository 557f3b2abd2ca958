//! Every route against every kind of credential: the table below must name each route, and each cell holds.

use std::collections::BTreeSet;

use gpulayer::contract::ids::WorkerId;
use gpulayer::credentials;
use gpulayer::http::caller::Access;
use gpulayer::http::routes::ROUTES;
use serde_json::json;

use crate::stand::{CLIENT, EXPIRED, INSTANCE, JOIN, REVOKED, SESSION, SUBMITTER, Stand, VIEWER};
use crate::wire::Request;

/// A session that is over.
const FORMER_SESSION: &str = "gls_former";

/// Whom each route lets in, said a second time by hand: a route that changes its doors must change here too.
const DOORS: &[(&str, &str, Access)] = &[
    ("POST", "/v1/jobs", Access::Submitter),
    ("GET", "/v1/jobs", Access::Client),
    ("POST", "/v1/jobs/batch", Access::Submitter),
    ("GET", "/v1/jobs/{job_id}", Access::Client),
    ("DELETE", "/v1/jobs/{job_id}", Access::Submitter),
    ("GET", "/v1/jobs/{job_id}/logs", Access::Client),
    ("GET", "/v1/jobs/{job_id}/events", Access::Client),
    ("GET", "/v1/jobs/{job_id}/yielded", Access::Client),
    ("POST", "/v1/jobs/{job_id}/cancel", Access::Submitter),
    ("POST", "/v1/jobs/{job_id}/retry", Access::Submitter),
    ("GET", "/v1/jobs/{job_id}/tasks", Access::Client),
    ("GET", "/v1/jobs/{job_id}/explain", Access::Client),
    ("POST", "/v1/explain", Access::Client),
    ("GET", "/v1/jobs/{job_id}/outputs", Access::Client),
    ("GET", "/v1/jobs/{job_id}/undeclared/{path:.+}", Access::Client),
    ("GET", "/v1/events", Access::Client),
    ("GET", "/v1/artifacts/sha256/{hex}", Access::ClientOrWorker),
    ("HEAD", "/v1/artifacts/sha256/{hex}", Access::ClientOrWorker),
    ("PUT", "/v1/artifacts/sha256/{hex}", Access::SubmitterOrWorker),
    ("POST", "/v1/artifacts/missing", Access::SubmitterOrWorker),
    ("GET", "/v1/workers", Access::Client),
    ("GET", "/v1/workers/{worker_id}", Access::Client),
    ("POST", "/v1/workers/{worker_id}/drain", Access::Admin),
    ("POST", "/v1/workers/{worker_id}/evict", Access::Admin),
    ("POST", "/v1/workers/{worker_id}/resume", Access::Admin),
    ("POST", "/v1/workers/{worker_id}/revoke", Access::Admin),
    ("GET", "/v1/tokens", Access::Admin),
    ("POST", "/v1/tokens", Access::Admin),
    ("DELETE", "/v1/tokens/{name}", Access::Admin),
    ("GET", "/v1/server", Access::Client),
    ("GET", "/v1/whoami", Access::Client),
    ("GET", "/v1/openapi.json", Access::Client),
    ("GET", "/metrics", Access::Client),
    ("GET", "/healthz", Access::Open),
    ("HEAD", "/healthz", Access::Open),
    ("HEAD", "/readyz", Access::Open),
    ("GET", "/readyz", Access::Open),
    ("POST", "/v1/workers/register", Access::Join),
    ("POST", "/v1/worker/resume", Access::Worker),
    ("POST", "/v1/worker/heartbeat", Access::WorkerOrFormer),
    ("POST", "/v1/worker/acquire", Access::Worker),
    ("POST", "/v1/worker/report", Access::Worker),
    ("POST", "/v1/worker/deregister", Access::Worker),
    ("POST", "/v1/worker/tasks/{task_id}/start", Access::Worker),
    ("POST", "/v1/worker/tasks/{task_id}/executing", Access::Worker),
    ("POST", "/v1/worker/tasks/{task_id}/decline", Access::Worker),
    ("POST", "/v1/worker/tasks/{task_id}/finish", Access::Worker),
    ("POST", "/v1/worker/tasks/{task_id}/logs", Access::Worker),
    // Last: from then on the daemon is not ready.
    ("POST", "/v1/admin/stop", Access::Admin),
];

#[test]
fn the_table_of_doors_names_every_route() {
    let built: BTreeSet<_> = ROUTES.iter().map(|route| (route.method, route.path)).collect();
    let said: BTreeSet<_> = DOORS.iter().map(|(method, path, _)| (*method, *path)).collect();
    assert_eq!(built, said);
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Who {
    Nobody,
    Wrong,
    Expired,
    Revoked,
    Admin,
    Submitter,
    Viewer,
    Join,
    Instance,
    Worker,
    FormerWorker,
    Local,
    LocalWrong,
}

const EVERYBODY: [Who; 13] = [
    Who::Nobody,
    Who::Wrong,
    Who::Expired,
    Who::Revoked,
    Who::Admin,
    Who::Submitter,
    Who::Viewer,
    Who::Join,
    Who::Instance,
    Who::Worker,
    Who::FormerWorker,
    Who::Local,
    Who::LocalWrong,
];

/// The status that a door answers with, `None` when it opens.
fn refusal(access: Access, who: Who) -> Option<u16> {
    match (access, who) {
        (_, Who::Wrong | Who::LocalWrong | Who::Expired | Who::Revoked) => Some(401),
        (Access::Open, _) => None,
        (_, Who::Nobody) => Some(401),
        (_, Who::Admin | Who::Local) => match access {
            Access::Join | Access::Worker | Access::WorkerOrFormer => Some(403),
            _ => None,
        },
        (
            Access::Client | Access::Submitter | Access::ClientOrWorker | Access::SubmitterOrWorker,
            Who::Submitter,
        ) => None,
        (Access::Client | Access::ClientOrWorker, Who::Viewer) => None,
        (Access::Join, Who::Join | Who::Instance) => None,
        (
            Access::Worker | Access::WorkerOrFormer | Access::ClientOrWorker | Access::SubmitterOrWorker,
            Who::Worker,
        ) => None,
        (Access::WorkerOrFormer, Who::FormerWorker) => None,
        (Access::Worker | Access::ClientOrWorker | Access::SubmitterOrWorker, Who::FormerWorker) => Some(401),
        _ => Some(403),
    }
}

/// What its token is refused with, wherever it is shown.
fn refusal_code(who: Who) -> Option<&'static str> {
    match who {
        Who::Wrong | Who::LocalWrong => Some("unauthenticated"),
        Who::Expired => Some("token_expired"),
        Who::Revoked => Some("token_revoked"),
        _ => None,
    }
}

fn dressed(request: Request, who: Who) -> Request {
    match who {
        Who::Nobody | Who::Local => request.header("X-GpuLayer-Protocol", "1"),
        Who::Wrong | Who::LocalWrong => request.token("glc_wrong"),
        Who::Expired => request.token(EXPIRED),
        Who::Revoked => request.token(REVOKED),
        Who::Admin => request.token(CLIENT),
        Who::Submitter => request.token(SUBMITTER),
        Who::Viewer => request.token(VIEWER),
        Who::Join => request.token(JOIN),
        Who::Instance => request.token(INSTANCE),
        Who::Worker => request.token(SESSION),
        Who::FormerWorker => request.token(FORMER_SESSION),
    }
}

#[test]
fn every_route_opens_for_its_callers_and_for_nobody_else() {
    let stand = Stand::start();
    stand.shared.credentials().admit_session(credentials::hash(FORMER_SESSION), WorkerId::from_u128(99));
    stand.shared.credentials().end_session(WorkerId::from_u128(99));
    for (method, path, access) in DOORS {
        let path = path
            .replace("{job_id}", "job_00000000000000000000000001")
            .replace("{task_id}", "task_00000000000000000000000001")
            .replace("{worker_id}", "wkr_00000000000000000000000001")
            .replace("{hex}", &"a".repeat(64))
            .replace("{name}", "nobody")
            .replace("{path:.+}", "file");
        for who in EVERYBODY {
            let local = matches!(who, Who::Local | Who::LocalWrong);
            let request = if local { stand.unix(method, &path) } else { stand.tcp(method, &path) };
            let answer = dressed(request, who).send();
            match refusal(*access, who) {
                // Behind an open door the request itself is judged: it is empty, so 2xx or a fault of its own.
                None => assert!(
                    !matches!(answer.status, 401 | 403 | 429) && answer.status < 500,
                    "{method} {path} by {who:?}: {answer:?}"
                ),
                // Enough tokens that open nothing make a 429 of a 401.
                Some(401) if answer.status == 429 && refusal_code(who).is_some() => {}
                Some(status) => {
                    assert_eq!(answer.status, status, "{method} {path} by {who:?}: {answer:?}");
                    if let Some(code) = refusal_code(who).filter(|_| *method != "HEAD") {
                        assert_eq!(answer.code(), code, "{method} {path} by {who:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_refused_login_says_how_to_log_in() {
    let stand = Stand::start();
    let answer = stand.tcp("GET", "/v1/whoami").send().ok(401);
    assert!(answer.headers["www-authenticate"].starts_with("Bearer"));
    assert_eq!(answer.code(), "unauthenticated");
    assert_eq!(stand.tcp("GET", "/no/such/path").send().status, 401, "nor are paths told to strangers");
}

#[test]
fn too_many_wrong_tokens_are_limited_but_a_right_one_never_is() {
    let stand = Stand::start();
    let wrong = || stand.tcp("GET", "/v1/whoami").token("glc_guess").send();
    let statuses: Vec<u16> = (0..40).map(|_| wrong().status).collect();
    assert_eq!(statuses[0], 401);
    assert!(statuses.contains(&429), "{statuses:?}");
    // They come from one address, as from behind one NAT.
    for right in [CLIENT, SUBMITTER, VIEWER] {
        stand.tcp("GET", "/v1/whoami").token(right).send().ok(200);
    }
    let beat = json!({ "seq": 1, "incarnation": 1, "tasks": [] });
    stand.worker("/v1/worker/heartbeat", &beat).send().ok(200);
}

#[test]
fn the_caller_is_told_who_they_are() {
    let stand = Stand::start();
    let token = stand.tcp("GET", "/v1/whoami").token(CLIENT).send().ok(200).json();
    assert_eq!(token, json!({ "name": "test-client", "role": "admin", "via": "token" }));
    let local = stand.unix("GET", "/v1/whoami").send().ok(200).json();
    assert_eq!(local["via"], "unix_socket");
    assert!(!local["name"].as_str().unwrap().is_empty());
}

#[test]
fn only_names_of_this_server_are_taken_as_host_over_tcp() {
    let stand = Stand::start();
    for host in [
        "localhost",
        "localhost:8470",
        "127.0.0.1:1",
        "[::1]:8470",
        "GPU.example:443",
        "gpu.example.",
        // Nobody can make a browser call a stranger's page by an address.
        "10.0.0.7:8470",
        "[fe80::1]",
    ] {
        stand.tcp("GET", "/healthz").header("Host", host).send().ok(200);
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "",
        "[::1]evil.com",
        "[::1]:1x",
        "[localhost].evil.com",
        "[localhost]",
        "localhost:evil",
        "localhost:1:2",
    ] {
        let answer = stand.tcp("GET", "/healthz").header("Host", host).send().ok(400);
        assert_eq!(answer.code(), "bad_host");
    }
    stand.unix("GET", "/healthz").header("Host", "anything").send().ok(200);
}

#[test]
fn a_worker_of_another_protocol_learns_what_is_spoken() {
    let stand = Stand::start();
    for version in ["0", "2", "one"] {
        let request = stand.worker("/v1/worker/acquire", &json!({}));
        let answer = request.header("X-GpuLayer-Protocol", version).send().ok(426);
        assert_eq!(answer.code(), "protocol_version");
        assert_eq!(answer.json()["protocol"], json!({ "min": 1, "max": 1 }));
    }
}
