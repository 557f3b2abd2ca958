//! Which jobs are meant: an id, its beginning, its tail, a name, `@last`, a child of an array (`sweep[5]`), or all with a
//! label.

use super::args::Jobs;
use super::error::CliError;
use super::screen::say;
use super::shown::tail;
use crate::client::Client;
use crate::client::endpoint::encoded;
use crate::contract::ids::JobId;
use crate::contract::job::{Job, JobState, Page};

/// How many candidates an ambiguous id is shown with.
const SHOWN_CANDIDATES: usize = 5;

/// Which job of several of one name is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Namesake {
    /// The newest.
    Newest,
    /// The newest that has not ended, if there is one: it is to be stopped or followed.
    Live,
}

/// The one job meant by `given`. A whole id costs no call.
pub(super) async fn one(client: &Client, given: &str) -> Result<JobId, CliError> {
    chosen(client, given, Namesake::Newest).await
}

/// The same, of jobs of one name a live one first. Says which when several live.
pub(super) async fn live_one(client: &Client, given: &str) -> Result<JobId, CliError> {
    chosen(client, given, Namesake::Live).await
}

async fn chosen(client: &Client, given: &str, namesake: Namesake) -> Result<JobId, CliError> {
    // Tables show tails as `…7kq2ab`; what is copied from there works.
    let text = given.strip_prefix('…').unwrap_or(given);
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    if text.is_empty() {
        return Err(CliError::NoJobNamed);
    }
    if let Some((array, index)) = child_of(text)
        && let Some(id) = Box::pin(child(client, array, index)).await?
    {
        return Ok(id);
    }
    let path = format!("/v1/jobs?match={}&limit={SHOWN_CANDIDATES}", encoded(text));
    let page: Page<Job> = client.get(&path).await?;
    let is_named = |job: &Job| job.name.as_deref() == Some(text);
    match page.items.as_slice() {
        [] => Err(CliError::NoSuchJob { given: given.to_owned() }),
        [named, ..] if namesake == Namesake::Live && page.items.iter().all(is_named) => {
            Ok(newest_live(client, text).await?.unwrap_or(named.id))
        }
        [job] => Ok(job.id),
        // A name means the newest job of that name, and lists are newest first.
        [newest, ..] if page.items.iter().all(is_named) => Ok(newest.id),
        several => {
            let shown: Vec<_> = several.iter().map(|job| format!("…{}", tail(job.id))).collect();
            Err(CliError::AmbiguousJob { given: given.to_owned(), candidates: shown.join(", ") })
        }
    }
}

/// `sweep[5]`, as tables show a child of an array.
fn child_of(text: &str) -> Option<(&str, u64)> {
    let (array, index) = text.strip_suffix(']')?.rsplit_once('[')?;
    Some((array, index.parse().ok()?)).filter(|(array, _)| !array.is_empty())
}

/// The child of this index of the array that is meant; `None` when there is none, and it may be a name.
async fn child(client: &Client, array: &str, index: u64) -> Result<Option<JobId>, CliError> {
    let parent = match chosen(client, array, Namesake::Newest).await {
        Err(CliError::NoSuchJob { .. }) => return Ok(None),
        parent => parent?,
    };
    let path = format!("/v1/jobs?parent={parent}");
    // The newest comes first, and ids count on from child to child, where none of the indices is left out.
    let last: Page<Job> = client.get(&format!("{path}&limit=1")).await?;
    let Some(last) = last.items.first() else { return Ok(None) };
    let back = last.array_index.unwrap_or_default().checked_sub(index);
    if let Some(guess) = back.and_then(|back| last.id.as_u128().checked_sub(back.into()))
        && let Ok(job) = client.get::<Job>(&format!("/v1/jobs/{}", JobId::from_u128(guess))).await
        && (job.parent, job.array_index) == (Some(parent), Some(index))
    {
        return Ok(Some(job.id));
    }
    let children = all(client, &format!("&parent={parent}"), usize::MAX).await?;
    Ok(children.into_iter().find(|job| job.array_index == Some(index)).map(|job| job.id))
}

/// The newest job of this name that has not ended. Says so when there are others.
async fn newest_live(client: &Client, name: &str) -> Result<Option<JobId>, CliError> {
    let living = JobState::ALL.iter().filter(|state| !state.ended());
    let living: String = living.map(|state| format!("&state={}", state.word())).collect();
    let live = all(client, &format!("&name={}{living}", encoded(name)), SHOWN_CANDIDATES).await?;
    let mut tails = live.iter().map(|job| format!("…{}", tail(job.id)));
    let (newest, others) = (tails.next().unwrap_or_default(), tails.collect::<Vec<_>>());
    if !others.is_empty() {
        let others = others.join(", ");
        say(&format!(
            "several jobs of this name have not ended: {newest}, the newest, is meant, and not {others}"
        ));
    }
    Ok(live.first().map(|job| job.id))
}

/// All jobs meant, each once, in the order given; then those with every label.
pub(super) async fn several(
    client: &Client,
    jobs: &Jobs,
    namesake: Namesake,
) -> Result<Vec<JobId>, CliError> {
    let mut ids = Vec::new();
    for given in &jobs.jobs {
        ids.push(chosen(client, given, namesake).await?);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_named_as_tables_show_it() {
        assert_eq!(child_of("garr[5]"), Some(("garr", 5)));
        assert_eq!(child_of("@last[0]"), Some(("@last", 0)));
        for text in ["garr", "garr[x]", "[5]", "garr[5", "garr[-1]"] {
            assert_eq!(child_of(text), None, "{text}");
        }
    }
}
