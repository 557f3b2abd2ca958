//! Why a client does not talk to a server: what failed, and what was seen instead.

use std::io;
use std::path::PathBuf;

use crate::contract::pin::Pin;
use crate::contract::quantity::Timestamp;

/// A server's certificate that was not taken. `seen` is the pin of the key it came with; whoever showed it also
/// proved nothing yet.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Distrust {
    /// None of the pins is this server's.
    #[error("the server's key is {seen}, and the pinned one is {}", listed(pinned))]
    WrongKey {
        /// Of the key it has.
        seen: Pin,
        /// What was expected.
        pinned: Vec<Pin>,
    },
    /// Nobody that is trusted has signed it.
    #[error("the server's certificate was issued by {issuer}, which {}", if *own_roots { "is not in the given CA file" } else { "this machine does not trust" })]
    UnknownIssuer {
        /// Of the key it has.
        seen: Pin,
        /// As the certificate names it.
        issuer: String,
        /// Whether it issued itself, as the certificates that `up` makes.
        self_signed: bool,
        /// Whether a CA file was given; else the system's roots were asked.
        own_roots: bool,
    },
    /// Its time is over.
    #[error("the server's certificate expired at {not_after}")]
    Expired {
        /// Of the key it has.
        seen: Pin,
        /// When.
        not_after: Timestamp,
    },
    /// Its time has not come, or this machine's clock is wrong.
    #[error("the server's certificate is valid only from {not_before}")]
    NotYetValid {
        /// Of the key it has.
        seen: Pin,
        /// From when.
        not_before: Timestamp,
    },
    /// It is another server's.
    #[error("the server's certificate is for {}, and not for {asked}", presented.join(", "))]
    WrongName {
        /// Of the key it has.
        seen: Pin,
        /// Who was asked for.
        asked: String,
        /// Whom it names.
        presented: Vec<String>,
    },
    /// Anything else that is wrong with it.
    #[error("the server's certificate cannot be used")]
    Unusable {
        /// Of the key it has, where it could be read.
        seen: Option<Pin>,
        /// What the TLS library says.
        source: rustls::Error,
    },
}

impl Distrust {
    /// The pin of the key that was shown.
    pub fn seen(&self) -> Option<Pin> {
        match self {
            Distrust::WrongKey { seen, .. }
            | Distrust::UnknownIssuer { seen, .. }
            | Distrust::Expired { seen, .. }
            | Distrust::NotYetValid { seen, .. }
            | Distrust::WrongName { seen, .. } => Some(*seen),
            Distrust::Unusable { seen, .. } => *seen,
        }
    }
}

/// Why a connection is not encrypted, or not to whom it should be.
#[derive(Debug, thiserror::Error)]
pub enum TlsFault {
    /// The server is not who it should be.
    #[error(transparent)]
    Distrust(#[from] Distrust),
    /// It answers, but without TLS.
    #[error("the server speaks plain HTTP on this port, and https was asked for")]
    PlainHttp,
    /// It wants TLS, and plain HTTP was spoken.
    #[error("the server speaks HTTPS on this port, and plain http was asked for")]
    HttpsOnly,
    /// The two found no common ground, or something else listens there.
    #[error("the TLS handshake failed")]
    Handshake {
        /// What the TLS library or the system said.
        source: io::Error,
    },
    /// The handshake did not come to an end.
    #[error("the TLS handshake did not end within {within_s} s")]
    Slow {
        /// How long it was waited for.
        within_s: u64,
    },
    /// A name that no certificate can hold.
    #[error("`{host}` is not a name or address that a certificate can be for")]
    BadName {
        /// As given.
        host: String,
    },
    /// The CA file cannot be read.
    #[error("cannot read the CA file {}", path.display())]
    CaFile {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The CA file holds no certificate.
    #[error("{} holds no usable certificate: a PEM file with `BEGIN CERTIFICATE` is expected", path.display())]
    CaFileEmpty {
        /// Which.
        path: PathBuf,
    },
    /// The system has no roots.
    #[error("this machine has no root certificates, so no certificate can be checked here")]
    NoRoots,
    /// The TLS library refuses to be set up like this.
    #[error("TLS cannot be set up")]
    Setup {
        /// Why.
        source: rustls::Error,
    },
}

impl TlsFault {
    /// What a failed handshake means: a refused certificate, or anything else.
    pub fn of_handshake(error: io::Error) -> Self {
        let refused = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match refused {
            Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other))) => {
                match other.0.downcast_ref::<Distrust>() {
                    Some(distrust) => Self::Distrust(distrust.clone()),
                    None => Self::Handshake { source: error },
                }
            }
            _ => Self::Handshake { source: error },
        }
    }

    /// The pin of the key that was shown and refused.
    pub fn seen(&self) -> Option<Pin> {
        match self {
            TlsFault::Distrust(distrust) => distrust.seen(),
            _ => None,
        }
    }
}

fn listed(pins: &[Pin]) -> String {
    let pins: Vec<_> = pins.iter().map(Pin::to_string).collect();
    pins.join(" or ")
}
