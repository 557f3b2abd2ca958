//! A secret goes to the program and nowhere else: looked for in every form, in every file, answer and process.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState};
use serde_json::{Value, json};

use crate::house::{House, binary, eventually};

const SECRET: &str = "s3cr3t/Value+with=signs&more";

/// What must not be found: the value and its beginning, in base64 at each place within a longer text, quoted for a
/// URL, in hex.
const FORMS: [&str; 8] = [
    SECRET,
    "s3cr3t/Value",
    "czNjcjN0L1ZhbHVlK3dpdGg9c2lnbnMmbW9yZ",
    "MzY3IzdC9WYWx1ZSt3aXRoPXNpZ25zJm1vcm",
    "zM2NyM3QvVmFsdWUrd2l0aD1zaWducyZtb3J",
    "s3cr3t%2FValue",
    "s3cr3t%2fValue",
    "7333637233742f56616c7565",
];

/// Prints its secret in every way; the middle of one only after a file tells it to go on.
const LEAKY: &str = r#"
import base64, os, time, urllib.parse
s = os.environ["API_KEY"]
assert len(s) == 28
print("plain", s, flush=True)
print("b64", base64.b64encode(s.encode()).decode(), flush=True)
print("b64 inside", base64.b64encode(("x" + s).encode()).decode(), base64.b64encode(("xy" + s + "z").encode()).decode(), flush=True)
print("url", urllib.parse.quote(s, safe=""), urllib.parse.quote(s), "hex", s.encode().hex(), flush=True)
os.makedirs("out", exist_ok=True)
for name in ["out/" + s.replace("/", "%2F"), "left-" + s.encode().hex()]:
    open(name, "w").write("harmless")
print("half way", flush=True)
os.write(1, b"split " + s[:14].encode())
while not os.path.exists("go"):
    time.sleep(0.02)
os.write(1, s[14:].encode() + b"\n")
raise RuntimeError(f"could not log in with {s}")
"#;

/// A daemon that logs all it can.
struct Talkative(Child);

impl Talkative {
    async fn start(house: &House) -> Self {
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(house.path().join("log")).unwrap();
        let mut command = house.command(&["server", "start", "--no-tcp"]);
        command.env("GPULAYER_LOG", "trace").stderr(log.try_clone().unwrap()).stdout(log);
        let child = command.spawn().unwrap();
        let client = house.client();
        eventually("the daemon to answer", async || client.get::<Value>("/v1/server").await.ok()).await;
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Talkative {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn house_with(table: &str) -> House {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    write_table(&house, table);
    house
}

fn write_table(house: &House, table: &str) {
    let file = house.home().join("config.toml");
    std::fs::write(&file, table).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn leaky() -> Value {
    json!({
        "workload": {"command": {"argv": ["python3", "-c", LEAKY]}},
        "secrets": [{"name": "API_KEY", "ref": "name:KEY_OF_WORKER"}],
        "outputs": [{"path": "out/*"}],
    })
}

fn refuse_forms(place: &str, bytes: &[u8]) {
    static SEARCH: LazyLock<AhoCorasick> = LazyLock::new(|| AhoCorasick::new(FORMS).unwrap());
    if let Some(found) = SEARCH.find(bytes) {
        panic!("{place} holds {} at {}", FORMS[found.pattern().as_usize()], found.start());
    }
}

/// Every file of the house but the one that is meant to hold it. Names in workspaces are the program's own.
fn search_files(folder: &Path, except: &Path) -> usize {
    let mut searched = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            searched += search_files(&path, except);
        } else if kind.is_file() && path != except {
            // It may have gone meanwhile.
            if let Ok(bytes) = std::fs::read(&path) {
                refuse_forms(&path.display().to_string(), &bytes);
                searched += 1;
            }
        }
    }
    searched
}

/// Daemon, worker and shims: all are this binary. Those of tests that run beside this one are searched too, so none
/// puts `SECRET` into an environment.
fn search_processes() -> usize {
    let own = binary("gpulayer").canonicalize().unwrap();
    let mut searched = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let is_own = || std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == own);
        if is_own() {
            for file in ["cmdline", "environ"] {
                let bytes = std::fs::read(entry.path().join(file)).unwrap_or_default();
                // One that a shim just started may have become its program meanwhile.
                if is_own() {
                    refuse_forms(&format!("{}/{file}", entry.path().display()), &bytes);
                }
            }
            searched += 1;
        }
    }
    searched
}

