//! A chunk's payload: records one after the other, compressed when that pays.
//!
//! Raw form per record: time in microseconds (8 bytes), stream (1), length of the text (4), the text; integers little
//! endian. Stored form: how (1 byte: 0 as it is, 1 zstd), length of the raw form (4), the bytes.

use crate::contract::log::{LogRecord, Stream};
use crate::contract::quantity::Timestamp;

const AS_IT_IS: u8 = 0;
const ZSTD: u8 = 1;
const HEADER_BYTES: usize = 5;
/// Below this zstd wins nothing.
const WORTH_COMPRESSING_BYTES: usize = 256;
/// Level 1: the writer shares two cores with the work.
const LEVEL: i32 = 1;
/// Far above any chunk written: a damaged length must not ask for all memory.
const LARGEST_RAW_BYTES: usize = 256 << 20;

/// A payload that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

/// Adds a record to the raw form.
pub fn push(raw: &mut Vec<u8>, record: &LogRecord) {
    let stream = match record.stream {
        Stream::Stdout => 0u8,
        Stream::Stderr => 1,
        Stream::System => 2,
    };
    raw.extend_from_slice(&record.time.micros().to_le_bytes());
    raw.push(stream);
    raw.extend_from_slice(&(record.text.len() as u32).to_le_bytes());
    raw.extend_from_slice(record.text.as_bytes());
}

/// The stored form of a raw one.
pub fn pack(raw: &[u8]) -> Vec<u8> {
    let compressed = (raw.len() >= WORTH_COMPRESSING_BYTES)
        .then(|| zstd::bulk::compress(raw, LEVEL).ok())
        .flatten()
        .filter(|compressed| compressed.len() < raw.len());
    let (how, bytes) = match &compressed {
        Some(compressed) => (ZSTD, compressed.as_slice()),
        None => (AS_IT_IS, raw),
    };
    let mut payload = Vec::with_capacity(HEADER_BYTES + bytes.len());
    payload.push(how);
    payload.extend_from_slice(&(raw.len() as u32).to_le_bytes());
    payload.extend_from_slice(bytes);
    payload
}

/// The raw form of a stored one.
pub fn unpack(payload: &[u8]) -> Result<Vec<u8>, Damaged> {
    let (header, bytes) = payload.split_first_chunk::<HEADER_BYTES>().ok_or(Damaged)?;
    let [how, length @ ..] = *header;
    let length = u32::from_le_bytes(length) as usize;
    let raw = match how {
        AS_IT_IS => bytes.to_vec(),
        ZSTD if length <= LARGEST_RAW_BYTES => zstd::bulk::decompress(bytes, length).map_err(|_| Damaged)?,
        _ => return Err(Damaged),
    };
    if raw.len() == length { Ok(raw) } else { Err(Damaged) }
}

/// The records of a raw form, in order.
pub fn records(raw: &[u8]) -> Records<'_> {
    Records { rest: raw }
}

/// Iterates over a raw form; ends after the first damage.
pub struct Records<'a> {
    rest: &'a [u8],
}

impl Records<'_> {
    fn read(&mut self) -> Option<LogRecord> {
        let (micros, rest) = self.rest.split_first_chunk()?;
        let (stream, rest) = rest.split_first()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let record = LogRecord {
            time: Timestamp::from_micros(i64::from_le_bytes(*micros)),
            stream: match stream {
                0 => Stream::Stdout,
                1 => Stream::Stderr,
                2 => Stream::System,
                _ => return None,
            },
            text: String::from_utf8(text.to_vec()).ok()?,
        };
        self.rest = rest;
        Some(record)
    }
}

impl Iterator for Records<'_> {
    type Item = Result<LogRecord, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.read().ok_or(Damaged);
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> impl Strategy<Value = LogRecord> {
        let stream = prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr), Just(Stream::System)];
        (any::<i64>(), stream, ".{0,80}").prop_map(|(micros, stream, text)| LogRecord {
            time: Timestamp::from_micros(micros),
            stream,
            text,
        })
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were(records in proptest::collection::vec(record(), 0..40)) {
            let mut raw = Vec::new();
            for record in &records {
                push(&mut raw, record);
            }
            let raw = unpack(&pack(&raw)).unwrap();
            let back: Vec<LogRecord> = super::records(&raw).map(Result::unwrap).collect();
            prop_assert_eq!(back, records);
        }

        #[test]
        fn damage_is_an_error_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(raw) = unpack(&bytes) {
                let _ = records(&raw).count();
            }
            let _ = records(&bytes).count();
        }
    }
}
