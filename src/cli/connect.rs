//! `connect`: saves a server, after having spoken with it, and looks after the saved ones.

use std::path::Path;

use serde::Serialize;

use super::Context;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::screen::{print, print_json, say, table};
use super::server_args::ConnectArgs;
use super::server_choice::{LOCAL, Target};
use super::shown::harmless;
use crate::client::{ClientError, ConnectionString, Endpoint, Trust, connection_string};
use crate::config::connections::{Connection, Connections, is_name};
use crate::contract::pin::Pin;
use crate::contract::server::WhoAmI;
use crate::credentials::{CLIENT_PREFIX, JOIN_PREFIX};
use crate::short_file;

/// A connection string and a token are short; more on standard input is a mistake.
const MOST_READ_BYTES: u64 = 64 << 10;

/// A saved server as `--list` shows it.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    url: &'a str,
    current: bool,
    pins: &'a [Pin],
    ca_file: Option<&'a Path>,
}

/// `gpulayer connect`.
pub(super) async fn run(context: &Context, args: &ConnectArgs) -> Result<ExitStatus, CliError> {
    if args.list {
        list(context)?;
    } else if let Some(name) = &args.use_saved {
        choose(context, name)?;
    } else if let Some(name) = &args.remove {
        remove(context, name)?;
    } else if let Some(server) = &args.server {
        connect(context, server, args).await?;
    }
    Ok(ExitStatus::SUCCESS)
}

fn list(context: &Context) -> Result<(), CliError> {
    let saved = Connections::load(&context.settings.places.connections())?;
    let listed = saved.connections.iter().map(|(name, connection)| Listed {
        name,
        url: &connection.url,
        current: saved.current.as_deref() == Some(name),
        pins: &connection.pins,
        ca_file: connection.ca_file.as_deref(),
    });
    let listed: Vec<_> = listed.collect();
    if context.json {
        return print_json(&listed);
    }
    if listed.is_empty() {
        say("no server is saved; `gpulayer connect` with what `gpulayer up` prints saves one");
        return Ok(());
    }
    let rows: Vec<_> = listed
        .iter()
        .map(|one| {
            let trust = match (one.pins, one.ca_file) {
                ([], None) => "the system's authorities".to_owned(),
                ([], Some(file)) => file.display().to_string(),
                (pins, _) => pins.iter().map(Pin::to_string).collect::<Vec<_>>().join(" "),
            };
            let current = if one.current { "*" } else { "" };
            vec![current.to_owned(), one.name.to_owned(), one.url.to_owned(), trust]
        })
        .collect();
    table(&["", "NAME", "SERVER", "TRUSTED BY"], &rows)
}

fn no_such(name: &str, saved: &Connections) -> CliError {
    CliError::NoSuchServer { name: name.to_owned(), known: saved.connections.keys().cloned().collect() }
}

fn choose(context: &Context, name: &str) -> Result<(), CliError> {
    Connections::change(&context.settings.places.connections(), |saved| {
        if name != LOCAL && !saved.connections.contains_key(name) {
            return Err(no_such(name, saved));
        }
        saved.current = (name != LOCAL).then(|| name.to_owned());
        Ok(())
    })??;
    match name {
        LOCAL => say("commands speak with the own daemon from now on"),
        name => say(&format!("commands speak with {name} from now on")),
    }
    said_elsewhere(context);
    Ok(())
}

fn remove(context: &Context, name: &str) -> Result<(), CliError> {
    let was_current = Connections::change(&context.settings.places.connections(), |saved| {
        if saved.connections.remove(name).is_none() {
            return Err(no_such(name, saved));
        }
        let was_current = saved.current.as_deref() == Some(name);
        if was_current {
            saved.current = None;
        }
        Ok(was_current)
    })??;
    say(&match was_current {
        true => format!("{name} is forgotten; commands speak with the own daemon from now on"),
        false => format!("{name} is forgotten"),
    });
    Ok(())
}

/// A variable goes before what is saved.
fn said_elsewhere(context: &Context) {
    if let Some(url) = &context.settings.url {
        let shown =
            ConnectionString::parse(url).map_or_else(|_| url.clone(), |whole| whole.endpoint.to_string());
        say(&format!("note: GPULAYER_URL (or `url` in config.toml) is {shown} and goes before it"));
    }
}

async fn connect(context: &Context, server: &str, args: &ConnectArgs) -> Result<(), CliError> {
    let target = meant(context, server, args)?;
    if target.token.is_none() && !matches!(target.endpoint, Endpoint::Unix(_)) {
        // Said before the token is looked for: whether this is the right server comes first.
        target.client()?.answer(&crate::client::Call::get("/healthz")).await?;
        return Err(CliError::NoToken { server: target.endpoint });
    }
    let client = target.client()?;
    let me: WhoAmI = client.get("/v1/whoami").await?;
    let connection = Connection {
        url: target.endpoint.to_string(),
        token: target.token,
        pins: target.trust.pins,
        ca_file: target.trust.ca_file,
    };
    let name = save(context, args.name.as_deref(), connection, &target.endpoint)?;
    if context.json {
        return print_json(&serde_json::json!({"name": name, "url": target.endpoint.to_string(), "me": me}));
    }
    print(&format!(
        "connected to {} as {} ({}); saved as {name}, and used from now on",
        target.endpoint,
        harmless(&me.name, false),
        harmless(&me.role, false)
    ))?;
    said_elsewhere(context);
    say(&format!(
        "next: gpulayer ps · gpulayer doctor --server {name} · back to the own daemon: gpulayer connect --use {LOCAL}"
    ));
    Ok(())
}

