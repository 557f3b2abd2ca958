//! A running task as its shim sees it: the process, its pipes, its clocks, its end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group};

use super::cgroup::{Group, Readings};
use super::ending::{conclude, never_ran, signal_of, wait_of, write_stop_file};
use super::home::Home;
use super::host_lock::{HowToLock, lock};
use super::identity::Claim;
use super::oom_score::OomScore;
use super::prelude::Preparing;
use super::raised::hide_secrets;
use super::recorder::{Moment, Recorder};
use super::redacted::{NoCoreFiles, Redacted};
use super::remark::remark;
use super::resident::{Calls, Heard, Resident, peak_memory_bytes};
use super::resolve::{self, Refusal};
use super::stuck::look_at_stuck;
use super::system::{Reaped, own_peak_memory_bytes, reap_any};
use super::tree::{descendants, kill_descendants};
use super::{ExitRecord, Launch, NotStarted, StopCause, StopSent, Wait};
use crate::clock;
use crate::contract::protocol::StopReason;
use crate::contract::quantity::Timestamp;
use crate::contract::spec::StopSignal;
use crate::contract::worker::StuckProcess;

/// Between looks at a tree that was killed; doubles up to the second. Deaths wake the shim by themselves: this
/// is for those that fork away or sleep uninterruptibly.
const KILL_AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));
/// A task that lives longer gets its group for itself. Most end before, and are spared the move.
const STEP_OUT_AFTER: Duration = Duration::from_secs(1);
/// A tree that is still there so long after it was killed is told about.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// Reads of a pipe after the end: more than any pipe holds, so that somebody outside the tree who holds the
/// other end and floods it cannot keep the task from ending.
const DRAIN_READS: usize = 64;
/// What a pipe holds at first, and so what one read can bring.
const PIPE_BYTES: usize = 64 << 10;
/// What the pipe of a program holds that once filled it, where the system allows that: fewer reads, and the program
/// waits less. Not from the start: what a user's pipes may hold together is limited.
const LARGE_PIPE_BYTES: usize = 1 << 20;
const LARGE_READ_BYTES: usize = 256 << 10;
/// Processes that a signal ended and that are remembered for the verdict.
const MOST_SIGNALLED: usize = 16;

struct Pipe {
    /// `None` once its end was read.
    end: Option<OwnedFd>,
    read_bytes: usize,
    /// What was read comes through this first.
    redacted: Redacted,
}

struct Stopping {
    sent: StopSent,
    kill_at: Instant,
}

struct Outcome {
    wait: Wait,
    ended_at: Timestamp,
    duration: Duration,
    after_stop: bool,
}

pub(super) struct Task {
    pub(super) launch: Box<Launch>,
    claim: Claim,
    /// The program, or its prelude.
    main: Pid,
    preparing: Option<Preparing>,
    oom_score: Rc<OomScore>,
    started_at: Timestamp,
    started: Instant,
    pipes: [Pipe; 2],
    buffer: Vec<u8>,
    recorder: Recorder,
    stopping: Option<Stopping>,
    outcome: Option<Outcome>,
    tree_gone: bool,
    kill_again: Option<(Instant, Duration)>,
    peak_memory_bytes: u64,
    _no_core_files: Option<NoCoreFiles>,
    /// Held until the tree is gone, whatever becomes of the worker.
    _gpu_locks: Vec<File>,
    /// The same: what the prelude handed over.
    held: Vec<OwnedFd>,
    /// Given back at the end.
    group: Option<Group>,
    step_out_at: Option<Instant>,
    out_of_memory_after: Option<Duration>,
    killed_at: Option<Instant>,
    /// Those that did not die of it, once looked for.
    stuck: Option<Vec<StuckProcess>>,
    /// Those of the tree that a signal ended before the shim killed any; see [`ExitRecord::pids`].
    signalled: Vec<u32>,
    /// The way to the program, if it may stay.
    calls: Option<Calls>,
    /// The program itself, when it stays: all that is left of the tree.
    resident: Option<Resident>,
}

