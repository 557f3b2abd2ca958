//! `logs` and `events`: what was written and what happened, whole or as it grows.

use std::collections::{HashSet, VecDeque};

use super::Context;
use super::args::{EventsArgs, LogsArgs};
use super::array;
use super::contact::Contact;
use super::error::CliError;
use super::event_line::event_line;
use super::exit_status::ExitStatus;
use super::follow::{LogPrinter, each_event, each_line, parsed};
use super::job_choice;
use super::quantities::span;
use super::run::Asked;
use super::screen::{Output, say};
use super::server_choice::OnDemand;
use super::shown::{moment, tail};
use super::whole_log;
use crate::client::Client;
use crate::contract::event::Event;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::job::{Job, Page, Sequence};
use crate::contract::log::{LogLine, Stream};
use crate::contract::quantity::Timestamp;
use crate::contract::worker::Task;
use crate::domain::task_run::tells_of_lost_lines;

/// Lines of one page.
const PAGE_LINES: usize = 500;

/// Which lines are wanted.
struct Filter {
    tasks: Option<HashSet<TaskId>>,
    rank: Option<u32>,
    stream: Option<Stream>,
    since: Option<Timestamp>,
    text: Option<String>,
}

impl Filter {
    async fn of(client: &Client, id: JobId, args: &LogsArgs) -> Result<Self, CliError> {
        let mut tasks = None;
        if args.attempt.is_some() || args.task.is_some() {
            tasks = Some(tasks_of(client, id, args).await?.into_iter().map(|task| task.id).collect());
        }
        let stream = match args.stream.as_deref() {
            Some("stdout") => Some(Stream::Stdout),
            Some("stderr") => Some(Stream::Stderr),
            Some(_) => Some(Stream::System),
            None => None,
        };
        let since = args.since.as_deref().map(|text| since(text, crate::clock::now())).transpose()?;
        Ok(Self { tasks, rank: args.rank, stream, since, text: args.grep.clone() })
    }

    fn takes_all(&self) -> bool {
        let Self { tasks, rank, stream, since, text } = self;
        tasks.is_none() && rank.is_none() && stream.is_none() && since.is_none() && text.is_none()
    }

    fn takes(&self, line: &LogLine) -> bool {
        self.tasks.as_ref().is_none_or(|tasks| tasks.contains(&line.task_id))
            && self.rank.is_none_or(|rank| rank == line.rank)
            && self.stream.is_none_or(|stream| stream == line.stream)
            && self.since.is_none_or(|since| line.time >= since)
            && self.text.as_ref().is_none_or(|text| line.text.contains(text.as_str()))
    }
}

/// The tasks of a job that `--task` and `--attempt` name; without them all.
pub(super) async fn tasks_of(client: &Client, id: JobId, args: &LogsArgs) -> Result<Vec<Task>, CliError> {
    let mut all: Page<Task> = client.get(&format!("/v1/jobs/{id}/tasks")).await?;
    all.items.retain(|task| {
        let text = task.id.to_string();
        args.attempt.is_none_or(|attempt| attempt == task.attempt)
            && args.task.as_ref().is_none_or(|given| text.starts_with(given) || text.ends_with(given))
    });
    Ok(all.items)
}

/// A time, or how long ago.
fn since(text: &str, now: Timestamp) -> Result<Timestamp, CliError> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let ago = span("--since", text).map_err(|_| CliError::Flag {
        flag: "--since",
        given: text.to_owned(),
        expected: "a time such as 2026-01-31T12:00:00Z, or how long ago, such as 10m",
    })?;
    Ok(Timestamp::from_micros(now.micros().saturating_sub((ago.millis() as i64).saturating_mul(1000))))
}

