//! Looks at the worker's disk now and then, on a thread of its own: a file system that hangs holds up nothing else.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::actors::task_runner::DiskRoom;

/// A disk fills in seconds, not milliseconds.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Looks until it is dropped.
#[derive(Debug)]
pub(super) struct DiskWatch {
    _stop: mpsc::Sender<()>,
}

impl DiskWatch {
    /// The first look is before this returns, so that a worker on a full disk never asks for a task.
    pub(super) fn start(room: DiskRoom) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        room.look();
        std::thread::Builder::new().name("disk".to_owned()).spawn(move || {
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                room.look();
            }
        })?;
        Ok(Self { _stop: stop })
    }
}
