//! The whole product in one binary: the command line, the daemon, and the shim of its worker's tasks.

use std::process::ExitCode;

/// Gives memory back after a burst, which the C library's own does not (docs/PERFORMANCE.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    gpulayer::process::run_if_shim();
    gpulayer::cli::main(|options| {
        gpulayer::telemetry::init();
        Ok(gpulayer::daemon::run(options)?)
    })
}
