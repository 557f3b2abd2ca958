//! This worker with older servers: a stub answers in the recorded words alone, and the worker runs its tasks.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulayer::client::http_channel::HttpChannel;
use gpulayer::client::{Endpoint, Trust};
use gpulayer::contract::worker::WorkerKind;
use gpulayer::worker::{Farewell, Worker, WorkerEnd, WorkerHandle, WorkerOptions};
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use crate::recording::{Entry, RECORDED, conversation};

/// Nothing takes longer, unless it is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that says what one of that version said.
struct OlderServer {
    recorded: Vec<Entry>,
    heard: Mutex<Heard>,
    changed: Condvar,
}

#[derive(Default)]
struct Heard {
    calls: Vec<String>,
    to_hand_out: Vec<Value>,
    to_cancel: Vec<Value>,
    items: Vec<Value>,
    lines: BTreeMap<String, Vec<String>>,
    uploads: Vec<String>,
}

struct Asked {
    call: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl OlderServer {
    fn start(version: &str) -> (Arc<Self>, SocketAddr) {
        let server = Arc::new(Self {
            recorded: conversation(version),
            heard: Mutex::default(),
            changed: Condvar::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = Arc::clone(&server);
        // Both end with the test's process.
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let server = Arc::clone(&accepting);
                std::thread::spawn(move || server.serve(socket));
            }
        });
        (server, address)
    }

    fn serve(&self, socket: TcpStream) {
        let mut reader = BufReader::new(socket.try_clone().unwrap());
        while let Some(asked) = read_request(&mut reader) {
            let (status, body) = self.answer(&asked);
            let head = format!(
                "HTTP/1.1 {status} X\r\nx-gpulayer-version: 0.1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            if (&socket).write_all(head.as_bytes()).and_then(|()| (&socket).write_all(&body)).is_err() {
                return;
            }
        }
    }

    /// The first recorded answer of this call that `fits`.
    fn said(&self, call: &str, fits: impl Fn(&Entry) -> bool) -> Option<(u64, Value)> {
        let same = |entry: &&Entry| {
            let recorded = entry["call"].as_str().unwrap_or_default();
            let alike = recorded == call || call.ends_with('/') && recorded.starts_with(call);
            alike && fits(entry)
        };
        let entry = self.recorded.iter().find(same)?;
        Some((entry["status"].as_u64()?, entry["answer"].clone()))
    }

    fn answer(&self, asked: &Asked) -> (u64, Vec<u8>) {
        assert_eq!(asked.headers.get("x-gpulayer-protocol").map(String::as_str), Some("1"), "{}", asked.call);
        let body: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
        self.tell(|heard| heard.calls.push(asked.call.clone()));
        let found = match asked.call.as_str() {
            "POST /v1/worker/acquire" => self.acquire(&body),
            "POST /v1/worker/heartbeat" => {
                self.said(&asked.call, |_| true).map(|answer| self.with_orders(answer))
            }
            "POST /v1/worker/report" => self.report(&body),
            call if call.ends_with("/logs") => self.logs(&asked.path, &body),
            "POST /v1/artifacts/missing" => self.said(&asked.call, |_| true).map(|(status, mut answer)| {
                answer["missing"] = body["artifacts"].clone();
                (status, answer)
            }),
            call if call.starts_with("PUT ") => {
                self.tell(|heard| heard.uploads.push(String::from_utf8_lossy(&asked.body).into_owned()));
                self.said("PUT /v1/artifacts/sha256/", |_| true).map(|(status, mut answer)| {
                    answer["received_bytes"] = json!(asked.body.len());
                    (status, answer)
                })
            }
            call => self.said(call, |_| true),
        };
        match found {
            Some((204, _)) => (204, Vec::new()),
            Some((status, answer)) => match &answer["bytes"] {
                Value::String(bytes) => (status, bytes.clone().into_bytes()),
                _ => (status, answer.to_string().into_bytes()),
            },
            // It had no such call.
            None => {
                let problem = json!({
                    "type": "https://gpulayer.dev/errors/not_found", "title": "There is no such thing.", "status": 404,
                    "detail": "there is no such call", "code": "not_found", "retryable": false, "request_id": "r",
                });
                (404, problem.to_string().into_bytes())
            }
        }
    }

    fn with_orders(&self, (status, mut answer): (u64, Value)) -> (u64, Value) {
        let to_cancel = self.heard.lock().to_cancel.clone();
        if !to_cancel.is_empty() {
            answer["cancel_task_ids"] = to_cancel.into();
        }
        (status, answer)
    }

    fn acquire(&self, body: &Value) -> Option<(u64, Value)> {
        let until = Instant::now() + Duration::from_secs_f64(body["wait_s"].as_f64().unwrap().min(1.0));
        let mut heard = self.heard.lock();
        while heard.to_hand_out.is_empty() && !self.changed.wait_until(&mut heard, until).timed_out() {}
        let assignments = std::mem::take(&mut heard.to_hand_out);
        drop(heard);
        let (status, mut answer) = self.said("POST /v1/worker/acquire", |_| true)?;
        answer["assignments"] = assignments.into();
        Some(self.with_orders((status, answer)))
    }

