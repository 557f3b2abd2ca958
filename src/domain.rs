//! Floor 2: the decisions. Pure functions over plain data: no I/O, no clock, no actor; time comes in as an
//! argument and what must be persisted or told goes out as data.

pub mod array;
pub mod causes;
pub mod change;
pub mod clock_note;
pub mod credentials;
pub mod dependency;
pub mod disk;
pub mod gpus;
pub mod job;
pub mod keeping;
pub mod lease;
pub mod ledger;
pub mod log_budget;
pub mod offered_gpus;
pub mod past;
pub mod placement;
pub mod poll_limit;
pub mod progress;
pub mod python;
pub mod queue_limit;
pub mod redaction;
pub mod retry;
pub mod roll_call;
pub mod secrets;
pub mod spec;
pub mod steady;
pub mod support;
pub mod task_run;
pub mod time_left;
pub mod verdict;
pub mod worker_return;
