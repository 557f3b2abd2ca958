//! The last line of a foreground job: verdict, duration, peak memory, and what to type next.

use super::array;
use super::next_step::NextStep;
use super::shown::{harmless, size, span, tail};
use crate::contract::end::{Certainty, End, EndReason};
use crate::contract::job::{Job, JobState};
use crate::contract::problem::Warning;
use crate::contract::spec::{JobSpec, Workload};
use crate::domain::retry::retries;
use crate::domain::verdict::left_out;

/// How many undeclared files are named.
const NAMED: usize = 5;
/// Characters of an advice that has room in the last line.
const MOST_ADVICE: usize = 140;

/// The one line, without line end.
pub(super) fn verdict(job: &Job, next: &NextStep, fetched: bool) -> String {
    let id = tail(job.id);
    let mut parts = vec![format!("job {id} {}", outcome(job))];
    if let Some(end) = &job.end {
        parts.extend(end.duration_s.map(span));
        parts.extend(end.peak_memory_bytes.map(|bytes| format!("peak {}", size(bytes))));
        parts.extend(try_this(end));
    }
    parts.extend(not_retried(job));
    parts.extend(nothing_sent(job));
    if !job.outputs.is_empty() && !fetched {
        parts.push(next.command(&format!("fetch {id} --to out")));
    }
    if let Some(progress) = array::progress(job) {
        parts.extend(array::next_steps(job, &progress, next));
        if job.state != JobState::Succeeded {
            parts.push(next.command(&format!("show {id}")));
        }
        return parts.join(" · ");
    }
    let whole = if job.log_artifact.is_some() { "logs --full" } else { "logs" };
    parts.push(next.command(&format!("{whole} {id}")));
    if job.state != JobState::Succeeded {
        parts.push(next.command(&format!("show {id}")));
    }
    parts.join(" · ")
}

/// Why a job that may have more attempts ended with this one, when its `retry_on` is the reason.
fn not_retried(job: &Job) -> Option<String> {
    let end = job.end.as_ref().filter(|_| matches!(job.state, JobState::Failed | JobState::TimedOut))?;
    let retry = serde_json::from_str::<JobSpec>(job.spec.get()).ok()?.retry;
    let last =
        job.progress.is_some() || job.attempt >= retry.max_attempts || job.cancel_requested_at.is_some();
    if last || end.reason == EndReason::QueueTimedOut || retries(&retry, job.attempt, end.reason) {
        return None;
    }
    let word = end.reason.word();
    Some(format!("not retried: --retry-on is {}; `--retry-on {word}` would", retry.retry_on.join(",")))
}

/// A program that was not found where no file was sent along.
fn nothing_sent(job: &Job) -> Option<String> {
    let reason = job.end.as_ref()?.reason;
    let spec: JobSpec = serde_json::from_str(job.spec.get()).ok()?;
    let misses = matches!(reason, EndReason::ImportError | EndReason::ExecutableNotFound);
    let Workload::Command(command) = &spec.workload else { return None };
    let here = command.cwd.as_ref().is_some_and(|cwd| cwd.starts_with('/'));
    (misses && spec.source.is_none() && spec.inputs.is_empty() && !here)
        .then(|| "no file was sent along; `--source .` sends this folder".to_owned())
}

/// What was noticed about a job after its submission was answered.
pub(super) fn noticed<'a>(job: &'a Job, known: &'a [Warning]) -> impl Iterator<Item = String> + 'a {
    let new = |warning: &&Warning| {
        warning.pointer != left_out::POINTER && !known.iter().any(|known| known.detail == warning.detail)
    };
    job.warnings.iter().filter(new).map(|warning| format!("warning: {}", harmless(&warning.detail, false)))
}

/// What to try, where it is known and short enough for the line; `show` has the rest.
fn try_this(end: &End) -> Option<String> {
    let sure = end.certainty.is_none_or(|certainty| certainty >= Certainty::Likely);
    let advice = end.advice.as_ref().filter(|advice| sure && advice.chars().count() <= MOST_ADVICE)?;
    Some(format!("try: {}", harmless(advice, false)))
}

