//! A call of a Python function: what it is read from, and which artifacts it names.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::limits;
use super::reader::{Node, Pointer, Reader};
use crate::contract::artifact::{ARTIFACT_PREFIX, Digest};
use crate::contract::spec::{Array, Function, ItemCall, Serializer};

/// The field of an item of an array that makes it a call of its own.
const PAYLOAD: &str = "payload";

const SERIALIZERS: [(&str, Serializer); 2] =
    [("json", Serializer::Json), ("cloudpickle", Serializer::Cloudpickle)];

fn of_word(given: &str) -> Option<Serializer> {
    SERIALIZERS.iter().find(|(word, _)| *word == given).map(|(_, serializer)| *serializer)
}

pub(super) fn read(reader: &mut Reader, node: Node<'_>) -> Option<Function> {
    let fields = reader.fields(node, &[PAYLOAD, "serializer", "entrypoint", "values", "reuse"])?;
    // The payload is read by the serializer's rules, and its faults come first.
    let coded = node.value.get("serializer").and_then(Value::as_str).and_then(of_word);
    let payload =
        fields.require(reader, PAYLOAD, PAYLOAD_ALLOWED, |reader, node| payload(reader, node, coded));
    let serializer = fields.require(reader, "serializer", "`json` or `cloudpickle`", |reader, node| {
        reader.word(node, &SERIALIZERS)
    });
    let entrypoint = fields.read(reader, "entrypoint", entrypoint);
    let values = fields.read(reader, "values", values);
    let reuse = fields.read(reader, "reuse", |reader, node| reader.boolean(node)).unwrap_or_default();
    if serializer == Some(Serializer::Json) {
        if !fields.has("entrypoint") {
            let at = Pointer::Field(&node.at, "entrypoint");
            reader.fault(at, "missing", "JSON carries no code: name the function as `module:function`");
        }
        if values.as_ref().is_some_and(|values| !values.is_empty()) {
            let at = Pointer::Field(&node.at, "values");
            reader.fault(
                at,
                "invalid",
                "only a payload of `cloudpickle` can name them; put data into `inputs`",
            );
        }
    }
    let (payload, serializer) = (payload?, serializer?);
    Some(Function { payload, serializer, entrypoint, values: values.unwrap_or_default(), reuse })
}

/// Those items of a function job's array that are calls of their own, or say arguments as a payload of JSON does.
pub(super) fn check_items(reader: &mut Reader, at: Pointer<'_>, array: &Array, serializer: Serializer) {
    let items = Pointer::Field(&at, "items");
    for (index, value) in array.items.iter().flatten().enumerate() {
        if is_call(value) {
            let node = Node { value, at: Pointer::Item(&items, index) };
            let Some(fields) = reader.fields(node, &[PAYLOAD, "values"]) else { continue };
            fields.require(reader, PAYLOAD, PAYLOAD_ALLOWED, |reader, node| {
                payload(reader, node, Some(serializer))
            });
            fields.read(reader, "values", values);
        } else if serializer == Serializer::Json && !says_arguments(value) {
            reader.invalid::<()>(Pointer::Item(&items, index), ARGUMENTS_EXPECTED);
        }
    }
}

/// Whether an item is not of the form of arguments, or is as such in order.
fn says_arguments(item: &Value) -> bool {
    let Value::Object(fields) = item else { return true };
    let is_meant = !fields.is_empty() && fields.keys().all(|name| matches!(name.as_str(), "args" | "kwargs"));
    !is_meant || are_arguments(fields)
}

/// The call that an item of a function job's array is; `None` = it is an argument.
pub fn item_call(item: &Value) -> Option<ItemCall> {
    is_call(item).then(|| serde_json::from_value(item.clone()).ok()).flatten()
}

fn is_call(item: &Value) -> bool {
    item.get(PAYLOAD).is_some()
}

/// The artifacts that a function job names by its calls.
pub(super) fn artifacts(function: &Function, array: Option<&Array>) -> impl Iterator<Item = Digest> {
    let items = array.and_then(|array| array.items.as_deref()).unwrap_or_default();
    let calls = items.iter().filter_map(item_call);
    let of_items = calls.flat_map(|call| call.payload.parse().ok().into_iter().chain(call.values));
    let own = function.payload.parse().ok().into_iter().chain(function.values.iter().copied());
    own.chain(of_items)
}

