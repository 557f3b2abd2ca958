//! The parsers, and what they promise besides not to panic: what was read and is written is read again as the same.

use std::fs;
use std::os::fd::AsFd;

use gpulayer::artifacts::{self, RelativePath, UnpackLimits};
use gpulayer::client::connection_string::ConnectionString;
use gpulayer::client::endpoint::Endpoint;
use gpulayer::client::event_stream::EventReader;
use gpulayer::contract::artifact::Digest;
use gpulayer::contract::ids::{JobId, TaskId, WorkerId};
use gpulayer::contract::job::Job;
use gpulayer::contract::pin::Pin;
use gpulayer::contract::problem::Problem;
use gpulayer::contract::protocol::*;
use gpulayer::contract::quantity::{Cpus, Seconds, Timestamp};
use gpulayer::contract::spec::InputMode;
use gpulayer::domain::spec::{self, ReadOptions, human};
use gpulayer::http::{body, small_forms};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Takes any bytes, and must not panic.
pub type Parser = fn(&[u8]);

/// Every parser by the name of its fuzz target.
pub const PARSERS: &[(&str, Parser)] = &[
    ("spec", job_spec),
    ("batch", batch),
    ("worker_bodies", worker_bodies),
    ("answers", answers),
    ("content_range", content_range),
    ("bundle", bundle),
    ("event_stream", event_stream),
    ("connection_string", connection_string),
    ("host", host),
    ("ids", ids),
    ("quantities", quantities),
];

/// A job's spec, as a client sends it.
pub fn job_spec(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    read_spec(&value, "");
    let mut typed = value;
    human::to_wire(&mut typed, "");
    read_spec(&typed, "");
}

fn read_spec(value: &Value, prefix: &str) {
    for strict in [false, true] {
        let options = ReadOptions { strict, allow_absolute_cwd: false };
        match spec::read(value, prefix, options) {
            Ok(read) => {
                let written = spec::to_json(&read.spec);
                let again = serde_json::from_str(&written).expect("a spec is JSON");
                let again = spec::read(&again, prefix, options).expect("what was accepted is accepted again");
                assert_eq!(again.spec, read.spec, "{written}");
                let typed: gpulayer::contract::spec::JobSpec = serde_json::from_str(&written)
                    .expect("the store and the worker read what the edge accepts");
                assert_eq!(typed, read.spec, "{written}");
            }
            Err(faults) => {
                assert!(!faults.is_empty(), "a refusal names its faults");
                assert!(
                    faults.iter().all(|fault| fault.pointer.starts_with(prefix) && !fault.detail.is_empty())
                );
            }
        }
    }
}

/// Any JSON with its duplicate keys told, and a batch's entries each read as a spec.
pub fn batch(bytes: &[u8]) {
    let Ok((value, faults)) = body::read_value(bytes) else { return };
    let plain: Value = serde_json::from_slice(bytes).expect("both read the same");
    assert!(!faults.is_empty() || value == plain);
    for (index, entry) in value["jobs"].as_array().into_iter().flatten().take(20).enumerate() {
        read_spec(entry, &format!("/jobs/{index}"));
    }
}

fn body_of<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(read) = body::parse::<T>(bytes) {
        let written = serde_json::to_vec(&read).expect("what was read can be written");
        let again =
            body::parse::<T>(&written).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&written)));
        assert_eq!(serde_json::to_vec(&again).ok(), Some(written));
    }
}

/// Everything that a worker sends.
pub fn worker_bodies(bytes: &[u8]) {
    body_of::<RegisterRequest>(bytes);
    body_of::<ResumeRequest>(bytes);
    body_of::<HeartbeatRequest>(bytes);
    body_of::<AcquireRequest>(bytes);
    body_of::<ReportRequest>(bytes);
    body_of::<EpochRequest>(bytes);
    body_of::<DeclineRequest>(bytes);
    body_of::<FinishRequest>(bytes);
    body_of::<LogsRequest>(bytes);
}

/// What a worker or a client is answered, by a server it need not trust that far.
pub fn answers(bytes: &[u8]) {
    body_of::<RegisterAnswer>(bytes);
    body_of::<AcquireAnswer>(bytes);
    body_of::<HeartbeatAnswer>(bytes);
    body_of::<ReportAnswer>(bytes);
    body_of::<LogsAnswer>(bytes);
    body_of::<Problem>(bytes);
    let _ = serde_json::from_slice::<Job>(bytes);
}

