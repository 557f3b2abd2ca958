//! Follows a job: its log as it grows, and its end. No line is lost or printed twice, whatever happens to the
//! connection or the daemon meanwhile.

use std::io::{self, Write};

use serde::Serialize;

use super::contact::{Contact, Perseverance};
use super::error::CliError;
use super::screen::{colour_on, say};
use super::shown::harmless;
use crate::client::{Call, ClientError};
use crate::contract::ids::JobId;
use crate::contract::job::Job;
use crate::contract::log::{LogLine, Stream};

/// Prints log lines: the program's standard output on ours, its standard error on ours.
pub(super) struct LogPrinter {
    json: bool,
    /// Whether each stream is a terminal that has to be protected, and may have colours.
    screens: [Screen; 2],
    /// Whether each line is to say which task of a gang it is from.
    ranks: bool,
    out: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Screen {
    protect: bool,
    colour: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Record<'a> {
    Log {
        /// Of which child of an array.
        #[serde(skip_serializing_if = "Option::is_none")]
        index: Option<u64>,
        line: &'a LogLine,
    },
    Job {
        job: &'a Job,
    },
}

impl LogPrinter {
    pub(super) fn new(json: bool) -> Self {
        let screen = |terminal, colour| Screen { protect: terminal, colour };
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let screens = [
            screen(io::IsTerminal::is_terminal(&stdout), colour_on(&stdout)),
            screen(io::IsTerminal::is_terminal(&stderr), colour_on(&stderr)),
        ];
        Self { json, screens, ranks: false, out: Vec::new() }
    }

    /// The same for the log of a gang: each line begins with its rank.
    pub(super) fn naming_ranks(mut self, of_a_gang: bool) -> Self {
        self.ranks = of_a_gang;
        self
    }

    /// Takes one line; standard output is held back until [`LogPrinter::flush`].
    pub(super) fn line(&mut self, line: &LogLine) -> Result<(), CliError> {
        self.line_of(None, line)
    }

    /// The same of a child of an array, which is named before each line.
    pub(super) fn line_of(&mut self, index: Option<u64>, line: &LogLine) -> Result<(), CliError> {
        if self.json {
            return self.record(&Record::Log { index, line });
        }
        let screen = self.screens[usize::from(line.stream != Stream::Stdout)];
        let mut text = if screen.protect { harmless(&line.text, screen.colour) } else { line.text.clone() };
        if self.ranks {
            text.insert_str(0, &format!("[{}] ", line.rank));
        }
        if let Some(index) = index {
            text.insert_str(0, &format!("[{index}] "));
        }
        match line.stream {
            Stream::Stdout => {
                self.out.extend_from_slice(text.as_bytes());
                self.out.push(b'\n');
                if self.out.len() > 64 << 10 { self.flush() } else { Ok(()) }
            }
            // What was printed before has to be seen before.
            Stream::Stderr => self.flush().map(|()| say(&text)),
            Stream::System => self.flush().map(|()| say(&format!("gpulayer: {text}"))),
        }
    }

    /// The job at its end, in a stream of JSON.
    pub(super) fn job(&mut self, job: &Job) -> Result<(), CliError> {
        if self.json { self.record(&Record::Job { job }).and_then(|()| self.flush()) } else { Ok(()) }
    }

    fn record(&mut self, record: &impl Serialize) -> Result<(), CliError> {
        serde_json::to_writer(&mut self.out, record)
            .map_err(|error| CliError::Stdout { source: error.into() })?;
        self.out.push(b'\n');
        Ok(())
    }

    /// Hands everything to standard output.
    pub(super) fn flush(&mut self) -> Result<(), CliError> {
        if self.out.is_empty() {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(&self.out).and_then(|()| stdout.flush());
        self.out.clear();
        written.map_err(|source| CliError::Stdout { source })
    }
}

/// Prints a job's log from the beginning to its end.
pub(super) async fn log_to_end(
    contact: &Contact<'_>,
    id: JobId,
    printer: &mut LogPrinter,
) -> Result<(), CliError> {
    let mut after = 0;
    each_line(contact, id, &mut after, &mut |line, drained| {
        printer.line(line)?;
        if drained { printer.flush() } else { Ok(()) }
    })
    .await?;
    printer.flush()
}

/// Hands out every line after `after`, in order and once, until the log has ended. With each comes whether none
/// is waiting behind it.
pub(super) async fn each_line(
    contact: &Contact<'_>,
    id: JobId,
    after: &mut u64,
    line: &mut dyn FnMut(&LogLine, bool) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let path = format!("/v1/jobs/{id}/logs");
    each_event(contact, &path, after, &mut |kind, text, drained| match kind {
        "log" => line(&parsed(&path, text)?, drained),
        "gap" => {
            say("gpulayer: some lines of the log are missing here");
            Ok(())
        }
        _ => Ok(()),
    })
    .await
}

/// Reads the JSON of one streamed event.
pub(super) fn parsed<T: serde::de::DeserializeOwned>(path: &str, text: &str) -> Result<T, CliError> {
    serde_json::from_str(text)
        .map_err(|source| ClientError::BadAnswer { operation: format!("GET {path}"), source }.into())
}

/// Hands out every event of a stream after `after` until `end`, going on where it stood after each cut.
pub(super) async fn each_event(
    contact: &Contact<'_>,
    path: &str,
    after: &mut u64,
    event: &mut dyn FnMut(&str, &str, bool) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut tries = Perseverance::of(contact);
    loop {
        let failed = match tries.attempt(contact.client.stream(path, *after)).await {
            Err(failed) => failed,
            Ok(mut stream) => loop {
                match stream.next().await {
                    Ok(None) => return Ok(()),
                    Ok(Some(next)) if next.id.is_some_and(|id| id <= *after) => {}
                    Ok(Some(next)) => {
                        tries.progressed();
                        event(&next.kind, &next.data, stream.is_drained())?;
                        *after = next.id.unwrap_or(*after);
                    }
                    Err(failed) => break failed,
                }
            },
        };
        if !tries.pause_after(&failed).await {
            return Err(failed.into());
        }
    }
}

/// Waits for a job's end: one parked call at a time.
pub(super) async fn end_of(contact: &Contact<'_>, id: JobId) -> Result<Job, CliError> {
    let call = Call::get(format!("/v1/jobs/{id}?wait_s=60"));
    let mut tries = Perseverance::of(contact);
    loop {
        match tries.ask(&call).await.and_then(|answer| answer.json::<Job>()) {
            Ok(job) if job.state.ended() => return Ok(job),
            Ok(_) => tries.progressed(),
            Err(failed) => {
                if !tries.pause_after(&failed).await {
                    return Err(failed.into());
                }
            }
        }
    }
}
