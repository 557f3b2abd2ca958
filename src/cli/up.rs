//! `up`: a daemon in the background that other machines reach over HTTPS, and what to type next on each of them.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::Context;
use super::daemon::confirmed;
use super::dry_run::curl_pin;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::hand_over::stop;
use super::on_demand::OwnDaemon;
use super::python_literal;
use super::screen::{print, print_json, say};
use super::server_args::UpArgs;
use super::server_choice::{LOCAL, own_daemon};
use super::shown::{harmless, quoted};
use super::standing::Standing;
use crate::client::{Client, Endpoint};
use crate::config::Places;
use crate::config::connections::Connections;
use crate::contract::job::Page;
use crate::contract::server::{Listening, ServerStatus, StopRequest};
use crate::contract::worker::{Worker, WorkerKind};

/// What is alive has answered by then, or is slow and worth a longer wait.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// `gpulayer up`: takes the place of a daemon that was started on demand or otherwise; leaves one alone that is as
/// asked for.
pub(super) async fn run(context: &Context, args: &UpArgs) -> Result<ExitStatus, CliError> {
    let places = &context.settings.places;
    let client = own_daemon(&context.settings);
    let daemon = OwnDaemon::new(places.clone());
    let was_there = {
        let _lock = daemon.lock()?;
        let before = Standing::read(&places.state)?;
        let mut asked = Standing::asked(args, before.as_ref(), &context.settings);
        let running = running(&daemon, &client).await?;
        let there = running.is_some();
        let fits = running.as_ref().is_some_and(is_as_asked) && before.as_ref() == Some(&asked);
        if !fits {
            if let Some(listening) = running.and_then(|running| running.listening)
                && !args.yes
            {
                may_move(&client, &listening, &asked).await?;
            }
            if there {
                stop(&daemon, &client, StopRequest { cancel_running: false, hand_over: true }).await?;
            }
            let arguments = asked.arguments();
            let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
            if let Some(tcp) = daemon.spawn(&arguments)? {
                asked.port = tcp.port();
            }
            asked.remember(&places.state)?;
        }
        fits
    };
    let status: ServerStatus = client.get("/v1/server").await?;
    if context.json {
        print_json(&status)?;
        return Ok(ExitStatus::SUCCESS);
    }
    if was_there {
        say("it was up already, and is left as it is");
    }
    let elsewhere = context.settings.url.is_some()
        || Connections::load(&places.connections()).is_ok_and(|saved| saved.current().is_some());
    print(page(&status, places, elsewhere).trim_end())?;
    Ok(ExitStatus::SUCCESS)
}

/// What answers there; `None` when nothing does. One that was killed takes connections until the system has cleared it
/// away, so who gets no answer looks again.
async fn running(daemon: &OwnDaemon, client: &Client) -> Result<Option<ServerStatus>, CliError> {
    if !daemon.is_there()? {
        return Ok(None);
    }
    let impatient = client.clone().with_reconnect_for(ANSWERS_WITHIN);
    match impatient.get("/v1/server").await {
        Err(error) if error.is_connection() && daemon.is_there()? => {}
        Err(error) if error.is_connection() => return Ok(None),
        answered => return Ok(Some(answered?)),
    }
    match client.get("/v1/server").await {
        Err(error) if error.is_connection() && !daemon.is_there()? => Ok(None),
        answered => Ok(Some(answered?)),
    }
}

