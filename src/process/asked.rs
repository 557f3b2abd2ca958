//! Children that are asked something and have to answer in time: probes of drivers and interpreters, which may hang,
//! crash or flood, and must harm nobody but themselves. Each leads a process group of its own, which is killed whole.

use std::ffi::{CStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    set_parent_process_death_signal, waitid,
};

use super::RunAs;
use super::signal_name::signal_name;

/// An answer is no longer than this.
const MOST_BYTES: u64 = 4 << 20;
/// Of what it said on standard error.
const MOST_ERROR_BYTES: u64 = 16 << 10;
/// How long a killed child may take to be gone before somebody else waits for it.
const GONE_WITHIN: Duration = Duration::from_millis(500);
/// The OOM score of everybody: the worker's own protects it, and its children inherit that.
const PLAIN_OOM_SCORE: &str = "0";

/// What is to be started.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The program.
    pub program: PathBuf,
    /// Its `argv[0]`, where that is another.
    pub name: Option<&'static str>,
    /// Behind it.
    pub arguments: Vec<OsString>,
    /// All of its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Whose rights it has; `None` = those of this process.
    pub run_as: Option<RunAs>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It cannot be started.
    #[error("{} cannot be started", program.display())]
    Start {
        /// Which.
        program: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It did not answer in time, and was killed.
    #[error("no answer within {} s", within.as_secs_f32())]
    Silent {
        /// In that time.
        within: Duration,
    },
    /// It ended without an answer.
    #[error("it {how}{}", if said.is_empty() { String::new() } else { format!(": {said}") })]
    Ended {
        /// `exited with status 1`, `was killed by SIGSEGV`.
        how: String,
        /// The last line of its standard error; empty = none.
        said: String,
    },
}

/// A child that answers in lines.
#[derive(Debug)]
pub struct Answerer {
    child: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
    /// Then its number may be somebody else's.
    ended: bool,
}

