//! The worker protocol over HTTP: sessions, long polls, reports and log uploads.

use gpulayer::actors::messages::front_desk::WorkerRefusal;
use gpulayer::contract::protocol::{AcquireAnswer, Orders, Report};
use gpulayer::contract::worker::{Phase, WorkerKind};
use serde_json::{Value, json};

use crate::desk::{NEW_SESSION, NEW_WORKER};
use crate::stand::{JOIN, Stand, TASK, WORKER, eventually};

fn introduction() -> Value {
    json!({
        "name": "box", "machine_id": "m", "boot_id": "b", "incarnation": 1, "kind": "local",
        "capabilities": {
            "version": "0.1.0", "hostname": "box", "os": "linux", "arch": "x86_64", "cpus": 2,
            "memory_bytes": 1_000_000
        }
    })
}

#[test]
fn a_registered_worker_may_speak_with_its_new_session() {
    let stand = Stand::start();
    let heartbeat = json!({ "seq": 1, "incarnation": 1, "tasks": [] });
    let beat = || stand.tcp("POST", "/v1/worker/heartbeat").token(NEW_SESSION).json(&heartbeat).send();
    beat().ok(401);
    let register = stand.tcp("POST", "/v1/workers/register").token(JOIN).json(&introduction());
    let answer = register.send().ok(201).json();
    assert_eq!(answer["worker_id"], NEW_WORKER.to_string());
    assert_eq!(answer["session_token"], NEW_SESSION);
    assert!(beat().ok(200).json()["server_time"].is_string());
}

#[test]
fn a_revoked_session_is_told_so_the_way_each_call_tells_it() {
    let stand = Stand::start();
    *stand.shared.worker_refusal.lock() = Some(WorkerRefusal::Revoked);
    let beat = stand.worker("/v1/worker/heartbeat", &json!({ "seq": 1, "incarnation": 1, "tasks": [] }));
    assert_eq!(beat.send().ok(200).json()["revoked"], true);
    let report = stand.worker("/v1/worker/report", &json!({ "items": [] }));
    assert_eq!(report.send().ok(401).code(), "session_revoked");
    *stand.shared.worker_refusal.lock() = Some(WorkerRefusal::IdentityInUse);
    let mut resume = introduction();
    resume["worker_id"] = json!(WORKER);
    resume["tasks"] = json!([]);
    assert_eq!(stand.worker("/v1/worker/resume", &resume).send().ok(409).code(), "identity_in_use");
    resume["worker_id"] = json!(NEW_WORKER);
    assert_eq!(stand.worker("/v1/worker/resume", &resume).send().ok(403).code(), "forbidden");
}

#[test]
fn an_acquire_is_parked_until_there_is_something_or_the_server_leaves() {
    let mut stand = Stand::start();
    let asked = |wait_s: f64| json!({ "wait_s": wait_s, "max_tasks": 4 });
    let empty = stand.worker("/v1/worker/acquire", &asked(0.0)).send().ok(200).json();
    assert_eq!(empty, json!({ "assignments": [] }));
    let mut parked = stand.worker("/v1/worker/acquire", &asked(60.0)).open();
    eventually("the acquire is parked", || !stand.shared.parked.lock().is_empty());
    let orders = Orders { kill_task_ids: vec![TASK], ..Orders::default() };
    let answer = AcquireAnswer { assignments: Vec::new(), orders };
    stand.shared.parked.lock().pop().unwrap().send(Ok(answer)).unwrap();
    assert!(parked.until("kill_task_ids").contains(&TASK.to_string()));
    let parked = stand.worker("/v1/worker/acquire", &asked(60.0)).header("Connection", "close").open();
    eventually("the acquire is parked", || !stand.shared.parked.lock().is_empty());
    stand.stop();
    assert_eq!(parked.rest().ok(503).code(), "not_ready");
}

