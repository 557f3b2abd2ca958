//! What the runner of a Python function finds in its folder (CONTRACT, Functions).

use serde_json::json;

use crate::contract::array::ArrayPlace;
use crate::contract::artifact::Digest;
use crate::contract::spec::Function;
use crate::domain::spec::item_call;

/// A call, as it is laid out for its runner.
#[derive(Debug, Clone, PartialEq)]
pub struct Called {
    /// The text of `call.json`.
    pub file: String,
    /// The artifacts it needs beside that, by their paths in the folder.
    pub pieces: Vec<(String, Digest)>,
}

/// Lays out a call. A payload that is an artifact becomes the file `payload`, or `item` for the item of an array; the
/// values that they name lie in `values`, by their digests.
pub fn called(function: &Function, array: Option<&ArrayPlace>) -> Called {
    let mut pieces = Vec::new();
    let mut own_payload = |name: &str, payload: &str| match payload.parse() {
        Ok(digest) => {
            pieces.push((name.to_owned(), digest));
            None
        }
        Err(_) => Some(payload.to_owned()),
    };
    let payload = own_payload("payload", &function.payload);
    let item = array.and_then(|place| place.item.as_ref());
    let call = item.and_then(item_call);
    let item = match &call {
        Some(call) => Some(json!({"payload": own_payload("item", &call.payload)})),
        None => item.cloned(),
    };
    let mut values: Vec<Digest> =
        function.values.iter().copied().chain(call.into_iter().flat_map(|call| call.values)).collect();
    values.sort_unstable();
    values.dedup();
    pieces.extend(values.into_iter().map(|digest| (format!("values/{}", digest.hex()), digest)));
    let file = json!({
        "serializer": function.serializer,
        "entrypoint": function.entrypoint,
        "payload": payload,
        "index": array.map(|place| place.index),
        "item": item,
    });
    Called { file: file.to_string(), pieces }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::contract::spec::Serializer;

    fn digest(byte: u8) -> Digest {
        Digest::from_bytes([byte; 32])
    }

    fn function(payload: &str, values: Vec<Digest>) -> Function {
        Function {
            payload: payload.to_owned(),
            serializer: Serializer::Cloudpickle,
            entrypoint: None,
            values,
            reuse: false,
        }
    }

    fn place(item: Value) -> ArrayPlace {
        ArrayPlace { index: 4, count: 9, item: Some(item) }
    }

    #[test]
    fn what_is_in_line_stands_in_the_file_and_what_is_not_lies_beside_it() {
        let inline = called(&function("gAS=", vec![digest(2), digest(1), digest(2)]), None);
        let file: Value = serde_json::from_str(&inline.file).unwrap();
        assert_eq!(
            file,
            json!({"serializer": "cloudpickle", "entrypoint": null, "payload": "gAS=", "index": null, "item": null})
        );
        let names: Vec<String> = [1, 2].map(|byte| format!("values/{}", digest(byte).hex())).into();
        assert_eq!(inline.pieces, [(names[0].clone(), digest(1)), (names[1].clone(), digest(2))]);
        let beside = called(&function(&digest(3).to_string(), Vec::new()), None);
        assert_eq!(serde_json::from_str::<Value>(&beside.file).unwrap()["payload"], Value::Null);
        assert_eq!(beside.pieces, [("payload".to_owned(), digest(3))]);
    }

    #[test]
    fn an_item_is_a_call_or_an_argument() {
        let child = |item: Value| {
            let called = called(&function("gAS=", vec![digest(1)]), Some(&place(item)));
            let file: Value = serde_json::from_str(&called.file).unwrap();
            (file["index"].clone(), file["item"].clone(), called.pieces)
        };
        let shared = (format!("values/{}", digest(1).hex()), digest(1));
        assert_eq!(child(json!({"lr": 1})), (json!(4), json!({"lr": 1}), vec![shared.clone()]));
        let (_, item, pieces) =
            child(json!({"payload": digest(5).to_string(), "values": [digest(0).to_string()]}));
        assert_eq!(item, json!({"payload": null}));
        let own = (format!("values/{}", digest(0).hex()), digest(0));
        assert_eq!(pieces, [("item".to_owned(), digest(5)), own, shared.clone()]);
        assert_eq!(child(json!({"payload": "gAR="})), (json!(4), json!({"payload": "gAR="}), vec![shared]));
    }
}
