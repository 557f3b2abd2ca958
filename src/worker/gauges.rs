//! How the worker's machine is doing: measured now and then on a thread of its own, since a look at `/proc` or at a
//! disk may take its time, and read by the heartbeat, which may not.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::actors::task_runner::{DiskRoom, HeldTasks};
use crate::contract::telemetry::Telemetry;
use crate::process::{ShimPool, meminfo_bytes};

/// People look at it; nothing else does.
const MEASURE_EVERY: Duration = Duration::from_secs(2);
/// What is older was not measured: the thread hangs, and so does what it looks at.
const GOOD_FOR: Duration = Duration::from_secs(15);

/// The newest measurement. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Gauges {
    newest: Arc<Mutex<Option<(Instant, Telemetry)>>>,
}

/// Measures until it is dropped.
#[derive(Debug)]
pub(super) struct Measuring {
    _stop: mpsc::Sender<()>,
}

impl Gauges {
    /// Starts measuring; the first time is on the new thread.
    pub(super) fn start(&self, held: HeldTasks, shims: ShimPool, room: DiskRoom) -> io::Result<Measuring> {
        let (stop, stopped) = mpsc::channel();
        let gauges = self.clone();
        std::thread::Builder::new().name("gauges".to_owned()).spawn(move || {
            loop {
                let measured = measure(&held, &shims, &room);
                *gauges.newest.lock() = Some((Instant::now(), measured));
                if stopped.recv_timeout(MEASURE_EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Measuring { _stop: stop })
    }

    /// The newest, unless it is old.
    pub(super) fn read(&self) -> Option<Telemetry> {
        let newest = *self.newest.lock();
        newest.filter(|(at, _)| at.elapsed() < GOOD_FOR).map(|(_, measured)| measured)
    }
}

fn measure(held: &HeldTasks, shims: &ShimPool, room: &DiskRoom) -> Telemetry {
    let task_processes = if held.is_empty() { 0 } else { shims.task_processes() };
    Telemetry {
        load: fs::read_to_string("/proc/loadavg").ok().and_then(|text| load(&text)),
        memory_available_bytes: fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| meminfo_bytes(&text, "MemAvailable:")),
        disk_free_bytes: room.free_bytes(),
        task_processes: u32::try_from(task_processes).ok(),
    }
}

fn load(loadavg: &str) -> Option<f64> {
    loadavg.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_the_last_minute() {
        assert_eq!(load("0.52 0.58 0.59 1/467 12345\n"), Some(0.52));
        assert_eq!(load(""), None);
    }

    #[test]
    fn a_measurement_is_shown_while_it_is_fresh() {
        let gauges = Gauges::default();
        assert_eq!(gauges.read(), None);
        *gauges.newest.lock() = Some((Instant::now(), Telemetry::default()));
        assert_eq!(gauges.read(), Some(Telemetry::default()));
    }
}
