//! The life of a task: by hand for each rule, and at random for the promises that hold over all of them.

use proptest::prelude::*;

use super::*;
use crate::contract::quantity::Seconds;
use crate::contract::spec::Output;

fn plain() -> JobSpec {
    JobSpec::command(["true"])
}

fn staged() -> JobSpec {
    JobSpec {
        source: Some(Digest::from_bytes([1; 32])),
        outputs: vec![Output { path: "model.json".into(), name: None, optional: false }],
        ..plain()
    }
}

fn facts(exit: Exit, stop: Option<StopSent>, last_n: u64) -> ExitFacts {
    ExitFacts { stop, duration: Some(Seconds::new(1)), last_n, ..ExitFacts::of(exit) }
}

fn exited(code: i32) -> ExitFacts {
    facts(Exit::Exited { code }, None, 0)
}

/// Feeds events one by one and returns the effects of the last.
fn effects_of(run: &mut TaskRun, spec: &JobSpec, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
    let mut effects = Vec::new();
    for event in events {
        effects.clear();
        run.on(event, spec, &mut effects);
    }
    effects
}

fn finish_in(effects: &[Effect]) -> Option<&Finish> {
    effects.iter().find_map(|effect| match effect {
        Effect::Report(Report::Finish(finish)) => Some(&**finish),
        _ => None,
    })
}

#[test]
fn a_trivial_task_takes_the_shortest_path() {
    let spec = plain();
    let mut effects = Vec::new();
    let mut run = TaskRun::new(&spec, &mut effects);
    assert_eq!(effects, [Effect::Report(Report::Start)]);
    assert_eq!(run.phase(), None);
    assert_eq!(effects_of(&mut run, &spec, [Event::StartAccepted]), [Effect::Launch]);
    assert_eq!(
        effects_of(&mut run, &spec, [Event::Launched]),
        [Effect::Report(Report::Phase { phase: Phase::Executing })]
    );
    assert_eq!(
        effects_of(&mut run, &spec, [Event::Ended(exited(0))]),
        [Effect::Collect { whole_log: WholeLog::InLines, with_checkpoint: false, in_a_hurry: false }]
    );
    let effects = effects_of(&mut run, &spec, [Event::Collected(Collection::default())]);
    assert_eq!(finish_in(&effects).unwrap().end.reason, EndReason::Completed);
    assert_eq!(effects_of(&mut run, &spec, [Event::FinishAnswered]), [Effect::RemoveFolder]);
    assert!(run.settled());
}

#[test]
fn an_environment_is_a_phase_of_its_own_that_can_be_stopped() {
    let spec = plain();
    let mut run = TaskRun::new(&spec, &mut Vec::new());
    effects_of(&mut run, &spec, [Event::StartAccepted]);
    assert_eq!(
        effects_of(&mut run, &spec, [Event::Preparing]),
        [Effect::Report(Report::Phase { phase: Phase::Environment })]
    );
    assert_eq!(run.phase(), Some(Phase::Environment));
    assert_eq!(
        effects_of(&mut run, &spec, [Event::Logged { through_n: 2 }]),
        [Effect::UploadLogs { first_n: 1, through_n: 2, end: None }]
    );
    let mut stopped = run.clone();
    assert_eq!(
        effects_of(&mut run, &spec, [Event::Launched]),
        [Effect::Report(Report::Phase { phase: Phase::Executing })]
    );
    assert_eq!(
        effects_of(&mut stopped, &spec, [Event::StopOrdered { cause: StopReason::Cancelled, now: false }]),
        [Effect::StopShim { cause: StopReason::Cancelled, now: false }]
    );
    let mut ended = facts(Exit::Signalled { signal: "SIGTERM".into() }, Some(StopSent::Order), 2);
    ended.in_prelude = true;
    let events = [Event::LogsAcknowledged { next_n: 3 }, Event::Ended(ended)];
    let effects = effects_of(&mut stopped, &spec, events);
    assert_eq!(
        effects,
        [Effect::Collect { whole_log: WholeLog::InLines, with_checkpoint: true, in_a_hurry: false }],
        "it never executed"
    );
    let effects = effects_of(&mut stopped, &spec, [Event::Collected(Collection::default())]);
    let end = &finish_in(&effects).unwrap().end;
    assert_eq!((end.reason, end.duration_s), (EndReason::Cancelled, None));
}

