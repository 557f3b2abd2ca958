//! The real binaries on a temporary home: crashes, cancels, two of everything. Nothing here sleeps to
//! synchronise; what crosses processes is awaited on its condition, with a deadline.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

mod arrays;
mod checkpoints;
mod command_line;
mod crashes;
mod dependencies;
mod disk_full;
mod explaining;
mod fair_shares;
mod far_worker;
mod fault_matrix;
mod files;
mod flood;
mod full_projects;
mod full_streams;
mod functions;
mod gangs;
mod generators;
mod gpus;
mod hostile_clients;
mod hostile_programs;
mod house;
mod joined;
mod joining;
mod leaving;
mod logs;
mod newcomers;
mod next_steps;
#[path = "../support/nvml_stub.rs"]
mod nvml_stub;
mod offered_interpreters;
mod processes;
mod progress;
mod python_environments;
mod refusals;
mod rejoining;
mod remote_worker;
mod replaying;
mod restored;
mod revoking;
mod second_machine;
mod secrets;
mod secure;
mod stops;
mod trees;
mod twins;
mod verdicts;
#[path = "../support/volume.rs"]
mod volume;
mod words;
