//! Append-only sequences (events, log lines) as their readers want them: a page, a page when there is one (long
//! poll), or a stream of server-sent events that resumes by `Last-Event-ID`.

use std::time::Duration;

use actix_web::http::header;
use actix_web::web::{self, Bytes};
use actix_web::{HttpRequest, HttpResponse};
use futures_util::{Stream, stream};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};

use super::caller::Client;
use super::query::{PAGE_LIMIT, Query, SEQUENCE_NUMBER, sequence_number};
use super::refusal::Refusal;
use super::state::EdgeState;
use crate::contract::job::Sequence;
use crate::contract::quantity::Seconds;

/// Between comments on a silent stream (CONTRACT, Requests and answers).
const COMMENT_EVERY: Duration = Duration::from_secs(15);
const PAGE_DEFAULT: u32 = 50;

/// A sequence that can be read and waited on.
pub trait Follow: 'static {
    /// Its entries.
    type Item: Serialize;
    /// The type of its server-sent events.
    const EVENT: &'static str;
    /// Whether every number has an entry, so that a missing one is a gap worth telling.
    fn gapless(&self) -> bool;
    /// The number of an entry.
    fn number(item: &Self::Item) -> u64;
    /// At most `limit` entries after `after`; none when there is none yet.
    async fn read(&mut self, after: u64, limit: usize) -> Result<Sequence<Self::Item>, Refusal>;
    /// Returns when another read may find something. Never misses what came after the last read.
    async fn wait(&mut self, after: u64) -> Result<(), Refusal>;
}

/// Which part of a sequence a request asks for, and how.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    after: u64,
    /// Whether the request said where to begin.
    resumed: bool,
    limit: u32,
    wait: Seconds,
    stream: bool,
}

impl Asked {
    /// Takes `after`, `limit` and `wait_s` from the query, and `Accept` and `Last-Event-ID` from the headers.
    pub fn of(request: &HttpRequest, query: &mut Query) -> Self {
        let mut after = query.after();
        let mut resumed = after > 0;
        let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        if let Some(last) = text("last-event-id").filter(|last| !last.is_empty()) {
            match sequence_number(last) {
                Some(last) => (after, resumed) = (last, true),
                None => query.header_fault("Last-Event-ID", format!("{SEQUENCE_NUMBER} is expected")),
            }
        }
        Self {
            after,
            resumed,
            limit: query.limit(PAGE_DEFAULT, PAGE_LIMIT),
            wait: query.wait(),
            stream: text(header::ACCEPT.as_str()).is_some_and(wants_stream),
        }
    }

    /// Begins so many entries before `end`, unless the request said where to begin.
    pub fn begin_before(&mut self, end: u64, entries: u64) {
        if !self.resumed {
            self.after = end.saturating_sub(entries);
        }
    }

    /// Answers with a page or a stream of `follow`.
    pub async fn answer<F: Follow>(
        self,
        state: web::Data<EdgeState>,
        client: Client,
        mut follow: F,
    ) -> Result<HttpResponse, Refusal> {
        // Read before the answer begins: a job that is not there is a 404, not a stream that breaks off.
        let first = follow.read(self.after, self.limit as usize).await?;
        if self.stream {
            return Ok(HttpResponse::Ok()
                .content_type("text/event-stream")
                .insert_header((header::CACHE_CONTROL, "no-store"))
                .streaming(events(state, client, follow, first, self.after)));
        }
        let page = long_poll(&state, &client, &mut follow, first, self).await?;
        Ok(HttpResponse::Ok().json(page))
    }
}

/// Whether an `Accept` names the type of a stream, and with another weight than 0.
fn wants_stream(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/event-stream"));
        let weight = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse::<f32>().unwrap_or(1.0))
        });
        named && weight.unwrap_or(1.0) > 0.0
    })
}

