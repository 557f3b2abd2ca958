//! What a program's word about its progress may be, and how it is shown.

use serde::Deserialize;
use serde_json::Value;

use crate::contract::progress::TaskProgress;

/// Metrics that are kept.
const MOST_METRICS: usize = 64;
/// Bytes of a metric's name, and of one that is a text.
const MOST_BYTES: usize = 64;

/// The word as far as it keeps to the bounds; `None` when nothing of it does.
pub fn bounded(mut said: TaskProgress) -> Option<TaskProgress> {
    let number = |given: Option<f64>| given.filter(|number| number.is_finite() && *number >= 0.0);
    (said.done, said.total) = (number(said.done), number(said.total));
    let mut room = MOST_METRICS;
    said.metrics.retain(|name, value| {
        let fits = match value {
            Value::Number(_) => true,
            Value::String(text) => text.len() <= MOST_BYTES,
            _ => false,
        };
        let kept = fits && !name.is_empty() && name.len() <= MOST_BYTES && room > 0;
        room -= usize::from(kept);
        kept
    });
    (said != TaskProgress::default()).then_some(said)
}

/// Changes every text in it that the program chose.
pub fn hide(said: &mut TaskProgress, hidden: impl Fn(&str) -> String) {
    let metrics = std::mem::take(&mut said.metrics);
    said.metrics = metrics
        .into_iter()
        .map(|(name, value)| match value {
            Value::String(text) => (hidden(&name), Value::String(hidden(&text))),
            value => (hidden(&name), value),
        })
        .collect();
}

/// What a program wrote down.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Word {
    /// How far it is.
    #[serde(flatten)]
    pub progress: Option<TaskProgress>,
    /// How many checkpoints it has made; 0 = it does not count them.
    #[serde(default)]
    pub checkpoint: u64,
}

/// Reads it; `None` when it is not what one reads there, perhaps half of it.
pub fn read(text: &[u8]) -> Option<Word> {
    let word: Word = serde_json::from_slice(text).ok()?;
    Some(Word { progress: word.progress.and_then(bounded), ..word })
}

/// `30/100 (30 %) · step 12 · loss=0.31`.
pub fn in_one_line(said: &TaskProgress) -> String {
    let mut parts = Vec::new();
    match (said.done, said.total) {
        (Some(done), Some(total)) if total > 0.0 => {
            let share = (done / total * 100.0).floor().min(100.0);
            parts.push(format!("{done}/{total} ({share} %)"));
        }
        (Some(done), _) => parts.push(format!("{done} done")),
        _ => {}
    }
    parts.extend(said.step.map(|step| format!("step {step}")));
    let metric = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name}={text}"),
        number => format!("{name}={}", short(number)),
    };
    if !said.metrics.is_empty() {
        parts.push(said.metrics.iter().map(metric).collect::<Vec<_>>().join(" "));
    }
    parts.join(" · ")
}

/// Four digits tell enough of a loss.
fn short(number: &Value) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => {
            let digits = 3 - (float.abs().max(1e-12).log10().floor() as i32).clamp(-4, 3);
            let text = format!("{float:.*}", digits.unsigned_abs() as usize);
            if text.contains('.') {
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            } else {
                text
            }
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(value: serde_json::Value) -> Option<TaskProgress> {
        read(value.to_string().as_bytes())?.progress
    }

    #[test]
    fn what_keeps_to_the_bounds_is_kept() {
        let whole =
            json!({"done": 3, "total": 10, "step": 7, "metrics": {"loss": 0.25, "lr": "nan"}, "more": 1});
        let read = said(whole).unwrap();
        assert_eq!(
            (read.done, read.total, read.step, read.metrics.len()),
            (Some(3.0), Some(10.0), Some(7), 2)
        );
        let odd = json!({"done": -1, "metrics": {"": 1, "list": [], "long": "x".repeat(65), "ok": 1}});
        assert_eq!(said(odd).unwrap().metrics.keys().collect::<Vec<_>>(), ["ok"]);
        let many: serde_json::Map<_, _> =
            (0..99).map(|number| (format!("m{number}"), json!(number))).collect();
        assert_eq!(said(json!({"metrics": many})).unwrap().metrics.len(), MOST_METRICS);
        for nothing in [json!({}), json!([]), json!({"done": -1}), json!({"step": -1})] {
            assert_eq!(said(nothing.clone()), None, "{nothing}");
        }
        assert_eq!(super::read(b"{\"done\": 3, \"to"), None, "half of it");
        let counts = super::read(b"{\"checkpoint\": 2}").unwrap();
        assert_eq!((counts.progress, counts.checkpoint), (None, 2));
    }

    #[test]
    fn it_is_told_in_one_line() {
        let line = |value| in_one_line(&said(value).unwrap());
        assert_eq!(line(json!({"done": 30, "total": 100})), "30/100 (30 %)");
        assert_eq!(line(json!({"done": 99.99, "total": 100.0})), "99.99/100 (99 %)");
        assert_eq!(line(json!({"done": 7})), "7 done");
        let metrics =
            json!({"loss": 0.312_345, "acc": 0.9, "lr": 1e-5, "n": 12, "big": 123_456.7, "bad": "nan"});
        assert_eq!(
            line(json!({"step": 12, "metrics": metrics})),
            "step 12 · acc=0.9 bad=nan big=123457 loss=0.3123 lr=0.00001 n=12"
        );
    }
}
