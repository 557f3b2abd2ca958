//! Events: what happened to a job, append-only, numbered `seq` from 1 per job and `position` server-wide.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::{JobId, TaskId};
use super::quantity::Timestamp;

macro_rules! event_types {
    ($($name:ident $word:literal $doc:literal),* $(,)?) => {
        /// What an event reports. A closed list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        #[schema(rename_all = "snake_case")]
        pub enum EventType {
            $(#[doc = $doc] #[serde(rename = $word)] $name,)*
        }

        impl EventType {
            /// All of them.
            pub const ALL: &'static [EventType] = &[$(EventType::$name),*];

            /// The word on the wire.
            pub const fn word(self) -> &'static str {
                match self { $(EventType::$name => $word),* }
            }

            /// Reads the word; `None` for one this build does not know.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.word() == word)
            }
        }
    };
}

event_types! {
    JobQueued "job_queued" "Accepted, or put back into the queue; `data.cause` says why.",
    JobScheduled "job_scheduled" "Has a place; `data` names worker, epoch and attempt.",
    JobRunning "job_running" "Its task started.",
    JobCancelRequested "job_cancel_requested" "Somebody asked a running job to stop.",
    TaskStopRequested "task_stop_requested" "The task was told to stop; `data.cause` says why: timeout, drain, evict, preempt (for the job `data.for`).",
    JobUnreachable "job_unreachable" "Its worker stopped answering and the job waits for it.",
    JobReachable "job_reachable" "Its worker answered again.",
    JobEnded "job_ended" "Ended; `data.end` says how.",
    TaskPhase "task_phase" "A phase of the task: staging, environment, executing, finishing.",
    TaskCheckpoint "task_checkpoint" "The program's checkpoint is kept (`data.artifact`, `data.size_bytes`): another attempt begins with it, but for what could not travel (`data.left_out`, by name and reason).",
    TaskDeclined "task_declined" "The worker did not take the task; `data.detail` says why.",
    TaskNotStarted "task_not_started" "The worker did not start the task in time.",
    TaskStuck "task_stuck" "Processes of the task were killed and do not end; `data.processes` names them. What the task holds stays reserved.",
    TaskLost "task_lost" "The lease ran out or the machine restarted.",
    TaskEnded "task_ended" "The task ended and another attempt follows; `data.end` says how. The last one's end is the job's.",
    StaleFinish "stale_finish" "A result of a lost task arrived late and was not published.",
    Audit "audit" "Somebody used a power over the server or over what is not theirs; `data` says who (`by`), what (`act`), on what (`target`), from where (`from`). Belongs to no job.",
}

/// One event as a client reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Numbered from 1 per job; 0 when it belongs to none.
    pub seq: u64,
    /// Numbered server-wide.
    pub position: u64,
    /// When the server recorded it.
    pub time: Timestamp,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// The job; none for what concerns the server.
    pub job_id: Option<JobId>,
    /// The task, when it concerns one.
    pub task_id: Option<TaskId>,
    /// Details by type.
    pub data: serde_json::Value,
}
