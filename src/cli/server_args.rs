//! The daemon's commands and those about servers, as typed.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::contract::pin::Pin;

/// A TCP port.
fn port(text: &str) -> Result<u16, &'static str> {
    text.parse().map_err(|_| "expected a port, from 0 to 65535")
}

/// A pin; what the type says of a bad one stands beside it.
fn pin(text: &str) -> Result<Pin, crate::contract::pin::PinError> {
    text.parse()
}

/// A name or an address under which a machine is reached.
fn host(text: &str) -> Result<String, &'static str> {
    if crate::config::is_host(text) { Ok(text.to_owned()) } else { Err("expected a host name or an address") }
}

/// `gpulayer up`.
#[derive(Debug, Args)]
pub(super) struct UpArgs {
    /// Port; 0 = any free one [default: 8470]
    #[arg(long, value_parser = port, value_name = "PORT")]
    pub(super) port: Option<u16>,
    /// Listen on this address alone, such as 127.0.0.1 [default: all]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) host: Option<IpAddr>,
    /// The name or address under which others reach this machine [default: that of the default route]
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub(super) advertise_address: Option<String>,
    /// Only the control plane: run no jobs on this machine
    #[arg(long)]
    pub(super) no_worker: bool,
    /// Do not ask: `up` asks before it moves a server to an address where workers that joined do not find it
    #[arg(long, short = 'y')]
    pub(super) yes: bool,
}

/// `gpulayer down`.
#[derive(Debug, Args)]
pub(super) struct DownArgs {
    /// Leave running tasks to the next daemon
    #[arg(long)]
    pub(super) keep: bool,
    /// Do not ask: on a terminal, `down` asks before it ends jobs that run
    #[arg(long, short = 'y')]
    pub(super) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum ServerCommand {
    /// Make the first tokens of a server before it runs: it is given their hashes alone
    Init(ServerInitArgs),
    /// Run the daemon in the foreground
    Start(ServerStartArgs),
}

/// `gpulayer server init`.
#[derive(Debug, Args)]
pub(super) struct ServerInitArgs {
    /// Write the admin's client token into this new file, instead of showing it
    #[arg(long, value_name = "FILE")]
    pub(super) client_token_file: Option<PathBuf>,
    /// Write the workers' join token into this new file, instead of showing it
    #[arg(long, value_name = "FILE")]
    pub(super) join_token_file: Option<PathBuf>,
}

/// `gpulayer server start`.
#[derive(Debug, Args)]
pub(super) struct ServerStartArgs {
    /// Port; 0 = any free one [default: 8470]
    #[arg(long, value_parser = port, value_name = "PORT", conflicts_with = "no_tcp")]
    pub(super) port: Option<u16>,
    /// Address to listen on; `::` = all there are
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", conflicts_with = "no_tcp")]
    pub(super) host: IpAddr,
    /// HTTPS with this certificate: PEM, the server's own first; read anew when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "no_tcp")]
    pub(super) tls_cert: Option<PathBuf>,
    /// Its private key: PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(super) tls_key: Option<PathBuf>,
    /// HTTPS with a certificate that this server makes itself; clients and workers pin its key
    #[arg(long, conflicts_with_all = ["tls_cert", "no_tcp"])]
    pub(super) self_signed: bool,
    /// Plain HTTP on other addresses than loopback: whoever can listen on the way has the tokens
    #[arg(long, conflicts_with_all = ["tls_cert", "self_signed", "no_tcp"])]
    pub(super) allow_insecure_remote: bool,
    /// The name or address under which others reach this machine [default: that of the default route]
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub(super) advertise_address: Option<String>,
    /// Only the Unix socket
    #[arg(long)]
    pub(super) no_tcp: bool,
    /// The Unix socket [default: $GPULAYER_STATE/gpulayer.sock]
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Only the control plane: run no jobs on this machine
    #[arg(long)]
    pub(super) no_worker: bool,
    /// Started by a command that found no daemon: leaves when idle
    #[arg(long, hide = true)]
    pub(super) on_demand: bool,
    /// Standard input is a pipe to whoever waits for the daemon to answer
    #[arg(long, hide = true)]
    pub(super) tell_ready: bool,
}

/// `gpulayer connect`.
#[derive(Debug, Args)]
#[command(
    after_help = "A token in the command line is seen by everybody on this machine: give it by --token-file, by\n\
                        GPULAYER_TOKEN, or as a connection string on standard input (`-`)."
)]
pub(super) struct ConnectArgs {
    /// https://HOST[:PORT], a connection string gpulayer://…, or `-` to read either from standard input
    #[arg(value_name = "SERVER", required_unless_present_any = ["list", "use_saved", "remove"])]
    pub(super) server: Option<String>,
    /// What to call it [default: its host]
    #[arg(long, value_name = "NAME", value_parser = name, requires = "server")]
    pub(super) name: Option<String>,
    /// File with a client token (`glc_…`)
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(super) token_file: Option<PathBuf>,
    /// The key the server must have, as `gpulayer up` printed it there; repeat while it changes
    #[arg(long, value_name = "sha256:HEX", value_parser = pin, requires = "server")]
    pub(super) pin: Vec<Pin>,
    /// PEM file with the certificate authorities to believe, instead of the system's
    #[arg(long, value_name = "FILE", requires = "server", conflicts_with = "pin")]
    pub(super) ca_file: Option<PathBuf>,
    /// List the saved servers
    #[arg(long, conflicts_with_all = ["server", "use_saved", "remove"])]
    pub(super) list: bool,
    /// Speak with this saved server from now on; `local` = with the own daemon again
    #[arg(long = "use", value_name = "NAME", conflicts_with_all = ["server", "remove"])]
    pub(super) use_saved: Option<String>,
    /// Forget this saved server
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    pub(super) remove: Option<String>,
}

fn name(text: &str) -> Result<String, &'static str> {
    match text {
        super::server_choice::LOCAL => Err("`local` means the own daemon"),
        text if crate::config::connections::is_name(text) => Ok(text.to_owned()),
        _ => Err("expected letters, digits, `-`, `_` and `.`, up to 63"),
    }
}

/// `gpulayer doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// With --server: the key it must have, as `gpulayer up` printed it there
    #[arg(long, value_name = "sha256:HEX", value_parser = pin)]
    pub(super) pin: Vec<Pin>,
    /// With --server: PEM file with the certificate authorities to believe, instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "pin")]
    pub(super) ca_file: Option<PathBuf>,
    /// With --server: for how many seconds to hold a poll open, to see whether something on the way cuts it; 0 = not
    #[arg(long, value_name = "SECONDS", default_value_t = 32, value_parser = clap::value_parser!(u64).range(..=60))]
    pub(super) hold: u64,
}
