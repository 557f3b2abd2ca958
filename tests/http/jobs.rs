//! Jobs over HTTP: submitted, shown, waited for, listed, stopped, repeated and removed.

use std::time::Instant;

use gpulayer::actors::messages::front_desk::{Holder, SubmitRefusal};
use gpulayer::contract::job::JobState;
use serde_json::json;

use crate::stand::{CLIENT, Stand, eventually, true_spec};

#[test]
fn a_submitted_job_is_answered_whole_and_found_where_the_answer_says() {
    let stand = Stand::start();
    let mut spec = true_spec();
    spec["name"] = json!("first");
    spec["labels"] = json!({ "team": "vision" });
    let answer = stand.tcp("POST", "/v1/jobs").token(CLIENT).json(&spec).send().ok(201);
    let job = answer.json();
    assert_eq!(answer.headers["location"], format!("/v1/jobs/{}", job["id"].as_str().unwrap()));
    assert_eq!(job["state"], "queued");
    assert_eq!(job["attempt"], 1);
    assert_eq!(job["submitted_by"], "test-client");
    assert_eq!(job["spec"]["workload"]["command"]["argv"], json!(["/bin/true"]));
    let mut shown = stand.unix("GET", &answer.headers["location"]).send().ok(200).json();
    assert_eq!(shown["queue_reason"], "1 worker: needs 9 CPUs, has 2");
    shown["queue_reason"] = json!(null);
    assert_eq!(shown, job);
}

#[test]
fn a_bad_spec_is_refused_with_its_pointers_and_nothing_is_kept() {
    let stand = Stand::start();
    let answer = stand.unix("POST", "/v1/jobs").json(&json!({ "name": 5, "workload": {} })).send().ok(422);
    assert_eq!(answer.code(), "invalid_spec");
    assert!(!answer.pointers().is_empty());
    let list = stand.unix("GET", "/v1/jobs").send().ok(200).json();
    assert_eq!(list, json!({ "items": [], "next_cursor": null }));
}

#[test]
fn an_artifact_that_was_not_sent_is_a_fault_where_it_is_named() {
    let stand = Stand::start();
    let absent = format!("artifact://sha256/{}", "a".repeat(64));
    let mut spec = true_spec();
    spec["source"] = json!(absent);
    spec["inputs"] = json!([{ "artifact": absent, "path": "in" }]);
    let answer = stand.unix("POST", "/v1/jobs").json(&spec).send().ok(422);
    assert_eq!(answer.pointers(), ["/source", "/inputs/0/artifact"]);
    assert_eq!(answer.json()["errors"][0]["code"], "missing_artifact");
    let batch = json!({ "jobs": [true_spec(), spec] });
    let answer = stand.unix("POST", "/v1/jobs/batch").json(&batch).send().ok(422);
    assert_eq!(answer.pointers(), ["/jobs/1/source", "/jobs/1/inputs/0/artifact"]);
    let listed = stand.unix("GET", "/v1/jobs").send().ok(200).json();
    assert_eq!(listed["items"], json!([]), "all or none");
}

#[test]
fn a_full_disk_and_a_stopping_daemon_refuse_submissions() {
    let stand = Stand::start();
    for (refusal, code) in
        [(SubmitRefusal::StorageFull, "storage_full"), (SubmitRefusal::Stopping, "not_ready")]
    {
        *stand.shared.refusal.lock() = Some(refusal);
        let answer = stand.unix("POST", "/v1/jobs").json(&true_spec()).send().ok(503);
        assert_eq!(answer.code(), code);
        assert_eq!(answer.json()["retryable"], true);
    }
}

#[test]
fn a_batch_is_answered_with_its_ids_in_order() {
    let stand = Stand::start();
    let named = |name: &str| {
        let mut spec = true_spec();
        spec["name"] = json!(name);
        spec
    };
    let batch = json!({ "jobs": [named("a"), named("b"), named("c")] });
    let ids = stand.unix("POST", "/v1/jobs/batch").json(&batch).send().ok(201).json()["ids"].clone();
    for (id, name) in ids.as_array().unwrap().iter().zip(["a", "b", "c"]) {
        let job = stand.unix("GET", &format!("/v1/jobs/{}", id.as_str().unwrap())).send().ok(200).json();
        assert_eq!(job["name"], name);
    }
}

