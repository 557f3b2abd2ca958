//! From the facts of an exit to its end: the reason, one sentence that says why, what shows it, how sure that is, and
//! what to try.
//!
//! Facts first, text second. In the order of belief: what stopped it, whether it started at all, kills that the kernel
//! counted, how it was waited for, the kernel log, disks, and only then the program's own last words (`rules.toml`). An
//! exit with status 0 is never judged again by what was printed.

mod environment;
mod fault_handler;
mod kernel;
mod last_words;
mod launchers;
pub mod left_out;
mod memory;
mod raised;
mod rules;
mod traceback;
mod transcript;

use crate::contract::end::{Certainty, End, EndReason};
use crate::contract::problem::Warning;
use crate::contract::quantity::Seconds;
use crate::contract::spec::{JobSpec, Run, StopSignal, Workload};
use crate::domain::task_run::WholeLog;

pub use kernel::KernelLog;
use kernel::KernelWord;
use last_words::LastWords;
pub use memory::{MemoryFacts, binary};
pub use raised::Raised;
use rules::Status;
pub use transcript::LastLine;

/// Lines of evidence an end has at most.
const MOST_EVIDENCE: usize = 3;
/// Characters of one line of evidence, and of a sentence made of the program's words.
const MOST_CHARACTERS: usize = 240;

/// How the program of a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// It exited by itself with this status.
    Exited {
        /// 0 to 255.
        code: i32,
    },
    /// A signal ended it.
    Signalled {
        /// Its name, such as `SIGKILL`.
        signal: String,
    },
    /// It could not be executed.
    NotFound {
        /// 127 when there is no such program, 126 when it may not be executed.
        code: i32,
        /// What was tried, and the system's word for it.
        detail: String,
    },
    /// It never got as far as being executed.
    NotPrepared {
        /// What could not be done, on what.
        detail: String,
        /// Whether the disk was full.
        disk_full: bool,
    },
}

/// Why the shim sent the stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopSent {
    /// It was ordered to.
    Order,
    /// `timeout_s` had passed.
    Timeout,
    /// No worker had come back for too long.
    Orphaned,
}

/// What is known of an execution that is over, its whole tree gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitFacts {
    /// How the program ended.
    pub exit: Exit,
    /// The stop signal that was sent before it ended, if any was.
    pub stop: Option<StopSent>,
    /// From the stop signal to its end.
    pub stopping_for: Option<Seconds>,
    /// Whether it was what runs before the program that ended so: the program never ran.
    pub in_prelude: bool,
    /// From its start to its end; `None` when it never started.
    pub duration: Option<Seconds>,
    /// Largest memory of the tree, where it could be measured.
    pub peak_memory_bytes: Option<u64>,
    /// Number of the last log record; 0 = it wrote none.
    pub last_n: u64,
    /// Log records behind the last that found no room on the disk.
    pub lost_records: u64,
    /// Where all that it wrote is.
    pub whole_log: WholeLog,
    /// Its memory limit, and what the kernel did about it.
    pub memory: MemoryFacts,
    /// What was looked at because it did not end well.
    pub scene: Option<Box<Scene>>,
    /// What its user should know of the run, whatever the end.
    pub warnings: Vec<Warning>,
}

impl ExitFacts {
    /// An exit of which only this is known.
    pub fn of(exit: Exit) -> Self {
        Self {
            exit,
            stop: None,
            stopping_for: None,
            in_prelude: false,
            duration: None,
            peak_memory_bytes: None,
            last_n: 0,
            lost_records: 0,
            whole_log: WholeLog::InLines,
            memory: MemoryFacts::default(),
            scene: None,
            warnings: Vec::new(),
        }
    }
}

/// What was found around an exit that is not clean. Gathered once, right after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scene {
    /// The last lines of both streams, oldest first.
    pub lines: Vec<LastLine>,
    /// The kernel log since the task's start.
    pub kernel: KernelLog,
    /// Processes of the task: its own, and those that a signal ended.
    pub pids: Vec<u32>,
    /// What names the task's group in the kernel log; empty = nothing does.
    pub group: String,
    /// File systems without room: `the workspace's disk`, `/dev/shm`.
    pub full: Vec<String>,
    /// What the function of a job raised, by its runner's word.
    pub raised: Option<Raised>,
}

