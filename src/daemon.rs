//! Floor 6: the daemon. Puts everything together: the store first, then the mailboxes, then the actors, then
//! HTTP, then the worker of this host; and takes it apart in the opposite order.
//!
//! Start-up after a crash and after a clean stop is the same path: what the store remembers is what there is.

mod error;
mod front;
mod house;
mod housekeeping;
mod ports;
mod stop;
mod storage_watch;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix_rt::System;
use tokio::sync::mpsc;
use tracing::{info, warn};

pub use self::error::DaemonError;
use self::front::Front;
use self::house::House;
use self::stop::{StopCause, wait_for_stop};
use crate::actors;
use crate::actors::messages::front_desk::PrepareStop;
use crate::artifacts::{self, ArtifactStore};
use crate::config::DaemonOptions;
use crate::contract::server::StopRequest;
use crate::contract::worker::WorkerKind;
use crate::gpu::Nvml;
use crate::http;
use crate::process;
use crate::store::Store;
use crate::worker::in_process::InProcessChannel;
use crate::worker::{Farewell, KnownWorker, Worker, WorkerHandle, WorkerOptions};

/// Runs a daemon until it is told to stop. Blocks; call it from a thread without a runtime.
pub fn run(options: DaemonOptions) -> Result<(), DaemonError> {
    let state = options.settings.places.state.clone();
    let outcome = System::new().block_on(async {
        let outcome = live(options).await;
        actors::let_them_start().await;
        outcome
    });
    outcome.map_err(|error| error.with_room_of(&state))
}

async fn live(mut options: DaemonOptions) -> Result<(), DaemonError> {
    let settings = &options.settings;
    let open_files = process::raise_open_files();
    settings.places.make()?;
    // Everything that may be refused outside comes before anything starts.
    let front = Front::open(&options)?;
    let store = Store::open(&settings.places.state)?;
    let limits = artifacts::Limits { max_artifact_bytes: settings.max_artifact_bytes };
    let artifacts = ArtifactStore::open(&settings.places.state.join("artifacts"), limits)?;
    let logs = store.logs()?;
    let house = House::open(&store, settings)?;
    tokens::take_seed(&settings.places, &house).await?;
    if options.write_tokens {
        tokens::provide(&settings.places, &house).await?;
    }

    let (stop_sender, mut stop_requests) = mpsc::unbounded_channel::<StopRequest>();
    let worker =
        options.with_worker.then(|| start_worker(&options, &house, &logs, &artifacts)).transpose()?;
    let state = ports::edge_state(ports::Parts {
        house: &house,
        logs: &logs,
        artifacts: &artifacts,
        kept: worker.as_ref().map(WorkerHandle::kept),
        stop: Arc::new(move |request| {
            // A daemon that is leaving already needs no second reason.
            let _ = stop_sender.send(request);
        }),
        on_demand: options.on_demand,
        names: front.names.clone(),
        listening: front.listening(settings),
    })?;
    let serving = http::serve(
        http::ServeOptions {
            unix_socket: Some(options.unix_socket.clone()),
            tcp: front.tcp,
            tls: front.tls.clone(),
            threads: settings.http_threads,
        },
        Arc::new(state),
    )?;
    if let Some(tls) = front.tls {
        front::keep_renewed(tls, settings.clone());
    }
    storage_watch::start(store.ballast(), settings.min_free_bytes, house.desk.clone().recipient());
    housekeeping::start(artifacts.clone(), store.reader(), logs.clone());
    info!(
        socket = %options.unix_socket.display(),
        tcp = serving.tcp.map(|address| address.to_string()),
        open_files,
        state = %settings.places.state.display(),
        "ready"
    );
    if let Some(readiness) = options.readiness.take()
        && let Err(error) = readiness.announce(serving.tcp)
    {
        warn!(%error, "whoever started this daemon could not be told that it is ready");
    }

    let idle_exit = options.on_demand.then(|| options.settings.idle_exit_s.duration());
    let cause = wait_for_stop(&mut stop_requests, &house, idle_exit).await;
    info!(?cause, "stopping");
    serving.announce_stop();
    let cancel_running = matches!(cause, StopCause::Asked(StopRequest { cancel_running: true, .. }));
    prepare_stop(&house, cancel_running, &mut stop_requests).await;
    if let Some(worker) = worker {
        // Its thread needs this one for the last answers, so it is waited for elsewhere.
        let stopped = tokio::task::spawn_blocking(move || worker.stop(Farewell::Silent)).await;
        if let Ok(Err(error)) = stopped {
            warn!(error = &error as &dyn std::error::Error, "the worker did not stop cleanly");
        }
    }
    // The ends that the stop itself caused: whoever follows a job reads them before it is sent away.
    house.durability.clone().reached(house.journal.newest()).await;
    serving.stop().await;
    house.durability.clone().reached(house.journal.newest()).await;
    if let Some(recorder) = &house.recorder {
        recorder.close();
    }
    info!("stopped");
    Ok(())
}

/// Nothing new from now on; with `cancel_running`, waits until nothing runs that can be stopped. Every shim kills what
/// outlives its grace, so there is no limit here; whoever is in a hurry says so.
async fn prepare_stop(
    house: &House,
    cancel_running: bool,
    stop_requests: &mut mpsc::UnboundedReceiver<StopRequest>,
) {
    let (reply, prepared) = tokio::sync::oneshot::channel();
    house.desk.do_send(PrepareStop { cancel_running, reply });
    tokio::select! {
        _ = prepared => {}
        () = stop::hurried(stop_requests) => {
            warn!("told not to wait; tasks that still stop are left to their shims, and adopted at the next start");
        }
    }
}

fn start_worker(
    options: &DaemonOptions,
    house: &House,
    logs: &crate::store::LogStore,
    artifacts: &ArtifactStore,
) -> Result<WorkerHandle, DaemonError> {
    let channel = InProcessChannel::new(ports::worker_desk(&house.desk), logs.clone(), artifacts.clone());
    let folder = options.settings.places.state.join("worker");
    let mut worker = WorkerOptions::new(folder, ports::host_name(), WorkerKind::Local);
    worker.cpus = options.settings.worker_cpus_millis.map(crate::contract::quantity::Cpus::from_millis);
    worker.disk = options.settings.worker_disk;
    worker.secrets = options.settings.secret_source(options.tcp.is_none());
    worker.log_limits = options.settings.log_limits;
    worker.task_pids_max = options.settings.task_pids_max;
    worker.reuse_idle = options.settings.reuse_idle;
    worker.building = options.settings.building.clone();
    worker.gpus.nvml = Nvml::of_setting(options.settings.nvml.as_deref());
    worker.gpus.offered = options.settings.worker_gpus.clone();
    worker.known = known_worker(house)?;
    Ok(Worker::start(worker, Arc::new(channel))?)
}

/// The daemon's own worker, as the database remembers it.
fn known_worker(house: &House) -> Result<Option<KnownWorker>, DaemonError> {
    let own =
        house.reads.workers()?.into_iter().rfind(|worker| worker.kind == WorkerKind::Local && !worker.gone);
    Ok(own.map(|own| KnownWorker { worker_id: own.id, incarnation: own.identity.incarnation }))
}

/// Counts what the daemon does, for `/metrics`.
#[derive(Debug, Default)]
pub struct Counters {
    commits: AtomicU64,
}

impl Counters {
    fn committed(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }
}
