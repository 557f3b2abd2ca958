//! What a job's generator yielded.

use actix_web::{HttpRequest, HttpResponse, web};

use crate::actors::messages::front_desk::Until;
use crate::contract::ids::JobId;
use crate::contract::job::Sequence;
use crate::contract::yielded::YieldedValue;
use crate::http::blocking;
use crate::http::caller::Client;
use crate::http::follow::{Asked, Follow};
use crate::http::query::Query;
use crate::http::reading::job_id_in;
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;

struct JobYields {
    state: web::Data<EdgeState>,
    client: Client,
    job_id: JobId,
}

impl Follow for JobYields {
    type Item = YieldedValue;
    const EVENT: &'static str = "yielded";

    fn gapless(&self) -> bool {
        true
    }

    fn number(value: &YieldedValue) -> u64 {
        value.n
    }

    async fn read(&mut self, after: u64, limit: usize) -> Result<Sequence<YieldedValue>, Refusal> {
        // Standing first: no end is recorded before the last value is.
        let standing = self.state.standing(&self.client, self.job_id)?;
        let (reads, job_id) = (self.state.ports.reads.clone(), self.job_id);
        let items = blocking(move || reads.yielded(job_id, after, limit)).await?;
        let next_after = items.last().map_or(after, |value| value.n);
        let ended = standing.state.ended() && next_after >= standing.yielded;
        Ok(Sequence { items, next_after, ended })
    }

    async fn wait(&mut self, after: u64) -> Result<(), Refusal> {
        self.state.watch_job(self.job_id, Until::YieldedAfter(after)).await
    }
}

/// The values that the job's generator yielded.
pub async fn values(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let job_id = job_id_in(&path)?;
    let mut query = Query::of(&request);
    let asked = Asked::of(&request, &mut query);
    query.finish()?;
    let follow = JobYields { state: state.clone(), client: client.clone(), job_id };
    asked.answer(state, client, follow).await
}
