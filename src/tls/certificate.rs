//! What a certificate says: whose key, by whom, for whom, for how long.

use std::path::Path;

use rcgen::PublicKeyData;
use rustls::Error;
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::contract::pin::Pin;
use crate::contract::quantity::Timestamp;

/// The parts of a certificate that people are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Of its key.
    pub pin: Pin,
    /// Who issued it, as it says.
    pub issuer: String,
    /// Whether issuer and subject are the same.
    pub self_issued: bool,
    /// Names and addresses it is for.
    pub names: Vec<String>,
    /// Valid from then.
    pub not_before: Timestamp,
    /// Valid until then.
    pub not_after: Timestamp,
}

impl Certificate {
    /// The first certificate of a PEM file; `None` = there is none that can be read.
    pub fn of_file(path: &Path) -> Option<Self> {
        super::server::chain_of(path).ok()?.first().and_then(|first| Self::read(first))
    }

    /// Reads DER; `None` when it is no certificate.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, read) = X509Certificate::from_der(der).ok()?;
        let names = read.subject_alternative_name().ok().flatten();
        let names = names.map(|names| names.value.general_names.iter().filter_map(name).collect());
        let validity = read.validity();
        Some(Self {
            pin: Pin::from_bytes(Sha256::digest(read.public_key().raw).into()),
            issuer: read.issuer().to_string(),
            self_issued: read.issuer() == read.subject(),
            names: names.unwrap_or_default(),
            not_before: Timestamp::from_micros(validity.not_before.timestamp().saturating_mul(1_000_000)),
            not_after: Timestamp::from_micros(validity.not_after.timestamp().saturating_mul(1_000_000)),
        })
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(four) => Some(std::net::Ipv4Addr::from(four).to_string()),
            Err(_) => <[u8; 16]>::try_from(*bytes).ok().map(|all| std::net::Ipv6Addr::from(all).to_string()),
        },
        _ => None,
    }
}

/// The pin of a certificate's key, read by the library that also verifies the handshake with it.
pub(super) fn pin_of(certificate: &CertificateDer<'_>) -> Result<Pin, Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    Ok(Pin::from_bytes(Sha256::digest(parsed.subject_public_key_info().as_ref()).into()))
}

/// The pin of a key pair.
pub(super) fn pin_of_key(key: &rcgen::KeyPair) -> Pin {
    Pin::from_bytes(Sha256::digest(key.subject_public_key_info()).into())
}
