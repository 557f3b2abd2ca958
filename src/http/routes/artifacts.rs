//! Artifacts: verified uploads that can be taken up again, range reads, and the question which are missing.

use actix_web::body::SizedStream;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::web::{self, Bytes};
use actix_web::{HttpRequest, HttpResponse};
use futures_util::{StreamExt, stream};

use crate::actors::messages::front_desk::RecordUpload;
use crate::artifacts::{ArtifactStore, Begun, Upload};
use crate::contract::artifact::{Digest, MissingAnswer, MissingRequest, PartialUpload};
use crate::contract::error_code::ErrorCode;
use crate::contract::problem::Fault;
use crate::http::body::{self, JSON_LIMIT_BYTES, content_length};
use crate::http::caller::Caller;
use crate::http::desk;
use crate::http::knowledge::Knowledge;
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;
use crate::http::{blocking, files};
use crate::store::Reads;

const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
/// Digests of one `missing` question at most.
const ASKED_AT_ONCE: usize = 10_000;
/// Bytes handed to the disk at a time.
const BLOCK_BYTES: usize = 1024 * 1024;

fn digest_in(path: &web::Path<String>) -> Result<Digest, Refusal> {
    Digest::from_hex(path).map_err(|_| {
        Refusal::not_found(format_args!(
            "artifact `{}`: 64 lower-case hex digits are expected",
            path.escape_debug()
        ))
    })
}

/// Refuses a caller who may not read it: to them it is not there.
async fn check_readable(caller: &Caller, digest: Digest, state: &EdgeState) -> Result<(), Refusal> {
    let (knowledge, reads) = (Knowledge::of(caller), state.ports.reads.clone());
    if blocking(move || knowledge.may_read(&digest, &reads)).await? {
        Ok(())
    } else {
        Err(Refusal::not_found(digest))
    }
}

/// Writes down on whose behalf an artifact was sent, where that matters.
async fn record(knowledge: &Knowledge, digest: Digest, state: &EdgeState) -> Result<(), Refusal> {
    let uploaders = knowledge.uploaders();
    if uploaders.is_empty() {
        return Ok(());
    }
    desk::ask(|reply| state.ports.desk.record_upload.do_send(RecordUpload { digest, uploaders, reply })).await
}

/// Which part of an artifact a PUT carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    offset: u64,
    /// Bytes of this part, when announced.
    length: Option<u64>,
    /// Bytes of the whole; `None` = more follows.
    total: Option<u64>,
    /// Whether the whole is announced to be in this request.
    whole: bool,
}

impl Part {
    fn of(request: &HttpRequest) -> Result<Self, Refusal> {
        let announced = content_length(request);
        let Some(header) = request.headers().get(header::CONTENT_RANGE) else {
            return Ok(Self { offset: 0, length: announced, total: announced, whole: true });
        };
        let text = header.to_str().unwrap_or("");
        let part = Self::read(text).filter(|part| announced.is_none() || part.length == announced);
        part.ok_or_else(|| {
            Refusal::faults(
                ErrorCode::InvalidRequest,
                vec![Fault {
                    pointer: "/headers/Content-Range".to_owned(),
                    code: "invalid".to_owned(),
                    detail: format!(
                        "`{}` given; `bytes FIRST-LAST/TOTAL` that fits Content-Length is expected",
                        text.escape_debug()
                    ),
                }],
            )
        })
    }

    fn read(text: &str) -> Option<Self> {
        let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let total = if total == "*" { None } else { Some(total.parse::<u64>().ok()?) };
        let fits = first <= last && total.is_none_or(|total| last < total);
        let length = last.checked_sub(first)?.checked_add(1)?;
        first.checked_add(length)?;
        fits.then_some(Self { offset: first, length: Some(length), total, whole: false })
    }
}

/// Offset, length and total of a `Content-Range`.
pub fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let part = Part::read(text)?;
    Some((part.offset, part.length?, part.total))
}

/// Takes in an artifact, or a part of one. 201 when it is complete and new, 200 when it was here and the caller may
/// know that, 202 with `received_bytes` when more is to come.
pub async fn put(
    request: HttpRequest,
    path: web::Path<String>,
    payload: web::Payload,
    caller: Caller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let digest = digest_in(&path)?;
    body::require_content_type(&request, "application/octet-stream")?;
    let part = Part::of(&request)?;
    let store = state.ports.artifacts.clone();
    let limit_bytes = store.limits().max_artifact_bytes;
    let announced = part.total.max(part.length.map(|length| part.offset.saturating_add(length)));
    if announced.is_some_and(|bytes| bytes > limit_bytes) {
        return Err(Refusal::new(
            ErrorCode::ArtifactTooLarge,
            format!("an artifact may have at most {limit_bytes} bytes"),
        )
        .closing());
    }
    let knowledge = Knowledge::of(&caller);
    let (knows, reads) = (knowledge.clone(), state.ports.reads.clone());
    let sender = blocking(move || knows.sender(&digest, &reads)).await?;
    match blocking(move || store.begin_as(digest, part.offset, sender)).await? {
        Begun::Present { size_bytes } => {
            record(&knowledge, digest, &state).await?;
            let mut answer = HttpResponse::Ok();
            // The rest of the body need not be sent.
            answer.force_close();
            Ok(answer.json(PartialUpload { received_bytes: size_bytes }))
        }
        Begun::Gap { received_bytes } => Err(Refusal::upload_gap(received_bytes).closing()),
        Begun::Upload(upload) => {
            let upload = take_in(*upload, payload, part.length).await?;
            let complete = part.whole || part.total == Some(upload.received_bytes());
            if complete {
                caller.still_admitted()?;
                let received_bytes = blocking(move || upload.finish()).await?;
                record(&knowledge, digest, &state).await?;
                Ok(HttpResponse::Created().json(PartialUpload { received_bytes }))
            } else {
                let received_bytes = blocking(move || upload.suspend()).await?;
                Ok(HttpResponse::Accepted().json(PartialUpload { received_bytes }))
            }
        }
    }
}

