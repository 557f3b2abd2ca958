//! A daemon of one's own: temporary home, real processes, `kill -9` on demand, and a look at what is left.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gpulayer::client::{Client, Endpoint};
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, Sequence};
use gpulayer::contract::log::LogLine;
use serde_json::{Value, json};

use crate::processes;

/// The binary of this build.
pub const GPULAYER: &str = env!("CARGO_BIN_EXE_gpulayer");

/// A binary under test: of this build, or in the folder that `GPULAYER_BINARIES` names.
pub fn binary(name: &str) -> PathBuf {
    match std::env::var_os("GPULAYER_BINARIES") {
        Some(folder) => PathBuf::from(folder).join(name),
        None => Path::new(GPULAYER).with_file_name(name),
    }
}

/// Anything that takes longer is stuck.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A temporary home and state.
pub struct House {
    folder: tempfile::TempDir,
}

/// A daemon in the foreground; killed when dropped.
pub struct Daemon {
    child: Child,
}

/// Tries until it succeeds.
pub async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "gave up waiting for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A job that runs this shell text.
pub fn shell(text: &str) -> Value {
    json!({"workload": {"command": {"shell": text}}})
}

/// A job that runs this argv.
pub fn argv(argv: &[&str]) -> Value {
    json!({"workload": {"command": {"argv": argv}}})
}

impl House {
    pub fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("gl").tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn home(&self) -> PathBuf {
        self.path().join("h")
    }

    pub fn state(&self) -> PathBuf {
        self.home().join("state")
    }

    /// A command line on this home.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary("gpulayer"));
        command.args(args).env("GPULAYER_HOME", self.home()).env("NO_COLOR", "1").stdin(Stdio::null());
        for inherited in [
            "GPULAYER_STATE",
            "GPULAYER_URL",
            "GPULAYER_TOKEN",
            "GPULAYER_PIN",
            "GPULAYER_CA_FILE",
            "HTTPS_PROXY",
            "HTTP_PROXY",
            "ALL_PROXY",
        ] {
            command.env_remove(inherited);
        }
        command
    }

    /// Runs a command line to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).current_dir(self.path()).output().unwrap()
    }

    /// Starts a daemon in the foreground and waits until it answers.
    pub async fn daemon(&self) -> Daemon {
        self.daemon_with(&["--no-tcp"]).await
    }

    /// The same with other flags.
    pub async fn daemon_with(&self, flags: &[&str]) -> Daemon {
        let mut args = vec!["server", "start"];
        args.extend(flags);
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(self.path().join("log")).unwrap();
        let child = self.command(&args).stderr(log.try_clone().unwrap()).stdout(log).spawn().unwrap();
        let mut daemon = Daemon { child };
        let client = self.client().with_reconnect_for(Duration::ZERO);
        eventually("the daemon to answer", async || {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                let mut log = String::new();
                std::fs::File::open(self.path().join("log")).unwrap().read_to_string(&mut log).unwrap();
                panic!("the daemon left: {status}\n{log}");
            }
            client.get::<Value>("/v1/server").await.ok()
        })
        .await;
        daemon
    }

    /// A client of the daemon's Unix socket that waits out restarts.
    pub fn client(&self) -> Client {
        Client::new(Endpoint::Unix(self.state().join("gpulayer.sock"))).with_reconnect_for(DEADLINE)
    }

    /// The TCP port of the daemon started last.
    pub fn port(&self) -> u16 {
        let log = std::fs::read_to_string(self.path().join("log")).unwrap();
        let (_, rest) = log.rsplit_once("127.0.0.1:").unwrap_or_else(|| panic!("no port in {log}"));
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    }

    pub async fn submit(&self, spec: &Value) -> Job {
        self.client().post("/v1/jobs", spec).await.unwrap()
    }

    /// Waits for a job's end.
    pub async fn end(&self, id: JobId) -> Job {
        let client = self.client();
        eventually("the job's end", async || {
            let job: Job = client.get(&format!("/v1/jobs/{id}?wait_s=5")).await.unwrap();
            job.state.ended().then_some(job)
        })
        .await
    }

    /// The texts of the job's log so far.
    pub async fn log(&self, id: JobId) -> Vec<String> {
        let (mut lines, mut after) = (Vec::new(), 0);
        loop {
            let path = format!("/v1/jobs/{id}/logs?limit=500&after={after}");
            // A daemon that was just killed, and the next that is not there yet, are waited out.
            let page = eventually("a page of the log", async || {
                match self.client().get::<Sequence<LogLine>>(&path).await {
                    Err(error) if error.is_connection() => None,
                    page => Some(page.unwrap()),
                }
            })
            .await;
            if page.next_after == after {
                return lines;
            }
            after = page.next_after;
            lines.extend(page.items.into_iter().map(|line| line.text));
        }
    }

    /// Waits for a line of the job's log.
    pub async fn logged(&self, id: JobId, text: &str) {
        eventually("a log line", async || self.log(id).await.iter().any(|line| line == text).then_some(()))
            .await;
    }

    /// Processes of tasks of this house, by the variable every task has: must be empty when all is over.
    pub fn leftovers(&self) -> Vec<String> {
        let state = self.state();
        let tasks = pids(|environ, _| {
            environ.contains("GPULAYER_TASK_ID=") && environ.contains(state.to_str().unwrap())
        });
        let cmdline = |pid: rustix::process::Pid| {
            std::fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default()
        };
        tasks.into_iter().map(|pid| cmdline(pid).replace('\0', " ")).collect()
    }
}

/// A test leaves no daemon that a command started on demand, and no task of a daemon that it killed.
impl Drop for House {
    fn drop(&mut self) {
        if self.state().join("gpulayer.sock").exists() {
            let _ = self.command(&["down", "--yes"]).output();
        }
        let own = self.path().to_str().unwrap().to_owned();
        if std::thread::panicking() && std::env::var_os("GPULAYER_KEEP").is_some() {
            println!("kept: {own}");
            self.folder.disable_cleanup(true);
        }
        for pid in pids(|environ, folder| {
            let shim = std::fs::read_link(folder.join("cwd"))
                .is_ok_and(|cwd| cwd.to_string_lossy().starts_with(&own));
            environ.contains("GPULAYER_TASK_ID=") && environ.contains(&own) || shim
        }) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        for worker in [self.state().join("worker"), self.path().join("far")] {
            processes::remove_groups(&worker);
        }
    }
}

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`, and gone when it returns.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM: leaves running tasks to their shims.
    pub fn terminate(mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Live processes by their environment and their folder in /proc.
fn pids(matches: impl Fn(&str, &Path) -> bool) -> Vec<rustix::process::Pid> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| {
            let folder = entry.ok()?.path();
            let pid = folder.file_name()?.to_str()?.parse().ok()?;
            let environ = String::from_utf8_lossy(&std::fs::read(folder.join("environ")).ok()?).into_owned();
            matches(&environ, &folder).then(|| rustix::process::Pid::from_raw(pid))?
        })
        .collect()
}

/// Whether a process is there and no zombie.
pub fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        // One that was killed has given its memory back a moment before it is a zombie.
        !stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('Z') || rest.split(' ').nth(20) == Some("0"))
    })
}

/// Asserts that no value repeats.
pub fn assert_unique<T: std::hash::Hash + Eq + std::fmt::Debug>(values: impl IntoIterator<Item = T>) {
    let mut seen = HashSet::new();
    for value in values {
        let shown = format!("{value:?}");
        assert!(seen.insert(value), "{shown} twice");
    }
}
