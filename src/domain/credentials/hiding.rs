//! What a viewer is not shown: the values of a job's `env`, in whatever carries a spec.

use serde_json::Value;
use serde_json::value::RawValue;

/// Stands where a value is not shown.
pub const HIDDEN: &str = "[hidden]";

/// A spec's text with every value of `env` hidden; `None` when there is none to hide. A text that is no spec is hidden
/// whole: nothing is shown that was not understood.
pub fn without_env_values(spec: &str) -> Option<String> {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(spec) else {
        return Some("{}".to_owned());
    };
    match fields.get_mut("env") {
        None => return None,
        Some(Value::Object(variables)) if variables.is_empty() => return None,
        Some(Value::Object(variables)) => {
            variables.values_mut().for_each(|value| *value = Value::from(HIDDEN));
        }
        Some(other) => *other = Value::from(HIDDEN),
    }
    Some(Value::Object(fields).to_string())
}

/// The same of a spec as answers carry it.
pub fn hidden(spec: &RawValue) -> Option<Box<RawValue>> {
    without_env_values(spec.get()).and_then(|text| RawValue::from_string(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_and_values_go() {
        let spec = r#"{"env":{"A":"1","B":"secret"},"workload":{"command":{"argv":["x"]}}}"#;
        let shown = without_env_values(spec).unwrap();
        assert!(!shown.contains("secret"));
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["env"], serde_json::json!({ "A": HIDDEN, "B": HIDDEN }));
        assert_eq!(shown["workload"]["command"]["argv"][0], "x");
        assert_eq!(without_env_values(r#"{"name":"n"}"#), None);
        assert_eq!(without_env_values(r#"{"env":{}}"#), None);
        assert_eq!(without_env_values("[1]").as_deref(), Some("{}"));
        assert!(!without_env_values(r#"{"env":"secret"}"#).unwrap().contains("secret"));
    }
}
