//! Request bodies: read under a limit that is checked before and while reading, and parsed with the place of
//! the fault.

use std::io::ErrorKind;

use actix_web::HttpRequest;
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::web::{Bytes, BytesMut, Data, Payload};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

use super::body_room::Taken;
use super::document::{self, escaped};
use super::refusal::Refusal;
use super::state::EdgeState;
use crate::contract::error_code::ErrorCode;
use crate::contract::job::{LEFT_OUT_HEADER, LeftOutOfSource};
use crate::contract::problem::{Fault, Warning};
use crate::domain::spec;

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

/// Parses a worker's body, an object, as `T`. What newer workers add is passed over.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    if body.trim_ascii_start().starts_with(b"[") {
        // Else serde would take a list for an object, its fields in order.
        return Err(no_object(&Value::Array(Vec::new())));
    }
    serde_json::from_slice(body).map_err(|error| match error.classify() {
        Category::Data => misread::<T>(body, &error),
        Category::Io | Category::Syntax | Category::Eof => bad_json(body, &error),
    })
}

/// An object that a client sent: what it says, and what of it was not understood.
#[derive(Debug, PartialEq)]
pub struct Asked<T> {
    /// What it says.
    pub asked: T,
    /// Fields that were passed over.
    pub warnings: Vec<Warning>,
}

/// Parses a client's body, an object with the fields `known`. An empty body is an empty object. Unknown fields are
/// warnings, or faults where the request wants it strict. `null` counts as absent.
pub fn parse_object<T: DeserializeOwned>(
    request: &HttpRequest,
    body: &[u8],
    known: &[&str],
) -> Result<Asked<T>, Refusal> {
    object_in(body, known, wants_strict(request))
}

/// The same where the answer has no place for warnings: unknown fields are faults.
pub fn parse_strictly<T: DeserializeOwned>(body: &[u8], known: &[&str]) -> Result<T, Refusal> {
    object_in(body, known, true).map(|asked| asked.asked)
}

fn object_in<T: DeserializeOwned>(body: &[u8], known: &[&str], strict: bool) -> Result<Asked<T>, Refusal> {
    let (value, mut faults) = match body {
        [] => (Value::Object(Map::new()), Vec::new()),
        body => read_value(body)?,
    };
    let Value::Object(mut fields) = value else {
        return Err(no_object(&value));
    };
    let mut warnings = Vec::new();
    for name in fields.keys().filter(|name| !known.contains(&name.as_str())).take(REMARKS) {
        let pointer = format!("/{}", escaped(name));
        let meant = match (spec::nearest(name, known.iter().copied()), known) {
            (Some(word), _) => format!("did you mean `{word}`?"),
            (None, []) => "there are none".to_owned(),
            (None, known) => format!("known are `{}`", known.join("`, `")),
        };
        if strict {
            let detail = format!("is not known here; {meant}");
            faults.push(Fault { pointer, code: "unknown_field".to_owned(), detail });
        } else {
            warnings.push(Warning { pointer, detail: format!("is not known here and was ignored; {meant}") });
        }
    }
    fields.retain(|_, value| !value.is_null());
    match serde_path_to_error::deserialize(Value::Object(fields)) {
        Ok(asked) if faults.is_empty() => Ok(Asked { asked, warnings }),
        Ok(_) => Err(Refusal::faults(ErrorCode::InvalidRequest, faults)),
        Err(error) => {
            faults.push(misplaced(&error));
            Err(Refusal::faults(ErrorCode::InvalidRequest, faults))
        }
    }
}

/// Unknown fields reported of one body.
const REMARKS: usize = 100;

/// Parses a body as any JSON; the faults are its duplicate keys.
pub fn read_value(body: &[u8]) -> Result<(Value, Vec<Fault>), Refusal> {
    document::read(body).map_err(|error| bad_json(body, &error))
}

/// Whether the request asks that what is not understood be refused (`Prefer: handling=strict`).
pub fn wants_strict(request: &HttpRequest) -> bool {
    prefers(request, "handling=strict")
}

