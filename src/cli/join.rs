//! `join`, `worker start` and the standalone `gpulayer-worker`: one engine, which makes this machine a worker of a
//! server and says what a person wants to know of it.

mod background;
pub mod error;
mod foreground;
mod holding;
mod remembered;
mod settled;
mod told;
mod unit;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use self::error::JoinError;
use self::foreground::Purpose;
use self::remembered::Remembered;
pub(super) use self::settled::joined_trust;
use self::settled::{Settled, settle};
use super::StartLog;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::next_step::NextStep;
use super::screen::{print, say};
use super::worker_args::{JoinArgs, Standalone, StartWorkerArgs, StopWorkerArgs, WorkerArgs};
use crate::client::{Call, Client};
use crate::config::{ConfigError, Settings};
use crate::process::detached;
use crate::worker::{FolderError, WorkerError, has_session, holder};

/// How long a server may take to show itself before a machine joins it.
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// A worker that was asked to stop may be in the middle of a call that has not timed out.
const STOPS_WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// `gpulayer join`.
pub(super) fn join(
    settings: &Settings,
    server_flag: Option<&str>,
    args: &JoinArgs,
    start_log: StartLog,
) -> Result<ExitStatus, CliError> {
    let settled = settle(&args.worker, server_flag, settings)?;
    match args.systemd.as_deref() {
        Some("-") => {
            print(unit::Unit::of(&settled, &settings.places)?.text().trim_end())?;
            return Ok(ExitStatus::SUCCESS);
        }
        Some(_) => {
            let unit = unit::Unit::of(&settled, &settings.places)?;
            unit.check_place()?;
            let joined = work(settled, Purpose::OnlyJoin)?;
            unit.write()?;
            print(&format!("{joined}\n\n{}", unit.next_commands()))?;
            return Ok(ExitStatus::SUCCESS);
        }
        None => {}
    }
    if args.detach {
        let folder = settled.folder().to_owned();
        let joined = work(settled, Purpose::OnlyJoin)?;
        background::start(&folder)?;
        print(&format!("{joined}\n\n{}", background::next_commands(&folder)))?;
        return Ok(ExitStatus::SUCCESS);
    }
    start_log();
    work(settled, Purpose::Work { interrupt_leaves: true })?;
    Ok(ExitStatus::SUCCESS)
}

/// `gpulayer worker start`.
pub(super) fn start(
    settings: &Settings,
    server: Option<&str>,
    args: &StartWorkerArgs,
    start_log: StartLog,
) -> Result<ExitStatus, CliError> {
    if !args.detach {
        return stay(settings, server, &args.worker, start_log);
    }
    let settled = settle(&args.worker, server, settings)?;
    let folder = settled.folder().to_owned();
    if holder(&folder).map_err(WorkerError::from).map_err(JoinError::from)?.is_some() {
        return Err(JoinError::from(WorkerError::from(FolderError::InUse { path: folder })).into());
    }
    let known = has_session(&folder).map_err(WorkerError::from).map_err(JoinError::from)?;
    let done = if known && settled.token.is_none() {
        settled.remembered.write(&folder)?;
        format!("{} works for {} again", settled.options.name, settled.endpoint)
    } else {
        work(settled, Purpose::OnlyJoin)?
    };
    background::start(&folder)?;
    print(&format!("{done}\n\n{}", background::next_commands(&folder)))?;
    Ok(ExitStatus::SUCCESS)
}

/// Works in this process. An interrupt stops the worker and leaves this machine joined.
fn stay(
    settings: &Settings,
    server: Option<&str>,
    args: &WorkerArgs,
    start_log: StartLog,
) -> Result<ExitStatus, CliError> {
    let purpose = if args.tell_ready {
        detached::detach().map_err(|source| JoinError::Runtime { source })?;
        detached::take_name();
        Purpose::WorkInBackground(crate::config::Readiness::on_stdin())
    } else {
        Purpose::Work { interrupt_leaves: false }
    };
    let settled = settle(args, server, settings)?;
    start_log();
    work(settled, purpose)?;
    Ok(ExitStatus::SUCCESS)
}

