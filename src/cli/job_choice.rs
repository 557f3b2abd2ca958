//! Which jobs are meant: an id, its beginning, its tail, a name, `@last`, or all with a label.

use super::args::Jobs;
use super::error::CliError;
use super::shown::tail;
use crate::client::Client;
use crate::client::endpoint::encoded;
use crate::contract::ids::JobId;
use crate::contract::job::{Job, Page};

/// How many candidates an ambiguous id is shown with.
const SHOWN_CANDIDATES: usize = 5;

/// The one job meant by `given`. A whole id costs no call.
pub(super) async fn one(client: &Client, given: &str) -> Result<JobId, CliError> {
    // Tables show tails as `…7kq2ab`; what is copied from there works.
    let text = given.strip_prefix('…').unwrap_or(given);
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    if text.is_empty() {
        return Err(CliError::NoJobNamed);
    }
    let path = format!("/v1/jobs?match={}&limit={SHOWN_CANDIDATES}", encoded(text));
    let page: Page<Job> = client.get(&path).await?;
    match page.items.as_slice() {
        [] => Err(CliError::NoSuchJob { given: given.to_owned() }),
        [job] => Ok(job.id),
        // A name means the newest job of that name, and lists are newest first.
        [newest, ..] if page.items.iter().all(|job| job.name.as_deref() == Some(text)) => Ok(newest.id),
        several => {
            let shown: Vec<_> = several.iter().map(|job| format!("…{}", tail(job.id))).collect();
            Err(CliError::AmbiguousJob { given: given.to_owned(), candidates: shown.join(", ") })
        }
    }
}

/// All jobs meant, each once, in the order given; then those with every label.
pub(super) async fn several(client: &Client, jobs: &Jobs) -> Result<Vec<JobId>, CliError> {
    let mut ids = Vec::new();
    for given in &jobs.jobs {
        ids.push(one(client, given).await?);
    }
    if !jobs.label.is_empty() {
        let labels: String = jobs.label.iter().map(|label| format!("&label={}", encoded(label))).collect();
        let found = all(client, &labels, usize::MAX).await?;
        if found.is_empty() {
            return Err(CliError::NoJobLabelled { labels: jobs.label.join(" ") });
        }
        ids.extend(found.into_iter().map(|job| job.id));
    }
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}

/// Jobs by a filter (`&state=running…`), newest first, at most `most`.
pub(super) async fn all(client: &Client, filter: &str, most: usize) -> Result<Vec<Job>, CliError> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut cursor = String::new();
    loop {
        let limit = (most - jobs.len()).min(500);
        let page: Page<Job> = client.get(&format!("/v1/jobs?limit={limit}{filter}{cursor}")).await?;
        jobs.extend(page.items);
        match page.next_cursor {
            Some(next) if jobs.len() < most => cursor = format!("&cursor={}", encoded(&next)),
            _ => return Ok(jobs),
        }
    }
}