/// `gpulayer logs`.
pub(super) async fn logs(context: &Context, args: &LogsArgs) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    let id = match args.follow {
        true => job_choice::live_one(&client, &args.job).await?,
        false => job_choice::one(&client, &args.job).await?,
    };
    if args.full {
        return whole_log::print(context, &client, id, args).await;
    }
    let job: Job = client.get(&format!("/v1/jobs/{id}")).await?;
    if let Some(progress) = array::progress(&job) {
        let steps = array::next_steps(&job, &progress, &context.next()).join(" · ");
        say(&format!("job {} is an array, and its children have the logs · {steps}", tail(id)));
        return Ok(ExitStatus::FAILED);
    }
    let filter = Filter::of(&client, id, args).await?;
    let printer = LogPrinter::new(false).naming_ranks(args.rank.is_none() && Asked::of(&job).is_gang());
    let mut lines = Lines { context, timestamps: args.timestamps, printer, output: None };
    let mut last = VecDeque::new();
    let mut after = 0;
    let mut any = false;
    loop {
        let path = format!("/v1/jobs/{id}/logs?after={after}&limit={PAGE_LINES}");
        let page: Sequence<LogLine> = client.get(&path).await?;
        // A page of long lines has fewer than it may, and more follow.
        let last_page = page.items.is_empty();
        after = page.next_after;
        any |= !last_page;
        for line in page.items.into_iter().filter(|line| filter.takes(line)) {
            match args.tail {
                Some(most) => {
                    last.push_back(line);
                    if last.len() > most {
                        last.pop_front();
                    }
                }
                None => lines.print(&line)?,
            }
        }
        lines.flush()?;
        if last_page {
            break;
        }
    }
    for line in &last {
        lines.print(line)?;
    }
    lines.flush()?;
    if args.follow {
        each_line(&Contact::with(&client), id, &mut after, &mut |line, drained| {
            if filter.takes(line) {
                lines.print(line)?;
            }
            if drained { lines.flush() } else { Ok(()) }
        })
        .await?;
        lines.flush()?;
    } else if !context.json {
        let job: Job = client.get(&format!("/v1/jobs/{id}")).await?;
        if let Some(remark) = remark(&job, &filter, any) {
            say(&remark);
        }
    }
    Ok(ExitStatus::SUCCESS)
}

/// What somebody who looks for something has to know about what was shown.
fn remark(job: &Job, filter: &Filter, any: bool) -> Option<String> {
    let id = tail(job.id);
    if filter.tasks.as_ref().is_some_and(HashSet::is_empty) {
        return Some(format!("job {id} has no such attempt or task; `gpulayer show {id}` lists them"));
    }
    if filter.text.is_some() && job.log_artifact.is_some() {
        return Some(format!(
            "lines of this log were left out or cut and are not searched; `gpulayer logs --full {id} | grep …` searches all"
        ));
    }
    (!any && filter.takes_all()).then(|| without_lines(job))
}

/// What is to be said of a job of which there is no line.
pub(super) fn without_lines(job: &Job) -> String {
    let lost = job.warnings.iter().find(|warning| tells_of_lost_lines(warning));
    match lost {
        Some(lost) => format!("nothing of what job {} printed is here: {}", tail(job.id), lost.detail),
        None if job.state.ended() => format!("job {} has printed nothing", tail(job.id)),
        None => format!("job {} has printed nothing yet", tail(job.id)),
    }
}

/// Prints lines as `logs` does: plain text like the program's own, or with times, or as JSON.
struct Lines<'a> {
    context: &'a Context,
    timestamps: bool,
    printer: LogPrinter,
    output: Option<Output>,
}

impl Lines<'_> {
    fn print(&mut self, line: &LogLine) -> Result<(), CliError> {
        if self.context.json {
            return self.output.get_or_insert_with(Output::new).json(line);
        }
        if self.timestamps {
            let mut dated = line.clone();
            dated.text = format!("{} {}", moment(line.time), line.text);
            return self.printer.line(&dated);
        }
        self.printer.line(line)
    }

    fn flush(&mut self) -> Result<(), CliError> {
        self.printer.flush()?;
        match &mut self.output {
            Some(output) => output.flush(),
            None => Ok(()),
        }
    }
}

