//! The way to one server: straight or through a proxy, in the open or over TLS; and what a way that leads nowhere
//! means.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::InvalidUri;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::connection::Connection;
use super::dead_peer;
use super::endpoint::Endpoint;
use super::error::ClientError;
use super::proxy::{self, Proxy, ProxyError};
use crate::tls::{self, TlsClient, TlsFault, Trust};

/// The system itself would try for minutes.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// For a handshake, once connected.
pub(super) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// For a second look at a server that did not answer as it should.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// Anything that bytes go over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The way to one server.
#[derive(Clone)]
pub(super) struct Route {
    endpoint: Endpoint,
    trust: Trust,
    proxy: Option<Proxy>,
    // Made with the first connection: reading the system's authorities takes a while.
    tls: OnceLock<TlsClient>,
    // Sends this instead of a path to a proxy that forwards.
    prefix: Option<Arc<str>>,
}

impl Route {
    /// With the proxy that the environment names for it, if any.
    pub(super) fn to(endpoint: Endpoint) -> Self {
        let proxy = proxy::of_environment(&endpoint);
        let mut route =
            Self { endpoint, trust: Trust::default(), proxy: None, tls: OnceLock::new(), prefix: None };
        route.through(proxy);
        route
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn trusted(&self) -> &Trust {
        &self.trust
    }

    pub(super) fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    pub(super) fn trust(&mut self, trust: Trust) {
        self.trust = trust;
        self.tls = OnceLock::new();
    }

    pub(super) fn through(&mut self, proxy: Option<Proxy>) {
        let forwards = proxy.is_some() && matches!(self.endpoint, Endpoint::Tcp { .. });
        self.prefix = forwards.then(|| self.endpoint.to_string().into());
        self.proxy = proxy;
    }

    /// What a request line names: a path, or for a proxy that forwards the whole URL.
    pub(super) fn target(&self, path: &str) -> Result<Uri, InvalidUri> {
        match &self.prefix {
            Some(prefix) => format!("{prefix}{path}").parse(),
            None => path.parse(),
        }
    }

    /// For each request that a proxy forwards. A tunnel is asked for once, and its requests are none of the proxy's
    /// business.
    pub(super) fn proxy_authorization(&self) -> Option<HeaderValue> {
        self.prefix.as_ref().and(self.proxy.as_ref()).and_then(Proxy::authorization)
    }

    /// Opens a connection.
    pub(super) async fn open(&self) -> Result<Connection, ClientError> {
        match &self.endpoint {
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|source| self.unreachable(source))?;
                self.speak_over(stream).await
            }
            Endpoint::Tcp { .. } => {
                let stream = self.reach().await?;
                self.speak_over(stream).await
            }
            Endpoint::Https { host, .. } => {
                let name = tls::server_name(host).map_err(|source| self.unsafe_line(source))?;
                let client = self.tls_client()?;
                let stream = self.reach().await?;
                let handshake = TlsConnector::from(client.config()).connect(name, stream);
                match timeout(HANDSHAKE_WITHIN, handshake).await {
                    Ok(Ok(stream)) => self.speak_over(stream).await,
                    Ok(Err(error)) => Err(self.failed_handshake(error).await),
                    Err(_) => {
                        let slow = TlsFault::Slow { within_s: HANDSHAKE_WITHIN.as_secs() };
                        Err(self.unreachable(io::Error::new(io::ErrorKind::TimedOut, slow)))
                    }
                }
            }
        }
    }

    async fn speak_over<S: Stream + 'static>(&self, stream: S) -> Result<Connection, ClientError> {
        Connection::over(stream).await.map_err(|source| self.unreachable(source))
    }

    fn tls_client(&self) -> Result<&TlsClient, ClientError> {
        if let Some(client) = self.tls.get() {
            return Ok(client);
        }
        let client = self.trust.client().map_err(|source| self.unsafe_line(source))?;
        Ok(self.tls.get_or_init(|| client))
    }

    /// Bytes to the server and back, however many proxies are in between.
    pub(super) async fn reach(&self) -> Result<Box<dyn Stream>, ClientError> {
        let Some((host, port)) = self.endpoint.host_and_port() else {
            return Err(self.unreachable(io::ErrorKind::Unsupported.into()));
        };
        let Some(proxy) = &self.proxy else {
            return Ok(Box::new(tcp(host, port).await.map_err(|source| self.unreachable(source))?));
        };
        let through = |source| self.through_proxy(proxy, source);
        let (proxy_host, proxy_port) = proxy.place().map_err(through)?;
        let stream = tcp(proxy_host, proxy_port)
            .await
            .map_err(|source| self.through_proxy(proxy, ProxyError::Unreachable { source }))?;
        if self.prefix.is_some() {
            return Ok(Box::new(stream));
        }
        let authority = self.endpoint.authority();
        let tunnel = proxy.tunnel(stream, &authority);
        match timeout(CONNECT_WITHIN, tunnel).await {
            Ok(tunnel) => Ok(Box::new(tunnel.map_err(|source| self.through_proxy(proxy, source))?)),
            Err(_) => {
                let source = ProxyError::Unreachable { source: io::ErrorKind::TimedOut.into() };
                Err(self.through_proxy(proxy, source))
            }
        }
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        ClientError::Unreachable { endpoint: self.endpoint.clone(), source }
    }

    pub(super) fn unsafe_line(&self, source: TlsFault) -> ClientError {
        ClientError::Tls { endpoint: self.endpoint.clone(), source: Box::new(source) }
    }

    fn through_proxy(&self, proxy: &Proxy, source: ProxyError) -> ClientError {
        ClientError::Proxy { endpoint: self.endpoint.clone(), proxy: proxy.to_string(), source }
    }

    /// A cut while greeting is the network's; anything else is told for what it is.
    pub(super) async fn failed_handshake(&self, error: io::Error) -> ClientError {
        match TlsFault::of_handshake(error) {
            TlsFault::Handshake { source } => {
                if self.answers_in_the_open().await {
                    return self.unsafe_line(TlsFault::PlainHttp);
                }
                match source.kind() {
                    io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                        self.unsafe_line(TlsFault::Handshake { source })
                    }
                    _ => self.unreachable(source),
                }
            }
            fault => self.unsafe_line(fault),
        }
    }

    /// Why the first exchange with a server failed, when plain HTTP is not what it speaks.
    pub(super) async fn explained(&self, failed: ClientError) -> ClientError {
        let plain = matches!(self.endpoint, Endpoint::Tcp { .. });
        if plain && matches!(failed, ClientError::Cut { .. }) && self.answers_over_tls().await {
            return self.unsafe_line(TlsFault::HttpsOnly);
        }
        failed
    }

    async fn answers_in_the_open(&self) -> bool {
        let look = async {
            let mut stream = self.reach().await.ok()?;
            let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", self.endpoint.authority());
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut begin = [0; 5];
            stream.read_exact(&mut begin).await.ok()?;
            Some(&begin == b"HTTP/")
        };
        matches!(timeout(LOOK_WITHIN, look).await, Ok(Some(true)))
    }

    async fn answers_over_tls(&self) -> bool {
        let look = async {
            let name = tls::server_name(self.endpoint.host_and_port()?.0).ok()?;
            let client = TlsClient::that_looks().ok()?;
            let stream = self.reach().await.ok()?;
            TlsConnector::from(client.config()).connect(name, stream).await.ok()
        };
        matches!(timeout(LOOK_WITHIN, look).await, Ok(Some(_)))
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT_WITHIN, TcpStream::connect((host, port))).await??;
    // Without it Nagle holds small requests back until the last acknowledgement has come.
    stream.set_nodelay(true)?;
    dead_peer::notice_dead_peer(&stream)?;
    Ok(stream)
}