/// A declared output that did not come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncollectedOutput {
    /// The name it is listed under.
    pub name: String,
    /// `nothing matches …`, or why it could not be read or sent.
    pub why: String,
}

/// The end of an execution. An exit before the stop signal was sent stands as it is; after it, the cause of the
/// stop names the end (CONTRACT, Words and states).
pub fn verdict(facts: &ExitFacts, spec: &JobSpec, uncollected: &[UncollectedOutput]) -> End {
    let (exit_code, signal) = match &facts.exit {
        _ if facts.in_prelude => (None, None),
        Exit::Exited { code } | Exit::NotFound { code, .. } => (Some(*code), None),
        Exit::Signalled { signal } => (None, Some(signal.clone())),
        Exit::NotPrepared { .. } => (None, None),
    };
    let end = match (&facts.stop, &facts.exit) {
        (Some(stop), _) => stopped(*stop, facts, spec),
        (None, _) if facts.in_prelude => environment::not_built(facts),
        (None, Exit::Exited { code: 0 }) => completed(uncollected),
        (None, Exit::Exited { .. } | Exit::Signalled { .. }) => failed(facts, spec),
        (None, Exit::NotFound { code, detail }) => End {
            certainty: Some(Certainty::Certain),
            basis: Some("the system refused to execute it".to_owned()),
            advice: not_found(spec, *code).map(str::to_owned),
            ..End::of(EndReason::ExecutableNotFound, detail.clone())
        },
        (None, Exit::NotPrepared { detail, disk_full: false }) => {
            End::of(EndReason::PrepareFailed, detail.clone())
        }
        (None, Exit::NotPrepared { detail, disk_full: true }) => End::of(EndReason::DiskFull, detail.clone()),
    };
    End {
        exit_code,
        signal,
        peak_memory_bytes: facts.peak_memory_bytes,
        duration_s: facts.duration.filter(|_| !facts.in_prelude),
        ..bounded(end)
    }
}

/// The end of what was stopped. The cause of the stop names it; what the kernel killed before may be why it came to
/// that, and is said with it.
fn stopped(stop: StopSent, facts: &ExitFacts, spec: &JobSpec) -> End {
    let (reason, cause) = match stop {
        StopSent::Order => (EndReason::Cancelled, None),
        StopSent::Timeout => (EndReason::TimedOut, spec.timeout_s.map(timeout_sentence)),
        StopSent::Orphaned => {
            (EndReason::WorkerLost, Some("no worker came back for the task in time".to_owned()))
        }
    };
    let grace = grace_used(facts, spec).filter(|_| stop != StopSent::Orphaned);
    let said: Vec<String> =
        [cause, memory::killed_before(&facts.memory), grace].into_iter().flatten().collect();
    End {
        evidence: memory::kills(&facts.memory).into_iter().collect(),
        ..End::of(reason, (!said.is_empty()).then(|| said.join("; ")))
    }
}

/// The program did not heed its stop signal.
fn grace_used(facts: &ExitFacts, spec: &JobSpec) -> Option<String> {
    let killed = matches!(&facts.exit, Exit::Signalled { signal } if signal == "SIGKILL");
    let grace = spec.grace_s;
    let waited = grace.millis() > 0 && facts.stopping_for.is_some_and(|span| span >= grace);
    (killed && waited && spec.stop_signal != StopSignal::Kill).then(|| {
        let seconds = grace.millis() as f64 / 1000.0;
        format!("it did not end within grace_s = {seconds} of its stop signal and was killed")
    })
}

