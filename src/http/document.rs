//! JSON documents as they were sent: a key that stands twice in one object is a fault with its place, because of
//! two values nobody can say which was meant.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::contract::problem::Fault;

/// Duplicate keys that are told; the rest are as wrong.
const TOLD: usize = 100;

/// Reads `text` as any JSON, with a fault (`duplicate_key`) for each repeated key.
pub fn read(text: &[u8]) -> serde_json::Result<(Value, Vec<Fault>)> {
    let mut faults = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = AnyJson(&mut faults).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, faults))
}

/// A field's name in a JSON pointer (RFC 6901).
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

struct AnyJson<'a>(&'a mut Vec<Fault>);

impl AnyJson<'_> {
    /// Faults noted since `before` lie below `part`: pointers grow on the way out, and only where there are any.
    fn below(&mut self, before: usize, part: impl Fn() -> String) {
        for fault in self.0.iter_mut().skip(before) {
            fault.pointer.insert_str(0, &part());
        }
    }
}

impl<'de> DeserializeSeed<'de> for AnyJson<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyJson<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            let before = self.0.len();
            let Some(value) = list.next_element_seed(AnyJson(self.0))? else { break };
            let index = values.len();
            self.below(before, || format!("/{index}"));
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let before = self.0.len();
            let value = fields.next_value_seed(AnyJson(self.0))?;
            self.below(before, || format!("/{}", escaped(&name)));
            if map.contains_key(&name) && self.0.len() < TOLD {
                let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
                self.0.push(Fault {
                    pointer: format!("/{}", escaped(&name)),
                    code: "duplicate_key".to_owned(),
                    detail: format!(
                        "duplicate key: `{shown}` stands more than once in this object; keep one"
                    ),
                });
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_are_told_with_their_place_at_every_depth() {
        let text = br#"{"a": 1, "b": [{}, {"c/d": 1, "c/d": 2}], "a": {"x": 1, "x": 1}}"#;
        let (_, faults) = read(text).unwrap();
        let pointers: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/b/1/c~1d", "/a/x", "/a"]);
        assert!(faults.iter().all(|fault| fault.code == "duplicate_key"));
    }

    #[test]
    fn what_has_none_is_read_as_ever() {
        let text = r#"{"n": [0, -1, 1.5, 1e30, 18446744073709551615], "t": "\u00e4", "u": null, "f": false, "o": {}}"#;
        let (value, faults) = read(text.as_bytes()).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        assert!(faults.is_empty());
        for bad in ["", "{", "{} x", "nope"] {
            let ours = read(bad.as_bytes()).unwrap_err();
            assert_eq!(
                ours.to_string(),
                serde_json::from_str::<Value>(bad).unwrap_err().to_string(),
                "{bad}"
            );
        }
    }
}
