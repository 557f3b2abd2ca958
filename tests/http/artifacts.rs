//! Artifacts over HTTP: verified, resumable, in ranges.

use gpulayer::contract::artifact::Digest;
use gpulayer::contract::worker::TaskState;
use gpulayer::domain::change::{Change, TaskRecord, TaskStanding};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::stand::{MAX_ARTIFACT_BYTES, SESSION, Stand, TASK, WORKER, true_spec};
use crate::wire::{Answer, Request};

const BYTES: &str = "application/octet-stream";

fn digest(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

fn path(digest: Digest) -> String {
    format!("/v1/artifacts/sha256/{}", digest.hex())
}

fn put(stand: &Stand, digest: Digest, bytes: &[u8]) -> Request {
    stand.unix("PUT", &path(digest)).body(BYTES, bytes)
}

#[test]
fn what_was_sent_is_read_back_whole_and_in_ranges() {
    let stand = Stand::start();
    let bytes: Vec<u8> = (0..1_500_000_u32).map(|n| (n % 251) as u8).collect();
    let digest = digest(&bytes);
    let sent = put(&stand, digest, &bytes).send().ok(201);
    assert_eq!(sent.json(), json!({ "received_bytes": bytes.len() }));
    assert_eq!(put(&stand, digest, &bytes).send().ok(200).json()["received_bytes"], bytes.len());
    let get = || stand.unix("GET", &path(digest));
    assert_eq!(get().send().ok(200).body, bytes);
    let range = |text: &str, status: u16| -> Answer { get().header("Range", text).send().ok(status) };
    let middle = range("bytes=1000-1999", 206);
    assert_eq!(middle.body, bytes[1000..2000]);
    assert_eq!(middle.headers["content-range"], format!("bytes 1000-1999/{}", bytes.len()));
    assert_eq!(range("bytes=1499990-", 206).body, bytes[1_499_990..]);
    let outside = range("bytes=1500000-", 416);
    assert_eq!(outside.code(), "range_not_satisfiable");
    assert_eq!(outside.headers["content-range"], "bytes */1500000");
    let head = stand.unix("HEAD", &path(digest)).send().ok(200);
    assert_eq!((head.headers["content-length"].as_str(), head.body.len()), ("1500000", 0));
}

#[test]
fn an_upload_is_taken_up_where_it_stands() {
    let stand = Stand::start();
    let bytes = b"0123456789".repeat(1000);
    let digest = digest(&bytes);
    let part = |from: usize, to: usize| {
        let range = format!("bytes {from}-{}/{}", to - 1, bytes.len());
        put(&stand, digest, &bytes[from..to]).header("Content-Range", &range).send()
    };
    let offset = || stand.unix("HEAD", &path(digest)).send().ok(404).headers.get("upload-offset").cloned();
    assert_eq!(offset(), None);
    assert_eq!(part(0, 4000).ok(202).json(), json!({ "received_bytes": 4000 }));
    assert_eq!(offset().as_deref(), Some("4000"));
    let gap = part(5000, 6000).ok(409);
    assert_eq!(gap.code(), "upload_gap");
    assert_eq!(gap.json()["received_bytes"], 4000);
    stand.unix("GET", &path(digest)).send().ok(404);
    part(4000, 7000).ok(202);
    part(7000, 10_000).ok(201);
    assert_eq!(stand.unix("GET", &path(digest)).send().ok(200).body, bytes);
}

#[test]
fn a_cut_upload_keeps_what_came() {
    let stand = Stand::start();
    let bytes = vec![7_u8; 3 << 20];
    let digest = digest(&bytes);
    let cut =
        put(&stand, digest, &bytes[..2 << 20]).header("Content-Length", &bytes.len().to_string()).open();
    drop(cut);
    crate::stand::eventually("the part is there", || {
        let head = stand.unix("HEAD", &path(digest)).send();
        head.headers.get("upload-offset").is_some_and(|offset| offset != "0")
    });
    let stands: usize = stand.unix("HEAD", &path(digest)).send().headers["upload-offset"].parse().unwrap();
    let range = format!("bytes {stands}-{}/{}", bytes.len() - 1, bytes.len());
    put(&stand, digest, &bytes[stands..]).header("Content-Range", &range).send().ok(201);
}

#[test]
fn bytes_of_another_digest_or_too_many_are_refused() {
    let stand = Stand::start();
    let answer = put(&stand, digest(b"right"), b"wrong").send().ok(422);
    assert_eq!(answer.code(), "digest_mismatch");
    stand.unix("GET", &path(digest(b"right"))).send().ok(404);
    let huge =
        put(&stand, digest(b"huge"), b"").header("Content-Length", &(MAX_ARTIFACT_BYTES + 1).to_string());
    assert_eq!(huge.send().ok(413).code(), "artifact_too_large");
    let range = put(&stand, digest(b"x"), b"x").header("Content-Range", "bytes 5-2/9").send().ok(422);
    assert_eq!(range.pointers(), ["/headers/Content-Range"]);
}

#[test]
fn the_missing_are_told() {
    let stand = Stand::start();
    let (here, absent) = (digest(b""), digest(b"absent"));
    put(&stand, here, b"").send().ok(201);
    let ask = |body| stand.unix("POST", "/v1/artifacts/missing").json(&body).send();
    let answer = ask(json!({ "artifacts": [here, absent] })).ok(200).json();
    assert_eq!(answer, json!({ "missing": [absent] }));
    assert_eq!(ask(json!({ "artifacts": ["sha256:zz"] })).ok(422).code(), "invalid_request");
    assert_eq!(ask(json!({ "artifacts": vec![here; 10_001] })).ok(422).pointers(), ["/artifacts"]);
}

#[test]
fn a_second_upload_of_one_digest_is_told_to_come_back_and_holds_nothing_up() {
    let stand = Stand::start();
    let bytes = vec![7_u8; 2 << 20];
    let digest = digest(&bytes);
    let slow =
        put(&stand, digest, &bytes[..1 << 20]).header("Content-Length", &bytes.len().to_string()).open();
    let busy = || stand.unix("HEAD", &path(digest)).send().headers.get("upload-offset").cloned();
    crate::stand::eventually("the first is under way", || busy().is_some_and(|offset| offset != "0"));
    let second = put(&stand, digest, b"").header("Content-Length", "2097152");
    let answer = second.send().ok(503);
    assert_eq!((answer.code().as_str(), answer.headers["retry-after"].as_str()), ("overloaded", "1"));
    assert_eq!(answer.json()["retryable"], true);
    // More than any pool has threads; each of them would have waited.
    for _ in 0..600 {
        second.open().until("overloaded");
    }
    drop(slow);
    crate::stand::eventually("the second gets its turn", || put(&stand, digest, &bytes).send().status == 201);
}

#[test]
fn a_session_reads_the_artifacts_of_its_live_tasks_and_no_others() {
    let stand = Stand::start();
    let (own, other) = (digest(b"own"), digest(b"other"));
    put(&stand, own, b"own").send().ok(201);
    put(&stand, other, b"other").send().ok(201);
    let mut spec = true_spec();
    spec["source"] = json!(own);
    let job = stand.unix("POST", "/v1/jobs").json(&spec).send().ok(201).json();
    let call = |method: &str, digest| stand.tcp(method, &path(digest)).token(SESSION).send();
    assert_eq!(call("GET", own).ok(404).code(), "not_found");

    let task = |state: TaskState| {
        let ended_at = state.ended().then(gpulayer::clock::now);
        TaskStanding { ended_at, ..TaskStanding::of(state) }
    };
    let placed = TaskRecord {
        id: TASK,
        job_id: job["id"].as_str().unwrap().parse().unwrap(),
        attempt: 1,
        epoch: 1,
        worker: WORKER,
        assigned_at: gpulayer::clock::now(),
        memory_bytes: None,
        gpus: vec!["GPU-1".into()],
        weight: 7,
        gang: None,
    };
    stand.shared.record(&[Change::TaskInserted(placed), Change::TaskMoved(TASK, task(TaskState::Running))]);
    assert_eq!(call("GET", own).ok(200).body, b"own");
    call("HEAD", own).ok(200);
    call("GET", other).ok(404);
    assert!(!call("HEAD", other).ok(404).headers.contains_key("upload-offset"));
    let put_own =
        |bytes: &[u8]| stand.tcp("PUT", &path(digest(bytes))).token(SESSION).body(BYTES, bytes).send();
    put_own(b"result").ok(201);
    put_own(b"other").ok(201);
    put_own(b"other").ok(200);
    let missing = stand.worker("/v1/artifacts/missing", &json!({ "artifacts": [other] }));
    missing.send().ok(200);

    stand.shared.record(&[Change::TaskMoved(TASK, task(TaskState::Succeeded))]);
    call("GET", own).ok(404);
    stand.shared.credentials().end_session(WORKER);
    for answer in [call("GET", own), call("HEAD", own), put_own(b"late"), missing.send()] {
        assert_eq!(answer.status, 401);
    }
    assert_eq!(missing.send().code(), "session_revoked");
}