#[test]
fn a_stop_before_the_answer_to_start_executes_nothing() {
    for spec in [plain(), staged()] {
        let mut run = TaskRun::new(&spec, &mut Vec::new());
        assert_eq!(
            effects_of(&mut run, &spec, [Event::StopOrdered { cause: StopReason::Cancelled, now: false }]),
            []
        );
        let effects = effects_of(&mut run, &spec, [Event::StartAccepted]);
        assert_eq!(finish_in(&effects).unwrap().end.reason, EndReason::Cancelled);
        assert_eq!(effects.len(), 1);
    }
}

#[test]
fn a_stop_while_staging_ends_it_when_the_copying_has_stopped() {
    let spec = staged();
    let mut run = TaskRun::new(&spec, &mut Vec::new());
    effects_of(&mut run, &spec, [Event::StartAccepted]);
    assert_eq!(
        effects_of(&mut run, &spec, [Event::StopOrdered { cause: StopReason::Cancelled, now: true }]),
        [Effect::StopStaging]
    );
    let failed = Event::StageFailed { reason: EndReason::InputUnavailable, detail: "stopped".into() };
    let effects = effects_of(&mut run, &spec, [failed]);
    assert_eq!(finish_in(&effects).unwrap().end.reason, EndReason::Cancelled);
}

#[test]
fn a_stop_while_the_shim_starts_is_passed_on_and_only_a_harder_one_again() {
    let spec = plain();
    let mut run = TaskRun::new(&spec, &mut Vec::new());
    effects_of(
        &mut run,
        &spec,
        [Event::StartAccepted, Event::StopOrdered { cause: StopReason::Cancelled, now: false }],
    );
    let effects =
        effects_of(&mut run, &spec, [Event::StopOrdered { cause: StopReason::Cancelled, now: false }]);
    assert_eq!(effects, []);

    let mut run = TaskRun::new(&spec, &mut Vec::new());
    effects_of(&mut run, &spec, [Event::StartAccepted]);
    assert_eq!(
        effects_of(&mut run, &spec, [Event::StopOrdered { cause: StopReason::Cancelled, now: false }]),
        []
    );
    assert!(
        effects_of(&mut run, &spec, [Event::Launched])
            .contains(&Effect::StopShim { cause: StopReason::Cancelled, now: false })
    );
    assert_eq!(
        effects_of(&mut run, &spec, [Event::StopOrdered { cause: StopReason::Cancelled, now: false }]),
        []
    );
    assert_eq!(
        effects_of(&mut run, &spec, [Event::StopOrdered { cause: StopReason::Cancelled, now: true }]),
        [Effect::StopShim { cause: StopReason::Cancelled, now: true }]
    );
}

#[test]
fn collects_only_after_the_last_record_is_acknowledged() {
    let spec = plain();
    let mut run = TaskRun::new(&spec, &mut Vec::new());
    effects_of(&mut run, &spec, [Event::StartAccepted, Event::Launched]);
    assert_eq!(
        effects_of(&mut run, &spec, [Event::Logged { through_n: 3 }]),
        [Effect::UploadLogs { first_n: 1, through_n: 3, end: None }]
    );
    assert_eq!(effects_of(&mut run, &spec, [Event::Logged { through_n: 9 }]), []);
    assert_eq!(
        effects_of(&mut run, &spec, [Event::LogsAcknowledged { next_n: 4 }]),
        [Effect::UploadLogs { first_n: 4, through_n: 9, end: None }]
    );
    assert_eq!(effects_of(&mut run, &spec, [Event::Ended(facts(Exit::Exited { code: 0 }, None, 12))]), []);
    assert_eq!(
        effects_of(&mut run, &spec, [Event::LogsAcknowledged { next_n: 10 }]),
        [Effect::UploadLogs {
            first_n: 10,
            through_n: 12,
            end: Some(LogEnd { last_n: 12, lost_records: 0 })
        }]
    );
    assert_eq!(
        effects_of(&mut run, &spec, [Event::LogsAcknowledged { next_n: 13 }]),
        [Effect::Collect { whole_log: WholeLog::InLines, with_checkpoint: false, in_a_hurry: false }]
    );
}

