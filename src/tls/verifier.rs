//! Checks a server's certificate: by its key alone, by certificate authorities, or not at all (to look). In every case
//! the handshake's own signature is verified: without it a certificate proves nothing, because anybody can copy one.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};
use subtle::{Choice, ConstantTimeEq};

use super::certificate::Certificate;
use super::fault::{Distrust, TlsFault};
use crate::contract::pin::Pin;

macro_rules! signatures_are_verified {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let known = super::provider().signature_verification_algorithms;
            rustls::crypto::verify_tls12_signature(message, certificate, signed, &known)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let known = super::provider().signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signed, &known)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            super::provider().signature_verification_algorithms.supported_schemes()
        }
    };
}

fn refused(distrust: Distrust) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(distrust))))
}

/// The pin of a certificate's key.
fn pin_of(certificate: &CertificateDer<'_>) -> Result<Pin, Error> {
    super::certificate::pin_of(certificate)
        .map_err(|source| refused(Distrust::Unusable { seen: None, source }))
}

/// The key is the identity: names and times do not count.
#[derive(Debug)]
pub(super) struct PinVerifier {
    pins: Vec<Pin>,
}

impl PinVerifier {
    pub(super) fn new(pins: Vec<Pin>) -> Self {
        Self { pins }
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let seen = pin_of(certificate)?;
        let known =
            self.pins.iter().fold(Choice::from(0), |known, pin| known | pin.bytes().ct_eq(seen.bytes()));
        if bool::from(known) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(refused(Distrust::WrongKey { seen, pinned: self.pins.clone() }))
        }
    }

    signatures_are_verified!();
}

/// Certificate authorities, names and times, as browsers check them; a refusal also says what was seen.
#[derive(Debug)]
pub(super) struct RootVerifier {
    inner: Arc<WebPkiServerVerifier>,
    own: bool,
}

impl RootVerifier {
    /// `own`: the roots are from a CA file, not the system's.
    pub(super) fn new(roots: RootCertStore, own: bool) -> Result<Self, TlsFault> {
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), super::provider())
            .build()
            .map_err(|_| TlsFault::NoRoots)?;
        Ok(Self { inner, own })
    }

    fn distrust(&self, certificate: &CertificateDer<'_>, asked: &ServerName<'_>, error: Error) -> Error {
        let Ok(seen) = pin_of(certificate) else {
            return refused(Distrust::Unusable { seen: None, source: error });
        };
        let shown = Certificate::read(certificate.as_ref());
        let Error::InvalidCertificate(why) = &error else {
            return refused(Distrust::Unusable { seen: Some(seen), source: error });
        };
        let distrust = match (why, shown) {
            // An authority of the same name that did not sign it, as every server's own certificate has one name, is
            // another authority. What issued itself and is unknown may be refused for its form before its issuer is.
            (CertificateError::UnknownIssuer | CertificateError::BadSignature, Some(shown))
            | (CertificateError::Other(_), Some(shown @ Certificate { self_issued: true, .. }))
                if !(self.own && matches!(why, CertificateError::Other(_))) =>
            {
                Distrust::UnknownIssuer {
                    seen,
                    self_signed: shown.self_issued,
                    issuer: shown.issuer,
                    own_roots: self.own,
                }
            }
            (CertificateError::Expired | CertificateError::ExpiredContext { .. }, Some(shown)) => {
                Distrust::Expired { seen, not_after: shown.not_after }
            }
            (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }, Some(shown)) => {
                Distrust::NotYetValid { seen, not_before: shown.not_before }
            }
            (
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                Some(shown),
            ) => Distrust::WrongName { seen, asked: asked.to_str().into_owned(), presented: shown.names },
            _ => Distrust::Unusable { seen: Some(seen), source: error },
        };
        refused(distrust)
    }
}

impl ServerCertVerifier for RootVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        asked: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.inner
            .verify_server_cert(certificate, intermediates, asked, ocsp, now)
            .map_err(|error| self.distrust(certificate, asked, error))
    }

    signatures_are_verified!();
}

/// Anybody, so that a server's key can be shown to a person.
#[derive(Debug)]
pub(super) struct AnyVerifier;

impl ServerCertVerifier for AnyVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures_are_verified!();
}
