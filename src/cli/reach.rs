//! `doctor --server`: the way to a server, part by part: name, proxy, connection, TLS, HTTP, token, versions, clocks,
//! long polls, throughput. Each part says what was found and, where it is a fault, what to do.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Context;
use super::doctor::{Check, Verdict, check, clock, in_a_line};
use super::error::CliError;
use super::join::joined_trust;
use super::screen::say;
use super::server_args::DoctorArgs;
use super::server_choice::{Target, target};
use super::shown::{harmless, size};
use crate::client::{Call, Client, ClientError, Endpoint, TlsLook, Trust};
use crate::clock::now;
use crate::config::Settings;
use crate::contract::artifact::Digest;
use crate::contract::error_code::ErrorCode;
use crate::contract::protocol::PROTOCOL;
use crate::contract::quantity::Timestamp;
use crate::contract::server::{ServerStatus, WhoAmI};
use crate::short_file;
use crate::tls::Certificate;

const RESOLVE_WITHIN: Duration = Duration::from_secs(5);
/// So many addresses go up and come back: about 800 kB each way.
const ADDRESSES: usize = 10_000;
const ADDRESS_BYTES: u64 = 84;
const THROUGHPUT_WITHIN: Duration = Duration::from_secs(30);
/// Clocks further apart than this make times misleading (microseconds).
const CLOCK_MICROS: i64 = 5_000_000;
/// A given certificate with less than this left is soon a fault (days).
const DAYS_LEFT: i64 = 14;
/// No event has a number beyond.
const LAST_EVENT: i64 = i64::MAX;

/// Looks until something is in the way of the rest; holds a poll open for `hold_s`, unless that is 0.
pub(super) async fn checks(
    context: &Context,
    given: &str,
    args: &DoctorArgs,
) -> Result<Vec<Check>, CliError> {
    let mut target = target(given, &context.settings)?;
    let joined = complete(&mut target, args, &context.settings);
    let client = target.client()?.with_reconnect_for(Duration::ZERO);
    let mut look = Look { context, target: &target, client: &client, joined, checks: Vec::new() };
    look.all(args.hold).await;
    Ok(look.checks)
}

/// Takes what this machine knows of the server for what was not given: what a worker here believes, or, on the server
/// itself, its own key, and with that its own token. Whether a worker of this machine has joined there.
fn complete(target: &mut Target, args: &DoctorArgs, settings: &Settings) -> bool {
    let joined = joined_trust(settings, &target.endpoint);
    if !args.pin.is_empty() || args.ca_file.is_some() {
        target.trust = Trust { pins: args.pin.clone(), ca_file: args.ca_file.clone() };
    } else if matches!(target.endpoint, Endpoint::Https { .. }) && target.trust == Trust::default() {
        if let Some(trust) = &joined {
            target.trust = trust.clone();
        } else if target.endpoint.is_loopback()
            && let Some(own) = Certificate::of_file(&settings.places.tls().join("cert.pem"))
        {
            target.trust = Trust::pinned(own.pin);
            // Said to nobody but who has that key.
            let own_token =
                || short_file::read_text(&settings.places.client_token(), short_file::TOKEN_BYTES).ok();
            target.token = target.token.take().or_else(|| own_token().map(|text| text.trim().to_owned()));
        }
    }
    joined.is_some()
}

struct Look<'a> {
    context: &'a Context,
    target: &'a Target,
    client: &'a Client,
    /// Whether a worker of this machine has joined there.
    joined: bool,
    checks: Vec<Check>,
}

/// Something is in the way of what comes after it.
struct Blocked;

