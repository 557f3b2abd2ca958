//! `show`: all about a job on one page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Context;
use super::args::Jobs;
use super::array;
use super::asks;
use super::error::CliError;
use super::event_line::event_line;
use super::exit_status::ExitStatus;
use super::fleet::names_of;
use super::job_choice::{Namesake, several};
use super::jobs::{how_far, leaving};
use super::logs::all_events;
use super::next_step::NextStep;
use super::run::Asked;
use super::screen::{Output, print_json};
use super::server_choice::OnDemand;
use super::shown::{harmless, moment, quoted, size, span, tail};
use super::verdict::undeclared;
use crate::contract::event::Event;
use crate::contract::function::FunctionResult;
use crate::contract::ids::{JobId, WorkerId};
use crate::contract::job::{Job, JobState, Page};
use crate::contract::spec::Serializer;
use crate::contract::worker::Task;
use crate::domain::retry::owner_word;
use crate::domain::verdict::left_out;

/// Characters of a result that are shown.
const MOST_SHOWN: usize = 200;

/// `gpulayer show`.
pub(super) async fn run(context: &Context, args: &Jobs) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    let ids = several(&client, args, Namesake::Newest).await?;
    let next = context.next();
    let mut output = Output::new();
    for (index, id) in ids.into_iter().enumerate() {
        let job: Job = client.get(&format!("/v1/jobs/{id}")).await?;
        if context.json {
            print_json(&job)?;
            continue;
        }
        let tasks: Page<Task> = client.get(&format!("/v1/jobs/{id}/tasks")).await?;
        let events = all_events(&client, id).await?;
        let workers = job.worker.into_iter().chain(tasks.items.iter().map(|task| task.worker));
        let names = names_of(&client, workers).await;
        if index > 0 {
            output.line("")?;
        }
        output.text(&page(&next, (&job, &names), &tasks.items, &events))?;
        output.flush()?;
    }
    Ok(ExitStatus::SUCCESS)
}

fn page(
    next: &NextStep,
    (job, workers): (&Job, &BTreeMap<WorkerId, String>),
    tasks: &[Task],
    events: &[Event],
) -> String {
    let gang = Asked::of(job).is_gang();
    let mut page = String::new();
    let mut field = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(page, "{name:<12} {}", harmless(&value, false));
        }
    };
    field("job", Some(job.id.to_string()));
    field("name", job.name.clone());
    field("state", Some(job.state.word().to_owned()));
    field("waits for", job.queue_reason.clone());
    field("project", Some(job.project.clone()));
    let labels: Vec<_> = job.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    field("labels", (!labels.is_empty()).then(|| labels.join(" ")));
    field("by", Some(job.submitted_by.clone()));
    field("command", command(job));
    field("function", function(job));
    field("asks for", asks::in_one_line(job));
    field("attempt", (job.attempt > 1).then(|| job.attempt.to_string()));
    field("retry of", job.retry_of.map(|id| id.to_string()));
    field("child of", job.parent.map(|id| format!("{id}, index {}", job.array_index.unwrap_or_default())));
    if let Some(progress) = array::progress(job) {
        let steps = array::next_steps(job, &progress, next).join(" · ");
        field("children", Some(format!("{} · {steps}", array::counts_of_children(&progress))));
    }
    field("progress", how_far(job).filter(|_| !job.is_array()));
    let named = |id: WorkerId| workers.get(&id).map(|name| format!("{name} ")).unwrap_or_default();
    // What waits has none: its tasks say where it was.
    let placed = job.worker.filter(|_| !gang && job.state != JobState::Queued);
    field("worker", placed.map(|id| format!("{}{id}", named(id))));
    field("submitted", Some(moment(job.submitted_at)));
    field("started", job.started_at.map(moment));
    field("ended", job.ended_at.map(moment));
    field(
        "unreachable",
        job.unreachable_since.map(|since| format!("its worker has not answered since {}", moment(since))),
    );
    field(
        "stopping",
        job.cancel_requested_at
            .filter(|_| !job.state.ended())
            .map(|at| format!("asked to stop at {}", moment(at))),
    );
    field("leaving", leaving(job));
    if let Some(end) = &job.end {
        let detail = end.detail.clone().unwrap_or_else(|| end.reason.sentence());
        field("reason", Some(format!("{} ({}): {detail}", end.reason.word(), owner_word(end.owner))));
        // What to do about it goes before what shows it, which may be long.
        field("", end.advice.as_ref().map(|advice| format!("try: {advice}")));
        for (index, line) in end.evidence.iter().enumerate() {
            field(if index == 0 { "evidence" } else { "" }, Some(line.clone()));
        }
        if let Some(certainty) = end.certainty {
            let basis = end.basis.as_deref().unwrap_or("the reason alone");
            field("", Some(format!("{}: {basis}", certainty.word())));
        }
        field("exit status", end.exit_code.map(|code| code.to_string()));
        field("signal", end.signal.clone());
        field("ran", end.duration_s.map(span));
        field("peak memory", end.peak_memory_bytes.map(size));
    }
    field("result", job.result.as_ref().map(|result| returned(result, job.id)));
    for file in &job.outputs {
        let what = match &file.link_target {
            Some(target) => format!("-> {target}"),
            None => size(file.size_bytes),
        };
        field("output", Some(format!("{} ({what})", file.path)));
    }
    field("files", undeclared(job, next));
    field(
        "whole log",
        job.log_artifact
            .map(|digest| format!("{digest} ({})", next.command(&format!("logs --full {}", tail(job.id))))),
    );
    // What was left out is of interest once it is missed, and then it stands under `try`.
    for warning in job.warnings.iter().filter(|warning| warning.pointer != left_out::POINTER) {
        field("warning", Some(format!("{} {}", warning.pointer, warning.detail).trim().to_owned()));
    }
    for task in tasks {
        let end = task.end.as_ref().map(|end| format!(" ({})", end.reason.word())).unwrap_or_default();
        let rank = if gang {
            format!(" rank {} on {}{}", task.rank, named(task.worker), task.worker)
        } else {
            String::new()
        };
        let gpus =
            if task.gpus.is_empty() { String::new() } else { format!(" with {}", task.gpus.join(", ")) };
        let attempt = task.attempt;
        field("task", Some(format!("{} attempt {attempt}{rank} {}{end}{gpus}", task.id, task.state.word())));
    }
    if !events.is_empty() {
        page += "\n";
        let rank_of = |event: &Event| tasks.iter().find(|task| gang && Some(task.id) == event.task_id);
        for event in events {
            page += &event_line(event, rank_of(event).map(|task| task.rank));
            page.push('\n');
        }
    }
    page
}

