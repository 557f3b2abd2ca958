//! Artifacts over the wire: uploads that resume where the server stands, downloads that are verified while they
//! are written. Constant memory in both directions.

use std::io::SeekFrom;
use std::path::Path;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufWriter};

use super::{Call, Client, ClientError, RequestBody, Retry, refusal_of};
use crate::contract::artifact::{Digest, MissingAnswer, MissingRequest, PartialUpload};
use crate::contract::error_code::ErrorCode;

const PIECE_BYTES: usize = 256 << 10;
/// Fewer zeros are written as they are: a seek flushes what is buffered.
const HOLE_BYTES: usize = 4 << 10;
const MISSING_AT_ONCE: usize = 10_000;

fn artifact_path(digest: &Digest) -> String {
    format!("/v1/artifacts/sha256/{}", digest.hex())
}

impl Client {
    /// Which of these the server does not have, in the order given. Also pins those it has for 24 h.
    pub async fn missing(&self, artifacts: &[Digest]) -> Result<Vec<Digest>, ClientError> {
        let mut missing = Vec::new();
        for some in artifacts.chunks(MISSING_AT_ONCE) {
            let call = Call::post("/v1/artifacts/missing", true)
                .json(&MissingRequest { artifacts: some.to_vec() })?;
            missing.extend(self.answer(&call).await?.json::<MissingAnswer>()?.missing);
        }
        Ok(missing)
    }