impl Look<'_> {
    async fn all(&mut self, hold_s: u64) {
        self.note("server", Verdict::Ok, self.target.endpoint.to_string());
        if self.line().await.is_err() || self.http().await.is_err() || self.token().await.is_err() {
            return;
        }
        self.server().await;
        self.throughput().await;
        if hold_s == 0 {
            return;
        }
        if !self.context.json {
            say(&format!(
                "holding a poll open for {hold_s} s, to see whether something on the way cuts it …"
            ));
        }
        self.poll(hold_s).await;
    }

    fn note(&mut self, what: &'static str, verdict: Verdict, found: impl Into<String>) {
        self.checks.push(check(what, verdict, found));
    }

    fn fault(&mut self, what: &'static str, error: ClientError) -> Blocked {
        self.note(what, Verdict::Bad, in_a_line(error, self.context));
        Blocked
    }

    async fn line(&mut self) -> Result<(), Blocked> {
        let Some((host, port)) = self.target.endpoint.host_and_port() else { return Ok(()) };
        let proxy = self.client.proxy().map(ToString::to_string);
        self.name(host, port, proxy.is_some()).await;
        self.note("proxy", Verdict::Ok, proxy.as_ref().map_or("none", |proxy| proxy.as_str()));
        match self.client.look_at_line().await {
            Ok(took) => self.note("connection", Verdict::Ok, format!("opened in {}", milliseconds(took))),
            Err(error @ ClientError::Unreachable { .. }) if !error.is_unknown_name() => {
                let told = in_a_line(error, self.context);
                let told = told.split("; next: ").next().unwrap_or_default();
                let next = "start it there (`gpulayer up`), and let this machine reach its port (firewalls, the port itself)";
                self.note("connection", Verdict::Bad, format!("{told}; next: {next}"));
                return Err(Blocked);
            }
            Err(error) => return Err(self.fault("connection", error)),
        }
        match &self.target.endpoint {
            Endpoint::Https { .. } => match self.client.look_at_tls().await {
                Ok(seen) => {
                    let (verdict, found) = shown(&seen, &self.target.trust, now());
                    self.note("TLS", verdict, found);
                }
                Err(error) => return Err(self.fault("TLS", error)),
            },
            endpoint if endpoint.is_loopback() => self.note("TLS", Verdict::Ok, "none, on this machine"),
            _ => self.note(
                "TLS",
                Verdict::Note,
                "none: whoever can listen on the way has the token; `server start --self-signed` or `up` encrypts",
            ),
        }
        Ok(())
    }

    async fn name(&mut self, host: &str, port: u16, proxied: bool) {
        if host.parse::<IpAddr>().is_ok() {
            return self.note("name", Verdict::Ok, format!("{host} is an address"));
        }
        let found = tokio::time::timeout(RESOLVE_WITHIN, tokio::net::lookup_host((host, port))).await;
        let addresses = match found {
            Ok(Ok(addresses)) => addresses.map(|address| address.ip().to_string()).collect::<Vec<_>>(),
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        match (addresses.is_empty(), proxied) {
            (false, _) => self.note("name", Verdict::Ok, format!("{host} is {}", addresses.join(", "))),
            (true, true) => {
                self.note("name", Verdict::Note, format!("{host} is not known here; the proxy may know it"));
            }
            (true, false) => self.note(
                "name",
                Verdict::Bad,
                format!(
                    "{host} has no address: check the spelling, or use the address that `gpulayer up` prints"
                ),
            ),
        }
    }

    async fn http(&mut self) -> Result<(), Blocked> {
        // Without the token: whether that is good is asked afterwards.
        let bare = match (Target { token: None, ..self.target.clone() }).client() {
            Ok(bare) => bare.with_reconnect_for(Duration::ZERO),
            Err(_) => self.client.clone(),
        };
        match bare.answer(&Call::get("/healthz")).await {
            Ok(answer) => {
                let version = bare.server_version();
                let (verdict, found) = match version {
                    Some(version) => (Verdict::Ok, format!("GPUlayer {version} answers")),
                    None => (Verdict::Bad, "something answers that is no GPUlayer server".to_owned()),
                };
                let via = answer.header("via").map(|via| format!(", via {}", harmless(via, false)));
                self.note("HTTP", verdict, found + &via.unwrap_or_default());
                if verdict == Verdict::Ok { Ok(()) } else { Err(Blocked) }
            }
            // The look at TLS believed everybody.
            Err(error @ ClientError::Tls { .. })
                if matches!(self.target.endpoint, Endpoint::Https { .. }) =>
            {
                self.checks.retain(|check| check.what != "TLS");
                Err(self.fault("TLS", error))
            }
            Err(error) => Err(self.fault("HTTP", error)),
        }
    }

    async fn token(&mut self) -> Result<(), Blocked> {
        if self.target.token.is_none() && self.target.endpoint.host_and_port().is_some() {
            if self.joined {
                self.note(
                    "token",
                    Verdict::Note,
                    "none, and a worker needs none: this machine has joined there. Versions, throughput and long \
                     polls are looked at with a client token (GPULAYER_TOKEN)",
                );
            } else {
                self.note(
                    "token",
                    Verdict::Bad,
                    "none: set GPULAYER_TOKEN, or save the server with `gpulayer connect --token-file`",
                );
            }
            self.checks.push(clock(self.client).await);
            return Err(Blocked);
        }
        match self.client.get::<WhoAmI>("/v1/whoami").await {
            Ok(me) => {
                let (name, role) = (harmless(&me.name, false), harmless(&me.role, false));
                self.note("token", Verdict::Ok, format!("{name} ({role})"));
                Ok(())
            }
            Err(error) => Err(self.fault("token", error)),
        }
    }

    async fn server(&mut self) {
        let before = now();
        let status = match self.client.get::<ServerStatus>("/v1/server").await {
            Ok(status) => status,
            Err(error) => {
                self.fault("versions", error);
                return;
            }
        };
        let after = now();
        let spoken = (status.protocol.min..=status.protocol.max).contains(&PROTOCOL);
        let found = format!(
            "server {}, here {}; worker protocol {} to {} there, {PROTOCOL} here",
            harmless(&status.version, false),
            env!("CARGO_PKG_VERSION"),
            status.protocol.min,
            status.protocol.max
        );
        let same = status.version == env!("CARGO_PKG_VERSION");
        self.note("versions", if same && spoken { Verdict::Ok } else { Verdict::Note }, found);
        if let Some(time) = status.time {
            let (verdict, found) = apart(before, time, after);
            self.note("clock", verdict, found);
        }
    }

    /// Asks for artifacts that nobody has: the question goes up, the same comes back, and nothing is kept.
    async fn throughput(&mut self) {
        let digests: Vec<_> = (0..ADDRESSES).map(|_| Digest::from_bytes(rand::random())).collect();
        let begun = Instant::now();
        match tokio::time::timeout(THROUGHPUT_WITHIN, self.client.missing(&digests)).await {
            Ok(Ok(missing)) => {
                let bytes = (digests.len() + missing.len()) as u64 * ADDRESS_BYTES;
                let took = begun.elapsed();
                let per_s = (bytes as f64 / took.as_secs_f64().max(0.001)) as u64;
                let found =
                    format!("{} up and down in {}: {}/s", size(bytes), milliseconds(took), size(per_s));
                self.note("throughput", Verdict::Ok, found);
            }
            Ok(Err(ClientError::Refused(problem))) if problem.code == ErrorCode::Forbidden => {
                let why = harmless(&problem.detail, false);
                self.note("throughput", Verdict::Note, format!("not measured: {why}"));
            }
            Ok(Err(error)) => {
                self.fault("throughput", error);
            }
            Err(_) => self.note(
                "throughput",
                Verdict::Bad,
                format!("a question of 0.8 MB was not answered within {} s", THROUGHPUT_WITHIN.as_secs()),
            ),
        }
    }

    /// Waits for an event that cannot come.
    async fn poll(&mut self, hold_s: u64) {
        let begun = Instant::now();
        let call = Call::get(format!("/v1/events?after={LAST_EVENT}&wait_s={hold_s}"));
        let answer = self.client.answer(&call).await;
        let held = begun.elapsed();
        let cut = format!(
            "cut after {} s by something on the way, such as a proxy: let it wait for more than 60 s \
             (nginx: proxy_read_timeout). Commands and workers go on with shorter polls",
            held.as_secs()
        );
        match answer {
            Ok(_) if held.as_secs() + 1 >= hold_s => {
                self.note("long poll", Verdict::Ok, format!("held for {hold_s} s"));
            }
            Ok(_) => {
                self.note("long poll", Verdict::Note, format!("answered after {} s already", held.as_secs()))
            }
            Err(ClientError::Refused(problem)) => {
                self.note(
                    "long poll",
                    Verdict::Note,
                    format!("not tried: {}", harmless(&problem.detail, false)),
                );
            }
            Err(_) => self.note("long poll", Verdict::Note, cut),
        }
    }
}

