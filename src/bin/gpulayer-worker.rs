//! A worker for hosts that only work: `gpulayer join` in the foreground, and its tasks' shim.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpulayer::process::run_if_shim();
    gpulayer::gpu::run_if_probe();
    gpulayer::environments::run_if_builder();
    gpulayer::cli::standalone(gpulayer::telemetry::init_worker)
}
