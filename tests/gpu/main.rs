//! GPUs on a worker, by the real way through NVML's wrapper and a stand-in for NVIDIA's library
//! (`tests/support/nvml_stub`): what is there, how it stands, and who gets it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod inventory;
mod standing;
mod tasks;

#[path = "../support/nvml_stub.rs"]
mod nvml_stub;
#[path = "../worker/server.rs"]
#[allow(dead_code)]
mod server;
