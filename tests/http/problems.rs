//! Every refusal is `application/problem+json` from the one table, whatever went wrong and however early.

use serde_json::{Value, json};

use crate::stand::{Stand, WORKER, true_spec};

#[test]
fn a_problem_has_every_member_and_names_its_request() {
    let stand = Stand::start();
    let answer = stand.unix("GET", "/v1/jobs/job_00000000000000000000000001").send().ok(404);
    let problem = answer.json();
    assert_eq!(problem["type"], "https://gpulayer.dev/errors/not_found");
    assert_eq!(problem["status"], 404);
    assert_eq!(problem["code"], "not_found");
    assert_eq!(problem["retryable"], false);
    assert_eq!(problem["request_id"], answer.headers["x-request-id"].as_str());
    assert!(problem["detail"].as_str().unwrap().contains("job_00000000000000000000000001"));
    let good = stand.unix("GET", "/healthz").send().ok(200);
    assert_ne!(good.headers["x-request-id"], answer.headers["x-request-id"]);
    assert_eq!(good.headers["x-gpulayer-version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn paths_and_methods_that_are_not_there() {
    let stand = Stand::start();
    assert_eq!(stand.unix("GET", "/v1/nothing").send().ok(404).code(), "not_found");
    assert_eq!(stand.unix("GET", "/v1/jobs/not-an-id").send().ok(404).code(), "not_found");
    let answer = stand.unix("PUT", "/v1/jobs").send().ok(405);
    assert_eq!(answer.code(), "method_not_allowed");
    assert_eq!(answer.headers["allow"], "POST, GET");
    assert_eq!(stand.unix("GET", "/v1/artifacts/sha256/xyz").send().ok(404).code(), "not_found");
}

#[test]
fn bad_json_is_told_with_its_place() {
    let stand = Stand::start();
    let answer =
        stand.unix("POST", "/v1/jobs").body("application/json", "{\"name\":\n  oops}").send().ok(400);
    assert_eq!(answer.code(), "bad_json");
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("line 2 column 3"), "{detail}");
    assert_eq!(stand.unix("POST", "/v1/jobs").send().ok(400).code(), "bad_json");
}

#[test]
fn json_of_another_form_is_an_invalid_request() {
    let stand = Stand::start();
    let id = stand.submit();
    let cancel = format!("/v1/jobs/{id}/cancel");
    let answer = stand.unix("POST", &cancel).json(&json!({ "now": "yes" })).send().ok(422);
    assert_eq!(answer.code(), "invalid_request");
    for batch in [json!([]), json!({ "jobs": 1 }), json!({ "jobs": [] }), json!({ "jobs": [1], "x": 1 })] {
        let answer = stand.unix("POST", "/v1/jobs/batch").json(&batch).send().ok(422);
        assert!(matches!(answer.code().as_str(), "invalid_request" | "invalid_spec"), "{answer:?}");
    }
}

#[test]
fn every_fault_of_a_query_is_told() {
    let stand = Stand::start();
    let answer = stand.unix("GET", "/v1/jobs?state=gone&limit=0&limt=5&cursor=x").send().ok(422);
    assert_eq!(answer.code(), "invalid_request");
    assert_eq!(answer.pointers(), ["/query/state", "/query/cursor", "/query/limit", "/query/limt"]);
    let id = stand.submit();
    let answer = stand.unix("GET", &format!("/v1/jobs/{id}?wait_s=61")).send().ok(422);
    assert_eq!(answer.pointers(), ["/query/wait_s"]);
    for beyond in [
        "wait_s=60.00000000000001",
        "wait_s=-0.0001",
        "tail=9223372036854775808",
        "after=9223372036854775808",
    ] {
        let answer = stand.unix("GET", &format!("/v1/jobs/{id}/logs?{beyond}")).send().ok(422);
        assert_eq!(answer.pointers(), [format!("/query/{}", beyond.split('=').next().unwrap())], "{beyond}");
    }
}

#[test]
fn a_body_needs_its_content_type() {
    let stand = Stand::start();
    let text = true_spec().to_string();
    let answer = stand.unix("POST", "/v1/jobs").body("text/plain", text.clone()).send().ok(415);
    assert_eq!(answer.code(), "unsupported_media_type");
    stand.unix("POST", "/v1/jobs").body("application/json; charset=utf-8", text).send().ok(201);
    let put = format!("/v1/artifacts/sha256/{}", "a".repeat(64));
    stand.unix("PUT", &put).body("application/json", "x").send().ok(415);
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let stand = Stand::start();
    let huge = stand
        .unix("POST", "/v1/jobs")
        .header("Content-Type", "application/json")
        .header("Content-Length", &(100 << 20).to_string());
    assert_eq!(huge.send().ok(413).code(), "body_too_large");
    // Nothing announced: refused as soon as it is too much.
    let mut chunked = Vec::new();
    for _ in 0..40 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&[b' '; 0x10000]);
        chunked.extend_from_slice(b"\r\n");
    }
    let endless = stand
        .unix("POST", "/v1/jobs")
        .header("Transfer-Encoding", "chunked")
        .body("application/json", chunked)
        .header("Content-Length", "");
    let answer = endless.send();
    assert!(matches!(answer.status, 413 | 400), "{answer:?}");
    stand.unix("GET", "/healthz").send().ok(200);
}

