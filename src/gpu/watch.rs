//! The thread that looks at the GPUs: now and then, and whenever somebody asks. The probe is its own.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::GpuOptions;
use super::devices::Shared;
use super::inventory::{self, gather};
use super::nvidia::Glance;
use super::probe::Probe;
use super::remembered::Remembered;
use crate::contract::gpu::{Gpu, GpuStanding};
use crate::domain::causes::said;

/// Whoever starts something on a GPU, or ends it, is noticed after this long.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// A healthy driver answers in milliseconds, a loaded one in a second or two.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

/// Answered after a fresh look: the reason when there was none.
pub(super) type Ask = oneshot::Sender<Result<(), String>>;

/// What a look came to.
pub(super) enum Look {
    /// Each device by its uuid.
    Seen(BTreeMap<String, Glance>),
    /// The driver does not answer, or says that it cannot.
    Blind(String),
}

/// What the thread works with.
pub(super) struct Watch {
    pub(super) options: GpuOptions,
    pub(super) remembered: Remembered,
    pub(super) shared: Weak<Shared>,
    pub(super) asks: Receiver<Ask>,
    /// For the first look: the driver may have to load.
    pub(super) first_within: Duration,
}

impl Watch {
    /// Starts the thread. It ends with the last of the devices' clones, or when there is nothing to look at.
    pub(super) fn start(self) -> io::Result<()> {
        std::thread::Builder::new().name("gpus".to_owned()).spawn(move || self.run()).map(drop)
    }

    fn run(self) {
        let mut probe = Probe::new(&self.options);
        let found = gather(&self.options, &mut probe, &self.remembered, self.first_within);
        for fault in &found.faults {
            tracing::warn!("{fault}");
        }
        let watched = inventory::asks_nvidia(&self.options) && !found.gpus.is_empty();
        // A driver that has just failed as a whole is not waited for once more: the worker's start is.
        let answers = |gpu: &Gpu| !matches!(gpu.standing, GpuStanding::Unhealthy { .. });
        let look = (watched && found.gpus.iter().any(answers)).then(|| glance(&mut probe));
        match self.shared.upgrade() {
            Some(shared) => shared.begin(found, look),
            None => return,
        }
        if !watched {
            // Nothing to look at, so nothing wakes this but a question, or the end.
            self.asks.iter().for_each(|ask| drop(ask.send(Ok(()))));
            return;
        }
        loop {
            let asked = match self.asks.recv_timeout(LOOK_EVERY) {
                Ok(ask) => Some(ask),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let Some(shared) = self.shared.upgrade() else { return };
            self.look(&mut probe, &shared, asked);
        }
    }

    fn look(&self, probe: &mut Probe, shared: &Arc<Shared>, asked: Option<Ask>) {
        // One look answers all who asked before it began.
        let asked: Vec<Ask> = asked.into_iter().chain(self.asks.try_iter()).collect();
        let look = glance(probe);
        let answer = match &look {
            Look::Seen(_) => Ok(()),
            Look::Blind(why) => Err(why.clone()),
        };
        shared.saw(look);
        for ask in asked {
            let _ = ask.send(answer.clone());
        }
    }
}

fn glance(probe: &mut Probe) -> Look {
    match probe.glance(ANSWER_WITHIN) {
        Ok(seen) => Look::Seen(seen.into_iter().map(|glance| (glance.uuid.clone(), glance)).collect()),
        Err(error) => Look::Blind(said(&error)),
    }
}
