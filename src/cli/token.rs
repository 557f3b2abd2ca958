//! `token create|list|revoke`: the secret goes to standard output alone, or into a file; what is said about it goes to
//! standard error.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::Value;

use super::Context;
use super::args::{TokenCommand, TokenCreateArgs};
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::quantities;
use super::screen::{Output, print, print_json, say, table};
use super::server_choice::OnDemand;
use super::shown::{harmless, moment, quoted, span};
use crate::client::endpoint::encoded;
use crate::client::{Client, ClientError, Endpoint};
use crate::clock;
use crate::contract::error_code::ErrorCode;
use crate::contract::job::Page;
use crate::contract::quantity::Timestamp;
use crate::contract::server::{ServerStatus, WhoAmI};
use crate::contract::token::{CreateToken, CreatedToken, Role, Token, TokenKind};

/// `gpulayer token …`.
pub(super) async fn run(context: &Context, command: &TokenCommand) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    match command {
        TokenCommand::Create(args) => create(context, &client, args).await?,
        TokenCommand::List { all } => list(context, &client, *all).await?,
        TokenCommand::Revoke { names } => {
            for name in names {
                client.delete(&format!("/v1/tokens/{}", encoded(name))).await.map_err(
                    |error| match error {
                        ClientError::Refused(problem) if problem.code == ErrorCode::NotFound => {
                            CliError::NoSuchToken { given: harmless(name, false) }
                        }
                        error => error.into(),
                    },
                )?;
                say(&format!("{} is revoked", harmless(name, false)));
            }
        }
    }
    Ok(ExitStatus::SUCCESS)
}

fn asked(args: &TokenCreateArgs) -> Result<CreateToken, CliError> {
    let kind = match (args.join, args.instance) {
        (true, _) => TokenKind::Join,
        (false, true) => TokenKind::Instance,
        (false, false) => TokenKind::Client,
    };
    let expires = args.expires.as_deref().map(|text| quantities::span("--expires", text)).transpose()?;
    let most = args.max_priority.map(|most| i32::try_from(most).unwrap_or(i32::MAX));
    Ok(CreateToken {
        name: args.name.clone(),
        kind,
        role: args.role.as_deref().and_then(Role::from_word),
        projects: args.project.clone(),
        max_priority: most,
        user: args.user.clone(),
        expires_s: expires,
    })
}

async fn create(context: &Context, client: &Client, args: &TokenCreateArgs) -> Result<(), CliError> {
    let request = asked(args)?;
    // Before the token is made: a secret that cannot be kept would be lost.
    let mut file = args.to.as_deref().map(new_file).transpose()?;
    let made: Result<CreatedToken, _> = client.post("/v1/tokens", &request).await;
    let made = match made {
        Ok(made) => made,
        Err(error) => {
            if let Some(path) = &args.to {
                // Made above, and still empty.
                drop(std::fs::remove_file(path));
            }
            return Err(error.into());
        }
    };
    let token = &made.token;
    if let (Some(file), Some(path)) = (&mut file, &args.to) {
        let kept = writeln!(file, "{}", made.secret).and_then(|()| file.sync_all());
        kept.map_err(|source| CliError::File { operation: "write", path: path.clone(), source })?;
    }
    if context.json {
        let mut shown = serde_json::to_value(&made).unwrap_or_default();
        if let (Some(_), Value::Object(fields)) = (&args.to, &mut shown) {
            fields.remove("secret");
        }
        return print_json(&shown);
    }
    say(&format!("token {}: {}", harmless(&token.name, false), described(token)));
    if args.to.is_none() {
        print(&made.secret)?;
        say("this is the only time it is shown");
    }
    if token.kind != TokenKind::Client {
        let line = line(client, "join", args).await?;
        if args.to.is_some() {
            say("on the worker's machine, with that file:");
            print(&line)?;
        } else {
            say(&format!("on the worker's machine, with the token in that file:\n  {line}"));
        }
    } else {
        say(&format!(
            "on another machine, with the token in that file:\n  {}",
            line(client, "connect", args).await?
        ));
    }
    Ok(())
}

fn new_file(path: &Path) -> Result<std::fs::File, CliError> {
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => CliError::NotOverwritten { path: path.to_owned() },
        _ => CliError::File { operation: "make", path: path.to_owned(), source },
    })
}