fn milliseconds(span: Duration) -> String {
    if span.as_secs() >= 10 { format!("{} s", span.as_secs()) } else { format!("{} ms", span.as_millis()) }
}

/// What a server shows over TLS, and whether it would be believed.
fn shown(seen: &TlsLook, trust: &Trust, now: Timestamp) -> (Verdict, String) {
    let version = seen.version.replace("TLSv1_", "TLS 1.");
    let Some(certificate) = &seen.certificate else {
        return (Verdict::Bad, format!("{version}, with a certificate that cannot be read"));
    };
    let days = (certificate.not_after.micros() - now.micros()) / 86_400_000_000;
    let left = if days < 0 { format!("expired {} days ago", -days) } else { format!("{days} days left") };
    let issuer = harmless(&certificate.issuer, false);
    let pin = certificate.pin;
    if !trust.pins.is_empty() {
        return if trust.pins.contains(&pin) {
            (
                Verdict::Ok,
                format!("{version}, the pinned key {pin} ({left}, which does not matter with a pin)"),
            )
        } else {
            // The call that follows says what is wrong.
            (Verdict::Note, format!("{version}, key {pin}, which is not the pinned one"))
        };
    }
    let verdict = if days < DAYS_LEFT { Verdict::Note } else { Verdict::Ok };
    (verdict, format!("{version}, issued by {issuer}, {left}, key {pin}"))
}

