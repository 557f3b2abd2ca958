//! The recording server, and a worker that talks to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulayer::artifacts::{ArtifactStore, Limits};
use gpulayer::client::worker_channel::{
    Calling, ChannelError, Published, Session, SessionEnd, WorkerChannel,
};
use gpulayer::clock;
use gpulayer::contract::artifact::Digest;
use gpulayer::contract::error_code::ErrorCode;
use gpulayer::contract::ids::{JobId, TaskId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::log::LogRecord;
use gpulayer::contract::problem::Problem;
use gpulayer::contract::protocol::*;
use gpulayer::contract::quantity::{Cpus, Seconds};
use gpulayer::contract::spec::{Command, JobSpec, Run, Workload};
use gpulayer::contract::worker::{Capabilities, WorkerKind};
use gpulayer::process::ExitRecord;
use gpulayer::worker::{Farewell, Worker, WorkerEnd, WorkerHandle, WorkerOptions};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// Nothing in these tests takes longer, unless it is broken.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Record {
    pub offers: BTreeMap<TaskId, Assignment>,
    pub orders: Orders,
    pub unreachable: bool,
    pub hold_starts: bool,
    pub hold_publishes: bool,
    pub publishes: u32,
    pub refuse_starts: bool,
    pub reports: Vec<ReportItem>,
    pub logs: BTreeMap<TaskId, Vec<LogRecord>>,
    /// Numbers of records that were given up.
    pub given_up: BTreeMap<TaskId, u64>,
    pub registrations: u32,
    /// As the worker last introduced itself.
    pub capabilities: Option<Capabilities>,
    pub resumes: Vec<ResumeRequest>,
    pub beats: Vec<HeartbeatRequest>,
    pub fetches: u32,
    /// Tasks that finished before their last record was there.
    pub early: BTreeSet<TaskId>,
}

pub struct Server {
    record: Mutex<Record>,
    changed: Condvar,
    wake: Notify,
    pub artifacts: ArtifactStore,
    home: tempfile::TempDir,
}

impl Server {
    pub fn new() -> Arc<Self> {
        let home = tempfile::tempdir().unwrap();
        let artifacts = ArtifactStore::open(&home.path().join("artifacts"), Limits::default()).unwrap();
        Arc::new(Self {
            record: Mutex::default(),
            changed: Condvar::new(),
            wake: Notify::new(),
            artifacts,
            home,
        })
    }

    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    pub fn worker_folder(&self) -> PathBuf {
        self.home.path().join("worker")
    }

    pub fn task_folder(&self, task_id: TaskId) -> PathBuf {
        self.worker_folder().join("tasks").join(task_id.to_string())
    }

    /// Whether the task's shim has written down how its program ended.
    pub fn has_ended(&self, task_id: TaskId) -> bool {
        ExitRecord::read(&self.task_folder(task_id)).unwrap().is_some()
    }

    pub fn start_worker(self: &Arc<Self>) -> WorkerHandle {
        self.start_worker_with(|_| {})
    }

    pub fn start_worker_with(self: &Arc<Self>, change: impl FnOnce(&mut WorkerOptions)) -> WorkerHandle {
        let mut options = WorkerOptions {
            cpus: Some(Cpus::from_millis(4000)),
            shim_binary: Some(env!("CARGO_BIN_EXE_gpulayer-worker").into()),
            ..WorkerOptions::new(self.worker_folder(), "tester", WorkerKind::Local)
        };
        change(&mut options);
        Worker::start(options, Arc::clone(self) as Arc<dyn WorkerChannel>).unwrap()
    }