impl Task {
    /// Starts the program, or its prelude. `Err`: neither ran; the record is written already, if the folder allows.
    pub(super) fn start(mut launch: Box<Launch>, home: &mut Home) -> Result<Task, Box<ExitRecord>> {
        let started_at = clock::now();
        let mut claim = match Claim::take(&launch.task_folder, &home.identity) {
            Ok(claim) => claim,
            Err(error) => {
                let detail = format!("task folder {}: {error}", launch.task_folder.display());
                let refusal = Refusal::new(NotStarted::SpawnFailed, detail);
                return Err(Box::new(never_ran(&launch, started_at, refusal)));
            }
        };
        let gpu_locks = launch.gpu_locks.iter().map(|path| share(Path::new(path)));
        let gpu_locks = match gpu_locks.collect::<Result<Vec<File>, Refusal>>() {
            Ok(locks) => locks,
            Err(refusal) => {
                let record = never_ran(&launch, started_at, refusal);
                conclude(&mut claim, &record);
                return Err(Box::new(record));
            }
        };
        if let Some(group) = &mut home.group {
            group.hold(&launch.limits);
        }
        let pipes =
            || -> io::Result<_> { Ok((pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?)) };
        let no_core_files = NoCoreFiles::if_secrets(&launch);
        let mut spawn = || {
            let redacted = Redacted::pair(&launch)?;
            let ((out, out_end), (err, err_end)) = pipes().map_err(|error| {
                Refusal::new(NotStarted::SpawnFailed, format!("pipes could not be made: {error}"))
            })?;
            let started = Instant::now();
            let begun = begin(&launch, home, (out_end, err_end));
            let begun =
                begun.map_err(|refusal| Refusal::new(refusal.kind, redacted[0].sentence(refusal.detail)))?;
            Ok((begun, started, out, err, redacted))
        };
        let spawned = spawn();
        let prepares = spawned.as_ref().is_ok_and(|(begun, ..)| begun.preparing.is_some());
        if !prepares {
            // The task has them now, and its pipes know what to look for.
            launch.secrets = Vec::new();
        }
        match spawned {
            Ok((begun, started, out, err, [out_redacted, err_redacted])) => {
                let Begun { main, calls, held, preparing } = begun;
                let pipe = |end: OwnedFd, redacted| Pipe { end: Some(end), read_bytes: PIPE_BYTES, redacted };
                let recorder = Recorder::new(&launch.task_folder, launch.log);
                Ok(Task {
                    launch,
                    claim,
                    main,
                    preparing,
                    oom_score: Rc::clone(&home.oom_score),
                    started_at,
                    started,
                    pipes: [pipe(out, out_redacted), pipe(err, err_redacted)],
                    buffer: Vec::new(),
                    recorder,
                    stopping: None,
                    outcome: None,
                    tree_gone: false,
                    kill_again: None,
                    peak_memory_bytes: 0,
                    _no_core_files: no_core_files,
                    _gpu_locks: gpu_locks,
                    held,
                    step_out_at: (!prepares && home.group.as_ref().is_some_and(|group| !group.is_outside()))
                        .then(|| started + STEP_OUT_AFTER),
                    group: home.group.take(),
                    out_of_memory_after: None,
                    killed_at: None,
                    stuck: None,
                    signalled: Vec::new(),
                    calls,
                    resident: None,
                })
            }
            Err(refusal) => {
                let record = never_ran(&launch, started_at, refusal);
                conclude(&mut claim, &record);
                Err(Box::new(record))
            }
        }
    }

    /// Whether the program has not started yet.
    pub(super) fn is_preparing(&self) -> bool {
        self.preparing.is_some()
    }

    /// Of the program, or of its prelude.
    pub(super) fn pid(&self) -> u32 {
        self.main.as_raw_nonzero().get().unsigned_abs()
    }

    /// Number of the newest record that can be read from the spool.
    pub(super) fn last_n(&self) -> u64 {
        self.recorder.last_n()
    }

    /// The pipes to watch, by index.
    pub(super) fn open_pipes(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let pipes = self.pipes.iter().enumerate();
        pipes.filter_map(|(index, pipe)| pipe.end.as_ref().map(|end| (index, end.as_fd())))
    }