#[test]
fn a_refused_log_does_not_hold_up_the_finish() {
    let spec = plain();
    let mut run = TaskRun::new(&spec, &mut Vec::new());
    effects_of(&mut run, &spec, [Event::StartAccepted, Event::Launched, Event::Logged { through_n: 3 }]);
    effects_of(&mut run, &spec, [Event::Ended(facts(Exit::Exited { code: 0 }, None, 5))]);
    assert_eq!(
        effects_of(&mut run, &spec, [Event::LogsRefused]),
        [Effect::Collect { whole_log: WholeLog::InLines, with_checkpoint: false, in_a_hurry: false }]
    );
}

#[test]
fn the_log_goes_on_behind_a_gap_and_the_finish_names_all_that_is_missing() {
    let spec = plain();
    let mut run = TaskRun::new(&spec, &mut Vec::new());
    effects_of(&mut run, &spec, [Event::StartAccepted, Event::Launched, Event::Logged { through_n: 3 }]);
    let why = || "the spool was cut".to_owned();
    let lost = Event::LogsLost { first_n: 2, last_n: 5, why: why(), next_n: 9 };
    assert_eq!(effects_of(&mut run, &spec, [lost]), []);
    let stalled = [Event::Logged { through_n: 10 }, Event::LogsStalled];
    assert_eq!(effects_of(&mut run, &spec, stalled), [], "nothing can be read, nothing is asked again");
    assert_eq!(
        effects_of(&mut run, &spec, [Event::Logged { through_n: 12 }]),
        [Effect::UploadLogs { first_n: 9, through_n: 12, end: None }]
    );
    let ended = Event::Ended(ExitFacts { lost_records: 4, ..facts(Exit::Exited { code: 0 }, None, 20) });
    let end = Some(LogEnd { last_n: 20, lost_records: 4 });
    assert_eq!(
        effects_of(&mut run, &spec, [ended, Event::LogsStalled]),
        [Effect::UploadLogs { first_n: 9, through_n: 21, end }]
    );
    let rejected = Event::LogsRejected { first_n: 11, why: "the job is gone".to_owned() };
    assert_eq!(
        effects_of(&mut run, &spec, [rejected]),
        [Effect::Collect { whole_log: WholeLog::InLines, with_checkpoint: false, in_a_hurry: false }]
    );
    let effects = effects_of(&mut run, &spec, [Event::Collected(Collection::default())]);
    let detail = "the log lacks its lines 2 to 5 and lines 11 to 20 of this task: the spool was cut";
    assert_eq!(finish_in(&effects).unwrap().warnings[0].detail, detail);
}

#[test]
fn a_restarted_worker_goes_on_where_the_task_is() {
    let spec = plain();
    let mut effects = Vec::new();
    TaskRun::adopt(&spec, Found::Unlaunched, &mut effects);
    assert_eq!(effects, [Effect::Report(Report::Start)]);

    effects.clear();
    TaskRun::adopt(&spec, Found::Running, &mut effects);
    assert_eq!(effects, [Effect::Report(Report::Phase { phase: Phase::Executing })]);

    effects.clear();
    TaskRun::adopt(&spec, Found::Preparing, &mut effects);
    assert_eq!(effects, [Effect::Report(Report::Phase { phase: Phase::Environment })]);

    effects.clear();
    let ended = facts(Exit::Exited { code: 3 }, None, 7);
    let mut run = TaskRun::adopt(&spec, Found::Ended(ended), &mut effects);
    assert_eq!(
        effects,
        [Effect::UploadLogs { first_n: 1, through_n: 7, end: Some(LogEnd { last_n: 7, lost_records: 0 }) }]
    );
    // The server had them all already.
    assert_eq!(
        effects_of(&mut run, &spec, [Event::LogsAcknowledged { next_n: 8 }]),
        [Effect::Collect { whole_log: WholeLog::InLines, with_checkpoint: true, in_a_hurry: false }]
    );

    effects.clear();
    let mut run = TaskRun::adopt(&spec, Found::Lost { last_n: 0, timed_out: false }, &mut effects);
    assert_eq!(
        effects,
        [Effect::Collect { whole_log: WholeLog::Broken, with_checkpoint: true, in_a_hurry: false }]
    );
    let effects = effects_of(&mut run, &spec, [Event::Collected(Collection::default())]);
    assert_eq!(finish_in(&effects).unwrap().end.reason, EndReason::Internal);
}