    pub fn change<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        let changed = change(&mut self.record.lock());
        self.changed.notify_all();
        self.wake.notify_waiters();
        changed
    }

    /// Waits until the record shows something.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut(&Record) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut record = self.record.lock();
        loop {
            if let Some(found) = look(&record) {
                return found;
            }
            let late = self.changed.wait_until(&mut record, deadline).timed_out();
            assert!(!late, "waited in vain for {what}; reported: {:#?}", record.reports);
        }
    }

    pub fn offer(&self, spec: JobSpec) -> TaskId {
        self.offer_on(spec, Vec::new())
    }

    /// With these GPUs, by uuid.
    pub fn offer_on(&self, spec: JobSpec, gpus: Vec<String>) -> TaskId {
        let task_id = clock::task_id();
        let assignment = Assignment {
            task_id,
            job_id: clock::job_id(),
            epoch: 1,
            attempt: 1,
            spec: Arc::new(spec),
            gpus,
            array: None,
            gang: None,
            checkpoint: None,
        };
        self.change(|record| record.offers.insert(task_id, assignment));
        task_id
    }

    pub fn finish_of(&self, task_id: TaskId) -> Finish {
        let finish = self.until("a finish", |record| {
            record.reports.iter().find_map(|item| match &item.report {
                Report::Finish(finish) if item.task_id == task_id => Some((**finish).clone()),
                _ => None,
            })
        });
        assert!(self.change(|record| !record.early.contains(&task_id)), "finished before its log was there");
        finish
    }

    pub fn run(&self, spec: JobSpec) -> (TaskId, Finish) {
        let task_id = self.offer(spec);
        (task_id, self.finish_of(task_id))
    }

    pub fn lines_of(&self, task_id: TaskId) -> Vec<String> {
        let text = |records: &Vec<LogRecord>| records.iter().map(|record| record.text.clone()).collect();
        self.change(|record| record.logs.get(&task_id).map(text).unwrap_or_default())
    }

    pub fn until_line(&self, task_id: TaskId, line: &str) {
        self.until(line, |record| {
            record.logs.get(&task_id)?.iter().any(|record| record.text == line).then_some(())
        });
    }

    fn heard(&self, call: &'static str) -> Result<(), ChannelError> {
        if self.record.lock().unreachable {
            return Err(ChannelError::Unreachable { call, source: "the cable is out".into() });
        }
        Ok(())
    }

    fn open_offers(record: &Record, have: &[Held]) -> Vec<Assignment> {
        let fresh = |offer: &&Assignment| have.iter().all(|held| held.task_id != offer.task_id);
        record.offers.values().filter(fresh).cloned().collect()
    }

    fn judge(&self, record: &mut Record, item: &ReportItem) -> ReportResult {
        record.reports.push(item.clone());
        if let Report::Decline { .. } = item.report {
            record.offers.remove(&item.task_id);
        }
        if let Report::Start = item.report {
            record.offers.remove(&item.task_id);
            if record.refuse_starts {
                return ReportResult::Refused { code: ErrorCode::TaskEnded };
            }
        }
        ReportResult::Ok { job_state: JobState::Running }
    }
}

fn timing() -> Timing {
    Timing { heartbeat_s: Seconds::from_millis(50), lease_ttl_s: Seconds::new(20) }
}

impl WorkerChannel for Server {
    fn speak_as(&self, session: Session) {
        assert_eq!(session.token, "gls_tester");
    }

