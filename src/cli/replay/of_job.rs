//! `replay --job`: the recorded passes that placed or preempted a job.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::super::Context;
use super::super::error::CliError;
use super::super::exit_status::ExitStatus;
use super::super::job_choice;
use super::super::screen::{Output, say};
use super::super::server_choice::OnDemand;
use super::super::shown::{harmless, moment, tail};
use super::{other_rules, start};
use crate::contract::ids::JobId;
use crate::contract::quantity::Timestamp;
use crate::domain::placement::Placer;
use crate::domain::placement::replay::{Answer, Entry, RULES};
use crate::recording::{Reader, RecordError};

/// Fewer characters of an id name nothing.
const SHORTEST: usize = 4;

/// What a pass did with the job.
#[derive(Debug, Serialize)]
struct Step {
    segment: PathBuf,
    pass: u64,
    at: Timestamp,
    job: JobId,
    #[serde(flatten)]
    did: Did,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Did {
    /// On these workers.
    Placed(Vec<String>),
    /// For this job.
    PreemptedFor(JobId),
    /// It took the place of this job.
    MadeRoomBy(JobId),
}

pub(super) async fn show(
    context: &Context,
    segments: &[PathBuf],
    given: &str,
) -> Result<ExitStatus, CliError> {
    if print(context, segments, given)? {
        return Ok(ExitStatus::SUCCESS);
    }
    // The record knows ids alone: what else names a job the server knows, if one is there.
    let unknown = || CliError::NoPassOfJob { given: given.to_owned() };
    let client = context.server(OnDemand::Leave).map_err(|_| unknown())?.client;
    let id = job_choice::one(&client, given).await.map_err(|error| match error {
        ambiguous @ CliError::AmbiguousJob { .. } => ambiguous,
        _ => unknown(),
    })?;
    if print(context, segments, &id.to_string())? { Ok(ExitStatus::SUCCESS) } else { Err(unknown()) }
}

/// Whether there was anything to print.
fn print(context: &Context, segments: &[PathBuf], given: &str) -> Result<bool, CliError> {
    let mut output = Output::new();
    let mut found = false;
    for path in segments {
        for step in steps(path, given)? {
            found = true;
            if context.json { output.json(&step)? } else { output.line(&line(&step))? }
        }
    }
    output.flush()?;
    Ok(found)
}

fn steps(path: &Path, given: &str) -> Result<Vec<Step>, RecordError> {
    let mut steps = Vec::new();
    let mut reader = match Reader::open(path) {
        Err(RecordError::Empty { .. }) => return Ok(steps),
        reader => reader?,
    };
    if reader.header().rules != RULES {
        say(&format!("passed over {}: {}", path.display(), other_rules(&reader)));
        return Ok(steps);
    }
    let Some(mut replay) = start(&mut reader)? else { return Ok(steps) };
    while let Some(entry) = reader.entry()? {
        match entry {
            Entry::Told(input) => replay.told(input),
            Entry::Passed(passed) => {
                let (at, recorded) = (passed.now, passed.answer.clone());
                // What was recorded is what happened; `replay` says whether the same comes out.
                drop(replay.passed(passed));
                let pass = replay.counts().passes;
                let step = |(job, did)| Step { segment: path.to_owned(), pass, at, job, did };
                steps.extend(about(&recorded, given, replay.placer()).into_iter().map(step));
            }
            Entry::Header(_) | Entry::Start(_) | Entry::Cut { .. } | Entry::Closed => {}
        }
    }
    Ok(steps)
}

fn about(answer: &Answer, given: &str, placer: &Placer) -> Vec<(JobId, Did)> {
    let mut about = Vec::new();
    for preemption in &answer.preemptions {
        let (loser, winner) = (preemption.place.job_id, preemption.by);
        if is_meant(loser, given) {
            about.push((loser, Did::PreemptedFor(winner)));
        }
        if is_meant(winner, given) {
            about.push((winner, Did::MadeRoomBy(loser)));
        }
    }
    for placement in answer.placements.iter().filter(|placement| is_meant(placement.job_id, given)) {
        let workers = placement.seats.iter().map(|seat| placer.name_of(seat.worker_id)).collect();
        about.push((placement.job_id, Did::Placed(workers)));
    }
    about
}

fn is_meant(job: JobId, given: &str) -> bool {
    let (id, text) = (job.to_string(), given.strip_prefix('…').unwrap_or(given));
    text.len() >= SHORTEST && (id.starts_with(text) && text != JobId::PREFIX || id.ends_with(text))
}

fn line(step: &Step) -> String {
    let name = step.segment.file_name().unwrap_or(step.segment.as_os_str()).to_string_lossy();
    let did = match &step.did {
        Did::Placed(workers) => format!("placed on {}", workers.join(", ")),
        Did::PreemptedFor(winner) => format!("preempted for …{}", tail(*winner)),
        Did::MadeRoomBy(loser) => format!("…{} preempted for it", tail(*loser)),
    };
    let line = format!("{name}  pass {}  {}  …{}  {did}", step.pass, moment(step.at), tail(step.job));
    harmless(&line, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_meant_by_its_id_and_its_ends() {
        let id: JobId = "job_01hf7yat00e2g0000000a7kq2b".parse().unwrap();
        for text in ["job_01hf7yat00e2g0000000a7kq2b", "job_01hf", "a7kq2b", "…a7kq2b"] {
            assert!(is_meant(id, text), "{text}");
        }
        for text in ["job_", "q2b", "a7kq2c", ""] {
            assert!(!is_meant(id, text), "{text}");
        }
    }
}
