//! A worker's folder with a pool in it, and short words for what the tests launch.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpulayer::clock;
use gpulayer::contract::log::LogRecord;
use gpulayer::process::{ExitRecord, Launch, Limits, ShimEvent, ShimPool, SpoolReader, TaskProcess};

/// Nothing in these tests takes longer, unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Bench {
    folder: tempfile::TempDir,
    pub pool: ShimPool,
}

impl Bench {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool_in(folder.path());
        Self { folder, pool }
    }

    /// As a killed worker leaves it: the connections are gone, nobody was told.
    pub fn kill_worker(self) -> tempfile::TempDir {
        self.folder
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A launch with a folder of its own. The environment is `PATH` and the task's id.
    pub fn launch_of<S: Into<OsString>>(&self, argv: impl IntoIterator<Item = S>) -> Launch {
        let task_id = clock::task_id();
        let task_folder = self.path().join("tasks").join(task_id.to_string());
        let workspace = task_folder.join("workspace");
        std::fs::create_dir_all(&workspace).unwrap();
        Launch {
            task_id,
            task_folder,
            workspace,
            cwd: PathBuf::new(),
            argv: argv.into_iter().map(Into::into).collect(),
            env: vec![
                ("PATH".into(), std::env::var_os("PATH").unwrap()),
                ("GPULAYER_TASK_ID".into(), task_id.to_string().into()),
            ],
            secrets: Vec::new(),
            stop_signal: Default::default(),
            grace: Duration::from_secs(10),
            timeout: None,
            prelude: None,
            stay: None,
            orphan_timeout: Duration::from_secs(86_400),
            limits: Limits::default(),
            log: Default::default(),
            gpu_locks: Vec::new(),
            run_as: None,
        }
    }

    pub fn python(&self, program: &str) -> Launch {
        self.launch_of(["python3", "-c", program])
    }

    pub fn shell(&self, program: &str) -> Launch {
        self.launch_of(["sh", "-c", program])
    }

    /// Runs it to its end.
    pub async fn run(&self, launch: Launch) -> Ended {
        let task_folder = launch.task_folder.clone();
        let mut process = self.pool.launch(launch).await.unwrap();
        Ended { exit: end_of(&mut process).await, task_folder }
    }
}

pub fn pool_in(worker_folder: &Path) -> ShimPool {
    ShimPool::with_binary(worker_folder, 4, Path::new(env!("CARGO_BIN_EXE_gpulayer"))).unwrap()
}

pub struct Ended {
    pub exit: ExitRecord,
    pub task_folder: PathBuf,
}

impl Ended {
    pub fn records(&self) -> Vec<LogRecord> {
        records_of(&self.task_folder)
    }

    /// What the log artifact would hold, decompressed.
    pub fn whole_log(&self) -> Option<Vec<u8>> {
        let file = gpulayer::process::write_whole_log(&self.task_folder, self.exit.whole_log).unwrap()?;
        Some(zstd::stream::decode_all(file).unwrap())
    }

    pub fn texts(&self) -> Vec<String> {
        self.records().into_iter().map(|record| record.text).collect()
    }
}

pub fn records_of(task_folder: &Path) -> Vec<LogRecord> {
    SpoolReader::open(task_folder).read(usize::MAX, usize::MAX).unwrap().records
}

pub async fn event_of(process: &mut TaskProcess) -> Option<ShimEvent> {
    tokio::time::timeout(PATIENCE, process.recv()).await.expect("no event in time")
}

pub async fn end_of(process: &mut TaskProcess) -> ExitRecord {
    loop {
        match event_of(process).await {
            Some(ShimEvent::Ended(record)) => return *record,
            Some(ShimEvent::ShimLost) | None => panic!("the shim was lost"),
            Some(_) => {}
        }
    }
}

/// Waits until it holds: for things that other processes do.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the program has printed this line.
pub async fn until_printed(task_folder: &Path, line: &str) {
    until(&format!("`{line}` printed"), || records_of(task_folder).iter().any(|record| record.text == line))
        .await;
}

/// The pids a program noted in `<workspace>/pids`.
pub fn noted_pids(launch_folder: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(launch_folder.join("workspace/pids")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// The shims of a worker, by their sockets.
pub fn shims(worker_folder: &Path) -> Vec<u32> {
    let names =
        std::fs::read_dir(worker_folder.join("shims")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.to_str()?.strip_suffix(".sock")?.parse().ok()).collect()
}

/// Whether the process runs; one that has ended and waits to be reaped does not.
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| {
        // One that was killed is listed in no group any more from the moment it begins to exit (PF_EXITING), and is a
        // zombie only a little later.
        let flags: u64 = rest.split(' ').nth(6).and_then(|flags| flags.parse().ok()).unwrap_or_default();
        !rest.starts_with(['Z', 'X']) && flags & 4 == 0
    })
}
