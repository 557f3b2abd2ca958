//! Reads server-sent events: `id`, `event`, `data`. One stream is one answer; resuming after a cut is asking
//! again with the last id.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::connection::Connection;
use super::{Call, Client, ClientError, Endpoint, refusal_of};

/// A server says something every 15 s. After three times that a stream is taken for dead: the other end may have
/// gone without a word, as machines that sleep or lose their network do.
const SILENT_FOR: Duration = Duration::from_secs(45);

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamEvent {
    /// The sequence number it carries.
    pub id: Option<u64>,
    /// `log`, `event`, `gap`, `end`.
    pub kind: String,
    /// Its JSON.
    pub data: String,
}

/// An open stream of events.
pub struct EventStream {
    endpoint: Endpoint,
    operation: String,
    body: Incoming,
    reader: EventReader,
    ended: bool,
    // Held so that the connection lives as long as the stream.
    _connection: Connection,
}

impl Client {
    /// Opens a stream of what follows `after` (0 = from the beginning).
    pub async fn stream(&self, path: &str, after: u64) -> Result<EventStream, ClientError> {
        let mut call = Call::get(path).header("accept", "text/event-stream");
        if after > 0 {
            call = call.header("last-event-id", &after.to_string());
        }
        let operation = call.operation();
        let (head, body, connection) = self.open(&call).await?;
        if head.status.as_u16() >= 400 {
            return Err(refusal_of(operation, hyper::Response::from_parts(head, body)).await);
        }
        Ok(EventStream {
            endpoint: self.endpoint().clone(),
            operation,
            body,
            reader: EventReader::default(),
            ended: false,
            _connection: connection,
        })
    }
}

impl EventStream {
    /// The next event; `None` after `end`. A stream that stops without `end` was cut.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, ClientError> {
        loop {
            if self.ended {
                return Ok(None);
            }
            if let Some(event) = self.reader.next_event() {
                self.ended = event.kind == "end";
                return Ok(Some(event));
            }
            let Ok(frame) = tokio::time::timeout(SILENT_FOR, self.body.frame()).await else {
                return Err(ClientError::Silent {
                    endpoint: self.endpoint.clone(),
                    operation: self.operation.clone(),
                    within_s: SILENT_FOR.as_secs(),
                });
            };
            match frame {
                None => {
                    let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into();
                    return Err(ClientError::Cut { operation: self.operation.clone(), source });
                }
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        self.reader.feed(&piece).map_err(|endless| ClientError::Cut {
                            operation: self.operation.clone(),
                            source: endless.into(),
                        })?;
                    }
                }
                Some(Err(source)) => {
                    return Err(ClientError::Cut {
                        operation: self.operation.clone(),
                        source: source.into(),
                    });
                }
            }
        }
    }

    /// Whether nothing more has arrived yet, so that what was read so far should be shown.
    pub fn is_drained(&self) -> bool {
        self.reader.buffer.is_empty()
    }
}

/// One event takes no more; whoever sends more is no server of ours.
const LONGEST_EVENT_BYTES: usize = 16 << 20;

/// An event that does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {LONGEST_EVENT_BYTES} bytes")]
pub struct EndlessEvent;

/// Puts events together from pieces, however the stream was cut into them.
#[derive(Debug, Default)]
pub struct EventReader {
    buffer: BytesMut,
    /// So much of the buffer has no line end.
    searched_bytes: usize,
    pending: StreamEvent,
    has_fields: bool,
}

impl EventReader {
    /// Takes the next piece in.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), EndlessEvent> {
        if self.buffer.len() + piece.len() + self.pending.data.len() > LONGEST_EVENT_BYTES {
            return Err(EndlessEvent);
        }
        self.buffer.extend_from_slice(piece);
        Ok(())
    }

    /// The next event, once all of it is there.
    pub fn next_event(&mut self) -> Option<StreamEvent> {
        while let Some(found) = memchr::memchr(b'\n', &self.buffer[self.searched_bytes..]) {
            let line = self.buffer.split_to(self.searched_bytes + found);
            self.searched_bytes = 0;
            self.buffer.advance(1);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if line.is_empty() {
                if std::mem::take(&mut self.has_fields) {
                    return Some(std::mem::take(&mut self.pending));
                }
                continue;
            }
            self.field(&String::from_utf8_lossy(line));
        }
        self.searched_bytes = self.buffer.len();
        None
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.pending.id = value.parse().ok(),
            "event" => value.clone_into(&mut self.pending.kind),
            "data" => {
                if !self.pending.data.is_empty() {
                    self.pending.data.push('\n');
                }
                self.pending.data.push_str(value);
            }
            // A comment (empty name) or a field this client does not use.
            _ => return,
        }
        self.has_fields = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<StreamEvent> {
        let mut reader = EventReader::default();
        let mut events = Vec::new();
        for piece in pieces {
            reader.feed(piece).unwrap();
            while let Some(event) = reader.next_event() {
                events.push(event);
            }
        }
        events
    }

    #[test]
    fn events_survive_any_cut_into_pieces() {
        let text =
            b": ping\n\nid: 7\nevent: log\ndata: {\"text\":\"\xc3\xbc\"}\n\nevent: end\ndata: {}\r\n\r\n";
        let whole = read(&[text]);
        assert_eq!(whole.len(), 2);
        assert_eq!(
            whole[0],
            StreamEvent { id: Some(7), kind: "log".into(), data: "{\"text\":\"ü\"}".into() }
        );
        assert_eq!(whole[1], StreamEvent { id: None, kind: "end".into(), data: "{}".into() });
        for cut in 0..text.len() {
            assert_eq!(read(&[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn a_stream_that_falls_silent_is_taken_for_dead() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let silent = tokio::spawn(async move {
            let (mut peer, _) = listener.accept().await.unwrap();
            assert!(peer.read(&mut [0; 4096]).await.unwrap() > 0);
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            peer.write_all(format!("{head}e\r\nid: 1\ndata: x\n\r\n1\r\n\n\r\n").as_bytes()).await.unwrap();
            // Open, and silent.
            drop(peer.read(&mut [0; 16]).await);
        });
        let client = Client::new(Endpoint::parse(&format!("http://127.0.0.1:{port}")).unwrap());
        let mut stream = client.stream("/v1/events", 0).await.unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap().id, Some(1));
        tokio::time::pause();
        assert!(matches!(stream.next().await, Err(ClientError::Silent { within_s: 45, .. })));
        silent.abort();
    }

    #[test]
    fn an_event_that_does_not_end_is_given_up() {
        let mut reader = EventReader::default();
        let piece = [b'x'; 1 << 20];
        let mut fed = 0;
        while reader.feed(&piece).is_ok() {
            assert!(reader.next_event().is_none());
            fed += piece.len();
            assert!(fed <= LONGEST_EVENT_BYTES);
        }
    }

    #[test]
    fn several_lines_of_one_event_are_joined() {
        assert_eq!(read(&[b"data: a\ndata: b\n\n"])[0].data, "a\nb");
    }
}
