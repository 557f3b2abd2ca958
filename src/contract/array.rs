//! Arrays: many jobs from one spec. The parent has no tasks; each child is a job with an index, and perhaps an item.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;

/// Many jobs from one spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Array {
    /// First index.
    #[serde(default)]
    pub start: u64,
    /// How many; not together with `items`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// One child per item; not together with `count`. A child sees a text as it is, anything else as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<serde_json::Value>>,
    /// Only these of the indices, ascending: what `retry --failed` repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indices: Option<Vec<u64>>,
    /// At most so many at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u64>,
}

/// Which child of an array a task belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArrayPlace {
    /// Its index.
    pub index: u64,
    /// How many indices the array has, also when only some of them are repeated.
    pub count: u64,
    /// Its item, when the array has items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<serde_json::Value>,
}

/// How many children of an array are where: the parent's `progress`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArrayProgress {
    /// All of them.
    pub total: usize,
    /// Wait.
    pub queued: usize,
    /// Placed, not started.
    pub scheduled: usize,
    /// Started.
    pub running: usize,
    /// Ended well.
    pub succeeded: usize,
    /// Ended badly.
    pub failed: usize,
    /// Were stopped by somebody.
    pub cancelled: usize,
    /// Ran, or waited, too long.
    pub timed_out: usize,
}

impl ArrayProgress {
    /// As many children, all queued.
    pub fn queued(total: usize) -> Self {
        Self { total, queued: total, ..Self::default() }
    }

    /// One child moves.
    pub fn moves(&mut self, from: JobState, to: JobState) {
        *self.of(from) -= 1;
        *self.of(to) += 1;
    }

    /// How many have ended.
    pub fn ended(&self) -> usize {
        self.succeeded + self.failed + self.cancelled + self.timed_out
    }

    fn of(&mut self, state: JobState) -> &mut usize {
        match state {
            JobState::Queued | JobState::Provisioning => &mut self.queued,
            JobState::Scheduled => &mut self.scheduled,
            JobState::Running => &mut self.running,
            JobState::Succeeded => &mut self.succeeded,
            JobState::Failed => &mut self.failed,
            JobState::Cancelled => &mut self.cancelled,
            JobState::TimedOut => &mut self.timed_out,
        }
    }
}