/// What to type on the machine that is to use the token.
async fn line(client: &Client, verb: &str, args: &TokenCreateArgs) -> Result<String, CliError> {
    let status: ServerStatus = client.get("/v1/server").await?;
    let listening = status.listening;
    let url = match (&listening, client.endpoint()) {
        (Some(listening), _) => listening.url.clone(),
        (None, Endpoint::Unix(_)) => "https://SERVER:8470".to_owned(),
        (None, endpoint) => endpoint.to_string(),
    };
    let file = args.to.as_deref().and_then(Path::file_name);
    let file = file.map_or("token".into(), |name| name.to_string_lossy());
    let pin = listening.and_then(|listening| listening.pin).map(|pin| format!(" --pin {pin}"));
    let pin = pin.unwrap_or_default();
    Ok(format!("gpulayer {verb} {} --token-file {}{pin}", quoted(&url), quoted(&file)))
}

/// What it may do, in a line.
fn described(token: &Token) -> String {
    let mut said = match (token.kind, token.role) {
        (TokenKind::Join, _) => "registers workers".to_owned(),
        (TokenKind::Instance, _) => "registers one worker, once".to_owned(),
        (TokenKind::Client, role) => role.map_or("client", Role::word).to_owned(),
    };
    if !token.projects.is_empty() {
        said += &format!(" in {}", token.projects.join(", "));
    }
    if let Some(most) = token.max_priority {
        said += &format!(", priority at most {most}");
    }
    if let Some(user) = token.user.as_deref().filter(|user| *user != token.name) {
        said += &format!(", submits as {user}");
    }
    match token.expires_at {
        Some(end) => said += &format!(", until {}", moment(end)),
        None => said += ", until it is revoked",
    }
    harmless(&said, false)
}

async fn list(context: &Context, client: &Client, all: bool) -> Result<(), CliError> {
    let page: Page<Token> = client.get("/v1/tokens").await?;
    let now = clock::now();
    let lives = |token: &&Token| token.revoked_at.is_none() && token.expires_at.is_none_or(|end| now < end);
    let shown: Vec<&Token> = page.items.iter().filter(|token| all || lives(token)).collect();
    if context.json {
        let mut output = Output::new();
        for token in shown {
            output.json(token)?;
        }
        return output.flush();
    }
    let rows: Vec<Vec<String>> = shown.into_iter().map(|token| row(token, now)).collect();
    table(&["NAME", "KIND", "ROLE", "PROJECTS", "CREATED", "BY", "USED", "NOTE"], &rows)
}

fn row(token: &Token, now: Timestamp) -> Vec<String> {
    let mut notes = Vec::new();
    match (token.revoked_at, token.expires_at) {
        (Some(at), _) => notes.push(format!("revoked {}", moment(at))),
        (None, Some(end)) if end <= now => notes.push(format!("expired {}", moment(end))),
        (None, Some(end)) => notes.push(format!("expires in {}", span(end.since(now)))),
        (None, None) => {}
    }
    if let Some(most) = token.max_priority {
        notes.push(format!("priority at most {most}"));
    }
    if let Some(user) = token.user.as_deref().filter(|user| *user != token.name) {
        notes.push(format!("submits as {user}"));
    }
    let cells = [
        token.name.clone(),
        token.kind.word().to_owned(),
        token.role.map(Role::word).unwrap_or_default().to_owned(),
        token.projects.join(","),
        moment(token.created_at),
        token.created_by.clone(),
        token.last_used_at.map(|at| format!("{} ago", span(now.since(at)))).unwrap_or_default(),
        notes.join(" · "),
    ];
    cells.iter().map(|cell| harmless(cell, false)).collect()
}

/// What `whoami` says beyond the name and role.
pub(super) fn bounds(me: &WhoAmI) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(user) = &me.user {
        lines.push(format!("submits as {user}"));
    }
    if !me.projects.is_empty() {
        lines.push(format!("projects: {}", me.projects.join(", ")));
    }
    if let Some(most) = me.max_priority {
        lines.push(format!("priority at most {most}"));
    }
    if let Some(end) = me.expires_at {
        lines.push(format!("expires {}", moment(end)));
    }
    lines.into_iter().map(|line| harmless(&line, false)).collect()
}
