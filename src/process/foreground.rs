//! Programs that a prelude runs one after another: they have its streams, are in its process group, and die with it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::signal_name::signal_name;

/// An answer is no longer than this.
const MOST_BYTES: u64 = 1 << 20;
/// So much of its errors is kept.
const MOST_KEPT_BYTES: usize = 8 << 10;
/// So long the pipe of a program that has ended is read on.
const LEFT_OPEN: Duration = Duration::from_secs(1);

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
    /// The end of its errors, where they were listened to.
    pub said: String,
}

impl Foreground<'_> {
    /// Runs it to its end; it prints where this process prints, and of its errors the end is kept.
    pub fn run(&self) -> io::Result<Result<(), EndedBadly>> {
        self.start(Stdio::inherit(), true).map(|ended| ended.map(|_| ()))
    }

    /// The same with what it prints on standard output as the answer.
    pub fn printed(&self) -> io::Result<Result<Vec<u8>, EndedBadly>> {
        self.start(Stdio::piped(), false)
    }

    fn start(&self, output: Stdio, listen: bool) -> io::Result<Result<Vec<u8>, EndedBadly>> {
        let mut command = Command::new(self.program);
        command.args(self.arguments).env_clear().current_dir(&self.folder).stdout(output);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if self.mute {
            command.stderr(Stdio::null());
        } else if listen {
            command.stderr(Stdio::piped());
        }
        command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut child = command.spawn()?;
        let listener = child.stderr.take().map(Listener::begin).transpose()?;
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
        let said = listener.map(Listener::heard).unwrap_or_default();
        if status.success() {
            return Ok(Ok(printed));
        }
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with status {code}"),
            (None, Some(signal)) => format!("was ended by {}", signal_name(signal)),
            (None, None) => "ended".to_owned(),
        };
        Ok(Err(EndedBadly { how, said }))
    }
}

/// Hands on what a program says, and keeps the end of it.
struct Listener {
    end: Arc<Mutex<VecDeque<u8>>>,
    /// Gone when nobody has the other end any more.
    open: Receiver<()>,
}

impl Listener {
    fn begin(mut from: ChildStderr) -> io::Result<Self> {
        let end = Arc::new(Mutex::new(VecDeque::new()));
        let (closes, open) = channel::<()>();
        let kept = Arc::clone(&end);
        thread::Builder::new().name("listener".to_owned()).spawn(move || {
            let _closes = closes;
            let mut buffer = [0; 8 << 10];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                // Who cannot write has nobody to tell it.
                let _ = io::stderr().write_all(&buffer[..length]);
                let mut kept = kept.lock();
                kept.extend(&buffer[..length]);
                let beyond = kept.len().saturating_sub(MOST_KEPT_BYTES);
                kept.drain(..beyond);
            }
        })?;
        Ok(Self { end, open })
    }

    /// After the program's end. What it started may live on, and hold the pipe: that is not waited for.
    fn heard(self) -> String {
        let _ = self.open.recv_timeout(LEFT_OPEN);
        let end: Vec<u8> = self.end.lock().iter().copied().collect();
        String::from_utf8_lossy(&end).into_owned()
    }
}
