//! What can go wrong in a command, how it is told, and what to do next.

mod hint;

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

pub(in crate::cli) use hint::UNKNOWN_NAME;

use super::exit_status::ExitStatus;
use super::join::error::JoinError;
use super::next_step::NextStep;
use crate::client::{ClientError, Endpoint};
use crate::config::ConfigError;
use crate::contract::problem::Fault;
use crate::domain::spec::human::QuantityError;
use crate::recording::RecordError;

/// A command that did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The server, or the way to it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A worker that did not join, or cannot go on.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A segment of the record of scheduling.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// There are no segments.
    #[error("no scheduling is recorded under {}", folder.display())]
    NothingRecorded {
        /// Where they would be.
        folder: PathBuf,
    },
    /// A segment that this build must not judge.
    #[error("{} was {why}", path.display())]
    OtherRules {
        /// Which.
        path: PathBuf,
        /// Whose rules.
        why: String,
    },
    /// A segment without that pass.
    #[error("{} has {passes} passes", path.display())]
    NoSuchPass {
        /// Which.
        path: PathBuf,
        /// So many.
        passes: u64,
    },
    /// Something was to be supposed about a job that waits.
    #[error(
        "--like and --without suppose something about a spec: give it with `--spec FILE` instead of a job \
         (`gpulayer show JOB --json` has a job's `spec`)"
    )]
    SupposedOfJob,
    /// No segment has a pass that did anything with that job.
    #[error("no recorded pass placed or preempted a job `{given}`")]
    NoPassOfJob {
        /// As given.
        given: String,
    },
    /// A flag's value cannot be used.
    #[error("{flag} {given}: expected {expected}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// As given.
        given: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A size or time that cannot be read.
    #[error("{flag} {given}")]
    Quantity {
        /// The flag.
        flag: &'static str,
        /// As given.
        given: String,
        /// What is allowed.
        source: QuantityError,
    },
    /// Sizes or times in a spec file that cannot be read.
    #[error("{path} has {} that cannot be read", if faults.len() == 1 { "a value" } else { "values" }, path = .path.display())]
    SpecFaults {
        /// Which file.
        path: PathBuf,
        /// Each with what is allowed.
        faults: Vec<Fault>,
    },
    /// The job cannot be accepted.
    #[error("{}", match faults.as_slice() {
        [only] => format!("{}: {}", only.pointer, only.detail),
        faults => format!("the job has {} faults", faults.len()),
    })]
    SpecRefused {
        /// Each at what was typed.
        faults: Vec<Fault>,
    },
    /// No worker could ever take the job.
    #[error("{detail}")]
    NoWorkerFits {
        /// What each of them lacks.
        detail: String,
        /// The smallest change, at what was typed.
        faults: Vec<Fault>,
        /// Whether it is the project that may not have so much.
        by_quota: bool,
    },
    /// Neither argv nor a spec.
    #[error("there is nothing to run: put the command after `--`, or give --shell or --spec")]
    NothingToRun,
    /// Two ways to say what runs.
    #[error("a command after `--` and --shell cannot be given together")]
    TwoCommands,
    /// `--here` on a server that is not the own daemon.
    #[error("--here runs in this folder itself, which only the own daemon on this machine can do")]
    HereElsewhere,
    /// A server by a name that was not saved.
    #[error("no server is saved as `{name}`{}", if known.is_empty() { String::new() } else { format!("; there {} {}", if known.len() == 1 { "is" } else { "are" }, known.join(", ")) })]
    NoSuchServer {
        /// As given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// `down` for a server that is not this machine's own daemon.
    #[error("`down` stops the daemon of this machine alone, and not {server}")]
    DownElsewhere {
        /// As given.
        server: String,
    },
    /// A saved token that its server does not take.
    #[error("the token saved for `{name}` is not valid at {url}")]
    SavedToken {
        /// Its name.
        name: String,
        /// Its address.
        url: String,
        /// What the server said.
        source: ClientError,
    },
    /// No credential is meant by that.
    #[error("there is no token `{given}`")]
    NoSuchToken {
        /// As given.
        given: String,
    },
    /// Several workers are meant by that.
    #[error("`{given}` could mean {}", candidates.join(" or "))]
    AmbiguousWorker {
        /// As given.
        given: String,
        /// Each with its host and state.
        candidates: Vec<String>,
    },
    /// A token of another kind.
    #[error("that is a join token (glj_…), which only lets workers join: a client token (glc_…) is needed")]
    JoinToken,
    /// Nothing to say who is calling.
    #[error("no token was given for {server}")]
    NoToken {
        /// The server.
        server: Endpoint,
    },
    /// The name belongs to another server.
    #[error("`{name}` is saved already, for {url}")]
    NameTaken {
        /// The name.
        name: String,
        /// Its server.
        url: String,
    },
    /// Plain HTTP where others can listen.
    #[error("--host {host}: without TLS every token and every job would cross the network in the open")]
    PlainAbroad {
        /// As given.
        host: IpAddr,
    },
    /// A spec file that cannot be read as one.
    #[error("{path} cannot be read as {format}", path = .path.display())]
    SpecFormat {
        /// Which file.
        path: PathBuf,
        /// JSON, YAML, TOML.
        format: &'static str,
        /// Where and why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A spec whose top level is no table.
    #[error("{path} is not a job spec: a table of fields is expected", path = .path.display())]
    SpecShape {
        /// Which file.
        path: PathBuf,
    },
    /// A file that a flag names cannot be read.
    #[error("{flag} {path} cannot be read", path = .path.display())]
    GivenFile {
        /// The flag.
        flag: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line of an `--env-file`. What it holds may be a secret, so it is not shown.
    #[error("--env-file {path}, line {line}: expected NAME=VALUE", path = .path.display())]
    EnvFileLine {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// A file of this machine.
    #[error("cannot {operation} {path}", path = .path.display())]
    File {
        /// `read`, `write`, …
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Files that are in the way.
    #[error("{path}{} there already with other contents", if *count == 1 { " is".to_owned() } else { format!(" and {} more are", count - 1) }, path = .path.display())]
    InTheWay {
        /// One of them.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// A job that has brought nothing.
    #[error("job {job} {}", match (*ended, *undeclared) {
        (false, _) => format!("is still {state}, so nothing can be fetched yet"),
        (true, false) => format!("{state} without any declared output, so there is nothing to fetch"),
        (true, true) => "has no undeclared files, or they are kept no longer".to_owned(),
    })]
    NothingToFetch {
        /// The end of its id.
        job: String,
        /// Whether its state is the last one.
        ended: bool,
        /// The word.
        state: &'static str,
        /// Whether undeclared files were asked for.
        undeclared: bool,
        /// How many undeclared files are there.
        kept: usize,
    },
    /// A job that has not ended cannot be removed or submitted again.
    #[error("cannot {operation} job {job}")]
    JobNotEnded {
        /// `remove`, `retry`.
        operation: &'static str,
        /// The end of its id.
        job: String,
        /// What the server said.
        source: ClientError,
    },
    /// A file where an artifact is to go.
    #[error("{path} is there already with other contents", path = .path.display())]
    OutputThere {
        /// Which.
        path: PathBuf,
    },
    /// An output whose path or link leaves the folder.
    #[error("{path}: leads out of the folder it is fetched to, so it is not written")]
    LeavesFolder {
        /// As the server sent it.
        path: String,
    },
    /// No job is meant by that.
    #[error("no job is called `{given}`")]
    NoSuchJob {
        /// As given.
        given: String,
    },
    /// No worker is meant by that.
    #[error("there is no worker `{given}`")]
    NoSuchWorker {
        /// As given.
        given: String,
    },
    /// No live task is meant by that.
    #[error("no task or job `{given}` is on a worker now")]
    NoSuchTask {
        /// As given.
        given: String,
    },
    /// No job has the labels.
    #[error("no job has the label {labels}")]
    NoJobLabelled {
        /// As given.
        labels: String,
    },
    /// Several jobs, tasks or workers are meant by that.
    #[error("`{given}` could mean {candidates}")]
    AmbiguousJob {
        /// As given.
        given: String,
        /// Some of them.
        candidates: String,
    },
    /// No job was named.
    #[error("no job was named: give an id, its tail, a name, or @last")]
    NoJobNamed,
    /// The source or an input cannot travel.
    #[error("cannot bring along {path}", path = .path.display())]
    Bundle {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A daemon did not come up.
    #[error("the daemon did not start")]
    NotStarted(#[from] super::on_demand::StartError),
    /// A daemon cannot be stopped.
    #[error("the daemon was not stopped")]
    NotStopped {
        /// Why.
        source: super::on_demand::StartError,
    },
    /// Waiting for a daemon that leaves was given up.
    #[error("the daemon is still stopping ({}); it goes on with that, and leaves when it is done", super::on_demand::process(*pid))]
    StillStopping {
        /// Its process, if it has said so.
        pid: Option<u32>,
    },
    /// The daemon of this process ended badly.
    #[error("the daemon stopped")]
    Daemon {
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A file that is there, and holds what cannot be made again.
    #[error("{path} is there already, and is not overwritten", path = .path.display())]
    NotOverwritten {
        /// Which.
        path: PathBuf,
    },
    /// A token could not be made.
    #[error("cannot make a token")]
    Random {
        /// Why.
        source: crate::credentials::RandomError,
    },
    /// The runtime could not be made.
    #[error("cannot set up this process")]
    Runtime {
        /// Why.
        source: io::Error,
    },
    /// Standard output cannot be written to.
    #[error("cannot write to standard output")]
    Stdout {
        /// What the system said.
        source: io::Error,
    },
    /// `down` was not confirmed.
    #[error("nothing was stopped")]
    NotConfirmed,
    /// A check of `doctor` failed.
    #[error("{failed} of the checks failed")]
    Unwell {
        /// How many.
        failed: usize,
    },
}

impl CliError {
    /// Whether the reader of standard output went away: no fault, and nothing to say.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Stdout { source } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// CONTRACT, Command line: 1 failed, 2 usage.
    pub(super) fn exit_status(&self) -> ExitStatus {
        match self {
            CliError::Client(ClientError::Endpoint(_))
            | CliError::Flag { .. }
            | CliError::EnvFileLine { .. }
            | CliError::Quantity { .. }
            | CliError::NothingToRun
            | CliError::TwoCommands
            | CliError::HereElsewhere
            | CliError::Client(ClientError::ConnectionString(_))
            | CliError::NoSuchServer { .. }
            | CliError::DownElsewhere { .. }
            | CliError::JoinToken
            | CliError::NoToken { .. }
            | CliError::NameTaken { .. }
            | CliError::PlainAbroad { .. }
            | CliError::SupposedOfJob
            | CliError::NoJobNamed => ExitStatus::USAGE,
            CliError::Join(error) if error.is_usage() => ExitStatus::USAGE,
            CliError::StillStopping { .. } => ExitStatus::GIVEN_UP,
            _ => ExitStatus::FAILED,
        }
    }

    /// The whole message for standard error: what failed, every cause, every bad field, what to do next.
    pub(super) fn rendered(&self, next: &NextStep) -> String {
        let mut text = format!("gpulayer: {self}\n");
        let mut cause = self.source();
        while let Some(error) = cause {
            for (index, line) in error.to_string().lines().enumerate() {
                let lead = if index == 0 { "  because: " } else { "           " };
                let _ = writeln!(text, "{lead}{line}");
            }
            cause = error.source();
        }
        let faults = match self {
            // A single fault is often the whole sentence already.
            CliError::Client(ClientError::Refused(problem)) => match problem.errors.as_slice() {
                [only] if problem.detail.contains(&only.detail) => &[],
                faults => faults,
            },
            CliError::Join(error) => error.faults(),
            CliError::SpecFaults { faults, .. } | CliError::NoWorkerFits { faults, .. } => faults.as_slice(),
            CliError::SpecRefused { faults } if faults.len() > 1 => faults.as_slice(),
            _ => &[],
        };
        for fault in faults {
            let colon = if matches!(self, CliError::Join(_)) { "" } else { ":" };
            let _ = writeln!(text, "  {}{colon} {}", fault.pointer, fault.detail);
        }
        if let Some(hint) = self.hint(next) {
            let _ = writeln!(text, "  hint: {hint}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::error_code::ErrorCode;
    use crate::contract::pin::Pin;
    use crate::contract::problem::Problem;
    use crate::tls::{Distrust, TlsFault};

    #[test]
    fn a_refusal_shows_every_bad_field() {
        let fault = |pointer: &str, detail: &str| Fault {
            pointer: pointer.into(),
            code: "invalid".into(),
            detail: detail.into(),
        };
        let problem = Problem::new(ErrorCode::InvalidSpec, "The spec has 2 faults.").with_errors(vec![
            fault("/workload/command/argv", "must hold at least the program"),
            fault("/priority", "is 200, but -100 to 100 is allowed"),
        ]);
        insta::assert_snapshot!(CliError::from(ClientError::Refused(Box::new(problem))).rendered(&NextStep::default()), @"
        gpulayer: The spec has 2 faults.
          /workload/command/argv: must hold at least the program
          /priority: is 200, but -100 to 100 is allowed
        ");
    }

    #[test]
    fn a_single_fault_is_said_once() {
        let fault = |place: &str| Fault {
            pointer: place.into(),
            code: "invalid".into(),
            detail: "is 0, but at least 0.001 is allowed".into(),
        };
        let one = CliError::SpecRefused { faults: vec![fault("--cpus")] };
        insta::assert_snapshot!(one.rendered(&NextStep::default()), @"gpulayer: --cpus: is 0, but at least 0.001 is allowed");
        let two = CliError::SpecRefused { faults: vec![fault("--cpus"), fault("job.yaml: /nodes")] };
        insta::assert_snapshot!(two.rendered(&NextStep::default()), @"
        gpulayer: the job has 2 faults
          --cpus: is 0, but at least 0.001 is allowed
          job.yaml: /nodes: is 0, but at least 0.001 is allowed
        ");
    }

    #[test]
    fn an_unreachable_server_is_named_with_its_cause() {
        let error = ClientError::Unreachable {
            endpoint: Endpoint::parse("http://127.0.0.1:9").unwrap(),
            source: io::Error::other("Connection refused"),
        };
        insta::assert_snapshot!(CliError::from(error).rendered(&NextStep::default()), @"
        gpulayer: no answer from http://127.0.0.1:9
          because: Connection refused
          hint: start it there (`gpulayer up`) and let this machine reach its port; `gpulayer doctor --server http://127.0.0.1:9` looks at each part of the way. No other server takes its place
        ");
    }

    #[test]
    fn a_server_that_is_not_trusted_is_told_by_its_key_with_what_to_do() {
        let told = |source| {
            let endpoint = Endpoint::parse("https://box").unwrap();
            CliError::from(ClientError::Tls { endpoint, source: Box::new(source) })
                .rendered(&NextStep::default())
        };
        let (seen, pinned) = (Pin::from_bytes([1; 32]), vec![Pin::from_bytes([2; 32])]);
        insta::assert_snapshot!(told(Distrust::WrongKey { seen, pinned }.into()), @"
        gpulayer: no safe connection to https://box:8470
          because: the server's key is sha256:0101010101010101010101010101010101010101010101010101010101010101, and the pinned one is sha256:0202020202020202020202020202020202020202020202020202020202020202
          hint: somebody may be in between. If the server really has a new key, `gpulayer up` on its machine prints it: compare, then connect or join again with that --pin
        ");
        insta::assert_snapshot!(told(TlsFault::PlainHttp), @"
        gpulayer: no safe connection to https://box:8470
          because: the server speaks plain HTTP on this port, and https was asked for
          hint: give http://box:8470, or let the server speak TLS (`gpulayer up`, `server start --self-signed`)
        ");
    }

    #[test]
    fn a_job_that_brought_nothing_says_what_to_do() {
        let nothing = |ended, state, kept| {
            let job = "a7kq2b".to_owned();
            CliError::NothingToFetch { job, ended, state, undeclared: false, kept }
                .rendered(&NextStep::default())
        };
        insta::assert_snapshot!(nothing(false, "running", 0), @"
        gpulayer: job a7kq2b is still running, so nothing can be fetched yet
          hint: `gpulayer wait a7kq2b` first
        ");
        insta::assert_snapshot!(nothing(true, "failed", 2), @"
        gpulayer: job a7kq2b failed without any declared output, so there is nothing to fetch
          hint: `gpulayer fetch a7kq2b --undeclared` brings 2 that no --output names
        ");
        insta::assert_snapshot!(nothing(true, "succeeded", 0), @"gpulayer: job a7kq2b succeeded without any declared output, so there is nothing to fetch");
    }

    #[test]
    fn usage_is_told_from_failure() {
        assert_eq!(CliError::NothingToRun.exit_status(), ExitStatus::USAGE);
        assert_eq!(CliError::NoSuchJob { given: "x".into() }.exit_status(), ExitStatus::FAILED);
    }
}