impl Answerer {
    /// Starts it. It is killed when this is dropped, and should end by itself when its standard input does.
    pub fn start(asked: &Asked) -> Result<Self, AskError> {
        let failed = |source| AskError::Start { program: asked.program.clone(), source };
        let mut child = start(asked, Stdio::piped(), Stdio::null()).map_err(failed)?;
        let (Some(questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let (tell, told) = mpsc::channel();
        let read = move || {
            let mut lines = BufReader::new(answers);
            loop {
                let mut line = String::new();
                match lines.by_ref().take(MOST_BYTES).read_line(&mut line) {
                    Ok(1..) if line.ends_with('\n') => {
                        if tell.send(line).is_err() {
                            return;
                        }
                    }
                    _ => return,
                }
            }
        };
        let answerer = Self { child, questions, answers: told, ended: false };
        if let Err(source) = std::thread::Builder::new().name("answers".to_owned()).spawn(read) {
            drop(answerer);
            return Err(failed(source));
        }
        Ok(answerer)
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks. That it cannot be asked shows when it is heard.
    pub fn ask(&mut self, question: &str) {
        let _ = writeln!(self.questions, "{question}").and_then(|()| self.questions.flush());
    }

    /// Waits for its next line. After an error this is of no more use: drop it. Blocks.
    pub fn hear(&mut self, within: Duration) -> Result<String, AskError> {
        match self.answers.recv_timeout(within) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) => return Err(AskError::Silent { within }),
            Err(RecvTimeoutError::Disconnected) => {}
        }
        let ended = has_ended(&self.child, GONE_WITHIN);
        let status = self.end().filter(|_| ended);
        let how = status.map_or_else(|| "closed its answers".to_owned(), words);
        Err(AskError::Ended { how, said: String::new() })
    }

    fn end(&mut self) -> Option<ExitStatus> {
        if std::mem::replace(&mut self.ended, true) { None } else { end(&mut self.child) }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a program printed, whatever its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Printed {
    /// Whether it exited with 0.
    pub well: bool,
    /// Its standard output.
    pub output: Vec<u8>,
    /// The last line of its standard error.
    pub said: String,
}

/// Runs a program to its end, without input. Blocks, for that long at most; then its group is killed.
pub fn printed_by(asked: &Asked, within: Duration) -> Result<Printed, AskError> {
    let failed = |source| AskError::Start { program: asked.program.clone(), source };
    let mut child = start(asked, Stdio::null(), Stdio::piped()).map_err(failed)?;
    let deadline = Instant::now() + within;
    let (tell, told) = mpsc::channel();
    let streams: [Option<(bool, Box<dyn Read + Send>)>; 2] = [
        child.stdout.take().map(|stream| (true, Box::new(stream.take(MOST_BYTES)) as Box<dyn Read + Send>)),
        child.stderr.take().map(|stream| (false, Box::new(stream.take(MOST_ERROR_BYTES)) as _)),
    ];
    let mut reading = 0;
    for (is_output, mut stream) in streams.into_iter().flatten() {
        let tell = tell.clone();
        let read = move || {
            let mut bytes = Vec::new();
            drop(stream.read_to_end(&mut bytes));
            drop(tell.send((is_output, bytes)));
        };
        if let Err(source) = std::thread::Builder::new().name("answers".to_owned()).spawn(read) {
            end(&mut child);
            return Err(failed(source));
        }
        reading += 1;
    }
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    for _ in 0..reading {
        match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((true, bytes)) => output = bytes,
            Ok((false, bytes)) => errors = bytes,
            Err(_) => {
                end(&mut child);
                return Err(AskError::Silent { within });
            }
        }
    }
    let in_time = has_ended(&child, deadline.saturating_duration_since(Instant::now()));
    let Some(status) = end(&mut child).filter(|_| in_time) else {
        return Err(AskError::Silent { within });
    };
    let errors = String::from_utf8_lossy(&errors);
    let said = errors.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned();
    if status.signal().is_some() {
        return Err(AskError::Ended { how: words(status), said });
    }
    Ok(Printed { well: status.success(), output, said })
}

/// For a probe: gives this process its name in lists, and sees to it that it does not outlive the thread that started
/// it, however that ends.
pub fn begin_as(name: &CStr) {
    let _ = rustix::thread::set_name(name);
    // Where it cannot be had, the end of standard input is left, which a hanging probe does not notice.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

fn start(asked: &Asked, input: Stdio, errors: Stdio) -> io::Result<Child> {
    let mut command = Command::new(&asked.program);
    if let Some(name) = asked.name {
        command.arg0(name);
    }
    command
        .args(&asked.arguments)
        .env_clear()
        .envs(asked.environment.iter().map(|(name, value)| (name, value)));
    command.current_dir("/").process_group(0);
    if let Some(user) = &asked.run_as {
        // It has no other groups then.
        command.uid(user.uid).gid(user.gid);
    }
    let child = command.stdin(input).stdout(Stdio::piped()).stderr(errors).spawn()?;
    // Raising it is free to everybody; where there is no such file, there is nothing to raise.
    let _ = std::fs::write(
        Path::new("/proc").join(child.id().to_string()).join("oom_score_adj"),
        PLAIN_OOM_SCORE,
    );
    Ok(child)
}

fn number(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Whether it ends in time. It is not reaped, so that its number stays its own.
fn has_ended(child: &Child, within: Duration) -> bool {
    let Some(process) = number(child).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    matches!(poll(&mut polled, Timespec::try_from(within).ok().as_ref()), Ok(1))
}

/// Kills it and all of its group, and reaps it; `None`: it does not end, and somebody else waits for it. Once.
fn end(child: &mut Child) -> Option<ExitStatus> {
    let pid = number(child)?;
    let _ = kill_process_group(pid, Signal::KILL);
    if has_ended(child, GONE_WITHIN) {
        return child.wait().ok();
    }
    tracing::warn!(pid = child.id(), "a probe does not end although it was killed");
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        let reap = move || {
            let mut polled = [PollFd::new(&process, PollFlags::IN)];
            let _ = poll(&mut polled, None);
            let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED);
        };
        drop(std::thread::Builder::new().name("reaper".to_owned()).spawn(reap));
    }
    None
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was killed by {}", signal_name(signal)),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Asked {
        Asked {
            program: "/bin/sh".into(),
            name: None,
            arguments: vec!["-c".into(), script.into()],
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            run_as: None,
        }
    }

    #[test]
    fn a_program_prints_and_says() {
        let printed = printed_by(&shell("echo out; echo no >&2; exit 3"), Duration::from_secs(20)).unwrap();
        assert_eq!(
            (printed.well, printed.output.as_slice(), printed.said.as_str()),
            (false, &b"out\n"[..], "no")
        );
    }

    #[test]
    fn a_hanging_program_is_killed_with_all_that_it_started() {
        let begun = Instant::now();
        let hung = printed_by(&shell("sleep 1000 & echo $!; sleep 1000"), Duration::from_millis(300));
        assert!(matches!(hung, Err(AskError::Silent { .. })), "{hung:?}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_crash_is_said_in_words() {
        let crashed = printed_by(&shell("kill -SEGV $$"), Duration::from_secs(20)).unwrap_err();
        assert_eq!(crashed.to_string(), "it was killed by SIGSEGV");
    }

    #[test]
    fn one_line_answers_one_line_until_it_is_over() {
        let mut answerer = Answerer::start(&shell("read a; echo \"to $a\"; read b; exit 4")).unwrap();
        answerer.ask("one");
        assert_eq!(answerer.hear(Duration::from_secs(20)).unwrap(), "to one\n");
        answerer.ask("two");
        let over = answerer.hear(Duration::from_secs(20)).unwrap_err();
        assert_eq!(over.to_string(), "it exited with status 4");
    }

    #[test]
    fn a_silent_one_is_given_up_and_killed() {
        let mut answerer = Answerer::start(&shell("read a; sleep 1000")).unwrap();
        let pid = answerer.pid();
        answerer.ask("one");
        let silent = answerer.hear(Duration::from_millis(200)).unwrap_err();
        assert_eq!(silent.to_string(), "no answer within 0.2 s");
        drop(answerer);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