/// Whether the request says that it prefers this.
pub fn prefers(request: &HttpRequest, wanted: &str) -> bool {
    request
        .headers()
        .get_all(PREFER_HEADER)
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']))
        .any(|preference| preference.trim().eq_ignore_ascii_case(wanted))
}

/// What the client left out of the source it sent; what cannot be read is nothing, as it decides nothing.
pub fn left_out(request: &HttpRequest) -> Vec<LeftOutOfSource> {
    let given = request.headers().get(LEFT_OUT_HEADER).and_then(|value| value.to_str().ok());
    given.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The header that asks for strictness, and for the next.
pub const PREFER_HEADER: &str = "Prefer";
/// The preference that a job is refused which no worker could ever take.
pub const REFUSE_IMPOSSIBLE: &str = "impossible=refuse";

fn no_object(value: &Value) -> Refusal {
    let given = match value {
        Value::Array(_) => "a list",
        Value::String(_) => "a text",
        Value::Number(_) => "a number",
        Value::Bool(_) => "true or false",
        Value::Null | Value::Object(_) => "null",
    };
    let detail = format!("expected an object, got {given}");
    let fault = Fault { pointer: String::new(), code: "invalid".to_owned(), detail };
    Refusal::faults(ErrorCode::InvalidRequest, vec![fault])
}

/// Reads a refused body once more, to say where it is wrong: good ones need not pay for that.
fn misread<T: DeserializeOwned>(body: &[u8], error: &serde_json::Error) -> Refusal {
    let again = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_slice(body));
    let fault = match again {
        Err(error) => misplaced(&error),
        Ok(_) => Fault { pointer: String::new(), code: "invalid".to_owned(), detail: error.to_string() },
    };
    Refusal::faults(ErrorCode::InvalidRequest, vec![fault])
}

fn misplaced(error: &serde_path_to_error::Error<serde_json::Error>) -> Fault {
    let mut pointer = String::new();
    for segment in error.path() {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => pointer.push_str(&format!("/{}", escaped(key))),
            // The variant of an enum is no level of the document.
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    Fault { pointer, code: "invalid".to_owned(), detail: error.inner().to_string() }
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
    let mut taken = request.app_data::<Data<EdgeState>>().map(|state| state.bodies.enter());
    let mut room_for = |bytes: usize| {
        let fits = taken.as_mut().is_none_or(|taken| taken.grow(bytes));
        if fits { Ok(()) } else { Err(no_room()) }
    };
    room_for(first.len())?;
    let mut whole = BytesMut::with_capacity(usize::try_from(announced).unwrap_or(0).max(first.len() * 2));
    whole.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(piece) = next {
        let piece = piece.map_err(unreadable)?;
        if whole.len() + piece.len() > limit_bytes {
            return Err(too_large());
        }
        room_for(piece.len())?;
        whole.extend_from_slice(&piece);
        next = payload.next().await;
    }
    Ok(Bytes::from_owner(Whole { bytes: whole, _taken: taken }))
}

/// A body in memory, which counts until nobody needs it.
struct Whole {
    bytes: BytesMut,
    _taken: Option<Taken>,
}

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn no_room() -> Refusal {
    Refusal::new(ErrorCode::Overloaded, "too many large bodies are being sent at once; try again shortly")
        .retry_after(1)
        .closing()
}

fn unreadable(error: PayloadError) -> Refusal {
    broke_off(&error, "")
}

/// The refusal of a body that did not come to its end; `kept` says what becomes of what came.
pub fn broke_off(error: &PayloadError, kept: &str) -> Refusal {
    match error {
        PayloadError::Io(late) if late.kind() == ErrorKind::TimedOut => Refusal::new(
            ErrorCode::RequestTimeout,
            format!("the body came too slowly and was given up{kept}"),
        )
        .closing(),
        error => Refusal::new(ErrorCode::BadRequest, format!("the body broke off{kept}: {error}")),
    }
}
