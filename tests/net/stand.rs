//! A server on one machine, workers on others, and the test beside them: it speaks with the server over the Unix
//! socket, which no network fault concerns.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpulayer::client::{Client, Endpoint};
use gpulayer::contract::event::Event;
use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::job::{Job, Sequence};
use gpulayer::contract::server::ServerStatus;
use gpulayer::contract::worker::{Worker, WorkerState};
use serde_json::Value;

use crate::machines::{Machine, Network, Program, left_out};

/// Anything that takes longer is stuck. TCP doubles its pause with each loss: where every fifth packet is lost at random,
/// six tries in vain, some 25 s, come now and then, and twice in a row they are no fault of a program.
pub const DEADLINE: Duration = Duration::from_secs(120);
/// Everything goes five times as fast as by default.
pub const HEARTBEAT: Duration = Duration::from_millis(400);
pub const LEASE: Duration = Duration::from_secs(4);

/// A binary under test: of this build, or in the folder that `GPULAYER_BINARIES` names.
fn binary(name: &str) -> PathBuf {
    match std::env::var_os("GPULAYER_BINARIES") {
        Some(folder) => PathBuf::from(folder).join(name),
        None => Path::new(env!("CARGO_BIN_EXE_gpulayer")).with_file_name(name),
    }
}

/// See the module. What is dropped first comes first.
pub struct Stand {
    daemon: Option<Program>,
    pub server: Machine,
    /// The key of the server's certificate, which its proxy shares.
    pin: String,
    pub network: Network,
    folder: tempfile::TempDir,
}

