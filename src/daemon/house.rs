//! The actors and what they stand on: mailboxes first, so that each can be given the others' addresses.

use std::sync::Arc;

use actix::{Actor, Addr, Arbiter, AsyncContext, Context};

use super::{Counters, DaemonError};
use crate::actors::front_desk::{DeskTells, FrontDesk};
use crate::actors::job_supervisor::restore::restore;
use crate::actors::job_supervisor::usage::restored_usage;
use crate::actors::job_supervisor::{JobSupervisor, SupervisorTells};
use crate::actors::lease_reaper::LeaseReaper;
use crate::actors::messages::Durable;
use crate::actors::messages::worker_session::OpenSession;
use crate::actors::scheduler::{Scheduler, SchedulerTells};
use crate::actors::worker_session::{SessionTells, WorkerSession};
use crate::clock;
use crate::config::Settings;
use crate::contract::protocol::Timing;
use crate::contract::quantity::Timestamp;
use crate::credentials::known::Credentials;
use crate::domain::lease::LeaseTimes;
use crate::domain::queue_limit::QueueLimits;
use crate::durability::{Durability, DurabilityMark, durability};
use crate::journal::{Journal, Seq};
use crate::recording::{self, Recorder, RecordingOptions};
use crate::store::{ONLY_TERM, Reads, Store, StoreError};

/// The running control plane, without its edges.
pub(super) struct House {
    /// Where everything from outside goes in.
    pub desk: Addr<FrontDesk>,
    /// Where decisions are written.
    pub journal: Journal,
    /// How far the disk has come.
    pub durability: Durability,
    /// What is committed.
    pub reads: Reads,
    /// Tokens and sessions, as the edge looks them up.
    pub credentials: Arc<Credentials>,
    /// What the scheduler is told, on disk.
    pub recorder: Option<Recorder>,
    /// For `/metrics`.
    pub counters: Arc<Counters>,
    /// When it was opened.
    pub started_at: Timestamp,
}

impl House {
    /// Rebuilds everything from the store. Must be called on an actix system's thread.
    pub(super) fn open(store: &Store, settings: &Settings) -> Result<Self, DaemonError> {
        let reads = store.reader();
        let started_at = clock::now();
        let restored = restore(&reads, started_at)?;
        let credentials = Arc::clone(&restored.credentials);
        let remembered = reads.workers()?.into_iter().filter(|worker| !worker.gone).collect();
        let timing = Timing { heartbeat_s: settings.heartbeat_s, lease_ttl_s: settings.lease_ttl_s };

        let supervisor_context = Context::<JobSupervisor>::new();
        let supervisor = supervisor_context.address();
        let scheduler_arbiter = Arbiter::new();
        let usage = restored_usage(&reads, settings.placement.half_life_s, started_at)?;
        let scheduler_tells = SchedulerTells {
            proposed: supervisor.clone().recipient(),
            left: supervisor.clone().recipient(),
            usage: supervisor.clone().recipient(),
        };
        let policy = settings.placement.clone();
        let recorder = start_recorder(settings);
        let recording = recorder.clone();
        let scheduler = Scheduler::start_in_arbiter(&scheduler_arbiter.handle(), |_| {
            Scheduler::new(clock::system(), policy, scheduler_tells).recorded(recording).after(usage)
        });
        let reaper = LeaseReaper::new(
            lease_times(settings),
            supervisor.clone().recipient(),
            supervisor.clone().recipient(),
        )
        .start();

        let counters = Arc::new(Counters::default());
        let (mark, durability) = durability();
        let told = supervisor.clone().recipient();
        let journal = Journal::start(
            store.writer()?,
            ONLY_TERM,
            on_durable(told, mark, Arc::clone(&counters)),
            leave_after_failed_commit,
        )?;

        let tells = SupervisorTells {
            queued: scheduler.clone().recipient(),
            unqueued: scheduler.clone().recipient(),
            timed_out: scheduler.clone().recipient(),
            accepted: scheduler.clone().recipient(),
            refused: scheduler.clone().recipient(),
            freed: scheduler.clone().recipient(),
            taken: scheduler.clone().recipient(),
            bounded: scheduler.clone().recipient(),
            stop_placing: scheduler.clone().recipient(),
            watch: reaper.clone().recipient(),
            started: reaper.clone().recipient(),
            forget: reaper.clone().recipient(),
        };
        let job_supervisor =
            JobSupervisor::new(clock::system(), journal.clone(), reads.clone(), tells, restored);
        supervisor_context.run(job_supervisor.limited(QueueLimits::of(&settings.placement)));

        let session_tells = SessionTells {
            opened: supervisor.clone().recipient(),
            reported: supervisor.clone().recipient(),
            returned: supervisor.clone().recipient(),
            gone: supervisor.clone().recipient(),
            unaccounted: supervisor.clone().recipient(),
            renew: reaper.recipient(),
            up: scheduler.clone().recipient(),
            down: scheduler.clone().recipient(),
            health: scheduler.clone().recipient(),
            secrets: scheduler.clone().recipient(),
            draining: scheduler.clone().recipient(),
            left: scheduler.clone().recipient(),
            closed: supervisor.clone().recipient(),
            leaving: supervisor.clone().recipient(),
        };
        let open_session = session_opener(timing, journal.clone(), durability.clone(), session_tells);
        let desk_tells = DeskTells {
            submit: supervisor.clone().recipient(),
            cancel: supervisor.clone().recipient(),
            purge: supervisor.clone().recipient(),
            watch: supervisor.clone().recipient(),
            count: supervisor.clone().recipient(),
            holds: supervisor.clone().recipient(),
            held: supervisor.clone().recipient(),
            drain: supervisor.clone().recipient(),
            evict: supervisor.clone().recipient(),
            revoke: supervisor.clone().recipient(),
            make_token: supervisor.clone().recipient(),
            revoke_token: supervisor.clone().recipient(),
            spend_token: supervisor.clone().recipient(),
            record_act: supervisor.clone().recipient(),
            record_upload: supervisor.clone().recipient(),
            prepare_stop: supervisor.clone().recipient(),
            storage: supervisor.recipient(),
            explain_queue: scheduler.clone().recipient(),
            explain: scheduler.clone().recipient(),
            look_ahead: scheduler.recipient(),
        };
        let desk = FrontDesk::new(desk_tells, timing, remembered, open_session).start();
        Ok(Self { desk, journal, durability, reads, credentials, recorder, counters, started_at })
    }
}

