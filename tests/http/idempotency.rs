//! One key, one effect: the same body gets the same answer, another body is refused.

use gpulayer::contract::job::JobState;
use serde_json::json;
use sha2::Digest as _;

use crate::stand::{CLIENT, Stand, true_spec};

const KEY: &str = "Idempotency-Key";

#[test]
fn a_repeated_submission_gets_the_first_answer_even_after_the_job_moved_on() {
    let stand = Stand::start();
    let request = stand.unix("POST", "/v1/jobs").json(&true_spec()).header(KEY, "k1");
    let first = request.send().ok(201);
    assert!(!first.headers.contains_key("idempotency-replayed"));
    let id = first.json()["id"].as_str().unwrap().parse().unwrap();
    stand.shared.moved(id, JobState::Succeeded);
    let second = request.send().ok(201);
    assert_eq!(second.headers["idempotency-replayed"], "true");
    assert_eq!(second.headers["location"], first.headers["location"]);
    assert_eq!(second.json(), first.json());
    let jobs = stand.unix("GET", "/v1/jobs").send().ok(200).json();
    assert_eq!(jobs["items"].as_array().unwrap().len(), 1);
}

#[test]
fn another_body_under_the_same_key_is_refused() {
    let stand = Stand::start();
    stand.unix("POST", "/v1/jobs").json(&true_spec()).header(KEY, "k").send().ok(201);
    let mut other = true_spec();
    other["name"] = json!("other");
    let answer = stand.unix("POST", "/v1/jobs").json(&other).header(KEY, "k").send().ok(422);
    assert_eq!(answer.code(), "idempotency_key_reused");
}

#[test]
fn a_key_is_its_callers_and_its_paths_own() {
    let stand = Stand::start();
    let first = stand.unix("POST", "/v1/jobs").json(&true_spec()).header(KEY, "k").send().ok(201).json();
    let other = stand.tcp("POST", "/v1/jobs").token(CLIENT).json(&true_spec()).header(KEY, "k").send();
    assert_ne!(other.ok(201).json()["id"], first["id"], "another credential");
    let batch = json!({ "jobs": [true_spec()] });
    let batch = stand.unix("POST", "/v1/jobs/batch").json(&batch).header(KEY, "k").send().ok(201);
    assert!(!batch.headers.contains_key("idempotency-replayed"), "another path");
}

#[test]
fn batches_cancels_retries_and_removals_are_repeated_alike() {
    let stand = Stand::start();
    let batch = stand.unix("POST", "/v1/jobs/batch").json(&json!({ "jobs": [true_spec(), true_spec()] }));
    let batch = batch.header(KEY, "b");
    let first = batch.send().ok(201);
    let again = batch.send().ok(201);
    assert_eq!(again.json(), first.json());
    assert_eq!(again.headers["idempotency-replayed"], "true");

    let id = first.json()["ids"][0].as_str().unwrap().to_owned();
    for (method, path, status) in [
        ("POST", format!("/v1/jobs/{id}/cancel"), 200),
        ("POST", format!("/v1/jobs/{id}/retry"), 201),
        ("DELETE", format!("/v1/jobs/{id}"), 204),
    ] {
        let request = stand.unix(method, &path).header(KEY, "same");
        let first = request.send().ok(status);
        let again = request.send().ok(status);
        assert!(!first.headers.contains_key("idempotency-replayed"), "{path}");
        assert_eq!(again.headers["idempotency-replayed"], "true", "{path}");
        assert_eq!(again.body, first.body, "{path}");
    }
}

#[test]
fn a_key_that_cannot_be_is_refused() {
    let stand = Stand::start();
    let answer =
        stand.unix("POST", "/v1/jobs").json(&true_spec()).header(KEY, &"k".repeat(256)).send().ok(422);
    assert_eq!(answer.pointers(), ["/headers/Idempotency-Key"]);
}

#[test]
fn a_repeat_gets_the_first_answer_also_when_its_job_is_gone() {
    let stand = Stand::start();
    let mut spec = true_spec();
    spec["labels"] = json!({ "a": "b" });
    spec["nam"] = json!("a warning");
    let submit = stand.unix("POST", "/v1/jobs").json(&spec).header(KEY, "s");
    let first = submit.send().ok(201);
    let id = first.json()["id"].as_str().unwrap().to_owned();
    stand.shared.moved(id.parse().unwrap(), JobState::Succeeded);
    let cancel = stand.unix("POST", &format!("/v1/jobs/{id}/cancel")).header(KEY, "c");
    let retry = stand.unix("POST", &format!("/v1/jobs/{id}/retry")).header(KEY, "r");
    cancel.send().ok(200);
    let retried = retry.send().ok(201);
    stand.unix("DELETE", &format!("/v1/jobs/{id}")).send().ok(204);

    let again = submit.send().ok(201);
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(again.headers["location"], first.headers["location"]);
    assert_eq!(again.json(), first.json());
    let again = retry.send().ok(201);
    assert_eq!((&again.headers["idempotency-replayed"][..], again.json()), ("true", retried.json()));
    let again = cancel.send().ok(200);
    assert_eq!((&again.headers["idempotency-replayed"][..], &again.json()["id"]), ("true", &json!(id)));

    let new = retried.json()["id"].as_str().unwrap().to_owned();
    stand.shared.moved(new.parse().unwrap(), JobState::Cancelled);
    stand.unix("DELETE", &format!("/v1/jobs/{new}")).send().ok(204);
    assert_eq!(retry.send().ok(201).json()["id"], json!(new));
    assert_eq!(submit.clone().json(&json!([])).send().ok(422).code(), "idempotency_key_reused");
}

#[test]
fn a_repeat_gets_the_first_answer_also_when_its_artifact_is_gone() {
    let stand = Stand::start();
    let digest = gpulayer::contract::artifact::Digest::from_bytes(sha2::Sha256::digest(b"bundle").into());
    let path = format!("/v1/artifacts/sha256/{}", digest.hex());
    stand.unix("PUT", &path).body("application/octet-stream", "bundle").send().ok(201);
    let mut spec = true_spec();
    spec["source"] = json!(digest);
    spec["nam"] = json!("a warning");
    let submit = stand.unix("POST", "/v1/jobs").json(&spec).header(KEY, "k");
    let batch = stand.unix("POST", "/v1/jobs/batch").json(&json!({ "jobs": [spec] })).header(KEY, "k");
    let (one, many) = (submit.send().ok(201), batch.send().ok(201));
    let hex = digest.hex();
    let file = stand.folder.path().join("artifacts/sha256").join(&hex[..2]).join(&hex);
    std::fs::remove_file(file).unwrap();
    for (request, first) in [(&submit, one), (&batch, many)] {
        let again = request.send().ok(201);
        assert_eq!(again.headers["idempotency-replayed"], "true");
        assert_eq!(again.json(), first.json());
        assert_eq!(request.clone().header(KEY, "new").send().ok(422).code(), "invalid_spec");
    }
}