#[test]
fn missing_artifacts_and_repeated_keys_are_told_with_the_other_faults() {
    let stand = Stand::start();
    let absent = format!("artifact://sha256/{}", "a".repeat(64));
    let spec = format!(
        r#"{{"workload": {{"command": {{"argv": ["true"], "argv": ["false"]}}}}, "priority": 1000,
            "source": "{absent}", "inputs": [{{"artifact": "{absent}", "path": "in"}}]}}"#
    );
    let answer = stand.unix("POST", "/v1/jobs").body("application/json", spec.clone()).send().ok(422);
    assert_eq!(answer.code(), "invalid_spec");
    let told = ["/workload/command/argv", "/priority", "/source", "/inputs/0/artifact"];
    assert_eq!(answer.pointers(), told);
    assert_eq!(answer.json()["errors"][0]["code"], "duplicate_key");
    let batch = format!(r#"{{"jobs": [{}, {spec}]}}"#, true_spec());
    let answer = stand.unix("POST", "/v1/jobs/batch").body("application/json", batch).send().ok(422);
    assert_eq!(answer.pointers(), told.map(|pointer| format!("/jobs/1{pointer}")));
    let twice = format!(r#"{{"jobs": [], "jobs": [{}]}}"#, true_spec());
    let answer = stand.unix("POST", "/v1/jobs/batch").body("application/json", twice).send().ok(422);
    assert_eq!(answer.pointers(), ["/jobs"]);
}

#[test]
fn bodies_other_than_specs_are_read_as_strictly() {
    let stand = Stand::start();
    let id = stand.submit();
    let cancel = || stand.unix("POST", &format!("/v1/jobs/{id}/cancel"));
    let missing = || stand.unix("POST", "/v1/artifacts/missing");
    let stop = || stand.unix("POST", "/v1/admin/stop");
    for request in [cancel(), missing(), stop(), stand.worker("/v1/worker/report", &json!({}))] {
        for body in ["[true]", "[]", " [[]]", "1", "null"] {
            let answer = request.clone().body("application/json", body).send().ok(422);
            assert_eq!((answer.code().as_str(), answer.pointers()), ("invalid_request", vec![String::new()]));
        }
    }
    for (request, body, pointer) in [
        (cancel(), r#"{"now": "yes"}"#, "/now"),
        (cancel(), r#"{"now": true, "now": false}"#, "/now"),
        (stop(), r#"{"cancel_running": 1}"#, "/cancel_running"),
        (missing(), r#"{"artifacts": ["x"]}"#, "/artifacts/0"),
        (stand.worker("/v1/worker/acquire", &json!({})), r#"{"free": {"cpus": "x"}}"#, "/free/cpus"),
    ] {
        let answer = request.body("application/json", body).send().ok(422);
        assert_eq!(answer.pointers(), [pointer], "{body}");
    }
    let strict = cancel().json(&json!({ "noww": true })).header("Prefer", "handling=strict").send().ok(422);
    assert_eq!(strict.pointers(), ["/noww"]);
    assert_eq!(stand.unix("GET", &format!("/v1/jobs/{id}")).send().json()["state"], "queued");
    let lenient = cancel().json(&json!({ "noww": true, "now": null })).send().ok(200).json();
    assert_eq!(lenient["warnings"][0]["pointer"], "/noww");
    assert!(lenient["warnings"][0]["detail"].as_str().unwrap().contains("`now`"), "{lenient}");
}

/// An object of this schema of the document: `given`, and each field that need not be there `null`.
fn with_nulls(schema: &str, mut given: Value) -> Value {
    let document: Value = serde_json::from_str(&gpulayer::http::openapi_document()).unwrap();
    let schema = &document["components"]["schemas"][schema];
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, field) in schema["properties"].as_object().unwrap() {
        if given.get(name).is_none() && !required.contains(&json!(name)) {
            let kinds = [&field["type"], &field["oneOf"]].map(Value::to_string).concat();
            assert!(
                kinds.contains("\"null\""),
                "{name} may be null, and the document does not say so: {field}"
            );
            given[name] = Value::Null;
        }
    }
    given
}

#[test]
fn null_is_absent_in_all_that_clients_send_and_the_document_says_so() {
    let stand = Stand::start();
    let id = stand.submit();
    let mut spec = true_spec();
    let gpus = with_nulls("GpuRequest", json!({ "count": 1 }));
    spec["resources"] = with_nulls("Resources", json!({ "gpus": gpus }));
    spec["retry"] = with_nulls("Retry", json!({}));
    spec["outputs"] = json!([with_nulls("Output", json!({ "path": "a" }))]);
    spec["depends_on"] = json!([with_nulls("Dependency", json!({ "job": id }))]);
    spec["array"] = with_nulls("Array", json!({ "count": 2 }));
    spec["python"] = with_nulls("Python", json!({ "requirements": ["six"] }));
    spec["workload"]["command"]["cwd"] = Value::Null;
    let from = json!({ "path": "b", "from": { "job": id, "output": "a" }, "mode": null, "unpack": null });
    spec["inputs"] = json!([from]);
    let spec = with_nulls("JobSpec", spec);
    let called =
        with_nulls("Function", json!({ "serializer": "json", "payload": "{}", "entrypoint": "a:b" }));
    let function = json!({ "workload": { "function": called } });
    for (path, body, status) in [
        ("/v1/jobs", spec.clone(), 201),
        ("/v1/jobs", function, 201),
        ("/v1/explain", with_nulls("WhatIf", json!({ "spec": spec })), 200),
        (&format!("/v1/jobs/{id}/cancel"), with_nulls("CancelRequest", json!({})), 200),
        (&format!("/v1/workers/{WORKER}/drain"), with_nulls("DrainRequest", json!({})), 200),
        ("/v1/tokens", with_nulls("CreateToken", json!({})), 201),
        ("/v1/admin/stop", with_nulls("StopRequest", json!({})), 202),
    ] {
        stand.unix("POST", path).json(&body).send().ok(status);
    }
}

#[test]
fn calls_without_parameters_take_none() {
    let stand = Stand::start();
    let id = stand.submit();
    for (method, path) in [
        ("GET", format!("/v1/jobs/{id}/tasks")),
        ("GET", format!("/v1/jobs/{id}/outputs")),
        ("POST", format!("/v1/jobs/{id}/cancel")),
        ("POST", format!("/v1/jobs/{id}/retry")),
        ("DELETE", format!("/v1/jobs/{id}")),
        ("POST", "/v1/jobs".to_owned()),
        ("GET", "/v1/server".to_owned()),
        ("GET", "/v1/whoami".to_owned()),
        ("GET", "/v1/workers".to_owned()),
    ] {
        let answer = stand.unix(method, &format!("{path}?wait=1")).send().ok(422);
        assert_eq!(answer.pointers(), ["/query/wait"], "{method} {path}");
    }
}

#[test]
fn names_that_would_mislead_commands_or_leave_a_folder_are_faults() {
    let stand = Stand::start();
    let pointers = |field: &str, value: serde_json::Value| {
        let mut spec = true_spec();
        spec[field] = value;
        stand.unix("POST", "/v1/jobs").json(&spec).send().ok(422).pointers()
    };
    for name in ["@last", "job_00000000000000000000000001"] {
        assert_eq!(pointers("name", json!(name)), ["/name"]);
    }
    for name in ["a/../../b", "..", "/etc", "a//b", "a/", "./a", "a\nb"] {
        assert_eq!(
            pointers("outputs", json!([{ "path": "x", "name": name }])),
            ["/outputs/0/name"],
            "{name}"
        );
    }
    assert_eq!(pointers("outputs", json!([{ "path": "a\nb" }])), ["/outputs/0/path"]);
}

#[test]
fn probes_answer_without_a_body_too() {
    let stand = Stand::start();
    for path in ["/healthz", "/readyz"] {
        assert!(stand.tcp("HEAD", path).send().ok(200).body.is_empty());
    }
}