#[test]
fn what_a_user_should_know_of_a_run_survives_the_worker() {
    let spec = plain();
    let warning = Warning { pointer: "/resources/cpus".into(), detail: "held back".into() };
    let ended = || ExitFacts { warnings: vec![warning.clone()], ..exited(0) };
    let mut adopted = TaskRun::adopt(&spec, Found::Ended(ended()), &mut Vec::new());
    let mut watched = TaskRun::adopt(&spec, Found::Running, &mut Vec::new());
    effects_of(&mut watched, &spec, [Event::Ended(ended())]);
    for run in [&mut adopted, &mut watched] {
        let effects = effects_of(run, &spec, [Event::Collected(Collection::default())]);
        assert_eq!(finish_in(&effects).unwrap().warnings, std::slice::from_ref(&warning));
    }
}

#[test]
fn a_shim_lost_while_it_stopped_a_task_for_its_timeout_leaves_a_timeout() {
    let limited = JobSpec { timeout_s: Some(Seconds::new(3)), ..plain() };
    for (spec, timed_out, reason) in [
        (&limited, true, EndReason::TimedOut),
        (&limited, false, EndReason::Internal),
        (&plain(), true, EndReason::Internal),
    ] {
        let mut run = TaskRun::adopt(spec, Found::Lost { last_n: 0, timed_out }, &mut Vec::new());
        let effects = effects_of(&mut run, spec, [Event::Collected(Collection::default())]);
        let finish = finish_in(&effects).unwrap();
        assert_eq!((finish.end.reason, finish.after_stop), (reason, reason == EndReason::TimedOut));
    }
}

#[test]
fn undeclared_files_keep_the_workspace() {
    let spec = plain();
    let mut run = TaskRun::adopt(&spec, Found::Ended(exited(1)), &mut Vec::new());
    let collection = Collection {
        undeclared: vec![UndeclaredFile { path: "core".into(), size_bytes: 1 }],
        ..Collection::default()
    };
    effects_of(&mut run, &spec, [Event::Collected(collection)]);
    assert_eq!(effects_of(&mut run, &spec, [Event::FinishAnswered]), [Effect::KeepWorkspace]);
}

#[test]
fn a_revoked_worker_kills_and_tells_nobody() {
    let spec = plain();
    let mut run = TaskRun::new(&spec, &mut Vec::new());
    effects_of(&mut run, &spec, [Event::StartAccepted, Event::Launched]);
    assert_eq!(
        effects_of(&mut run, &spec, [Event::Abandoned]),
        [Effect::StopShim { cause: StopReason::Revoked, now: true }]
    );
    let killed = facts(Exit::Signalled { signal: "SIGKILL".into() }, Some(StopSent::Order), 4);
    assert_eq!(effects_of(&mut run, &spec, [Event::Ended(killed)]), [Effect::RemoveFolder]);
}

