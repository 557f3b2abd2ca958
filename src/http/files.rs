//! Files as answer bodies: whole or one range, streamed in blocks read off the HTTP threads, so that memory
//! does not grow with the file and a slow disk delays nobody else.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use actix_web::body::SizedStream;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::web::{self, Bytes};
use actix_web::{HttpRequest, HttpResponse};
use futures_util::Stream;
use futures_util::stream;

use super::refusal::Refusal;
use crate::contract::error_code::ErrorCode;

const BLOCK_BYTES: u64 = 256 * 1024;

/// Answers with `file`, or the range of it that the request asks for. Also right for HEAD.
pub fn answer(request: &HttpRequest, file: File, size_bytes: u64) -> Result<HttpResponse, Refusal> {
    let asked = request.headers().get(header::RANGE).and_then(|value| value.to_str().ok());
    let range = asked.map_or(Ok(None), |text| read_range(text, size_bytes));
    let Ok(range) = range else {
        let refusal = Refusal::new(
            ErrorCode::RangeNotSatisfiable,
            format!("range `{}` lies outside the {size_bytes} bytes", asked.unwrap_or("").escape_debug()),
        );
        return Err(match HeaderValue::from_str(&format!("bytes */{size_bytes}")) {
            Ok(value) => refusal.header(header::CONTENT_RANGE, value),
            Err(_) => refusal,
        });
    };
    let mut response = HttpResponse::Ok();
    response
        .content_type("application/octet-stream")
        .insert_header((header::ACCEPT_RANGES, "bytes"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"));
    let (start, length) = match range {
        Some((first, last)) => {
            response
                .status(StatusCode::PARTIAL_CONTENT)
                .insert_header((header::CONTENT_RANGE, format!("bytes {first}-{last}/{size_bytes}")));
            (first, last - first + 1)
        }
        None => (0, size_bytes),
    };
    Ok(response.body(SizedStream::new(length, blocks(file, start, length))))
}

/// One `bytes=` range as first and last byte; `None` = answer with the whole, as RFC 9110 allows for several
/// ranges and other units.
pub(super) fn read_range(text: &str, size_bytes: u64) -> Result<Option<(u64, u64)>, ()> {
    let Some(range) = text.trim().strip_prefix("bytes=").filter(|ranges| !ranges.contains(',')) else {
        return Ok(None);
    };
    let (first, last) = range.split_once('-').ok_or(())?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| ());
    let (first, last) = match (first.trim(), last.trim()) {
        ("", last) => (size_bytes.saturating_sub(number(last)?), size_bytes.saturating_sub(1)),
        (first, "") => (number(first)?, size_bytes.saturating_sub(1)),
        (first, last) => (number(first)?, number(last)?.min(size_bytes.saturating_sub(1))),
    };
    if first >= size_bytes || first > last { Err(()) } else { Ok(Some((first, last))) }
}

fn blocks(file: File, start: u64, length: u64) -> impl Stream<Item = Result<Bytes, io::Error>> {
    stream::try_unfold((file, start, length), |(file, at, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let (file, block) = web::block(move || {
            let mut block = vec![0; usize::try_from(left.min(BLOCK_BYTES)).unwrap_or(0)];
            file.read_exact_at(&mut block, at).map(|()| (file, block))
        })
        .await
        .map_err(io::Error::other)??;
        let read = block.len() as u64;
        Ok(Some((Bytes::from(block), (file, at + read, left - read))))
    })
}

#[cfg(test)]
mod tests {
    use super::read_range;

    #[test]
    fn ranges_are_clipped_and_nonsense_is_refused() {
        assert_eq!(read_range("bytes=0-3", 10), Ok(Some((0, 3))));
        assert_eq!(read_range("bytes=4-", 10), Ok(Some((4, 9))));
        assert_eq!(read_range("bytes=-3", 10), Ok(Some((7, 9))));
        assert_eq!(read_range("bytes=5-99", 10), Ok(Some((5, 9))));
        assert_eq!(read_range("bytes=0-1,4-5", 10), Ok(None));
        assert_eq!(read_range("lines=1-2", 10), Ok(None));
        for bad in ["bytes=10-", "bytes=5-4", "bytes=x-y", "bytes=7"] {
            assert_eq!(read_range(bad, 10), Err(()), "{bad}");
        }
        assert_eq!(read_range("bytes=-3", 0), Err(()));
    }
}
