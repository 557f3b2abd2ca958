//! The certificate that a server shows: made here under a key that stays, or given by its owner. It can be replaced
//! while connections are open; the next handshake sees the new one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate::{self, Certificate};
use super::own_key;
use crate::contract::pin::Pin;
use crate::contract::quantity::Timestamp;
use crate::short_file;

/// Where a server's certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// Made here. `key.pem` and `cert.pem` in this folder, which is made (0700).
    Own {
        /// `$GPULAYER_HOME/tls`.
        folder: PathBuf,
        /// Names and addresses it is for.
        names: Vec<String>,
    },
    /// PEM files that somebody else looks after.
    Given {
        /// The server's certificate first, then the ones between it and the authority.
        certificate: PathBuf,
        /// PKCS #8, PKCS #1 or SEC 1.
        key: PathBuf,
    },
}

/// Why a server has no certificate to show.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    /// A file cannot be read or written.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// `read`, `write`, `make`.
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Others can read the key.
    #[error("the key {} can be read by others (mode {mode:03o}): if nobody has, `chmod 600` it; else remove it and cert.pem, and give every worker and client the new pin", path.display())]
    KeyOpen {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Somebody else owns the key.
    #[error("the key {} belongs to user {owner}, who can replace it: make it this user's with `chown`", path.display())]
    KeyForeign {
        /// Which.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
    },
    /// The key file holds no key.
    #[error("{} holds no private key: restore it from a backup. A new key is not made by itself, because every worker and client has the old one pinned; if that is meant, remove the file and cert.pem beside it", path.display())]
    KeyGarbled {
        /// Which.
        path: PathBuf,
    },
    /// The key is gone, and the certificate is not.
    #[error("{} is gone, but its certificate is there: restore the key from a backup. If a new key is meant, which every worker and client has to be told, remove {} too", key.display(), certificate.display())]
    KeyGone {
        /// Where it should be.
        key: PathBuf,
        /// What is left.
        certificate: PathBuf,
    },
    /// The certificate file holds no certificate.
    #[error("{} holds no certificate: a PEM file with `BEGIN CERTIFICATE` is expected", path.display())]
    CertificateGarbled {
        /// Which.
        path: PathBuf,
    },
    /// They are not a pair.
    #[error("{} and {} cannot be used together", certificate.display(), key.display())]
    NoPair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// `KeyMismatch`, or what is wrong with the key.
        source: rustls::Error,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate for {}", names.join(", "))]
    Make {
        /// For whom.
        names: Vec<String>,
        /// Why.
        source: rcgen::Error,
    },
    /// The TLS library refuses to be set up like this.
    #[error("TLS cannot be set up")]
    Setup {
        /// Why.
        source: rustls::Error,
    },
}

/// What a look at the certificate came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// It stays as it is.
    Kept,
    /// From now on this one is shown.
    Replaced(Certificate),
}

/// What a server needs for TLS. Clones share the certificate.
#[derive(Debug, Clone)]
pub struct ServerTls {
    slot: Arc<Slot>,
    source: Arc<Mutex<CertificateSource>>,
}

#[derive(Debug)]
struct Slot {
    shown: RwLock<Shown>,
}

#[derive(Debug, Clone)]
struct Shown {
    key: Arc<CertifiedKey>,
    certificate: Certificate,
    /// When the given files were last changed.
    changed: Option<SystemTime>,
}

impl ResolvesServerCert for Slot {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.shown.read().key))
    }
}

impl ServerTls {
    /// Reads what is there; for an own certificate makes what is not, and renews what has to be.
    pub fn open(source: CertificateSource, now: Timestamp) -> Result<Self, ServerTlsError> {
        let shown = match &source {
            CertificateSource::Own { folder, names } => own(folder, names, now)?,
            CertificateSource::Given { certificate, key } => given(certificate, key)?,
        };
        let slot = Arc::new(Slot { shown: RwLock::new(shown) });
        Ok(Self { slot, source: Arc::new(Mutex::new(source)) })
    }

    /// Looks again. An own certificate is renewed under its key when two thirds of its life are over or its names are
    /// no longer these; given files are read anew when they have changed. After an error the old one is still shown.
    pub fn renew(&self, names: &[String], now: Timestamp) -> Result<Renewal, ServerTlsError> {
        let mut source = self.source.lock();
        let fresh = match &mut *source {
            CertificateSource::Own { folder, names: known } => {
                names.clone_into(known);
                own(folder, names, now)?
            }
            CertificateSource::Given { certificate, key } => {
                if changed(certificate, key) == self.slot.shown.read().changed {
                    return Ok(Renewal::Kept);
                }
                given(certificate, key)?
            }
        };
        let mut shown = self.slot.shown.write();
        let kept = shown.certificate == fresh.certificate;
        *shown = fresh;
        Ok(if kept { Renewal::Kept } else { Renewal::Replaced(shown.certificate.clone()) })
    }

    /// What is shown now.
    pub fn certificate(&self) -> Certificate {
        self.slot.shown.read().certificate.clone()
    }

    /// The pin of the key.
    pub fn pin(&self) -> Pin {
        self.slot.shown.read().certificate.pin
    }

    /// Whether the certificate is one of its own, which only a pin makes trustworthy.
    pub fn is_own(&self) -> bool {
        matches!(&*self.source.lock(), CertificateSource::Own { .. })
    }

    /// For an acceptor.
    pub fn config(&self) -> Result<ServerConfig, ServerTlsError> {
        let config = ServerConfig::builder_with_provider(super::provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|source| ServerTlsError::Setup { source })?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.slot) as Arc<dyn ResolvesServerCert>);
        Ok(config)
    }
}

fn own(folder: &Path, names: &[String], now: Timestamp) -> Result<Shown, ServerTlsError> {
    let (certificate_path, key_path) = own_key::ready(folder, names, now)?;
    given(&certificate_path, &key_path)
}

fn given(certificate_path: &Path, key_path: &Path) -> Result<Shown, ServerTlsError> {
    // Before the reading: a change in between is seen at the next look.
    let changed = changed(certificate_path, key_path);
    let chain = chain_of(certificate_path)?;
    let text = read(key_path)?;
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| ServerTlsError::KeyGarbled { path: key_path.to_owned() })?;
    let garbled = || ServerTlsError::CertificateGarbled { path: certificate_path.to_owned() };
    let certificate = chain.first().and_then(|first| Certificate::read(first)).ok_or_else(garbled)?;
    let no_pair = |source| ServerTlsError::NoPair {
        certificate: certificate_path.to_owned(),
        key: key_path.to_owned(),
        source,
    };
    let key = CertifiedKey::from_der(chain, key, &super::provider()).map_err(no_pair)?;
    Ok(Shown { key: Arc::new(key), certificate, changed })
}

pub(super) fn chain_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerTlsError> {
    let text = read(path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match chain {
        Ok(chain) if !chain.is_empty() && certificate::pin_of(&chain[0]).is_ok() => Ok(chain),
        _ => Err(ServerTlsError::CertificateGarbled { path: path.to_owned() }),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ServerTlsError> {
    short_file::read(path, short_file::CERTIFICATES_BYTES).map_err(|source| ServerTlsError::File {
        operation: "read",
        path: path.to_owned(),
        source,
    })
}

fn changed(certificate: &Path, key: &Path) -> Option<SystemTime> {
    let of = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    of(certificate).max(of(key))
}
