//! Whom the kernel ends when memory runs out: never a shim or the worker before a task.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// For the worker and its shims, where the system lets us. The least possible would exempt them even from their own
/// faults.
const PROTECTED: i32 = -900;
/// For tasks where the system does not let us protect ourselves: then they are put forward instead.
const FORWARD: i32 = 200;
const PATH: &str = "/proc/self/oom_score_adj";

/// Protects this process, as far as the system allows; whether it does. Tasks are not affected: their shims start each
/// at its own value.
pub fn protect_from_out_of_memory() -> bool {
    std::fs::write(PATH, PROTECTED.to_string()).is_ok()
}

/// A shim's own value, and that of its tasks.
#[derive(Debug)]
pub(super) struct OomScore {
    /// `None`: `/proc` cannot be written; then nothing differs from anything.
    file: Option<File>,
    own: i32,
    task: i32,
}

impl OomScore {
    /// Protects this process for good.
    pub(super) fn protect() -> Self {
        let task_if_protected = 0;
        let protected = protect_from_out_of_memory();
        let own = std::fs::read_to_string(PATH).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let task = if protected { task_if_protected } else { (own + FORWARD).min(1000) };
        let file = OpenOptions::new().write(true).open(Path::new(PATH)).ok();
        Self { file, own, task }
    }

    /// Starts something at the tasks' value: a child gets its parent's of the moment. Raising is free to everybody, and
    /// so is going back to what one had.
    pub(super) fn for_task<T>(&self, start: impl FnOnce() -> T) -> T {
        let risen = self.write(self.task);
        let started = start();
        if risen.is_ok() {
            let _ = self.write(self.own);
        }
        started
    }

    fn write(&self, value: i32) -> io::Result<()> {
        let Some(mut file) = self.file.as_ref() else { return Ok(()) };
        file.write_all(value.to_string().as_bytes())
    }
}
