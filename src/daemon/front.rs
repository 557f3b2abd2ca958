//! The side that others see: the port, the certificate on it, and the names the server answers to.

use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use tracing::{info, warn};

use super::DaemonError;
use crate::clock;
use crate::config::{DaemonOptions, ServerCertificate, Settings, host};
use crate::contract::server::Listening;
use crate::http;
use crate::tls::{CertificateSource, Renewal, ServerTls};

/// How often a certificate is looked at: given files may change at any time.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// An own certificate holds no more names than this: a host may have thousands of interfaces.
const MOST_NAMES: usize = 64;

/// The port and what is shown on it.
pub(super) struct Front {
    /// The port, taken and not yet answered.
    pub tcp: Option<TcpListener>,
    /// With TLS.
    pub tls: Option<ServerTls>,
    /// What requests may call this server.
    pub names: Vec<String>,
}

impl Front {
    /// Reads or makes the certificate and takes the port.
    pub(super) fn open(options: &DaemonOptions) -> Result<Self, DaemonError> {
        let settings = &options.settings;
        let Some(address) = options.tcp else {
            return Ok(Self { tcp: None, tls: None, names: Vec::new() });
        };
        let source = options.certificate.as_ref().map(|certificate| match certificate {
            ServerCertificate::SelfSigned => {
                CertificateSource::Own { folder: settings.places.tls(), names: certified(settings) }
            }
            ServerCertificate::Given { certificate, key } => {
                CertificateSource::Given { certificate: certificate.clone(), key: key.clone() }
            }
        });
        let tls = source.map(|source| ServerTls::open(source, clock::wall())).transpose()?;
        if let Some(tls) = &tls {
            let shown = tls.certificate();
            info!(pin = %shown.pin, until = %shown.not_after, names = shown.names.join(", "), "the certificate");
            if shown.not_after <= clock::wall() {
                warn!(until = %shown.not_after, "the certificate has expired: only clients that have its pin still connect");
            }
        }
        let mut names = called(settings);
        if let Some(tls) = tls.as_ref().filter(|tls| !tls.is_own()) {
            // Whoever got a certificate for a name means it. A wildcard names nobody.
            names.extend(tls.certificate().names.into_iter().filter(|name| !name.contains('*')));
        }
        Ok(Self { tcp: Some(http::listen(address)?), tls, names })
    }

    /// As others are told.
    pub(super) fn listening(&self, settings: &Settings) -> Option<Listening> {
        let address = self.tcp.as_ref()?.local_addr().ok()?;
        let host = match address.ip() {
            ip if ip.is_unspecified() => reachable_at(settings),
            ip => settings.advertise_address.clone().unwrap_or_else(|| ip.to_string()),
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Some(Listening {
            url: format!("{scheme}://{host}:{}", address.port()),
            address: address.to_string(),
            pin: self.tls.as_ref().map(ServerTls::pin),
            self_signed: self.tls.as_ref().is_some_and(ServerTls::is_own),
        })
    }
}

/// The address of the default route, else the host's name.
fn reachable_at(settings: &Settings) -> String {
    settings
        .advertise_address
        .clone()
        .or_else(|| host::outward_address().map(|address| address.to_string()))
        .or_else(|| host::names().into_iter().next())
        .unwrap_or_else(|| "localhost".to_owned())
}

/// What people and programs may call this server.
fn called(settings: &Settings) -> Vec<String> {
    let mut names = host::names();
    names.extend(settings.advertise_address.iter().map(|name| name.to_lowercase()));
    names.extend(settings.server_names.iter().cloned());
    names
}

/// What a certificate of its own is for: its names, those of this machine, and its addresses.
fn certified(settings: &Settings) -> Vec<String> {
    let mut names = called(settings);
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    names.extend(host::addresses().iter().map(IpAddr::to_string));
    let mut known = std::collections::HashSet::new();
    names.retain(|name| known.insert(name.clone()));
    names.truncate(MOST_NAMES);
    names
}

/// Looks after the certificate until the system ends.
pub(super) fn keep_renewed(tls: ServerTls, settings: Settings) {
    actix_rt::spawn(async move {
        let mut interval = tokio::time::interval(LOOK_EVERY);
        interval.tick().await;
        let mut failing = false;
        loop {
            interval.tick().await;
            let (tls, settings) = (tls.clone(), settings.clone());
            let looked =
                tokio::task::spawn_blocking(move || tls.renew(&certified(&settings), clock::wall())).await;
            match looked {
                Ok(Ok(Renewal::Kept)) | Err(_) => failing = false,
                Ok(Ok(Renewal::Replaced(shown))) => {
                    failing = false;
                    info!(pin = %shown.pin, until = %shown.not_after, names = shown.names.join(", "), "the certificate was replaced");
                }
                // Once: it is looked at every minute.
                Ok(Err(error)) if !failing => {
                    failing = true;
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "the certificate cannot be replaced; the one before is still shown"
                    );
                }
                Ok(Err(_)) => {}
            }
        }
    });
}
