//! What to do next about a command that did not do what it was asked.

use super::CliError;
use crate::artifacts::bundle::BundleError;
use crate::cli::join::error::JoinError;
use crate::cli::next_step::NextStep;
use crate::client::{ClientError, Endpoint};
use crate::contract::error_code::ErrorCode;
use crate::contract::pin::Pin;
use crate::tls::{Distrust, TlsFault};

/// About a name that nobody here knows.
pub(in crate::cli) const UNKNOWN_NAME: &str = "this machine does not know that name: check the spelling, or give the server's address as `gpulayer up` prints it there";

/// The URL that may have been meant by what looks like a host and not like a name.
fn did_you_mean(given: &str) -> Option<String> {
    let like_a_host = given.contains(['.', ':']) || given == "localhost";
    let meant = Endpoint::parse(&format!("https://{given}")).ok().filter(|_| like_a_host)?;
    Some(format!(" (did you mean {meant}?)"))
}

impl CliError {
    /// What to do next, when there is something to say.
    pub(super) fn hint(&self, next: &NextStep) -> Option<String> {
        match self {
            CliError::Client(ClientError::Tls { endpoint, source })
            | CliError::Join(JoinError::Server { source: ClientError::Tls { endpoint, source }, .. }) => {
                tls_hint(endpoint, source)
            }
            CliError::Join(error) => error.hint().map(str::to_owned),
            CliError::Client(ClientError::Proxy { .. }) => Some(
                "the proxy is from HTTPS_PROXY, HTTP_PROXY or ALL_PROXY; NO_PROXY names servers that are reached without it"
                    .to_owned(),
            ),
            CliError::NoWorkerFits { by_quota: true, .. } => Some(
                "whoever runs the server decides what a project may have (its table [projects.NAME] of config.toml)".to_owned(),
            ),
            CliError::NoWorkerFits { .. } => Some(
                "`gpulayer submit` in place of `run` queues it until a worker comes that can; `gpulayer worker list` shows those there are"
                    .to_owned(),
            ),
            CliError::NoSuchServer { name, .. } => Some(format!(
                "`gpulayer connect` saves servers; a URL begins with https://, http:// or unix:{}",
                did_you_mean(name).unwrap_or_default()
            )),
            CliError::DownElsewhere { .. } => Some(
                "type `gpulayer down` on that server's machine; `gpulayer down` without --server stops this machine's own daemon"
                    .to_owned(),
            ),
            CliError::SavedToken { url, .. } => Some(format!(
                "GPULAYER_TOKEN does not count for a saved server: bring its new token over (on its machine: ~/.gpulayer/client-token, \
                 or `gpulayer token create`), then gpulayer connect {url} --token-file FILE"
            )),
            CliError::AmbiguousWorker { .. } => Some("name it by its id, or by the end of that".to_owned()),
            CliError::JoinToken => Some("`gpulayer up` writes it to ~/.gpulayer/client-token on the server's machine".to_owned()),
            CliError::NoToken { .. } => Some(
                "give --token-file, GPULAYER_TOKEN, or a connection string on standard input; `gpulayer up` writes a token to ~/.gpulayer/client-token on the server's machine"
                    .to_owned(),
            ),
            CliError::NameTaken { .. } => Some("choose another with --name, or `gpulayer connect --remove` it first".to_owned()),
            CliError::PlainAbroad { .. } => Some(
                "give --self-signed (clients and workers pin the key it makes), --tls-cert and --tls-key (a certificate of yours), \
                 or --allow-insecure-remote (something in front does TLS, or everybody on the way may read along)"
                    .to_owned(),
            ),
            CliError::Client(error @ ClientError::Unreachable { .. }) if error.is_unknown_name() => {
                Some(UNKNOWN_NAME.to_owned())
            }
            CliError::Client(ClientError::Unreachable { endpoint, .. }) => Some(match endpoint {
                Endpoint::Unix(_) => {
                    "start the server that has this socket (`gpulayer up`); no other one takes its place".to_owned()
                }
                endpoint => format!(
                    "start it there (`gpulayer up`) and let this machine reach its port; `gpulayer doctor --server {endpoint}` \
                     looks at each part of the way. No other server takes its place"
                ),
            }),
            CliError::Client(ClientError::Silent { .. }) => Some(
                "the call may have been carried out; the server hangs, or something else listens there (`gpulayer doctor` looks)".to_owned(),
            ),
            CliError::Client(ClientError::Refused(problem)) => match problem.code {
                ErrorCode::Unauthenticated => Some(
                    "set GPULAYER_TOKEN to a client token; on the server's machine: GPULAYER_TOKEN=$(cat ~/.gpulayer/client-token)"
                        .to_owned(),
                ),
                ErrorCode::TokenExpired | ErrorCode::TokenRevoked => Some(
                    "`gpulayer token create` on the server's machine makes another; set GPULAYER_TOKEN to it, or save it with `gpulayer connect`"
                        .to_owned(),
                ),
                ErrorCode::StorageFull => Some("free disk space on the server, or remove ended jobs with `".to_owned() + &next.command("rm") + "`"),
                ErrorCode::ProjectFull => Some("`".to_owned() + &next.command("ps") + "` shows what has not ended"),
                ErrorCode::Internal => Some(format!("look for request {} in the daemon's log", problem.request_id)),
                _ if problem.retryable => Some("try again shortly".to_owned()),
                _ => None,
            },
            CliError::OutputThere { .. } => Some("overwrite with --force".to_owned()),
            CliError::NotOverwritten { path } if path.ends_with("server-credentials.json") => {
                Some("this server has its first tokens; `gpulayer token create` makes more".to_owned())
            }
            CliError::NotOverwritten { .. } => Some("give the name of a new file, or remove that one".to_owned()),
            CliError::InTheWay { .. } => Some("fetch into another folder with --to, or overwrite with --force".to_owned()),
            CliError::NothingToFetch { job, ended: false, .. } => {
                Some(format!("`{}` first", next.command(&format!("wait {job}"))))
            }
            CliError::NothingToFetch { job, undeclared: false, kept, .. } if *kept > 0 => Some(format!(
                "`{}` brings {kept} that no --output names",
                next.command(&format!("fetch {job} --undeclared"))
            )),
            CliError::JobNotEnded { job, .. } => Some(format!("`{}` stops it", next.command(&format!("cancel {job}")))),
            CliError::Bundle { source, .. } => match source.downcast_ref() {
                Some(BundleError::TooLarge { .. } | BundleError::TooManyEntries { .. }) => Some(
                    "leave files out with a .gpulayerignore, send nothing with --source none, or single files with --input"
                        .to_owned(),
                ),
                _ => None,
            },
            CliError::NoSuchJob { .. } | CliError::NoJobLabelled { .. } => {
                Some(format!("`{}` lists all jobs", next.command("ps -a")))
            }
            CliError::NoSuchWorker { .. } => Some(format!("`{}` lists all workers", next.command("worker list"))),
            CliError::NoSuchToken { .. } => Some(format!("`{}` lists them", next.command("token list"))),
            CliError::NoSuchTask { .. } => Some(format!("`{}` lists what runs", next.command("ps"))),
            CliError::AmbiguousJob { .. } => Some("give more characters of the id".to_owned()),
            CliError::HereElsewhere => Some("leave --here out to send a copy of the folder (--source)".to_owned()),
            _ => None,
        }
    }
}

