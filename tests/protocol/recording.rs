//! Conversations that were recorded (`scripts/record-conversations`), and how they are held against what is said now.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Every recorded version. A release adds its own.
pub const RECORDED: &[&str] = &["spine"];

/// One line of a recording.
pub type Entry = Value;

/// What a worker and a server of that version said, in the order of the answers.
pub fn conversation(version: &str) -> Vec<Entry> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protocol/conversations");
    let text = std::fs::read_to_string(path.join(version).join("worker.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Ids and tokens of a recording, and what they are called this time.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    pub fn call(&mut self, recorded: &str, now: &str) {
        self.0.insert(recorded.to_owned(), now.to_owned());
    }

    /// Learns from two answers to the same question.
    pub fn learn(&mut self, recorded: &Value, now: &Value) {
        match (recorded, now) {
            (Value::Object(recorded), Value::Object(now)) => {
                for (name, value) in recorded {
                    self.learn(value, now.get(name).unwrap_or(&Value::Null));
                }
            }
            (Value::Array(recorded), Value::Array(now)) => {
                recorded.iter().zip(now).for_each(|(recorded, now)| self.learn(recorded, now));
            }
            (Value::String(recorded), Value::String(now))
                if ["job_", "task_", "wkr_", "gls_"].iter().any(|prefix| recorded.starts_with(prefix)) =>
            {
                self.call(recorded, now);
            }
            _ => {}
        }
    }

    /// The same said with the names of this time.
    pub fn translated(&self, recorded: &Value) -> Value {
        match recorded {
            Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| (name.clone(), self.translated(value)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Value::Array(items) => items.iter().map(|item| self.translated(item)).collect(),
            Value::String(text) => self.text(text).into(),
            other => other.clone(),
        }
    }

    pub fn text(&self, recorded: &str) -> String {
        self.0.iter().fold(recorded.to_owned(), |text, (recorded, now)| text.replace(recorded, now))
    }
}

/// Words that decide what the reader does: they must be the same, where others need only be of the same kind.
const WORDS: &[&str] =
    &["result", "code", "job_state", "state", "reason", "owner", "kind", "revoked", "exit_code"];

/// What a reader of the recorded answer would miss in this one.
pub fn missed(recorded: &Value, now: &Value, place: &str, found: &mut Vec<String>) {
    match (recorded, now) {
        (Value::Null, _) => {}
        (Value::Object(recorded), Value::Object(now)) => {
            for (name, value) in recorded {
                let place = format!("{place}/{name}");
                match now.get(name) {
                    None if value.is_null() => {}
                    None => found.push(format!("{place} is gone (was {value})")),
                    Some(now) if WORDS.contains(&name.as_str()) && now != value => {
                        found.push(format!("{place} was {value} and is {now}"));
                    }
                    Some(now) => missed(value, now, &place, found),
                }
            }
        }
        (Value::Array(recorded), Value::Array(now)) => {
            if recorded.len() != now.len() {
                found.push(format!("{place} had {} entries and has {}", recorded.len(), now.len()));
            }
            for (index, (recorded, now)) in recorded.iter().zip(now).enumerate() {
                missed(recorded, now, &format!("{place}/{index}"), found);
            }
        }
        (Value::String(_), Value::String(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::Bool(_), Value::Bool(_)) => {}
        (recorded, now) => found.push(format!("{place} was {recorded} and is {now}")),
    }
}

#[test]
fn an_answer_that_lacks_something_is_told_from_one_that_has_more() {
    let recorded = serde_json::json!({"a": [1, {"state": "queued", "b": null}], "c": "x"});
    let told = |now: Value| {
        let mut found = Vec::new();
        missed(&recorded, &now, "", &mut found);
        found
    };
    assert!(told(serde_json::json!({"a": [7, {"state": "queued", "b": 3}], "c": "y", "new": {}})).is_empty());
    assert_eq!(told(serde_json::json!({"a": [7, {"state": "ended"}], "c": 1})).len(), 2);
    assert_eq!(told(serde_json::json!({"a": [7]})).len(), 2);
}
