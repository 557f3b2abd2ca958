//! `v1/NAME.full.json` and `v1/NAME.minimal.json` of every type that workers and clients exchange: a file of an older
//! version must still be read, mean the same, and be written the same; what a newer version adds must be passed over.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gpulayer::contract::artifact::{MissingAnswer, MissingRequest, OutputFile, PartialUpload};
use gpulayer::contract::event::Event;
use gpulayer::contract::explain::{Explained, Explanation, WhatIf};
use gpulayer::contract::job::{BatchAnswer, CancelRequest, Job, Page, RetryRequest, Sequence};
use gpulayer::contract::log::LogLine;
use gpulayer::contract::problem::Problem;
use gpulayer::contract::protocol::*;
use gpulayer::contract::server::{ServerStatus, StopRequest, WhoAmI};
use gpulayer::contract::spec::JobSpec;
use gpulayer::contract::token::{CreateToken, CreatedToken, Token};
use gpulayer::contract::worker::{DrainRequest, EvictRequest, Task, Worker};
use gpulayer::contract::yielded::YieldedValue;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// What whoever broke a form has to know.
const WHAT_TO_DO: &str = "Workers, servers and clients of other versions read this form. A new field must be optional \
    with a default on both sides (add it to the `full` file of its type); anything else is a new protocol version: see \
    docs/PROTOCOL.md, Changes";

/// Objects whose keys are names that people choose, so that another key is another value.
const MAPS: &[&str] = &["labels", "env", "frameworks", "data", "telemetry", "progress", "result"];
/// Objects of exactly one key, which says what the value is.
const CHOICES: &[&str] = &["workload"];

/// One type of the wire, by the name of its schema.
struct Golden {
    name: &'static str,
    /// Reads a form and writes it again.
    again: fn(&Value) -> serde_json::Result<Value>,
}

fn again<T: Serialize + DeserializeOwned>(form: &Value) -> serde_json::Result<Value> {
    // From text, as it comes: some types borrow from it.
    let read: T = serde_json::from_str(&form.to_string())?;
    serde_json::to_value(read)
}

macro_rules! goldens {
    ($($name:literal $kind:ty),* $(,)?) => {
        &[$(Golden { name: $name, again: again::<$kind> }),*]
    };
}

const GOLDENS: &[Golden] = goldens! {
    // Worker protocol 1
    "RegisterRequest" RegisterRequest,
    "RegisterAnswer" RegisterAnswer,
    "ResumeRequest" ResumeRequest,
    "ResumeAnswer" ResumeAnswer,
    "HeartbeatRequest" HeartbeatRequest,
    "HeartbeatAnswer" HeartbeatAnswer,
    "AcquireRequest" AcquireRequest,
    "AcquireAnswer" AcquireAnswer,
    "ReportRequest" ReportRequest,
    "ReportAnswer" ReportAnswer,
    "EpochRequest" EpochRequest,
    "DeclineRequest" DeclineRequest,
    "FinishRequest" FinishRequest,
    "TaskAnswer" TaskAnswer,
    "LogsRequest" LogsRequest,
    "LogsAnswer" LogsAnswer,
    // Both
    "MissingRequest" MissingRequest,
    "MissingAnswer" MissingAnswer,
    "PartialUpload" PartialUpload,
    "Problem" Problem,
    "JobSpec" JobSpec,
    // Clients
    "Job" Job,
    "JobPage" Page<Job>,
    "Event" Event,
    "EventSequence" Sequence<Event>,
    "LogLine" LogLine,
    "LogLineSequence" Sequence<LogLine>,
    "YieldedValueSequence" Sequence<YieldedValue>,
    "Task" Task,
    "TaskPage" Page<Task>,
    "Worker" Worker,
    "WorkerPage" Page<Worker>,
    "OutputFilePage" Page<OutputFile>,
    "BatchAnswer" BatchAnswer,
    "ServerStatus" ServerStatus,
    "WhoAmI" WhoAmI,
    "CreateToken" CreateToken,
    "CreatedToken" CreatedToken,
    "TokenPage" Page<Token>,
    "CancelRequest" CancelRequest,
    "RetryRequest" RetryRequest,
    "DrainRequest" DrainRequest,
    "EvictRequest" EvictRequest,
    "StopRequest" StopRequest,
    "Explanation" Explanation,
    "Explained" Explained,
    "WhatIf" WhatIf,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protocol/v1")
}