const PAYLOAD_ALLOWED: &str = "the address of an artifact, or inline: JSON such as `{\"args\": [1]}`, of cloudpickle's bytes their base64";

/// With a serializer that could not be read, anything is taken: the fault is named there.
fn payload(reader: &mut Reader, node: Node<'_>, serializer: Option<Serializer>) -> Option<String> {
    let text = reader.text(node)?;
    if text.starts_with(ARTIFACT_PREFIX) {
        return reader.digest(node).map(|digest: Digest| digest.to_string());
    }
    match serializer {
        Some(Serializer::Json) => arguments(reader, node, text)?,
        Some(Serializer::Cloudpickle) if STANDARD.decode(text).is_err() => {
            return reader
                .invalid(node.at, "expected an artifact's address, or the payload's bytes in base64");
        }
        _ => {}
    }
    Some(text.to_owned())
}

/// `{"args": […], "kwargs": {…}}`; either may be absent.
fn arguments(reader: &mut Reader, node: Node<'_>, text: &str) -> Option<()> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) if are_arguments(&fields) => Some(()),
        _ => reader.invalid(node.at, ARGUMENTS_EXPECTED),
    }
}

const ARGUMENTS_EXPECTED: &str =
    "expected JSON: an object with the list `args`, the object `kwargs`, or both";

fn are_arguments(fields: &serde_json::Map<String, Value>) -> bool {
    fields.iter().all(|(name, value)| match name.as_str() {
        "args" => value.is_array(),
        "kwargs" => value.is_object(),
        _ => false,
    })
}

fn entrypoint(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let text = reader.line(node, limits::NAME_BYTES)?;
    match text.split_once(':') {
        Some((module, function)) if is_dotted(module) && is_dotted(function) => Some(text),
        _ => reader.invalid(node.at, "expected `module:function`, each a dotted name of Python"),
    }
}

/// Names of Python with dots between them. Which letters Unicode allows there is Python's to say.
fn is_dotted(text: &str) -> bool {
    let name = |part: &str| {
        let mut letters = part.chars();
        letters.next().is_some_and(|first| first == '_' || first.is_alphabetic())
            && letters.all(|letter| letter == '_' || letter.is_alphanumeric())
    };
    text.split('.').all(name)
}

