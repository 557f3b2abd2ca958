//! What of a worker's last word stands. A worker is believed about what it saw; what follows from that by rule is
//! decided here, whoever wrote the worker.

use super::Run;
use crate::contract::artifact::OutputFile;
use crate::contract::end::{End, EndReason};
use crate::contract::function::{MOST_INLINE_BYTES, Returned};
use crate::contract::problem::Warning;
use crate::contract::protocol::Finish;
use crate::contract::quantity::Seconds;
use crate::contract::spec::{JobSpec, Retry};
use crate::domain::change::{JobResults, StopCause};
use crate::domain::retry::is_asked_for;

/// Lines of evidence an end may have.
const MOST_EVIDENCE: usize = 3;
/// Bytes of one sentence or line of an end.
const MOST_SAID_BYTES: usize = 4_096;
/// Bytes of a signal's name.
const MOST_SIGNAL_BYTES: usize = 32;
/// Bytes of base64 that as many bytes as may stand in line become.
const MOST_TEXT_BYTES: usize = MOST_INLINE_BYTES.div_ceil(3) * 4;
/// Permission bits of a collected file; set-id and sticky bits do not travel.
const PERMISSIONS: u32 = 0o777;

/// A finish, after the rules.
pub(super) struct Checked {
    /// How the task ended.
    pub(super) end: End,
    /// Its files, those with impossible paths left out.
    pub(super) outputs: Vec<OutputFile>,
    /// What its function returned or raised.
    pub(super) result: Option<Returned>,
    /// The worker's warnings, and ours.
    pub(super) warnings: Vec<Warning>,
}

impl Checked {
    pub(super) fn of(spec: &JobSpec, run: &Run, finish: &Finish) -> Self {
        let (outputs, mut warnings) = brought_back(finish);
        let result = returned(spec, finish, &mut warnings);
        let ended = with_result(spec, ruled(spec, run, finish), result.as_ref(), &warnings);
        let mut end = with_all_outputs(spec, ended, &outputs);
        if is_asked_for(&spec.retry, end.reason) {
            end.advice = end.advice.as_deref().and_then(without_retries);
        }
        Self { end, outputs, result, warnings }
    }
}

/// The files of a finish whose paths are possible, and the worker's warnings with ours about the others.
fn brought_back(finish: &Finish) -> (Vec<OutputFile>, Vec<Warning>) {
    let mut warnings = finish.warnings.clone();
    let mut outputs = Vec::with_capacity(finish.outputs.len());
    for file in &finish.outputs {
        if stays_beneath(&file.path) {
            outputs.push(OutputFile { mode: file.mode & PERMISSIONS, ..file.clone() });
        } else {
            let detail = format!("output `{}` was left out: its path leaves the workspace", file.path);
            warnings.push(Warning { pointer: String::new(), detail });
        }
    }
    (outputs, warnings)
}

/// What a function is said to have returned, if there is room for it.
fn returned(spec: &JobSpec, finish: &Finish, warnings: &mut Vec<Warning>) -> Option<Returned> {
    spec.workload.function()?;
    let result = finish.result.as_ref()?;
    let length = result.text.as_ref().map_or(0, String::len);
    if length <= MOST_TEXT_BYTES && (result.text.is_some() != result.artifact.is_some()) {
        return Some(result.clone());
    }
    let detail = format!(
        "what the function returned was left out: its worker sent {length} bytes of it in line, at most {MOST_TEXT_BYTES} are \
         allowed, or as an artifact"
    );
    warnings.push(Warning { pointer: String::new(), detail });
    None
}

