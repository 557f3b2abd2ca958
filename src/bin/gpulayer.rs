//! The whole product in one binary: the command line, the daemon, a worker, and the shim of its tasks.

use std::process::ExitCode;

use gpulayer::telemetry;

fn main() -> ExitCode {
    gpulayer::process::run_if_shim();
    gpulayer::gpu::run_if_probe();
    gpulayer::environments::run_if_builder();
    let run_daemon: gpulayer::cli::RunDaemon = |options| {
        telemetry::init();
        Ok(gpulayer::daemon::run(options)?)
    };
    gpulayer::cli::main(run_daemon, telemetry::init_worker)
}
