//! The one place that reads the wall clock and makes ids.

use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::quantity::Timestamp;

/// The wall clock, in microseconds.
pub fn now() -> Timestamp {
    let micros = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(span) => i64::try_from(span.as_micros()).unwrap_or(i64::MAX),
        Err(_) => 0,
    };
    Timestamp::from_micros(micros)
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

/// A source of wall-clock time that an actor is given, so that tests can move it.
pub type Now = std::sync::Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The system's own.
pub fn system() -> Now {
    std::sync::Arc::new(now)
}