/// The program ran and did not end well.
fn failed(facts: &ExitFacts, spec: &JobSpec) -> End {
    let nothing_seen = Scene::default();
    let scene = facts.scene.as_deref().unwrap_or(&nothing_seen);
    let status = Status::of(&facts.exit);
    let mut words = last_words::last_words(&scene.lines, status);
    // Only a function has a runner that says so.
    let raised = scene.raised.as_ref().filter(|_| spec.workload.function().is_some());
    if let Some(raised) = raised {
        words = raised.words(words, status);
    }
    let kernel = kernel::words(&scene.kernel, &scene.pids, &scene.group);
    if let Some(end) = memory::oom_killed(facts, status, &kernel, &words) {
        return end;
    }
    if let Some(end) = gpu_fault(&kernel, &words) {
        return end;
    }
    let mut end = match (&words.conclusion, status) {
        (Some(_), _) => concluded(&words, status, scene),
        (None, Status { signal: Some(signal), .. }) => signalled(signal, &words, &kernel, scene),
        (None, _) if words.evidence.is_empty() && disks(scene).next().is_some() => {
            without_room(status, scene, facts.lost_records)
        }
        (None, _) => exited(status.exit_code.unwrap_or(1), &words, facts),
    };
    // What was measured stands before what was said: the last line is the program's own.
    let full = disks(scene).next().filter(|_| end.reason != EndReason::DiskFull);
    let full = full.map(|volume| format!("{volume} had no room left at the end"));
    let measured = memory::kills(&facts.memory).into_iter().chain(full);
    let room = MOST_EVIDENCE.saturating_sub(end.evidence.len());
    end.evidence.splice(..0, measured.take(room));
    end.advice = end.advice.or_else(|| raised?.advice.clone());
    end
}

/// A device failed under the program, and the kernel said so.
fn gpu_fault(kernel: &[KernelWord<'_>], words: &LastWords) -> Option<End> {
    let (xid, line) = kernel.iter().find_map(|word| match word {
        KernelWord::Gpu { xid, line } if kernel::is_device_fault(*xid) => Some((*xid, *line)),
        _ => None,
    })?;
    let mut evidence = vec![line.to_owned()];
    evidence.extend(words.evidence.last().cloned());
    Some(End {
        certainty: Some(Certainty::Certain),
        basis: Some("the kernel log names a process of the task in a fault of the GPU".to_owned()),
        advice: Some("keep jobs off this GPU until it was reset or looked at; --retries with --retry-on gpu_error tries another worker".to_owned()),
        evidence,
        ..End::of(EndReason::GpuError, format!("the GPU reported XID {xid}"))
    })
}

/// A rule knows what the last words mean. A reason that names a signal or a status is only a better sentence for it.
fn concluded(words: &LastWords, status: Status<'_>, scene: &Scene) -> End {
    let Some(found) = &words.conclusion else { return End::of(EndReason::Internal, None) };
    let plain = matches!(found.reason, EndReason::ExitNonzero | EndReason::Signalled);
    let reason = match (plain, status.signal) {
        (true, Some(_)) => EndReason::Signalled,
        (true, None) => EndReason::ExitNonzero,
        (false, _) => found.reason,
    };
    let how = match (status.exit_code, status.signal) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("ended by {signal}"),
        (None, None) => "ended".to_owned(),
    };
    let full = scene.full.iter().find(|_| reason == EndReason::DiskFull);
    let (certainty, basis) = match full {
        Some(volume) => {
            (Certainty::Certain, format!("{volume} has no room left, and the program's last words say so"))
        }
        None if words.exception.is_some() => {
            (found.certainty, "the exception that ended the program".to_owned())
        }
        // The system's own answer would show on a disk; a line may tell of anything.
        None if reason == EndReason::DiskFull => {
            let basis = "the program's last words, though the worker's disks had room afterwards";
            (found.certainty.min(Certainty::Possible), basis.to_owned())
        }
        None => (found.certainty, "the program's last words".to_owned()),
    };
    let detail = if plain && !found.detail.starts_with("ended by") {
        format!("{how}: {}", found.detail)
    } else {
        found.detail.clone()
    };
    End {
        certainty: Some(certainty),
        basis: Some(format!("{basis} (rule {})", found.rule)),
        advice: Some(found.advice.clone()),
        evidence: words.evidence.clone(),
        ..End::of(reason, detail)
    }
}

/// The full volumes that are disks.
fn disks(scene: &Scene) -> impl Iterator<Item = &str> {
    scene.full.iter().map(String::as_str).filter(|volume| *volume != "/dev/shm")
}