    /// Sends a file's bytes as `digest`. `size_bytes` is what the digest was made of: a file that has grown since
    /// is cut there, and the server refuses what does not match. `sent` is told the bytes sent so far.
    pub async fn upload(
        &self,
        digest: &Digest,
        path: &Path,
        size_bytes: u64,
        mut sent: impl FnMut(u64),
    ) -> Result<(), ClientError> {
        let mut retry = Retry::new(self.shared.reconnect_for);
        let mut offset = 0;
        loop {
            let failed = match self.upload_from(digest, path, size_bytes, offset).await {
                Ok(received) if received >= size_bytes => {
                    sent(size_bytes);
                    return Ok(());
                }
                Ok(received) => {
                    offset = received;
                    sent(offset);
                    continue;
                }
                Err(failed) => failed,
            };
            let gap = failed.problem().is_some_and(|problem| problem.code == ErrorCode::UploadGap);
            let busy = failed.problem().is_some_and(|problem| problem.code == ErrorCode::Overloaded);
            if !gap && !retry.pause_after(&failed).await {
                return Err(failed);
            }
            match self.upload_offset(digest).await {
                Ok(Some(received)) => {
                    // Progress earns a fresh patience; the same gap twice does not.
                    if received > offset && busy {
                        // The other upload's progress is worth waiting on, but no reason to ask more often.
                        retry.deadline = Instant::now() + self.shared.reconnect_for;
                    } else if received > offset {
                        retry = Retry::new(self.shared.reconnect_for);
                    } else if gap && received == offset {
                        return Err(failed);
                    }
                    offset = received;
                    sent(offset);
                }
                Ok(None) => {
                    sent(size_bytes);
                    return Ok(());
                }
                Err(error) if error.is_connection() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where an upload stands: `None` = the server has the artifact.
    pub async fn upload_offset(&self, digest: &Digest) -> Result<Option<u64>, ClientError> {
        let call = Call::head(artifact_path(digest));
        let operation = call.operation();
        let (head, body, connection) = self.open(&call).await?;
        if head.status.is_success() {
            self.keep(connection);
            return Ok(None);
        }
        if head.status == StatusCode::NOT_FOUND {
            self.keep(connection);
            let offset = head.headers.get("upload-offset").and_then(|value| value.to_str().ok());
            return Ok(Some(offset.and_then(|value| value.parse().ok()).unwrap_or(0)));
        }
        Err(refusal_of(operation, hyper::Response::from_parts(head, body)).await)
    }

    /// Sends everything from `offset`; returns how many bytes the server has then.
    async fn upload_from(
        &self,
        digest: &Digest,
        path: &Path,
        size_bytes: u64,
        offset: u64,
    ) -> Result<u64, ClientError> {
        let file_error = |operation, source| ClientError::File { operation, path: path.to_owned(), source };
        let target = artifact_path(digest);
        let operation = format!("PUT {target}");
        let mut file = File::open(path).await.map_err(|source| file_error("read", source))?;
        let length = file.metadata().await.map_err(|source| file_error("read", source))?.len();
        if length < size_bytes {
            let source = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "it became shorter");
            return Err(file_error("send all of", source));
        }
        file.seek(SeekFrom::Start(offset)).await.map_err(|source| file_error("read", source))?;
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        if offset > 0 {
            let range = format!("bytes {offset}-{}/{size_bytes}", size_bytes - 1);
            if let Ok(range) = HeaderValue::from_str(&range) {
                headers.insert(header::CONTENT_RANGE, range);
            }
        }
        let left_bytes = size_bytes - offset;
        let body = RequestBody::Stream { pieces: pieces(file, left_bytes).boxed(), left_bytes };
        let request = self.request(Method::PUT, &target, &headers, body)?;
        // A stream cannot be sent twice, so it never goes over an idle connection that may be dead already.
        let connection = self.connect().await?;
        let exchange = connection.send(&operation, request).await.map_err(|unsent| unsent.error)?;
        let status = exchange.response.status();
        if status.as_u16() >= 400 {
            return Err(refusal_of(operation, exchange.response).await);
        }
        if status != StatusCode::ACCEPTED {
            return Ok(size_bytes);
        }
        let cut =
            |source: hyper::Error| ClientError::Cut { operation: operation.clone(), source: source.into() };
        let body = exchange.response.into_body().collect().await.map_err(cut)?.to_bytes();
        serde_json::from_slice::<PartialUpload>(&body)
            .map(|partial| partial.received_bytes)
            .map_err(|source| ClientError::BadAnswer { operation: operation.clone(), source })
    }

    /// Writes an artifact's bytes to `path` (made or truncated) and verifies them. After a cut it goes on where it
    /// stood. `received` is told the bytes written so far. On an error the file holds a part of the bytes.
    pub async fn download(
        &self,
        digest: &Digest,
        path: &Path,
        received: impl FnMut(u64),
    ) -> Result<u64, ClientError> {
        let (written, found) = self.download_from_url(&artifact_path(digest), path, received).await?;
        if found == *digest {
            Ok(written)
        } else {
            Err(ClientError::DigestMismatch { expected: *digest, received: found })
        }
    }

    /// As [`Client::download`] from any path of the API that answers with bytes; their number and digest.
    pub async fn download_from_url(
        &self,
        source: &str,
        path: &Path,
        mut received: impl FnMut(u64),
    ) -> Result<(u64, Digest), ClientError> {
        let file_error = |source| ClientError::File { operation: "write", path: path.to_owned(), source };
        let file = File::create(path).await.map_err(file_error)?;
        let mut sink = BufWriter::with_capacity(PIECE_BYTES, file);
        let mut hash = Sha256::new();
        let mut written = 0;
        let mut retry = Retry::new(self.shared.reconnect_for);
        loop {
            let before = written;
            let part =
                self.download_part(source, path, &mut sink, &mut hash, &mut written, &mut received).await;
            let Err(failed) = part else { break };
            if written > before {
                retry = Retry::new(self.shared.reconnect_for);
            }
            if !retry.pause_after(&failed).await {
                return Err(failed);
            }
        }
        sink.flush().await.map_err(file_error)?;
        // A hole at the end is not there before the length says so.
        sink.get_ref().set_len(written).await.map_err(file_error)?;
        Ok((written, Digest::from_bytes(hash.finalize().into())))
    }

    async fn download_part(
        &self,
        source: &str,
        path: &Path,
        sink: &mut BufWriter<File>,
        hash: &mut Sha256,
        written: &mut u64,
        received: &mut impl FnMut(u64),
    ) -> Result<(), ClientError> {
        let mut call = Call::get(source);
        if *written > 0 {
            call = call.header("range", &format!("bytes={written}-"));
        }
        let operation = call.operation();
        let (head, mut body, connection) = self.open(&call).await?;
        if *written > 0 && head.status == StatusCode::RANGE_NOT_SATISFIABLE {
            // The cut came after the last byte.
            return Ok(());
        }
        if head.status.as_u16() >= 400 {
            return Err(refusal_of(operation, hyper::Response::from_parts(head, body)).await);
        }
        // A server may answer a range with the whole: what is there already is passed over.
        let mut skip = if head.status == StatusCode::PARTIAL_CONTENT { 0 } else { *written };
        while let Some(frame) = body.frame().await {
            let frame = frame
                .map_err(|source| ClientError::Cut { operation: operation.clone(), source: source.into() })?;
            let Ok(mut piece) = frame.into_data() else { continue };
            let passed = skip.min(piece.len() as u64);
            skip -= passed;
            drop(piece.split_to(passed as usize));
            hash.update(&piece);
            write_or_skip(sink, &piece).await.map_err(|source| ClientError::File {
                operation: "write",
                path: path.to_owned(),
                source,
            })?;
            *written += piece.len() as u64;
            received(*written);
        }
        self.keep(connection);
        Ok(())
    }
}

/// Writes the next bytes of a new file; many zeros become a hole, so that a sparse file stays one.
async fn write_or_skip(sink: &mut BufWriter<File>, piece: &[u8]) -> std::io::Result<()> {
    if piece.len() >= HOLE_BYTES && piece.iter().all(|byte| *byte == 0) {
        sink.seek(SeekFrom::Current(piece.len() as i64)).await.map(drop)
    } else {
        sink.write_all(piece).await
    }
}

fn pieces(file: File, left_bytes: u64) -> impl stream::Stream<Item = std::io::Result<Bytes>> + Send {
    stream::try_unfold((file, left_bytes), |(mut file, left_bytes)| async move {
        if left_bytes == 0 {
            return Ok(None);
        }
        let want = left_bytes.min(PIECE_BYTES as u64) as usize;
        let mut piece = BytesMut::zeroed(want);
        let read = file.read(&mut piece).await?;
        if read == 0 {
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        piece.truncate(read);
        Ok(Some((piece.freeze(), (file, left_bytes - read as u64))))
    })
}
