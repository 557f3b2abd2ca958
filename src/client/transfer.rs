//! Artifacts over the wire: uploads that resume where the server stands, downloads that are verified while they
//! are written. Constant memory in both directions.

use std::io::SeekFrom;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufWriter};
use tokio::time::timeout;

use super::{Call, Client, ClientError, RequestBody, Retry, by_gpulayer, refusal_of};
use crate::contract::artifact::{Digest, MissingAnswer, MissingRequest, PartialUpload};
use crate::contract::error_code::ErrorCode;

const PIECE_BYTES: usize = 256 << 10;
/// A proxy may take a body whole before it passes it on: after a cut, only what came in earlier parts is there.
pub(super) const LARGEST_PART_BYTES: u64 = 256 << 20;
/// A way that takes less is broken.
const SMALLEST_PART_BYTES: u64 = 64 << 10;
/// From this size on it is worth a question whether an earlier try has brought a part.
const WORTH_ASKING_BYTES: u64 = 4 << 20;
/// Nothing of a body moved for so long: whoever is at the other end does nothing.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// In the same place.
const MOST_STALLS: usize = 3;
/// What is sent is dealt with at least so fast.
const BYTES_PER_S: u64 = 8 << 20;
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

    /// Sends a file's bytes as `digest`, in parts, each as large as the way allows. `size_bytes` is what the digest was
    /// made of: a file that has grown since is cut there, and the server refuses what does not match. Goes on where an
    /// earlier try stood. `sent` is told the bytes sent so far.
    pub async fn upload(
        &self,
        digest: &Digest,
        path: &Path,
        size_bytes: u64,
        mut sent: impl FnMut(u64),
    ) -> Result<(), ClientError> {
        let mut retry = Retry::new(self.shared.reconnect_for);
        let (mut offset, mut failures_in_place) = (0, 0);
        if size_bytes >= WORTH_ASKING_BYTES {
            let asked = loop {
                match self.upload_offset(digest).await {
                    Err(failed) if retry.pause_after(&failed).await => {}
                    asked => break asked?,
                }
            };
            match asked {
                Some(received) => {
                    offset = Some(received).filter(|received| *received <= size_bytes).unwrap_or(0)
                }
                None => {
                    sent(size_bytes);
                    return Ok(());
                }
            }
        }
        loop {
            // All of it is there and was not finished: the last byte again makes it whole.
            offset = offset.min(size_bytes.saturating_sub(1));
            let length = (size_bytes - offset).min(self.shared.part_bytes.load(Ordering::Relaxed));
            let failed = match self.upload_part(digest, path, size_bytes, (offset, length)).await {
                Ok(received) if received >= size_bytes => {
                    sent(size_bytes);
                    return Ok(());
                }
                Ok(received) => {
                    (offset, failures_in_place) = (received, 0);
                    sent(offset);
                    continue;
                }
                Err(failed) => failed,
            };
            failures_in_place += 1;
            // Not by our server, which says it in its own words: something on the way has a limit. It may hang up
            // before it can be heard.
            let too_large = matches!(failed, ClientError::Unexpected { status: 413, .. });
            let hung_up = matches!(failed, ClientError::Cut { .. }) && failures_in_place > 1;
            let smaller = (too_large || hung_up) && self.smaller_parts(length);
            if too_large && !smaller {
                return Err(failed);
            }
            let gap = failed.problem().is_some_and(|problem| problem.code == ErrorCode::UploadGap);
            let busy = failed.problem().is_some_and(|problem| problem.code == ErrorCode::Overloaded);
            let stalled = matches!(failed, ClientError::Silent { .. }) && failures_in_place <= MOST_STALLS;
            if !gap && !too_large && !stalled && !retry.pause_after(&failed).await {
                return Err(failed);
            }
            match self.upload_offset(digest).await {
                Ok(Some(received)) => {
                    // Progress earns a fresh patience; the same gap twice does not.
                    if received > offset && busy {
                        // The other upload's progress is worth waiting on, but no reason to ask more often.
                        retry.deadline = Instant::now() + self.shared.reconnect_for;
                    } else if received > offset {
                        retry = Retry::patient(self.shared.reconnect_for);
                        failures_in_place = 0;
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

    /// From now on parts are at most half as long as the one that was too much; `false` = they cannot be shorter.
    fn smaller_parts(&self, length: u64) -> bool {
        if length <= SMALLEST_PART_BYTES {
            return false;
        }
        let half = (length / 2 + 1).next_power_of_two() / 2;
        let part_bytes = half.max(SMALLEST_PART_BYTES);
        self.shared.part_bytes.fetch_min(part_bytes, Ordering::Relaxed);
        tracing::info!(
            part_bytes,
            "something between here and the server takes no larger bodies; sending in parts"
        );
        true
    }

    /// Where an upload stands: `None` = the server has the artifact.
    pub async fn upload_offset(&self, digest: &Digest) -> Result<Option<u64>, ClientError> {
        let call = Call::head(artifact_path(digest));
        let operation = call.operation();
        let (head, body, connection) = self.open(&call).await?;
        let ours = by_gpulayer(&head.headers);
        if ours && head.status.is_success() {
            self.keep(connection);
            return Ok(None);
        }
        if ours && head.status == StatusCode::NOT_FOUND {
            self.keep(connection);
            let offset = head.headers.get("upload-offset").and_then(|value| value.to_str().ok());
            return Ok(Some(offset.and_then(|value| value.parse().ok()).unwrap_or(0)));
        }
        Err(refusal_of(operation, hyper::Response::from_parts(head, body)).await)
    }

    /// Sends so many bytes from `offset`; returns how many the server has then.
    async fn upload_part(
        &self,
        digest: &Digest,
        path: &Path,
        size_bytes: u64,
        (offset, length): (u64, u64),
    ) -> Result<u64, ClientError> {
        let file_error = |operation, source| ClientError::File { operation, path: path.to_owned(), source };
        let target = artifact_path(digest);
        let operation = format!("PUT {target}");
        let mut file = File::open(path).await.map_err(|source| file_error("read", source))?;
        let there = file.metadata().await.map_err(|source| file_error("read", source))?.len();
        if there < size_bytes {
            let source = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "it became shorter");
            return Err(file_error("send all of", source));
        }
        file.seek(SeekFrom::Start(offset)).await.map_err(|source| file_error("read", source))?;
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        if length < size_bytes {
            let range = format!("bytes {offset}-{}/{size_bytes}", offset + length.max(1) - 1);
            if let Ok(range) = HeaderValue::from_str(&range) {
                headers.insert(header::CONTENT_RANGE, range);
            }
        }
        let taken = Arc::new(AtomicU64::new(0));
        let pieces = pieces(file, length, Arc::clone(&taken)).boxed();
        let body = RequestBody::Stream { pieces, left_bytes: length };
        let request = self.request(Method::PUT, &target, &headers, body)?;
        // A stream cannot be sent twice, so it never goes over an idle connection that may be dead already.
        let connection = self.connect().await?;
        let sending = connection.send(&operation, request);
        let Some(sent) = unless_stalled(sending, &taken, length).await else {
            return Err(self.silent(operation, STALLED_AFTER));
        };
        let exchange = sent.map_err(|unsent| unsent.error)?;
        let status = exchange.response.status();
        if status.as_u16() >= 400 || !by_gpulayer(exchange.response.headers()) {
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
        let (mut written, mut stalls) = (0, 0);
        let mut retry = Retry::new(self.shared.reconnect_for);
        loop {
            let before = written;
            let part =
                self.download_part(source, path, &mut sink, &mut hash, &mut written, &mut received).await;
            let Err(failed) = part else { break };
            if written > before {
                (retry, stalls) = (Retry::patient(self.shared.reconnect_for), 0);
            }
            stalls += usize::from(matches!(failed, ClientError::Silent { .. }));
            let stalled = matches!(failed, ClientError::Silent { .. }) && stalls <= MOST_STALLS;
            if !stalled && !retry.pause_after(&failed).await {
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
        if head.status.as_u16() >= 400 || !by_gpulayer(&head.headers) {
            return Err(refusal_of(operation, hyper::Response::from_parts(head, body)).await);
        }
        // A server may answer a range with the whole: what is there already is passed over.
        let mut skip = if head.status == StatusCode::PARTIAL_CONTENT { 0 } else { *written };
        loop {
            let Ok(frame) = timeout(STALLED_AFTER, body.frame()).await else {
                return Err(self.silent(operation, STALLED_AFTER));
            };
            let Some(frame) = frame else { break };
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

/// Waits while something moves; `None` = nothing has for long. What has been sent may take its time at the other end:
/// a proxy may pass it on only now, and the server's disk may be slow.
async fn unless_stalled<T>(sending: impl Future<Output = T>, taken: &AtomicU64, length: u64) -> Option<T> {
    tokio::pin!(sending);
    let mut before = 0;
    loop {
        let whole = before == length;
        let patience = STALLED_AFTER + Duration::from_secs(if whole { length / BYTES_PER_S } else { 0 });
        match timeout(patience, &mut sending).await {
            Ok(sent) => return Some(sent),
            Err(_) => {
                let now = taken.load(Ordering::Relaxed);
                if now == before {
                    return None;
                }
                before = now;
            }
        }
    }
}

/// The bytes of a file from where it stands; `taken` counts what the connection took of them.
fn pieces(
    file: File,
    left_bytes: u64,
    taken: Arc<AtomicU64>,
) -> impl stream::Stream<Item = std::io::Result<Bytes>> + Send {
    stream::try_unfold((file, left_bytes, taken), |(mut file, left_bytes, taken)| async move {
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
        taken.fetch_add(read as u64, Ordering::Relaxed);
        Ok(Some((piece.freeze(), (file, left_bytes - read as u64, taken))))
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::client::Endpoint;

    /// A server that hangs up on the first question and takes what comes then.
    fn server_that_hangs_up_once() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (place, socket) in listener.incoming().flatten().enumerate() {
                std::thread::spawn(move || serve(&socket, place == 0));
            }
        });
        address
    }

    fn serve(mut socket: &TcpStream, hangs_up: bool) {
        let mut reader = BufReader::new(socket.try_clone().unwrap());
        loop {
            let head: Vec<String> =
                reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let Some(first) = head.first().filter(|_| !hangs_up) else { return };
            let length = head.iter().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length").then(|| value.parse().unwrap())
            });
            std::io::copy(&mut reader.by_ref().take(length.unwrap_or(0)), &mut std::io::sink()).unwrap();
            let status = if first.starts_with("HEAD") { "404 Not Found" } else { "201 Created" };
            let answer = format!("HTTP/1.1 {status}\r\nx-gpulayer-version: 0\r\ncontent-length: 0\r\n\r\n");
            socket.write_all(answer.as_bytes()).unwrap();
        }
    }

    #[tokio::test]
    async fn a_server_that_goes_when_an_upload_begins_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        let bytes = vec![7; usize::try_from(WORTH_ASKING_BYTES).unwrap()];
        std::fs::write(&path, &bytes).unwrap();
        let digest = Digest::from_bytes(Sha256::digest(&bytes).into());
        let endpoint = Endpoint::parse(&format!("http://{}", server_that_hangs_up_once())).unwrap();
        let client = Client::new(endpoint).with_reconnect_for(std::time::Duration::from_secs(60));
        let mut sent = 0;
        client.upload(&digest, &path, WORTH_ASKING_BYTES, |bytes| sent = bytes).await.unwrap();
        assert_eq!(sent, WORTH_ASKING_BYTES);
    }
}
