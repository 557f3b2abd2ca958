//! A server's key, named by its hash: what clients and workers are told once and compare for ever.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What every pin begins with.
pub const PIN_PREFIX: &str = "sha256:";

/// SHA-256 of a certificate's SubjectPublicKeyInfo (DER). Certificates are renewed under the same key, so the pin of
/// a server stays. Written `sha256:<64 hex digits>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pin([u8; 32]);

/// A pin that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a pin: expected `{PIN_PREFIX}` and 64 hex digits")]
pub struct PinError {
    given: String,
}

impl Pin {
    /// From the 32 bytes of a SHA-256.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PIN_PREFIX}{}", hex::encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let refuse = || PinError { given: text.chars().take(100).collect() };
        let mut bytes = [0; 32];
        let digits = text.strip_prefix(PIN_PREFIX).ok_or_else(refuse)?;
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| refuse())?;
        Ok(Self(bytes))
    }
}

impl Serialize for Pin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_as_it_is_written() {
        let pin = Pin::from_bytes([0xab; 32]);
        assert_eq!(pin.to_string(), format!("sha256:{}", "ab".repeat(32)));
        assert_eq!(pin.to_string().parse(), Ok(pin));
        assert_eq!(pin.to_string().to_uppercase().replace("SHA", "sha").parse(), Ok(pin));
        for bad in ["", "sha256:", &"ab".repeat(32), "sha256:xy", &format!("sha1:{}", "ab".repeat(32))] {
            assert!(bad.parse::<Pin>().is_err(), "{bad}");
        }
    }
}