/// It failed without a word while a disk was full: its words may have found no room either.
fn without_room(status: Status<'_>, scene: &Scene, lost_records: u64) -> End {
    let code = status.exit_code.unwrap_or(1);
    let volumes = disks(scene).collect::<Vec<_>>().join(" and ");
    let basis = match lost_records {
        0 => "a full disk, and no last words that say otherwise",
        _ => "a full disk; the program's last words are lost",
    };
    End {
        certainty: Some(Certainty::Likely),
        basis: Some(basis.to_owned()),
        advice: Some("free space on the worker, or write less".to_owned()),
        ..End::of(EndReason::DiskFull, format!("exited with status {code} while {volumes} had no room left"))
    }
}

/// A status of its own, and no rule knows why.
fn exited(code: i32, words: &LastWords, facts: &ExitFacts) -> End {
    let child = code.checked_sub(128).and_then(signal_word);
    let detail = match (&words.exception, child) {
        (Some(exception), _) => format!("exited with status {code}: {exception}"),
        (None, Some(signal)) => {
            format!("exited with status {code}, as a shell does after a child was ended by {signal}")
        }
        (None, None) => format!("exited with status {code}"),
    };
    let (certainty, advice) = match (child, facts.memory.oom_kills) {
        (Some("SIGKILL"), Some(0)) => (
            Some(Certainty::Possible),
            Some(
                "somebody or something killed a process of the task; the kernel counted no kill for lack of memory in the task's group",
            ),
        ),
        (Some("SIGKILL"), None) => (
            Some(Certainty::Possible),
            Some(
                "often the kernel for lack of memory, which this worker cannot count: look at its kernel log (dmesg), or ask for more with --memory",
            ),
        ),
        _ => (None, None),
    };
    End {
        certainty,
        basis: certainty.map(|_| "the exit status alone".to_owned()),
        advice: advice.map(str::to_owned),
        evidence: words.evidence.clone(),
        ..End::of(EndReason::ExitNonzero, detail)
    }
}

