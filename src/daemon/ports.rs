//! What the edges are given: recipients of the front desk, and small ports over the store and the worker.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use actix::Addr;
use parking_lot::Mutex;

use super::DaemonError;
use super::house::House;
use crate::actors::front_desk::FrontDesk;
use crate::actors::task_runner;
use crate::artifacts::{ArtifactStore, RelativePath};
use crate::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use crate::contract::server::{Listening, StopRequest};
use crate::http::{Desk, EdgeState, KeptWorkspaces, Measured, Ports, TaskOwners};
use crate::store::{LogStore, Reads};
use crate::worker::in_process::DeskRecipients;

/// What the HTTP edge is made of.
pub(super) struct Parts<'a> {
    pub house: &'a House,
    pub logs: &'a LogStore,
    pub artifacts: &'a ArtifactStore,
    pub kept: Option<task_runner::KeptWorkspaces>,
    pub stop: Arc<dyn Fn(StopRequest) + Send + Sync>,
    pub on_demand: bool,
    /// What TCP requests may call it.
    pub names: Vec<String>,
    pub listening: Option<Listening>,
}

/// The HTTP edge's state.
pub(super) fn edge_state(parts: Parts<'_>) -> Result<EdgeState, DaemonError> {
    let Parts { house, logs, artifacts, kept, stop, on_demand, names, listening } = parts;
    let reads = house.reads.clone();
    let counters = Arc::clone(&house.counters);
    let counted_logs = logs.clone();
    let ports = Ports {
        desk: client_desk(&house.desk),
        reads: reads.clone(),
        logs: logs.clone(),
        durable: house.durability.watch(),
        artifacts: artifacts.clone(),
        credentials: Arc::clone(&house.credentials),
        owners: Arc::new(StoredOwners { reads, known: Mutex::default() }),
        kept: Arc::new(LocalKept(kept)),
        stop,
        measured: Arc::new(move || Measured {
            commits: counters.commits(),
            log_bytes: counted_logs.taken_bytes(),
        }),
        schema: crate::store::schema_version()?,
        started_at: house.started_at,
        on_demand,
    };
    let mut state = EdgeState::new(ports, names);
    state.listening = listening;
    Ok(state)
}

fn client_desk(desk: &Addr<FrontDesk>) -> Desk {
    Desk {
        submit_jobs: desk.clone().recipient(),
        cancel_job: desk.clone().recipient(),
        purge_job: desk.clone().recipient(),
        watch_job: desk.clone().recipient(),
        explain_queue: desk.clone().recipient(),
        explain: desk.clone().recipient(),
        look_ahead: desk.clone().recipient(),
        count_jobs: desk.clone().recipient(),
        who_holds: desk.clone().recipient(),
        why_held: desk.clone().recipient(),
        change_drain: desk.clone().recipient(),
        evict_task: desk.clone().recipient(),
        revoke_worker: desk.clone().recipient(),
        make_token: desk.clone().recipient(),
        revoke_token: desk.clone().recipient(),
        spend_token: desk.clone().recipient(),
        record_act: desk.clone().recipient(),
        record_upload: desk.clone().recipient(),
        register_worker: desk.clone().recipient(),
        resume_worker: desk.clone().recipient(),
        heartbeat: desk.clone().recipient(),
        acquire: desk.clone().recipient(),
        report_tasks: desk.clone().recipient(),
        deregister_worker: desk.clone().recipient(),
        list_workers: desk.clone().recipient(),
    }
}

/// The front desk, as the worker in this process talks to it.
pub(super) fn worker_desk(desk: &Addr<FrontDesk>) -> DeskRecipients {
    DeskRecipients {
        register: desk.clone().recipient(),
        resume: desk.clone().recipient(),
        heartbeat: desk.clone().recipient(),
        acquire: desk.clone().recipient(),
        report: desk.clone().recipient(),
        deregister: desk.clone().recipient(),
    }
}

/// The machine's name.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Entries remembered; a task's owner never changes, so an old entry is only a missed chance.
const KNOWN_OWNERS: usize = 4_096;

struct StoredOwners {
    reads: Reads,
    known: Mutex<HashMap<TaskId, (WorkerId, Epoch, JobId)>>,
}

impl TaskOwners for StoredOwners {
    fn owned(&self, worker: WorkerId, task: TaskId, epoch: Epoch) -> Option<JobId> {
        let known = self.known.lock().get(&task).copied();
        let (owner, placement, job_id) = match known {
            Some(known) => known,
            None => {
                let record = self.reads.task_record(task).ok().flatten()?;
                let found = (record.worker, record.epoch, record.job_id);
                let mut known = self.known.lock();
                if known.len() >= KNOWN_OWNERS {
                    known.clear();
                }
                known.insert(task, found);
                found
            }
        };
        (owner == worker && placement == epoch).then_some(job_id)
    }
}

/// Only this host's worker keeps workspaces where the daemon can reach them.
struct LocalKept(Option<task_runner::KeptWorkspaces>);

impl KeptWorkspaces for LocalKept {
    fn open(&self, job_id: JobId, ended: Option<TaskId>, path: &str) -> Option<File> {
        let path = RelativePath::new(path).ok()?;
        self.0.as_ref()?.open(job_id, ended, &path)
    }

    fn gone(&self, job_id: JobId) -> Option<String> {
        self.0.as_ref()?.gone(job_id)
    }

    fn discard(&self, job_id: JobId) -> std::io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |kept| kept.discard(job_id))
    }
}
