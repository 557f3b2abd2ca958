//! `up`, `down` and `server start`: the daemon's life as seen from the command line.

use std::io::{BufRead, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};

use super::Context;
use super::args::{DownArgs, ServerStartArgs, UpArgs};
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::hand_over::stop;
use super::job_choice::all;
use super::on_demand::OwnDaemon;
use super::screen::{print, print_json, say};
use super::server_choice::own_daemon;
use super::shown::tail;
use crate::config::{DaemonOptions, Readiness};
use crate::contract::server::{ServerStatus, StopRequest};
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
    let settings = context.settings.clone();
    settings.places.make()?;
    let port = args.port.unwrap_or(settings.port);
    if !args.host.is_loopback() {
        return Err(CliError::Flag {
            flag: "--host",
            given: args.host.to_string(),
            expected: "a loopback address (encrypted connections come later)",
        });
    }
    let options = DaemonOptions {
        on_demand: args.on_demand,
        tcp: (!args.no_tcp).then(|| SocketAddr::new(args.host, port)),
        unix_socket: args.socket.clone().unwrap_or_else(|| settings.places.socket()),
        readiness: args.tell_ready.then(Readiness::on_stdin),
        with_worker: !args.no_worker,
        write_tokens: !args.no_tcp,
        settings,
    };
    run(options).map_err(|source| CliError::Daemon { source })?;
    Ok(ExitStatus::SUCCESS)
}

/// `gpulayer up`: the same in the background, in the place of a daemon that was started on demand.
pub(super) async fn up(context: &Context, args: &UpArgs) -> Result<ExitStatus, CliError> {
    let places = &context.settings.places;
    let socket = places.socket();
    let client = own_daemon(&context.settings);
    let port = args.port.unwrap_or(context.settings.port);
    let tcp = {
        let daemon = OwnDaemon::new(places.clone());
        let _lock = daemon.lock()?;
        if daemon.is_there()? {
            stop(&daemon, &client, StopRequest { cancel_running: false, hand_over: true }).await?;
        }
        let port = port.to_string();
        let mut arguments = vec!["--port", port.as_str()];
        if args.no_worker {
            arguments.push("--no-worker");
        }
        daemon.spawn(&arguments)?
    };
    let status: ServerStatus = client.get("/v1/server").await?;
    if context.json {
        print_json(&status)?;
        return Ok(ExitStatus::SUCCESS);
    }
    let url = tcp.unwrap_or(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port));
    print(&format!(
        "GPUlayer {} is up (process {}), on http://{url} and unix:{}\n\n\
         here:        gpulayer run -- python train.py\n\
         by token:    GPULAYER_URL=http://{url} GPULAYER_TOKEN=$(cat {}) gpulayer ps\n\
         stop it:     gpulayer down",
        status.version,
        status.pid,
        socket.display(),
        places.client_token().display(),
    ))?;
    Ok(ExitStatus::SUCCESS)
}

/// `gpulayer down`.
pub(super) async fn down(context: &Context, args: &DownArgs) -> Result<ExitStatus, CliError> {
    let client = own_daemon(&context.settings);
    // Held until the daemon is gone, so that no command starts the next one into its last breath.
    let daemon = OwnDaemon::new(context.settings.places.clone());
    let not_stopped = |source| CliError::NotStopped { source };
    let _lock = daemon.lock().map_err(not_stopped)?;
    if !daemon.is_there().map_err(not_stopped)? {
        say("no daemon is running");
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
    stop(&daemon, &client, StopRequest { cancel_running: !args.keep, hand_over: false }).await?;
    say(match (running.len(), args.keep) {
        (0, _) => "the daemon has stopped",
        (_, true) => "the daemon has stopped; what runs goes on and is taken up again by the next one",
        (_, false) => "the daemon has stopped, and what ran was cancelled; what was queued stays queued",
    });
    let unreachable = running.iter().filter(|job| job.unreachable_since.is_some()).count();
    if unreachable > 0 && !args.keep {
        say(&format!(
            "{unreachable} of them could not be told: their workers do not answer, and stop them when they come back"
        ));
    }
    Ok(ExitStatus::SUCCESS)
}

fn confirmed(question: &str) -> bool {
    let mut stderr = std::io::stderr().lock();
    drop(stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
