//! The texts in a secret that is JSON: programs take it apart and show a part of it alone.

use serde_json::Value;

use crate::domain::secrets::{MIN_VALUE_BYTES, SecretValue};

/// JSON in a text of JSON, and again, so often at most.
const MOST_NESTED: usize = 3;

/// Every text of JSON, of an object or a list however deep, that is long enough to be looked for. Keys are no secrets.
pub(super) fn within(secret: &[u8]) -> Vec<SecretValue> {
    let mut found = Vec::new();
    collect(secret, MOST_NESTED, &mut found);
    found
}

fn collect(json: &[u8], nested: usize, found: &mut Vec<SecretValue>) {
    let may_hold_texts = json.trim_ascii_start().first().is_some_and(|first| b"{[\"".contains(first));
    if nested == 0 || !may_hold_texts {
        return;
    }
    let Ok(value) = serde_json::from_slice::<Value>(json) else { return };
    let mut ahead = vec![value];
    while let Some(value) = ahead.pop() {
        match value {
            Value::Object(fields) => ahead.extend(fields.into_iter().map(|(_, value)| value)),
            Value::Array(values) => ahead.extend(values),
            Value::String(text) => {
                let text = SecretValue::new(text);
                collect(text.expose(), nested - 1, found);
                if text.expose().len() >= MIN_VALUE_BYTES {
                    found.push(text);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
