//! Request bodies: read under a limit that is checked before and while reading, and parsed with the place of
//! the fault.

use actix_web::HttpRequest;
use actix_web::http::header;
use actix_web::web::{Bytes, BytesMut, Payload};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

use super::refusal::Refusal;
use crate::contract::error_code::ErrorCode;
use crate::contract::problem::Fault;

/// A JSON body, in bytes (CONTRACT, Requests and answers).
pub const JSON_LIMIT_BYTES: usize = 1024 * 1024;
/// The body of a batch, in bytes.
pub const BATCH_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// Reads a JSON body; empty stays empty and then needs no content type.
pub async fn read_json_bytes(
    request: &HttpRequest,
    payload: Payload,
    limit_bytes: usize,
) -> Result<Bytes, Refusal> {
    let body = read(request, payload, limit_bytes).await?;
    if !body.is_empty() {
        require_content_type(request, "application/json")?;
    }
    Ok(body)
}

/// Reads and parses a JSON body into `T`.
pub async fn read_json<T: DeserializeOwned>(request: &HttpRequest, payload: Payload) -> Result<T, Refusal> {
    parse(&read_json_bytes(request, payload, JSON_LIMIT_BYTES).await?)
}

/// Parses the body as `T`; what is JSON but not a `T` is an `invalid_request`.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| match error.classify() {
        Category::Data => Refusal::faults(
            ErrorCode::InvalidRequest,
            vec![Fault { pointer: String::new(), code: "invalid".to_owned(), detail: error.to_string() }],
        ),
        Category::Io | Category::Syntax | Category::Eof => bad_json(body, &error),
    })
}

/// Parses the body as any JSON.
pub fn parse_value(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| bad_json(body, &error))
}

fn bad_json(body: &[u8], error: &serde_json::Error) -> Refusal {
    let detail = if body.is_empty() {
        "the body is empty; a JSON object is expected".to_owned()
    } else {
        format!("the body is not JSON: {error}")
    };
    Refusal::new(ErrorCode::BadJson, detail)
}

/// Refuses another content type than the one the call takes (CONTRACT, Requests and answers).
pub fn require_content_type(request: &HttpRequest, expected: &str) -> Result<(), Refusal> {
    let given = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = given.unwrap_or("").split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let given = given.map_or_else(|| "none was sent".to_owned(), |given| format!("`{given}` was sent"));
    Err(Refusal::new(
        ErrorCode::UnsupportedMediaType,
        format!("this call takes content type `{expected}`; {given}"),
    )
    .closing())
}

/// The announced length; `None` for a chunked body.
pub fn content_length(request: &HttpRequest) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn read(request: &HttpRequest, mut payload: Payload, limit_bytes: usize) -> Result<Bytes, Refusal> {
    let too_large = || {
        Refusal::new(
            ErrorCode::BodyTooLarge,
            format!("the body is larger than the {limit_bytes} bytes that this call takes"),
        )
        .closing()
    };
    let announced = content_length(request).unwrap_or(0);
    if announced > limit_bytes as u64 {
        return Err(too_large());
    }
    // Most bodies come in one piece, which then need not be copied.
    let Some(first) = payload.next().await else {
        return Ok(Bytes::new());
    };
    let first = first.map_err(unreadable)?;
    if first.len() > limit_bytes {
        return Err(too_large());
    }
    let Some(second) = payload.next().await else {
        return Ok(first);
    };
    let mut whole = BytesMut::with_capacity(usize::try_from(announced).unwrap_or(0).max(first.len() * 2));
    whole.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(piece) = next {
        let piece = piece.map_err(unreadable)?;
        if whole.len() + piece.len() > limit_bytes {
            return Err(too_large());
        }
        whole.extend_from_slice(&piece);
        next = payload.next().await;
    }
    Ok(whole.freeze())
}

fn unreadable(error: actix_web::error::PayloadError) -> Refusal {
    Refusal::new(ErrorCode::BadRequest, format!("the body broke off: {error}"))
}