    fn report(&self, body: &Value) -> Option<(u64, Value)> {
        let call = "POST /v1/worker/report";
        let (status, mut answer) = self.said(call, |_| true)?;
        let items = body["items"].as_array().unwrap().clone();
        let result_of = |item: &Value| {
            let alike = |entry: &Entry| {
                let recorded = &entry["body"]["items"][0];
                recorded["kind"] == item["kind"] && recorded["end"]["reason"] == item["end"]["reason"]
            };
            // Kinds it did not know would have cost the whole report.
            let (_, recorded) =
                self.said(call, alike).unwrap_or_else(|| panic!("it knew nothing like {item}"));
            recorded["results"][0].clone()
        };
        answer["results"] = items.iter().map(result_of).collect();
        self.tell(|heard| {
            heard.to_cancel.retain(|task| {
                !items.iter().any(|item| item["kind"] == "finish" && item["task_id"] == *task)
            });
            heard.items.extend(items);
        });
        Some(self.with_orders((status, answer)))
    }

    fn logs(&self, path: &str, body: &Value) -> Option<(u64, Value)> {
        let task = path.split('/').nth(4)?.to_owned();
        let next_n = self.tell(|heard| {
            let lines = heard.lines.entry(task).or_default();
            let known = lines.len() as u64 + 1 - body["first_n"].as_u64().unwrap();
            let records = body["records"].as_array().unwrap().iter().skip(known as usize);
            lines.extend(records.map(|record| record["text"].as_str().unwrap().to_owned()));
            lines.len() + 1
        });
        let recorded = self
            .recorded
            .iter()
            .find(|entry| entry["call"].as_str().is_some_and(|call| call.ends_with("/logs")))?;
        let mut answer = recorded["answer"].clone();
        answer["next_n"] = json!(next_n);
        Some((recorded["status"].as_u64()?, answer))
    }

    fn tell<T>(&self, change: impl FnOnce(&mut Heard) -> T) -> T {
        let changed = change(&mut self.heard.lock());
        self.changed.notify_all();
        changed
    }

    fn until<T>(&self, what: &str, mut look: impl FnMut(&Heard) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut heard = self.heard.lock();
        loop {
            if let Some(found) = look(&heard) {
                return found;
            }
            let late = self.changed.wait_until(&mut heard, deadline).timed_out();
            assert!(!late, "waited in vain for {what}; heard {:?} {:?}", heard.calls, heard.items);
        }
    }

    /// The assignment whose job runs this, as it was recorded.
    fn assignment(&self, shell: &str) -> Value {
        let assignments = self.recorded.iter().filter_map(|entry| entry["answer"]["assignments"].as_array());
        let of_shell = |assignment: &&Value| {
            let text = assignment["spec"]["workload"]["command"]["shell"].as_str();
            text.is_some_and(|text| text.starts_with(shell))
        };
        assignments.flatten().find(of_shell).unwrap_or_else(|| panic!("no job `{shell}`")).clone()
    }

    fn end_of(&self, task: &Value) -> Value {
        self.until("a finish", |heard| {
            let finish = |item: &&Value| item["kind"] == "finish" && item["task_id"] == *task;
            heard.items.iter().find(finish).cloned()
        })
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let (method, rest) = line.split_once(' ')?;
    let (path, _) = rest.split_once(' ')?;
    let (call, path) = (format!("{method} {path}"), path.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { call, path, headers, body })
}

fn start_worker(folder: &std::path::Path, address: SocketAddr) -> WorkerHandle {
    let endpoint = Endpoint::parse(&format!("http://{address}")).unwrap();
    let channel = HttpChannel::new(endpoint, Trust::default(), "glj_join").unwrap();
    let options = WorkerOptions {
        shim_binary: Some(env!("CARGO_BIN_EXE_gpulayer-worker").into()),
        ..WorkerOptions::new(folder, "box", WorkerKind::Remote)
    };
    Worker::start(options, Arc::new(channel)).unwrap()
}

#[test]
fn a_worker_runs_the_tasks_of_older_servers() {
    for version in RECORDED {
        let (server, address) = OlderServer::start(version);
        let home = tempfile::tempdir().unwrap();
        let worker = start_worker(home.path(), address);
        let tasks = ["cat in.txt", "exit 3", "echo up; sleep"].map(|shell| server.assignment(shell));
        server.tell(|heard| heard.to_hand_out = tasks.to_vec());
        let [copies, fails, sleeps] = tasks.map(|assignment| assignment["task_id"].clone());
        let copied = server.end_of(&copies);
        assert_eq!(copied["end"]["reason"], "completed", "{copied}");
        assert_eq!(copied["outputs"][0]["path"], "out.txt", "{copied}");
        assert_eq!(server.end_of(&fails)["end"]["exit_code"], 3);
        let line =
            |heard: &Heard| heard.lines.get(sleeps.as_str()?)?.contains(&"up".to_owned()).then_some(());
        server.until("its first line", line);
        server.tell(|heard| heard.to_cancel.push(sleeps.clone()));
        assert_eq!(server.end_of(&sleeps)["end"]["reason"], "cancelled");
        server.tell(|heard| {
            assert_eq!(heard.uploads, ["result\n"]);
            let mut lines = heard.lines[copies.as_str().unwrap()].clone();
            lines.sort();
            assert_eq!(lines, ["oops", "some data"]);
        });
        assert_eq!(worker.stop(Farewell::Silent).unwrap(), WorkerEnd::Stopped);
        let worker = start_worker(home.path(), address);
        let resumed =
            |heard: &Heard| heard.calls.contains(&"POST /v1/worker/resume".to_owned()).then_some(());
        server.until("the worker to come back", resumed);
        assert_eq!(worker.stop(Farewell::Silent).unwrap(), WorkerEnd::Stopped);
    }
}
