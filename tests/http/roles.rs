//! Who may see and do what to which job, artifact and feed: every route about a job against every role, with jobs of
//! one's own, of a mate in the same project, and of a foreign project.

use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::JobState;
use gpulayer::http::routes::ROUTES;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::stand::{CLIENT, MATE, SESSION, STRANGER, SUBMITTER, Stand, VIEWER, true_spec};

fn spec(project: &str) -> Value {
    let mut spec = true_spec();
    spec["project"] = json!(project);
    spec["env"] = json!({ "SECRET": "hunter2" });
    spec
}

/// Submitted by [`SUBMITTER`], by [`MATE`] into the same project, by [`STRANGER`] into another.
struct Jobs {
    own: JobId,
    mates: JobId,
    foreign: JobId,
}

impl Jobs {
    fn ended(stand: &Stand) -> Self {
        let jobs = Self {
            own: stand.submit_as(SUBMITTER, &spec("mine")),
            mates: stand.submit_as(MATE, &spec("mine")),
            foreign: stand.submit_as(STRANGER, &spec("theirs")),
        };
        for id in [jobs.own, jobs.mates, jobs.foreign] {
            stand.shared.moved(id, JobState::Succeeded);
        }
        jobs
    }
}

/// How a call about a job is answered: to who may, and what the others get who see it.
const ABOUT_JOBS: &[(&str, &str, u16, u16)] = &[
    ("GET", "", 200, 200),
    ("GET", "/logs", 200, 200),
    ("GET", "/events", 200, 200),
    ("GET", "/yielded", 200, 200),
    ("GET", "/tasks", 200, 200),
    ("GET", "/outputs", 200, 200),
    // They have ended: it says what they had waited for.
    ("GET", "/explain", 200, 200),
    ("GET", "/undeclared/file", 404, 404),
    ("POST", "/cancel", 200, 403),
    ("POST", "/retry", 201, 403),
    ("DELETE", "", 204, 403),
];

#[test]
fn no_call_about_a_job_is_missing_here() {
    let about: Vec<(&str, String)> = ROUTES
        .iter()
        .filter_map(|route| {
            let rest = route.path.strip_prefix("/v1/jobs/{job_id}")?;
            Some((route.method, rest.replace("{path:.+}", "file")))
        })
        .collect();
    let mut told: Vec<(&str, String)> =
        ABOUT_JOBS.iter().map(|(method, path, ..)| (*method, (*path).to_owned())).collect();
    let mut built = about;
    told.sort();
    built.sort();
    assert_eq!(told, built);
}

#[test]
fn every_call_about_a_job_answers_to_whose_it_is() {
    let stand = Stand::start();
    for (method, path, may, sees) in ABOUT_JOBS {
        let jobs = Jobs::ended(&stand);
        let status = |token: &str, id: JobId| {
            stand.tcp(method, &format!("/v1/jobs/{id}{path}")).token(token).send().status
        };
        let said = format!("{method} {path}");
        assert_eq!(status(VIEWER, jobs.own), *sees, "{said} by a viewer");
        // To a viewer a call that changes something is closed before it is looked at whose it is.
        let hidden = if *sees == 403 { 403 } else { 404 };
        assert_eq!(status(VIEWER, jobs.foreign), hidden, "{said} by a viewer, foreign");
        assert_eq!(status(SUBMITTER, jobs.mates), *sees, "{said} of a mate");
        assert_eq!(status(SUBMITTER, jobs.foreign), 404, "{said} foreign");
        assert_eq!(status(STRANGER, jobs.own), 404, "{said} by a stranger");
        assert_eq!(status(SUBMITTER, jobs.own), *may, "{said} own");
        assert_eq!(status(CLIENT, jobs.foreign), *may, "{said} by an admin");
    }
}

#[test]
fn a_foreign_job_looks_as_if_it_were_not_there() {
    let stand = Stand::start();
    let jobs = Jobs::ended(&stand);
    let answer = |id: &str| {
        let mut problem = stand.tcp("GET", &format!("/v1/jobs/{id}")).token(SUBMITTER).send().ok(404).json();
        problem.as_object_mut().unwrap().remove("request_id");
        problem.to_string().replace(id, "ID")
    };
    assert_eq!(answer(&jobs.foreign.to_string()), answer("job_00000000000000000000000001"));
    let theirs =
        stand.tcp("POST", &format!("/v1/jobs/{}/cancel", jobs.mates)).token(SUBMITTER).send().ok(403);
    let detail = theirs.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("submitted by `mate`") && detail.contains("you are `submitter`"), "{detail}");
}