/// `Content-Range` of an upload, `Range` of a download, sequence numbers.
pub fn content_range(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some((offset, length, total)) = small_forms::content_range(text) {
        let end = offset.checked_add(length).expect("a part ends somewhere");
        assert!(length > 0 && total.is_none_or(|total| end <= total), "{text}");
    }
    for size_bytes in [0, 1, 1000, u64::MAX] {
        if let Some((first, last)) = small_forms::range(text, size_bytes) {
            assert!(first <= last && last < size_bytes, "{text} of {size_bytes}");
        }
    }
    if let Some(number) = small_forms::sequence_number(text) {
        assert!(i64::try_from(number).is_ok());
    }
}

/// A bundle, unpacked beneath a workspace: nothing appears outside it.
pub fn bundle(bytes: &[u8]) {
    let house = tempfile::tempdir().expect("a temporary folder");
    let workspace = house.path().join("workspace");
    fs::create_dir(&workspace).expect("a folder in it");
    fs::write(house.path().join("outside"), "untouched").expect("a file beside it");
    let opened = fs::File::open(&workspace).expect("the folder opens");
    let at: RelativePath = RelativePath::new("in").expect("a plain path");
    let limits = UnpackLimits { max_entries: 100, max_bytes: 1 << 20 };
    let _ = artifacts::unpack(bytes, opened.as_fd(), &at, InputMode::Rw, limits);
    let beside: Vec<_> = fs::read_dir(house.path())
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(beside.len(), 2, "{beside:?}");
    assert_eq!(fs::read_to_string(house.path().join("outside")).ok().as_deref(), Some("untouched"));
    assert!(fs::read_dir(&workspace).expect("the workspace is there").count() <= 1);
}

/// Server-sent events, however they are cut.
pub fn event_stream(bytes: &[u8]) {
    let events = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut reader = EventReader::default();
        let mut events = Vec::new();
        for piece in pieces {
            if reader.feed(piece).is_err() {
                return None;
            }
            while let Some(event) = reader.next_event() {
                events.push(event);
            }
        }
        Some(events)
    };
    let whole = events(&mut std::iter::once(bytes));
    let bytewise = events(&mut bytes.chunks(1));
    if let (Some(whole), Some(bytewise)) = (whole, bytewise) {
        assert_eq!(whole, bytewise);
    }
}

/// Connection strings, URLs and pins.
pub fn connection_string(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(read) = ConnectionString::parse(text) {
        let written = read.to_string();
        let again = ConnectionString::parse(&written).unwrap_or_else(|error| panic!("{written}: {error}"));
        assert_eq!(again.to_string(), written);
        // The host may look like the token, so that looking for the token itself would find what is no leak.
        let (logged, mut other) = (format!("{read:?}"), read);
        other.token = "glc_other".to_owned();
        assert_eq!(format!("{other:?}"), logged, "a token stays out of logs");
    }
    if let Ok(endpoint) = Endpoint::parse(text) {
        let _ = endpoint.to_string();
    }
    if let Ok(pin) = text.parse::<Pin>() {
        assert_eq!(pin.to_string().parse(), Ok(pin));
    }
}

/// The `Host` header.
pub fn host(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(name) = small_forms::host(text) {
        assert!(text.contains(name));
    }
}

/// Ids and digests.
pub fn ids(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(id) = text.parse::<JobId>() {
        assert_eq!(id.to_string(), text);
    }
    if let Ok(id) = text.parse::<TaskId>() {
        assert_eq!(id.to_string(), text);
    }
    if let Ok(id) = text.parse::<WorkerId>() {
        assert_eq!(id.to_string(), text);
    }
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!(digest.to_string(), text);
    }
}

/// Sizes and spans as people write them, numbers and times as the wire has them.
pub fn quantities(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = human::bytes(text);
    if let Ok(seconds) = human::seconds(text) {
        assert!(seconds <= Seconds::MAX);
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        assert_eq!(time.to_string().parse::<Timestamp>().ok(), Some(time), "{text}");
    }
    if let Ok(cpus) = serde_json::from_str::<Cpus>(text) {
        let written = serde_json::to_string(&cpus).expect("a number");
        assert_eq!(serde_json::from_str::<Cpus>(&written).ok(), Some(cpus), "{text}");
    }
    if let Ok(seconds) = serde_json::from_str::<Seconds>(text) {
        let written = serde_json::to_string(&seconds).expect("a number");
        assert_eq!(serde_json::from_str::<Seconds>(&written).ok(), Some(seconds), "{text}");
    }
}
