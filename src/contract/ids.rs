//! Identities: `job_`, `task_`, `wkr_` followed by a UUIDv7 in 26 lower-case Crockford base32 characters,
//! so that ids sort by time and survive being read aloud.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const DIGITS: usize = 26;

/// An id that cannot be read: what was given, and which form is expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a {kind} id: expected `{prefix}` and 26 Crockford base32 characters")]
pub struct IdError {
    given: String,
    kind: &'static str,
    prefix: &'static str,
}

fn write_base32(value: u128, out: &mut impl fmt::Write) -> fmt::Result {
    for digit in (0..DIGITS).rev() {
        let index = ((value >> (digit * 5)) & 31) as usize;
        out.write_char(ALPHABET[index] as char)?;
    }
    Ok(())
}

fn read_base32(text: &str) -> Option<u128> {
    if text.len() != DIGITS || text.as_bytes()[0] > b'7' {
        return None;
    }
    text.bytes().try_fold(0u128, |value, byte| {
        let digit = ALPHABET.iter().position(|symbol| *symbol == byte)?;
        Some((value << 5) | digit as u128)
    })
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// What every id of this kind begins with.
            pub const PREFIX: &'static str = $prefix;

            /// From the 128 bits of a UUIDv7.
            pub const fn from_u128(value: u128) -> Self {
                Self(value)
            }

            /// The 128 bits behind the text.
            pub const fn as_u128(self) -> u128 {
                self.0
            }

            /// Big-endian bytes: the form kept in the database, in the order of time.
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// Reads the database form; anything but 16 bytes is `None`.
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                Some(Self(u128::from_be_bytes(bytes.try_into().ok()?)))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($prefix)?;
                write_base32(self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix($prefix)
                    .and_then(read_base32)
                    .map(Self)
                    .ok_or_else(|| IdError { given: text.chars().take(64).collect(), kind: $kind, prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// One logical submission.
    JobId, "job", "job_"
);
id!(
    /// One unit of work for one worker; every placement makes a new one.
    TaskId, "task", "task_"
);
id!(
    /// One agent on one machine.
    WorkerId, "worker", "wkr_"
);

/// Counts the placements of a job; fences messages of earlier ones. Starts at 1.
pub type Epoch = u32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_and_bytes_round_trip_and_sort_like_the_number(a: u128, b: u128) {
            let (x, y) = (JobId::from_u128(a), JobId::from_u128(b));
            prop_assert_eq!(x.to_string().parse::<JobId>(), Ok(x));
            prop_assert_eq!(JobId::from_bytes(&x.to_bytes()), Some(x));
            prop_assert_eq!(x.to_string().cmp(&y.to_string()), a.cmp(&b));
        }
    }

    #[test]
    fn refuses_what_is_not_an_id() {
        for bad in [
            "",
            "job_",
            "task_00000000000000000000000001",
            "job_8zzzzzzzzzzzzzzzzzzzzzzzzz",
            "job_doesnotexist",
            "job_0000000000000000000000000u",
            "job_0000000000000000000000000é",
        ] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }
}
