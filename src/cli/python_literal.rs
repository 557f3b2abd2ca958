//! JSON as Python writes it, for programs that are pasted.

use serde_json::Value;

/// What fits stands on one line of so many columns.
const COLUMNS: usize = 88;

/// A value as a Python literal that begins at a column; its further lines are indented from the first column on.
pub(super) fn of(value: &Value, column: usize) -> String {
    written(value, column, 0)
}

fn written(value: &Value, column: usize, indent: usize) -> String {
    let line = on_one_line(value);
    let (brackets, parts): (_, Vec<_>) = match value {
        _ if column + line.chars().count() <= COLUMNS => return line,
        Value::Array(items) => {
            (["[", "]"], items.iter().map(|item| written(item, indent + 4, indent + 4)).collect())
        }
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                let name = text(name);
                let column = indent + 4 + name.chars().count() + 2;
                format!("{name}: {}", written(value, column, indent + 4))
            };
            (["{", "}"], fields.iter().map(field).collect())
        }
        _ => return line,
    };
    let [open, close] = brackets;
    let margin = " ".repeat(indent);
    let parts: String = parts.iter().map(|part| format!("{margin}    {part},\n")).collect();
    format!("{open}\n{parts}{margin}{close}")
}

fn on_one_line(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(given) => text(given),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(on_one_line))),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| format!("{}: {}", text(name), on_one_line(value));
            format!("{{{}}}", joined(fields.iter().map(field)))
        }
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// The escapes of a JSON text mean the same in Python.
fn text(given: &str) -> String {
    Value::from(given).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_python_writes_otherwise_is_written_so() {
        let value = json!({"a": null, "b": [true, false], "c": {}, "d": 1.5, "e": "it's \"ä\"\n\u{7}"});
        assert_eq!(
            of(&value, 0),
            r#"{"a": None, "b": [True, False], "c": {}, "d": 1.5, "e": "it's \"ä\"\n\u0007"}"#
        );
    }

    #[test]
    fn what_is_long_is_broken_where_a_person_would() {
        let value = json!({"workload": {"command": {"argv": ["python", "train.py", "--lr", "0.1"]}},
            "resources": {"cpus": 4, "memory_bytes": 17_179_869_184_u64}, "name": "n".repeat(60)});
        let name = "n".repeat(60);
        let expected = format!(
            "{{\n    \"name\": \"{name}\",\n    \"resources\": {{\"cpus\": 4, \"memory_bytes\": 17179869184}},\n    \
             \"workload\": {{\"command\": {{\"argv\": [\"python\", \"train.py\", \"--lr\", \"0.1\"]}}}},\n}}"
        );
        let mut lines: Vec<_> = expected.lines().collect();
        let written = of(&value, 0);
        let mut found: Vec<_> = written.lines().collect();
        // The order of the fields is the map's.
        lines.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, lines);
    }
}