    fn register(&self, request: RegisterRequest) -> Calling<'_, RegisterAnswer> {
        Box::pin(async {
            self.heard("register")?;
            self.change(|record| {
                record.registrations += 1;
                record.capabilities = Some(request.capabilities);
            });
            let worker_id = WorkerId::from_u128(1);
            Ok(RegisterAnswer { worker_id, session_token: "gls_tester".into(), timing: timing() })
        })
    }

    fn resume(&self, request: ResumeRequest) -> Calling<'_, ResumeAnswer> {
        Box::pin(async {
            self.heard("resume")?;
            self.change(|record| {
                record.capabilities = Some(request.capabilities.clone());
                record.resumes.push(request);
            });
            Ok(ResumeAnswer { timing: timing(), orders: Orders::default() })
        })
    }

    fn heartbeat(&self, request: HeartbeatRequest) -> Calling<'_, HeartbeatAnswer> {
        Box::pin(async {
            self.heard("heartbeat")?;
            let orders = self.change(|record| {
                record.beats.push(request);
                record.orders.clone()
            });
            Ok(HeartbeatAnswer { server_time: clock::now(), orders })
        })
    }

    fn acquire(&self, request: AcquireRequest) -> Calling<'_, AcquireAnswer> {
        Box::pin(async move {
            let deadline = tokio::time::Instant::now() + request.wait_s.duration();
            loop {
                let woken = self.wake.notified();
                tokio::pin!(woken);
                woken.as_mut().enable();
                self.heard("acquire")?;
                let answer = {
                    let record = self.record.lock();
                    let assignments = Self::open_offers(&record, &request.have);
                    AcquireAnswer { assignments, orders: record.orders.clone() }
                };
                if !answer.assignments.is_empty() || tokio::time::timeout_at(deadline, woken).await.is_err() {
                    return Ok(answer);
                }
            }
        })
    }

    fn report(&self, request: ReportRequest) -> Calling<'_, ReportAnswer> {
        Box::pin(async move {
            self.heard("report")?;
            loop {
                let woken = self.wake.notified();
                tokio::pin!(woken);
                woken.as_mut().enable();
                let starts = request.items.iter().any(|item| item.report == Report::Start);
                if !(starts && self.record.lock().hold_starts) {
                    break;
                }
                woken.await;
            }
            Ok(self.change(|record| ReportAnswer {
                results: request.items.iter().map(|item| self.judge(record, item)).collect(),
                assignments: request
                    .acquire
                    .map(|acquire| Self::open_offers(record, &acquire.have))
                    .unwrap_or_default(),
                orders: record.orders.clone(),
            }))
        })
    }

    fn logs(&self, _job_id: JobId, task_id: TaskId, request: LogsRequest) -> Calling<'_, LogsAnswer> {
        Box::pin(async move {
            self.heard("logs")?;
            Ok(self.change(|record| {
                let finished = record
                    .reports
                    .iter()
                    .any(|item| item.task_id == task_id && matches!(item.report, Report::Finish(_)));
                if finished {
                    record.early.insert(task_id);
                }
                let known = record.logs.entry(task_id).or_default();
                let given_up = record.given_up.entry(task_id).or_default();
                let mut next_n = known.len() as u64 + *given_up + 1;
                if request.missing_from_n.is_some_and(|from| from <= next_n) && request.first_n > next_n {
                    *given_up += request.first_n - next_n;
                    next_n = request.first_n;
                }
                assert!(request.first_n <= next_n, "a gap before record {}", request.first_n);
                known.extend(request.records.into_iter().skip((next_n - request.first_n) as usize));
                let next_n = known.len() as u64 + *given_up + 1;
                LogsAnswer { next_n, orders: Orders::default() }
            }))
        })
    }

    fn deregister(&self) -> Calling<'_, ()> {
        Box::pin(async { Err(ChannelError::SessionOver(SessionEnd::Revoked)) })
    }

    fn fetch<'a>(&'a self, digest: Digest, scratch: &'a Path) -> Calling<'a, File> {
        Box::pin(async move {
            self.heard("fetch")?;
            self.change(|record| record.fetches += 1);
            match self.artifacts.open_read(digest).unwrap() {
                Some(_) => {
                    let failed = |source| ChannelError::LocalFile {
                        operation: "write",
                        path: scratch.to_owned(),
                        source,
                    };
                    self.artifacts.export_to(digest, scratch).unwrap();
                    File::open(scratch).map_err(failed)
                }
                None => Err(ChannelError::Refused(Box::new(Problem::new(
                    ErrorCode::NotFound,
                    "no such artifact",
                )))),
            }
        })
    }

    fn publish<'a>(&'a self, file: File, shown: &'a Path) -> Calling<'a, Published> {
        Box::pin(async move {
            self.heard("publish")?;
            self.change(|record| record.publishes += 1);
            while self.record.lock().hold_publishes {
                let woken = self.wake.notified();
                tokio::pin!(woken);
                woken.as_mut().enable();
                if self.record.lock().hold_publishes {
                    woken.await;
                }
            }
            let imported = self.artifacts.import(&file, shown).unwrap();
            Ok(Published { digest: imported.digest, size_bytes: imported.size_bytes })
        })
    }
}

pub fn shell(text: &str) -> JobSpec {
    JobSpec::new(Workload::Command(Command { run: Run::Shell(text.to_owned()), cwd: None }))
}

/// Waits for something outside the record: a file, a process.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        // Between looks: files and processes of others have no sender.
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn stop(worker: WorkerHandle) {
    assert_eq!(worker.stop(Farewell::Silent).unwrap(), WorkerEnd::Stopped);
}

pub fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