/// `gpulayer worker stop`: returns when the worker has let go of its folder.
pub(super) fn stop(
    settings: &Settings,
    server: Option<&str>,
    args: &StopWorkerArgs,
) -> Result<ExitStatus, CliError> {
    let server = args.server.as_deref().or(server);
    let folder = settled::folder_of(args.folder.as_deref(), server, settings)?;
    let shown = folder.display();
    let held = || holder(&folder).map_err(|error| JoinError::from(WorkerError::from(error)));
    let Some(pid) = held()? else {
        say(&format!("no worker runs in {shown}"));
        return Ok(ExitStatus::SUCCESS);
    };
    if let Some(pid) = pid {
        detached::ask_to_end(pid, || matches!(holder(&folder), Ok(Some(Some(now))) if now == pid));
    }
    let give_up_at = Instant::now() + STOPS_WITHIN;
    while held()?.is_some() {
        if Instant::now() >= give_up_at {
            return Err(JoinError::StillThere { folder, pid }.into());
        }
        // The kernel tells nobody but a waiting thread when a lock is free, and that one could not give up.
        std::thread::sleep(LOOK_AGAIN);
    }
    let (tasks, folder) = (folder.join("tasks"), super::shown::quoted(&shown.to_string()));
    let runs = std::fs::read_dir(tasks).is_ok_and(|mut tasks| tasks.next().is_some());
    say(&if runs {
        format!(
            "the worker has stopped; what it ran goes on, and `gpulayer worker start --folder {folder}` takes it up again"
        )
    } else {
        format!("the worker has stopped; `gpulayer worker start --folder {folder}` starts it again")
    });
    Ok(ExitStatus::SUCCESS)
}

/// The whole of `gpulayer-worker`.
pub fn standalone(start_log: StartLog) -> ExitCode {
    let done = match Standalone::try_parse() {
        Ok(Standalone { url, worker }) => settings(&worker).and_then(|settings| {
            let server = url.or_else(|| settings.url.clone());
            stay(&settings, server.as_deref(), &worker, start_log)
        }),
        Err(told) => {
            drop(told.print());
            Ok(if told.use_stderr() { ExitStatus::USAGE } else { ExitStatus::SUCCESS })
        }
    };
    match done {
        Ok(status) => status.into(),
        Err(error) => {
            say(error.rendered(&NextStep::default()).trim_end());
            error.exit_status().into()
        }
    }
}

/// A service may run without a home: its folder is then all it has.
fn settings(args: &WorkerArgs) -> Result<Settings, CliError> {
    match (Settings::load(), &args.folder) {
        (Err(ConfigError::NoHome), Some(folder)) => Ok(Settings::load_from(&|name| {
            if name == "GPULAYER_HOME" { Some(folder.join("home").into()) } else { std::env::var_os(name) }
        })?),
        (loaded, _) => Ok(loaded?),
    }
}

/// Enters the server and works for it. What was refused at the first try is not remembered.
fn work(settled: Settled, purpose: Purpose) -> Result<String, JoinError> {
    let folder = settled.folder().to_owned();
    let was_known = Remembered::read(&folder)?.is_some();
    enter(&settled)?;
    let done = foreground::run(settled, purpose);
    if done.is_err() && !was_known && matches!(has_session(&folder), Ok(false)) {
        Remembered::forget(&folder);
    }
    done
}

/// Before the first start: is there a server, is it the right one, is there a token. A worker that has joined before
/// waits for its server instead, however long that takes. The folder remembers the server from here on.
fn enter(settled: &Settled) -> Result<(), JoinError> {
    if !has_session(settled.folder()).map_err(WorkerError::from)? {
        if settled.token.is_none() {
            let detail = "(or GPULAYER_JOIN_TOKEN, GPULAYER_JOIN_TOKEN_FILE) is needed for the first join; `gpulayer up` on the server prints the whole line";
            return Err(JoinError::Faults { faults: vec![error::fault("--token-file", detail)] });
        }
        look_at_server(settled)?;
    }
    settled.remembered.write(settled.folder())
}

/// One call that needs no token: what is wrong with the way to the server, or with its certificate, is said here.
fn look_at_server(settled: &Settled) -> Result<(), JoinError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| JoinError::Runtime { source })?;
    let client = Client::new(settled.endpoint.clone())
        .with_trust(settled.trust.clone())
        .with_reconnect_for(Duration::ZERO)
        .with_answer_within(FIRST_ANSWER_WITHIN);
    let failed = |source| JoinError::Server { server: settled.endpoint.to_string(), source };
    runtime.block_on(client.answer(&Call::get("/healthz"))).map_err(failed)?;
    let own = env!("CARGO_PKG_VERSION");
    if let Some(version) = client.server_version().filter(|version| *version != own) {
        say(&format!("this worker is of version {own}, the server of {version}"));
    }
    Ok(())
}
