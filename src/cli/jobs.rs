//! `ps`, `cancel`, `retry`, `rm`.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};

use futures_util::future::join_all;

use super::Context;
use super::args::{CancelArgs, Jobs, PsArgs, RetryArgs};
use super::array;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::fleet::names_of;
use super::job_choice::{Namesake, all, one, several};
use super::screen::{Output, print, print_json, say, table_within};
use super::server_choice::OnDemand;
use super::shown::{harmless, moment, span, tail};
use super::verdict::{noticed, speaks_for_itself};
use crate::client::endpoint::encoded;
use crate::client::{Client, ClientError};
use crate::contract::end::EndReason;
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::job::{CancelRequest, Job, JobState, RetryRequest};
use crate::contract::quantity::Timestamp;
use crate::contract::server::WhoAmI;
use crate::contract::spec::{GpuCount, JobSpec, StopSignal};
use crate::domain::progress;

/// How many ended jobs are listed beside the active ones.
const ENDED: usize = 10;
/// For how many queued jobs the reason is asked for.
const EXPLAINED: usize = 20;
/// The longest name or reason in a table, in characters.
const LONGEST_CELL: usize = 48;

/// `gpulayer ps`.
pub(super) async fn ps(context: &Context, args: &PsArgs) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    let mut filter = String::new();
    if let Some(project) = &args.project {
        filter += &format!("&project={}", encoded(project));
    }
    for label in &args.label {
        filter += &format!("&label={}", encoded(label));
    }
    if args.mine {
        let me: WhoAmI = client.get("/v1/whoami").await?;
        filter += &format!("&submitted_by={}", encoded(&me.name));
    }
    if let Some(parent) = &args.parent {
        filter += &format!("&parent={}", one(&client, parent).await?);
    }
    let states = |ended: bool| -> String {
        let some = JobState::ALL.iter().filter(|state| state.ended() == ended);
        some.map(|state| format!("&state={}", state.word())).collect()
    };
    let mut jobs = if !args.state.is_empty() {
        let states: String = args.state.iter().map(|state| format!("&state={}", encoded(state))).collect();
        all(&client, &(states + &filter), usize::MAX).await?
    } else if args.all || args.parent.is_some() {
        all(&client, &filter, usize::MAX).await?
    } else {
        let mut jobs = all(&client, &(states(false) + &filter), usize::MAX).await?;
        jobs.extend(all(&client, &(states(true) + &filter), ENDED).await?);
        jobs
    };
    if context.json {
        let mut output = Output::new();
        for job in &jobs {
            output.json(job)?;
        }
        output.flush()?;
        return Ok(ExitStatus::SUCCESS);
    }
    explain_waiting(&client, &mut jobs).await;
    let now = crate::clock::now();
    // Who reads a pipe has room, and may look for the whole text.
    let longest = if io::stdout().is_terminal() { LONGEST_CELL } else { usize::MAX };
    let workers = names_of(&client, jobs.iter().filter(|job| runs(job)).filter_map(|job| job.worker)).await;
    let rows: Vec<_> = jobs.iter().map(|job| row(job, &workers, now, longest)).collect();
    table_within(
        &["JOB", "NAME", "STATE", "SUBMITTED", "TIME", "WORKER", "GPUS", "WHY"],
        &rows,
        &["SUBMITTED", "GPUS", "WORKER"],
    )?;
    Ok(ExitStatus::SUCCESS)
}

/// Whether it has a place.
const fn runs(job: &Job) -> bool {
    matches!(job.state, JobState::Scheduled | JobState::Running)
}