/// An answer as it goes over the socket, its head included.
fn answer(house: &House, path: &str) -> Vec<u8> {
    let mut socket = UnixStream::connect(house.state().join("gpulayer.sock")).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    assert!(bytes.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&bytes));
    bytes
}

fn search_answers(house: &House, id: JobId) {
    let of_job =
        ["", "/tasks", "/events", "/logs?limit=500", "/outputs"].map(|rest| format!("/v1/jobs/{id}{rest}"));
    let others = ["/v1/jobs", "/v1/events", "/v1/workers", "/v1/server", "/metrics"].map(str::to_owned);
    for path in of_job.into_iter().chain(others) {
        refuse_forms(&path, &answer(house, &path));
    }
}

fn search_all(house: &House, id: JobId) {
    let files = search_files(house.path(), &house.home().join("config.toml"));
    assert!(files > 5, "{files} files looked through");
    search_answers(house, id);
}

fn workspace(house: &House) -> PathBuf {
    let tasks = std::fs::read_dir(house.state().join("worker/tasks")).unwrap();
    tasks.map(|entry| entry.unwrap().path().join("workspace")).find(|path| path.exists()).unwrap()
}

#[actix_rt::test]
async fn a_program_that_leaks_its_secret_in_every_way_leaks_it_nowhere_even_through_a_kill_of_the_daemon() {
    let house = house_with(&format!("[secrets]\nKEY_OF_WORKER = \"{SECRET}\"\n"));
    let daemon = Talkative::start(&house).await;
    let id = house.submit(&leaky()).await.id;
    house.logged(id, "half way").await;
    assert!(search_processes() >= 2, "the daemon and a shim");
    search_all(&house, id);

    daemon.kill();
    let files = search_files(house.path(), &house.home().join("config.toml"));
    assert!(files > 5 && search_processes() >= 1);
    std::fs::write(workspace(&house).join("go"), "").unwrap();
    let _daemon = Talkative::start(&house).await;
    let job = house.end(id).await;
    assert_eq!(job.state, JobState::Failed, "{job:?}");
    let end = job.end.as_ref().unwrap();
    assert_eq!((end.reason, end.exit_code), (EndReason::ExitNonzero, Some(1)));
    let log = house.log(id).await;
    for line in ["plain [secret API_KEY]", "split [secret API_KEY]"] {
        assert!(log.iter().any(|found| found == line), "{line}: {log:#?}");
    }
    assert!(log.last().unwrap().ends_with("could not log in with [secret API_KEY]"), "{log:#?}");
    assert_eq!(job.outputs.len(), 1);
    assert_eq!(job.outputs[0].path, "out/[secret API_KEY]");
    search_all(&house, id);
    let shown = house.run(&["show", &id.to_string()]);
    refuse_forms("show", &[shown.stdout, shown.stderr].concat());
}

#[actix_rt::test]
async fn a_job_waits_for_a_worker_that_has_its_secret_and_says_so() {
    let house = house_with("");
    let _daemon = house.daemon().await;
    let mut spec = leaky();
    spec["workload"] = json!({"command": {"shell": "echo ${#API_KEY}"}});
    spec["outputs"] = json!([]);
    let id = house.submit(&spec).await.id;
    eventually("the reason", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{id}")).await.unwrap();
        job.queue_reason.filter(|reason| reason.contains("needs secret KEY_OF_WORKER"))
    })
    .await;
    write_table(&house, &format!("[secrets]\nKEY_OF_WORKER = \"{SECRET}\"\n"));
    assert_eq!(house.end(id).await.state, JobState::Succeeded);
    assert_eq!(house.log(id).await, ["28"]);
}

