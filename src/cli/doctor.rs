//! `doctor`: what this installation stands on, checked one by one. Starts nothing and changes nothing.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Context;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::on_demand::{OwnDaemon, process};
use super::reach;
use super::screen::{print_json, table};
use super::server_args::DoctorArgs;
use super::server_choice::{LOCAL, OnDemand};
use super::shown::{moment, size};
use crate::client::ClientError;
use crate::config::places::{file_system_magic, on_network_file_system};
use crate::contract::quantity::Timestamp;
use crate::contract::server::ServerStatus;

/// Clocks further apart than this make times in logs and lists misleading (microseconds).
const CLOCK_MICROS: i64 = 5_000_000;

/// One thing that was looked at.
#[derive(Debug, serde::Serialize)]
pub(super) struct Check {
    pub(super) what: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Ok,
    Note,
    Bad,
}

pub(super) fn check(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check { what, verdict, found: found.into() }
}

/// `gpulayer doctor`; with `--server` it looks at the way there instead.
pub(super) async fn run(context: &Context, args: &DoctorArgs) -> Result<ExitStatus, CliError> {
    if let Some(server) = context.server_flag.as_deref().filter(|server| *server != LOCAL) {
        return report(context, reach::checks(context, server, args).await?);
    }
    for (flag, given) in [("--pin", args.pin.is_empty()), ("--ca-file", args.ca_file.is_none())] {
        if !given {
            return Err(CliError::Flag {
                flag,
                given: "alone".to_owned(),
                expected: "--server with it, another than local",
            });
        }
    }
    let settings = &context.settings;
    let mut checks = vec![
        check("version", Verdict::Ok, env!("CARGO_PKG_VERSION")),
        private("home folder", &settings.places.home, 0o077),
        private("state folder", &settings.places.state, 0o077),
        file_system(&settings.places.state),
        free_disk(&settings.places.state, settings.min_free_bytes),
    ];
    for (what, path) in [
        ("client token", settings.places.client_token()),
        ("join token", settings.places.join_token()),
        ("saved servers", settings.places.connections()),
        ("server's key", settings.places.tls().join("key.pem")),
    ] {
        if path.exists() {
            checks.push(private(what, &path, 0o177));
        }
    }
    checks.extend(secrets_in(&settings.places.home.join("config.toml")));
    let server = context.server(OnDemand::Leave)?;
    match server.client.get::<ServerStatus>("/v1/server").await {
        Ok(status) => {
            let same = status.version == env!("CARGO_PKG_VERSION");
            let verdict = if same { Verdict::Ok } else { Verdict::Note };
            let found = format!(
                "version {}, process {}, up since {}",
                status.version,
                status.pid,
                moment(status.started_at)
            );
            checks.push(check("daemon", verdict, found));
            let jobs = status.jobs;
            let found =
                format!("{} queued, {} scheduled, {} running", jobs.queued, jobs.scheduled, jobs.running);
            checks.push(check("jobs", Verdict::Ok, found));
            checks.push(clock(&server.client).await);
        }
        Err(ClientError::Unreachable { .. }) if server.own => {
            checks.push(match OwnDaemon::new(settings.places.clone()).holder()? {
                None => {
                    check("daemon", Verdict::Note, "not running; the next command that needs it starts it")
                }
                Some(holder) => {
                    let found = format!("{} holds the state folder and does not answer", process(holder.pid));
                    check("daemon", Verdict::Bad, found)
                }
            });
        }
        Err(error) => checks.push(check("daemon", Verdict::Bad, in_a_line(error, context))),
    }
    report(context, checks)
}

/// A fault with its causes and what to do, for a table.
pub(super) fn in_a_line(error: ClientError, context: &Context) -> String {
    let told = CliError::from(error).rendered(&context.next());
    let told = told.trim().trim_start_matches("gpulayer: ").replace("\n  because: ", ": ");
    told.replace("\n  hint: ", "; next: ").replace('\n', " ")
}

/// Shows what was found; any fault fails the command.
fn report(context: &Context, checks: Vec<Check>) -> Result<ExitStatus, CliError> {
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Bad).count();
    if context.json {
        print_json(&checks)?;
    } else {
        let word = |verdict| match verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Bad => "BAD",
        };
        let rows: Vec<_> = checks
            .iter()
            .map(|check| vec![check.what.to_owned(), word(check.verdict).to_owned(), check.found.clone()])
            .collect();
        table(&["CHECK", "", "FOUND"], &rows)?;
    }
    if failed > 0 { Err(CliError::Unwell { failed }) } else { Ok(ExitStatus::SUCCESS) }
}

