//! `null` counts as absent in what a client sends (CONTRACT, Requests and answers), so the schemas of it take `null`
//! wherever a field need not be there.

use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};

/// Lets each field of an object that need not be there be `null`.
pub fn admit_null(schema: &mut RefOr<Schema>) {
    let RefOr::T(schema) = schema else { return };
    match schema {
        Schema::Object(object) => {
            let required = &object.required;
            for (_, property) in object.properties.iter_mut().filter(|(name, _)| !required.contains(name)) {
                admit_null(property);
                or_null(property);
            }
        }
        Schema::OneOf(choice) => choice.items.iter_mut().for_each(admit_null),
        Schema::AnyOf(choice) => choice.items.iter_mut().for_each(admit_null),
        Schema::AllOf(parts) => parts.items.iter_mut().for_each(admit_null),
        _ => {}
    }
}

fn or_null(schema: &mut RefOr<Schema>) {
    match schema {
        RefOr::T(Schema::Object(object)) if object.enum_values.is_none() => {
            or_null_type(&mut object.schema_type)
        }
        RefOr::T(Schema::Array(array)) => or_null_type(&mut array.schema_type),
        RefOr::T(Schema::OneOf(choice)) if choice.items.iter().any(is_null) => {}
        other => {
            let null = ObjectBuilder::new().schema_type(SchemaType::new(Type::Null));
            *other = OneOfBuilder::new().item(null).item(other.clone()).into();
        }
    }
}

fn or_null_type(kind: &mut SchemaType) {
    match kind {
        SchemaType::Type(Type::Null) | SchemaType::AnyValue => {}
        SchemaType::Type(only) => *kind = SchemaType::from_iter([only.clone(), Type::Null]),
        SchemaType::Array(kinds) if kinds.contains(&Type::Null) => {}
        SchemaType::Array(kinds) => kinds.push(Type::Null),
    }
}

fn is_null(schema: &RefOr<Schema>) -> bool {
    matches!(schema, RefOr::T(Schema::Object(object)) if object.schema_type == SchemaType::new(Type::Null))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn admitted(schema: Value) -> Value {
        let mut schema: RefOr<Schema> = serde_json::from_value(schema).unwrap();
        admit_null(&mut schema);
        let once = serde_json::to_value(&schema).unwrap();
        admit_null(&mut schema);
        assert_eq!(serde_json::to_value(&schema).unwrap(), once, "twice is once");
        once
    }

    fn object(properties: Value) -> Value {
        json!({ "type": "object", "required": ["a"], "properties": properties })
    }

    #[test]
    fn what_need_not_be_there_may_be_null_and_what_must_be_may_not() {
        let flag = json!({ "type": "boolean", "description": "d" });
        let seen = admitted(object(json!({ "a": flag, "b": flag })));
        assert_eq!(seen["properties"]["a"]["type"], "boolean");
        assert_eq!(seen["properties"]["b"], json!({ "type": ["boolean", "null"], "description": "d" }));
    }

    #[test]
    fn lists_references_and_words_take_it_too() {
        let (reference, word) = (json!({ "$ref": "#/x" }), json!({ "type": "string", "enum": ["x"] }));
        let list = json!({ "type": "array", "items": { "type": "string" } });
        let seen = admitted(object(json!({ "b": reference, "c": word, "d": list })));
        let nothing = json!({ "type": "null" });
        assert_eq!(seen["properties"]["b"], json!({ "oneOf": [nothing, reference] }));
        assert_eq!(seen["properties"]["c"], json!({ "oneOf": [nothing, word] }));
        assert_eq!(seen["properties"]["d"]["type"], json!(["array", "null"]));
    }

    #[test]
    fn what_takes_it_already_stays_and_variants_are_looked_into() {
        let optional = json!({ "oneOf": [{ "type": "null" }, { "$ref": "#/x" }] });
        let seen = admitted(object(json!({ "b": optional, "c": { "type": ["string", "null"] } })));
        assert_eq!(seen["properties"]["b"], optional);
        assert_eq!(seen["properties"]["c"]["type"], json!(["string", "null"]));
        let variants = admitted(json!({ "oneOf": [object(json!({ "b": { "type": "integer" } }))] }));
        assert_eq!(variants["oneOf"][0]["properties"]["b"]["type"], json!(["integer", "null"]));
    }
}