#[test]
fn single_task_calls_are_reports_of_one() {
    let stand = Stand::start();
    let end = json!({ "reason": "completed", "owner": "user", "exit_code": 0, "signal": null, "detail": null,
        "peak_memory_bytes": null, "duration_s": 1.5 });
    for (call, body) in [
        ("start", json!({ "epoch": 1 })),
        ("executing", json!({ "epoch": 1 })),
        ("decline", json!({ "epoch": 1, "detail": "full" })),
        ("finish", json!({ "epoch": 1, "end": end })),
    ] {
        let path = format!("/v1/worker/tasks/{TASK}/{call}");
        assert_eq!(
            stand.worker(&path, &body).send().ok(200).json(),
            json!({ "job_state": "running" }),
            "{call}"
        );
        let mut stale = body.clone();
        stale["epoch"] = json!(2);
        assert_eq!(stand.worker(&path, &stale).send().ok(409).code(), "stale_epoch", "{call}");
        let mut without = body;
        without.as_object_mut().unwrap().remove("epoch");
        assert_eq!(stand.worker(&path, &without).send().ok(422).code(), "invalid_request", "{call}");
    }
    let reports = stand.shared.reports.lock();
    let told: Vec<_> =
        reports.iter().step_by(2).map(|(worker, report)| (*worker, &report.items[0])).collect();
    assert!(told.iter().all(|(worker, item)| *worker == WORKER && item.task_id == TASK));
    assert!(matches!(told[0].1.report, Report::Start));
    assert!(matches!(told[1].1.report, Report::Phase { phase: Phase::Executing }));
    assert!(matches!(&told[2].1.report, Report::Decline { detail } if detail == "full"));
    assert!(matches!(&told[3].1.report, Report::Finish(finish) if finish.end.exit_code == Some(0)));
}

#[test]
fn log_records_are_taken_from_the_tasks_owner_alone() {
    let stand = Stand::start();
    let id = stand.submit();
    let path = format!("/v1/worker/tasks/{TASK}/logs");
    let records = |epoch: u32, first_n: u64| {
        json!({ "epoch": epoch, "first_n": first_n, "records": [
            { "time": "2026-01-01T00:00:00Z", "stream": "stdout", "text": "hi" },
            { "time": "2026-01-01T00:00:01Z", "stream": "stderr", "text": "ho" },
        ] })
    };
    assert_eq!(stand.worker(&path, &records(1, 1)).send().ok(409).code(), "stale_epoch");
    *stand.shared.owner.lock() = Some(id);
    assert_eq!(stand.worker(&path, &records(1, 1)).send().ok(200).json(), json!({ "next_n": 3 }));
    assert_eq!(stand.worker(&path, &records(1, 2)).send().ok(200).json(), json!({ "next_n": 4 }));
    assert_eq!(stand.worker(&path, &records(2, 4)).send().ok(409).code(), "stale_epoch");
    let page = stand.unix("GET", &format!("/v1/jobs/{id}/logs")).send().ok(200).json();
    let texts: Vec<_> = page["items"].as_array().unwrap().iter().map(|line| line["text"].clone()).collect();
    assert_eq!(texts, ["hi", "ho", "ho"], "record 2 was known, record 3 was new");
}

#[test]
fn a_remote_worker_cannot_call_itself_local() {
    let stand = Stand::start();
    let register = stand.tcp("POST", "/v1/workers/register").token(JOIN).json(&introduction());
    register.send().ok(201);
    assert_eq!(*stand.shared.kinds.lock(), [WorkerKind::Remote]);
}

#[test]
fn a_workers_name_is_one_that_people_can_read_and_type() {
    let stand = Stand::start();
    let register = |name: &str| {
        let mut asked = introduction();
        asked["name"] = json!(name);
        stand.tcp("POST", "/v1/workers/register").token(JOIN).json(&asked).send()
    };
    for bad in ["", "a\nb", "\u{1b}[31m", " box", &"x".repeat(64)] {
        assert_eq!(register(bad).ok(422).pointers(), ["/name"], "{bad:?}");
    }
    for good in ["box", "Büro 2", &"x".repeat(63)] {
        register(good).ok(201);
    }
}
