//! The decisions, as tables, as properties over random input and as random-event machines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod arrays;
mod budgets;
mod explanations;
mod gang_ends;
mod gpus;
mod job_states;
mod machine;
mod memory_growth;
mod outlooks;
mod past;
mod placement;
mod properties;
mod raised;
mod replaying;
mod sharing;
#[path = "../../benches/simulation.rs"]
#[allow(dead_code)]
mod simulated;
mod simulation;
mod spec;
mod spec_round_trip;
mod verdicts;
mod warmth;
mod world;
mod yielded;