#[test]
fn the_verdict_names_who_ended_it() {
    let signal = || Exit::Signalled { signal: "SIGTERM".into() };
    let missing =
        [UncollectedOutput { name: "model.json".into(), why: "nothing matches `model.json`".into() }];
    let not_found = |code| Exit::NotFound { code, detail: "`nope` was not found in PATH (/bin)".into() };
    let not_prepared = |disk_full| Exit::NotPrepared { detail: "cannot enter `sub`".into(), disk_full };
    let none: &[UncollectedOutput] = &[];
    for (exit, stop, uncollected, expected) in [
        (Exit::Exited { code: 0 }, None, none, EndReason::Completed),
        (Exit::Exited { code: 0 }, None, &missing[..], EndReason::MissingOutput),
        (Exit::Exited { code: 2 }, None, &missing[..], EndReason::ExitNonzero),
        (Exit::Exited { code: 127 }, None, none, EndReason::ExitNonzero),
        (signal(), None, none, EndReason::Signalled),
        (signal(), Some(StopSent::Order), none, EndReason::Cancelled),
        (Exit::Exited { code: 0 }, Some(StopSent::Order), none, EndReason::Cancelled),
        (Exit::Exited { code: 0 }, Some(StopSent::Timeout), none, EndReason::TimedOut),
        (signal(), Some(StopSent::Orphaned), none, EndReason::WorkerLost),
        (not_found(127), None, none, EndReason::ExecutableNotFound),
        (not_found(126), None, none, EndReason::ExecutableNotFound),
        (not_prepared(false), None, none, EndReason::PrepareFailed),
        (not_prepared(true), None, none, EndReason::DiskFull),
    ] {
        let end = verdict(&facts(exit.clone(), stop, 0), &plain(), uncollected);
        assert_eq!(end.reason, expected, "{exit:?} {stop:?}");
        assert_eq!(end.owner, expected.owner());
        assert_eq!(end.signal.is_some(), matches!(exit, Exit::Signalled { .. }));
        let says_why = matches!(expected, EndReason::Completed | EndReason::Cancelled | EndReason::TimedOut);
        assert_eq!(end.detail.is_none(), says_why, "{expected:?}: {:?}", end.detail);
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::StartAccepted),
        Just(Event::StartRefused),
        Just(Event::Staged),
        Just(Event::StageFailed { reason: EndReason::InputUnavailable, detail: "gone".into() }),
        Just(Event::Preparing),
        Just(Event::Launched),
        Just(Event::LaunchFailed { detail: "no shim".into() }),
        (0..20u64).prop_map(|through_n| Event::Logged { through_n }),
        (1..22u64).prop_map(|next_n| Event::LogsAcknowledged { next_n }),
        Just(Event::LogsRefused),
        Just(Event::LogsStalled),
        (0..20u64).prop_map(|n| Event::Ended(facts(Exit::Exited { code: 0 }, None, n))),
        (0..20u64).prop_map(|last_n| Event::ShimLost { last_n, timed_out: false }),
        any::<bool>().prop_map(|now| Event::StopOrdered { cause: StopReason::Cancelled, now }),
        Just(Event::Abandoned),
        Just(Event::Collected(Collection::default())),
        Just(Event::FinishAnswered),
    ]
}

/// What a faithful world answers to an effect, so that every run can be driven to its end.
fn answer(effect: &Effect) -> Option<Event> {
    Some(match effect {
        Effect::Report(Report::Start) => Event::StartAccepted,
        Effect::Report(Report::Finish(_)) => Event::FinishAnswered,
        Effect::Report(_)
        | Effect::StopStaging
        | Effect::StopCollecting
        | Effect::RemoveFolder
        | Effect::KeepWorkspace => {
            return None;
        }
        Effect::Stage => Event::Staged,
        Effect::Launch => Event::Launched,
        Effect::StopShim { .. } => Event::Ended(facts(Exit::Exited { code: 0 }, Some(StopSent::Order), 20)),
        Effect::UploadLogs { first_n, .. } => Event::LogsAcknowledged { next_n: (first_n + 7).min(21) },
        Effect::Collect { .. } => Event::Collected(Collection::default()),
    })
}

