//! What comes in with a request takes its time, but not any time: a body has to keep a pace, and a connection is
//! closed behind an answer that did not take the whole body in. (actix drops the rest of a chunked body for as long as
//! it comes, and has no clock for bodies; it does have one for a connection's first head.)

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::HttpMessage;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::error::PayloadError;
use actix_web::web::Bytes;
use futures_util::Stream;
use tokio::time::{Instant, Sleep};

/// A body that comes more slowly than this, on the whole, is given up.
const SLOWEST_BYTES_PER_S: u64 = 4096;

/// How long is waited for what clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For the whole head of a connection's first request.
    pub head: Duration,
    /// For the next piece of a body; and in all, beyond what its length takes at 4 KiB/s.
    pub body: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { head: Duration::from_secs(20), body: Duration::from_secs(60) }
    }
}

/// The body of a request under way, to be held until its answer is out.
pub struct Held(Option<Rc<RefCell<Body>>>);

struct Body {
    payload: Payload,
    ended: bool,
}

/// Puts a clock to the request's body.
pub fn paced(request: &mut ServiceRequest, patience: Duration) -> Held {
    let payload = match request.take_payload() {
        Payload::None => return Held(None),
        payload => payload,
    };
    let body = Rc::new(RefCell::new(Body { payload, ended: false }));
    let pace = Pace { patience, received_bytes: 0, waited: Duration::ZERO };
    let paced = Paced { body: Rc::clone(&body), pace, waiting: None };
    request.set_payload(Payload::Stream { payload: Box::pin(paced) });
    Held(Some(body))
}

impl Held {
    /// Keeps what was not read with the answer: actix closes the connection behind it then, instead of taking in the
    /// rest of the body.
    pub fn until_answered(self, response: ServiceResponse<BoxBody>) -> ServiceResponse<BoxBody> {
        match self.0.filter(|body| !body.borrow().ended) {
            Some(body) => response.map_body(|_, answer| BoxBody::new(AnswerAndBody { answer, _body: body })),
            None => response,
        }
    }
}

/// How much longer a body may take.
#[derive(Debug, Clone, Copy)]
struct Pace {
    patience: Duration,
    received_bytes: u64,
    /// For the client alone: what our own disk takes is not its fault.
    waited: Duration,
}

impl Pace {
    fn left(&self) -> Duration {
        let earned = Duration::from_secs(self.received_bytes / SLOWEST_BYTES_PER_S);
        (self.patience + earned).saturating_sub(self.waited).min(self.patience)
    }
}

struct Paced {
    body: Rc<RefCell<Body>>,
    pace: Pace,
    // Most bodies are there with their head and need no timer.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Stream for Paced {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let mut body = this.body.borrow_mut();
        if let Poll::Ready(piece) = Pin::new(&mut body.payload).poll_next(context) {
            if let Some((since, _)) = this.waiting.take() {
                this.pace.waited += since.elapsed();
            }
            match &piece {
                Some(Ok(bytes)) => this.pace.received_bytes += bytes.len() as u64,
                Some(Err(_)) | None => body.ended = true,
            }
            return Poll::Ready(piece);
        }
        let left = this.pace.left();
        let (_, timer) =
            this.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
        timer.as_mut().poll(context).map(|()| Some(Err(PayloadError::Io(io::ErrorKind::TimedOut.into()))))
    }
}

/// An answer, and the body of the request that it answers.
struct AnswerAndBody {
    answer: BoxBody,
    _body: Rc<RefCell<Body>>,
}

impl MessageBody for AnswerAndBody {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        match self.answer.size() {
            // An answer that cannot have a body would not be boxed with what it holds.
            BodySize::None => BodySize::Sized(0),
            size => size,
        }
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.answer).poll_next(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_given_its_time_by_the_bytes_it_brought() {
        let pace = |received_bytes, waited_s| Pace {
            patience: Duration::from_secs(60),
            received_bytes,
            waited: Duration::from_secs(waited_s),
        };
        assert_eq!(pace(0, 0).left(), Duration::from_secs(60));
        assert_eq!(pace(0, 50).left(), Duration::from_secs(10));
        assert_eq!(pace(1 << 20, 300).left(), Duration::from_secs(16), "256 s for a MiB, and 60");
        assert_eq!(pace(1 << 30, 300).left(), Duration::from_secs(60), "never longer for one piece");
        assert_eq!(pace(10, 61).left(), Duration::ZERO);
    }
}
