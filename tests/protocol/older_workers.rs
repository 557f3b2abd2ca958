//! Older workers with this server: what they said is said again, and each answer has all that they read in theirs.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::house::House;
use crate::recording::{Names, RECORDED, conversation, missed};
use crate::wire::{Answer, Place, Request};

const WHAT_TO_DO: &str = "A worker of that version would not understand this server any more: keep what it reads, or make \
    this a new protocol version (docs/PROTOCOL.md, Changes)";

/// Where the house's daemon is reached by workers, and by its own user.
struct Server {
    tcp: Place,
    unix: Place,
    join_token: String,
}

impl Server {
    fn of(house: &House) -> Self {
        Self {
            tcp: Place::Tcp(SocketAddr::from(([127, 0, 0, 1], house.port()))),
            unix: Place::Unix(house.state().join("gpulayer.sock")),
            join_token: std::fs::read_to_string(house.home().join("join-token")).unwrap().trim().to_owned(),
        }
    }

    fn say(&self, entry: &Value, names: &Names) -> Answer {
        let spoken = entry["call"].as_str().or(entry["client"].as_str()).unwrap();
        let (method, path) = spoken.split_once(' ').unwrap();
        let place = if entry["client"].is_string() { &self.unix } else { &self.tcp };
        let mut request = Request::new(place, method, &names.text(path));
        match entry["credential"].as_str() {
            Some("join") => request = request.header("Authorization", &format!("Bearer {}", self.join_token)),
            Some("session") => {
                request = request.header("Authorization", &format!("Bearer {}", names.text("gls_session")));
            }
            _ => {}
        }
        for (name, value) in entry["headers"].as_object().into_iter().flatten() {
            request = request.header(name, value.as_str().unwrap());
        }
        let body = names.translated(&entry["body"]);
        match &body["bytes"] {
            Value::String(bytes) => request.body("application/octet-stream", bytes.clone()).send(),
            _ if body.is_null() => request.send(),
            _ => request.json(&without_waiting_in_vain(entry, body)).send(),
        }
    }
}

/// A poll that brought no task ended for another reason than its time; it need not be waited out for that.
fn without_waiting_in_vain(entry: &Value, mut body: Value) -> Value {
    let brought = entry["answer"]["assignments"].as_array().is_none_or(|tasks| !tasks.is_empty());
    if entry["call"] == "POST /v1/worker/acquire" && !brought {
        body["wait_s"] = json!(0);
    }
    body
}

fn shown(answer: &Answer) -> Value {
    match serde_json::from_slice(&answer.body) {
        Ok(json) => json,
        Err(_) if answer.body.is_empty() => Value::Null,
        Err(_) => json!({ "bytes": String::from_utf8_lossy(&answer.body) }),
    }
}

#[actix_rt::test]
async fn what_older_workers_said_is_answered_as_they_understand_it() {
    for version in RECORDED {
        let house = House::new();
        let daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
        let server = Server::of(&house);
        let mut names = Names::default();
        for (index, entry) in conversation(version).iter().enumerate() {
            if entry["note"].is_string() {
                continue;
            }
            let answer = server.say(entry, &names);
            let now = shown(&answer);
            names.learn(&entry["answer"], &now);
            let mut found = Vec::new();
            missed(&entry["answer"], &now, "", &mut found);
            if entry["status"] != answer.status {
                found.push(format!("the status was {} and is {}", entry["status"], answer.status));
            }
            assert!(
                found.is_empty(),
                "{version}, line {}: {} {}\n{}\nanswer: {now}\n{WHAT_TO_DO}",
                index + 1,
                entry["call"],
                entry["client"],
                found.join("\n")
            );
        }
        drop(daemon);
    }
}

#[actix_rt::test]
async fn a_protocol_that_is_not_spoken_is_refused_with_what_is() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let server = Server::of(&house);
    let conversation = conversation("spine");
    let register = conversation.iter().find(|entry| entry["call"] == "POST /v1/workers/register").unwrap();
    for version in ["0", "2", "99999999999"] {
        let mut newer = register.clone();
        newer["headers"]["x-gpulayer-protocol"] = json!(version);
        let answer = server.say(&newer, &Names::default()).ok(426);
        let problem = answer.json();
        assert_eq!(problem["code"], "protocol_version");
        assert_eq!(problem["protocol"], json!({"min": 1, "max": 1}));
    }
}
