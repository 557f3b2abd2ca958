//! Workers as clients see them, and what operators ask of them.

use gpulayer::actors::messages::front_desk::DrainOrder;
use gpulayer::contract::quantity::Seconds;
use serde_json::{Value, json};

use crate::stand::{Stand, TASK, WORKER};

const STRANGER: &str = "wkr_00000000000000000000000001";

#[test]
fn a_worker_is_shown_by_its_id_and_nothing_else_is_one() {
    let stand = Stand::start();
    let shown = stand.unix("GET", &format!("/v1/workers/{WORKER}")).send().ok(200).json();
    assert_eq!((&shown["id"], &shown["state"]), (&json!(WORKER), &json!("busy")));
    for nobody in [STRANGER, "box", "wkr_"] {
        let answer = stand.unix("GET", &format!("/v1/workers/{nobody}")).send().ok(404);
        assert_eq!(answer.code(), "not_found", "{nobody}");
    }
}

#[test]
fn a_drain_takes_a_deadline_or_none_and_is_taken_back() {
    let stand = Stand::start();
    let post = |call: &str, body: &Value| {
        stand.unix("POST", &format!("/v1/workers/{WORKER}/{call}")).json(body).send()
    };
    assert_eq!(post("drain", &json!({})).ok(200).json()["state"], "draining");
    assert_eq!(*stand.shared.drain.lock(), Some(DrainOrder::Drain { deadline: None }));
    post("drain", &json!({ "deadline_s": 90.5 })).ok(200);
    let deadline = Some(Seconds::from_millis(90_500));
    assert_eq!(*stand.shared.drain.lock(), Some(DrainOrder::Drain { deadline }));
    for bad in [json!({ "deadline_s": -1 }), json!({ "deadline_s": "soon" })] {
        assert_eq!(post("drain", &bad).ok(422).pointers(), ["/deadline_s"], "{bad}");
    }
    assert_eq!(*stand.shared.drain.lock(), Some(DrainOrder::Drain { deadline }), "a refusal changes nothing");
    let misspelt = post("drain", &json!({ "deadline": 60 })).ok(200).json();
    assert_eq!(
        misspelt["warnings"][0]["pointer"], "/deadline",
        "it drains, and says that no deadline came with it"
    );
    assert!(post("resume", &json!({})).ok(200).json()["drain"].is_null());
    assert_eq!(*stand.shared.drain.lock(), Some(DrainOrder::Resume));
    for call in ["drain", "resume"] {
        let path = format!("/v1/workers/{STRANGER}/{call}");
        assert_eq!(stand.unix("POST", &path).json(&json!({})).send().ok(404).code(), "not_found");
    }
}

#[test]
fn a_repeated_drain_is_recognised_by_its_key() {
    let stand = Stand::start();
    let drain = |deadline: u32| {
        let request = stand.unix("POST", &format!("/v1/workers/{WORKER}/drain"));
        request.header("Idempotency-Key", "k").json(&json!({ "deadline_s": deadline })).send()
    };
    drain(5).ok(200);
    assert_eq!(drain(5).ok(200).headers["idempotency-replayed"], "true");
    assert_eq!(drain(6).ok(422).code(), "idempotency_key_reused");
}

#[test]
fn a_task_is_evicted_from_the_worker_that_has_it() {
    let stand = Stand::start();
    let evict = |worker: &str, body: &Value| {
        let request = stand.unix("POST", &format!("/v1/workers/{worker}/evict"));
        request.header("Idempotency-Key", &body.to_string()).json(body).send()
    };
    let worker = WORKER.to_string();
    evict(&worker, &json!({})).ok(422);
    assert_eq!(evict(&worker, &json!({ "task_id": "none" })).ok(422).pointers(), ["/task_id"]);
    let foreign = json!({ "task_id": "task_00000000000000000000000001" });
    assert_eq!(evict(&worker, &foreign).ok(404).code(), "not_found");
    assert_eq!(evict(STRANGER, &json!({ "task_id": TASK })).ok(404).code(), "not_found");
    evict(&worker, &json!({ "task_id": TASK })).ok(200);
    assert_eq!(*stand.shared.evicted.lock(), [TASK]);
    let again = evict(&worker, &json!({ "task_id": TASK })).ok(200);
    assert_eq!(
        again.headers["idempotency-replayed"], "true",
        "it has ended since, and the repeat is answered"
    );
}