/// A file or folder that nobody else may enter or read.
fn private(what: &'static str, path: &Path, forbidden: u32) -> Check {
    let shown = path.display();
    match std::fs::metadata(path) {
        Err(absent) if absent.kind() == std::io::ErrorKind::NotFound => {
            check(what, Verdict::Note, format!("{shown} is not there yet"))
        }
        Err(error) => check(what, Verdict::Bad, format!("{shown}: {error}")),
        Ok(found) if found.uid() != rustix::process::getuid().as_raw() => {
            check(what, Verdict::Bad, format!("{shown} belongs to user {}", found.uid()))
        }
        Ok(found) if found.mode() & forbidden != 0 => {
            let mode = found.mode() & 0o777;
            let right = if found.is_dir() { "700" } else { "600" };
            check(what, Verdict::Bad, format!("{shown} has mode {mode:03o}: chmod {right} {shown}"))
        }
        Ok(_) => check(what, Verdict::Ok, shown.to_string()),
    }
}

/// A configuration that holds secrets is its owner's alone: the worker refuses them otherwise.
fn secrets_in(config: &Path) -> Option<Check> {
    let text = std::fs::read_to_string(config).ok()?;
    let holds = toml::from_str::<toml::Table>(&text).is_ok_and(|table| table.contains_key("secrets"));
    holds.then(|| private("secrets", config, 0o177))
}

fn file_system(state: &Path) -> Check {
    let Some(magic) = file_system_magic(state) else {
        return check("file system", Verdict::Note, "its kind cannot be told");
    };
    if on_network_file_system(state) {
        let found = format!("0x{magic:X} is shared between machines: set GPULAYER_STATE to a local folder");
        return check("file system", Verdict::Bad, found);
    }
    check("file system", Verdict::Ok, format!("local (0x{magic:X})"))
}

fn free_disk(state: &Path, min_free_bytes: u64) -> Check {
    let found = state.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok());
    let Some(found) = found else { return check("free disk", Verdict::Note, "cannot be told") };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let verdict = if free < min_free_bytes { Verdict::Bad } else { Verdict::Ok };
    check(
        "free disk",
        verdict,
        format!("{} (submissions are refused below {})", size(free), size(min_free_bytes)),
    )
}

/// Compares clocks by the `Date` of an answer.
pub(super) async fn clock(client: &crate::client::Client) -> Check {
    let before = crate::clock::now();
    let answer = client.answer(&crate::client::Call::get("/healthz")).await;
    let date = answer.ok().and_then(|answer| answer.header("date").and_then(http_date));
    let Some(date) = date else { return check("clock", Verdict::Note, "the server does not tell its time") };
    // The header has whole seconds.
    let apart = (date.micros() + 500_000 - before.micros()).abs();
    let verdict = if apart > CLOCK_MICROS { Verdict::Bad } else { Verdict::Ok };
    check("clock", verdict, format!("{} s apart from the server's", apart / 1_000_000))
}

fn http_date(text: &str) -> Option<Timestamp> {
    let time = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(Timestamp::from_micros(time.timestamp().as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_token_is_bad_and_says_how_to_close_it() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("client-token");
        std::fs::write(&token, "x").unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap()
        };
        mode(0o644);
        let open = private("client token", &token, 0o177);
        assert!(open.verdict == Verdict::Bad && open.found.contains("chmod 600"), "{}", open.found);
        mode(0o600);
        assert!(private("client token", &token, 0o177).verdict == Verdict::Ok);
    }

    #[test]
    fn a_configuration_is_looked_at_when_it_holds_secrets() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.toml");
        assert!(secrets_in(&config).is_none());
        std::fs::write(&config, "[secrets]\nHF_TOKEN = \"x\"\n").unwrap();
        for (mode, verdict) in [(0o644, Verdict::Bad), (0o600, Verdict::Ok)] {
            std::fs::set_permissions(&config, PermissionsExt::from_mode(mode)).unwrap();
            assert!(secrets_in(&config).unwrap().verdict == verdict);
        }
        std::fs::write(&config, "lease_ttl_s = 20\n").unwrap();
        assert!(secrets_in(&config).is_none());
    }

    #[test]
    fn the_date_of_an_answer_is_read() {
        let date = http_date("Tue, 14 Nov 2023 22:13:20 GMT").unwrap();
        assert_eq!(date, Timestamp::from_micros(1_700_000_000_000_000));
    }
}