/// A signal that GPUlayer did not send.
fn signalled(signal: &str, words: &LastWords, kernel: &[KernelWord<'_>], scene: &Scene) -> End {
    let fault = kernel.iter().find_map(|word| match word {
        KernelWord::Fault { line } => Some((*line).to_owned()),
        _ => None,
    });
    let mut end = End::of(EndReason::Signalled, format!("ended by {signal}"));
    let by_itself = matches!(signal, "SIGSEGV" | "SIGILL" | "SIGFPE" | "SIGABRT" | "SIGTRAP" | "SIGSYS");
    let stack = fault_handler::stack(&scene.lines);
    let shared_memory_is_full = scene.full.iter().any(|volume| volume == "/dev/shm");
    let (certainty, basis, advice) = match signal {
        _ if fault.is_some() => (
            Certainty::Certain,
            "the kernel log names a process of the task",
            if stack.is_some() {
                STACK_SHOWN
            } else {
                "a fault in compiled code: `--env PYTHONFAULTHANDLER=1` shows where Python was"
            },
        ),
        "SIGBUS" if shared_memory_is_full => (
            Certainty::Likely,
            "/dev/shm has no room left",
            "fewer DataLoader workers, or a larger /dev/shm on the worker",
        ),
        "SIGBUS" => (
            Certainty::Possible,
            "the wait status alone",
            "a memory-mapped file that shrank or had no room, or /dev/shm that was full for a while",
        ),
        // The kernel does not log that a limit on CPU time was passed, nor does it tell afterwards what the limit was.
        "SIGKILL" if scene.kernel.readable => (
            Certainty::Possible,
            "GPUlayer did not send it, and the kernel log tells of no lack of memory",
            "look for who sent it: the program itself, another process of this user, a person on the worker, or a hard limit on CPU time (ulimit -t)",
        ),
        "SIGKILL" => (
            Certainty::Possible,
            "GPUlayer did not send it, and this worker may not read its kernel log",
            "often the kernel for lack of memory: look at `dmesg` there, or ask for more with --memory",
        ),
        "SIGXCPU" | "SIGXFSZ" => (
            Certainty::Certain,
            "only the kernel sends it, when a resource limit is passed",
            "raise the limit (ulimit) on the worker or in the program",
        ),
        "SIGPIPE" => {
            (Certainty::Likely, "it wrote to a pipe nobody read", "the reader at the other end had gone")
        }
        _ if by_itself => (
            Certainty::Likely,
            "a signal that programs bring upon themselves",
            if stack.is_some() {
                STACK_SHOWN
            } else {
                "a fault in the program or a library; `--env PYTHONFAULTHANDLER=1` shows where Python was"
            },
        ),
        _ => (
            Certainty::Possible,
            "GPUlayer did not send it",
            "the program sent it to itself, or somebody on the worker did",
        ),
    };
    end.certainty = Some(certainty);
    end.basis = Some(basis.to_owned());
    end.advice = Some(advice.to_owned());
    end.evidence.extend(fault);
    let room = MOST_EVIDENCE - end.evidence.len();
    let said = stack.unwrap_or_else(|| words.evidence.clone());
    end.evidence.extend(said.iter().rev().take(room).rev().cloned());
    end
}

/// What to try when Python's fault handler has shown its stack.
const STACK_SHOWN: &str =
    "a fault in compiled code that was called there; `gpulayer logs` has the whole stack";

/// The signal that a shell's status above 128 stands for, where programs do not use it for themselves.
fn signal_word(number: i32) -> Option<&'static str> {
    Some(match number {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// No sentence of a program's words grows without end.
fn bounded(mut end: End) -> End {
    end.detail = end.detail.map(|text| cut(&text, MOST_CHARACTERS * 4));
    end.advice = end.advice.map(|text| cut(&text, MOST_CHARACTERS * 2));
    end.evidence.truncate(MOST_EVIDENCE);
    end.evidence = end.evidence.iter().map(|line| cut(line, MOST_CHARACTERS)).collect();
    end
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// The end of a task whose shim vanished without writing down how it ended. One that it was stopping for its timeout
/// has timed out all the same.
pub fn shim_lost(timed_out: bool, spec: &JobSpec) -> End {
    let detail = "the task's shim ended without a word (was it killed?); what could be found of the task was killed then";
    match spec.timeout_s.filter(|_| timed_out) {
        Some(timeout_s) => End::of(
            EndReason::TimedOut,
            format!("{}; while it was stopped, {detail}", timeout_sentence(timeout_s)),
        ),
        None => End::of(EndReason::Internal, detail.to_owned()),
    }
}

fn completed(uncollected: &[UncollectedOutput]) -> End {
    if uncollected.is_empty() {
        return End::of(EndReason::Completed, None);
    }
    let each: Vec<String> =
        uncollected.iter().map(|output| format!("`{}`: {}", output.name, output.why)).collect();
    let detail = format!("exited with status 0, but declared outputs are missing: {}", each.join("; "));
    End {
        certainty: Some(Certainty::Certain),
        basis: Some("the workspace was looked through after the end".to_owned()),
        advice: Some(
            "paths of outputs are relative to the workspace; mark it `optional` if it may be absent"
                .to_owned(),
        ),
        ..End::of(EndReason::MissingOutput, detail)
    }
}

fn timeout_sentence(timeout: Seconds) -> String {
    format!("ran longer than timeout_s = {}", timeout.millis() as f64 / 1000.0)
}

fn not_found(spec: &JobSpec, code: i32) -> Option<&'static str> {
    let Workload::Command(command) = &spec.workload else {
        return None;
    };
    Some(match &command.run {
        Run::Shell(_) => "the shell itself could not be executed",
        Run::Argv(argv) if argv.first().is_some_and(|program| program.contains(char::is_whitespace)) => {
            "the first word of argv is the program alone; use `shell` for a whole command line"
        }
        Run::Argv(_) if code == 126 => "make it executable (chmod +x) or name its interpreter first",
        Run::Argv(argv) if argv.first().is_some_and(|program| program.contains('/')) => {
            "paths are relative to the task's workspace: send it with the source, or give an absolute path"
        }
        Run::Argv(_) => "install it on the worker, or add its folder to PATH with `env`",
    })
}