/// A daemon without a record is better than none.
fn start_recorder(settings: &Settings) -> Option<Recorder> {
    if settings.scheduling_record_max_bytes == 0 {
        return None;
    }
    let options = RecordingOptions {
        folder: settings.places.state.join(recording::FOLDER),
        max_bytes: settings.scheduling_record_max_bytes,
        rest: recording::REST,
    };
    Recorder::start(options)
        .inspect_err(|error| tracing::warn!(%error, "what the scheduler is told cannot be recorded"))
        .ok()
}

fn session_opener(
    timing: Timing,
    journal: Journal,
    durability: Durability,
    tells: SessionTells,
) -> OpenSession {
    Box::new(move |opening| {
        WorkerSession::new(opening, timing, journal.clone(), durability.clone(), tells.clone()).open()
    })
}

fn on_durable(
    supervisor: actix::Recipient<Durable>,
    mark: DurabilityMark,
    counters: Arc<Counters>,
) -> impl FnMut(Seq) + Send {
    move |through| {
        counters.committed();
        supervisor.do_send(Durable { through });
        mark.advance(through);
    }
}

/// What was not committed was promised to nobody; what was is on disk. So the process leaves at once, and the
/// next start goes on from there.
fn leave_after_failed_commit(error: StoreError) {
    tracing::error!(
        error = &error as &dyn std::error::Error,
        "the database cannot be written: the daemon leaves. Everything acknowledged is on disk. \
         Make room or repair the disk, then start it again"
    );
    // Not a panic and not a return: no actor may say another word (docs/ARCHITECTURE.md: persist before you
    // speak). `EX_IOERR`, for a supervisor that tells faults of the disk from others.
    std::process::exit(74);
}

/// A look every tenth of the shortest time; a gap of a quarter of the lease means that the server stood still.
fn lease_times(settings: &Settings) -> LeaseTimes {
    LeaseTimes {
        ttl_ms: settings.lease_ttl_s.millis(),
        start_ms: settings.start_timeout_s.millis(),
        stall_ms: (settings.lease_ttl_s.millis() / 4).max(40),
    }
}
