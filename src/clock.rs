//! The one place that reads clocks and makes ids.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::quantity::Timestamp;
use crate::domain::steady::Steady;

static STEADY: OnceLock<Mutex<Steady>> = OnceLock::new();

/// The time of this process, in microseconds: the wall clock at its start, then steady whatever that is set to.
pub fn now() -> Timestamp {
    let (wall, monotonic) = (wall(), monotonic_micros());
    STEADY.get_or_init(|| Mutex::new(Steady::new(wall, monotonic))).lock().read(wall, monotonic)
}

/// The wall clock, in microseconds: for what other people's clocks are compared with, such as certificates.
pub fn wall() -> Timestamp {
    let micros = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(span) => i64::try_from(span.as_micros()).unwrap_or(i64::MAX),
        Err(_) => 0,
    };
    Timestamp::from_micros(micros)
}

/// Counts while the machine sleeps too, where the system has such a clock.
fn monotonic_micros() -> i64 {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let read = clock_gettime(CLOCK);
    read.tv_sec.saturating_mul(1_000_000).saturating_add(read.tv_nsec / 1_000)
}

/// A new job id, later than every one this process made before.
pub fn job_id() -> JobId {
    JobId::from_u128(Uuid::now_v7().as_u128())
}

/// The first of so many job ids in a row, of which nobody else makes any.
pub fn first_of(count: usize) -> JobId {
    // What follows the first stays within its random low bits; the others tell it from the ids of the same moment.
    const LOW: u128 = u32::MAX as u128;
    let id = Uuid::now_v7().as_u128();
    let room = LOW - count as u128;
    JobId::from_u128((id & !LOW) | (id & LOW).min(room))
}

/// A new task id.
pub fn task_id() -> TaskId {
    TaskId::from_u128(Uuid::now_v7().as_u128())
}

/// A new worker id.
pub fn worker_id() -> WorkerId {
    WorkerId::from_u128(Uuid::now_v7().as_u128())
}

/// A source of time that an actor is given, so that tests can move it.
pub type Now = std::sync::Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The system's own.
pub fn system() -> Now {
    std::sync::Arc::new(now)
}
