//! The daemon's and the worker's own log: lines on standard error, by `GPULAYER_LOG` (default `info`).
//! Nothing leaves the machine.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The variable with the filter, in `tracing-subscriber`'s syntax.
pub const LOG_VARIABLE: &str = "GPULAYER_LOG";

/// What is logged unless asked otherwise: our own words, and of the HTTP stack only its complaints, but none about
/// requests that cannot be read: anybody can send those.
const DEFAULT_FILTER: &str = "info,actix_server=warn,actix_web=warn,actix_http=off";

/// The same for a worker by itself, which tells of itself and its server in lines of its own.
const WORKER_FILTER: &str = "info,gpulayer::worker=off";
/// The same on a terminal: whoever looks on reads those lines.
const TERMINAL_FILTER: &str = "error,gpulayer::worker=off";

/// Starts logging. A second call changes nothing.
pub fn init() {
    init_with(DEFAULT_FILTER);
}

/// As [`init`], for a worker by itself.
pub fn init_worker() {
    init_with(if std::io::stderr().is_terminal() { TERMINAL_FILTER } else { WORKER_FILTER });
}

fn init_with(default: &str) {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(default));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would tell of a line that cannot be written by a line that cannot be written, and panic.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .try_init();
    // Already there: whoever came first keeps it.
    drop(started);
}