/// A function that succeeded has returned. `warnings`: what was in the way of bringing that back.
fn with_result(spec: &JobSpec, mut end: End, result: Option<&Returned>, warnings: &[Warning]) -> End {
    let is_function = spec.workload.function().is_some();
    if !is_function
        || end.reason != EndReason::Completed
        || result.is_some_and(|result| !result.raised && !result.partial)
    {
        return end;
    }
    let (reason, detail) = match result {
        Some(result) if result.raised => (EndReason::ExitNonzero, "the function raised an exception".to_owned()),
        None if !warnings.is_empty() => {
            let why: Vec<&str> = warnings.iter().map(|warning| &*warning.detail).collect();
            (EndReason::MissingOutput, format!("nothing came of the function: {}", why.join("; ")))
        }
        _ => (
            EndReason::MissingOutput,
            "the function's process ended with status 0 before the function returned (`os._exit`, or a library called it)"
                .to_owned(),
        ),
    };
    (end.reason, end.owner, end.detail) = (reason, reason.owner(), Some(detail));
    (end.certainty, end.basis, end.advice) = (None, None, None);
    end
}

/// What a task that was given up brings back late: kept with the task, never published as the job's.
pub fn late_results(finish: &Finish) -> JobResults {
    let (outputs, warnings) = brought_back(finish);
    JobResults {
        outputs,
        undeclared: Vec::new(),
        log_artifact: finish.log_artifact,
        result: finish.result.clone(),
        warnings,
    }
}