proptest! {
    /// Whatever happens in whatever order: nothing executes before an accepted start or more than once, no
    /// finish goes before the log is through, the folder goes exactly once and last, and the run can end.
    #[test]
    fn random_lives_keep_the_promises(events in prop::collection::vec(any_event(), 0..40), with_source: bool) {
        let spec = if with_source { staged() } else { plain() };
        let mut effects = Vec::new();
        let mut run = TaskRun::new(&spec, &mut effects);
        let mut promises = Promises::default();
        let mut pending: Vec<Event> = Vec::new();
        promises.check(&Event::FinishAnswered, &effects, &mut pending)?;
        for event in events {
            effects.clear();
            run.on(event.clone(), &spec, &mut effects);
            promises.check(&event, &effects, &mut pending)?;
        }
        // From here on the world answers all that is owed; the program ends at last.
        pending.push(Event::Ended(facts(Exit::Exited { code: 0 }, None, 20)));
        for _ in 0..100 {
            let Some(event) = (!pending.is_empty()).then(|| pending.remove(0)) else {
                pending.push(Event::Ended(facts(Exit::Exited { code: 0 }, None, 20)));
                continue;
            };
            effects.clear();
            run.on(event.clone(), &spec, &mut effects);
            promises.check(&event, &effects, &mut pending)?;
        }
        prop_assert!(run.settled(), "stuck: {run:?}");
        prop_assert_eq!(promises.removals, 1);
    }
}

#[derive(Default)]
struct Promises {
    accepted: bool,
    launches: usize,
    finishes: usize,
    removals: usize,
    last_n: u64,
    acknowledged_n: u64,
    gap: bool,
    ended: bool,
}

impl Promises {
    fn check(
        &mut self,
        event: &Event,
        effects: &[Effect],
        pending: &mut Vec<Event>,
    ) -> Result<(), TestCaseError> {
        match event {
            Event::StartAccepted => self.accepted = true,
            Event::Logged { through_n } if self.launches > 0 => self.last_n = self.last_n.max(*through_n),
            Event::LogsAcknowledged { next_n } => self.acknowledged_n = self.acknowledged_n.max(next_n - 1),
            Event::LogsRefused => self.gap = true,
            Event::Ended(facts) if self.launches > 0 && !self.ended => {
                self.ended = true;
                self.last_n = self.last_n.max(facts.last_n);
            }
            Event::ShimLost { last_n, .. } if self.launches > 0 && !self.ended => {
                self.ended = true;
                self.last_n = self.last_n.max(*last_n);
            }
            _ => {}
        }
        for effect in effects {
            prop_assert_eq!(self.removals, 0, "something after the folder is gone");
            match effect {
                Effect::Stage => prop_assert!(self.accepted),
                Effect::Launch => {
                    prop_assert!(self.accepted);
                    self.launches += 1;
                    prop_assert_eq!(self.launches, 1);
                }
                Effect::Collect { .. } => {
                    prop_assert!(self.ended);
                    prop_assert!(
                        self.gap || self.acknowledged_n >= self.last_n,
                        "finish before the log is through"
                    );
                }
                Effect::Report(Report::Finish(_)) => {
                    self.finishes += 1;
                    prop_assert_eq!(self.finishes, 1);
                }
                Effect::RemoveFolder | Effect::KeepWorkspace => self.removals += 1,
                _ => {}
            }
        }
        pending.extend(effects.iter().filter_map(answer));
        Ok(())
    }
}