/// `succeeded`, or how it ended instead.
fn outcome(job: &Job) -> String {
    let mut word = outcome_word(job.state).to_owned();
    if job.attempt > 1 {
        word.push_str(&format!(" on attempt {}", job.attempt));
    }
    match job.end.as_ref().filter(|_| job.state != JobState::Succeeded).and_then(cause) {
        Some(cause) => format!("{word}: {cause}"),
        None => word,
    }
}

/// The state as a verb of the job.
pub(super) const fn outcome_word(state: JobState) -> &'static str {
    match state {
        JobState::TimedOut => "timed out",
        state => state.word(),
    }
}

/// What made it end so, as far as the word alone does not say it.
pub(super) fn cause(end: &End) -> Option<String> {
    if let Some(detail) = &end.detail {
        let mut detail = harmless(detail.trim_end_matches('.'), false);
        // The signal itself is measured: what is possible there is who sent it.
        if end.certainty == Some(Certainty::Possible) && end.reason != EndReason::Signalled {
            detail.insert_str(0, "possibly: ");
        }
        return Some(if speaks_for_itself(end.reason) {
            detail
        } else {
            format!("{}: {detail}", end.reason.word())
        });
    }
    match (end.exit_code, &end.signal) {
        (Some(code), _) if code != 0 => Some(format!("exit status {code}")),
        (_, Some(signal)) => Some(signal.clone()),
        // `cancelled: cancelled` says nothing more.
        _ if end.reason.word() == end.reason.job_state().word() => None,
        _ => Some(end.reason.word().to_owned()),
    }
}

/// Whether a sentence about it says what the word would.
pub(super) const fn speaks_for_itself(reason: EndReason) -> bool {
    use EndReason::{Cancelled, ExitNonzero, QueueTimedOut, Signalled, TimedOut};
    matches!(reason, Cancelled | ExitNonzero | QueueTimedOut | Signalled | TimedOut)
}