#[test]
fn a_wait_ends_with_the_job_or_with_its_time() {
    let stand = Stand::start();
    let id = stand.submit();
    let began = Instant::now();
    let job = stand.unix("GET", &format!("/v1/jobs/{id}?wait_s=0.05")).send().ok(200).json();
    assert_eq!(job["state"], "queued");
    assert!(began.elapsed().as_millis() >= 50);
    let waiting = stand.unix("GET", &format!("/v1/jobs/{id}?wait_s=60")).open();
    eventually("the wait is parked", || stand.shared.watchers() > 0);
    stand.shared.moved(id, JobState::Succeeded);
    assert_eq!(waiting_answer(waiting)["state"], "succeeded");
    let ended = stand.unix("GET", &format!("/v1/jobs/{id}?wait_s=60")).send().ok(200).json();
    assert_eq!(ended["end"]["reason"], "completed");
    assert_eq!(ended["queue_reason"], json!(null));
}

fn waiting_answer(mut waiting: crate::wire::Streaming) -> serde_json::Value {
    serde_json::from_str(&waiting.until("\"warnings\"")).unwrap()
}

#[test]
fn a_wait_that_its_client_gave_up_is_not_kept() {
    let stand = Stand::start();
    let id = stand.submit();
    let waiting = stand.unix("GET", &format!("/v1/jobs/{id}?wait_s=60")).open();
    eventually("the wait is parked", || stand.shared.watchers() == 1);
    drop(waiting);
    eventually("the wait is dropped", || stand.shared.watchers() == 0);
}

#[test]
fn a_stopping_server_ends_waits_at_once() {
    let mut stand = Stand::start();
    let id = stand.submit();
    let waiting = stand.unix("GET", &format!("/v1/jobs/{id}?wait_s=60")).header("Connection", "close").open();
    eventually("the wait is parked", || stand.shared.watchers() == 1);
    let began = Instant::now();
    stand.stop();
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    assert_eq!(waiting.rest().ok(503).code(), "not_ready");
    assert!(!stand.socket.exists(), "the socket is removed");
}

#[test]
fn lists_filter_page_and_find_what_a_person_means() {
    let stand = Stand::start();
    let named = |name: &str| {
        let mut spec = true_spec();
        spec["name"] = json!(name);
        spec["labels"] = json!({ "run": name });
        let job = stand.unix("POST", "/v1/jobs").json(&spec).send().ok(201).json();
        job["id"].as_str().unwrap().to_owned()
    };
    let ids = [named("one"), named("two"), named("three")];
    let listed = |query: &str| -> Vec<String> {
        let page = stand.unix("GET", &format!("/v1/jobs?{query}")).send().ok(200).json();
        let items = page["items"].as_array().unwrap().clone();
        items.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(""), [ids[2].clone(), ids[1].clone(), ids[0].clone()]);
    assert_eq!(listed("name=two"), [ids[1].clone()]);
    assert_eq!(listed("label=run%3Dthree"), [ids[2].clone()]);
    assert_eq!(listed("state=running,succeeded"), Vec::<String>::new());
    assert_eq!(listed("state=queued&limit=1"), [ids[2].clone()]);
    assert_eq!(listed("match=@last"), [ids[2].clone()]);
    assert_eq!(listed("match=one"), [ids[0].clone()]);
    assert_eq!(listed(&format!("match={}", &ids[1][20..])), [ids[1].clone()]);
    let page = stand.unix("GET", "/v1/jobs?limit=2").send().ok(200).json();
    let cursor = page["next_cursor"].as_str().unwrap();
    assert_eq!(listed(&format!("limit=2&cursor={cursor}")), [ids[0].clone()]);
    let answer = stand.unix("GET", "/v1/jobs?match=x&name=y").send().ok(422);
    assert_eq!(answer.pointers(), ["/query/match"]);
    assert_eq!(stand.unix("GET", "/v1/jobs?worker=nobody").send().ok(422).pointers(), ["/query/worker"]);
}

