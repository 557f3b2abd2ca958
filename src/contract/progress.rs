//! How far a program says it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

/// The newest word of a program about itself; all of it optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskProgress {
    /// So much is done, in units of its own.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "whole_as_integer")]
    pub done: Option<f64>,
    /// Of so much.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "whole_as_integer")]
    pub total: Option<f64>,
    /// The step that the metrics are of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Numbers, or texts for what is no number of JSON (`nan`), by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, serde_json::Value>,
}

/// As it was said: 4 epochs are not 4.0.
fn whole_as_integer<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    /// Up to here every whole number has its own float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match *number {
        Some(whole) if whole.fract() == 0.0 && whole.abs() < EXACT => serializer.serialize_i64(whole as i64),
        Some(other) => serializer.serialize_f64(other),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_stay_whole() {
        let written = |done: f64| {
            let said = TaskProgress { done: Some(done), ..TaskProgress::default() };
            serde_json::to_string(&said).unwrap()
        };
        assert_eq!(written(4.0), r#"{"done":4}"#);
        assert_eq!(written(0.5), r#"{"done":0.5}"#);
        assert_eq!(serde_json::from_str::<TaskProgress>(&written(1e300)).unwrap().done, Some(1e300));
    }
}
