//! What worker and shim say to each other: JSON messages, each behind its length as four little-endian bytes.
//!
//! A restarted worker may be newer than the shims it meets: unknown fields are ignored, unknown messages are
//! [`ToShim::Unknown`] and [`FromShim::Unknown`], and new fields need a default.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cgroup::Plan;
use super::identity::Identity;
use super::{ExitRecord, Launch};
use crate::contract::ids::TaskId;
use crate::contract::protocol::StopReason;
use crate::contract::worker::StuckProcess;
use crate::domain::secrets::wipe;

/// Raised only when an older side would misunderstand.
pub(super) const WIRE_VERSION: u32 = 1;

/// No message is longer: `execve` takes no more than a few MiB of arguments.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum ToShim {
    /// Make a group and move in. Only sent to a new shim, hence of the same build, and first.
    Settle { groups: Plan },
    /// Run this. Only sent to an idle shim.
    Launch(Box<Launch>),
    /// Stop the task: with its grace, or at once.
    Stop {
        #[serde(default)]
        now: bool,
        /// What the program reads.
        #[serde(default)]
        reason: StopReason,
    },
    /// Exit as soon as there is no task.
    Leave,
    #[serde(other)]
    Unknown,
}

/// From the shim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum FromShim {
    /// First on every connection.
    Hello(Hello),
    /// The task's prelude runs. Again on every new connection, like those below.
    Preparing,
    Started {
        pid: u32,
    },
    Logged {
        through_n: u64,
    },
    /// These were killed long ago and are still there. Again on every new connection.
    Stuck {
        processes: Vec<StuckProcess>,
    },
    /// The task's end comes next, and the shim goes after it: it takes no other.
    Retiring,
    /// The task's end comes next, and its program stays, for launches with this key alone.
    Staying {
        key: String,
        pid: u32,
    },
    Ended(Box<ExitRecord>),
    #[serde(other)]
    Unknown,
}

/// Who a shim is and what it runs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    #[serde(flatten)]
    pub(super) identity: Identity,
    #[serde(default)]
    pub(super) task: Option<HeldTask>,
}

/// The task of a busy shim.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeldTask {
    pub(super) task_id: TaskId,
    #[serde(with = "os_path")]
    pub(super) task_folder: std::path::PathBuf,
    /// Whether it is its prelude that runs.
    #[serde(default)]
    pub(super) preparing: bool,
}

/// One message as it goes over the socket.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// Bytes of a socket on their way to messages.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    taken: usize,
}

impl Frames {
    /// Adds what was read.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let rest = &self.bytes[self.taken..];
        let Some((length, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(body)?;
        self.taken += 4 + length;
        if self.taken == self.bytes.len() {
            self.taken = 0;
            // A launch may have held secrets.
            wipe(&mut self.bytes);
            self.bytes.clear();
            // A launch can be megabytes; a pooled shim must not keep them.
            self.bytes.shrink_to(64 << 10);
        }
        Ok(Some(message))
    }
}

/// Text of the operating system: a JSON string when it is UTF-8, else its bytes as numbers.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OsText {
    Text(String),
    Bytes(Vec<u8>),
}

impl OsText {
    fn of(text: &std::ffi::OsStr) -> Self {
        use std::os::unix::ffi::OsStrExt;
        match text.to_str() {
            Some(text) => OsText::Text(text.to_owned()),
            None => OsText::Bytes(text.as_bytes().to_vec()),
        }
    }

    fn into_os(self) -> std::ffi::OsString {
        use std::os::unix::ffi::OsStringExt;
        match self {
            OsText::Text(text) => text.into(),
            OsText::Bytes(bytes) => std::ffi::OsString::from_vec(bytes),
        }
    }
}

/// Paths, which need not be UTF-8.
pub(super) mod os_path {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::OsText;

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        OsText::of(path.as_os_str()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        OsText::deserialize(deserializer).map(|text| text.into_os().into())
    }
}

/// Arguments, which need not be UTF-8.
pub(super) mod os_list {
    use std::ffi::OsString;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::OsText;

    pub fn serialize<S: Serializer>(list: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|text| OsText::of(text)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OsString>, D::Error> {
        let list = Vec::<OsText>::deserialize(deserializer)?;
        Ok(list.into_iter().map(OsText::into_os).collect())
    }
}

/// Variables, which need not be UTF-8.
pub(super) mod os_pairs {
    use std::ffi::OsString;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::OsText;

    pub fn serialize<S: Serializer>(
        pairs: &[(OsString, OsString)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(pairs.iter().map(|(name, value)| (OsText::of(name), OsText::of(value))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(OsString, OsString)>, D::Error> {
        let pairs = Vec::<(OsText, OsText)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().map(|(name, value)| (name.into_os(), value.into_os())).collect())
    }
}

/// Secrets: the one place where their values are written out, and only for the socket between a worker and its shim.
pub(super) mod secret_pairs {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::OsText;
    use crate::domain::secrets::SecretValue;

    pub fn serialize<S: Serializer>(
        secrets: &[(String, SecretValue)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        use std::os::unix::ffi::OsStrExt;
        let text = |value: &SecretValue| OsText::of(std::ffi::OsStr::from_bytes(value.expose()));
        serializer.collect_seq(secrets.iter().map(|(name, value)| (name, text(value))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(String, SecretValue)>, D::Error> {
        use std::os::unix::ffi::OsStringExt;
        let pairs = Vec::<(String, OsText)>::deserialize(deserializer)?;
        let value = |text: OsText| SecretValue::new(text.into_os().into_vec());
        Ok(pairs.into_iter().map(|(name, text)| (name, value(text))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_any_cut() {
        let mut bytes = encode(&ToShim::Stop { now: true, reason: StopReason::Evicted }).unwrap();
        bytes.extend(encode(&ToShim::Leave).unwrap());
        for cut in 0..bytes.len() {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                frames.feed(part);
                while let Some(message) = frames.next::<ToShim>().unwrap() {
                    seen.push(message);
                }
            }
            assert!(
                matches!(seen[..], [ToShim::Stop { now: true, reason: StopReason::Evicted }, ToShim::Leave]),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn what_a_newer_side_adds_is_tolerated() {
        for text in [r#"{"kind":"stop","now":true,"gently":1}"#, r#"{"kind":"dance","partner":"x"}"#] {
            let mut frames = Frames::default();
            frames.feed(&(text.len() as u32).to_le_bytes());
            frames.feed(text.as_bytes());
            let message = frames.next::<ToShim>().unwrap().unwrap();
            assert!(matches!(message, ToShim::Stop { now: true, .. } | ToShim::Unknown), "{text}");
        }
    }
}