/// Where a job runs and on how many GPUs; empty before and after.
fn place(job: &Job, workers: &BTreeMap<WorkerId, String>) -> (String, String) {
    if !runs(job) || job.is_array() {
        return Default::default();
    }
    let spec: Option<JobSpec> = serde_json::from_str(job.spec.get()).ok();
    let nodes = spec.as_ref().and_then(|spec| spec.distributed.as_ref()).map_or(1, |gang| gang.nodes);
    let worker = match (nodes, job.worker) {
        (1, Some(id)) => workers.get(&id).cloned().unwrap_or_default(),
        (1, None) => String::new(),
        (nodes, _) => format!("{nodes} nodes"),
    };
    let gpus = match spec.and_then(|spec| spec.resources.gpus).map(|gpus| gpus.count) {
        None => String::new(),
        Some(GpuCount::Count(count)) => (u64::from(count) * u64::from(nodes)).to_string(),
        Some(GpuCount::All) => "all".to_owned(),
    };
    (worker, gpus)
}

/// Lists do not say what a job waits for; each job does. Asks for the newest few.
async fn explain_waiting(client: &Client, jobs: &mut [Job]) {
    let waiting = |job: &&mut Job| job.state == JobState::Queued && job.queue_reason.is_none();
    join_all(jobs.iter_mut().filter(waiting).take(EXPLAINED).map(async |job| {
        // A job that has just gone is listed without a reason.
        if let Ok(now) = client.get::<Job>(&format!("/v1/jobs/{}", job.id)).await {
            job.queue_reason = now.queue_reason;
        }
    }))
    .await;
}

/// What the children of an array are at, or what a program says of itself.
pub(super) fn how_far(job: &Job) -> Option<String> {
    if let Some(progress) = array::progress(job) {
        return Some(array::counts(&progress));
    }
    let said = job.progress.clone().and_then(|said| serde_json::from_value(said).ok())?;
    Some(progress::in_one_line(&said))
}

fn row(job: &Job, workers: &BTreeMap<WorkerId, String>, now: Timestamp, longest: usize) -> Vec<String> {
    // What the last line of `run` says, to the millisecond.
    let ran = job.end.as_ref().and_then(|end| end.duration_s);
    let time = match (ran, job.started_at, job.ended_at) {
        (Some(ran), _, _) => span(ran),
        (None, Some(started), ended) => span(ended.unwrap_or(now).since(started)),
        (None, None, _) => String::new(),
    };
    let why = match (&job.end, &job.queue_reason) {
        (Some(end), _) if job.state != JobState::Succeeded => match &end.detail {
            Some(detail) if speaks_for_itself(end.reason) => detail.clone(),
            Some(detail) => format!("{}: {detail}", end.reason.word()),
            // The state says this word already.
            None if end.reason.word() == job.state.word() => end.reason.sentence(),
            None => end.reason.word().to_owned(),
        },
        (None, Some(reason)) => reason.clone(),
        (None, None) if job.unreachable_since.is_some() => "its worker does not answer".to_owned(),
        (None, None) if job.cancel_requested_at.is_some() => "stopping".to_owned(),
        (None, None) if job.preempted_by.is_some() => leaving(job).unwrap_or_default(),
        (Some(_), _) => noticed(job, &[]).next().unwrap_or_default(),
        _ => how_far(job).unwrap_or_default(),
    };
    let (worker, gpus) = place(job, workers);
    vec![
        format!("…{}", tail(job.id)),
        short(&shown_name(job), longest),
        job.state.word().to_owned(),
        moment(job.submitted_at),
        time,
        short(&worker, longest),
        gpus,
        short(&why, longest),
    ]
}

/// `leaves for job …x2m9q1 (preempted)`, while a job of a higher priority takes its place.
pub(super) fn leaving(job: &Job) -> Option<String> {
    let by = job.preempted_by.filter(|_| runs(job))?;
    Some(format!("leaves for job …{} (preempted)", tail(by)))
}

/// A child of an array is told from the others by its index.
fn shown_name(job: &Job) -> String {
    let name = job.name.as_deref().unwrap_or_default();
    job.array_index.map_or_else(|| name.to_owned(), |index| format!("{name}[{index}]"))
}

/// One line of at most so many characters.
fn short(text: &str, longest: usize) -> String {
    let text = harmless(text, false);
    if text.chars().count() <= longest {
        return text;
    }
    text.chars().take(longest - 1).chain(['…']).collect()
}

