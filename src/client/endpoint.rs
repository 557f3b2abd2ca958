//! Where a server listens: a Unix socket, or a host and port with TLS or without.

use std::fmt;
use std::net::IpAddr;
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
    /// HTTP over TLS.
    Https {
        /// Name or address, IPv6 without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// An address that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not a form this client knows.
    #[error(
        "`{url}` is not a server address: expected `https://HOST[:PORT]`, `http://HOST[:PORT]`, `unix:/PATH` or a \
         connection string, `gpulayer://…`{}",
        did_you_mean(url)
    )]
    Form {
        /// As given.
        url: String,
    },
}

/// What somebody meant who left the scheme out.
fn did_you_mean(url: &str) -> String {
    match authority_parts(url) {
        Some(_) => format!(" (did you mean https://{url}?)"),
        None => String::new(),
    }
}

impl Endpoint {
    /// Reads `https://HOST[:PORT]`, `http://HOST[:PORT]`, `unix:/PATH` or `unix:///PATH`.
    pub fn parse(url: &str) -> Result<Self, EndpointError> {
        let form = || EndpointError::Form { url: url.to_owned() };
        if let Some(path) = url.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(form()) };
        }
        let (authority, encrypted) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(authority), _) => (authority, true),
            (None, Some(authority)) => (authority, false),
            (None, None) => return Err(form()),
        };
        let (host, port) =
            authority_parts(authority.strip_suffix('/').unwrap_or(authority)).ok_or_else(form)?;
        Ok(if encrypted { Self::Https { host, port } } else { Self::Tcp { host, port } })
    }

    /// Host and port, for what is reached over a network.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        match self {
            Endpoint::Unix(_) => None,
            Endpoint::Tcp { host, port } | Endpoint::Https { host, port } => Some((host, *port)),
        }
    }

    /// Whether it is on this machine: a socket, or a loopback address by number or by its usual name.
    pub fn is_loopback(&self) -> bool {
        let Some((host, _)) = self.host_and_port() else { return true };
        let address = host.parse::<IpAddr>();
        host.eq_ignore_ascii_case("localhost")
            || address.is_ok_and(|address| address.to_canonical().is_loopback())
    }

    /// What the `Host` header says.
    pub(super) fn host_header(&self) -> HeaderValue {
        match self {
            Endpoint::Unix(_) => HeaderValue::from_static("localhost"),
            Endpoint::Tcp { .. } | Endpoint::Https { .. } => HeaderValue::from_str(&self.authority())
                .unwrap_or_else(|_| HeaderValue::from_static("localhost")),
        }
    }

    /// `HOST:PORT`, IPv6 in brackets; the path of a socket.
    pub fn authority(&self) -> String {
        match self {
            Endpoint::Unix(path) => path.display().to_string(),
            Endpoint::Tcp { host, port } | Endpoint::Https { host, port } if host.contains(':') => {
                format!("[{host}]:{port}")
            }
            Endpoint::Tcp { host, port } | Endpoint::Https { host, port } => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self {
            Endpoint::Unix(_) => "unix:",
            Endpoint::Tcp { .. } => "http://",
            Endpoint::Https { .. } => "https://",
        };
        write!(f, "{scheme}{}", self.authority())
    }
}

/// Takes `HOST`, `HOST:PORT`, `[ADDRESS]` and `[ADDRESS]:PORT` apart; without a port it is ours.
pub(super) fn authority_parts(authority: &str) -> Option<(String, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            let port = if port.is_empty() { None } else { Some(port.strip_prefix(':')?) };
            (host, port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_');
    if host.is_empty() || !host.chars().all(allowed) {
        return None;
    }
    let port = port.map_or(Some(DEFAULT_PORT), |port| port.parse().ok())?;
    Some((host.to_owned(), port))
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
        let told = |text: &str| Endpoint::parse(text).unwrap_err().to_string();
        assert!(told("10.88.0.2:8470").ends_with("(did you mean https://10.88.0.2:8470?)"));
        assert!(told("no such").ends_with("`gpulayer://…`"));
        assert_eq!(
            Endpoint::parse("https://box"),
            Ok(Endpoint::Https { host: "box".into(), port: DEFAULT_PORT })
        );
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for url in ["http://127.0.0.1:8470", "https://[::1]:9", "https://a.b:1", "unix:/run/x.sock"] {
            assert_eq!(Endpoint::parse(url).unwrap().to_string(), url);
        }
    }

    #[test]
    fn what_is_on_this_machine_is_known_by_its_name_or_number() {
        let near = |url: &str| Endpoint::parse(url).unwrap().is_loopback();
        for url in [
            "unix:/x",
            "http://localhost",
            "https://127.9.9.9",
            "https://[::1]",
            "https://[::ffff:127.0.0.1]",
        ] {
            assert!(near(url), "{url}");
        }
        assert!(!near("https://localhost.example") && !near("http://10.0.0.1"));
    }

    #[test]
    fn encodes_what_a_path_must_not_hold() {
        assert_eq!(encoded("a b/ü@last"), "a%20b%2F%C3%BC%40last");
    }
}