impl Stand {
    /// A network with a server; `None` = told to do without.
    pub async fn lay() -> Option<Self> {
        if left_out() {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("gn").tempdir().unwrap();
        let network = Network::new(folder.path());
        let server = network.machine("server");
        let mut stand = Self { daemon: None, server, pin: String::new(), network, folder };
        stand.serve().await;
        Some(stand)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn home(&self) -> PathBuf {
        self.server.folder().join("h")
    }

    /// Where workers find the server.
    pub fn url(&self) -> String {
        self.url_at(8470)
    }

    pub fn url_at(&self, port: u16) -> String {
        format!("https://{}:{port}", self.server.address())
    }

    /// Starts the server, or starts it again, and waits until it answers.
    pub async fn serve(&mut self) {
        let mut command = self.server.command(binary("gpulayer"));
        let log = self.log_file(&self.server);
        command
            .args(["server", "start", "--no-worker", "--self-signed", "--host", self.server.address()])
            .env("GPULAYER_HOME", self.home())
            .env("GPULAYER_HEARTBEAT_S", HEARTBEAT.as_secs_f64().to_string())
            .env("GPULAYER_LEASE_TTL_S", LEASE.as_secs_f64().to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        for inherited in ["GPULAYER_STATE", "GPULAYER_URL", "GPULAYER_TOKEN"] {
            command.env_remove(inherited);
        }
        self.daemon = Some(self.server.start_program(&mut command));
        let client = self.client().with_reconnect_for(Duration::ZERO);
        let status = self
            .eventually("the server to answer", async || client.get::<ServerStatus>("/v1/server").await.ok())
            .await;
        self.pin = status.listening.and_then(|listening| listening.pin).unwrap().to_string();
    }

    /// Stops the server: its workers' tasks go on.
    pub fn stop_serving(&mut self) {
        self.daemon.take().unwrap().terminate();
    }

    /// A client of the server's Unix socket that waits out restarts.
    pub fn client(&self) -> Client {
        let socket = self.home().join("state/gpulayer.sock");
        Client::new(Endpoint::Unix(socket)).with_reconnect_for(DEADLINE)
    }

    /// Starts a worker on a machine, in its own folder there, and waits until both know of each other.
    pub async fn worker(&self, machine: &Machine) -> Program {
        let joined = || self.said(machine).lines().filter(|line| line.starts_with("joined ")).count();
        let before = joined();
        let program = self.start_worker(machine, &self.url(), &machine.folder().join("w"));
        // It says so as soon as it hears it; a moment later it is written down, and outlives a kill.
        let written = || {
            let identity =
                std::fs::read_to_string(machine.folder().join("w/identity.json")).unwrap_or_default();
            identity.contains("\"worker_id\"")
        };
        self.eventually("the worker to join", async || (joined() > before && written()).then_some(())).await;
        self.present(machine.name()).await;
        program
    }

    /// The same with another server and folder, without waiting.
    pub fn start_worker(&self, machine: &Machine, url: &str, folder: &Path) -> Program {
        self.start_worker_named(machine.name(), machine, url, folder)
    }

    /// The same under another name than the machine's.
    pub fn start_worker_named(&self, name: &str, machine: &Machine, url: &str, folder: &Path) -> Program {
        let mut command = self.worker_command(name, machine, url, folder);
        let log = self.log_file(machine);
        machine.start_program(command.stdout(log.try_clone().unwrap()).stderr(log))
    }

    fn worker_command(&self, name: &str, machine: &Machine, url: &str, folder: &Path) -> Command {
        let mut command = machine.command(binary("gpulayer-worker"));
        command
            .args([
                "--url",
                url,
                "--pin",
                &self.pin,
                "--name",
                name,
                "--cpus",
                "2",
                "--allow-root-tasks",
                "--folder",
            ])
            .arg(folder);
        command.arg("--join-token-file").arg(self.home().join("join-token"));
        command
            .env("GPULAYER_HOME", machine.folder().join("h"))
            .env("GPULAYER_WORKER_MIN_FREE_BYTES", "1MiB");
        command.stdin(Stdio::null());
        command
    }

    fn log_file(&self, machine: &Machine) -> std::fs::File {
        let path = machine.folder().join("log");
        std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap()
    }

    /// What a machine's programs said so far.
    pub fn said(&self, machine: &Machine) -> String {
        std::fs::read_to_string(machine.folder().join("log")).unwrap_or_default()
    }

    /// All workers of this name.
    pub async fn named(&self, name: &str) -> Vec<Worker> {
        let page: Value = self.client().get("/v1/workers").await.unwrap();
        let workers: Vec<Worker> = serde_json::from_value(page["items"].clone()).unwrap();
        workers.into_iter().filter(|worker| worker.name == name).collect()
    }

    /// Waits until a worker of this name is there.
    pub async fn present(&self, name: &str) -> WorkerId {
        self.eventually(name, async || {
            let there = |worker: &&Worker| worker.state != WorkerState::Offline;
            self.named(name).await.iter().find(there).map(|worker| worker.id)
        })
        .await
    }

    pub async fn submit(&self, spec: &Value) -> JobId {
        self.client().post::<Job>("/v1/jobs", spec).await.unwrap().id
    }

    pub async fn job(&self, id: JobId) -> Job {
        self.client().get(&format!("/v1/jobs/{id}")).await.unwrap()
    }

    /// Waits for a job's end.
    pub async fn end(&self, id: JobId) -> Job {
        self.until_job(id, "its end", |job| job.state.ended()).await
    }

    /// Waits until a job is as it should be.
    pub async fn until_job(&self, id: JobId, what: &str, holds: impl Fn(&Job) -> bool) -> Job {
        self.eventually(&format!("{id}: {what}"), async || Some(self.job(id).await).filter(&holds)).await
    }

    /// The types of a job's events so far.
    pub async fn events(&self, id: JobId) -> Vec<String> {
        let page: Sequence<Event> =
            self.client().get(&format!("/v1/jobs/{id}/events?limit=500")).await.unwrap();
        let word = |event: Event| serde_json::to_value(event.kind).unwrap().as_str().unwrap().to_owned();
        page.items.into_iter().map(word).collect()
    }

    /// Tries until it succeeds; what the programs said is shown when it does not.
    pub async fn eventually<T>(&self, what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            if began.elapsed() > DEADLINE {
                self.show_logs();
                panic!("gave up waiting for {what}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Prints what every program said, for whoever reads a failed test.
    pub fn show_logs(&self) {
        for entry in std::fs::read_dir(self.folder()).unwrap().flatten() {
            if let Ok(log) = std::fs::read_to_string(entry.path().join("log")) {
                println!("---- {}\n{log}", entry.file_name().display());
            }
        }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
    }
}