/// `gpulayer cancel`.
pub(super) async fn cancel(context: &Context, args: &CancelArgs) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    for id in several(&client, &args.jobs, Namesake::Live).await? {
        let before: Job = client.get(&format!("/v1/jobs/{id}")).await?;
        let job: Job =
            client.post(&format!("/v1/jobs/{id}/cancel"), &CancelRequest { now: args.now }).await?;
        let word = match (before.state.ended(), job.state.ended()) {
            (true, _) => format!("had ended already: {}", job.state.word()),
            (false, true) => job.state.word().to_owned(),
            (false, false) => stopping(&job, args.now),
        };
        tell(context, &job, &word)?;
    }
    Ok(ExitStatus::SUCCESS)
}

/// What happens to a job that runs and was told to stop.
fn stopping(job: &Job, now: bool) -> String {
    if job.unreachable_since.is_some() {
        return "is stopped when its worker answers again".to_owned();
    }
    if now {
        return "is being killed".to_owned();
    }
    if array::progress(job).is_some_and(|progress| progress.running == 0) {
        return "is being cancelled; none of its children runs".to_owned();
    }
    let spec: Option<JobSpec> = serde_json::from_str(job.spec.get()).ok();
    match spec {
        Some(spec) if spec.stop_signal == StopSignal::Kill => "is being killed".to_owned(),
        Some(spec) => format!("is stopping, with {} of grace", span(spec.grace_s)),
        None => "is stopping".to_owned(),
    }
}

/// `gpulayer retry`: prints the ids of the new jobs.
pub(super) async fn retry(context: &Context, args: &RetryArgs) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    for id in several(&client, &args.jobs, Namesake::Newest).await? {
        let before: Job = client.get(&format!("/v1/jobs/{id}")).await?;
        if before.end.as_ref().is_some_and(|end| end.reason == EndReason::DependencyFailed) {
            let id = tail(id);
            say(&format!(
                "warning: job …{id} did not start because a job it depends on did not end as required, and its copy depends on \
                 that same one: repeat that one, then submit this one `--after` the new one ({} names both)",
                context.next().command(&format!("show {id}"))
            ));
        }
        let asked = RetryRequest { failed: args.failed };
        let again = client.post(&format!("/v1/jobs/{id}/retry"), &asked).await;
        let job: Job = again.map_err(|error| not_ended("retry", id, error))?;
        if context.json { print_json(&job)? } else { print(&job.id.to_string())? }
    }
    Ok(ExitStatus::SUCCESS)
}

/// `gpulayer rm`.
pub(super) async fn rm(context: &Context, args: &Jobs) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    for id in several(&client, args, Namesake::Newest).await? {
        let removed = client.delete(&format!("/v1/jobs/{id}")).await;
        removed.map_err(|error| not_ended("remove", id, error))?;
        told(context, id, "removed")?;
    }
    Ok(ExitStatus::SUCCESS)
}

/// Names the job where the server's refusal says only that it has not ended.
fn not_ended(operation: &'static str, id: JobId, error: ClientError) -> CliError {
    match error.problem() {
        Some(problem) if problem.code == ErrorCode::JobNotEnded => {
            CliError::JobNotEnded { operation, job: tail(id), source: error }
        }
        _ => error.into(),
    }
}

fn tell(context: &Context, job: &Job, word: &str) -> Result<(), CliError> {
    if context.json { print_json(job) } else { print(&format!("{} {word}", job.id)) }
}

fn told(context: &Context, id: JobId, word: &str) -> Result<(), CliError> {
    if context.json {
        print_json(&serde_json::json!({ "id": id, word: true }))
    } else {
        print(&format!("{id} {word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cell_is_cut_and_a_hostile_one_is_harmless() {
        assert_eq!(short("plain", LONGEST_CELL), "plain");
        assert_eq!(short(&"x".repeat(60), LONGEST_CELL).chars().count(), LONGEST_CELL);
        assert_eq!(short(&"x".repeat(600), usize::MAX).len(), 600);
        assert_eq!(short("a\nb\x1b[2J", LONGEST_CELL), "a\\nb\\u{1b}[2J");
    }
}