/// The command as one would type it.
fn command(job: &Job) -> Option<String> {
    let spec: serde_json::Value = serde_json::from_str(job.spec.get()).ok()?;
    let command = spec.pointer("/workload/command")?;
    if let Some(text) = command.get("shell").and_then(|text| text.as_str()) {
        return Some(text.to_owned());
    }
    let words = command.get("argv")?.as_array()?.iter().filter_map(|word| word.as_str());
    Some(words.map(quoted).collect::<Vec<_>>().join(" "))
}

/// The function by its name, when it has one.
fn function(job: &Job) -> Option<String> {
    let spec: serde_json::Value = serde_json::from_str(job.spec.get()).ok()?;
    let function = spec.pointer("/workload/function")?;
    let name = function.get("entrypoint").and_then(|name| name.as_str());
    Some(name.map_or_else(|| "sent along by cloudpickle".to_owned(), str::to_owned))
}

/// What it returned or raised, in one line.
fn returned(result: &FunctionResult, id: JobId) -> String {
    let in_python = format!("in Python: gpulayer.attach(\"{}\").result()", tail(id));
    let told = |name: &str| {
        let raised: serde_json::Value = serde_json::from_str(result.inline.as_ref()?.get()).ok()?;
        raised.get(name).and_then(|text| text.as_str()).map(str::to_owned)
    };
    if result.raised {
        let first =
            told("message").and_then(|text| text.lines().next().map(str::to_owned)).unwrap_or_default();
        return format!(
            "raised {}: {} ({in_python})",
            told("type").unwrap_or_else(|| "an exception".to_owned()),
            shortened(&first)
        );
    }
    match (&result.inline, result.serializer) {
        (Some(json), Serializer::Json) => shortened(json.get()),
        _ => format!("{} of {} ({in_python})", size(result.size_bytes), word(result.serializer)),
    }
}

/// What fits into a line of a terminal or two.
fn shortened(text: &str) -> String {
    let mut letters = text.chars();
    let start: String = letters.by_ref().take(MOST_SHOWN).collect();
    if letters.next().is_some() { format!("{start}…") } else { start }
}

const fn word(serializer: Serializer) -> &'static str {
    match serializer {
        Serializer::Json => "JSON",
        Serializer::Cloudpickle => "cloudpickle",
    }
}
