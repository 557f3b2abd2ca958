//! Credentials over the API: made once, shown once, ended for good.

use serde_json::{Value, json};

use crate::desk::NEW_SESSION;
use crate::stand::{
    CLIENT, INSTANCE, JOIN, REVOKED, SUBMITTER, Stand, VIEWER, WORKER, eventually, true_spec,
};
use crate::wire::Answer;

const KEY: &str = "Idempotency-Key";

fn create(stand: &Stand, asked: &Value) -> Answer {
    stand.tcp("POST", "/v1/tokens").token(CLIENT).json(asked).send()
}

fn revoke(stand: &Stand, name: &str) -> Answer {
    stand.tcp("DELETE", &format!("/v1/tokens/{name}")).token(CLIENT).send()
}

#[test]
fn a_token_opens_doors_from_its_making_to_its_revocation() {
    let stand = Stand::start();
    let asked =
        json!({ "name": "ci", "role": "viewer", "projects": ["b", "a"], "user": "robot", "expires_s": 60 });
    let made = create(&stand, &asked).ok(201);
    assert_eq!(made.headers["cache-control"], "no-store");
    let made = made.json();
    let secret = made["secret"].as_str().unwrap();
    assert!(secret.starts_with("glc_") && secret.len() == 68, "{secret}");
    let who = || stand.tcp("GET", "/v1/whoami").token(secret).send();
    let me = who().ok(200).json();
    for (field, value) in [
        ("name", json!("ci")),
        ("user", json!("robot")),
        ("role", json!("viewer")),
        ("projects", json!(["a", "b"])),
        ("via", json!("token")),
    ] {
        assert_eq!(me[field], value, "{field}");
    }
    assert_eq!(me["expires_at"], made["expires_at"]);
    let list = stand.unix("GET", "/v1/tokens").send().ok(200).json();
    let listed = list["items"].as_array().unwrap().iter().find(|token| token["name"] == "ci").unwrap();
    assert_eq!((&listed["role"], &listed["created_by"]), (&json!("viewer"), &json!("test-client")));
    assert!(!list.to_string().contains(secret) && listed.get("secret").is_none());
    revoke(&stand, "ci").ok(204);
    assert_eq!(who().ok(401).code(), "token_revoked");
    assert_eq!(revoke(&stand, "ci").ok(404).code(), "not_found");
}

#[test]
fn a_secret_is_shown_once_whatever_is_repeated() {
    let stand = Stand::start();
    let request =
        stand.tcp("POST", "/v1/tokens").token(CLIENT).json(&json!({ "name": "x" })).header(KEY, "k");
    request.send().ok(201);
    let again = request.send().ok(409);
    assert_eq!(again.code(), "secret_already_shown");
    assert_eq!(again.headers["idempotency-replayed"], "true");
    let other = request.clone().json(&json!({ "name": "y" })).send().ok(422);
    assert_eq!(other.code(), "idempotency_key_reused");
    let gone = stand.tcp("DELETE", "/v1/tokens/x").token(CLIENT).header(KEY, "d");
    gone.send().ok(204);
    assert_eq!(gone.send().ok(204).headers["idempotency-replayed"], "true");
}

#[test]
fn of_two_makings_with_one_name_one_wins() {
    let stand = Stand::start();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let tries: Vec<_> =
            (0..8).map(|_| scope.spawn(|| create(&stand, &json!({ "name": "one" })).status)).collect();
        tries.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 201 | 409)), "{statuses:?}");
    assert_eq!(create(&stand, &json!({ "name": "one" })).ok(409).code(), "name_taken");
    revoke(&stand, "one").ok(204);
    create(&stand, &json!({ "name": "one" })).ok(201);
}

#[test]
fn faults_of_a_request_are_told_at_once_with_what_is_allowed() {
    let stand = Stand::start();
    let bad = json!({ "name": "a b", "projects": ["Nope"], "max_priority": 101, "nam": 1 });
    let refused = create(&stand, &bad).ok(422);
    assert_eq!(refused.pointers(), ["/name", "/projects/0", "/max_priority"]);
    let warned = create(&stand, &json!({ "nam": "x" })).ok(201).json();
    assert_eq!(warned["warnings"][0]["pointer"], "/nam");
    assert!(warned["name"].as_str().unwrap().starts_with("submitter-"));
    assert_eq!(create(&stand, &json!({ "role": "king" })).ok(422).pointers(), ["/role"]);
}

#[test]
fn the_last_admin_is_not_locked_out_from_afar() {
    let stand = Stand::start();
    let refused = revoke(&stand, "test-client").ok(409);
    assert_eq!(refused.code(), "last_admin");
    create(&stand, &json!({ "name": "second", "role": "admin" })).ok(201);
    revoke(&stand, "test-client").ok(204);
    assert_eq!(create(&stand, &json!({})).status, 401, "its own token is void at once");
    stand.unix("DELETE", "/v1/tokens/second").send().ok(204);
}