/// How far the server's clock is from this one, as well as the way there lets tell.
fn apart(before: Timestamp, there: Timestamp, after: Timestamp) -> (Verdict, String) {
    let way = after.micros() - before.micros();
    let offset = there.micros() - (before.micros() + way / 2);
    let verdict = if offset.abs() - way / 2 > CLOCK_MICROS { Verdict::Note } else { Verdict::Ok };
    let side = if offset < 0 { "behind" } else { "ahead" };
    let found =
        format!("the server's is {} ms {side} (± {} ms)", offset.abs() / 1000, (way / 2 + 999) / 1000);
    (verdict, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::pin::Pin;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    #[test]
    fn clocks_are_compared_by_the_middle_of_the_way() {
        let at = |ms: i64| Timestamp::from_micros(NOW.micros() + ms * 1000);
        let (verdict, found) = apart(at(0), at(7010), at(20));
        assert_eq!((verdict, found.as_str()), (Verdict::Note, "the server's is 7000 ms ahead (± 10 ms)"));
        assert_eq!(apart(at(0), at(-20), at(60)).1, "the server's is 50 ms behind (± 30 ms)");
        // A way that is as slow as that tells nothing.
        assert_eq!(apart(at(0), at(9000), at(9000)).0, Verdict::Ok);
    }

    #[test]
    fn what_is_shown_over_tls_is_told_with_its_key_and_its_end() {
        let days = |days: i64| Timestamp::from_micros(NOW.micros() + days * 86_400_000_000);
        let pin = Pin::from_bytes([1; 32]);
        let seen = |left| TlsLook {
            version: "TLSv1_3",
            certificate: Some(Certificate {
                pin,
                issuer: "CN=GPUlayer".into(),
                self_issued: true,
                names: Vec::new(),
                not_before: days(-1),
                not_after: days(left),
            }),
        };
        let (verdict, found) = shown(&seen(40), &Trust::default(), NOW);
        assert!(
            verdict == Verdict::Ok && found.contains("40 days left") && found.contains("TLS 1.3"),
            "{found}"
        );
        assert_eq!(shown(&seen(3), &Trust::default(), NOW).0, Verdict::Note);
        let pinned = Trust::pinned(pin);
        assert_eq!(shown(&seen(-3), &pinned, NOW).0, Verdict::Ok, "the key is the identity");
        let other = Trust::pinned(Pin::from_bytes([2; 32]));
        assert_eq!(shown(&seen(40), &other, NOW).0, Verdict::Note);
    }
}
