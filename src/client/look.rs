//! A look at the way to a server, part by part, for whoever wants to know where it is blocked. Nothing secret is said.

use std::time::{Duration, Instant};

use tokio_rustls::TlsConnector;

use super::{Client, ClientError, Proxy};
use crate::tls::{Certificate, TlsClient, TlsFault, server_name};

/// What a server shows to anybody over TLS. Not believed yet.
#[derive(Debug, Clone)]
pub struct TlsLook {
    /// `TLSv1_3`, `TLSv1_2`.
    pub version: &'static str,
    /// Its certificate, where it can be read.
    pub certificate: Option<Certificate>,
}

impl Client {
    /// The proxy on the way.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.shared.route.proxy()
    }

    /// Opens the line, through the proxy if there is one, and closes it; how long that took.
    pub async fn look_at_line(&self) -> Result<Duration, ClientError> {
        let begun = Instant::now();
        self.shared.route.reach().await?;
        Ok(begun.elapsed())
    }

    /// Begins TLS whoever answers, says nothing, and closes the line. For https only.
    pub async fn look_at_tls(&self) -> Result<TlsLook, ClientError> {
        let route = &self.shared.route;
        let host = self.endpoint().host_and_port().map_or("", |(host, _)| host);
        let name = server_name(host).map_err(|source| route.unsafe_line(source))?;
        let client = TlsClient::that_looks().map_err(|source| route.unsafe_line(source))?;
        let stream = route.reach().await?;
        let handshake = TlsConnector::from(client.config()).connect(name, stream);
        let stream = match tokio::time::timeout(super::route::HANDSHAKE_WITHIN, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(route.failed_handshake(error).await),
            Err(_) => {
                let within_s = super::route::HANDSHAKE_WITHIN.as_secs();
                return Err(route.unsafe_line(TlsFault::Slow { within_s }));
            }
        };
        let (_, session) = stream.get_ref();
        Ok(TlsLook {
            version: session.protocol_version().and_then(|version| version.as_str()).unwrap_or("TLS"),
            certificate: session
                .peer_certificates()
                .and_then(|chain| chain.first())
                .and_then(|first| Certificate::read(first)),
        })
    }
}
