//! Floor 1: the wire types. What clients, workers and the server say to each other, and nothing else:
//! no I/O, no clock, no decisions.

pub mod array;
pub mod artifact;
pub mod end;
pub mod error_code;
pub mod event;
pub mod explain;
pub mod function;
pub mod gang;
pub mod gpu;
pub mod ids;
pub mod job;
pub mod log;
pub mod pin;
pub mod problem;
pub mod progress;
pub mod protocol;
pub mod quantity;
mod schema;
pub mod server;
pub mod spec;
pub mod telemetry;
pub mod token;
pub mod worker;
pub mod yielded;
