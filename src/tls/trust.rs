//! Whom a client trusts, and the TLS set-up that follows from it.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use super::fault::TlsFault;
use super::verifier::{AnyVerifier, PinVerifier, RootVerifier};
use crate::contract::pin::Pin;
use crate::short_file;

/// Whom to trust. Pins given: a server with one of these keys, whatever else its certificate says, and no other. A CA
/// file: whoever holds a certificate from one of the authorities in it. Neither: the system's authorities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// Keys; several while a server changes its key.
    pub pins: Vec<Pin>,
    /// PEM file with certificate authorities; not looked at when there are pins.
    pub ca_file: Option<PathBuf>,
}

/// How to open TLS connections under one [`Trust`]: cheap to clone, keeps sessions for resumption.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
}

impl Trust {
    /// Only servers with this key.
    pub fn pinned(pin: Pin) -> Self {
        Self { pins: vec![pin], ca_file: None }
    }

    /// Reads what has to be read. Blocks for a few milliseconds where the system's authorities are read.
    pub fn client(&self) -> Result<TlsClient, TlsFault> {
        if !self.pins.is_empty() {
            return TlsClient::with(Arc::new(PinVerifier::new(self.pins.clone())));
        }
        let (roots, own) = match &self.ca_file {
            Some(path) => (roots_of_file(path)?, true),
            None => (roots_of_system()?, false),
        };
        TlsClient::with(Arc::new(RootVerifier::new(roots, own)?))
    }
}

impl TlsClient {
    /// Takes any certificate: to look at a server before anything is said to it. Never send a token over it.
    pub fn that_looks() -> Result<Self, TlsFault> {
        Self::with(Arc::new(AnyVerifier))
    }

    fn with(verifier: Arc<dyn rustls::client::danger::ServerCertVerifier>) -> Result<Self, TlsFault> {
        let config = ClientConfig::builder_with_provider(super::provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|source| TlsFault::Setup { source })?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(Self { config: Arc::new(config) })
    }

    /// For a connector.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}

/// A host as TLS names it.
pub fn server_name(host: &str) -> Result<ServerName<'static>, TlsFault> {
    ServerName::try_from(host.to_owned()).map_err(|_| TlsFault::BadName { host: host.to_owned() })
}

fn roots_of_file(path: &std::path::Path) -> Result<RootCertStore, TlsFault> {
    let fault = |source| TlsFault::CaFile { path: path.to_owned(), source };
    let text = short_file::read(path, short_file::CERTIFICATES_BYTES).map_err(fault)?;
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_slice_iter(&text).flatten();
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 { Err(TlsFault::CaFileEmpty { path: path.to_owned() }) } else { Ok(roots) }
}

fn roots_of_system() -> Result<RootCertStore, TlsFault> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 { Err(TlsFault::NoRoots) } else { Ok(roots) }
}
