//! `logs --full`: all that a job wrote, byte for byte, from the log artifacts of its tasks, so that nobody needs to
//! know how those are compressed. What the stored lines say in full comes from them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};

use super::Context;
use super::args::LogsArgs;
use super::carry::Spool;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::logs::{tasks_of, without_lines};
use super::screen::{colour_on, say};
use super::shown::harmless;
use crate::client::Client;
use crate::contract::artifact::Digest;
use crate::contract::ids::{JobId, TaskId};
use crate::contract::job::{Job, Sequence};
use crate::contract::log::{LogLine, Stream};

/// On a terminal, a line longer than this is shown in pieces.
const PIECE_BYTES: u64 = 64 << 10;

/// Prints everything to standard output, both streams in the order in which they came.
pub(super) async fn print(
    context: &Context,
    client: &Client,
    id: JobId,
    args: &LogsArgs,
) -> Result<ExitStatus, CliError> {
    let mut tasks = tasks_of(client, id, args).await?;
    tasks.sort_by_key(|task| (task.assigned_at, task.id));
    let mut printed = false;
    for task in tasks {
        match &task.log_artifact {
            Some(digest) => {
                from_artifact(client, digest).await?;
                printed = true;
            }
            None => printed |= from_lines(client, id, task.id, !task.state.ended()).await?,
        }
    }
    if !printed && !context.json {
        say(&without_lines(&client.get::<Job>(&format!("/v1/jobs/{id}")).await?));
    }
    Ok(ExitStatus::SUCCESS)
}

async fn from_artifact(client: &Client, digest: &Digest) -> Result<(), CliError> {
    let spool = Spool::create()?;
    client.download(digest, spool.path(), |_| {}).await?;
    let fault = |source| CliError::File { operation: "read", path: spool.path().to_owned(), source };
    let file = File::open(spool.path()).map_err(fault)?;
    let text = zstd::stream::read::Decoder::new(file).map_err(fault)?;
    let stdout = io::stdout();
    if stdout.is_terminal() { shown(text, colour_on(&stdout), &fault) } else { copied(text, &fault) }
}

/// Bytes as they are.
fn copied(mut text: impl Read, fault: &dyn Fn(io::Error) -> CliError) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    let mut buffer = vec![0; 128 << 10];
    loop {
        let length = text.read(&mut buffer).map_err(fault)?;
        if length == 0 {
            return stdout.flush().map_err(|source| CliError::Stdout { source });
        }
        stdout.write_all(&buffer[..length]).map_err(|source| CliError::Stdout { source })?;
    }
}

/// Lines that cannot harm the terminal; of one that was redrawn, what was drawn last.
fn shown(text: impl Read, colour: bool, fault: &dyn Fn(io::Error) -> CliError) -> Result<(), CliError> {
    let mut text = BufReader::with_capacity(128 << 10, text);
    let mut stdout = io::stdout().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        if text.by_ref().take(PIECE_BYTES).read_until(b'\n', &mut line).map_err(fault)? == 0 {
            return stdout.flush().map_err(|source| CliError::Stdout { source });
        }
        let mut safe = on_screen(&line, colour);
        safe.push('\n');
        stdout.write_all(safe.as_bytes()).map_err(|source| CliError::Stdout { source })?;
    }
}

fn on_screen(line: &[u8], colour: bool) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\n', '\r']);
    harmless(text.rsplit('\r').next().unwrap_or(text), colour)
}

/// Whether there was anything.
async fn from_lines(client: &Client, id: JobId, task_id: TaskId, goes_on: bool) -> Result<bool, CliError> {
    let stdout = io::stdout();
    let (terminal, colour) = (stdout.is_terminal(), colour_on(&stdout));
    let (mut after, mut any) = (0, false);
    loop {
        let path = format!("/v1/jobs/{id}/logs?after={after}&limit=500&task={task_id}");
        let page: Sequence<LogLine> = client.get(&path).await?;
        if page.items.is_empty() {
            if goes_on {
                say(
                    "the task has not ended: these are its lines so far, and the whole text comes with its end",
                );
            }
            return Ok(any);
        }
        after = page.next_after;
        let mut out = String::new();
        for line in page.items.iter().filter(|line| line.stream != Stream::System) {
            if terminal {
                out += &harmless(&line.text, colour)
            } else {
                out += &line.text
            }
            out.push('\n');
            any = true;
        }
        let mut stdout = stdout.lock();
        stdout
            .write_all(out.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|source| CliError::Stdout { source })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_sees_the_last_drawing_and_no_sequences() {
        assert_eq!(on_screen(b"\r10%\r20%\r\n", true), "20%");
        assert_eq!(on_screen(b"\x1b]0;title\x07\xff\n", true), "\\u{1b}]0;title\\u{7}\u{fffd}");
    }
}