async fn take_in(
    mut upload: Upload,
    mut payload: web::Payload,
    announced: Option<u64>,
) -> Result<Upload, Refusal> {
    let mut waiting: Vec<Bytes> = Vec::new();
    let mut waiting_bytes = 0;
    let mut left = announced;
    loop {
        let piece = payload.next().await.transpose();
        let piece = piece.map_err(|error| body::broke_off(&error, "; what came is kept"))?;
        let last = piece.is_none();
        if let Some(piece) = piece {
            waiting_bytes += piece.len();
            if let Some(left) = &mut left {
                let more = Refusal::new(ErrorCode::BadRequest, "the body is longer than announced");
                *left = left.checked_sub(piece.len() as u64).ok_or(more.closing())?;
            }
            waiting.push(piece);
        }
        if waiting_bytes >= BLOCK_BYTES || (last && waiting_bytes > 0) {
            let pieces = std::mem::take(&mut waiting);
            waiting_bytes = 0;
            upload =
                blocking(move || pieces.iter().try_for_each(|piece| upload.append(piece)).map(|()| upload))
                    .await
                    .map_err(Refusal::closing)?;
        }
        if last {
            return Ok(upload);
        }
    }
}

/// Gives an artifact's bytes, or a range of them.
pub async fn read(
    request: HttpRequest,
    path: web::Path<String>,
    caller: Caller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let digest = digest_in(&path)?;
    check_readable(&caller, digest, &state).await?;
    let store = state.ports.artifacts.clone();
    let (file, size_bytes) =
        blocking(move || store.open_read(digest)).await?.ok_or_else(|| Refusal::not_found(digest))?;
    let mut answer = files::answer(&request, file, size_bytes)?;
    if let Ok(tag) = HeaderValue::from_str(&format!("\"sha256:{}\"", digest.hex())) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    Ok(answer)
}

/// Tells an artifact's length; of an unfinished upload, how far it came (404 with `Upload-Offset`).
pub async fn head(
    path: web::Path<String>,
    caller: Caller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let digest = digest_in(&path)?;
    let (knowledge, reads) = (Knowledge::of(&caller), state.ports.reads.clone());
    let store = state.ports.artifacts.clone();
    let (size_bytes, received_bytes) = blocking(move || look(&store, &knowledge, &reads, digest)).await?;
    match (size_bytes, received_bytes) {
        (Some(size_bytes), _) => Ok(HttpResponse::Ok()
            .content_type("application/octet-stream")
            .insert_header((header::ACCEPT_RANGES, "bytes"))
            .body(SizedStream::new(size_bytes, stream::empty::<Result<Bytes, std::io::Error>>()))),
        (None, Some(received_bytes)) => {
            Err(Refusal::not_found(digest).header(UPLOAD_OFFSET, HeaderValue::from(received_bytes)))
        }
        (None, None) => Err(Refusal::not_found(digest)),
    }
}

/// The length of an artifact that the caller may read; of another, how far the caller's own upload came.
fn look(
    store: &ArtifactStore,
    knowledge: &Knowledge,
    reads: &Reads,
    digest: Digest,
) -> Result<(Option<u64>, Option<u64>), Refusal> {
    let readable = knowledge.may_read(&digest, reads)?;
    let size_bytes = if readable { store.size_bytes(digest)? } else { None };
    match size_bytes {
        Some(size_bytes) => Ok((Some(size_bytes), None)),
        None => Ok((None, store.received_from(digest, knowledge.sender(&digest, reads)?)?)),
    }
}

/// Which of these does the server not have? The others are pinned for 24 h.
pub async fn missing(
    request: HttpRequest,
    payload: web::Payload,
    caller: Caller,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let bytes = body::read_json_bytes(&request, payload, JSON_LIMIT_BYTES).await?;
    let asked = body::parse_object::<MissingRequest>(&request, &bytes, &["artifacts"])?.asked;
    if asked.artifacts.len() > ASKED_AT_ONCE {
        return Err(Refusal::faults(
            ErrorCode::InvalidRequest,
            vec![Fault {
                pointer: "/artifacts".to_owned(),
                code: "invalid".to_owned(),
                detail: format!("{} given, at most {ASKED_AT_ONCE} are expected", asked.artifacts.len()),
            }],
        ));
    }
    let (store, reads) = (state.ports.artifacts.clone(), state.ports.reads.clone());
    let knowledge = Knowledge::of(&caller);
    let missing = blocking(move || {
        let mut missing = Vec::new();
        for digest in asked.artifacts {
            if !knowledge.has_sent(&digest, &reads)? || !store.touch(digest)? {
                missing.push(digest);
            }
        }
        Ok::<_, Refusal>(missing)
    })
    .await?;
    Ok(HttpResponse::Ok().json(MissingAnswer { missing }))
}

#[cfg(test)]
mod tests {
    use super::Part;

    #[test]
    fn content_ranges_are_read_strictly() {
        let part = Part::read("bytes 4-9/20").unwrap();
        assert_eq!((part.offset, part.length, part.total, part.whole), (4, Some(6), Some(20), false));
        assert_eq!(Part::read("bytes 0-9/*").unwrap().total, None);
        for bad in [
            "bytes 9-4/20",
            "bytes 0-20/20",
            "bytes */20",
            "0-9/20",
            "bytes 0-9",
            "",
            "bytes 7-18446744073709551615/*",
        ] {
            assert_eq!(Part::read(bad), None, "{bad}");
        }
    }
}