fn form(name: &str, which: &str) -> Value {
    let path = folder().join(format!("{name}.{which}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read(golden: &Golden, form: &Value) -> Value {
    (golden.again)(form).unwrap_or_else(|error| {
        panic!("{} cannot be read any more: {error}\n{form}\n{WHAT_TO_DO}", golden.name)
    })
}

/// Whether all that `small` says stands in `large` too.
fn contains(large: &Value, small: &Value) -> bool {
    match (large, small) {
        (Value::Object(large), Value::Object(small)) => small.iter().all(|(name, value)| {
            value.is_null() || large.get(name).is_some_and(|other| contains(other, value))
        }),
        (Value::Array(large), Value::Array(small)) => {
            large.len() == small.len() && large.iter().zip(small).all(|(large, small)| contains(large, small))
        }
        // 2 and 2.0 are one number.
        (Value::Number(large), Value::Number(small)) => large.as_f64() == small.as_f64(),
        (large, small) => large == small,
    }
}

/// The same with a field nobody knows in every object that is no map of names.
fn with_news(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields = with_news_inside(fields);
            fields.insert("added_by_a_newer_version".to_owned(), json!({"some": ["thing", 1, null]}));
            Value::Object(fields)
        }
        Value::Array(items) => Value::Array(items.iter().map(with_news).collect()),
        other => other.clone(),
    }
}

fn with_news_inside(fields: &Map<String, Value>) -> Map<String, Value> {
    let news = |(name, value): (&String, &Value)| {
        let value = match value {
            value if MAPS.contains(&name.as_str()) => value.clone(),
            Value::Object(choice) if CHOICES.contains(&name.as_str()) => {
                Value::Object(with_news_inside(choice))
            }
            value => with_news(value),
        };
        (name.clone(), value)
    };
    fields.iter().map(news).collect()
}

#[test]
fn full_forms_are_read_and_written_as_ever() {
    for golden in GOLDENS {
        let full = form(golden.name, "full");
        let written = read(golden, &full);
        assert!(
            contains(&written, &full) && contains(&full, &written),
            "the form of {} changed; was\n{full:#}\nis\n{written:#}\n{WHAT_TO_DO}",
            golden.name
        );
    }
}

#[test]
fn minimal_forms_are_enough() {
    for golden in GOLDENS {
        let minimal = form(golden.name, "minimal");
        let written = read(golden, &minimal);
        assert!(
            contains(&written, &minimal),
            "the form of {} changed; was\n{minimal:#}\nis\n{written:#}\n{WHAT_TO_DO}",
            golden.name
        );
        assert_eq!(read(golden, &written), written, "{}", golden.name);
    }
}

#[test]
fn what_a_newer_version_adds_is_passed_over() {
    // A spec alone is a person's: its reader says what it did not understand (tests/domain/spec.rs).
    for golden in GOLDENS {
        for which in ["full", "minimal"] {
            let known = form(golden.name, which);
            let (plain, extended) = (read(golden, &known), read(golden, &with_news(&known)));
            if ["Job", "JobPage", "WhatIf"].contains(&golden.name) {
                // Shown as it is kept, or read by another: the spec of a job is handed on unread.
                assert!(contains(&extended, &plain), "{}", golden.name);
            } else {
                assert_eq!(extended, plain, "{} reads a field it should not know", golden.name);
            }
        }
    }
}

#[test]
fn every_type_of_a_call_has_its_files_and_every_file_its_type() {
    let document: Value = serde_json::from_str(&gpulayer::http::openapi_document()).unwrap();
    let mut named = BTreeSet::new();
    collect_references(&document["paths"], &mut named);
    // Read by a validator of its own, which tells every fault: tests/domain/spec.rs.
    named.remove("BatchRequest");
    let listed: BTreeSet<String> = GOLDENS.iter().map(|golden| golden.name.to_owned()).collect();
    let missing: Vec<_> = named.difference(&listed).collect();
    assert!(missing.is_empty(), "no golden files of {missing:?}: add them to tests/protocol");
    let kept: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let wanted: BTreeSet<String> = listed
        .iter()
        .flat_map(|name| [format!("{name}.full.json"), format!("{name}.minimal.json")])
        .collect();
    assert_eq!(kept, wanted);
}

fn collect_references(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                names.extend(reference.rsplit('/').next().map(str::to_owned));
            }
            fields.values().for_each(|value| collect_references(value, names));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_references(value, names)),
        _ => {}
    }
}

#[test]
fn the_comparison_can_fail() {
    let (one, other) = (json!({"a": [1, {"b": null}]}), json!({"a": [1, {"b": 2}]}));
    assert!(contains(&other, &json!({})) && contains(&other, &one));
    assert!(!contains(&one, &other) && !contains(&json!({"a": [1]}), &one));
    assert!((again::<EpochRequest>)(&json!({"epoch": "one"})).is_err());
}