#[test]
fn a_job_is_stopped_once_repeated_after_its_end_and_removed() {
    let stand = Stand::start();
    let id = stand.submit();
    let at = |rest: &str| format!("/v1/jobs/{id}{rest}");
    assert_eq!(stand.unix("POST", &at("/retry")).send().ok(409).code(), "job_not_ended");
    assert_eq!(stand.unix("DELETE", &at("")).send().ok(409).code(), "job_not_ended");
    let stopped = stand.unix("POST", &at("/cancel")).json(&json!({ "now": true })).send().ok(200).json();
    assert_eq!(stopped["state"], "cancelled");
    assert_eq!(stand.unix("POST", &at("/cancel")).send().ok(200).json()["state"], "cancelled");
    let again = stand.unix("POST", &at("/retry")).send().ok(201).json();
    assert_eq!(again["retry_of"], id.to_string());
    assert_eq!(again["state"], "queued");
    assert_eq!(again["spec"], stopped["spec"]);
    for list in ["/tasks", "/outputs"] {
        assert_eq!(stand.unix("GET", &at(list)).send().ok(200).json()["items"], json!([]));
    }
    stand.unix("DELETE", &at("")).send().ok(204);
    for (method, rest) in
        [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("POST", "/retry"), ("GET", "/logs")]
    {
        assert_eq!(stand.unix(method, &at(rest)).send().ok(404).code(), "not_found", "{method} {rest}");
    }
}

#[test]
fn a_kept_file_is_served_with_ranges() {
    let stand = Stand::start();
    let id = stand.submit();
    let folder = stand.folder.path().join("kept").join(id.to_string()).join("runs");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("a b.txt"), "0123456789").unwrap();
    let path = format!("/v1/jobs/{id}/undeclared/runs/a%20b.txt");
    assert_eq!(stand.unix("GET", &path).send().ok(200).body, b"0123456789");
    let part = stand.unix("GET", &path).header("Range", "bytes=-3").send().ok(206);
    assert_eq!((part.body.as_slice(), part.headers["content-range"].as_str()), (&b"789"[..], "bytes 7-9/10"));
    stand.unix("GET", &format!("/v1/jobs/{id}/undeclared/nothing")).send().ok(404);
}

#[test]
fn the_server_tells_its_limits_is_ready_counts_and_takes_its_stop() {
    let stand = Stand::start();
    stand.submit();
    let status = stand.unix("GET", "/v1/server").send().ok(200).json();
    assert_eq!(status["protocol"], json!({ "min": 1, "max": 1 }));
    assert_eq!(status["jobs"]["queued"], 1);
    assert_eq!(status["limits"]["json_body_bytes"], 1 << 20);
    stand.tcp("GET", "/readyz").send().ok(200);
    let metrics = String::from_utf8(stand.unix("GET", "/metrics").send().ok(200).body).unwrap();
    for line in [
        "gpulayer_jobs{state=\"queued\"} 1",
        "gpulayer_commits_total 3",
        "gpulayer_log_bytes_total 5",
        "gpulayer_http_requests_total{route=\"/v1/jobs\",status=\"201\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    stand.unix("POST", "/v1/admin/stop").json(&json!({ "cancel_running": true })).send().ok(202);
    assert!(stand.shared.stops.lock()[0].cancel_running);
    stand.tcp("GET", "/readyz").send().ok(503);
    stand.tcp("GET", "/healthz").send().ok(200);
}

#[test]
fn a_reason_to_wait_names_the_one_job_that_holds_the_place() {
    let stand = Stand::start();
    let (holder, waits) = (stand.submit(), stand.submit());
    let held = "1 worker: needs 1 CPU, 0 free of 1 (held by 1 task)";
    let reason = || {
        let job = stand.unix("GET", &format!("/v1/jobs/{waits}")).send().ok(200).json();
        job["queue_reason"].as_str().unwrap().to_owned()
    };
    *stand.shared.reason.lock() = held.to_owned();
    assert_eq!(reason(), held, "nobody is known to hold it");
    let me = stand.unix("GET", "/v1/whoami").send().ok(200).json()["name"].as_str().unwrap().to_owned();
    let id = holder.to_string();
    for (at_most, said) in [(None, ""), (Some(90), ", up to 90 s"), (Some(2_341), ", up to 39 min 1 s")] {
        let at_most = at_most.map(gpulayer::contract::quantity::Seconds::new);
        *stand.shared.holder.lock() = Some(Holder { job_id: holder, at_most });
        let named = format!("(held by job …{} ({me}){said})", &id[id.len() - 6..]);
        assert_eq!(reason(), held.replace("(held by 1 task)", &named));
    }
    *stand.shared.reason.lock() = format!("{held} · 1 worker: draining");
    assert!(reason().contains("held by 1 task"), "one of several is not simple");
}
