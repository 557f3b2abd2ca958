//! One open HTTP/1.1 connection: one exchange at a time over it, and what a failed exchange means.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use super::error::ClientError;

/// The body of a request: nothing, bytes, or a stream of known length.
pub enum RequestBody {
    /// Nothing more.
    Empty,
    /// All at once.
    Whole(Bytes),
    /// Piece by piece.
    Stream {
        /// The pieces.
        pieces: BoxStream<'static, io::Result<Bytes>>,
        /// Bytes still to come.
        left_bytes: u64,
    },
}

impl RequestBody {
    /// No body.
    pub fn empty() -> Self {
        Self::Empty
    }

    /// These bytes.
    pub fn whole(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            RequestBody::Empty => Poll::Ready(None),
            RequestBody::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = RequestBody::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            RequestBody::Stream { pieces, left_bytes } => pieces.poll_next_unpin(cx).map(|piece| {
                piece.map(|piece| {
                    let piece = piece?;
                    *left_bytes = left_bytes.saturating_sub(piece.len() as u64);
                    Ok(Frame::data(piece))
                })
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Whole(_) => false,
            RequestBody::Stream { left_bytes, .. } => *left_bytes == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            RequestBody::Stream { left_bytes, .. } => SizeHint::with_exact(*left_bytes),
        }
    }
}

/// An open connection with no exchange under way. Dropping it closes it.
pub(super) struct Connection {
    sender: SendRequest<RequestBody>,
}

/// An answer whose body has not been read, and the connection it came over: usable again once it has been.
pub(super) struct Exchange {
    pub(super) response: Response<Incoming>,
    pub(super) connection: Connection,
}

/// A request that got no answer, and the request itself when not one byte of it was sent.
pub(super) struct Unsent {
    pub(super) error: ClientError,
    pub(super) request: Option<Box<Request<RequestBody>>>,
}

impl Connection {
    pub(super) async fn over<S>(stream: S) -> io::Result<Self>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // The driver ends when the sender is dropped or the connection breaks; the exchange reports the break.
        tokio::spawn(async move { drop(driver.await) });
        Ok(Self { sender })
    }

    pub(super) fn usable(&self) -> bool {
        !self.sender.is_closed()
    }

    pub(super) async fn send(
        mut self,
        operation: &str,
        request: Request<RequestBody>,
    ) -> Result<Exchange, Unsent> {
        let cut = |source: hyper::Error| ClientError::Cut {
            operation: operation.to_owned(),
            source: source.into(),
        };
        if let Err(source) = self.sender.ready().await {
            return Err(Unsent { error: cut(source), request: Some(Box::new(request)) });
        }
        match self.sender.try_send_request(request).await {
            Ok(response) => Ok(Exchange { response, connection: self }),
            Err(mut failed) => {
                let request = failed.take_message().map(Box::new);
                Err(Unsent { error: cut(failed.into_error()), request })
            }
        }
    }
}
