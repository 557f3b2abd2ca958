//! `down` and `server start`: the daemon's life as seen from the command line.

use std::io::{BufRead, IsTerminal, Write};
use std::net::SocketAddr;

use super::Context;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::hand_over::stop;
use super::job_choice::all;
use super::next_step::without_token;
use super::on_demand::OwnDaemon;
use super::screen::say;
use super::server_args::{DownArgs, ServerStartArgs};
use super::server_choice::{LOCAL, own_daemon};
use super::shown::tail;
use super::standing::{self, Standing};
use crate::config::connections::Connections;
use crate::config::{DaemonOptions, Readiness, ServerCertificate};
use crate::contract::server::StopRequest;
use crate::process::detached;

/// How the daemon is run: given by the binary, because the daemon stands above the command line.
pub type RunDaemon = fn(DaemonOptions) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// `gpulayer server start`: returns when the daemon has stopped.
pub(super) fn start(
    context: &Context,
    args: &ServerStartArgs,
    run: RunDaemon,
) -> Result<ExitStatus, CliError> {
    if args.tell_ready {
        detached::detach().map_err(|source| CliError::Runtime { source })?;
    }
    let mut settings = context.settings.clone();
    settings.places.make()?;
    let port = args.port.unwrap_or(settings.port);
    let certificate = certificate(args);
    if !args.host.is_loopback() && certificate.is_none() && !args.allow_insecure_remote && !args.no_tcp {
        return Err(CliError::PlainAbroad { host: args.host });
    }
    if let Some(address) = &args.advertise_address {
        settings.advertise_address = Some(address.clone());
    }
    let options = DaemonOptions {
        on_demand: args.on_demand,
        tcp: (!args.no_tcp).then(|| SocketAddr::new(args.host, port)),
        certificate,
        unix_socket: args.socket.clone().unwrap_or_else(|| settings.places.socket()),
        readiness: args.tell_ready.then(Readiness::on_stdin),
        with_worker: !args.no_worker,
        write_tokens: !args.no_tcp,
        settings,
    };
    detached::take_name();
    run(options).map_err(|source| CliError::Daemon { source })?;
    Ok(ExitStatus::SUCCESS)
}

fn certificate(args: &ServerStartArgs) -> Option<ServerCertificate> {
    match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(ServerCertificate::Given { certificate: certificate.clone(), key: key.clone() })
        }
        _ => args.self_signed.then_some(ServerCertificate::SelfSigned),
    }
}

/// `gpulayer down`.
pub(super) async fn down(context: &Context, args: &DownArgs) -> Result<ExitStatus, CliError> {
    if let Some(server) = context.server_flag.as_deref().filter(|given| *given != LOCAL) {
        return Err(CliError::DownElsewhere { server: without_token(server) });
    }
    let client = own_daemon(&context.settings);
    // Held until the daemon is gone, so that no command starts the next one into its last breath.
    let daemon = OwnDaemon::new(context.settings.places.clone());
    let not_stopped = |source| CliError::NotStopped { source };
    let _lock = daemon.lock().map_err(not_stopped)?;
    let there = daemon.is_there();
    if !matches!(there, Ok(true)) {
        not_wanted_back(&daemon, context, args.keep)?;
        there.map_err(not_stopped)?;
        say("no daemon is running on this machine");
        say_what_goes_on(context);
        return Ok(ExitStatus::SUCCESS);
    }
    let running = all(&client, "&state=running&state=scheduled", usize::MAX).await?;
    if !running.is_empty() && !args.keep && !args.yes && std::io::stdin().is_terminal() {
        for job in &running {
            say(&format!("…{} {} runs", tail(job.id), job.name.as_deref().unwrap_or_default()));
        }
        let jobs = if running.len() == 1 { "job" } else { "jobs" };
        if !confirmed(&format!("Stop the daemon and cancel {} running {jobs}? [y/N] ", running.len())) {
            return Err(CliError::NotConfirmed);
        }
    }
    // Before it goes: whatever becomes of this stop, nobody wants the daemon back.
    not_wanted_back(&daemon, context, args.keep)?;
    stop(&daemon, &client, StopRequest { cancel_running: !args.keep, hand_over: false }).await?;
    say(match (running.len(), args.keep) {
        (0, _) => "the daemon has stopped",
        (_, true) => "the daemon has stopped; what runs goes on and is taken up again by the next one",
        (_, false) => "the daemon has stopped, and what ran was cancelled; what was queued stays queued",
    });
    if args.keep && Standing::read(&context.settings.places.state)?.is_some() {
        say("the next command here starts it as `up` did; `gpulayer down` ends that");
    }
    say_what_goes_on(context);
    let unreachable = running.iter().filter(|job| job.unreachable_since.is_some()).count();
    if unreachable > 0 && !args.keep {
        say(&format!(
            "{unreachable} of them could not be told: their workers do not answer, and stop them when they come back"
        ));
    }
    Ok(ExitStatus::SUCCESS)
}

/// Whose daemon that was, when commands speak with another server.
fn say_what_goes_on(context: &Context) {
    let settings = &context.settings;
    let other = if context.server_flag.is_some() {
        None
    } else if let Some(url) = settings.url.as_deref().filter(|url| *url != LOCAL) {
        Some(format!("the server of GPULAYER_URL, {}", without_token(url)))
    } else {
        let saved = Connections::load(&settings.places.connections()).ok();
        saved
            .as_ref()
            .and_then(Connections::current)
            .map(|(name, one)| format!("the saved server {name}, {}", one.url))
    };
    if let Some(other) = other {
        say(&format!(
            "this is about this machine's own daemon; {other}, goes on (`gpulayer down` on its machine stops it)"
        ));
    }
}

/// Lets commands that follow a job leave the daemon stopped; unless it is to come back as it was, forgets how `up` was
/// told to listen.
fn not_wanted_back(daemon: &OwnDaemon, context: &Context, keep: bool) -> Result<(), CliError> {
    if !keep {
        standing::forget(&context.settings.places.state)?;
    }
    // A full disk is no reason to go on running.
    if let Err(error) = daemon.stays_stopped() {
        say(&format!("gpulayer: {error}; a command that follows a job may start the daemon again"));
    }
    Ok(())
}

pub(super) fn confirmed(question: &str) -> bool {
    let mut stderr = std::io::stderr().lock();
    drop(stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