fn listed(stand: &Stand, token: &str, query: &str) -> Vec<String> {
    let page = stand.tcp("GET", &format!("/v1/jobs{query}")).token(token).send().ok(200).json();
    let ids = page["items"].as_array().unwrap().iter();
    ids.map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn lists_hold_what_may_be_seen() {
    let stand = Stand::start();
    let jobs = Jobs::ended(&stand);
    let mine = [jobs.mates.to_string(), jobs.own.to_string()];
    assert_eq!(listed(&stand, SUBMITTER, ""), mine);
    assert_eq!(listed(&stand, VIEWER, ""), mine);
    assert_eq!(listed(&stand, STRANGER, ""), [jobs.foreign.to_string()]);
    assert_eq!(listed(&stand, CLIENT, "").len(), 3);
    assert!(listed(&stand, SUBMITTER, "?project=theirs").is_empty());
    assert!(listed(&stand, SUBMITTER, &format!("?match={}", jobs.foreign)).is_empty());
    let tail = jobs.foreign.to_string();
    assert!(listed(&stand, SUBMITTER, &format!("?match={}", &tail[tail.len() - 8..])).is_empty());
    assert_eq!(listed(&stand, SUBMITTER, "?match=@last"), [jobs.own.to_string()]);
    let named = |token: &str, project: &str| {
        let mut spec = spec(project);
        spec["name"] = json!("train");
        stand.submit_as(token, &spec)
    };
    let (own, _) = (named(SUBMITTER, "mine"), named(STRANGER, "theirs"));
    assert_eq!(
        listed(&stand, SUBMITTER, "?match=train"),
        [own.to_string()],
        "a newer foreign one hides nothing"
    );
}

#[test]
fn viewers_never_see_values_of_env() {
    let stand = Stand::start();
    let id = stand.submit_as(SUBMITTER, &spec("mine"));
    for path in [format!("/v1/jobs/{id}"), "/v1/jobs".to_owned(), format!("/v1/jobs?match={id}")] {
        let shown = |token: &str| {
            let answer = stand.tcp("GET", &path).token(token).send().ok(200);
            String::from_utf8(answer.body).unwrap()
        };
        assert!(shown(SUBMITTER).contains("hunter2"), "{path}");
        let viewed = shown(VIEWER);
        assert!(!viewed.contains("hunter2"), "{viewed}");
        assert!(viewed.contains("SECRET") && viewed.contains("[hidden]"), "{viewed}");
    }
}

#[test]
fn the_feed_and_the_fleet_show_what_may_be_seen() {
    let stand = Stand::start();
    let jobs = Jobs::ended(&stand);
    let kind = gpulayer::contract::event::EventType::JobRunning;
    for id in [jobs.own, jobs.foreign, jobs.mates] {
        stand.shared.happened(id, kind);
    }
    let feed = |token: &str| {
        let page = stand.tcp("GET", "/v1/events").token(token).send().ok(200).json();
        let ids = page["items"].as_array().unwrap().iter();
        let ids: Vec<_> = ids.map(|event| event["job_id"].as_str().unwrap().to_owned()).collect();
        (ids, page["next_after"].as_u64().unwrap())
    };
    assert_eq!(feed(VIEWER), (vec![jobs.own.to_string(), jobs.mates.to_string()], 3));
    assert_eq!(feed(STRANGER), (vec![jobs.foreign.to_string()], 3), "what was passed over is not read again");
    assert_eq!(feed(CLIENT).0.len(), 3);
    let fleet = |token: &str| {
        let page = stand.tcp("GET", "/v1/workers").token(token).send().ok(200).json();
        page["items"][0]["tasks"].as_array().unwrap().len()
    };
    assert_eq!((fleet(CLIENT), fleet(SUBMITTER)), (1, 0), "a task of nobody's job is only an admin's to see");
}

#[test]
fn who_had_to_leave_for_a_foreign_job_is_not_told_which() {
    let stand = Stand::start();
    let jobs = Jobs::ended(&stand);
    let kind = gpulayer::contract::event::EventType::TaskStopRequested;
    for taker in [jobs.foreign, jobs.mates] {
        stand.shared.happened_with(jobs.own, kind, json!({"cause": "preempt", "for": taker}));
    }
    let told = |token: &str, path: &str| {
        let page = stand.tcp("GET", path).token(token).send().ok(200).json();
        let events =
            page["items"].as_array().unwrap().iter().filter(|event| event["type"] == "task_stop_requested");
        events.map(|event| event["data"]["for"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let [foreign, mates] = [jobs.foreign, jobs.mates].map(|id| Some(id.to_string()));
    for path in [format!("/v1/jobs/{}/events", jobs.own), "/v1/events".to_owned()] {
        assert_eq!(told(SUBMITTER, &path), [None, mates.clone()], "{path}");
        assert_eq!(told(CLIENT, &path), [foreign.clone(), mates.clone()], "{path}");
    }
    let stream = format!("/v1/jobs/{}/events", jobs.own);
    let streamed =
        stand.tcp("GET", &stream).token(SUBMITTER).header("Accept", "text/event-stream").send().ok(200);
    let streamed = String::from_utf8(streamed.body).unwrap();
    assert!(
        streamed.contains(&jobs.mates.to_string()) && !streamed.contains(&jobs.foreign.to_string()),
        "{streamed}"
    );
}

#[test]
fn a_preempted_job_names_the_other_to_those_who_may_see_it() {
    let stand = Stand::start();
    let jobs = Jobs::ended(&stand);
    let own = stand.submit_as(SUBMITTER, &spec("mine"));
    let shown = |token: &str, path: &str| {
        let answer = stand.tcp("GET", path).token(token).send().ok(200).json();
        let job = if path.contains('?') { answer["items"][0].clone() } else { answer };
        (job["preempted_by"].as_str().map(str::to_owned), job["queue_reason"].as_str().unwrap().to_owned())
    };
    for (by, seen) in [(jobs.foreign, false), (jobs.mates, true)] {
        stand.shared.preempted(own, by);
        let id = by.to_string();
        let tail = &id[id.len() - 6..];
        for path in [format!("/v1/jobs/{own}"), format!("/v1/jobs?match={own}")] {
            let (named, reason) = shown(SUBMITTER, &path);
            assert_eq!(named, seen.then(|| id.clone()), "{path}");
            let begins = if seen {
                format!("preempted by job …{tail}, attempt 1")
            } else {
                "preempted, attempt 1".into()
            };
            assert!(reason.starts_with(&begins), "{path}: {reason}");
            assert_eq!(shown(CLIENT, &path).0, Some(id.clone()));
        }
    }
}

#[test]
fn submissions_go_into_own_projects_and_under_the_cap() {
    let stand = Stand::start();
    let send = |spec: &Value| stand.tcp("POST", "/v1/jobs").token(SUBMITTER).json(spec).send();
    let foreign = send(&spec("theirs")).ok(404);
    assert_eq!((foreign.code().as_str(), foreign.pointers()), ("not_found", vec!["/project".to_owned()]));
    assert!(foreign.json()["detail"].as_str().unwrap().contains("may submit into `mine`"));
    let mut default = true_spec();
    default["project"] = json!("default");
    assert_eq!(send(&default).ok(404).pointers(), ["/project"], "`default` is a project like others");
    assert_eq!(send(&true_spec()).ok(201).json()["project"], "mine", "there is but one it can mean");
    let mut high = spec("mine");
    high["priority"] = json!(11);
    let refused = send(&high).ok(422);
    assert_eq!(refused.pointers(), ["/priority"]);
    assert!(refused.json()["detail"].as_str().unwrap().contains("at most 10"));
    high["priority"] = json!(10);
    send(&high).ok(201);
    let mut all = spec("theirs");
    (all["priority"], all["grace_s"]) = (json!(50), json!(-1));
    let mut pointers = send(&all).ok(422).pointers();
    pointers.sort();
    assert_eq!(pointers, ["/grace_s", "/priority", "/project"]);
    let batch = json!({ "jobs": [spec("mine"), spec("theirs")] });
    let refused = stand.tcp("POST", "/v1/jobs/batch").token(SUBMITTER).json(&batch).send().ok(404);
    assert_eq!(refused.pointers(), ["/jobs/1/project"]);
    assert_eq!(listed(&stand, SUBMITTER, "").len(), 2, "all or none");
}

fn path_of(bytes: &[u8]) -> String {
    format!("/v1/artifacts/sha256/{}", hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_digest_is_no_permission() {
    let stand = Stand::start();
    let bytes = b"their model";
    let path = path_of(bytes);
    let address = format!("artifact://sha256/{}", hex(bytes));
    let put =
        |token: &str| stand.tcp("PUT", &path).token(token).body("application/octet-stream", *bytes).send();
    let missing = |token: &str| {
        let asked = json!({ "artifacts": [address] });
        let answer = stand.tcp("POST", "/v1/artifacts/missing").token(token).json(&asked).send().ok(200);
        answer.json()["missing"].as_array().unwrap().len()
    };
    let read = |token: &str| stand.tcp("GET", &path).token(token).send().status;
    let head = |token: &str| stand.tcp("HEAD", &path).token(token).send().status;
    let submit = |token: &str, project: &str| {
        let mut spec = spec(project);
        spec["source"] = json!(address);
        stand.tcp("POST", "/v1/jobs").token(token).json(&spec).send()
    };
    put(STRANGER).ok(201);
    assert_eq!((read(STRANGER), head(STRANGER), missing(STRANGER)), (200, 200, 0));
    submit(STRANGER, "theirs").ok(201);

    assert_eq!((read(SUBMITTER), head(SUBMITTER), missing(SUBMITTER)), (404, 404, 1));
    assert_eq!((read(VIEWER), head(VIEWER)), (404, 404));
    assert_eq!(submit(SUBMITTER, "mine").ok(422).pointers(), ["/source"]);
    assert_eq!(stand.tcp("PUT", &path).token(VIEWER).send().status, 403);
    // Only who has all the bytes gets it, and the answer is that of a first upload.
    let cut = stand.tcp("PUT", &path).token(SUBMITTER).body("application/octet-stream", *b"their mod");
    assert_eq!(cut.send().ok(422).code(), "digest_mismatch");
    assert_eq!((read(SUBMITTER), missing(SUBMITTER)), (404, 1));
    put(SUBMITTER).ok(201);
    assert_eq!((read(SUBMITTER), head(SUBMITTER), missing(SUBMITTER)), (200, 200, 0));
    put(SUBMITTER).ok(200);
    submit(SUBMITTER, "mine").ok(201);
    assert_eq!(read(VIEWER), 200, "a job of the project names it now");
    assert_eq!((read(CLIENT), missing(CLIENT)), (200, 0), "an admin sees all");
}

#[test]
fn an_upload_in_parts_tells_nothing_either() {
    let stand = Stand::start();
    let bytes = b"0123456789";
    let path = path_of(bytes);
    let part = |token: &str, range: &str, part: &[u8]| {
        let request = stand.tcp("PUT", &path).token(token).body("application/octet-stream", part);
        request.header("Content-Range", range).send()
    };
    stand.tcp("PUT", &path).token(STRANGER).body("application/octet-stream", *bytes).send().ok(201);
    assert_eq!(part(SUBMITTER, "bytes 0-3/10", b"0123").ok(202).json(), json!({ "received_bytes": 4 }));
    let head = |token: &str| stand.tcp("HEAD", &path).token(token).send();
    assert_eq!(head(SUBMITTER).ok(404).headers["upload-offset"], "4");
    assert!(!head(MATE).ok(404).headers.contains_key("upload-offset"), "another's upload");
    part(SUBMITTER, "bytes 4-9/10", b"456789").ok(201);
    head(SUBMITTER).ok(200);
    head(MATE).ok(200);
}

#[test]
fn a_session_brings_back_only_what_it_sent() {
    let stand = Stand::start();
    let (sent, foreign) = (b"result".as_slice(), b"somebody else's".as_slice());
    let put = |token: &str, bytes: &[u8]| {
        let request = stand.tcp("PUT", &path_of(bytes)).token(token);
        request.body("application/octet-stream", bytes).send()
    };
    put(STRANGER, foreign).ok(201);
    put(SESSION, sent).ok(201);
    put(SESSION, sent).ok(200);
    assert_eq!(stand.tcp("GET", &path_of(foreign)).token(SESSION).send().status, 404);
    let file = |name: &str, bytes: &[u8]| {
        json!({ "name": name, "path": name, "artifact": format!("artifact://sha256/{}", hex(bytes)),
            "size_bytes": 1, "mode": 420 })
    };
    let end = json!({ "reason": "completed", "owner": "user", "exit_code": 0, "signal": null, "detail": null,
        "peak_memory_bytes": null, "duration_s": 1.5 });
    let finish = json!({ "epoch": 1, "end": end, "outputs": [file("a", sent), file("b", foreign)],
        "log_artifact": format!("artifact://sha256/{}", hex(foreign)) });
    let task = crate::stand::TASK;
    stand.worker(&format!("/v1/worker/tasks/{task}/finish"), &finish).send().ok(200);
    let reports = stand.shared.reports.lock();
    let gpulayer::contract::protocol::Report::Finish(told) = &reports[0].1.items[0].report else {
        panic!("{reports:?}");
    };
    let names: Vec<_> = told.outputs.iter().map(|file| file.name.as_str()).collect();
    assert_eq!((names, told.log_artifact, told.warnings.len()), (vec!["a"], None, 2));
}