fn values(reader: &mut Reader, node: Node<'_>) -> Option<Vec<Digest>> {
    reader.list(node, limits::ENTRIES, |reader, node, _| reader.digest(node))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::item_call;
    use crate::domain::spec::{ReadOptions, artifacts, child_artifacts, read};

    const ADDRESS: &str =
        "artifact://sha256/0000000000000000000000000000000000000000000000000000000000000001";
    const OTHER: &str = "artifact://sha256/0000000000000000000000000000000000000000000000000000000000000002";

    fn faults(spec: serde_json::Value) -> Vec<String> {
        let faults = read(&spec, "", ReadOptions { strict: true, ..ReadOptions::default() }).err();
        faults.unwrap_or_default().into_iter().map(|fault| fault.pointer).collect()
    }

    fn of(function: serde_json::Value) -> Vec<String> {
        faults(json!({"workload": {"function": function}}))
    }

    #[test]
    fn a_call_is_json_for_a_function_by_name_or_a_pickle() {
        let named =
            |payload: &str| of(json!({"payload": payload, "serializer": "json", "entrypoint": "train:main"}));
        for fine in [r#"{"args": [1, "two"], "kwargs": {"lr": 0.1}}"#, r#"{"args": []}"#, "{}", ADDRESS] {
            assert_eq!(named(fine), [""; 0], "{fine}");
        }
        for wrong in [
            "",
            "[1]",
            r#"{"args": {}}"#,
            r#"{"kwargs": []}"#,
            r#"{"arguments": []}"#,
            "artifact://sha256/12",
        ] {
            assert_eq!(named(wrong), ["/workload/function/payload"], "{wrong}");
        }
        assert_eq!(
            of(json!({"payload": "gASVBQAAAA==", "serializer": "cloudpickle", "values": [ADDRESS]})),
            [""; 0]
        );
        assert_eq!(of(json!({"payload": "*", "serializer": "cloudpickle"})), ["/workload/function/payload"]);
    }

    #[test]
    fn json_names_its_function_and_has_no_values() {
        let found = of(json!({"payload": "{}", "serializer": "json", "values": [ADDRESS]}));
        assert_eq!(found, ["/workload/function/entrypoint", "/workload/function/values"]);
        for wrong in ["train", "train:", ":main", "train:main()", "a b:c", "train.py:1main", "a:b:c"] {
            let found = of(json!({"payload": "{}", "serializer": "json", "entrypoint": wrong}));
            assert_eq!(found, ["/workload/function/entrypoint"], "{wrong}");
        }
    }

    #[test]
    fn an_item_with_a_payload_is_a_call_of_its_own_and_keeps_its_artifacts() {
        let array = |items: serde_json::Value| {
            let function = json!({"payload": "gASVBQAAAA==", "serializer": "cloudpickle"});
            json!({"workload": {"function": function}, "array": {"items": items}})
        };
        let spec = array(json!([{"payload": ADDRESS, "values": [OTHER]}, {"payload": "gASVBQAAAA=="}]));
        let mut spec = read(&spec, "", ReadOptions::default()).unwrap().spec;
        let both = [ADDRESS.parse().unwrap(), OTHER.parse().unwrap()];
        assert_eq!(artifacts(&spec), both);
        let items = spec.array.take().unwrap().items.unwrap();
        assert_eq!(child_artifacts(&spec, items.first()), both);
        assert_eq!(child_artifacts(&spec, items.get(1)), [], "a child needs no other's");
        let wrong = array(json!([7, {"payload": "*"}, {"payload": ADDRESS, "values": ["x"], "more": 1}]));
        assert_eq!(
            faults(wrong),
            ["/array/items/1/payload", "/array/items/2/more", "/array/items/2/values/0"]
        );
        assert_eq!(faults(array(json!([{"payload": null}]))), ["/array/items/0/payload"]);
        assert_eq!(item_call(&json!({"lr": 1})), None);
    }

    #[test]
    fn an_item_that_says_arguments_is_judged_as_a_payload_is() {
        let array = |items: serde_json::Value| {
            let function = json!({"payload": "{}", "serializer": "json", "entrypoint": "a:b"});
            json!({"workload": {"function": function}, "array": {"items": items}})
        };
        let fine = json!([{"args": [1], "kwargs": {"a": 1}}, {}, {"args": 5, "lr": 1}, "args", [5], null]);
        assert_eq!(faults(array(fine)), [""; 0]);
        let wrong =
            json!([{"args": "ab"}, {"args": {"a": 1}}, {"kwargs": [["a", 1]]}, {"args": null, "kwargs": {}}]);
        let at = |index: usize| format!("/array/items/{index}");
        assert_eq!(faults(array(wrong)), [at(0), at(1), at(2), at(3)]);
    }

    #[test]
    fn a_process_that_waits_has_no_gpus() {
        let spec = |resources: serde_json::Value| {
            let function = json!({"payload": "{}", "serializer": "json", "entrypoint": "a:b", "reuse": true});
            json!({"workload": {"function": function}, "resources": resources})
        };
        assert_eq!(faults(spec(json!({}))), [""; 0]);
        assert_eq!(faults(spec(json!({"gpus": {"count": 1}}))), ["/workload/function/reuse"]);
    }

    #[test]
    fn a_gang_calls_no_functions_yet() {
        let function = json!({"payload": "{}", "serializer": "json", "entrypoint": "a:b"});
        let spec =
            json!({"workload": {"function": function}, "distributed": {"nodes": 2, "launcher": "env"}});
        let found = read(&spec, "", ReadOptions::default()).err().unwrap();
        assert_eq!(
            found.iter().map(|fault| (&*fault.pointer, &*fault.code)).collect::<Vec<_>>(),
            [("/distributed", "not_supported")]
        );
    }
}