    /// Where a program that may stay says that it has called.
    pub(super) fn calls(&self) -> Option<BorrowedFd<'_>> {
        self.calls.as_ref().filter(|_| self.outcome.is_none()).map(AsFd::as_fd)
    }

    /// Hears whether it has. Then the task is over if the program stays alone; whoever is there beside it is killed, and
    /// the program too.
    pub(super) fn hear(&mut self) {
        let heard = self.calls().and(self.calls.as_ref()).map_or(Heard::Nothing, Calls::hear);
        match heard {
            Heard::Nothing => {}
            Heard::Gone => self.calls = None,
            Heard::Called { status } => {
                self.conclude_with(Wait::Exited { code: status });
                self.stay();
            }
        }
    }

    fn stay(&mut self) {
        let Some((calls, stay)) = self.calls.take().zip(self.launch.stay.clone()) else { return };
        // Those that have ended are nobody's company.
        self.reap_ended();
        if self.stopping.is_some() || self.tree_gone {
            return;
        }
        match Resident::settle(self.main, calls, stay, std::mem::take(&mut self.held), self.group.as_ref()) {
            Ok(resident) => {
                self.peak_memory_bytes =
                    peak_memory_bytes(self.main).unwrap_or(0).max(self.peak_memory_bytes);
                self.resident = Some(resident);
                self.tree_gone = true;
            }
            Err(held) => self.held = held,
        }
    }

    /// Reads once from each of these pipes, which must be readable or at their end, and spools what came.
    pub(super) fn read(&mut self, ready: &[usize]) {
        let now = now();
        for index in ready {
            self.read_one(*index, now);
        }
        self.recorder.flush(now);
    }

    fn read_one(&mut self, index: usize, now: Moment) {
        let Some(pipe) = self.pipes.get_mut(index) else { return };
        let Some(end) = &pipe.end else { return };
        self.buffer.clear();
        self.buffer.reserve(pipe.read_bytes);
        match rustix::io::read(end, spare_capacity(&mut self.buffer)) {
            Ok(0) => {
                pipe.end = None;
                pipe.redacted.finish(|clean| self.recorder.take(index, clean, now));
                self.recorder.close(index, now);
            }
            Ok(length) => {
                if length >= PIPE_BYTES && pipe.read_bytes < LARGE_READ_BYTES {
                    pipe.read_bytes = LARGE_READ_BYTES;
                    // Refused, it goes on as it is.
                    let _ = rustix::pipe::fcntl_setpipe_size(end, LARGE_PIPE_BYTES);
                }
                pipe.redacted.feed(&self.buffer, |clean| self.recorder.take(index, clean, now));
            }
            Err(Errno::INTR) => {}
            Err(error) => {
                remark(format_args!("a pipe of {} cannot be read: {error}", self.launch.task_id));
                pipe.end = None;
                pipe.redacted.finish(|clean| self.recorder.take(index, clean, now));
                self.recorder.close(index, now);
            }
        }
    }

    /// Reads what the pipes hold now.
    fn drain(&mut self) {
        for _ in 0..DRAIN_READS {
            let ready: Vec<usize> = {
                let open: Vec<(usize, BorrowedFd<'_>)> = self.open_pipes().collect();
                if open.is_empty() {
                    return;
                }
                let mut polled: Vec<PollFd<'_>> =
                    open.iter().map(|(_, pipe)| PollFd::from_borrowed_fd(*pipe, PollFlags::IN)).collect();
                if poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err() {
                    continue;
                }
                let ready = open.iter().zip(&polled).filter(|(_, one)| one.revents().contains(PollFlags::IN));
                ready.map(|((index, _), _)| *index).collect()
            };
            if ready.is_empty() {
                return;
            }
            self.read(&ready);
        }
    }

    /// Reaps what has ended. When the task's own process has, the rest of its tree is killed at once.
    pub(super) fn reap(&mut self) {
        self.hear();
        if self.resident.is_some() {
            return;
        }
        self.reap_ended();
        let prepared = self.preparing.as_ref().is_some_and(|preparing| preparing.done);
        if (self.outcome.is_some() || prepared) && !self.tree_gone && self.kill_again.is_none() {
            // What the others had written by then counts, what they write while they die may not.
            self.drain();
            self.kill_tree();
        }
        if prepared && self.outcome.is_none() && self.tree_gone {
            self.start_program();
        }
    }

    fn reap_ended(&mut self) {
        loop {
            match reap_any() {
                Ok(Reaped::Child { pid, status, peak_memory_bytes }) => {
                    self.peak_memory_bytes = self.peak_memory_bytes.max(peak_memory_bytes);
                    if libc::WIFSIGNALED(status)
                        && self.kill_again.is_none()
                        && self.signalled.len() < MOST_SIGNALLED
                    {
                        self.signalled.push(pid.as_raw_nonzero().get().unsigned_abs());
                    }
                    if pid == self.main {
                        self.main_ended(wait_of(status));
                    }
                }
                Ok(Reaped::AllAlive) => break,
                Ok(Reaped::NoChild) => {
                    // Somebody may be in the group who is not of our descent.
                    self.tree_gone = self.group.as_ref().is_none_or(Group::is_clear);
                    break;
                }
                Err(error) => {
                    remark(format_args!("children of {} cannot be reaped: {error}", self.launch.task_id));
                    break;
                }
            }
        }
    }

    fn main_ended(&mut self, wait: Wait) {
        match &mut self.preparing {
            Some(preparing) if wait == (Wait::Exited { code: 0 }) && self.stopping.is_none() => {
                preparing.done = true;
            }
            // It had called already, and was killed with those beside it.
            _ if self.outcome.is_some() => {}
            _ => self.conclude_with(wait),
        }
    }

    fn conclude_with(&mut self, wait: Wait) {
        self.outcome = Some(Outcome {
            wait,
            ended_at: clock::now(),
            duration: self.started.elapsed(),
            after_stop: self.stopping.is_some(),
        });
    }

    /// After its prelude, of which nothing is left.
    fn start_program(&mut self) {
        let Some(preparing) = self.preparing.take() else { return };
        let heard = preparing.heard().map_err(|error| {
            let detail = format!("what the prelude said cannot be understood: {error}");
            Refusal::new(NotStarted::SpawnFailed, detail)
        });
        self.started_at = clock::now();
        self.started = Instant::now();
        if let Some(group) = &mut self.group {
            // Killing what the prelude left may have changed them; and what the program uses is counted anew.
            group.hold(&self.launch.limits);
        }
        let begun = heard.and_then(|(prepared, held)| {
            self.held = held;
            prepared.apply(&mut self.launch.env);
            let start = || resolve::start(&self.launch, preparing.out.as_fd(), preparing.err.as_fd());
            self.oom_score.for_task(start)
        });
        self.launch.secrets = Vec::new();
        match begun {
            Ok((main, calls)) => {
                (self.main, self.calls) = (main, calls);
                self.tree_gone = false;
                (self.kill_again, self.killed_at, self.stuck) = (None, None, None);
                self.signalled.clear();
                self.peak_memory_bytes = 0;
                // Not before: what the shim starts is born where the shim is.
                self.step_out_at = self.group.is_some().then(|| self.started + STEP_OUT_AFTER);
            }
            Err(Refusal { kind, detail }) => {
                let detail = self.pipes[0].redacted.sentence(detail);
                self.conclude_with(Wait::NotStarted { kind, detail });
            }
        }
    }

    /// Whether the task's own process has ended and nothing of its tree is left.
    pub(super) fn is_over(&self) -> bool {
        self.outcome.is_some() && self.tree_gone
    }

    /// Begins a stop, or makes one harder. An exit before the signal stands as it is.
    pub(super) fn stop(&mut self, cause: StopCause, reason: StopReason, now: bool) {
        self.reap();
        if self.outcome.is_some() {
            return;
        }
        let at_once = now || self.launch.stop_signal == StopSignal::Kill;
        match &mut self.stopping {
            Some(stopping) if at_once => stopping.kill_at = Instant::now(),
            Some(_) => return,
            None => {
                // Before the signal: its handler may look for the file.
                if let Err(error) = write_stop_file(&self.launch.task_folder, reason) {
                    remark(format_args!(
                        "the stop file of {} cannot be written: {error}",
                        self.launch.task_id
                    ));
                }
                let grace = if at_once { Duration::ZERO } else { self.launch.grace };
                let kill_at = Instant::now() + grace;
                self.stopping = Some(Stopping { sent: StopSent { cause, sent_at: clock::now() }, kill_at });
                if self.preparing.as_ref().is_some_and(|preparing| preparing.done) {
                    // What is left of it dies already, and the program is not to begin.
                    return self.conclude_with(Wait::Exited { code: 0 });
                }
                if !at_once {
                    self.signal_group(signal_of(self.launch.stop_signal));
                    // A stopped process would not hear it.
                    self.signal_group(Signal::CONT);
                }
            }
        }
        self.on_time(Instant::now());
    }

    fn signal_group(&self, signal: Signal) {
        // The task's process leads its session, so that it cannot leave its group; and it is not reaped yet, so
        // that the number is still its own.
        if let Err(error) = kill_process_group(self.main, signal) {
            remark(format_args!("{} cannot be signalled: {error}", self.launch.task_id));
        }
    }

    /// The next moment at which [`Task::on_time`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let timeout = match (&self.outcome, &self.stopping) {
            (Some(_), _) => None,
            (None, Some(stopping)) if self.kill_again.is_none() => Some(stopping.kill_at),
            (None, Some(_)) => None,
            (None, None) if self.is_preparing() => None,
            (None, None) => self.launch.timeout.and_then(|timeout| self.started.checked_add(timeout)),
        };
        let kill_again = self.kill_again.map(|(at, _)| at);
        let group = [self.look_at(), self.step_out_at];
        [timeout, kill_again, self.recorder.deadline()].into_iter().chain(group).flatten().min()
    }

    /// Does what is due.
    pub(super) fn on_time(&mut self, now: Instant) {
        if self.outcome.is_none() {
            match (&self.stopping, self.launch.timeout) {
                (Some(stopping), _) if now >= stopping.kill_at && self.kill_again.is_none() => {
                    self.kill_tree()
                }
                (None, Some(timeout))
                    if !self.is_preparing() && now.duration_since(self.started) >= timeout =>
                {
                    self.stop(StopCause::Timeout, StopReason::TimedOut, false);
                }
                _ => {}
            }
        }
        if self.kill_again.is_some_and(|(at, _)| now >= at) && !self.tree_gone {
            self.kill_tree();
            // Who is not of our descent brings no word of its end.
            self.reap();
        }
        if self.look_at().is_some_and(|at| now >= at) {
            self.stuck = Some(self.left().into_iter().filter_map(look_at_stuck).collect());
        }
        if self.step_out_at.is_some_and(|at| now >= at) {
            self.step_out_at = None;
            self.step_out();
        }
        if self.recorder.deadline().is_some_and(|at| now >= at) {
            self.recorder.on_time(Moment { time: clock::now(), at: now });
        }
    }

    /// When to look for those who do not die.
    fn look_at(&self) -> Option<Instant> {
        let due = self.killed_at.filter(|_| self.stuck.is_none() && !self.tree_gone)?;
        due.checked_add(STUCK_AFTER)
    }

    /// Who is left of the tree.
    fn left(&self) -> Vec<u32> {
        let mut left = descendants();
        left.extend(self.group.iter().flat_map(Group::others));
        left.sort_unstable();
        left.dedup();
        left
    }

    /// Those of the tree that are still there long after they were killed; `None` until somebody looked.
    pub(super) fn stuck(&self) -> Option<&[StuckProcess]> {
        self.stuck.as_deref().filter(|stuck| !stuck.is_empty())
    }

    /// From here on the limits are the task's alone.
    fn step_out(&mut self) {
        if let Some(group) = &mut self.group
            && self.outcome.is_none()
            && let Err(error) = group.step_out()
        {
            remark(format_args!("the shim of {} shares its group: {error}", self.launch.task_id));
        }
    }

    /// What to watch for kills for want of memory.
    pub(super) fn oom_event(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.group.as_ref()?.oom_event()
    }

    /// Notes when the first of them was.
    pub(super) fn note_out_of_memory(&mut self) {
        if self.group.as_ref().is_some_and(Group::ran_out_of_memory) {
            self.out_of_memory_after.get_or_insert_with(|| self.started.elapsed());
        }
    }

    fn kill_tree(&mut self) {
        self.killed_at.get_or_insert_with(Instant::now);
        if let Some(group) = &mut self.group {
            group.kill_others();
        }
        kill_descendants();
        let (first, longest) = KILL_AGAIN;
        let pause = self.kill_again.map_or(first, |(_, pause)| (pause * 2).min(longest));
        self.kill_again = Some((Instant::now() + pause, pause));
    }

    /// Completes the spool and writes the exit record. Only when [`Task::is_over`].
    pub(super) fn finish(mut self) -> (ExitRecord, Option<Group>, Option<Resident>) {
        self.drain();
        let Readings { memory_limit_bytes, memory_peak_bytes, oom_kills, cpu_throttling } =
            self.group.as_mut().map(Group::readings).unwrap_or_default();
        let now = now();
        for (index, pipe) in self.pipes.iter_mut().enumerate() {
            pipe.redacted.finish(|clean| self.recorder.take(index, clean, now));
        }
        let whole_log = self.recorder.finish(now);
        if let Some(redactor) = self.pipes[0].redacted.redactor() {
            hide_secrets(&self.launch.env, redactor);
        }
        let last_n = self.recorder.last_n();
        let main = self.pid();
        let others = self.signalled.iter().copied().filter(|pid| *pid != main);
        let pids = std::iter::once(main).chain(others).collect();
        let outcome = self.outcome.unwrap_or_else(|| Outcome {
            wait: Wait::NotStarted {
                kind: NotStarted::SpawnFailed,
                detail: "its end was not seen".to_owned(),
            },
            ended_at: now.time,
            duration: self.started.elapsed(),
            after_stop: self.stopping.is_some(),
        });
        let was_killed = oom_kills.is_some_and(|kills| kills > 0);
        let oom_killed_after =
            was_killed.then(|| self.out_of_memory_after.unwrap_or(outcome.duration).min(outcome.duration));
        let (lost_records, lost_because) = self.recorder.lost_records();
        let record = ExitRecord {
            task_id: self.launch.task_id,
            wait: outcome.wait,
            stop: self.stopping.map(|stopping| stopping.sent),
            after_stop: outcome.after_stop,
            started_at: self.started_at,
            ended_at: outcome.ended_at,
            in_prelude: self.preparing.is_some(),
            duration: outcome.duration,
            peak_memory_bytes: memory_peak_bytes.or_else(|| {
                (self.peak_memory_bytes > own_peak_memory_bytes()).then_some(self.peak_memory_bytes)
            }),
            memory_limit_bytes,
            oom_kills,
            oom_killed_after,
            cpu_throttling,
            memory_not_held: memory_limit_bytes.is_none()
                && self.launch.limits.memory_bytes.is_some()
                && self.group.as_ref().is_some_and(Group::limits_memory),
            lost_records,
            lost_because: lost_because.to_owned(),
            last_n,
            whole_log,
            pids,
        };
        conclude(&mut self.claim, &record);
        (record, self.group, self.resident)
    }
}