async fn long_poll<F: Follow>(
    state: &EdgeState,
    client: &Client,
    follow: &mut F,
    first: Sequence<F::Item>,
    asked: Asked,
) -> Result<Sequence<F::Item>, Refusal> {
    let until = Instant::now() + asked.wait.duration();
    let mut page = first;
    while page.items.is_empty() && !page.ended && asked.wait.millis() > 0 {
        match state.while_admitted(client, timeout_at(until, follow.wait(page.next_after))).await {
            Ok(Ok(woken)) => woken?,
            Ok(Err(_)) => break,
            Err(refusal) if refusal.is_stopping() => {
                // What a stopping daemon wrote last is told; if it wrote nothing, the next one is asked.
                let last = follow.read(page.next_after, asked.limit as usize).await?;
                return if last.items.is_empty() && !last.ended { Err(refusal) } else { Ok(last) };
            }
            Err(refusal) => return Err(refusal),
        }
        page = follow.read(page.next_after, asked.limit as usize).await?;
    }
    Ok(page)
}

struct Streaming<F: Follow> {
    state: web::Data<EdgeState>,
    client: Client,
    follow: F,
    after: u64,
    /// Read and not sent yet.
    page: Option<Sequence<F::Item>>,
    /// The daemon stops: what there is to read is sent, and nothing is waited for.
    last: bool,
    over: bool,
}

/// The body of a stream. It ends with `end`, or without it when it is cut. A stopping daemon cuts it once all is sent
/// that was written until then, with `end` if the job has ended by then.
fn events<F: Follow>(
    state: web::Data<EdgeState>,
    client: Client,
    follow: F,
    first: Sequence<F::Item>,
    after: u64,
) -> impl Stream<Item = Result<Bytes, Refusal>> {
    let streaming = Streaming { state, client, follow, after, page: Some(first), last: false, over: false };
    stream::try_unfold(streaming, |mut streaming| async move {
        let piece = streaming.next().await?;
        Ok(piece.map(|piece| (piece, streaming)))
    })
}

impl<F: Follow> Streaming<F> {
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        if self.over {
            return Ok(None);
        }
        loop {
            // A stream that always has something to send never waits: looked at here too.
            if self.client.still_admitted().is_err() {
                return Ok(None);
            }
            let page = match self.page.take() {
                Some(page) => page,
                None => self.follow.read(self.after, PAGE_LIMIT as usize).await?,
            };
            if !page.items.is_empty() {
                let mut text = self.written(&page.items);
                self.after = page.next_after;
                if page.ended {
                    self.over = true;
                    text.push_str(&end_of(self.after));
                }
                return Ok(Some(Bytes::from(text)));
            }
            self.after = self.after.max(page.next_after);
            if page.ended {
                self.over = true;
                return Ok(Some(Bytes::from(end_of(self.after))));
            }
            if self.last {
                return Ok(None);
            }
            let wait = timeout(COMMENT_EVERY, self.follow.wait(self.after));
            match self.state.while_admitted(&self.client, wait).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Err(_)) => return Ok(Some(Bytes::from_static(b": still here\n\n"))),
                Ok(Ok(Err(refusal))) | Err(refusal) if refusal.is_stopping() => self.last = true,
                Ok(Ok(Err(refusal))) => return Err(refusal),
                // Cut without `end`: whoever follows comes back, and learns that the token is over.
                Err(_) => return Ok(None),
            }
        }
    }

    fn written(&self, items: &[F::Item]) -> String {
        let mut text = String::with_capacity(items.len() * 192);
        let mut before = self.after;
        for item in items {
            let number = F::number(item);
            if self.follow.gapless() && number > before.saturating_add(1) {
                let gap = json!({ "first": before + 1, "last": number - 1 });
                text.push_str(&format!("event: gap\ndata: {gap}\n\n"));
            }
            before = number;
            // JSON text has no line breaks, so one `data` line holds it.
            let entry = serde_json::to_string(item).unwrap_or_default();
            text.push_str(&format!("id: {number}\nevent: {}\ndata: {entry}\n\n", F::EVENT));
        }
        text
    }
}

fn end_of(next_after: u64) -> String {
    format!("event: end\ndata: {{\"next_after\":{next_after}}}\n\n")
}

#[cfg(test)]
mod tests {
    use super::wants_stream;

    #[test]
    fn a_stream_is_for_who_asks_for_it() {
        for yes in
            ["text/event-stream", "application/json, Text/Event-Stream;q=0.1", "text/event-stream; q=1"]
        {
            assert!(wants_stream(yes), "{yes}");
        }
        for no in ["", "*/*", "text/event-stream;q=0", "text/event-stream; q=0.000", "text/event-streams"] {
            assert!(!wants_stream(no), "{no}");
        }
    }
}