/// What was given, wherever it came from.
fn meant(context: &Context, server: &str, args: &ConnectArgs) -> Result<Target, CliError> {
    let settings = &context.settings;
    let read = if server == "-" { read_stdin()? } else { server.to_owned() };
    let mut target = if read.starts_with(connection_string::SCHEME) {
        let whole = ConnectionString::parse(&read).map_err(ClientError::from)?;
        let trust = Trust { pins: whole.pins, ca_file: None };
        Target { endpoint: whole.endpoint, trust, token: Some(whole.token) }
    } else {
        let endpoint = Endpoint::parse(&read).map_err(ClientError::from)?;
        Target { endpoint, trust: Trust::default(), token: None }
    };
    if let Some(file) = &args.token_file {
        target.token = Some(read_token(file)?);
    }
    target.token = target.token.or_else(|| settings.token.clone());
    if target.token.as_deref().is_some_and(|token| token.starts_with(JOIN_PREFIX)) {
        return Err(CliError::JoinToken);
    }
    if !args.pin.is_empty() {
        target.trust.pins.clone_from(&args.pin);
    }
    if target.trust.pins.is_empty() {
        let ca_file = args.ca_file.as_ref().or(settings.ca_file.as_ref());
        match ca_file {
            // Commands run in other folders.
            Some(file) => {
                target.trust.ca_file = Some(std::path::absolute(file).unwrap_or_else(|_| file.clone()))
            }
            None => target.trust.pins.clone_from(&settings.pins),
        }
    }
    Ok(target)
}

fn read_stdin() -> Result<String, CliError> {
    let text = short_file::take_text(std::io::stdin().lock(), MOST_READ_BYTES)
        .map_err(|source| CliError::File { operation: "read", path: "/dev/stdin".into(), source })?;
    Ok(text.trim().to_owned())
}

fn read_token(path: &Path) -> Result<String, CliError> {
    let source = |source| CliError::GivenFile { flag: "--token-file", path: path.to_owned(), source };
    let text = short_file::read_text(path, short_file::TOKEN_BYTES).map_err(source)?;
    let token = text.trim();
    if token.starts_with(CLIENT_PREFIX) || token.starts_with(JOIN_PREFIX) {
        return Ok(token.to_owned());
    }
    Err(CliError::Flag {
        flag: "--token-file",
        given: path.display().to_string(),
        expected: "a file that holds a client token (glc_…)",
    })
}

/// Keeps it under its name, or under one made of its host; the name.
fn save(
    context: &Context,
    name: Option<&str>,
    connection: Connection,
    endpoint: &Endpoint,
) -> Result<String, CliError> {
    let places = &context.settings.places;
    places.make()?;
    Connections::change(&places.connections(), |saved| {
        let name = match name {
            Some(name) => name.to_owned(),
            None => name_for(endpoint, &connection.url, saved),
        };
        if let Some(other) = saved.connections.get(&name).filter(|other| other.url != connection.url) {
            return Err(CliError::NameTaken { name, url: other.url.clone() });
        }
        saved.connections.insert(name.clone(), connection);
        saved.current = Some(name.clone());
        Ok(name)
    })?
}

/// The name it has, else its host, else its host and port.
fn name_for(endpoint: &Endpoint, url: &str, saved: &Connections) -> String {
    if let Some((name, _)) = saved.connections.iter().find(|(_, known)| known.url == url) {
        return name.clone();
    }
    let (host, port) = endpoint.host_and_port().unwrap_or(("socket", 0));
    let plain: String = host.chars().map(|c| if c == ':' { '-' } else { c }).collect();
    let plain = plain.trim_start_matches(['-', '.']).to_lowercase();
    let plain = if is_name(&plain) && plain != LOCAL { plain } else { "server".to_owned() };
    if saved.connections.contains_key(&plain) { format!("{plain}-{port}") } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_called_by_its_host_and_two_on_one_host_by_their_ports() {
        let mut saved = Connections::default();
        let mut named = |url: &str| {
            let endpoint = Endpoint::parse(url).unwrap();
            let name = name_for(&endpoint, url, &saved);
            let connection = Connection { url: url.to_owned(), token: None, pins: Vec::new(), ca_file: None };
            saved.connections.insert(name.clone(), connection);
            name
        };
        assert_eq!(named("https://Box.lab:8470"), "box.lab");
        assert_eq!(named("https://box.lab:9000"), "box.lab-9000");
        assert_eq!(named("https://Box.lab:8470"), "box.lab", "the one it has");
        assert_eq!(named("https://[::1]:8470"), "1");
        assert_eq!(named("https://10.0.0.1:8470"), "10.0.0.1");
        assert_eq!(named("http://local:8470"), "server");
        assert!(saved.connections.keys().all(|name| is_name(name)));
    }
}