/// `gpulayer events`.
pub(super) async fn events(context: &Context, args: &EventsArgs) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    if args.all {
        return feed(context, &client, args.follow).await;
    }
    let id = job_choice::one(&client, &args.job).await?;
    let mut output = Output::new();
    if args.follow {
        let path = format!("/v1/jobs/{id}/events");
        let mut after = 0;
        each_event(&Contact::with(&client), &path, &mut after, &mut |kind, text, _| {
            if kind == "event" {
                print_event(context, &mut output, &parsed(&path, text)?)?;
            }
            output.flush()
        })
        .await?;
        return Ok(ExitStatus::SUCCESS);
    }
    for event in all_events(&client, id).await? {
        print_event(context, &mut output, &event)?;
    }
    output.flush()?;
    Ok(ExitStatus::SUCCESS)
}

/// `gpulayer events --all`.
async fn feed(context: &Context, client: &Client, follow: bool) -> Result<ExitStatus, CliError> {
    const PATH: &str = "/v1/events";
    let mut output = Output::new();
    let print = |output: &mut Output, event: &Event| match event.job_id {
        Some(id) if !context.json => output.line(&format!("…{}  {}", tail(id), event_line(event, None))),
        None if !context.json => output.line(&format!("{:<7}  {}", "server", event_line(event, None))),
        _ => output.json(event),
    };
    let mut after = 0;
    loop {
        let path = format!("{PATH}?after={after}&limit={PAGE_LINES}");
        let page: Sequence<Event> = client.get(&path).await?;
        for event in &page.items {
            print(&mut output, event)?;
        }
        output.flush()?;
        after = page.next_after;
        if page.items.len() < PAGE_LINES {
            break;
        }
    }
    if follow {
        each_event(&Contact::with(client), PATH, &mut after, &mut |kind, text, _| {
            if kind == "event" {
                print(&mut output, &parsed(PATH, text)?)?;
            }
            output.flush()
        })
        .await?;
    }
    Ok(ExitStatus::SUCCESS)
}

/// Everything that has happened to a job so far.
pub(super) async fn all_events(client: &Client, id: JobId) -> Result<Vec<Event>, CliError> {
    let mut events = Vec::new();
    let mut after = 0;
    loop {
        let path = format!("/v1/jobs/{id}/events?after={after}&limit={PAGE_LINES}");
        let page: Sequence<Event> = client.get(&path).await?;
        let full = page.items.len() >= PAGE_LINES;
        after = page.next_after;
        events.extend(page.items);
        if !full {
            return Ok(events);
        }
    }
}

fn print_event(context: &Context, output: &mut Output, event: &Event) -> Result<(), CliError> {
    if context.json { output.json(event) } else { output.line(&event_line(event, None)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_takes_a_time_and_a_span() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        assert_eq!(since("10m", now).unwrap(), Timestamp::from_micros(1_699_999_400_000_000));
        assert_eq!(since("2023-11-14T22:13:20Z", now).unwrap(), now);
        assert!(matches!(since("yesterday", now), Err(CliError::Flag { .. })));
    }

    #[test]
    fn lost_lines_are_not_called_silence() {
        let job = |state: &str, warnings: serde_json::Value| -> Job {
            serde_json::from_value(serde_json::json!({
                "id": "job_01jdzk0000e0080000000000g1", "name": null, "project": "default", "labels": {}, "submitted_by": "x",
                "state": state, "spec": {}, "attempt": 1, "submitted_at": "2026-01-01T00:00:00Z", "outputs": [],
                "undeclared": [], "warnings": warnings
            }))
            .unwrap()
        };
        let none = serde_json::json!([]);
        assert!(without_lines(&job("running", none.clone())).ends_with("has printed nothing yet"));
        assert!(without_lines(&job("failed", none)).ends_with("has printed nothing"));
        let lost =
            serde_json::json!([{"pointer": "", "detail": "the last 2 lines of the log are lost: no room"}]);
        let said = without_lines(&job("failed", lost));
        assert!(said.ends_with("is here: the last 2 lines of the log are lost: no room"), "{said}");
    }
}