/// Asks before a server goes where the workers that joined it do not find it: they look for it where it was.
async fn may_move(client: &Client, now: &Listening, asked: &Standing) -> Result<(), CliError> {
    if now.address.parse().is_ok_and(|address| !asked.leaves(address)) {
        return Ok(());
    }
    let workers: Page<Worker> = client.get("/v1/workers").await?;
    let joined = workers.items.iter().filter(|worker| worker.kind == WorkerKind::Remote);
    let names: Vec<String> = joined.map(|worker| harmless(&worker.name, false)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let place = SocketAddr::new(asked.host, asked.port);
    say(&left_behind(&names, &now.url, place));
    if !std::io::stdin().is_terminal() {
        say("give --yes to move it all the same");
        return Err(CliError::NotConfirmed);
    }
    if confirmed(&format!("Move the server to {place}? [y/N] ")) {
        Ok(())
    } else {
        Err(CliError::NotConfirmed)
    }
}

fn left_behind(names: &[String], url: &str, place: SocketAddr) -> String {
    let count = match names.len() {
        1 => "1 worker has".to_owned(),
        count => format!("{count} workers have"),
    };
    format!(
        "{count} joined at {url} and will not find the server on {place}, until each joins again there: {}",
        names.join(", ")
    )
}

fn is_as_asked(running: &ServerStatus) -> bool {
    let listening = running.listening.as_ref();
    !running.on_demand
        && running.version == env!("CARGO_PKG_VERSION")
        && listening.is_some_and(|listening| listening.self_signed)
}

/// What runs, and what to type where. `elsewhere`: commands without `--server` go to another server.
fn page(status: &ServerStatus, places: &Places, elsewhere: bool) -> String {
    let mut page = String::new();
    let socket = places.socket();
    let Some(listening) = &status.listening else {
        return format!(
            "GPUlayer {} is up (process {}), on unix:{}",
            status.version,
            status.pid,
            socket.display()
        );
    };
    let _ = writeln!(
        page,
        "GPUlayer {} is up (process {}): {}, and here unix:{}",
        status.version,
        status.pid,
        listening.url,
        socket.display()
    );
    let here = if elsewhere { format!("gpulayer --server {LOCAL}") } else { "gpulayer".to_owned() };
    let _ = writeln!(page, "\nHere:\n  {here} run -- python train.py");
    let near = Endpoint::parse(&listening.url).is_ok_and(|endpoint| endpoint.is_loopback());
    if near {
        let _ = writeln!(
            page,
            "\nOther machines cannot reach {}; `gpulayer up --host ::` opens it to them.",
            listening.url
        );
    } else {
        machines(&mut page, listening, places, &here);
    }
    programs(&mut page, listening, places);
    let _ = writeln!(page, "\nStop it:\n  gpulayer down");
    page
}

fn machines(page: &mut String, listening: &Listening, places: &Places, here: &str) {
    let url = &listening.url;
    let pin = listening.pin.map(|pin| format!(" --pin {pin}")).unwrap_or_default();
    for (whom, verb, token, file) in [
        ("On a machine that is to run jobs", "join", places.join_token(), "join-token"),
        ("On a laptop that is to submit them", "connect", places.client_token(), "client-token"),
    ] {
        let _ = writeln!(
            page,
            "\n{whom}:\n  gpulayer {verb} {url} --token-file {file}{pin}\n  \
             first bring it the token, from here:  scp {} MACHINE:{file}",
            shell(&token)
        );
    }
    let _ = writeln!(
        page,
        "  that token may do everything here; for somebody who only submits jobs, make one instead:\n  \
         {here} token create --name NAME --to client-token"
    );
}

fn programs(page: &mut String, listening: &Listening, places: &Places) {
    let url = &listening.url;
    let token = shell(&places.client_token());
    let trust = match listening.pin.filter(|_| listening.self_signed) {
        Some(pin) => {
            format!("-k --pinnedpubkey {} ", curl_pin(&pin))
        }
        None => String::new(),
    };
    let _ = writeln!(
        page,
        "\nFrom a program, with curl:\n  curl {trust}-H \"Authorization: Bearer $(cat {token})\" {url}/v1/jobs"
    );
    let text = |word: &str| python_literal::of(&word.into(), 0);
    let mut words = vec![text(url), format!("token={}", text(&places.client_token().to_string_lossy()))];
    if let Some(pin) = listening.pin.filter(|_| listening.self_signed) {
        words.push(format!("pin={}", text(&pin.to_string())));
    }
    let python = format!("import gpulayer as gl; print(gl.connect({}).jobs())", words.join(", "));
    let _ = writeln!(page, "and with Python:\n  python3 -c {}", quoted(&python));
}

fn shell(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::pin::Pin;

    fn status(url: &str) -> ServerStatus {
        serde_json::from_value(serde_json::json!({
            "version": "0.1.0", "api_version": "gpulayer.dev/v1alpha1", "protocol": {"min": 1, "max": 1},
            "schema": "1", "started_at": "2026-11-29T12:00:00Z", "pid": 4711,
            "limits": {"json_body_bytes": 1, "batch_body_bytes": 1, "batch_jobs": 1, "page_limit": 1, "wait_s": 60,
                "max_artifact_bytes": 1},
            "jobs": {"queued": 0, "scheduled": 0, "running": 0},
            "listening": {"url": url, "address": "[::]:8470", "pin": Pin::from_bytes([0xab; 32]), "self_signed": true}
        }))
        .unwrap()
    }

    fn places() -> Places {
        Places { home: "/home/ann/.gpulayer".into(), state: "/home/ann/.gpulayer/state".into() }
    }

    #[test]
    fn what_to_type_next_is_said_for_every_machine() {
        insta::assert_snapshot!(page(&status("https://10.0.0.7:8470"), &places(), false), @r#"
        GPUlayer 0.1.0 is up (process 4711): https://10.0.0.7:8470, and here unix:/home/ann/.gpulayer/state/gpulayer.sock

        Here:
          gpulayer run -- python train.py

        On a machine that is to run jobs:
          gpulayer join https://10.0.0.7:8470 --token-file join-token --pin sha256:abababababababababababababababababababababababababababababababab
          first bring it the token, from here:  scp /home/ann/.gpulayer/join-token MACHINE:join-token

        On a laptop that is to submit them:
          gpulayer connect https://10.0.0.7:8470 --token-file client-token --pin sha256:abababababababababababababababababababababababababababababababab
          first bring it the token, from here:  scp /home/ann/.gpulayer/client-token MACHINE:client-token
          that token may do everything here; for somebody who only submits jobs, make one instead:
          gpulayer token create --name NAME --to client-token

        From a program, with curl:
          curl -k --pinnedpubkey sha256//q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s= -H "Authorization: Bearer $(cat /home/ann/.gpulayer/client-token)" https://10.0.0.7:8470/v1/jobs
        and with Python:
          python3 -c 'import gpulayer as gl; print(gl.connect("https://10.0.0.7:8470", token="/home/ann/.gpulayer/client-token", pin="sha256:abababababababababababababababababababababababababababababababab").jobs())'

        Stop it:
          gpulayer down
        "#);
    }

    #[test]
    fn workers_that_would_not_find_the_server_are_named() {
        let place = "[::]:18472".parse().unwrap();
        let said = left_behind(&["a".to_owned(), "b".to_owned()], "https://10.0.0.7:8470", place);
        insta::assert_snapshot!(said, @"2 workers have joined at https://10.0.0.7:8470 and will not find the server on [::]:18472, until each joins again there: a, b");
    }

    #[test]
    fn a_server_on_loopback_sends_nobody_elsewhere() {
        let page = page(&status("https://127.0.0.1:8470"), &places(), true);
        assert!(
            page.contains("gpulayer --server local run") && page.contains("`gpulayer up --host ::` opens"),
            "{page}"
        );
        assert!(!page.contains("gpulayer join") && page.contains("curl"), "{page}");
    }
}
