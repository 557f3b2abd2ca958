//! Where a server listens: a Unix socket, or a host and port.

use std::fmt;
use std::path::PathBuf;

use hyper::header::HeaderValue;

/// The port of a URL that names none.
pub const DEFAULT_PORT: u16 = 8470;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket on this machine.
    Unix(PathBuf),
    /// Plain HTTP.
    Tcp {
        /// Name or address, IPv6 without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// An address that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Encrypted connections come with remote workers.
    #[error("`{url}`: https is not built yet; use http:// on loopback, or the Unix socket")]
    Https {
        /// As given.
        url: String,
    },
    /// Not a form this client knows.
    #[error("`{url}` is not a server address: expected `http://HOST[:PORT]` or `unix:/PATH`")]
    Form {
        /// As given.
        url: String,
    },
}

impl Endpoint {
    /// Reads `http://HOST[:PORT]`, `unix:/PATH` or `unix:///PATH`.
    pub fn parse(url: &str) -> Result<Self, EndpointError> {
        let form = || EndpointError::Form { url: url.to_owned() };
        if url.starts_with("https://") {
            return Err(EndpointError::Https { url: url.to_owned() });
        }
        if let Some(path) = url.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(form()) };
        }
        let authority = url.strip_prefix("http://").ok_or_else(form)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(form)?;
                (host, port.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_');
        if host.is_empty() || !host.chars().all(allowed) {
            return Err(form());
        }
        let port = port.map_or(Ok(DEFAULT_PORT), str::parse).map_err(|_| form())?;
        Ok(Self::Tcp { host: host.to_owned(), port })
    }

    /// What the `Host` header says.
    pub(super) fn host_header(&self) -> HeaderValue {
        match self {
            Endpoint::Unix(_) => HeaderValue::from_static("localhost"),
            Endpoint::Tcp { .. } => HeaderValue::from_str(&self.authority())
                .unwrap_or_else(|_| HeaderValue::from_static("localhost")),
        }
    }

    fn authority(&self) -> String {
        match self {
            Endpoint::Unix(path) => path.display().to_string(),
            Endpoint::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Endpoint::Tcp { host, port } => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if matches!(self, Endpoint::Unix(_)) { "unix:" } else { "http://" };
        write!(f, "{scheme}{}", self.authority())
    }
}

/// Percent-encodes one segment of a path or one value of a query.
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Result<Endpoint, EndpointError> {
        Ok(Endpoint::Tcp { host: host.into(), port })
    }

    #[test]
    fn reads_the_forms_people_write() {
        assert_eq!(Endpoint::parse("http://127.0.0.1:8470"), tcp("127.0.0.1", 8470));
        assert_eq!(Endpoint::parse("http://localhost/"), tcp("localhost", DEFAULT_PORT));
        assert_eq!(Endpoint::parse("http://[::1]:9"), tcp("::1", 9));
        assert_eq!(Endpoint::parse("unix:/run/x.sock"), Ok(Endpoint::Unix("/run/x.sock".into())));
        assert_eq!(Endpoint::parse("unix:///run/x.sock"), Ok(Endpoint::Unix("/run/x.sock".into())));
        for bad in
            ["", "host:1", "http://", "http://a b", "http://a:99999", "unix:x", "http://a/b", "ftp://a"]
        {
            assert!(matches!(Endpoint::parse(bad), Err(EndpointError::Form { .. })), "{bad}");
        }
        assert!(matches!(Endpoint::parse("https://a"), Err(EndpointError::Https { .. })));
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for url in ["http://127.0.0.1:8470", "http://[::1]:9", "unix:/run/x.sock"] {
            assert_eq!(Endpoint::parse(url).unwrap().to_string(), url);
        }
    }

    #[test]
    fn encodes_what_a_path_must_not_hold() {
        assert_eq!(encoded("a b/ü@last"), "a%20b%2F%C3%BC%40last");
    }
}