#[actix_rt::test]
async fn a_secret_that_cannot_be_read_ends_the_job_once_and_says_what_to_do() {
    let house = house_with("[secrets]\nKEY_OF_WORKER = \"hunter2\"\n");
    let _daemon = house.daemon().await;
    let mut spec = leaky();
    spec["secrets"] = json!([
        {"name": "API_KEY", "ref": "name:KEY_OF_WORKER"}, {"name": "B", "ref": "env:NO_SUCH_VARIABLE"},
        {"name": "C", "ref": "file:/no/such/file"},
    ]);
    let job = house.end(house.submit(&spec).await.id).await;
    let end = job.end.unwrap();
    assert_eq!((end.reason, job.attempt), (EndReason::PrepareFailed, 1));
    let detail = end.detail.unwrap();
    for part in
        ["API_KEY (name:KEY_OF_WORKER)", "shorter than 8 bytes", "B (env:NO_SUCH_VARIABLE)", "/no/such/file"]
    {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    assert!(!detail.contains("hunter2"));
}

#[test]
fn the_own_daemon_takes_variables_of_the_shell_that_started_it_and_run_warns_of_keys_in_env() {
    let house = House::new();
    let args = [
        "run",
        "--source",
        "none",
        "--secret",
        "API_KEY=env:MY_KEY",
        "--env",
        "HF_TOKEN=hf_0123456789abcdef",
    ];
    let words = ["--shell", "test ${#API_KEY} = 12 && echo $API_KEY"];
    let mut run = house.command(&[&args[..], &words].concat());
    // Not the value that another test looks for in the environment of every process of ours.
    let run = run.env("MY_KEY", "hunter2/more").current_dir(house.path()).output().unwrap();
    let remarks = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&run.stdout), "[secret API_KEY]\n", "{remarks}");
    assert!(remarks.contains("HF_TOKEN") && remarks.contains("--secret HF_TOKEN=name:HF_TOKEN"), "{remarks}");
    assert!(!remarks.contains("hf_0123"), "{remarks}");
    let dry = house.run(&["run", "--dry-run", "--secret", "A=name:B", "--", "true"]);
    assert!(String::from_utf8_lossy(&dry.stdout).contains("name:B"));
    assert!(house.run(&["down", "--yes"]).status.success());
}

/// Functions that let their secret out with what they raise, or return it.
const LEAKY_FUNCTIONS: &str = r#"
import base64, os
def raises(length=0):
    s = os.environ["API_KEY"]
    coded = base64.b64encode(s.encode()).decode()
    try:
        open(s)
    except OSError as fault:
        raise RuntimeError(f"no login with {s} or {coded}", "x" * length) from fault
def keeps():
    fault = KeyError("harmless")
    fault.of = os.environ["API_KEY"].encode()
    raise fault
def other():
    raise LookupError("harmless")
def returns():
    return os.environ["API_KEY"]
"#;

#[actix_rt::test]
async fn what_a_function_raises_holds_no_secret_and_what_it_returns_is_its_own() {
    let house = house_with(&format!("[secrets]\nKEY_OF_WORKER = \"{SECRET}\"\n"));
    let _daemon = house.daemon().await;
    let module = house.path().join("leaky.py");
    std::fs::write(&module, LEAKY_FUNCTIONS).unwrap();
    let put = house.run(&["artifact", "put", module.to_str().unwrap()]);
    let address = String::from_utf8(put.stdout).unwrap().trim().to_owned();
    let call = |name: &str, payload: Value| {
        json!({
            "workload": {"function": {
                "serializer": "json", "entrypoint": format!("leaky:{name}"), "payload": payload.to_string()}},
            "inputs": [{"artifact": address, "path": "leaky.py"}],
            "secrets": [{"name": "API_KEY", "ref": "name:KEY_OF_WORKER"}],
        })
    };
    let run = async |spec: Value| house.end(house.submit(&spec).await.id).await;
    let inline = |job: &Job| -> Value {
        serde_json::from_str(job.result.as_ref().unwrap().inline.as_ref().unwrap().get()).unwrap()
    };

    let raised = run(call("raises", json!({}))).await;
    let told = inline(&raised);
    assert_eq!(told["message"].as_str().unwrap().matches("[secret API_KEY]").count(), 2, "{told}");
    let traceback = told["traceback"].as_str().unwrap();
    assert!(traceback.contains("No such file or directory: '[secret API_KEY]'"), "{traceback}");
    assert_eq!((&told["type"], &told["pickle"]), (&json!("RuntimeError"), &Value::Null));
    let kept = inline(&run(call("keeps", json!({}))).await);
    assert_eq!((&kept["message"], &kept["pickle"]), (&json!("'harmless'"), &Value::Null));
    let other = inline(&run(call("other", json!({}))).await);
    assert!(other["pickle"].is_string(), "{other}");

    let long = run(call("raises", json!({"kwargs": {"length": 50_000}}))).await;
    let artifact = long.result.as_ref().unwrap().artifact.unwrap().to_string();
    let to = house.path().join("long");
    assert!(house.run(&["artifact", "get", &artifact, "-o", to.to_str().unwrap()]).status.success());
    let told: Value = serde_json::from_slice(&std::fs::read(&to).unwrap()).unwrap();
    assert!(told["message"].as_str().unwrap().contains("[secret API_KEY]"));
    for job in [&raised, &long] {
        search_all(&house, job.id);
    }

    let returned = run(call("returns", json!({}))).await;
    assert_eq!(inline(&returned), SECRET);
}
