//! Everything that is needed to speak with a server in one line: `gpulayer://TOKEN@HOST:PORT?pin=sha256:…`. It holds
//! a secret; it belongs in a file, a variable or a pipe rather than in a command line.

use std::fmt;

use super::endpoint::{Endpoint, authority_parts};
use crate::contract::pin::Pin;

/// What every connection string begins with.
pub const SCHEME: &str = "gpulayer://";

/// Address, token and keys of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionString {
    /// https, or http on this machine.
    pub endpoint: Endpoint,
    /// `glc_…` for `connect`, `glj_…` for `join`.
    pub token: String,
    /// The server's keys; none = its certificate is checked by authorities.
    pub pins: Vec<Pin>,
}

/// A connection string that cannot be used. It never shows the string: there is a token in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionStringError {
    /// Another scheme.
    #[error("a connection string begins with `{SCHEME}`")]
    Scheme,
    /// No token, or something else.
    #[error(
        "the connection string holds no token: `{SCHEME}TOKEN@HOST:PORT?pin=sha256:…` with a `glc_…` or `glj_…` token is expected"
    )]
    Token,
    /// No host and port.
    #[error("the connection string names no server: `HOST:PORT` is expected between `@` and `?`")]
    Address,
    /// A pin that is none.
    #[error("a `pin=` of the connection string is not `sha256:` and 64 hex digits; was it cut off?")]
    Pin,
    /// A word this version does not know.
    #[error(
        "the connection string says something this version does not know; only `pin=` and `plain=1` may follow `?`"
    )]
    Word,
    /// Plain HTTP to another machine.
    #[error("`plain=1` is for this machine only: a token must not cross a network in the open")]
    PlainAbroad,
}

impl ConnectionString {
    /// Reads `gpulayer://TOKEN@HOST[:PORT][?pin=sha256:…[&pin=…]][&plain=1]`.
    pub fn parse(text: &str) -> Result<Self, ConnectionStringError> {
        let rest = text.trim().strip_prefix(SCHEME).ok_or(ConnectionStringError::Scheme)?;
        let (place, words) = rest.split_once('?').unwrap_or((rest, ""));
        let (token, authority) = place.split_once('@').ok_or(ConnectionStringError::Token)?;
        let known = token.starts_with("glc_") || token.starts_with("glj_");
        if !known || !token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(ConnectionStringError::Token);
        }
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = authority_parts(authority).ok_or(ConnectionStringError::Address)?;
        let (mut pins, mut plain) = (Vec::new(), false);
        for word in words.split('&').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("pin", pin)) => {
                    // Some programs escape the colon when they pass a URL on.
                    let pin = pin.replace("%3A", ":").replace("%3a", ":");
                    pins.push(pin.parse().map_err(|_| ConnectionStringError::Pin)?);
                }
                Some(("plain", "1")) => plain = true,
                _ => return Err(ConnectionStringError::Word),
            }
        }
        let endpoint = if plain { Endpoint::Tcp { host, port } } else { Endpoint::Https { host, port } };
        if plain && !endpoint.is_loopback() {
            return Err(ConnectionStringError::PlainAbroad);
        }
        Ok(Self { endpoint, token: token.to_owned(), pins })
    }
}

/// The whole string, token included.
impl fmt::Display for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}@{}", self.token, self.endpoint.authority())?;
        let pins = self.pins.iter().map(|pin| format!("pin={pin}"));
        let plain = matches!(self.endpoint, Endpoint::Tcp { .. }).then(|| "plain=1".to_owned());
        let words: Vec<_> = pins.chain(plain).collect();
        if words.is_empty() { Ok(()) } else { write!(f, "?{}", words.join("&")) }
    }
}

/// Without the token: this may end in a log.
impl fmt::Debug for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionString")
            .field("endpoint", &self.endpoint)
            .field("pins", &self.pins)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let pin = "ab".repeat(32);
        for text in [
            "gpulayer://glc_0f@box:8470".to_owned(),
            format!("gpulayer://glj_0f@[fd00::1]:9?pin=sha256:{pin}"),
            format!("gpulayer://glc_0f@10.0.0.1:8470?pin=sha256:{pin}&pin=sha256:{pin}"),
            format!("gpulayer://glc_0f@127.0.0.1:8470?pin=sha256:{pin}&plain=1"),
        ] {
            assert_eq!(ConnectionString::parse(&text).unwrap().to_string(), text);
        }
        let short = ConnectionString::parse(" gpulayer://glc_0f@box/ \n").unwrap();
        assert_eq!(short.endpoint, Endpoint::Https { host: "box".into(), port: 8470 });
    }

    #[test]
    fn every_fault_is_named_and_no_token_is_shown() {
        use ConnectionStringError::*;
        for (text, fault) in [
            ("https://glc_0f@box", Scheme),
            ("gpulayer://box:8470", Token),
            ("gpulayer://gls_0f@box:8470", Token),
            ("gpulayer://glc_a b@box", Token),
            ("gpulayer://glc_0f@", Address),
            ("gpulayer://glc_0f@box:port", Address),
            ("gpulayer://glc_0f@box?pin=sha256:ab", Pin),
            ("gpulayer://glc_0f@box?ca=x", Word),
            ("gpulayer://glc_0f@box?plain=1", PlainAbroad),
        ] {
            assert_eq!(ConnectionString::parse(text), Err(fault), "{text}");
        }
        let shown = format!("{:?}", ConnectionString::parse("gpulayer://glc_0f@box").unwrap());
        assert!(!shown.contains("glc_0f"), "{shown}");
    }
}
