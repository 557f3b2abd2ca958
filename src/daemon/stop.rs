//! What makes a daemon leave: a request, a signal, or having had nothing to do for long.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::warn;

use super::house::House;
use crate::actors::messages::front_desk::{CountJobs, JobCounts};
use crate::contract::server::StopRequest;

/// Why the daemon leaves.
#[derive(Debug)]
pub(super) enum StopCause {
    /// `POST /v1/admin/stop`.
    Asked(StopRequest),
    /// SIGTERM or SIGINT: running tasks are left to their shims.
    Signal,
    /// An on-demand daemon without work.
    Idle,
}

/// Returns when it is time to leave.
pub(super) async fn wait_for_stop(
    requests: &mut mpsc::UnboundedReceiver<StopRequest>,
    house: &House,
    idle_exit: Option<Duration>,
) -> StopCause {
    tokio::select! {
        Some(request) = requests.recv() => StopCause::Asked(request),
        () = signalled() => StopCause::Signal,
        () = idle_for(house, idle_exit) => StopCause::Idle,
    }
}

/// Returns when a daemon that waits for its tasks to end is told to leave without them.
pub(super) async fn hurried(requests: &mut mpsc::UnboundedReceiver<StopRequest>) {
    let asked = async {
        while let Some(request) = requests.recv().await {
            if !request.cancel_running {
                return;
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        () = asked => {}
        () = signalled() => {}
    }
}

async fn signalled() {
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            warn!(%error, "signals cannot be waited for; stop the daemon with `gpulayer down`");
            std::future::pending::<()>().await;
        }
    }
}

/// Returns once nothing was queued or running, and nothing was decided, for this long; never without a limit.
async fn idle_for(house: &House, limit: Option<Duration>) {
    let Some(limit) = limit else { return std::future::pending().await };
    let mut newest = house.journal.newest();
    let mut since = Instant::now();
    loop {
        tokio::time::sleep((limit / 8).max(Duration::from_millis(50))).await;
        let now_newest = house.journal.newest();
        let busy = live_jobs(house).await.is_none_or(|counts| counts != JobCounts::default());
        if busy || now_newest != newest {
            newest = now_newest;
            since = Instant::now();
        } else if since.elapsed() >= limit {
            return;
        }
    }
}

async fn live_jobs(house: &House) -> Option<JobCounts> {
    let (reply, counts) = oneshot::channel();
    house.desk.do_send(CountJobs { reply });
    counts.await.ok()
}