/// The files that no output declares and that can still be fetched; `None` when there are none.
pub(super) fn undeclared(job: &Job, next: &NextStep) -> Option<String> {
    let files = &job.undeclared;
    if files.is_empty() {
        return None;
    }
    let named: Vec<_> = files
        .iter()
        .take(NAMED)
        .map(|file| format!("{} ({})", harmless(&file.path, false), size(file.size_bytes)))
        .collect();
    let more = files.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let id = tail(job.id);
    Some(format!(
        "kept, though no --output names them: {}{more} · {}",
        named.join(", "),
        next.command(&format!("fetch {id} --undeclared --to out"))
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::artifact::UndeclaredFile;
    use crate::contract::quantity::Seconds;

    fn job(state: &str, reason: EndReason, change: impl FnOnce(&mut End)) -> Job {
        let mut end = End::of(reason, None);
        end.duration_s = Some(Seconds::from_millis(12_400));
        end.peak_memory_bytes = Some(1_200_000_000);
        change(&mut end);
        serde_json::from_value(serde_json::json!({
            "id": "job_01hf7yat00e2g0000000a7kq2b", "project": "default", "labels": {}, "submitted_by": "me",
            "state": state, "spec": {}, "attempt": 1, "submitted_at": "2026-01-01T00:00:00Z", "outputs": [],
            "undeclared": [], "warnings": [], "end": end,
        }))
        .unwrap()
    }

    #[test]
    fn the_line_says_how_it_ended_and_what_to_type_next() {
        let mut done = job("succeeded", EndReason::Completed, |end| end.exit_code = Some(0));
        insta::assert_snapshot!(verdict(&done, &NextStep::default(), false), @"job a7kq2b succeeded · 12.4 s · peak 1.2 GB · gpulayer logs a7kq2b");
        done.outputs =
            serde_json::from_str(r#"[{"name":"m","path":"m","size_bytes":1,"mode":420}]"#).unwrap();
        insta::assert_snapshot!(verdict(&done, &NextStep::default(), false), @"job a7kq2b succeeded · 12.4 s · peak 1.2 GB · gpulayer fetch a7kq2b --to out · gpulayer logs a7kq2b");
        let failed = job("failed", EndReason::ExitNonzero, |end| end.exit_code = Some(3));
        insta::assert_snapshot!(verdict(&failed, &NextStep::default(), false), @"job a7kq2b failed: exit status 3 · 12.4 s · peak 1.2 GB · gpulayer logs a7kq2b · gpulayer show a7kq2b");
        let lost = job("failed", EndReason::WorkerLost, |end| end.peak_memory_bytes = None);
        let greedy = job("failed", EndReason::OomKilled, |end| {
            end.detail = Some("peak 512 MiB of 512 MiB, 14 s after start".into());
            end.certainty = Some(Certainty::Certain);
            end.advice = Some("--memory 1GiB".into());
        });
        insta::assert_snapshot!(verdict(&greedy, &NextStep::default(), false), @"job a7kq2b failed: oom_killed: peak 512 MiB of 512 MiB, 14 s after start · 12.4 s · peak 1.2 GB · try: --memory 1GiB · gpulayer logs a7kq2b · gpulayer show a7kq2b");
        let maybe = job("failed", EndReason::CudaOutOfMemory, |end| {
            end.detail = Some("a CUDA library found no memory".into());
            end.certainty = Some(Certainty::Possible);
        });
        insta::assert_snapshot!(verdict(&maybe, &NextStep::default(), false), @"job a7kq2b failed: cuda_out_of_memory: possibly: a CUDA library found no memory · 12.4 s · peak 1.2 GB · gpulayer logs a7kq2b · gpulayer show a7kq2b");
        let cancelled = job("cancelled", EndReason::Cancelled, |end| end.peak_memory_bytes = None);
        let next = NextStep::after(Some("http://box:8470"));
        insta::assert_snapshot!(verdict(&cancelled, &next, false), @"job a7kq2b cancelled · 12.4 s · gpulayer --server http://box:8470 logs a7kq2b · gpulayer --server http://box:8470 show a7kq2b");
        let mut again = job("succeeded", EndReason::Completed, |end| end.peak_memory_bytes = None);
        again.attempt = 2;
        insta::assert_snapshot!(verdict(&again, &NextStep::default(), false), @"job a7kq2b succeeded on attempt 2 · 12.4 s · gpulayer logs a7kq2b");
        insta::assert_snapshot!(verdict(&lost, &NextStep::default(), false), @"job a7kq2b failed: worker_lost · 12.4 s · gpulayer logs a7kq2b · gpulayer show a7kq2b");
    }

    #[test]
    fn attempts_that_were_not_used_and_files_that_were_not_sent_are_told() {
        let with = |job: &mut Job, spec: serde_json::Value| {
            job.spec = serde_json::value::to_raw_value(&spec).unwrap().into();
        };
        let mut flaky = job("failed", EndReason::ExitNonzero, |end| end.exit_code = Some(1));
        let mut spec = serde_json::json!({
            "workload": {"command": {"argv": ["python", "-m", "a"]}}, "retry": {"max_attempts": 4},
        });
        with(&mut flaky, spec.clone());
        assert_eq!(
            not_retried(&flaky).as_deref(),
            Some("not retried: --retry-on is worker_lost; `--retry-on exit_nonzero` would")
        );
        flaky.attempt = 4;
        assert_eq!(not_retried(&flaky), None, "all attempts were used");
        flaky.attempt = 1;
        spec["retry"]["retry_on"] = serde_json::json!(["user"]);
        with(&mut flaky, spec.clone());
        assert_eq!(not_retried(&flaky), None, "it is retried for that");
        assert_eq!(nothing_sent(&flaky), None);
        let mut missed = job("failed", EndReason::ImportError, |_| {});
        with(&mut missed, spec.clone());
        assert!(nothing_sent(&missed).unwrap().contains("--source ."));
        spec["source"] = serde_json::json!(format!("artifact://sha256/{}", "0".repeat(64)));
        with(&mut missed, spec);
        assert_eq!(nothing_sent(&missed), None);
    }

    #[test]
    fn undeclared_files_are_named_with_the_way_to_have_them() {
        let mut done = job("failed", EndReason::ExitNonzero, |_| {});
        assert_eq!(undeclared(&done, &NextStep::default()), None);
        done.undeclared = (0..6).map(|n| UndeclaredFile { path: format!("f{n}"), size_bytes: 1 }).collect();
        insta::assert_snapshot!(undeclared(&done, &NextStep::default()).unwrap(), @"kept, though no --output names them: f0 (1 B), f1 (1 B), f2 (1 B), f3 (1 B), f4 (1 B) and 1 more · gpulayer fetch a7kq2b --undeclared --to out");
    }
}