#[test]
fn the_environment_is_allow_listed_and_the_spec_wins() {
    use std::ffi::OsString;
    use std::path::Path;

    let mut spec = plain();
    spec.env.insert("HOME".into(), "/elsewhere".into());
    let array =
        crate::contract::array::ArrayPlace { index: 7, count: 9, item: Some(serde_json::json!({"a": 1})) };
    let host = [("PATH", "/bin"), ("HOME", "/root"), ("LC_ALL", "C"), ("SECRET_TOKEN", "x"), ("LCD", "y")];
    let place = TaskPlace {
        job_id: crate::contract::ids::JobId::from_u128(1),
        task_id: crate::contract::ids::TaskId::from_u128(2),
        attempt: 3,
        workspace: Path::new("/w/workspace"),
        tmp: Path::new("/w/tmp"),
        stop_file: Path::new("/w/stop"),
        progress_file: Path::new("/w/tmp/progress"),
        checkpoint: Path::new("/w/tmp/checkpoint"),
        function: None,
        array: Some(&array),
        gang: None,
        of_shell: true,
        gpus: &crate::domain::gpus::variables(&[], &[], false),
    };
    let host = host.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let found = environment(&spec, host.clone(), place);
    let at = |name: &str| found.get(&OsString::from(name)).and_then(|value| value.to_str());
    assert_eq!((at("PATH"), at("HOME"), at("LC_ALL")), (Some("/bin"), Some("/elsewhere"), Some("C")));
    assert_eq!((at("SECRET_TOKEN"), at("LCD")), (None, None));
    assert_eq!((at("TMPDIR"), at("GPULAYER_WORKSPACE")), (Some("/w/tmp"), Some("/w/workspace")));
    assert_eq!((at("PYTHONUNBUFFERED"), at("GPULAYER_ATTEMPT")), (Some("1"), Some("3")));
    assert_eq!((at("GPULAYER_ARRAY_INDEX"), at("GPULAYER_ARRAY_COUNT")), (Some("7"), Some("9")));
    assert_eq!(at("GPULAYER_ARRAY_ITEM"), Some(r#"{"a":1}"#));
    assert_eq!((at("CUDA_VISIBLE_DEVICES"), at("CUDA_DEVICE_ORDER")), (Some(""), Some("PCI_BUS_ID")));

    // What came from the submitting shell holds on its machine alone; what was asked for, everywhere.
    spec.env.extend([("PATH".into(), "/venv/bin".into()), ("LD_LIBRARY_PATH".into(), "/lib".into())]);
    spec.shell_env = vec!["PATH".into()];
    for (of_shell, path) in [(true, "/venv/bin"), (false, "/bin")] {
        let found = environment(&spec, host.clone(), TaskPlace { of_shell, ..place });
        let found = ["PATH", "LD_LIBRARY_PATH"].map(|name| found[&OsString::from(name)].clone());
        assert_eq!(found, [path, "/lib"]);
    }

    spec.env.insert("CUDA_VISIBLE_DEVICES".into(), "7".into());
    let told = [("CUDA_VISIBLE_DEVICES", "2".to_owned()), ("GPULAYER_GPU_UUIDS", "GPU-2".to_owned())];
    let found = environment(&spec, [], TaskPlace { gpus: &told, ..place });
    assert_eq!(found[&OsString::from("CUDA_VISIBLE_DEVICES")], "2");
}

#[test]
fn a_function_is_called_by_the_runner_and_its_call_is_no_variable() {
    use std::ffi::OsString;
    use std::path::Path;

    use crate::contract::array::ArrayPlace;
    use crate::contract::spec::{Function, Serializer, Workload};

    let function = Function {
        payload: "gAS=".into(),
        serializer: Serializer::Cloudpickle,
        entrypoint: None,
        values: Vec::new(),
        reuse: false,
    };
    let spec = JobSpec::new(Workload::Function(Box::new(function)));
    let runner = Path::new("/w/runner/run.py");
    assert_eq!(command_line(&spec, None, runner), ["python3", "/w/runner/run.py"]);
    let told = |item: serde_json::Value| {
        let array = ArrayPlace { index: 0, count: 1, item: Some(item) };
        let place = TaskPlace {
            job_id: crate::contract::ids::JobId::from_u128(1),
            task_id: crate::contract::ids::TaskId::from_u128(2),
            attempt: 1,
            workspace: Path::new("/w"),
            tmp: Path::new("/t"),
            stop_file: Path::new("/s"),
            progress_file: Path::new("/t/progress"),
            checkpoint: Path::new("/t/checkpoint"),
            function: Some(Path::new("/w/function")),
            array: Some(&array),
            gang: None,
            of_shell: true,
            gpus: &[],
        };
        let found = environment(&spec, [], place);
        assert_eq!(found[&OsString::from("GPULAYER_FUNCTION")], "/w/function");
        found.contains_key(&OsString::from("GPULAYER_ARRAY_ITEM"))
    };
    assert!(told(serde_json::json!({"lr": 1})));
    assert!(!told(serde_json::json!({"payload": "gAS="})));
}

#[test]
fn a_task_of_a_gang_is_told_its_rank_and_how_to_reach_its_peers() {
    use std::ffi::OsString;
    use std::path::Path;

    use crate::contract::gang::{Backend, Distributed, GangPlace, Launcher, Peer, ProcessesPerNode};
    use crate::contract::ids::WorkerId;

    let peer = |number: u128, address: &str| Peer {
        worker: WorkerId::from_u128(number),
        name: format!("box{number}"),
        address: address.to_owned(),
    };
    let gang = GangPlace { rank: 1, peers: vec![peer(1, "10.0.0.1"), peer(2, "fe.lab.example")] };
    let told = |processes_per_node, backend, uuids: &str| {
        let mut spec = plain();
        spec.distributed = Some(Box::new(Distributed {
            nodes: 2,
            processes_per_node,
            launcher: Some(Launcher::Env),
            backend,
        }));
        let gpus = [(crate::domain::gpus::GRANTED, uuids.to_owned())];
        let place = TaskPlace {
            job_id: crate::contract::ids::JobId::from_u128(1),
            task_id: crate::contract::ids::TaskId::from_u128(2),
            attempt: 1,
            workspace: Path::new("/w"),
            tmp: Path::new("/t"),
            stop_file: Path::new("/s"),
            progress_file: Path::new("/t/progress"),
            checkpoint: Path::new("/t/checkpoint"),
            function: None,
            array: None,
            gang: Some(&gang),
            of_shell: true,
            gpus: if uuids.is_empty() { &[] } else { &gpus },
        };
        let found = environment(&spec, [], place);
        let at = |name: &str| found[&OsString::from(format!("GPULAYER_{name}"))].to_str().unwrap().to_owned();
        ["RANK", "NODES", "PEERS", "PROCESSES_PER_NODE", "BACKEND"].map(at)
    };
    assert_eq!(told(None, None, ""), ["1", "2", "10.0.0.1,fe.lab.example", "1", "gloo"]);
    let by_gpu = told(Some(ProcessesPerNode::Gpu), Some(Backend::Auto), "GPU-1,GPU-2");
    assert_eq!(by_gpu[3..], ["2", "nccl"]);
    let counted = told(Some(ProcessesPerNode::Count(4)), Some(Backend::Gloo), "GPU-1,GPU-2");
    assert_eq!(counted[3..], ["4", "gloo"]);
}

#[test]
fn a_shell_text_fails_with_any_part_of_its_pipes_where_bash_is() {
    use crate::contract::spec::{Command, Run, Workload};
    use std::path::Path;

    let spec = JobSpec::new(Workload::Command(Command { run: Run::Shell("a | b".into()), cwd: None }));
    let runner = Path::new("/w/runner/run.py");
    let bash = command_line(&spec, Some(Path::new("/usr/bin/bash")), runner);
    assert_eq!(bash, ["/usr/bin/bash", "-o", "pipefail", "-c", "a | b"]);
    assert_eq!(command_line(&spec, None, runner), ["sh", "-c", "a | b"]);
    assert_eq!(command_line(&plain(), None, runner), ["true"]);
}

#[test]
fn a_cancel_in_a_hurry_does_not_wait_for_a_checkpoint() {
    let spec = plain();
    for (cause, now, hurries) in [
        (StopReason::Cancelled, true, true),
        (StopReason::Cancelled, false, false),
        (StopReason::Evicted, true, false),
    ] {
        let mut run = TaskRun::new(&spec, &mut Vec::new());
        let killed = facts(Exit::Signalled { signal: "SIGKILL".into() }, Some(StopSent::Order), 0);
        let events = [Event::StartAccepted, Event::Launched, Event::StopOrdered { cause, now }];
        effects_of(&mut run, &spec, events);
        assert_eq!(
            effects_of(&mut run, &spec, [Event::Ended(killed)]),
            [Effect::Collect { whole_log: WholeLog::InLines, with_checkpoint: true, in_a_hurry: hurries }],
            "{cause:?} {now}"
        );
        // What is on its way already is given up by whoever is in a hurry.
        let effects = effects_of(&mut run, &spec, [Event::StopOrdered { cause, now: true }]);
        assert_eq!(effects, if now { vec![] } else { vec![Effect::StopCollecting] });
    }
}