/// What to do about a server that is not trusted.
fn tls_hint(endpoint: &Endpoint, fault: &TlsFault) -> Option<String> {
    let authority = endpoint.authority();
    let compare = |seen: &Pin| format!("its key is {seen}");
    Some(match fault {
        TlsFault::Distrust(Distrust::WrongKey { .. }) => {
            "somebody may be in between. If the server really has a new key, `gpulayer up` on its machine prints it: compare, then connect or join again with that --pin"
                .to_owned()
        }
        TlsFault::Distrust(Distrust::UnknownIssuer { seen, .. }) => format!(
            "{}. If `gpulayer up` on the server's machine prints the same, give it: --pin {seen} (or GPULAYER_PIN); with a certificate authority of your own: --ca-file",
            compare(seen)
        ),
        TlsFault::Distrust(Distrust::Expired { seen, .. }) => format!(
            "renew the certificate on the server, or check this machine's clock. {}: with that --pin the time does not count",
            compare(seen)
        ),
        TlsFault::Distrust(Distrust::NotYetValid { .. }) => "check this machine's clock, and the server's".to_owned(),
        TlsFault::Distrust(Distrust::WrongName { seen, .. }) => format!(
            "use a name that the certificate is for, or let the server's machine have this one (`server_names`). {}: with that --pin the name does not count",
            compare(seen)
        ),
        TlsFault::PlainHttp => format!("give http://{authority}, or let the server speak TLS (`gpulayer up`, `server start --self-signed`)"),
        TlsFault::HttpsOnly => format!("give https://{authority}"),
        TlsFault::NoRoots => "install the system's certificates (Debian: ca-certificates), or give --pin or --ca-file".to_owned(),
        TlsFault::Handshake { .. } => "something that is no GPUlayer server may listen there, or cut the connection (`gpulayer doctor --server` looks)".to_owned(),
        TlsFault::Distrust(Distrust::Unusable { .. })
        | TlsFault::Slow { .. }
        | TlsFault::BadName { .. }
        | TlsFault::CaFile { .. }
        | TlsFault::CaFileEmpty { .. }
        | TlsFault::Setup { .. } => return None,
    })
}