fn stays_beneath(path: &str) -> bool {
    !path.is_empty() && !path.contains('\0') && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// CONTRACT, Words and states: an exit before the stop signal was sent stands as it is; after it, the cause names
/// the end. The first cause wins, so a cancel that came after the shim's own timeout changes nothing; a task whose
/// shim was lost on the way to a stop is what it was to be. Success is only what exits with 0 and brings back all
/// that was declared; ends that only the server can know are not a worker's to report.
fn ruled(spec: &JobSpec, run: &Run, finish: &Finish) -> End {
    let mut end = finish.end.clone();
    let stopped = finish.after_stop || end.reason == EndReason::Internal;
    match (run.stop, end.reason) {
        (Some(stop), reason) if stopped && reason != EndReason::TimedOut => {
            end.reason = stop.cause.end_reason();
            operators_word(stop.cause, &mut end);
        }
        // The shim's own word when nobody came back for the task; the lease was suspended all the time.
        (_, EndReason::WorkerLost) if finish.after_stop => {}
        (_, EndReason::Completed) if end.signal.is_some() => end.reason = EndReason::Signalled,
        (_, EndReason::Completed) if end.exit_code != Some(0) => end.reason = EndReason::ExitNonzero,
        (_, EndReason::Completed) => {}
        (_, reason) if !is_a_workers_to_say(reason) => {
            end.reason = EndReason::Internal;
            end.detail =
                Some(format!("the worker reported `{}`, which only the server can know", reason.word()));
        }
        _ => {}
    }
    if end.reason != finish.end.reason {
        // What the worker concluded was about another end.
        (end.certainty, end.basis, end.advice) = (None, None, None);
        if matches!(end.reason, EndReason::Drained | EndReason::Evicted) {
            end.advice = Some(again_elsewhere(&spec.retry, end.reason));
        }
    }
    end.owner = end.reason.owner();
    end.evidence.truncate(MOST_EVIDENCE);
    for said in end.evidence.iter_mut().chain(&mut end.detail).chain(&mut end.basis).chain(&mut end.advice) {
        shorten(said);
    }
    end.signal = end.signal.filter(|name| name.len() <= MOST_SIGNAL_BYTES);
    end.duration_s = end.duration_s.map(|span| span.min(Seconds::MAX));
    end
}

/// A success without a file that was declared is none.
pub(super) fn with_all_outputs(spec: &JobSpec, mut end: End, outputs: &[OutputFile]) -> End {
    let absent = spec.outputs.iter().find(|declared| {
        !declared.optional && !outputs.iter().any(|file| file.name == declared.shown_name())
    });
    if let (EndReason::Completed, Some(absent)) = (end.reason, absent) {
        end.reason = EndReason::MissingOutput;
        end.owner = end.reason.owner();
        end.detail = Some(format!("the declared output `{}` is not there", absent.shown_name()));
        (end.certainty, end.basis, end.advice) = (None, None, None);
    }
    end
}

/// How such a job comes to another attempt. One that had asked for just that has none left, or is on its way to it.
pub(super) fn again_elsewhere(retry: &Retry, reason: EndReason) -> String {
    let attempts = retry.max_attempts;
    match (is_asked_for(retry, reason), attempts) {
        (true, 2..) => {
            format!("it may have {attempts} attempts in all: submit it again, or allow more with `--retries`")
        }
        (false, 2..) => "`--retry-on operator` starts such jobs again elsewhere, too".to_owned(),
        _ => "`--retries 1 --retry-on operator` starts such jobs again elsewhere".to_owned(),
    }
}

/// An advice without the part that says how to have retries: this job has them.
fn without_retries(advice: &str) -> Option<String> {
    let parts: Vec<&str> = advice.split("; ").filter(|part| !part.contains("--retry-on ")).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What was done to the task, in front of how it took it.
fn operators_word(cause: StopCause, end: &mut End) {
    let said = match cause {
        StopCause::Drain => "its worker was drained, and the deadline passed",
        StopCause::Evict => "an operator evicted the task",
        StopCause::Shutdown => "the daemon was stopped, and what ran with it (`gpulayer down`)",
        StopCause::Preempt => "a job of a higher priority took the place",
        StopCause::Gang => "another task of its gang ended",
        StopCause::Cancel | StopCause::Timeout => return,
    };
    end.detail = Some(match end.detail.take() {
        Some(detail) => format!("{said}; {detail}"),
        None => said.to_owned(),
    });
}

/// Cuts what a worker may say of an end: it is stored with the job and in its events.
fn shorten(said: &mut String) {
    if said.len() > MOST_SAID_BYTES {
        said.truncate(said.floor_char_boundary(MOST_SAID_BYTES));
        said.push('…');
    }
}

const fn is_a_workers_to_say(reason: EndReason) -> bool {
    !matches!(
        reason,
        EndReason::QueueTimedOut
            | EndReason::DependencyFailed
            | EndReason::WorkerLost
            | EndReason::WorkerRebooted
            | EndReason::RendezvousFailed
            | EndReason::Preempted
            | EndReason::Drained
            | EndReason::Evicted
            | EndReason::Revoked
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::quantity::Timestamp;
    use crate::contract::spec::{Function, Output, Serializer, Workload};
    use crate::domain::job::Stop;

    fn finish(reason: EndReason, exit_code: Option<i32>) -> Finish {
        Finish {
            end: End { exit_code, ..End::of(reason, None) },
            after_stop: false,
            outputs: Vec::new(),
            undeclared: Vec::new(),
            log_artifact: None,
            result: None,
            warnings: Vec::new(),
        }
    }

    fn run(stop: Option<StopCause>) -> Run {
        let now = Timestamp::default();
        let stop = stop.map(|cause| Stop { cause, now: false });
        Run { started_at: now, phase: None, stop, unreachable_since: None }
    }

    fn reason(spec: &JobSpec, stop: Option<StopCause>, finish: &Finish) -> EndReason {
        Checked::of(spec, &run(stop), finish).end.reason
    }

    fn file(name: &str, path: &str) -> OutputFile {
        let (name, path) = (name.to_owned(), path.to_owned());
        OutputFile { name, path, artifact: None, link_target: None, size_bytes: 0, mode: 0o4777 }
    }

    #[test]
    fn success_needs_status_0_and_every_declared_output() {
        let mut spec = JobSpec::command(["true"]);
        let completed = finish(EndReason::Completed, Some(0));
        assert_eq!(reason(&spec, None, &completed), EndReason::Completed);
        assert_eq!(reason(&spec, None, &finish(EndReason::Completed, Some(7))), EndReason::ExitNonzero);
        assert_eq!(reason(&spec, None, &finish(EndReason::Completed, None)), EndReason::ExitNonzero);
        spec.outputs.push(Output { path: "m".into(), name: None, optional: false });
        assert_eq!(reason(&spec, None, &completed), EndReason::MissingOutput);
        let with_it = Finish { outputs: vec![file("m", "m")], ..completed };
        assert_eq!(reason(&spec, None, &with_it), EndReason::Completed);
    }

    #[test]
    fn a_function_has_succeeded_when_it_has_returned() {
        let function = Function {
            payload: "{}".into(),
            serializer: Serializer::Json,
            entrypoint: Some("a:b".into()),
            values: Vec::new(),
            reuse: false,
        };
        let spec = JobSpec::new(Workload::Function(Box::new(function)));
        let brought = |raised, partial, text: Option<String>| {
            let serializer = Serializer::Json;
            let result = Returned { serializer, raised, partial, text, artifact: None, size_bytes: 1 };
            let sent = Finish { result: Some(result), ..finish(EndReason::Completed, Some(0)) };
            let checked = Checked::of(&spec, &run(None), &sent);
            (checked.end.reason, checked.result.is_some(), checked.warnings.len())
        };
        let reported = |raised, text| brought(raised, false, text);
        let text = |length| Some("1".repeat(length));
        assert_eq!(reported(false, text(1)), (EndReason::Completed, true, 0));
        assert_eq!(reported(true, text(1)), (EndReason::ExitNonzero, true, 0));
        assert_eq!(reported(false, text(MOST_TEXT_BYTES)), (EndReason::Completed, true, 0));
        assert_eq!(reported(false, text(MOST_TEXT_BYTES + 1)), (EndReason::MissingOutput, false, 1));
        assert_eq!(reported(false, None), (EndReason::MissingOutput, false, 1), "neither text nor artifact");
        assert_eq!(
            brought(false, true, text(1)),
            (EndReason::MissingOutput, true, 0),
            "some calls were through"
        );
        let warning = Warning { pointer: String::new(), detail: "its shim is lost".to_owned() };
        let sent = Finish { warnings: vec![warning], ..finish(EndReason::Completed, Some(0)) };
        let detail = Checked::of(&spec, &run(None), &sent).end.detail;
        assert_eq!(detail.as_deref(), Some("nothing came of the function: its shim is lost"));
        assert_eq!(reason(&spec, None, &finish(EndReason::Completed, Some(0))), EndReason::MissingOutput);
        assert_eq!(reason(&spec, None, &finish(EndReason::ExitNonzero, Some(1))), EndReason::ExitNonzero);
    }

    #[test]
    fn the_cause_of_a_stop_names_the_end_once_the_signal_was_sent() {
        let spec = JobSpec::command(["true"]);
        let mut ended = finish(EndReason::ExitNonzero, Some(143));
        assert_eq!(reason(&spec, Some(StopCause::Cancel), &ended), EndReason::ExitNonzero);
        ended.after_stop = true;
        assert_eq!(reason(&spec, Some(StopCause::Cancel), &ended), EndReason::Cancelled);
        assert_eq!(reason(&spec, Some(StopCause::Timeout), &ended), EndReason::TimedOut);
        assert_eq!(reason(&spec, Some(StopCause::Drain), &ended), EndReason::Drained);
        assert_eq!(reason(&spec, Some(StopCause::Evict), &ended), EndReason::Evicted);
        ended.end.reason = EndReason::TimedOut;
        assert_eq!(reason(&spec, Some(StopCause::Cancel), &ended), EndReason::TimedOut, "it came first");
        let lost = finish(EndReason::Internal, None);
        assert_eq!(reason(&spec, Some(StopCause::Cancel), &lost), EndReason::Cancelled);
        assert_eq!(reason(&spec, None, &lost), EndReason::Internal);
        let orphaned = Finish { after_stop: true, ..finish(EndReason::WorkerLost, None) };
        assert_eq!(reason(&spec, None, &orphaned), EndReason::WorkerLost);
    }

    #[test]
    fn an_operators_stop_is_named_before_how_the_program_took_it() {
        let mut ended = finish(EndReason::Cancelled, None);
        (ended.after_stop, ended.end.detail) = (true, Some("it did not end in time".to_owned()));
        let end = Checked::of(&JobSpec::command(["true"]), &run(Some(StopCause::Evict)), &ended).end;
        assert_eq!(end.detail.as_deref(), Some("an operator evicted the task; it did not end in time"));
        assert!(end.advice.is_some_and(|advice| advice.contains("--retry-on operator")));
    }

    #[test]
    fn nobody_is_told_to_ask_for_the_retries_that_he_had() {
        let advice = |max_attempts, on: &str, end: End, stop| {
            let retry = Retry { max_attempts, retry_on: vec![on.to_owned()], ..Retry::default() };
            let spec = JobSpec { retry, ..JobSpec::command(["true"]) };
            let sent = Finish { after_stop: true, end, ..finish(EndReason::Cancelled, None) };
            Checked::of(&spec, &run(stop), &sent).end.advice.unwrap_or_default()
        };
        let stopped = |max_attempts, on| {
            advice(max_attempts, on, End::of(EndReason::Cancelled, None), Some(StopCause::Evict))
        };
        assert!(stopped(1, "worker_lost").starts_with("`--retries 1 --retry-on operator`"));
        assert!(stopped(2, "worker_lost").starts_with("`--retry-on operator` starts"));
        assert_eq!(
            stopped(2, "operator"),
            "it may have 2 attempts in all: submit it again, or allow more with `--retries`"
        );
        let failed = |on| {
            let said =
                Some("look at the GPU; --retries with --retry-on gpu_error tries another worker".to_owned());
            advice(2, on, End { advice: said, ..End::of(EndReason::GpuError, None) }, None)
        };
        assert_eq!(failed("gpu_error"), "look at the GPU");
        assert!(failed("worker_lost").ends_with("tries another worker"));
    }

    #[test]
    fn what_only_the_server_knows_is_not_taken_from_a_worker() {
        let spec = JobSpec::command(["true"]);
        for wrong in [EndReason::WorkerLost, EndReason::QueueTimedOut, EndReason::Drained] {
            assert_eq!(reason(&spec, None, &finish(wrong, None)), EndReason::Internal);
        }
    }

    #[test]
    fn a_worker_cannot_say_more_than_there_is_room_for() {
        let mut sent = finish(EndReason::OomKilled, Some(1));
        let long = "ü".repeat(9_000);
        sent.end.evidence = vec![long.clone(); 9];
        sent.end.detail = Some(long.clone());
        (sent.end.basis, sent.end.advice) = (Some(long.clone()), Some(long.clone()));
        sent.end.signal = Some(long);
        let end = Checked::of(&JobSpec::command(["true"]), &run(None), &sent).end;
        assert_eq!((end.evidence.len(), end.signal), (3, None));
        let said = [end.detail, end.basis, end.advice, end.evidence.first().cloned()];
        assert!(said.iter().all(|text| text.as_ref().is_some_and(|text| text.len() < 4_200)));
    }

    #[test]
    fn files_outside_the_workspace_are_left_out_by_name_and_modes_are_tamed() {
        let mut sent = finish(EndReason::Completed, Some(0));
        let paths = ["a/b", "../x", "/etc/passwd", "a/../../x", "", "a//b"];
        sent.outputs = paths.iter().map(|path| file("all", path)).collect();
        let checked = Checked::of(&JobSpec::command(["true"]), &run(None), &sent);
        let kept: Vec<_> = checked.outputs.iter().map(|file| (file.path.as_str(), file.mode)).collect();
        assert_eq!(kept, [("a/b", 0o777)]);
        assert_eq!(checked.warnings.len(), 5);
    }
}
