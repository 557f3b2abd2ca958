//! The edge's small parsers of headers and queries under one roof, for the fuzz targets. They live where they are used.

use super::{edge, files, query, routes};

/// The name in a `Host` header.
pub fn host(text: &str) -> Option<&str> {
    edge::named_host(text)
}

/// Offset, length and total of a `Content-Range`.
pub fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    routes::content_range(text)
}

/// First and last byte of a `Range`, of so many bytes; `None` also for one that asks for the whole.
pub fn range(text: &str, size_bytes: u64) -> Option<(u64, u64)> {
    files::read_range(text, size_bytes).ok().flatten()
}

/// A sequence number.
pub fn sequence_number(text: &str) -> Option<u64> {
    query::sequence_number(text)
}
