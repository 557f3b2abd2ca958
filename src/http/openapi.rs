//! The OpenAPI 3.1 document, from the code.

/// The document as JSON.
pub fn printed() -> String {
    String::from("{}")
}
