//! TLS, on one crypto provider (ring): whom a client trusts, and the key and certificate a server shows. TLS 1.2 and
//! later only. Opens no connection and listens nowhere: `client` and `http` do.

pub mod certificate;
pub mod fault;
mod own_key;
pub mod server;
mod trust;
mod verifier;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use certificate::Certificate;
pub use fault::{Distrust, TlsFault};
pub use server::{CertificateSource, Renewal, ServerTls, ServerTlsError};
pub use trust::{TlsClient, Trust, server_name};

/// The one crypto provider of this process; nothing is installed globally.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::OnceLock<Arc<CryptoProvider>> = std::sync::OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}
