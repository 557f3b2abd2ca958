//! The whole product in one binary: the command line, the daemon, and the shim of its worker's tasks.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpulayer::process::run_if_shim();
    gpulayer::cli::main(|options| {
        gpulayer::telemetry::init();
        Ok(gpulayer::daemon::run(options)?)
    })
}
