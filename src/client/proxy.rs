//! The proxy between a client and its server, as the environment names it (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`,
//! `NO_PROXY`, also in lower case): a tunnel for https, forwarding for http. Never for what is on this machine.

use std::fmt;
use std::io;
use std::sync::OnceLock;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::endpoint::Endpoint;

/// An HTTP proxy.
#[derive(Clone)]
pub struct Proxy {
    uri: Uri,
    authorization: Option<HeaderValue>,
}

/// Why there is no way through a proxy.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// A kind of proxy that this client does not speak with.
    #[error("only http:// proxies can be used; set HTTPS_PROXY to one, or name the server in NO_PROXY")]
    Kind,
    /// It does not answer.
    #[error("the proxy does not answer")]
    Unreachable {
        /// What the system said.
        source: io::Error,
    },
    /// It wants another name and password, or some at all.
    #[error("the proxy wants a name and a password: http://NAME:PASSWORD@HOST:PORT")]
    Unauthorized,
    /// It does not open the tunnel.
    #[error("the proxy answered {status} when asked for a tunnel")]
    Refused {
        /// HTTP status.
        status: u16,
    },
    /// It speaks no HTTP, or went away.
    #[error("the proxy broke the connection off")]
    Broken {
        /// What broke.
        source: hyper::Error,
    },
}

impl ProxyError {
    /// Whether it may be another way soon: the proxy is away, or cannot reach the server now.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            ProxyError::Unreachable { .. } | ProxyError::Broken { .. } => true,
            ProxyError::Refused { status } => (500..600).contains(status),
            ProxyError::Kind | ProxyError::Unauthorized => false,
        }
    }
}

/// The proxy that the environment of this process names for a server.
pub(super) fn of_environment(endpoint: &Endpoint) -> Option<Proxy> {
    static MATCHER: OnceLock<Matcher> = OnceLock::new();
    if endpoint.is_loopback() {
        return None;
    }
    Proxy::matched(MATCHER.get_or_init(Matcher::from_env), endpoint)
}

impl Proxy {
    /// From a URL such as `http://NAME:PASSWORD@HOST:PORT`; `None` when it is none.
    pub fn parse(url: &str) -> Option<Self> {
        let matcher = Matcher::builder().all(url).build();
        matcher.intercept(&Uri::from_static("http://elsewhere.invalid")).map(Self::of)
    }

    fn matched(matcher: &Matcher, endpoint: &Endpoint) -> Option<Self> {
        let server = endpoint.to_string().parse::<Uri>().ok()?;
        matcher.intercept(&server).map(Self::of)
    }

    fn of(intercept: Intercept) -> Self {
        Self { authorization: intercept.basic_auth().cloned(), uri: intercept.uri().clone() }
    }

    /// Host and port to connect to.
    pub(super) fn place(&self) -> Result<(&str, u16), ProxyError> {
        match (self.uri.scheme_str(), self.uri.host()) {
            (Some("http"), Some(host)) => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                Ok((host, self.uri.port_u16().unwrap_or(80)))
            }
            _ => Err(ProxyError::Kind),
        }
    }

    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        self.authorization.clone()
    }

    /// Asks for a tunnel to `authority` over a connection to the proxy.
    pub(super) async fn tunnel(
        &self,
        stream: TcpStream,
        authority: &str,
    ) -> Result<TokioIo<Upgraded>, ProxyError> {
        let broken = |source| ProxyError::Broken { source };
        let (mut sender, driver) =
            http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(async move { drop(driver.with_upgrades().await) });
        let mut request = Request::new(Empty::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = authority.parse().map_err(|_| ProxyError::Kind)?;
        if let Ok(host) = HeaderValue::from_str(authority) {
            request.headers_mut().insert(header::HOST, host);
        }
        if let Some(word) = self.authorization() {
            request.headers_mut().insert(header::PROXY_AUTHORIZATION, word);
        }
        let response = sender.send_request(request).await.map_err(broken)?;
        match response.status() {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => Err(ProxyError::Unauthorized),
            status if !status.is_success() => Err(ProxyError::Refused { status: status.as_u16() }),
            _ => hyper::upgrade::on(response).await.map(TokioIo::new).map_err(broken),
        }
    }
}

/// Without name and password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        write!(f, "{}://{authority}", self.uri.scheme_str().unwrap_or("http"))
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_shown_without_its_password() {
        let proxy = Proxy::parse("http://ann:secret@proxy.example:3128").unwrap();
        assert_eq!(proxy.to_string(), "http://proxy.example:3128");
        assert_eq!(format!("{proxy:?}"), "http://proxy.example:3128");
        assert_eq!(proxy.place().unwrap(), ("proxy.example", 3128));
        assert_eq!(proxy.authorization().unwrap(), "Basic YW5uOnNlY3JldA==");
    }

    #[test]
    fn the_variable_that_fits_the_scheme_is_taken_and_exceptions_are_kept() {
        let matcher = Matcher::builder()
            .https("http://secure:1")
            .http("http://open:2")
            .no("10.0.0.0/8, inside.example")
            .build();
        let proxy = |url: &str| {
            Proxy::matched(&matcher, &Endpoint::parse(url).unwrap()).map(|proxy| proxy.to_string())
        };
        assert_eq!(proxy("https://box.example").as_deref(), Some("http://secure:1"));
        assert_eq!(proxy("http://box.example").as_deref(), Some("http://open:2"));
        assert_eq!(proxy("https://10.1.2.3"), None);
        assert_eq!(proxy("https://a.inside.example"), None);
        assert_eq!(proxy("https://[fd00::1]").as_deref(), Some("http://secure:1"));
    }

    #[test]
    fn other_kinds_of_proxies_are_named_and_not_passed_by() {
        let socks = Proxy::parse("socks5://proxy.example:1080").unwrap();
        assert!(matches!(socks.place(), Err(ProxyError::Kind)));
    }
}
