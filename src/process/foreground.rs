//! Programs that a prelude runs one after another: they have its streams, are in its process group, and die with it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::signal_name::signal_name;

/// An answer is no longer than this.
const MOST_BYTES: u64 = 1 << 20;

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Foreground<'a> {
    /// The program.
    pub program: &'a Path,
    /// Behind it.
    pub arguments: &'a [OsString],
    /// All of its environment.
    pub environment: &'a [(OsString, OsString)],
    /// Where it runs.
    pub folder: PathBuf,
    /// What it reads; empty = nothing.
    pub input: &'a str,
    /// Whether nobody hears its errors.
    pub mute: bool,
}

/// How it ended, when it did not exit with 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedBadly {
    /// `exited with status 2`, `was ended by SIGKILL`.
    pub how: String,
}

impl Foreground<'_> {
    /// Runs it to its end; it prints where this process prints.
    pub fn run(&self) -> io::Result<Result<(), EndedBadly>> {
        self.start(Stdio::inherit()).map(|ended| ended.map(|_| ()))
    }

    /// The same with what it prints on standard output as the answer.
    pub fn printed(&self) -> io::Result<Result<Vec<u8>, EndedBadly>> {
        self.start(Stdio::piped())
    }

    fn start(&self, output: Stdio) -> io::Result<Result<Vec<u8>, EndedBadly>> {
        let mut command = Command::new(self.program);
        command.args(self.arguments).env_clear().current_dir(&self.folder).stdout(output);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if self.mute {
            command.stderr(Stdio::null());
        }
        command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut child = command.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // One that does not read to the end says why by its status. What is read here is short enough for the pipe,
            // or the child reads while it is written.
            drop(input.write_all(self.input.as_bytes()));
        }
        let mut printed = Vec::new();
        if let Some(mut output) = child.stdout.take() {
            output.by_ref().take(MOST_BYTES).read_to_end(&mut printed)?;
        }
        let status = child.wait()?;
        if status.success() {
            return Ok(Ok(printed));
        }
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with status {code}"),
            (None, Some(signal)) => format!("was ended by {}", signal_name(signal)),
            (None, None) => "ended".to_owned(),
        };
        Ok(Err(EndedBadly { how }))
    }
}