#[test]
fn what_is_parked_ends_when_its_token_does() {
    let stand = Stand::start();
    let secret =
        create(&stand, &json!({ "name": "reader", "role": "viewer", "projects": ["*"] })).ok(201).json();
    let secret = secret["secret"].as_str().unwrap();
    let id = stand.submit();
    let get = |path: &str| stand.tcp("GET", path).token(secret).header("Connection", "close");
    let show = get(&format!("/v1/jobs/{id}?wait_s=60")).open();
    let poll = get("/v1/events?wait_s=60").open();
    let mut stream = get(&format!("/v1/jobs/{id}/events")).header("Accept", "text/event-stream").open();
    eventually("all are parked", || stand.shared.watchers() >= 2);
    stand.shared.happened(id, gpulayer::contract::event::EventType::JobRunning);
    stream.until("job_running");
    let poll = poll.rest();
    assert!([200, 401].contains(&poll.status));
    revoke(&stand, "reader").ok(204);
    assert_eq!(show.rest().ok(401).code(), "token_revoked");
    let rest = String::from_utf8(stream.rest().body).unwrap();
    assert!(!rest.contains("event: end"), "cut, not ended: {rest}");
    assert_eq!(get("/v1/whoami").send().ok(401).code(), "token_revoked");
}

#[test]
fn a_revocation_stands_against_submissions_on_their_way() {
    let stand = Stand::start();
    let secret = create(&stand, &json!({ "name": "racer", "projects": ["p"] })).ok(201).json();
    let secret = secret["secret"].as_str().unwrap();
    let mut spec = true_spec();
    spec["project"] = json!("p");
    let revoked = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let racers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let late = revoked.load(std::sync::atomic::Ordering::SeqCst);
                        let answer = stand.tcp("POST", "/v1/jobs").token(secret).json(&spec).send();
                        match answer.status {
                            201 => assert!(!late, "accepted after the revocation was answered"),
                            401 => {
                                assert_eq!(answer.code(), "token_revoked");
                                break;
                            }
                            429 => break,
                            _ => panic!("{answer:?}"),
                        }
                    }
                })
            })
            .collect();
        revoke(&stand, "racer").ok(204);
        revoked.store(true, std::sync::atomic::Ordering::SeqCst);
        racers.into_iter().for_each(|racer| racer.join().unwrap());
    });
}

fn introduction(registration: &str) -> Value {
    json!({
        "name": "box", "machine_id": "m", "boot_id": "b", "incarnation": 1, "registration": registration,
        "capabilities": {
            "version": "0.1.0", "hostname": "box", "os": "linux", "arch": "x86_64", "cpus": 2,
            "memory_bytes": 1_000_000
        }
    })
}

#[test]
fn an_instance_token_registers_once_and_a_join_token_until_it_is_revoked() {
    let stand = Stand::start();
    let register = |token: &str, registration: &str| {
        let request = stand.tcp("POST", "/v1/workers/register").token(token);
        request.json(&introduction(registration)).send()
    };
    register(INSTANCE, "r1").ok(201);
    register(INSTANCE, "r1").ok(201);
    assert_eq!(register(INSTANCE, "r2").ok(401).code(), "token_used");
    register(JOIN, "r3").ok(201);
    register(JOIN, "r4").ok(201);
    revoke(&stand, "test-join").ok(204);
    assert_eq!(register(JOIN, "r5").ok(401).code(), "token_revoked");
    let beat = json!({ "seq": 1, "incarnation": 1, "tasks": [] });
    stand.tcp("POST", "/v1/worker/heartbeat").token(NEW_SESSION).json(&beat).send().ok(200);
}

#[test]
fn a_revoked_worker_hears_it_at_its_next_call() {
    let stand = Stand::start();
    let path = format!("/v1/workers/{WORKER}/revoke");
    assert_eq!(stand.tcp("POST", &path).token(SUBMITTER).send().status, 403);
    let revoke = stand.tcp("POST", &path).token(CLIENT).header(KEY, "r");
    assert_eq!(revoke.send().ok(200).json()["state"], "offline");
    let acquire = stand.worker("/v1/worker/acquire", &json!({}));
    assert_eq!(acquire.send().ok(401).code(), "session_revoked");
    let task = crate::stand::TASK;
    let logs = json!({ "epoch": 1, "first_n": 1, "records": [] });
    let logs = stand.worker(&format!("/v1/worker/tasks/{task}/logs"), &logs);
    assert_eq!(logs.send().ok(401).code(), "session_revoked");
    let beat = json!({ "seq": 1, "incarnation": 1, "tasks": [] });
    stand.worker("/v1/worker/heartbeat", &beat).send().ok(200);
}

#[test]
fn a_viewer_and_a_void_token_learn_what_it_would_take() {
    let stand = Stand::start();
    let refused = stand.tcp("POST", "/v1/jobs").token(VIEWER).json(&true_spec()).send().ok(403);
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains("role `submitter` or `admin`") && detail.contains("yours has role `viewer`"),
        "{detail}"
    );
    let void = stand.tcp("GET", "/v1/whoami").token(REVOKED).send().ok(401).json();
    assert!(void["detail"].as_str().unwrap().contains("`revoked` was revoked; ask for another"));
}
