//! The command line: reads what was typed, speaks with a server, shows what came of it. Decides nothing about jobs.
//! Starts as little as it can: one thread, one connection, no look at the terminal unless something is drawn.

mod args;
mod array;
mod artifact;
mod asks;
mod carry;
mod connect;
mod contact;
mod daemon;
mod doctor;
mod dry_run;
pub mod error;
mod event_line;
mod exit_status;
mod explain;
mod fetch;
mod fleet;
mod follow;
mod gpus;
mod hand_over;
mod job_choice;
mod jobs;
pub mod join;
mod logs;
mod news;
mod next_step;
pub mod on_demand;
mod python_literal;
mod quantities;
mod reach;
pub mod reference;
mod replay;
mod resources;
mod run;
mod screen;
mod server_args;
mod server_choice;
mod server_init;
mod show;
mod shown;
mod spec_args;
mod spec_building;
mod standing;
mod token;
mod typed;
mod up;
mod verdict;
mod waiting;
mod whole_log;
mod worker;
mod worker_args;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::client::ClientError;
use crate::config::Settings;
use crate::contract::error_code::ErrorCode;
use crate::contract::server::WhoAmI;
use args::{Cli, Command, ResourcesCommand, WorkerCommand};
pub use daemon::RunDaemon;
use error::CliError;
use exit_status::ExitStatus;
pub use join::standalone;
use next_step::NextStep;
use server_args::ServerCommand;
use server_choice::{OnDemand, Server, server};

/// What every command knows.
struct Context {
    settings: Settings,
    server_flag: Option<String>,
    json: bool,
}

impl Context {
    fn server(&self, on_demand: OnDemand) -> Result<Server, CliError> {
        server(self.server_flag.as_deref(), &self.settings, on_demand)
    }

    /// What may be typed next, on the same server.
    fn next(&self) -> NextStep {
        NextStep::after(self.server_flag.as_deref())
    }
}

/// Starts the log of a process that works in the foreground or the background: given by the binary, because the log
/// stands above the command line.
pub type StartLog = fn();

/// Runs the command line of this process. `run_daemon` carries out `server start`.
pub fn main(run_daemon: RunDaemon, start_log: StartLog) -> ExitCode {
    let mut next = NextStep::default();
    let done = match Cli::try_parse() {
        Ok(cli) => {
            next = NextStep::after(cli.global.server.as_deref());
            dispatch(cli, run_daemon, start_log)
        }
        // The help that was asked for, or a usage error: with status 0 and 2.
        Err(told) if told.use_stderr() => {
            drop(told.print());
            Ok(ExitStatus::USAGE)
        }
        Err(told) => told.print().map(|()| ExitStatus::SUCCESS).map_err(|source| CliError::Stdout { source }),
    };
    match done {
        Ok(status) => status.into(),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            screen::say(error.rendered(&next).trim_end());
            error.exit_status().into()
        }
    }
}

fn dispatch(cli: Cli, run_daemon: RunDaemon, start_log: StartLog) -> Result<ExitStatus, CliError> {
    if let Command::Completions { shell } = cli.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "gpulayer", &mut script);
        screen::print(String::from_utf8_lossy(&script).trim_end())?;
        return Ok(ExitStatus::SUCCESS);
    }
    let settings = match &cli.command {
        Command::Server(ServerCommand::Start(_)) | Command::Up(_) => Settings::load()?,
        _ => {
            let (settings, fault) = Settings::load_to_ask()?;
            if let Some(fault) = fault {
                screen::say(&format!(
                    "warning: {fault}; what the file says is left aside until that is mended"
                ));
            }
            settings
        }
    };
    let context = Context { settings, server_flag: cli.global.server, json: cli.global.json };
    match &cli.command {
        Command::Server(ServerCommand::Start(args)) => return daemon::start(&context, args, run_daemon),
        Command::Server(ServerCommand::Init(args)) => return server_init::run(&context, args),
        Command::Replay(args) if args.job.is_none() => return replay::run(&context, args),
        _ => {}
    }
    // A worker has threads and runtimes of its own.
    let server = context.server_flag.as_deref();
    match &cli.command {
        Command::Join(args) => return join::join(&context.settings, server, args, start_log),
        Command::Worker { command: Some(WorkerCommand::Start(args)) } => {
            return join::start(&context.settings, server, args, start_log);
        }
        Command::Worker { command: Some(WorkerCommand::Stop(args)) } => {
            return join::stop(&context.settings, server, args);
        }
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| CliError::Runtime { source })?;
    let done = runtime.block_on(command(&context, &cli.command));
    // A read of a terminal or a file may still be under way on another thread; nobody waits for it.
    runtime.shutdown_background();
    // `connect` is told its token.
    if matches!(cli.command, Command::Connect(_)) {
        return done;
    }
    done.map_err(|error| of_saved_token(error, &context))
}

/// Whoever is refused with a saved token has to save another one.
fn of_saved_token(error: CliError, context: &Context) -> CliError {
    let saved = || server_choice::saved_token(context.server_flag.as_deref(), &context.settings);
    match error {
        CliError::Client(ClientError::Refused(problem))
            if matches!(
                problem.code,
                ErrorCode::Unauthenticated | ErrorCode::TokenExpired | ErrorCode::TokenRevoked
            ) =>
        {
            let source = ClientError::Refused(problem);
            match saved() {
                Some((name, url)) => CliError::SavedToken { name, url, source },
                None => CliError::Client(source),
            }
        }
        other => other,
    }
}

async fn command(context: &Context, command: &Command) -> Result<ExitStatus, CliError> {
    match command {
        Command::Run(args) => run::run(context, args).await,
        Command::Submit(args) => run::submit(context, args).await,
        Command::Attach(args) => run::attach(context, args).await,
        Command::Wait(args) => run::wait(context, args).await,
        Command::Ps(args) => jobs::ps(context, args).await,
        Command::Show(args) => show::run(context, args).await,
        Command::Explain(args) => explain::run(context, args).await,
        Command::Replay(args) => replay::of_job(context, args).await,
        Command::Logs(args) => logs::logs(context, args).await,
        Command::Events(args) => logs::events(context, args).await,
        Command::Fetch(args) => fetch::run(context, args).await,
        Command::Cancel(args) => jobs::cancel(context, args).await,
        Command::Retry(args) => jobs::retry(context, args).await,
        Command::Rm(args) => jobs::rm(context, args).await,
        Command::Worker { command } => worker::run(context, command.as_ref()).await,
        Command::Token(command) => token::run(context, command).await,
        Command::Artifact(command) => artifact::run(context, command).await,
        Command::Up(args) => up::run(context, args).await,
        Command::Down(args) => daemon::down(context, args).await,
        Command::Connect(args) => connect::run(context, args).await,
        Command::Doctor(args) => doctor::run(context, args).await,
        Command::Resources(ResourcesCommand::Detect(args)) => resources::detect(context, args).await,
        Command::Whoami => whoami(context).await,
        // Handled before there was a runtime.
        Command::Join(_) | Command::Server(_) | Command::Completions { .. } => Ok(ExitStatus::USAGE),
    }
}

/// `gpulayer whoami`.
async fn whoami(context: &Context) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    let me: WhoAmI = client.get("/v1/whoami").await?;
    if context.json {
        screen::print_json(&me)?;
    } else {
        screen::print(&format!("{} ({}, by {}) on {}", me.name, me.role, me.via, client.endpoint()))?;
        for line in token::bounds(&me) {
            screen::print(&line)?;
        }
    }
    Ok(ExitStatus::SUCCESS)
}