/// What was started for a task.
struct Begun {
    main: Pid,
    calls: Option<Calls>,
    held: Vec<OwnedFd>,
    preparing: Option<Preparing>,
}

/// Calls the program that stayed, which then needs no prelude; without one that can be called it starts one or the other.
fn begin(launch: &Launch, home: &mut Home, (out, err): (OwnedFd, OwnedFd)) -> Result<Begun, Refusal> {
    if let Some(mut resident) = home.resident.take() {
        match resident.call(launch, out.as_fd(), err.as_fd()) {
            Ok(()) => {
                let Resident { main, calls, held, .. } = resident;
                return Ok(Begun { main, calls: Some(calls), held, preparing: None });
            }
            // It has died this moment, and nothing of the task has begun.
            Err(error) => {
                remark(format_args!("the program that stayed cannot be called, another starts: {error}"));
                resident.end(home.group.as_mut());
                if let Some(group) = &mut home.group {
                    // Killing has changed them.
                    group.hold(&launch.limits);
                }
            }
        }
    }
    if let Some(prelude) = &launch.prelude {
        let (main, preparing) = Preparing::begin(prelude, launch, &home.oom_score, (out, err))?;
        return Ok(Begun { main, calls: None, held: Vec::new(), preparing: Some(preparing) });
    }
    let (main, calls) = home.oom_score.for_task(|| resolve::start(launch, out.as_fd(), err.as_fd()))?;
    Ok(Begun { main, calls, held: Vec::new(), preparing: None })
}

fn share(path: &Path) -> Result<File, Refusal> {
    lock(path, HowToLock::Shared).map_err(|error| {
        let detail = format!("the GPU's lock {} cannot be shared: {error}", path.display());
        Refusal::new(NotStarted::SpawnFailed, detail)
    })
}

fn now() -> Moment {
    Moment { time: clock::now(), at: Instant::now() }
}
